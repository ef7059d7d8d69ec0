import { describe, expect, test } from "vitest";
import type { Command } from "#src/engine/command.js";
import { ENDED_LEASES_REMEMBERED_MAX, TTL_MS_MAX } from "#src/engine/limits.js";
import { TICK_MS } from "#src/engine/timer-wheel.js";
import * as on from "./manual-engine.js";
import { ManualEngine } from "./manual-engine.js";

const withLease = (ttlMs = 5_000, limits = {}): ManualEngine => {
  const server = new ManualEngine(limits);
  server.run(on.grant("a", ttlMs, { keys: { k: "v" } }));
  return server;
};

describe("LEASE.KEEPALIVE", () => {
  test("answers the full TTL, starts it anew and writes nothing", () => {
    const server = withLease();
    server.durable();
    for (let round = 0; round < 10; round += 1) {
      server.advance(4_999);
      const decision = server.run(on.keepAlive("a"));
      expect(decision.reply).toBe(5_000);
      expect(decision.ops).toEqual([]);
      expect(decision.sawRevision).toBe(1);
    }
    server.advance(5_000);
    expect(server.answer(on.keepAlive("a"))).toBe(on.noLease("a"));
  });

  test("of several does not let a dead one disturb the others", () => {
    const server = withLease();
    server.run(on.grant("b", 9_000));
    server.run(on.grant("c", 1_000));
    server.advance(1_000);
    expect(server.reply(on.keepAliveMany("b", "never", "c", "a", "a"))).toEqual([9_000, -2, -2, 5_000, 5_000]);
    server.advance(4_999);
    expect(server.reply(on.pttl("a"))).toBe(1);
    expect(server.reply(on.pttl("b"))).toBe(4_001);
    expect(server.engine.keepAlives).toBe(3);
  });
});

describe("LEASE.TTL and LEASE.PTTL", () => {
  test.each([
    [0, 5, 5_000],
    [0.5, 4, 4_999],
    [1, 4, 4_999],
    [3_000, 2, 2_000],
    [4_000.25, 0, 999],
    [4_999.5, 0, 0],
    [5_000, -2, -2],
    [9_000_000, -2, -2],
  ])("%d ms after the grant of 5 s: %d s, %d ms", (afterMs, seconds, milliseconds) => {
    const server = withLease();
    server.advance(afterMs);
    expect(server.reply(on.ttl("a"))).toBe(seconds);
    expect(server.reply(on.pttl("a"))).toBe(milliseconds);
    expect(server.reply(on.keyTtl("k"))).toBe(seconds);
    expect(server.reply(on.keyPttl("k"))).toBe(milliseconds);
  });

  test("never a negative time and never more than is left, at any fraction of a millisecond", () => {
    const server = withLease(7);
    const start = server.nowMs;
    for (let step = 0; step < 200; step += 1) {
      server.nowMs = start + step * 0.037;
      const left = Number(server.reply(on.pttl("a")));
      const isOver = server.nowMs >= start + 7;
      expect(left).toBe(isOver ? -2 : Math.floor(start + 7 - server.nowMs));
    }
  });

  test("-2 for what never was", () => {
    const server = withLease();
    expect(server.reply(on.ttl("never"))).toBe(-2);
    expect(server.reply(on.keyPttl("never"))).toBe(-2);
  });
});

describe("deadlines are padded by the clocks' rate error", () => {
  test.each([
    [2, 5_000, 10],
    [2, 100, 1],
    [2, 1, 1],
    [0, 5_000, 0],
    [100, 1_000, 100],
  ])("%d per mille of %d ms is %d ms, which no answer shows", (clockErrorPerMille, ttlMs, paddingMs) => {
    const server = new ManualEngine({ clockErrorPerMille });
    server.run(on.grant("a", ttlMs));
    expect(server.reply(on.pttl("a"))).toBe(ttlMs);
    server.advance(ttlMs);
    if (paddingMs > 0) expect(server.reply(on.pttl("a"))).toBe(0);
    server.advance(paddingMs - 0.25);
    expect(server.reply(on.pttl("a"))).toBe(0);
    expect(server.tick()).toEqual([]);
    server.advance(0.25);
    expect(server.reply(on.pttl("a"))).toBe(-2);
  });
});

