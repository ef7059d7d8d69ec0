import { describe, expect, test } from "vitest";
import type { Op } from "#src/engine/op.js";
import { Engine } from "#src/engine/engine.js";
import { eventsOf, type EngineEvent } from "#src/engine/events.js";
import { DEFAULT_ENGINE_LIMITS, KEYS_ENDED_AT_ONCE_MAX } from "#src/engine/limits.js";
import { OpModel } from "../durability/ops.js";
import * as on from "./manual-engine.js";
import { ManualEngine } from "./manual-engine.js";

/** Leases with more keys than one turn may name: one op ends them for everybody, their rows go in slices of two keys here. */

const keysOf = (count: number): Record<string, string> =>
  Object.fromEntries(Array.from({ length: count }, (_, index) => [`k${index + 1}`, "v"]));

/** Lease `a` with keys k1..k5 at revision 1. */
function withLarge(): ManualEngine {
  const server = new ManualEngine({ keysEndedAtOnceMax: 2 });
  server.run(on.grant("a", 5_000, { keys: keysOf(5) }));
  server.durable();
  return server;
}

/** One slice, once the one before is durable; its op's keys. */
function slice(server: ManualEngine): string[] {
  server.durable();
  const decision = server.engine.dropKeys(server);
  if (decision === null) return [];
  server.apply(decision);
  return decision.ops.flatMap((op) => (op.kind === "lease-keys-end" ? op.keys.map(({ key }) => key) : [op.kind]));
}

function rowsOf(ops: readonly Op[]): OpModel {
  const rows = new OpModel();
  for (const op of ops) rows.apply(op);
  return rows;
}

/** Another process on what the store holds. */
function recovered(server: ManualEngine): { engine: Engine; orphans: string[] } {
  const engine = new Engine({ ...DEFAULT_ENGINE_LIMITS, clockErrorPerMille: 0 }, "inc", on.testDigest);
  for (const row of rowsOf(server.log).ops()) engine.recover(row);
  engine.recoverRevision(server.engine.state.revision);
  const { orphanKeys } = engine.finishRecovery();
  return { engine, orphans: orphanKeys.map(({ key, leaseId }) => `${leaseId}/${key}`).sort() };
}

const textOf = (event: EngineEvent): string => {
  if (event.kind === "keyspace") return `${event.event} ${event.key}`;
  return event.kind === "lock" ? `${event.key} ${event.message}` : `${event.id} ${event.message}`;
};

test("their keys are gone with the first op, which names none of them, for every command", () => {
  const server = withLarge();
  const decision = server.run(on.revoke("a"));
  expect(decision.ops).toMatchObject([{ kind: "lease-end", id: "a", keys: [], hasMore: true }]);
  expect(server.reply(on.get("k3"))).toBeNull();
  expect(server.reply(on.exists("k1", "k5"))).toBe(0);
  expect(server.reply(on.COUNT)).toBe(0);
  expect(server.reply(on.list())).toEqual([]);
  expect(server.reply(on.scan(0))).toEqual(["0", []]);
  expect(server.answer(on.lockInfo("k2"))).toBeNull();
  expect(server.engine.state.keyCount).toBe(0);
  server.engine.checkInvariants();
});

test("their rows go in slices, one per batch, and only once the end is durable", () => {
  const server = withLarge();
  server.run(on.revoke("a"));
  expect(server.engine.dropKeys(server)).toBeNull();
  expect(slice(server)).toEqual(["k1", "k2"]);
  expect(server.engine.dropKeys(server)).toBeNull();
  expect(server.engine.nextDueMs()).toBeNull();
  expect(slice(server)).toEqual(["k3", "k4"]);
  server.engine.durable(server.engine.state.revision);
  expect(server.engine.nextDueMs()).not.toBeNull();
  expect(slice(server)).toEqual(["k5"]);
  expect(slice(server)).toEqual([]);
  expect(server.engine.state.leases.rows.rowsUsed).toBe(0);
  expect(server.engine.state.keys(0).rows.rowsUsed).toBe(0);
  expect(rowsOf(server.log).ops()).toEqual([]);
});

