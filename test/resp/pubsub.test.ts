import { afterEach, beforeEach, describe, expect, test } from "vitest";
import type { EngineEvent } from "#src/engine/events.js";
import { PATTERN_BYTES_MAX } from "#src/engine/limits.js";
import { CHANNEL_BYTES_MAX, PATTERNS_MAX, SUBSCRIPTIONS_PER_CONNECTION_MAX } from "#src/resp/pubsub.js";
import { until } from "../support/poll.js";
import { RespError, type RespConnection } from "../support/resp-client.js";
import { startNode, type TestNode } from "./commands-harness.js";
import { RawClient, request } from "./wire-harness.js";

/** Channels, patterns and the engine's events, over real connections. */

let node: TestNode;
let raw: RawClient;
let admin: RespConnection;
beforeEach(async () => {
  node = await startNode();
  raw = await RawClient.open(node.port);
  admin = await node.connect();
});
afterEach(async () => {
  raw.close();
  admin.destroy();
  await node.stop();
});

const array = (type: "*" | ">", ...items: (string | number | null)[]): string =>
  `${type}${items.length}\r\n${items.map(bulk).join("")}`;
const bulk = (item: string | number | null): string => {
  if (item === null) return "$-1\r\n";
  return typeof item === "number" ? `:${item}\r\n` : `$${item.length}\r\n${item}\r\n`;
};

describe("subscribing", () => {
  test("each name is confirmed with the number of subscriptions; twice is once", async () => {
    raw.send(request("SUBSCRIBE", "a", "b", "a") + request("PSUBSCRIBE", "x*") + request("UNSUBSCRIBE", "a", "nosuch"));
    await raw.expect(
      array("*", "subscribe", "a", 1) +
        array("*", "subscribe", "b", 2) +
        array("*", "subscribe", "a", 2) +
        array("*", "psubscribe", "x*", 3) +
        array("*", "unsubscribe", "a", 2) +
        array("*", "unsubscribe", "nosuch", 2),
    );
    raw.send(request("UNSUBSCRIBE") + request("PUNSUBSCRIBE") + request("UNSUBSCRIBE") + request("GET", "x"));
    await raw.expect(
      array("*", "unsubscribe", "b", 1) +
        array("*", "punsubscribe", "x*", 0) +
        array("*", "unsubscribe", null, 0) +
        "$-1\r\n",
    );
    expect(node.context.pubsub.hasListeners).toBe(false);
  });

  test("messages reach channels and every pattern that matches, binary-safe", async () => {
    raw.send(request("SUBSCRIBE", "\x00\xff") + request("PSUBSCRIBE", "*", "?\xff", "zzz"));
    await raw.until(({ received }) => received.endsWith(":4\r\n"));
    raw.received = "";
    const sent = await admin.call("PUBLISH", Buffer.from("\x00\xff", "latin1"), Buffer.from("m\r\n\xfe", "latin1"));
    expect(sent).toBe(3);
    await raw.expect(
      array("*", "message", "\x00\xff", "m\r\n\xfe") +
        array("*", "pmessage", "*", "\x00\xff", "m\r\n\xfe") +
        array("*", "pmessage", "?\xff", "\x00\xff", "m\r\n\xfe"),
    );
  });

  test("RESP3 gets push messages, and commands go on working", async () => {
    raw.send(request("HELLO", "3"));
    await raw.until(({ received }) => received.endsWith("*0\r\n"));
    raw.received = "";
    raw.send(request("SUBSCRIBE", "a") + request("ECHO", "still here"));
    await raw.expect(`${array(">", "subscribe", "a", 1)}$10\r\nstill here\r\n`);
    await admin.call("PUBLISH", "a", "m");
    await raw.expect(array(">", "message", "a", "m"));
    raw.send(request("PING"));
    await raw.expect("+PONG\r\n");
  });

  test("shard channels are a name space of their own", async () => {
    raw.send(request("SSUBSCRIBE", "a"));
    await raw.expect(array("*", "ssubscribe", "a", 1));
    expect(await admin.call("PUBLISH", "a", "m")).toBe(0);
    expect(await admin.call("SPUBLISH", "a", "m")).toBe(1);
    await raw.expect(array("*", "smessage", "a", "m"));
    expect(await admin.call("PUBSUB", "SHARDNUMSUB", "a", "b")).toEqual(["a", 1, "b", 0]);
    expect(await admin.call("PUBSUB", "CHANNELS")).toEqual([]);
    expect(await admin.call("PUBSUB", "SHARDCHANNELS", "[a-c]")).toEqual(["a"]);
  });

  test("PUBSUB tells who is listened to", async () => {
    raw.send(request("SUBSCRIBE", "news", "lease:a") + request("PSUBSCRIBE", "lease:*"));
    await raw.until(({ received }) => received.endsWith(":3\r\n"));
    expect(await admin.call("PUBSUB", "CHANNELS")).toEqual(["news", "lease:a"]);
    expect(await admin.call("PUBSUB", "CHANNELS", "lease:*")).toEqual(["lease:a"]);
    expect(await admin.call("PUBSUB", "NUMSUB", "news", "nosuch")).toEqual(["news", 1, "nosuch", 0]);
    expect(await admin.call("PUBSUB", "NUMPAT")).toBe(1);
    raw.close();
    await until("the connection's subscriptions to be gone", () => !node.context.pubsub.hasListeners);
    expect(await admin.call("PUBSUB", "NUMSUB", "news")).toEqual(["news", 0]);
    expect(await admin.call("PUBSUB", "NUMPAT")).toBe(0);
  });
});

