import { describe, expect, test } from "vitest";
import { HAND_OVERS_PER_TURN_MAX } from "#src/engine/limits.js";
import * as on from "../engine/manual-engine.js";
import { ManualNode, type Client } from "./manual-node.js";

/** Blocked commands as their connections see them: answers, closed sockets, roles, failures. */

function withLeases(...ids: string[]): { node: ManualNode; client: Client } {
  const node = new ManualNode();
  const client = node.client();
  for (const id of ids) client.ask(on.grant(id, 1_000_000));
  return { node, client };
}

describe("answers of blocked commands", () => {
  test("a grant leaves when it is durable, in the same batch as the release before it", () => {
    const { node, client } = withLeases("a", "b");
    client.ask(on.acquire("k", "a"));
    const waiter = node.client();
    const ticket = waiter.send(on.block("k", "b"));
    node.settle();
    expect(waiter.replies.size).toBe(0);
    expect(node.coordinator.report().commandsBlocked).toBe(1);
    const { batchesCommitted } = node.coordinator.report();
    client.send(on.release("k", "a"));
    expect(waiter.replies.size).toBe(0);
    node.settle();
    expect(node.coordinator.report()).toMatchObject({ batchesCommitted: batchesCommitted + 1, commandsBlocked: 0 });
    expect(waiter.replies.get(ticket)).toBe(node.coordinator.report().revision);
  });

  test("time-out by the loop's own timer", () => {
    const { node, client } = withLeases("a", "b");
    client.ask(on.acquire("k", "a"));
    const waiter = node.client();
    const ticket = waiter.send(on.block("k", "b", { blockMs: 1_000 }));
    node.scheduler.advance(999);
    expect(waiter.replies.size).toBe(0);
    node.scheduler.advance(20);
    expect(waiter.replies.get(ticket)).toBeNull();
  });

  test("a waiter whose lease expires is told by the tick", () => {
    const { node, client } = withLeases("a");
    client.ask(on.grant("b", 1_000));
    client.ask(on.acquire("k", "a"));
    const waiter = node.client();
    const ticket = waiter.send(on.block("k", "b"));
    node.scheduler.advance(1_020);
    expect(waiter.replies.get(ticket)).toBe(on.noLease("b"));
  });

  test("refused at its own turn: the answer comes at once, and once", () => {
    const { node, client } = withLeases("a");
    client.ask(on.grant("dying", 50));
    client.ask(on.acquire("k", "a", { mode: on.SHARED }));
    const first = node.client();
    first.send(on.block("k", "dying"));
    node.clock.nowMs += 50;
    // Joins the queue of a dead writer, which is gone by that look, and reads at once.
    client.ask(on.grant("r", 1_000_000));
    const reader = node.client();
    const ticket = reader.send(on.block("k", "r", { mode: on.SHARED }));
    node.settle();
    expect(first.replies.get(1)).toBe(on.noLease("dying"));
    expect(reader.replies.get(ticket)).toEqual(expect.any(Number));
  });

  test("CLIENT UNBLOCK ends a wait with its answer, once", () => {
    const { node, client } = withLeases("a", "b");
    client.ask(on.acquire("k", "a"));
    const waiter = node.client();
    const ticket = waiter.send(on.block("k", "b"));
    expect(node.coordinator.unblock(client, null)).toBe(false);
    expect(node.coordinator.unblock(waiter, null)).toBe(true);
    node.settle();
    expect(waiter.replies.get(ticket)).toBeNull();
    expect(node.coordinator.unblock(waiter, null)).toBe(false);
    expect(client.ask(on.release("k", "a"))).toBe(1);
    expect(client.ask(on.get("k"))).toBeNull();
  });
});

test("a lease with more contended keys than one turn hands on: all are handed on, others are served in between", () => {
  const { node, client } = withLeases("a", "b", "c");
  const keys = Array.from({ length: 2 * HAND_OVERS_PER_TURN_MAX + 10 }, (_, index) => `k${index}`);
  for (const key of keys) client.send(on.acquire(key, "a"));
  node.settle();
  const waiters = keys.map((key) => {
    const waiter = node.client();
    waiter.send(on.block(key, "b"));
    return waiter;
  });
  client.send(on.revoke("a"));
  expect(node.coordinator.report().commandsBlocked).toBe(keys.length - HAND_OVERS_PER_TURN_MAX);
  // One that is free by now, and has its queue: nobody gets past it.
  expect(node.client().ask(on.acquire(keys.at(-1)!, "c"))).toBeNull();
  node.scheduler.advance(0);
  expect(node.coordinator.report().commandsBlocked).toBe(0);
  for (const waiter of waiters) expect(waiter.replies.get(1)).toEqual(expect.any(Number));
});

