import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { until } from "../support/poll.js";
import { RespError, type RespConnection, type RespValue } from "../support/resp-client.js";
import { callText, startNode, type TestNode } from "./commands-harness.js";

/** LOCK.* over the wire: waiting, being granted, giving up, and who is in the way of whom. */

let node: TestNode;
let one: RespConnection;
let two: RespConnection;
let three: RespConnection;
beforeEach(async () => {
  node = await startNode();
  [one, two, three] = [await node.connect(), await node.connect(), await node.connect()];
  for (const id of ["a", "b", "c"]) await one.call("LEASE.GRANT", id, 100);
});
afterEach(() => node.stop());

const blockedClients = async (): Promise<number> =>
  Number(/blocked_clients:(\d+)/.exec(await callText(three, "INFO", "clients"))?.[1]);

/** Sends a blocking acquire; resolves once the server has it in the queue, with its reply to come. */
async function waitFor(connection: RespConnection, ...argv: string[]): Promise<{ reply: Promise<RespValue> }> {
  const before = await blockedClients();
  const reply = connection.send(...argv);
  await until("the client to be blocked", async () => (await blockedClients()) > before);
  return { reply };
}

describe("waiting", () => {
  test("the next in the queue gets the lock with the release, under a larger token", async () => {
    const token = Number(await one.call("LOCK.ACQUIRE", "l", "a"));
    const waiting = await waitFor(two, "LOCK.ACQUIRE", "l", "b", "BLOCK", "0");
    expect(await one.call("LOCK.RELEASE", "l", "a", "TOKEN", token)).toBe(1);
    const next = Number(await waiting.reply);
    expect(next).toBeGreaterThan(token);
    expect(await one.call("LOCK.CHECK", "l", token)).toBe(0);
    expect(await one.call("LOCK.CHECK", "l", next)).toBe(1);
    expect(await one.call("LOCK.RELEASE", "l", "a")).toBe(0);
    expect(await one.call("GET", "l")).toBe("b");
    expect(await blockedClients()).toBe(0);
  });

  test("nil when the time is over", async () => {
    await one.call("LOCK.ACQUIRE", "l", "a");
    expect(await two.call("LOCK.ACQUIRE", "l", "b", "BLOCK", 30)).toBeNull();
    expect(await two.call("LOCK.ACQUIRE", "l", "b")).toBeNull();
  });

  test("later commands of a waiting connection wait with it, those of others do not", async () => {
    await one.call("LOCK.ACQUIRE", "l", "a");
    const waiting = await waitFor(two, "LOCK.ACQUIRE", "l", "b", "BLOCK", "0");
    let hasAnswered = false;
    const behind = two.send("ECHO", "behind").then((reply) => {
      hasAnswered = true;
      return reply;
    });
    expect(await one.call("ECHO", "beside")).toBe("beside");
    expect(hasAnswered).toBe(false);
    await one.call("LOCK.RELEASE", "l", "a");
    expect(await waiting.reply).toBeTypeOf("number");
    expect(await behind).toBe("behind");
  });

  test("a connection that closes leaves the queue: the lock goes to the next", async () => {
    await one.call("LOCK.ACQUIRE", "l", "a");
    const leaving = await waitFor(two, "LOCK.ACQUIRE", "l", "b", "BLOCK", "0");
    two.destroy();
    await expect(leaving.reply).rejects.toThrow("closed before the reply");
    await until("the queue to be empty", async () => (await blockedClients()) === 0);
    const last = await node.connect();
    const waiting = await waitFor(last, "LOCK.ACQUIRE", "l", "c", "BLOCK", "0");
    await one.call("LOCK.RELEASE", "l", "a");
    expect(await waiting.reply).toBeTypeOf("number");
    expect(await one.call("GET", "l")).toBe("c");
  });

  test("NOLEASE at once when the waiting lease ends, whatever the holder does", async () => {
    await one.call("LOCK.ACQUIRE", "l", "a");
    const waiting = await waitFor(two, "LOCK.ACQUIRE", "l", "b", "BLOCK", "0");
    await one.call("LEASE.REVOKE", "b");
    expect(await waiting.reply).toMatchObject({ code: "NOLEASE" });
    expect(await one.call("GET", "l")).toBe("a");
  });

  test("a cycle of waiting leases is refused, and named", async () => {
    await one.call("LOCK.ACQUIRE", "l", "a");
    await one.call("LOCK.ACQUIRE", "m", "b");
    const waiting = await waitFor(two, "LOCK.ACQUIRE", "l", "b", "BLOCK", "0");
    const refused = await one.send("LOCK.ACQUIRE", "m", "a", "BLOCK", "0");
    expect(refused).toMatchObject({ code: "DEADLOCK" });
    expect((refused as RespError).text).toMatch(/a.*b.*a|b.*a.*b/);
    await one.call("LOCK.RELEASE", "l", "a");
    expect(await waiting.reply).toBeTypeOf("number");
  });
});