test("many leases that end at once share the room: the rest is left unnamed, and named oldest first", () => {
  const server = new ManualEngine({ keysEndedAtOnceMax: 2 });
  for (const id of ["a", "b", "c", "d"]) server.run(on.grant(id, 5_000, { keys: { [`of ${id}`]: "" } }));
  server.run(on.grant("none", 5_000));
  server.advance(5_000);
  server.durable();
  const { ids } = server.engine.dueLeases(server.nowMs, 10);
  const decision = server.run({ kind: "lease-expire", ids, keys: [] });
  expect(decision.ops.map((op) => op.kind === "lease-end" && [op.id, op.keys.length, op.hasMore])).toEqual([
    ["a", 1, undefined],
    ["b", 1, undefined],
    ["c", 0, true],
    ["d", 0, true],
    ["none", 0, undefined],
  ]);
  expect(slice(server)).toEqual(["of c", "of d"]);
  expect(slice(server)).toEqual([]);
  expect(server.engine.state.leases.rows.rowsUsed).toBe(0);
});

test("a lease of as many keys as may be named is one op, as ever", () => {
  const server = new ManualEngine();
  server.run(on.grant("a", 5_000, { keys: keysOf(KEYS_ENDED_AT_ONCE_MAX) }));
  const [op] = server.run(on.revoke("a")).ops;
  expect(op).toMatchObject({ kind: "lease-end" });
  expect(op?.kind === "lease-end" && op.keys.length === KEYS_ENDED_AT_ONCE_MAX && op.hasMore).toBeUndefined();
});

describe("a crash in the middle", () => {
  test("what was left unnamed counts for nothing and is removed", () => {
    const server = withLarge();
    server.run(on.revoke("a"));
    slice(server);
    const { engine, orphans } = recovered(server);
    expect(orphans).toEqual(["a/k3", "a/k4", "a/k5"]);
    expect(engine.state.keyCount).toBe(0);
    engine.applyOps(engine.orphanRemovals());
    const rows = rowsOf([...server.log, ...engine.orphanRemovals()]);
    expect(rows.ops()).toEqual([]);
  });

  test("also when the same id was granted again, and holds some of the same keys", () => {
    const server = withLarge();
    server.run(on.revoke("a"));
    const decision = server.run(on.grant("a", 5_000, { keys: { k2: "new" } }));
    expect(decision.reply).toEqual(["a", 5_000, 3]);
    const { engine, orphans } = recovered(server);
    expect(orphans).toEqual(["a/k1", "a/k3", "a/k4", "a/k5"]);
    const at = { nowMs: 1, unixMs: 1 };
    engine.beginRebuild(at);
    engine.rebuildSome(Infinity);
    expect(engine.decide(on.list(), at, on.ORIGIN).reply).toEqual(["k2"]);
    expect(engine.decide(on.get("k2"), at, on.ORIGIN).reply).toBe("new");
  });
});

describe("whoever gets such a key before its slice", () => {
  test("removes the former row in the same step, and a later slice leaves the key alone", () => {
    const server = withLarge();
    server.run(on.revoke("a"));
    const decision = server.run(on.grant("b", 5_000, { keys: { k1: "mine", k9: "" } }));
    expect(decision.ops.map((op) => op.kind)).toEqual(["lease-put", "lease-keys-end", "key-put", "key-put"]);
    server.run(on.set("k2", "plain"));
    server.run(on.acquire("k3", "b"));
    expect(slice(server)).toEqual(["k4", "k5"]);
    expect(slice(server)).toEqual([]);
    expect(server.reply(on.get("k1"))).toBe("mine");
    expect(server.reply(on.get("k2"))).toBe("plain");
    server.engine.checkInvariants();
    expect(recovered(server).orphans).toEqual([]);
  });

  test("may be a new lease of the same id: its row stands in the place of the former", () => {
    const server = withLarge();
    server.run(on.revoke("a"));
    server.run(on.grant("a", 5_000));
    expect(server.reply(on.attach("a", "k1"))).toBe(4);
    while (slice(server).length > 0);
    expect(server.reply(on.list())).toEqual(["k1"]);
    const { engine, orphans } = recovered(server);
    expect(orphans).toEqual([]);
    expect(engine.state.keyCount).toBe(1);
  });

  test("in the very command that meets the lease dead", () => {
    const server = withLarge();
    server.run(on.grant("b", 50_000));
    server.advance(5_000);
    const decision = server.run(on.attach("b", "k2"));
    expect(decision.ops.map((op) => op.kind)).toEqual(["lease-end", "lease-keys-end", "key-put"]);
    while (slice(server).length > 0);
    expect(server.reply(on.list())).toEqual(["k2"]);
    expect(recovered(server).orphans).toEqual([]);
  });

  test("its former row is named once, however often one command puts the key", () => {
    const server = withLarge();
    server.run(on.revoke("a"));
    const pairs = [
      { key: "k1", value: "1" },
      { key: "k1", value: "2" },
    ];
    const { ops } = server.run({
      kind: "string-set-many",
      pairs,
      condition: "always",
      expiry: { kind: "none" },
      answer: "ok",
    });
    expect(ops.filter((op) => op.kind === "lease-keys-end").length).toBe(1);
    expect(server.reply(on.get("k1"))).toBe("2");
  });
});