describe("LEASE.SETTTL", () => {
  test("shorter than the durable TTL: memory only, and keep-alives renew by it", () => {
    const server = withLease(5_000);
    const decision = server.run(on.setTtl("a", 1_000));
    expect(decision.reply).toBe(1_000);
    expect(decision.ops).toEqual([]);
    server.advance(999);
    expect(server.reply(on.keepAlive("a"))).toBe(1_000);
    expect(server.reply(on.pttl("a"))).toBe(1_000);
    server.advance(1_000);
    expect(server.tick()).toEqual(["a"]);
  });

  test("back up to the durable TTL: still memory only", () => {
    const server = withLease(5_000);
    server.run(on.setTtl("a", 1_000));
    expect(server.run(on.setTtl("a", 5_000)).ops).toEqual([]);
    server.advance(4_999);
    expect(server.reply(on.keepAlive("a"))).toBe(5_000);
  });

  test("longer than the durable TTL: written, with everything else as it was", () => {
    const server = new ManualEngine();
    server.run(on.grant("a", 5_000, { label: "l", request: "n" }));
    const { ops } = server.run(on.setTtl("a", 1_000));
    expect(ops).toEqual([]);
    server.advance(500);
    const decision = server.run(on.setTtl("a", 60_000));
    expect(decision.reply).toBe(60_000);
    expect(decision.sawRevision).toBe(2);
    expect(decision.ops).toEqual([{ ...server.log[0], ttlMs: 60_000 }]);
    server.advance(59_999);
    expect(server.reply(on.pttl("a"))).toBe(1);
    expect(server.engine.leasesGranted).toBe(1);
  });

  test("the first reply of a grant is repeated with its first TTL", () => {
    const server = new ManualEngine();
    server.run(on.grant("a", 5_000, { request: "n" }));
    server.run(on.setTtl("a", 60_000));
    server.restart(5);
    expect(server.reply(on.grant("a", 5_000, { request: "n" }))).toEqual(["a", 5_000, 1]);
    expect(server.reply(on.keepAlive("a"))).toBe(60_000);
  });

  test("restarts the deadline, earlier or later", () => {
    const server = withLease(5_000);
    server.advance(4_000);
    server.run(on.setTtl("a", 5_000));
    server.advance(4_999);
    expect(server.reply(on.pttl("a"))).toBe(1);
    server.run(on.setTtl("a", 3));
    server.advance(3 + TICK_MS);
    expect(server.tick()).toEqual(["a"]);
  });

  test("a shorter TTL is forgotten by a restart: the disk holds the upper bound", () => {
    const server = withLease(5_000);
    server.run(on.setTtl("a", 10));
    server.restart(0);
    expect(server.reply(on.keepAlive("a"))).toBe(5_000);
  });
});

describe("the longest TTLs", () => {
  test.each([TTL_MS_MAX, 2_700_000_000_000_000, 2 ** 46, 2 ** 46 - 1, 2 ** 43])("%d ms", (ttlMs) => {
    const server = withLease(ttlMs, { clockErrorPerMille: 2 });
    expect(server.reply(on.keepAlive("a"))).toBe(ttlMs);
    expect(server.reply(on.pttl("a"))).toBe(ttlMs);
    expect(server.reply(on.ttl("a"))).toBe(Math.floor(ttlMs / 1_000));
    const yearMs = 365 * 86_400_000;
    server.advance(yearMs);
    expect(server.tick()).toEqual([]);
    const left = Number(server.reply(on.pttl("a")));
    expect(left).toBeLessThanOrEqual(ttlMs - yearMs + 2);
    expect(left).toBeGreaterThanOrEqual(ttlMs - yearMs - 2);
    server.engine.checkInvariants();
    server.run(on.setTtl("a", 100));
    server.advance(110);
    expect(server.tick()).toEqual(["a"]);
  });
});

describe("LEASE.REVOKE", () => {
  test("takes lease and keys together, counts them, and is safe to repeat", () => {
    const server = withLease();
    server.run(on.grant("b", 5_000));
    const decision = server.run(on.revoke("a", "never", "b", "a"));
    expect(decision.reply).toBe(2);
    expect(decision.ops).toEqual([
      {
        kind: "lease-end",
        id: "a",
        reason: "revoked",
        lateMs: 0,
        by: on.ORIGIN.owner,
        keys: [{ databaseIndex: 0, key: "k", token: 1 }],
      },
      { kind: "lease-end", id: "b", reason: "revoked", lateMs: 0, by: on.ORIGIN.owner, keys: [] },
    ]);
    expect(server.reply(on.get("k"))).toBeNull();
    expect(server.reply(on.revoke("a", "b"))).toBe(0);
    expect(server.engine.leasesRevoked).toBe(2);
  });

  test("does not count a lease past its deadline, which expires instead", () => {
    const server = withLease();
    server.advance(5_003.7);
    const decision = server.run(on.revoke("a"));
    expect(decision.reply).toBe(0);
    expect(decision.ops).toMatchObject([{ kind: "lease-end", reason: "expired", lateMs: 3, by: "" }]);
    expect(server.engine.leasesExpired).toBe(1);
    expect(server.engine.expiryLateMsMax).toBe(3);
  });
});