describe("CLIENT UNBLOCK", () => {
  const idOf = async (connection: RespConnection): Promise<number> => Number(await connection.call("CLIENT", "ID"));

  test("TIMEOUT: as if the time were over", async () => {
    const id = await idOf(two);
    await one.call("LOCK.ACQUIRE", "l", "a");
    const waiting = await waitFor(two, "LOCK.ACQUIRE", "l", "b", "BLOCK", "0");
    expect(await one.call("CLIENT", "UNBLOCK", id)).toBe(1);
    expect(await waiting.reply).toBeNull();
    expect(await one.call("CLIENT", "UNBLOCK", id)).toBe(0);
    await one.call("LOCK.RELEASE", "l", "a");
    expect(await one.call("EXISTS", "l")).toBe(0);
  });

  test("ERROR: an error of its own", async () => {
    const id = await idOf(two);
    await one.call("LOCK.ACQUIRE", "l", "a");
    const waiting = await waitFor(two, "LOCK.ACQUIRE", "l", "b", "BLOCK", "0");
    expect(await one.call("CLIENT", "UNBLOCK", id, "error")).toBe(1);
    expect(await waiting.reply).toMatchObject({ text: "UNBLOCKED client unblocked via CLIENT UNBLOCK" });
    expect(await two.call("PING")).toMatchObject({ text: "PONG" });
  });

  test("0 for a client that does not wait", async () => {
    expect(await one.call("CLIENT", "UNBLOCK", await idOf(two))).toBe(0);
  });
});

describe("BLOCK does not wait", () => {
  test("in a transaction", async () => {
    await one.call("LOCK.ACQUIRE", "l", "a");
    await two.call("MULTI");
    await two.call("LOCK.ACQUIRE", "l", "b", "BLOCK", 0);
    await two.call("PING");
    expect(await two.call("EXEC")).toMatchObject([null, { text: "PONG" }]);
  });

  test("in a script", async () => {
    await one.call("LOCK.ACQUIRE", "l", "a");
    const script = "return redis.call('LOCK.ACQUIRE', KEYS[1], ARGV[1], 'BLOCK', 0) == false";
    expect(await two.call("EVAL", script, 1, "l", "b")).toBe(1);
  });
});

describe("arguments", () => {
  const refused: [string[], string][] = [
    [["LOCK.ACQUIRE", "l"], "ERR wrong number of arguments for 'lock.acquire' command"],
    [["LOCK.ACQUIRE", "l", ""], "ERR the lease id must not be empty"],
    [["LOCK.ACQUIRE", "l", "a", "FOO"], "ERR syntax error at 'FOO'"],
    [["LOCK.ACQUIRE", "l", "a", "SHARED", "LIMIT", "2"], "ERR syntax error at 'LIMIT'"],
    [["LOCK.ACQUIRE", "l", "a", "BLOCK", "1", "BLOCK", "1"], "ERR syntax error at 'BLOCK'"],
    [["LOCK.ACQUIRE", "l", "a", "BLOCK"], "ERR syntax error at 'BLOCK': a number must follow"],
    [
      ["LOCK.ACQUIRE", "l", "a", "BLOCK", "1.5"],
      "ERR invalid BLOCK time '1.5': must be a whole number of milliseconds from 0 (no limit) to 9007199254740991",
    ],
    [
      ["LOCK.ACQUIRE", "l", "a", "BLOCK", "-1"],
      "ERR invalid BLOCK time '-1': must be a whole number of milliseconds from 0 (no limit) to 9007199254740991",
    ],
    [
      ["LOCK.ACQUIRE", "l", "a", "LIMIT", "0"],
      "ERR invalid LIMIT '0': must be a whole number of permits from 1 to 1000000",
    ],
    [["LOCK.RELEASE", "l", "a", "TOKEN"], "ERR syntax error at 'TOKEN': a token must follow"],
    [
      ["LOCK.RELEASE", "l", "a", "TOKEN", "x"],
      "ERR invalid token 'x': must be a whole number, as LOCK.ACQUIRE answered it",
    ],
    [["LOCK.CHECK", "l", "-1"], "ERR invalid token '-1': must be a whole number, as LOCK.ACQUIRE answered it"],
  ];
  test("what is wrong is named, and changes nothing", async () => {
    for (const [argv, text] of refused) expect(await one.send(...argv), argv.join(" ")).toMatchObject({ text });
    expect(await one.call("EXISTS", "l")).toBe(0);
  });
});