describe("limits", () => {
  const errorOf = async (...args: string[]): Promise<string> => {
    const reply = await admin.send(...args);
    return reply instanceof RespError ? reply.text : "none";
  };

  test("names of channels and patterns", async () => {
    expect(await errorOf("SUBSCRIBE", "ok", "c".repeat(CHANNEL_BYTES_MAX + 1))).toBe(
      "ERR the channel name is 65601 bytes long, the limit is 65600 bytes",
    );
    expect(await errorOf("PSUBSCRIBE", "p".repeat(PATTERN_BYTES_MAX + 1))).toBe(
      "ERR the pattern is 1025 bytes long, the limit is 1024 bytes",
    );
    expect(await errorOf("PUBSUB", "CHANNELS", "p".repeat(PATTERN_BYTES_MAX + 1))).toContain(
      "the pattern is 1025 bytes",
    );
    // Nothing of a refused command was done.
    expect(node.context.pubsub.hasListeners).toBe(false);
    expect(await admin.call("ECHO", "not a subscriber")).toBe("not a subscriber");
  });

  test("subscriptions of one connection, and patterns of all", async () => {
    const names = Array.from({ length: SUBSCRIPTIONS_PER_CONNECTION_MAX + 1 }, (_, index) => `c${index}`);
    const refused = `OOM the limit of ${SUBSCRIPTIONS_PER_CONNECTION_MAX} subscriptions of one connection is reached`;
    expect(await errorOf("SUBSCRIBE", ...names)).toBe(refused);
    raw.send(request("SUBSCRIBE", ...names.slice(1)));
    await raw.until(({ received }) => received.endsWith(`:${SUBSCRIPTIONS_PER_CONNECTION_MAX}\r\n`));
    raw.received = "";
    raw.send(request("SUBSCRIBE", "one more"));
    await raw.expect(`-${refused}\r\n`);
    raw.send(request("UNSUBSCRIBE"));
    await raw.until(({ received }) => received.endsWith(":0\r\n"));
    raw.received = "";
    raw.send(request("PSUBSCRIBE", ...names.slice(1)));
    await raw.until(({ received }) => received.endsWith(`:${PATTERNS_MAX}\r\n`));
    expect(await errorOf("PSUBSCRIBE", "another")).toBe(`OOM the limit of ${PATTERNS_MAX} patterns is reached`);
  });

  test("a subscriber that does not read is closed, and delays nobody", async () => {
    raw.send(request("SUBSCRIBE", "flood"));
    await raw.until(({ received }) => received.endsWith(":1\r\n"));
    raw.socket.pause();
    const message = "m".repeat(1024 * 1024);
    let deliveries = 1;
    for (let count = 0; count < 100 && deliveries === 1; count += 1) {
      deliveries = (await admin.call("PUBLISH", "flood", message)) as number;
    }
    expect(deliveries).toBe(0);
    expect(node.server.statistics.outputLimitDisconnections).toBe(1);
    expect(node.context.pubsub.hasListeners).toBe(false);
  });
});