describe("closed connections", () => {
  test("a waiter that has gone is passed over", () => {
    const { node, client } = withLeases("a", "b", "c");
    client.ask(on.acquire("k", "a"));
    const gone = node.client();
    gone.send(on.block("k", "b"));
    const next = node.client();
    const ticket = next.send(on.block("k", "c"));
    gone.close();
    client.ask(on.release("k", "a"));
    expect(next.replies.get(ticket)).toBe(node.coordinator.report().revision);
    expect(client.ask(on.get("k"))).toBe("c");
  });

  test("a grant that nobody heard of goes to the next", () => {
    const { node, client } = withLeases("a", "b", "c");
    client.ask(on.acquire("k", "a"));
    const gone = node.client();
    gone.send(on.block("k", "b"));
    const next = node.client();
    const ticket = next.send(on.block("k", "c"));
    client.send(on.release("k", "a"));
    gone.close();
    node.settle();
    expect(next.replies.get(ticket)).toBe(node.coordinator.report().revision);
    expect(client.ask(on.get("k"))).toBe("c");
    expect(client.ask(on.info("b"))).toMatchObject({ state: "live", keys: [] });
  });

  test("a grant that another connection of the lease was told of stands", () => {
    const { node, client } = withLeases("a", "b", "c");
    client.ask(on.acquire("k", "a"));
    const gone = node.client();
    gone.send(on.block("k", "b"));
    node.client().send(on.block("k", "c"));
    client.send(on.release("k", "a"));
    const again = node.client();
    const ticket = again.send(on.acquire("k", "b"));
    gone.close();
    node.settle();
    expect(again.replies.get(ticket)).toEqual(expect.any(Number));
    expect(client.ask(on.get("k"))).toBe("b");
  });

  test("a grant that one of two waiting connections of the lease hears of stands", () => {
    const { node, client } = withLeases("a", "b", "c");
    client.ask(on.acquire("k", "a"));
    const gone = node.client();
    gone.send(on.block("k", "b"));
    const stays = node.client();
    const ticket = stays.send(on.block("k", "b"));
    node.client().send(on.block("k", "c"));
    client.send(on.release("k", "a"));
    gone.close();
    node.settle();
    expect(stays.replies.get(ticket)).toEqual(expect.any(Number));
    expect(client.ask(on.get("k"))).toBe("b");
  });

  test("one that closes after it was told keeps the key for its lease", () => {
    const { node, client } = withLeases("a", "b");
    client.ask(on.acquire("k", "a"));
    const waiter = node.client();
    waiter.send(on.block("k", "b"));
    client.ask(on.release("k", "a"));
    waiter.close();
    node.settle();
    expect(client.ask(on.get("k"))).toBe("b");
  });
});

describe("role and failure", () => {
  test("step-down closes who waits, and hands on nothing afterwards", () => {
    const { node, client } = withLeases("a", "b");
    client.ask(on.acquire("k", "a"));
    const waiter = node.client();
    waiter.send(on.block("k", "b"));
    let answer: unknown = null;
    node.coordinator.stepDown(client, (reply) => {
      answer = on.plain(reply);
    });
    node.settle();
    expect(answer).toBe("+OK");
    expect(waiter.isClosed).toBe(true);
    expect(waiter.replies.size).toBe(0);
    expect(client.isClosed).toBe(false);
    node.coordinator.takeRole(() => undefined);
    node.settle();
    expect(client.ask(on.get("k"))).toBe("a");
    expect(client.ask(on.lockInfo("k"))).toMatchObject({ waiters: [] });
  });

  test("a store that fails closes who waits", () => {
    const { node, client } = withLeases("a", "b");
    client.ask(on.acquire("k", "a"));
    const waiter = node.client();
    waiter.send(on.block("k", "b"));
    node.store.failNextCommit("no room");
    client.send(on.release("k", "a"));
    node.settle();
    expect(node.failure).toBe("no room");
    expect(waiter.isClosed).toBe(true);
    expect(waiter.replies.size).toBe(0);
  });
});

describe("events", () => {
  test("a hand-over is told after it is durable: released, then acquired", () => {
    const { node, client } = withLeases("a", "b");
    client.ask(on.acquire("k", "a"));
    node.client().send(on.block("k", "b"));
    node.settle();
    node.takeEvents();
    client.send(on.release("k", "a"));
    expect(node.takeEvents()).toEqual([]);
    node.settle();
    const { revision } = node.coordinator.report();
    expect(node.takeEvents()).toEqual([
      `lock:k released a ${revision - 1 - 1}`,
      "del k",
      `lock:k acquired b ${revision}`,
      "set k",
    ]);
  });

  test("strings in Redis's words; a renewal in memory too, in its place", () => {
    const { node, client } = withLeases();
    client.ask(on.setPx("k", "1", 1_000));
    client.ask({ kind: "string-increment", key: "k", by: 1n });
    client.ask(on.pexpire("k", 500));
    client.ask(on.persist("k"));
    client.ask(on.pexpire("k", 100));
    expect(node.takeEvents()).toEqual(["set k", "expire k", "incrby k", "expire k", "persist k", "expire k"]);
    client.send(on.set("other", "v"));
    client.send(on.pexpire("k", 50));
    expect(node.takeEvents()).toEqual([]);
    node.scheduler.advance(70);
    expect(node.takeEvents()).toEqual(["set other", "expire k", "expired k"]);
    client.ask(on.del("other"));
    expect(node.takeEvents()).toEqual(["del other"]);
  });
});
