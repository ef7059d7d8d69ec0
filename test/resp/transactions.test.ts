import { connect } from "node:net";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { RespConnection } from "../support/resp-client.js";
import { callText, startNode, type TestNode } from "./commands-harness.js";

/** What of transactions and scripts takes more than one connection, or is no business of Redis's. */

let node: TestNode;
let one: RespConnection;
let two: RespConnection;
beforeAll(async () => {
  node = await startNode();
  [one, two] = [await node.connect(), await node.connect()];
});
afterAll(() => node.stop());

describe("WATCH, when others change the key", () => {
  const outcome = async (change: () => Promise<unknown>): Promise<"ran" | "refused"> => {
    await one.call("SET", "w", "1");
    await one.call("WATCH", "w");
    await change();
    await one.call("MULTI");
    await one.call("PING");
    return Array.isArray(await one.call("EXEC")) ? "ran" : "refused";
  };

  test("set, deleted, given a TTL, expired, taken by a lease, flushed: refused", async () => {
    await two.call("LEASE.GRANT", "lease", 100);
    const changes: string[][] = [
      ["SET", "w", "2"],
      ["DEL", "w"],
      ["PEXPIRE", "w", "100000"],
      ["APPEND", "w", "x"],
      ["LEASE.ATTACH", "lease", "w", "v", "FORCE"],
      ["FLUSHALL"],
    ];
    for (const change of changes) expect(await outcome(() => two.call(...change)), change.join(" ")).toBe("refused");
  });

  test("read, or another key: ran", async () => {
    for (const change of [["GET", "w"], ["TTL", "w"], ["SET", "v", "2"], ["PING"]]) {
      expect(await outcome(() => two.call(...change)), change.join(" ")).toBe("ran");
    }
  });
});

test("nothing of a transaction is seen before EXEC, everything after it", async () => {
  await one.call("MULTI");
  await one.call("SET", "t", "1");
  await one.call("INCR", "t");
  expect(await two.call("EXISTS", "t")).toBe(0);
  expect(await callText(two, "CLIENT", "LIST")).toMatch(/ flags=x .* multi=2 /);
  expect(await one.call("EXEC")).toMatchObject([{ text: "OK" }, 2]);
  expect(await two.call("GET", "t")).toBe("2");
});

test("messages of a script and of a transaction go out in order, with the changes they tell of", async () => {
  const listener = await node.connect();
  await listener.call("SUBSCRIBE", "news");
  const script = "redis.call('set',KEYS[1],'x') return redis.call('publish','news',redis.call('get',KEYS[1]))";
  expect(await one.call("EVAL", script, 1, "p")).toBe(1);
  await one.call("MULTI");
  await one.call("PUBLISH", "news", "first");
  await one.call("PUBLISH", "news", "second");
  expect(await one.call("EXEC")).toEqual([1, 1]);
  expect(await one.call("PUBLISH", "news", "last")).toBe(1);
  const heard: (string | undefined)[] = [];
  while (heard.length < 4) heard.push((await listener.nextMessage())[2]);
  expect(heard).toEqual(["x", "first", "second", "last"]);
  listener.destroy();
});

test("time stands still within a script", async () => {
  const script =
    "local t = redis.call('time') for i = 1, 200000 do end local u = redis.call('time') return {t[1] == u[1], t[2] == u[2]}";
  expect(await one.call("EVAL", script, 0)).toEqual([1, 1]);
});

test("a script that does not end is ended, and what it wrote stays", async () => {
  await one.call("CONFIG", "SET", "busy-reply-threshold", "50");
  const script = "redis.call('set','endless','1') while true do pcall(function() while true do end end) end";
  expect(await one.send("EVAL", script, 0)).toMatchObject({ code: "ERR" });
  expect(await two.call("GET", "endless")).toBe("1");
  await one.call("CONFIG", "SET", "busy-reply-threshold", "1000");
});

test("MONITOR shows what a script calls as its doing", async () => {
  const monitor = await node.connect();
  await monitor.call("MONITOR");
  const shown = Promise.all([monitor.nextReply(), monitor.nextReply()]);
  await one.call("EVAL", "return redis.call('get','k')", 0);
  const lines = (await shown).map((line) => JSON.stringify(line));
  expect(lines[0]).toContain('\\"EVAL\\"');
  expect(lines[1]).toMatch(/\[0 lua\] .*get/);
  monitor.destroy();
});

/** The last bytes of a reply of many, which the test's own client would take a minute to read. */
async function tailOf(request: string, isEnd: (tail: string) => boolean): Promise<string> {
  const socket = connect(node.port, "127.0.0.1");
  socket.write(request);
  let tail = "";
  for await (const chunk of socket) {
    tail = (tail + (chunk as Buffer).toString("latin1")).slice(-1000);
    if (isEnd(tail)) break;
  }
  socket.destroy();
  return tail;
}

test("replies that are too long together are left out, and no error stands for what was done", async () => {
  await one.call("SET", "big", "x".repeat(1_048_576));
  const commands = ["MULTI", "INCR counted", ...Array.from({ length: 130 }, () => "GET big"), "INCR counted", "EXEC"];
  const tail = await tailOf(`${commands.join("\r\n")}\r\n`, (text) => text.endsWith(":2\r\n"));
  expect(tail).toMatch(/-ERR the command ran; its reply is left out, [^\r]*\r\n:2\r\n$/);
});

test("the end of the longest TTL is told, as far as a number goes", async () => {
  await one.call("SET", "long", "1", "PX", String(Number.MAX_SAFE_INTEGER));
  expect(await one.call("PEXPIRETIME", "long")).toBe(Number.MAX_SAFE_INTEGER);
});

test("MONITOR shows the beginning of a long argument", async () => {
  const monitor = await node.connect();
  await monitor.call("MONITOR");
  const shown = monitor.nextReply();
  await one.call("SET", "long", "y".repeat(5000));
  expect(JSON.stringify(await shown)).toContain("... (904 more bytes)");
  monitor.destroy();
});
