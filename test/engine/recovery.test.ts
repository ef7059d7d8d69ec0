import { describe, expect, test } from "vitest";
import { digest, Engine } from "#src/engine/engine.js";
import { DEFAULT_ENGINE_LIMITS } from "#src/engine/limits.js";
import type { KeyPutOp, LeasePutOp, Op } from "#src/engine/op.js";
import { State } from "#src/engine/state.js";
import { replay } from "#src/engine/replay.js";
import * as on from "./manual-engine.js";
import { ManualEngine } from "./manual-engine.js";

const leasePut = (id: string, ttlMs = 5_000, token = 1): LeasePutOp => ({
  kind: "lease-put",
  id,
  ttlMs,
  token,
  label: null,
  request: null,
  grantedAtUnixMs: 0,
  owner: "",
});

const keyPut = (leaseId: string, key: string, token = 1, databaseIndex = 0): KeyPutOp => ({
  kind: "key-put",
  databaseIndex,
  key,
  leaseId,
  value: leaseId,
  token,
  mode: { kind: "exclusive" },
  sinceUnixMs: 0,
});

function load(ops: readonly Op[], revision = 100): Engine {
  const engine = new Engine(DEFAULT_ENGINE_LIMITS, "inc");
  for (const op of ops) engine.recover(op);
  engine.recoverRevision(revision);
  return engine;
}

describe("recovery", () => {
  test("gives the state back, whatever was done to make it", () => {
    const server = new ManualEngine();
    server.run(on.grant("a", 5_000, { keys: { k1: "1", k2: "2" }, label: "l", request: "n" }));
    server.run(on.grant(null, 5_000, { request: "m" }));
    server.run(on.grant("gone", 5_000, { keys: { g: "" } }));
    server.run(on.attach("a", "k3"), on.inDatabase(7));
    server.run(on.setTtl("a", 90_000));
    server.run(on.revoke("gone"));
    server.run(on.del("k1"));
    server.run(on.attach("inc-2", "k2", "taken", true));
    server.run(on.FLUSH_DATABASE, on.inDatabase(3));
    const before = digest(server.engine.state);
    server.restart(-55.5);
    expect(digest(server.engine.state)).toBe(before);
    expect(before.split("\n").length).toBe(5);
    server.engine.checkInvariants();
  });

  test("goes on counting revisions and tokens where the store stood", () => {
    const engine = load([leasePut("a", 5_000, 7)], 41);
    expect(engine.state.revision).toBe(41);
    const turn = { nowMs: 0, unixMs: 0 };
    engine.beginRebuild(turn);
    engine.rebuildSome(10);
    const decision = engine.decide(on.grant("b", 1_000), turn, on.ORIGIN);
    expect(decision.reply).toEqual(["b", 1_000, 42]);
  });

  test("a lease ends only after it got its deadline", () => {
    const engine = load([leasePut("a", 1)]);
    const turn = { nowMs: 1e9, unixMs: 0 };
    expect(engine.nextDueMs()).toBeNull();
    expect(engine.dueLeases(1e9, 10).ids).toEqual([]);
    expect(engine.decide(on.get("k"), turn, on.ORIGIN).ops).toEqual([]);
    expect(engine.decide(on.revoke("a"), turn, on.ORIGIN).reply).toBe(1);
  });
});

describe("rows that belong to nothing", () => {
  test("a key without its lease is left out, reported and removed; nothing crashes", () => {
    const engine = load([leasePut("a"), keyPut("a", "k"), keyPut("gone", "orphan", 9, 4)]);
    const orphan = { databaseIndex: 4, key: "orphan", leaseId: "gone", token: 9 };
    expect(engine.finishRecovery()).toEqual({ orphanKeys: [orphan] });
    expect(engine.keysByDatabase[4]).toBe(0);
    const ops = engine.orphanRemovals();
    expect(ops).toEqual([{ kind: "key-end", reason: "deleted", ...orphan }]);
    const before = digest(engine.state);
    expect(engine.applyOps(ops)).toBe(101);
    expect(digest(engine.state).replace("revision 101", "revision 100")).toBe(before);
    engine.checkInvariants();
  });

  test("a key older than its lease belonged to a former lease of the same id", () => {
    const engine = load([leasePut("a", 5_000, 7), keyPut("a", "old", 6), keyPut("a", "own", 7)]);
    expect(engine.finishRecovery().orphanKeys).toMatchObject([{ key: "old", leaseId: "a", token: 6 }]);
    expect(engine.keysByDatabase[0]).toBe(1);
    engine.checkInvariants();
  });

  test.each([
    ["the later row", 5, 9, "b"],
    ["the earlier row", 9, 5, "a"],
  ])("of a key under two leases the larger token counts: %s", (_, tokenOfA, tokenOfB, holder) => {
    const rows = [leasePut("a"), leasePut("b"), keyPut("a", "k", tokenOfA), keyPut("b", "k", tokenOfB)];
    const engine = load(rows);
    const { orphanKeys } = engine.finishRecovery();
    expect(orphanKeys).toMatchObject([{ key: "k", leaseId: holder === "a" ? "b" : "a", token: 5 }]);
    engine.applyOps(engine.orphanRemovals());
    const turn = { nowMs: 0, unixMs: 0 };
    expect(engine.decide(on.get("k"), turn, on.ORIGIN).reply).toBe(holder);
    expect(engine.keysByDatabase[0]).toBe(1);
    engine.checkInvariants();
  });
});