describe("the engine's events", () => {
  const publish = (event: EngineEvent): void => node.context.pubsub.publishEvent(event);
  const expiredKey: EngineEvent = { kind: "keyspace", databaseIndex: 2, key: "k", event: "expired" };

  const subscribeToAll = async (): Promise<void> => {
    raw.send(request("PSUBSCRIBE", "*"));
    await raw.expect(array("*", "psubscribe", "*", 1));
  };
  const messages = async (): Promise<string[]> => {
    await admin.call("PUBLISH", "end", "");
    await raw.until(({ received }) => received.endsWith(array("*", "pmessage", "*", "end", "")));
    const lines = raw.received.split(array("*", "pmessage", "*", "end", ""))[0]?.split("\r\n") ?? [];
    raw.received = "";
    const texts = lines.filter((line) => !/^[*$]/.test(line) && line !== "");
    return Array.from(
      { length: texts.length / 3 },
      (_, index) => `${texts[index * 3 + 1]} ${texts[index * 3 + 2]}`,
    ).filter((_, index) => texts[index * 3] === "pmessage");
  };

  test("lease and lock events are always published, keyspace events by their flags", async () => {
    await subscribeToAll();
    const all: EngineEvent[] = [
      { kind: "lease", id: "a", message: "expired late-ms=3" },
      { kind: "lock", key: "k", message: "released a 7" },
      expiredKey,
    ];
    const always = ["lease:a expired late-ms=3", "lock:k released a 7"];
    const byFlags: [string, string[]][] = [
      ["", []],
      ["KE", []],
      ["x", []],
      ["Kg", []],
      ["Ex", ["__keyevent@2__:expired k"]],
      ["Kx", ["__keyspace@2__:k expired"]],
      ["AKE", ["__keyspace@2__:k expired", "__keyevent@2__:expired k"]],
    ];
    for (const [flags, keyspace] of byFlags) {
      await admin.call("CONFIG", "SET", "notify-keyspace-events", flags);
      for (const event of all) publish(event);
      expect(await messages(), flags).toEqual([...always, ...keyspace]);
    }
  });

  test("set is a string's event, del a generic one", async () => {
    await subscribeToAll();
    for (const [event, flag] of [
      ["set", "$"],
      ["del", "g"],
      ["expired", "x"],
    ] as const) {
      for (const flags of ["$", "g", "x"]) {
        await admin.call("CONFIG", "SET", "notify-keyspace-events", `E${flags}`);
        publish({ kind: "keyspace", databaseIndex: 0, key: "k", event });
        expect(await messages()).toEqual(flag === flags ? [`__keyevent@0__:${event} k`] : []);
      }
    }
  });

  test("a lease's life as its listeners see it, each event once, after the change is visible", async () => {
    await admin.call("CONFIG", "SET", "notify-keyspace-events", "KEA");
    raw.send(
      request("SUBSCRIBE", "lease:a", "lock:k", "__keyevent@0__:set", "__keyevent@0__:del", "__keyevent@0__:expired"),
    );
    await raw.until(({ received }) => received.endsWith(":5\r\n"));
    raw.received = "";
    const [, , token] = (await admin.call("LEASE.GRANT", "a", 100, "KEY", "k", "v")) as [string, number, number];
    await raw.until(({ received }) => received.includes("__keyevent@0__:set"));
    expect(raw.received).toContain(array("*", "message", "lock:k", `acquired a ${token}`));
    raw.received = "";
    await admin.call("LEASE.REVOKE", "a");
    await raw.until(({ received }) => received.includes("lease:a") && received.includes("__keyevent@0__:"));
    expect(raw.received.split("revoked by=").length).toBe(2);
    expect(await admin.call("GET", "k")).toBeNull();
  });

  test("nothing is made while nobody listens", () => {
    expect(node.context.pubsub.hasListeners).toBe(false);
    const untouchable = new Proxy({} as EngineEvent, {
      get: () => {
        throw new Error("looked at an event that nobody wants");
      },
    });
    expect(() => publish(untouchable)).not.toThrow();
  });
});