describe("LEASE.ATTACH", () => {
  test("a new token for a new holder, and none for a held key", () => {
    const server = withLease();
    server.run(on.grant("b", 5_000));
    expect(server.reply(on.attach("b", "k2"))).toBe(3);
    const decision = server.run(on.attach("b", "k"));
    expect(decision.reply).toBeNull();
    expect(decision.ops).toEqual([]);
  });

  test("the same lease again: the same token, a write only when the value differs", () => {
    const server = withLease();
    const same = server.run(on.attach("a", "k", "v"));
    expect(same.reply).toBe(1);
    expect(same.ops).toEqual([]);
    const other = server.run(on.attach("a", "k", "w"));
    expect(other.reply).toBe(1);
    expect(other.ops).toMatchObject([{ kind: "key-put", value: "w", token: 1, valueOnly: true }]);
    expect(server.reply(on.get("k"))).toBe("w");
  });

  test("FORCE takes it over with a new token; the former holder keeps nothing of it", () => {
    const server = withLease();
    server.run(on.grant("b", 5_000));
    const decision = server.run(on.attach("b", "k", "w", true));
    expect(decision.reply).toBe(3);
    expect(decision.ops).toMatchObject([
      { kind: "key-end", leaseId: "a", key: "k", reason: "taken", token: 1 },
      { kind: "key-put", leaseId: "b", key: "k", value: "w", token: 3 },
    ]);
    expect(server.run(on.attach("b", "k", "w", true)).ops).toEqual([]);
    server.run(on.revoke("a"));
    expect(server.reply(on.get("k"))).toBe("w");
    server.engine.checkInvariants();
  });

  test("a key whose lease is past its deadline is free", () => {
    const server = withLease();
    server.advance(4_000);
    server.run(on.grant("b", 5_000));
    server.advance(1_000);
    const decision = server.run(on.attach("b", "k"));
    expect(decision.reply).toBe(3);
    expect(decision.ops.map((op) => op.kind)).toEqual(["lease-end", "key-put"]);
  });

  test("is no keep-alive and does not hold up keep-alives", () => {
    const server = withLease();
    server.advance(4_000);
    server.run(on.attach("a", "k2"));
    expect(server.run(on.keepAlive("a")).sawRevision).toBe(1);
    server.run(on.attach("a", "k3"));
    server.advance(4_999);
    expect(server.reply(on.pttl("a"))).toBe(1);
  });
});

describe("LEASE.DETACH", () => {
  test("only keys of that lease, each once", () => {
    const server = withLease();
    server.run(on.grant("b", 5_000, { keys: { other: "" } }));
    const decision = server.run(on.detach("a", "k", "other", "never", "k"));
    expect(decision.reply).toBe(1);
    expect(decision.ops).toEqual([
      { kind: "key-end", databaseIndex: 0, key: "k", leaseId: "a", token: 1, reason: "detached" },
    ]);
    expect(server.reply(on.list())).toEqual(["other"]);
    expect(server.reply(on.keepAlive("a"))).toBe(5_000);
  });

  test("only keys of the selected database", () => {
    const server = withLease();
    expect(server.reply(on.detach("a", "k"), on.inDatabase(1))).toBe(0);
    expect(server.reply(on.detach("a", "k"))).toBe(1);
  });
});

describe("every command on a lease that is not there", () => {
  const commands: [string, Command, unknown][] = [
    ["KEEPALIVE", on.keepAlive("a"), on.noLease("a")],
    ["KEEPALIVE many", on.keepAliveMany("a"), [-2]],
    ["TTL", on.ttl("a"), -2],
    ["PTTL", on.pttl("a"), -2],
    ["SETTTL", on.setTtl("a", 10_000), on.noLease("a")],
    ["SETTTL longer", on.setTtl("a", 1), on.noLease("a")],
    ["ATTACH", on.attach("a", "new"), on.noLease("a")],
    ["ATTACH FORCE", on.attach("a", "k", "v", true), on.noLease("a")],
    ["DETACH", on.detach("a", "k"), on.noLease("a")],
    ["REVOKE", on.revoke("a"), 0],
    ["SCAN", on.scanLeases(0), ["0", []]],
    ["GET", on.get("k"), null],
    ["EXISTS", on.exists("k"), 0],
    ["DEL", on.del("k"), 0],
    ["TYPE", on.type("k"), "+none"],
    ["key TTL", on.keyTtl("k"), -2],
    ["key PTTL", on.keyPttl("k"), -2],
    ["KEYS", on.list(), []],
    ["SCAN keys", on.scan(0), ["0", []]],
    ["DBSIZE", on.COUNT, 0],
    ["RANDOMKEY", on.random(0.5), null],
  ];

  test.each(commands)("%s: never granted", (_, command, answer) => {
    const server = new ManualEngine();
    const decision = server.run(command);
    expect(on.plain(decision.reply)).toEqual(answer);
    expect(decision.ops).toEqual([]);
    expect(decision.sawRevision).toBe(0);
  });

  test.each(commands)("%s: past its deadline, before any tick", (_, command, answer) => {
    const server = withLease();
    server.advance(5_000);
    const decision = server.run(command);
    expect(on.plain(decision.reply)).toEqual(answer);
    expect(decision.ops).toMatchObject([{ kind: "lease-end", id: "a", reason: "expired" }]);
    expect(decision.sawRevision).toBe(2);
    expect(server.engine.leases).toBe(0);
    server.engine.checkInvariants();
  });

  test.each(commands)("%s: revoked, not yet durable", (_, command, answer) => {
    const server = withLease();
    server.run(on.revoke("a"));
    const decision = server.run(command);
    expect(on.plain(decision.reply)).toEqual(answer);
    expect(decision.ops).toEqual([]);
    expect(decision.sawRevision).toBe(2);
  });

  test.each(commands)("%s: flushed, not yet durable", (_, command, answer) => {
    const server = withLease();
    server.run(on.FLUSH_ALL);
    const decision = server.run(command);
    expect(on.plain(decision.reply)).toEqual(answer);
    expect(decision.ops).toEqual([]);
    expect(decision.sawRevision).toBe(2);
  });
});

