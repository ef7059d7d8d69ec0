import { describe, expect, test } from "vitest";
import type { Op } from "#src/engine/op.js";
import * as on from "./manual-engine.js";
import { ManualEngine } from "./manual-engine.js";

/** What users of other lease services ran into, as far as the rules are concerned; each test pins what is right here. */

describe("a positive keep-alive means that lease and keys are there", () => {
  test("at every moment between the end of a lease and the removal of the last of its keys", () => {
    const server = new ManualEngine();
    const keys = Object.fromEntries(Array.from({ length: 50 }, (_, index) => [`k${index}`, ""]));
    server.run(on.grant("a", 5_000, { keys }));
    server.run(on.revoke("a"));
    server.engine.durable(0);
    for (let slice = 0; slice < 60; slice += 1) {
      expect(server.answer(on.keepAlive("a"))).toBe(on.noLease("a"));
      expect(server.reply(on.COUNT)).toBe(0);
      expect(server.reply(on.exists(...Object.keys(keys)))).toBe(0);
      server.engine.checkInvariants();
      server.engine.state.sweep(2, 1);
    }
    expect(server.engine.state.keys(0).rows.rowsUsed).toBe(0);
  });

  test("a keep-alive that meets the deadline is refused, one before it counts", () => {
    const server = new ManualEngine();
    server.run(on.grant("a", 100, { keys: { k: "" } }));
    server.advance(99.75);
    expect(server.reply(on.keepAlive("a"))).toBe(100);
    server.advance(100);
    expect(server.answer(on.keepAlive("a"))).toBe(on.noLease("a"));
    expect(server.answer(on.keepAlive("a"))).toBe(on.noLease("a"));
    expect(server.reply(on.get("k"))).toBeNull();
  });
});

test("a lease is there for every command from its grant on", () => {
  const server = new ManualEngine();
  server.run(on.grant("a", 5_000));
  expect(server.reply(on.pttl("a"))).toBe(5_000);
  expect(server.reply(on.keepAlive("a"))).toBe(5_000);
  expect(server.reply(on.keepAlive("a"), on.inDatabase(3))).toBe(5_000);
});

describe("an expiry that did not go out is tried again", () => {
  test("when the offer came to nothing, however often", () => {
    const server = new ManualEngine();
    server.run(on.grant("a", 1_000));
    server.advance(1_000);
    for (let attempt = 0; attempt < 5; attempt += 1) {
      expect(server.engine.dueLeases(server.nowMs, 10).ids).toEqual(["a"]);
      expect(server.engine.nextDueMs()).toBeLessThanOrEqual(server.nowMs);
    }
    expect(server.tick()).toEqual(["a"]);
    expect(server.engine.nextDueMs()).toBeNull();
  });

  test("when it was decided and not applied", () => {
    const server = new ManualEngine();
    server.run(on.grant("a", 1_000));
    server.advance(1_000);
    expect(server.decide(on.expire(...server.engine.dueLeases(server.nowMs, 10).ids)).reply).toBe(1);
    expect(server.tick()).toEqual(["a"]);
  });
});

test("no cap of expirations: a herd of one moment ends in one tick, none of it with a negative time", () => {
  const server = new ManualEngine();
  for (let index = 0; index < 20_000; index += 1) server.run(on.grant(`l${index}`, 20_000));
  server.advance(20_000);
  expect(server.reply(on.pttl("l19999"))).toBe(-2);
  expect(server.tick().length).toBe(19_999);
  expect(server.engine.leasesExpired).toBe(20_000);
  expect(server.engine.expiryLateMsMax).toBe(0);
});

test("a lease of 100 ms lives 100 ms", () => {
  const server = new ManualEngine();
  server.run(on.grant("a", 100));
  server.advance(99);
  expect(server.tick()).toEqual([]);
  server.advance(11);
  expect(server.tick()).toEqual(["a"]);
});

test("the TTL asked for is the TTL given, to the millisecond", () => {
  const server = new ManualEngine();
  for (const ttlMs of [1, 999, 1_000, 1_001, 2_000_000_000, 4_294_967_297]) {
    expect(server.reply(on.grant(`l${ttlMs}`, ttlMs))).toEqual([`l${ttlMs}`, ttlMs, expect.any(Number)]);
    expect(server.reply(on.pttl(`l${ttlMs}`))).toBe(ttlMs);
  }
});

test("the TTL of a live lease can be changed, both ways", () => {
  const server = new ManualEngine();
  server.run(on.grant("a", 5_000));
  expect(server.reply(on.setTtl("a", 50))).toBe(50);
  expect(server.reply(on.setTtl("a", 50_000))).toBe(50_000);
  expect(server.reply(on.keepAlive("a"))).toBe(50_000);
});

test("grants are not applied twice by a restart, and no token is given twice", () => {
  const server = new ManualEngine();
  const tokens: number[] = [];
  const note = (ops: readonly Op[]): void => {
    for (const op of ops) if (op.kind === "lease-put") tokens.push(op.token);
  };
  for (let round = 0; round < 20; round += 1) {
    note(server.run(on.grant(`l${round}`, 5_000, { keys: { [`k${round}`]: "" } })).ops);
    note(server.run(on.grant(null, 5_000)).ops);
    if (round % 3 === 0) server.run(on.revoke(`l${round}`));
    if (round % 5 === 0) server.restart(round);
  }
  expect(new Set(tokens).size).toBe(40);
  expect(tokens.toSorted((a, b) => a - b)).toEqual(tokens);
  expect(server.engine.leases).toBe(40 - 7);
});

