import { describe, expect, test } from "vitest";
import { EXPIRIES_PER_TURN_MAX } from "#src/engine/limits.js";
import * as on from "./manual-engine.js";
import { ManualEngine } from "./manual-engine.js";

const withKeys = (): ManualEngine => {
  const server = new ManualEngine();
  server.run(on.grant("a", 5_000, { keys: { a1: "v1", a2: "v2" } }));
  server.run(on.grant("b", 9_000, { keys: { b1: "v3" } }));
  return server;
};

describe("keys that leases hold", () => {
  test("GET, TYPE, EXISTS, TTL, PTTL", () => {
    const server = withKeys();
    server.advance(1);
    expect(server.reply(on.get("a2"))).toBe("v2");
    expect(server.answer(on.type("a1"))).toBe("+string");
    expect(server.answer(on.type("never"))).toBe("+none");
    expect(server.reply(on.exists("a1", "never", "b1", "a1"))).toBe(3);
    expect(server.reply(on.keyTtl("b1"))).toBe(8);
    expect(server.reply(on.keyPttl("b1"))).toBe(8_999);
  });

  test("names and values are bytes: empty, binary, long", () => {
    const server = new ManualEngine();
    const all = Array.from({ length: 256 }, (_, code) => String.fromCharCode(code)).join("");
    const names = ["", "\0", "\xff", all, "x".repeat(65_536)];
    server.run(on.grant(all, 5_000, { keys: Object.fromEntries(names.map((name) => [name, `${name}!`])) }));
    for (const name of names) expect(server.reply(on.get(name))).toBe(`${name}!`);
    expect(new Set(server.reply(on.list()) as string[])).toEqual(new Set(names));
    expect(server.reply(on.keepAlive(all))).toBe(5_000);
    server.engine.checkInvariants();
  });

  test("DEL takes a key from its lease, each once", () => {
    const server = withKeys();
    const decision = server.run(on.del("a1", "never", "b1", "a1"));
    expect(decision.reply).toBe(2);
    expect(decision.ops).toEqual([
      { kind: "key-end", databaseIndex: 0, key: "a1", leaseId: "a", token: 1, reason: "deleted" },
      { kind: "key-end", databaseIndex: 0, key: "b1", leaseId: "b", token: 2, reason: "deleted" },
    ]);
    expect(server.reply(on.list())).toEqual(["a2"]);
    expect(server.engine.leases).toBe(2);
  });

  test("KEYS, DBSIZE, RANDOMKEY see live keys only", () => {
    const server = withKeys();
    server.run(on.grant("c", 1_000, { keys: { c1: "", c2: "" } }));
    server.run(on.del("a1"));
    server.advance(1_000);
    expect(server.reply(on.COUNT)).toBe(2);
    expect((server.reply(on.list()) as string[]).toSorted()).toEqual(["a2", "b1"]);
    expect(server.reply(on.list("a*"))).toEqual(["a2"]);
    const drawn = new Set<unknown>();
    for (let step = 0; step < 100; step += 1) drawn.add(server.reply(on.random(step / 100)));
    expect(drawn).toEqual(new Set(["a2", "b1"]));
  });

  test("a key goes with its lease at its deadline, unless another has taken it", () => {
    const server = withKeys();
    server.run(on.attach("b", "a2", "taken", true));
    server.advance(5_000);
    expect(server.tick()).toEqual(["a"]);
    expect(server.reply(on.get("a1"))).toBeNull();
    expect(server.reply(on.get("a2"))).toBe("taken");
    expect(server.reply(on.COUNT)).toBe(2);
    server.engine.checkInvariants();
  });

  test("databases are apart", () => {
    const server = withKeys();
    const other = on.inDatabase(15);
    server.run(on.attach("a", "a1", "other"), other);
    expect(server.reply(on.get("a1"))).toBe("v1");
    expect(server.reply(on.get("a1"), other)).toBe("other");
    expect(server.reply(on.COUNT, other)).toBe(1);
    expect(server.reply(on.del("a1"), other)).toBe(1);
    expect(server.reply(on.get("a1"))).toBe("v1");
    expect(server.engine.keysByDatabase).toEqual([3, ...Array.from({ length: 15 }, () => 0)]);
  });
});