test("who waits for such a key gets it with its slice; who asks meanwhile stands behind", () => {
  const server = withLarge();
  server.run(on.grant("b", 50_000));
  server.run(on.grant("c", 50_000));
  const wait = server.wait(on.acquire("k4", "b", { blockMs: 0 }));
  server.run(on.revoke("a"));
  expect(server.takeWoken()).toEqual([]);
  const later = server.wait(on.acquire("k4", "c", { blockMs: 0 }));
  slice(server);
  expect(server.takeWoken()).toEqual([]);
  slice(server);
  const [[woken, token] = []] = server.takeWoken();
  expect(woken).toBe(wait);
  expect(token).toBe(server.engine.state.revision);
  server.run(on.revoke("b"));
  expect(server.takeWoken()[0]?.[0]).toBe(later);
});

test("each key is told of once, after the end of its lease and before its next holder", () => {
  const server = withLarge();
  server.run(on.grant("b", 50_000));
  server.advance(5_000);
  server.log.length = 0;
  server.tick();
  server.run(on.attach("b", "k1"));
  const told = server.log.flatMap((op) => eventsOf(op).map(textOf));
  expect(told[0]).toBe("a expired late-ms=0");
  expect(told.slice(1, 11)).toEqual(
    ["k1", "k2", "k3", "k4", "k5"].flatMap((key) => [`${key} released a 1`, `expired ${key}`]),
  );
  expect(told.slice(11)).toEqual([`k1 acquired b ${server.engine.state.revision}`, "set k1"]);
});

describe("a flush before the slices came", () => {
  test("tells of the keys that nobody could tell of later, and leaves nothing behind", () => {
    const server = withLarge();
    server.run(on.attach("a", "elsewhere"), on.inDatabase(1));
    server.run(on.revoke("a"));
    server.durable();
    const decision = server.decide(on.FLUSH_DATABASE);
    const told = server.engine.flushEvents(decision.ops).map(textOf);
    expect(told).toEqual(["k1", "k2", "k3", "k4", "k5"].flatMap((key) => [`${key} released a 1`, `del ${key}`]));
    server.apply(decision);
    expect(slice(server)).toEqual(["elsewhere"]);
    expect(slice(server)).toEqual([]);
    server.engine.checkInvariants();
    expect(server.engine.state.leases.rows.rowsUsed).toBe(0);
  });

  test("of everything", () => {
    const server = withLarge();
    server.run(on.revoke("a"));
    server.run(on.FLUSH_ALL);
    expect(slice(server)).toEqual([]);
    server.run(on.grant("a", 5_000, { keys: { k1: "" } }));
    expect(slice(server)).toEqual([]);
    expect(server.reply(on.list())).toEqual(["k1"]);
    server.engine.checkInvariants();
  });
});

test("what such a lease shares ends at once, whatever it holds alone besides", () => {
  const server = withLarge();
  server.run(on.grant("b", 50_000));
  server.run(on.acquire("room", "a", { mode: on.SHARED }));
  server.run(on.acquire("room", "b", { mode: on.SHARED }));
  const [op] = server.run(on.revoke("a")).ops;
  expect(op).toMatchObject({ kind: "lease-end", hasMore: true, keys: [{ key: "room", remains: true }] });
  while (slice(server).length > 0);
  expect(server.reply(on.list())).toEqual(["room"]);
  server.engine.checkInvariants();
});

test("may outlast a later lease of the same id, which is ended and swept before its rows are gone", () => {
  const server = withLarge();
  server.run(on.revoke("a"));
  server.durable();
  server.run(on.grant("a", 5_000));
  server.run(on.revoke("a"));
  server.durable();
  server.engine.checkInvariants();
  expect(server.answer(on.keepAlive("a"))).toBe(on.noLease("a"));
  while (slice(server).length > 0) server.engine.checkInvariants();
  expect(server.engine.state.leases.rows.rowsUsed).toBe(0);
});