describe("taking the role", () => {
  const herd = (count: number, ttlMs: number, nowMs = 0): Engine => {
    const engine = load(Array.from({ length: count }, (_, index) => leasePut(`l${index}`, ttlMs)));
    engine.finishRecovery();
    engine.beginRebuild({ nowMs, unixMs: 0 });
    return engine;
  };

  test("gives every lease its full padded TTL from now, by this clock, and up to a tenth more", () => {
    const nowMs = -12_345.75;
    const engine = herd(300, 10_000, nowMs);
    while (!engine.rebuildSome(7));
    const firstMs = nowMs + 10_020;
    expect(engine.dueLeases(firstMs - 0.001, 1_000).ids).toEqual([]);
    const ended: number[] = [];
    for (let atMs = firstMs; engine.leases > 0; atMs = engine.nextDueMs() ?? Infinity) {
      const turn = { nowMs: Math.max(atMs, firstMs), unixMs: 0 };
      const { ids } = engine.dueLeases(turn.nowMs, 1_000);
      engine.apply(engine.decide(on.expire(...ids), turn, on.ORIGIN), turn);
      ended.push(...ids.map(() => turn.nowMs));
      engine.durable(engine.state.revision);
    }
    expect(ended.length).toBe(300);
    expect(Math.max(...ended)).toBeLessThanOrEqual(firstMs + 1_000 + 10);
    expect(Math.min(...ended)).toBeGreaterThanOrEqual(firstMs);
  });

  test("spreads a herd that was granted at one moment: no tick gets more than its share", () => {
    const engine = herd(10_000, 10_000);
    while (!engine.rebuildSome(1_000));
    const perTick = new Map<number, number>();
    for (let nowMs = 10_020; nowMs <= 11_040; nowMs += 10) {
      const turn = { nowMs, unixMs: 0 };
      const { ids } = engine.dueLeases(nowMs, 10_000);
      perTick.set(nowMs, ids.length);
      engine.apply(engine.decide(on.expire(...ids), turn, on.ORIGIN), turn);
    }
    expect(engine.leases).toBe(0);
    expect(Math.max(...perTick.values())).toBeLessThan(250);
  });

  test("the spread of long leases is bounded", () => {
    const engine = herd(1_000, 86_400_000);
    while (!engine.rebuildSome(1_000));
    const turn = { nowMs: 86_400_000 * 1.002 + 60_000 + 10, unixMs: 0 };
    for (;;) {
      const { ids } = engine.dueLeases(turn.nowMs, 500);
      if (ids.length === 0 && (engine.nextDueMs() ?? Infinity) > turn.nowMs) break;
      engine.apply(engine.decide(on.expire(...ids), turn, on.ORIGIN), turn);
    }
    expect(engine.leases).toBe(0);
  });

  test("is incremental: each slice does as much as it was told", () => {
    const engine = herd(100, 10_000);
    let slices = 1;
    while (!engine.rebuildSome(10)) slices += 1;
    expect(slices).toBe(10);
    engine.checkInvariants();
  });

  test("answers never promise more than the TTL, spread or not", () => {
    const engine = herd(50, 10_000);
    while (!engine.rebuildSome(1_000));
    const turn = { nowMs: 0, unixMs: 0 };
    for (let index = 0; index < 50; index += 1) {
      expect(engine.decide(on.pttl(`l${index}`), turn, on.ORIGIN).reply).toBe(10_000);
    }
  });

  test("a keep-alive during the grace never shortens it", () => {
    const engine = herd(50, 10_000);
    while (!engine.rebuildSome(1_000));
    const turn = { nowMs: 0, unixMs: 0 };
    for (let index = 0; index < 50; index += 1) {
      engine.apply(engine.decide(on.keepAlive(`l${index}`), turn, on.ORIGIN), turn);
    }
    engine.checkInvariants();
    expect(engine.dueLeases(10_019, 1_000).ids).toEqual([]);
  });
});

describe("replay", () => {
  const history = (): Op[] => {
    const server = new ManualEngine();
    server.run(on.grant("a", 5_000, { keys: { k1: "", k2: "" }, request: "n" }));
    server.run(on.grant("b", 5_000, { keys: { k3: "" } }));
    server.run(on.attach("b", "k1", "taken", true));
    server.run(on.setTtl("a", 9_000));
    server.run(on.del("k2"));
    server.run(on.attach("a", "k4"), on.inDatabase(2));
    server.run(on.FLUSH_DATABASE, on.inDatabase(2));
    server.run(on.revoke("b"));
    server.run(on.grant("c", 5_000, { keys: { k1: "" } }));
    return server.log;
  };

  test("of every op a second time changes nothing", () => {
    const state = new State();
    let revision = 0;
    for (const op of history()) {
      revision += 1;
      state.revision = revision;
      replay(state, op, revision);
      const once = digest(state);
      replay(state, op, revision);
      expect(digest(state)).toBe(once);
    }
  });

  test("of ends of what is not there changes nothing", () => {
    const state = new State();
    replay(state, leasePut("a"), 0);
    replay(state, keyPut("a", "k"), 0);
    const before = digest(state);
    replay(state, { kind: "lease-end", id: "b", reason: "revoked", lateMs: 0, by: "", keys: [] }, 0);
    for (const [leaseId, key] of [
      ["a", "never"],
      ["b", "k"],
    ] as const) {
      replay(state, { kind: "key-end", databaseIndex: 0, key, leaseId, token: 1, reason: "deleted" }, 0);
    }
    expect(digest(state)).toBe(before);
  });

  test("of a key of a lease that is not there is a programmer's error", () => {
    expect(() => replay(new State(), keyPut("gone", "k"), 1)).toThrow("a key is attached to a live lease");
  });
});