describe("FLUSHDB and FLUSHALL", () => {
  test("FLUSHDB removes the keys of its database; leases and tokens go on", () => {
    const server = withKeys();
    server.run(on.attach("a", "elsewhere"), on.inDatabase(1));
    const decision = server.run(on.FLUSH_DATABASE);
    expect(on.plain(decision.reply)).toBe("+OK");
    expect(decision.ops).toEqual([{ kind: "flush-database", databaseIndex: 0 }]);
    expect(server.reply(on.COUNT)).toBe(0);
    expect(server.reply(on.get("a1"))).toBeNull();
    expect(server.reply(on.get("elsewhere"), on.inDatabase(1))).toBe("v");
    expect(server.reply(on.keepAlive("a"))).toBe(5_000);
    expect(server.answer(on.info("a"))).toMatchObject({ keys: [], "keys-total": 1 });
    expect(server.reply(on.attach("b", "a1"))).toBe(5);
    server.run(on.revoke("a"));
    expect(server.reply(on.list())).toEqual(["a1"]);
    server.durable();
    server.engine.checkInvariants();
  });

  test("FLUSHALL removes everything; ids and tokens never come again", () => {
    const server = withKeys();
    server.run(on.FLUSH_ALL);
    expect(server.engine.leases).toBe(0);
    expect(server.reply(on.COUNT)).toBe(0);
    expect(server.engine.nextDueMs()).toBeNull();
    expect(server.reply(on.grant("a", 5_000, { keys: { a1: "" } }))).toEqual(["a", 5_000, 4]);
    server.advance(5_000);
    expect(server.tick()).toEqual(["a"]);
    server.engine.checkInvariants();
  });

  test("what was deleted before a flush and not yet swept does no harm after it", () => {
    const server = withKeys();
    server.run(on.del("a1", "a2", "b1"));
    server.run(on.FLUSH_DATABASE);
    for (const key of ["n1", "n2", "n3"]) server.run(on.attach("a", key));
    server.durable();
    expect(server.reply(on.COUNT)).toBe(3);
    server.engine.checkInvariants();
  });
});

describe("an expiry storm", () => {
  const storm = (): ManualEngine => {
    const server = new ManualEngine();
    for (let count = 0; count < 3 * EXPIRIES_PER_TURN_MAX; count += 1) {
      server.run(on.grant(`l${count}`, 1_000, { keys: { [`k${count}`]: "" } }));
    }
    server.run(on.grant("long", 9_000, { keys: { kept: "" } }));
    server.advance(1_000);
    return server;
  };

  test("KEYS shows no dead key, and ends no more leases than a turn may", () => {
    const server = storm();
    const decision = server.run(on.list());
    expect(decision.reply).toEqual(["kept"]);
    expect(decision.ops.length).toBe(EXPIRIES_PER_TURN_MAX);
    server.engine.checkInvariants();
  });

  test("RANDOMKEY finds the one live key, and ends no more leases than a turn may", () => {
    const decision = storm().run(on.random(0.5));
    expect(decision.reply).toBe("kept");
    expect(decision.ops.length).toBeLessThanOrEqual(EXPIRIES_PER_TURN_MAX);
  });

  test("DBSIZE ends what a turn may and counts the rest until it has ended", () => {
    const server = storm();
    const decision = server.run(on.COUNT);
    expect(decision.ops.length).toBe(EXPIRIES_PER_TURN_MAX);
    expect(decision.reply).toBe(2 * EXPIRIES_PER_TURN_MAX + 1);
    server.tick();
    expect(server.reply(on.COUNT)).toBe(1);
  });

  test("what names its leases ends them all", () => {
    const server = storm();
    const ids = Array.from({ length: 3 * EXPIRIES_PER_TURN_MAX }, (_, count) => `l${count}`);
    const decision = server.run(on.keepAliveMany(...ids));
    expect(new Set(decision.reply as number[])).toEqual(new Set([-2]));
    expect(decision.ops.length).toBe(ids.length);
  });
});