test("deleting a key whose lease has vanished is an ordinary delete of nothing", () => {
  const server = new ManualEngine();
  server.run(on.grant("a", 1_000, { keys: { k: "" } }));
  server.advance(1_000);
  expect(server.reply(on.del("k"))).toBe(0);
  expect(server.reply(on.del("k"))).toBe(0);
});

describe("fat leases", () => {
  const KEYS = 20_000;
  const fat = (): ManualEngine => {
    const server = new ManualEngine();
    const keys = Object.fromEntries(Array.from({ length: KEYS }, (_, index) => [`k${index}`, ""]));
    server.run(on.grant("fat", 5_000, { keys }));
    server.run(on.grant("thin", 5_000, { keys: { other: "" } }));
    return server;
  };

  test("their end is one op; their keys are gone at once and swept in slices", () => {
    const server = fat();
    expect(server.run(on.revoke("fat")).ops.length).toBe(1);
    expect(server.reply(on.COUNT)).toBe(1);
    expect(server.reply(on.list())).toEqual(["other"]);
    server.engine.durable(server.engine.state.revision);
    const { rows } = server.engine.state.keys(0);
    const left = rows.rowsUsed;
    expect(left).toBeGreaterThan(KEYS / 2);
    server.engine.sweepSome(100);
    expect(left - rows.rowsUsed).toBeLessThanOrEqual(100);
    expect(server.engine.nextDueMs()).toBeLessThanOrEqual(server.nowMs);
    server.tick();
    expect(rows.rowsUsed).toBe(1);
    server.engine.checkInvariants();
  });

  test("a key of a dead lease can be had again before it is swept", () => {
    const server = fat();
    server.run(on.revoke("fat"));
    expect(server.reply(on.attach("thin", "k10000", "mine"))).toBe(4);
    server.durable();
    expect(server.reply(on.get("k10000"))).toBe("mine");
    expect(server.reply(on.COUNT)).toBe(2);
    server.engine.checkInvariants();
  });

  test("a lease of the same id while the former one is swept does not inherit keys", () => {
    const server = fat();
    server.run(on.revoke("fat"));
    server.run(on.grant("fat", 5_000, { keys: { k5: "new" } }));
    server.engine.durable(server.engine.state.revision);
    expect(server.answer(on.info("fat"))).toMatchObject({ keys: ["k5"], "keys-total": 1 });
    server.durable();
    expect(server.reply(on.list("k*"))).toEqual(["k5"]);
    server.engine.checkInvariants();
  });
});

test("lists stay whole while keys are attached and detached around them", () => {
  const server = new ManualEngine();
  server.run(on.grant("a", 5_000, { keys: { stays: "" } }));
  for (let round = 0; round < 300; round += 1) {
    server.run(on.attach("a", `k${round % 17}`));
    if (round % 3 === 0) server.run(on.detach("a", `k${(round * 7) % 17}`));
    if (round % 11 === 0) server.durable();
    const names = server.reply(on.list()) as string[];
    expect(names).toContain("stays");
    expect(new Set(names).size).toBe(names.length);
    expect(server.reply(on.COUNT)).toBe(names.length);
    expect(server.answer(on.info("a"))).toMatchObject({ "keys-total": names.length });
  }
});

describe("a lease removes only what is still its own", () => {
  test.each([
    ["deleted and made anew under another lease", on.del("k"), on.attach("b", "k", "new")],
    ["taken by force", on.attach("b", "k", "new", true), on.attach("b", "k", "new")],
    ["detached and attached to another", on.detach("a", "k"), on.attach("b", "k", "new")],
    ["flushed and made anew", on.FLUSH_DATABASE, on.attach("b", "k", "new")],
  ])("a key that was %s outlives it", (_, away, anew) => {
    for (const end of [on.revoke("a"), on.expire("a")]) {
      const server = new ManualEngine();
      server.run(on.grant("a", 5_000, { keys: { k: "old" } }));
      server.run(on.grant("b", 9_000));
      server.run(away);
      server.run(anew);
      server.advance(end.kind === "lease-expire" ? 5_000 : 0);
      server.run(end);
      server.durable();
      expect(server.engine.leases).toBe(1);
      expect(server.reply(on.get("k"))).toBe("new");
      server.engine.checkInvariants();
    }
  });
});

test("a huge TTL neither wraps nor loses the key", () => {
  const server = new ManualEngine({ clockErrorPerMille: 2 });
  server.run(on.grant("a", 5_000, { keys: { k: "v" } }));
  expect(server.reply(on.setTtl("a", 2_700_000_000_000_000))).toBe(2_700_000_000_000_000);
  server.advance(1e12);
  expect(server.tick()).toEqual([]);
  expect(server.reply(on.get("k"))).toBe("v");
  expect(server.reply(on.keyPttl("k"))).toBe(2_699_000_000_000_000);
});

test("a grant whose reply was lost can be sent again, with and without an id of one's own", () => {
  const server = new ManualEngine();
  for (const id of ["a", null]) {
    const first = server.reply(on.grant(id, 5_000, { request: "nonce", keys: { [`k-${id}`]: "" } }));
    expect(server.reply(on.grant(id, 5_000, { request: "nonce", keys: { [`k-${id}`]: "" } }))).toEqual(first);
  }
  expect(server.engine.leases).toBe(2);
  expect(server.engine.leasesGranted).toBe(2);
});

test("a flood of early renewals leaves nothing behind: no slot, no op", () => {
  const server = new ManualEngine();
  server.run(on.grant("a", 60_000));
  const dueMs = server.engine.nextDueMs();
  for (let count = 0; count < 10_000; count += 1) expect(server.run(on.keepAlive("a")).ops.length).toBe(0);
  expect(server.engine.nextDueMs()).toBe(dueMs);
  expect(server.engine.state.revision).toBe(1);
});