describe("LEASE.INFO", () => {
  test("tells all about a live lease", () => {
    const server = new ManualEngine();
    server.run(on.grant("a", 5_000, { keys: { k1: "", k2: "" }, label: "nightly" }));
    server.run(on.attach("a", "elsewhere"), on.inDatabase(9));
    server.run(on.setTtl("a", 4_000));
    server.advance(1);
    expect(server.answer(on.info("a"))).toEqual({
      id: "a",
      state: "live",
      ttl: 4_000,
      remaining: 3_999,
      token: 1,
      label: "nightly",
      "granted-at": server.unixMs - 1,
      owner: on.ORIGIN.owner,
      grace: 0,
      keys: ["k1", "k2"],
      "keys-total": 3,
    });
    expect(server.answer(on.info("a"), on.inDatabase(9))).toMatchObject({ keys: ["elsewhere"] });
  });

  test("nil for what never was", () => {
    expect(new ManualEngine().answer(on.info("a"))).toBeNull();
  });

  test("how a lease ended: expired, and how late", () => {
    const server = withLease();
    server.advance(5_007);
    const met = server.answer(on.info("a"));
    const later = server.answer(on.info("a"));
    expect(met).toEqual({
      id: "a",
      state: "ended",
      reason: "expired",
      "ended-at": server.unixMs,
      "late-ms": 7,
      by: "",
    });
    expect(later).toEqual(met);
  });

  test("how a lease ended: revoked, forced", () => {
    const server = withLease();
    server.run(on.grant("b", 5_000));
    server.run(on.revoke("a"));
    expect(server.answer(on.info("a"))).toMatchObject({ state: "ended", reason: "revoked", by: on.ORIGIN.owner });
    server.run(on.FLUSH_ALL);
    expect(server.answer(on.info("b"))).toMatchObject({ state: "ended", reason: "forced" });
    expect(server.answer(on.info("a"))).toMatchObject({ state: "ended", reason: "revoked" });
    server.run(on.grant("a", 5_000));
    expect(server.answer(on.info("a"))).toMatchObject({ state: "live" });
  });

  test("remembers the newest ends only, of an id the newest", () => {
    const server = new ManualEngine();
    const end = (id: string): void => {
      server.run(on.grant(id, 5_000));
      server.run(on.revoke(id));
    };
    end("again");
    for (let count = 0; count < ENDED_LEASES_REMEMBERED_MAX - 1; count += 1) end(`lease-${count}`);
    expect(server.answer(on.info("again"))).toMatchObject({ state: "ended" });
    server.advance(7);
    end("again");
    expect(server.answer(on.info("again"))).toMatchObject({ state: "ended", "ended-at": server.unixMs });
    expect(server.answer(on.info("lease-0"))).toMatchObject({ state: "ended" });
    end("last");
    expect(server.answer(on.info("lease-0"))).toBeNull();
    expect(server.answer(on.info("lease-1"))).toMatchObject({ state: "ended" });
    expect(server.answer(on.info("again"))).toMatchObject({ state: "ended" });
  });

  test("grace from a take-over to the first renewal", () => {
    const server = withLease();
    server.restart(0);
    expect(server.answer(on.info("a"))).toMatchObject({ grace: 1 });
    server.run(on.keepAlive("a"));
    expect(server.answer(on.info("a"))).toMatchObject({ grace: 0 });
  });
});
