import { describe, expect, test } from "vitest";
import type { Command } from "#src/engine/command.js";
import { VALUE_BYTES_MAX } from "#src/engine/limits.js";
import * as on from "./manual-engine.js";
import { ManualEngine } from "./manual-engine.js";

const WITH_FORMER = { returnsFormer: true, answer: "former" as const };
const nx = { condition: { kind: "nx" as const } };
const xx = { condition: { kind: "xx" as const } };
const many = (keys: Record<string, string>, options: Partial<Extract<Command, { kind: "string-set-many" }>> = {}) =>
  ({
    kind: "string-set-many",
    pairs: on.pairs(keys),
    condition: "always",
    expiry: on.NONE,
    answer: "ok",
    ...options,
  }) satisfies Command;
const increment = (key: string, by: bigint): Command => ({ kind: "string-increment", key, by });
const incrementFloat = (key: string, by: number): Command => ({ kind: "string-increment-float", key, by });
const getRange = (key: string, start: number, end: number): Command => ({ kind: "string-get-range", key, start, end });
const setRange = (key: string, offset: number, value: string): Command => ({
  kind: "string-set-range",
  key,
  offset,
  value,
});
const append = (key: string, value: string): Command => ({ kind: "string-append", key, value });
const getDelete = (key: string): Command => ({ kind: "string-get-delete", key });
const getExpire = (key: string, expiry = on.KEEP): Command => ({ kind: "string-get-expire", key, expiry });

describe("SET", () => {
  test("conditions, and what a miss answers", () => {
    const server = new ManualEngine();
    expect(server.answer(on.set("k", "v", xx))).toBeNull();
    expect(server.answer(on.set("k", "v", nx))).toBe("+OK");
    expect(server.answer(on.set("k", "w", nx))).toBeNull();
    expect(server.answer(on.set("k", "w", xx))).toBe("+OK");
    expect(server.answer(on.set("k", "x", { ...nx, answer: "one" }))).toBe(0);
    expect(server.answer(on.set("n", "x", { ...nx, answer: "one" }))).toBe(1);
    expect(server.answer(on.get("k"))).toBe("w");
  });

  test("with GET the former value, whatever the condition says", () => {
    const server = new ManualEngine();
    expect(server.answer(on.set("k", "v", WITH_FORMER))).toBeNull();
    expect(server.answer(on.set("k", "w", { ...WITH_FORMER, ...nx }))).toBe("v");
    expect(server.answer(on.set("k", "w", { ...WITH_FORMER, ...xx }))).toBe("v");
    expect(server.answer(on.set("n", "w", { ...WITH_FORMER, ...xx }))).toBeNull();
    expect(server.answer(on.get("n"))).toBeNull();
    expect(server.answer(on.get("k"))).toBe("w");
  });

  test.each([
    ["IFEQ", { kind: "eq", value: "v" }, { kind: "eq", value: "w" }, false],
    ["IFNE", { kind: "ne", value: "w" }, { kind: "ne", value: "v" }, true],
    ["IFDEQ", { kind: "digest-eq", digest: "0000000000000001" }, { kind: "digest-eq", digest: "0".repeat(16) }, false],
    ["IFDNE", { kind: "digest-ne", digest: "0".repeat(16) }, { kind: "digest-ne", digest: "0000000000000001" }, true],
  ] as const)("%s: holds, misses, and on a missing key", (_, holds, misses, makesNew) => {
    const server = new ManualEngine();
    server.run(on.set("k", "v"));
    expect(server.answer(on.set("k", "new", { condition: misses }))).toBeNull();
    expect(server.answer({ kind: "string-delete-if", key: "k", condition: misses })).toBe(0);
    expect(server.answer(on.set("k", "v", { condition: holds }))).toBe("+OK");
    expect(server.answer(on.set("none", "v", { condition: holds }))).toBe(makesNew ? "+OK" : null);
    expect(server.answer({ kind: "string-delete-if", key: "k", condition: holds })).toBe(1);
    expect(server.answer({ kind: "string-delete-if", key: "k", condition: holds })).toBe(0);
  });

  test("drops the TTL; KEEPTTL keeps it, and its time goes on", () => {
    const server = new ManualEngine();
    server.run(on.setPx("k", "v", 10_000));
    server.advance(4_000);
    server.run(on.set("k", "w", { expiry: on.KEEP }));
    expect(server.answer(on.keyPttl("k"))).toBe(6_000);
    server.run(on.set("k", "x"));
    expect(server.answer(on.keyPttl("k"))).toBe(-1);
    server.advance(1e9);
    expect(server.tick()).toEqual([]);
    expect(server.answer(on.get("k"))).toBe("x");
    server.run(on.set("new", "v", { expiry: on.KEEP }));
    expect(server.answer(on.keyTtl("new"))).toBe(-1);
    server.engine.checkInvariants();
  });

  test("at a time on the wall clock; one that is past leaves no key", () => {
    const server = new ManualEngine();
    server.run(on.set("k", "v", { expiry: on.atMs(server.unixMs + 5_000) }));
    expect(server.answer(on.keyPttl("k"))).toBe(5_000);
    expect(server.answer({ kind: "key-expire-time", key: "k", unit: "ms" })).toBe(server.unixMs + 5_000);
    expect(server.answer({ kind: "key-expire-time", key: "k", unit: "s" })).toBe(Math.floor(server.unixMs / 1000) + 5);
    const gone = server.run(on.set("k", "w", { expiry: on.atMs(server.unixMs) }));
    expect(on.plain(gone.reply)).toBe("+OK");
    expect(gone.ops).toMatchObject([{ kind: "string-end", key: "k", reason: "deleted" }]);
    expect(server.run(on.set("k", "w", { expiry: on.atMs(1) })).ops).toEqual([]);
    expect(server.answer(on.exists("k"))).toBe(0);
  });

  test("a new token for each value that is set, none for changes and renewals", () => {
    const server = new ManualEngine();
    const token = (): number => {
      const table = server.engine.state.keys(0);
      return table.token.get(table.find("k"));
    };
    server.run(on.setPx("k", "1", 1_000));
    const first = token();
    server.run(increment("k", 1n));
    server.run(on.pexpire("k", 9_000));
    server.run(on.set("k", "3", { expiry: on.KEEP }));
    server.run(on.setPx("k", "3", 500));
    expect(token()).toBe(first);
    server.run(on.setPx("k", "4", 500));
    expect(token()).toBe(server.engine.state.revision);
    expect(server.answer(on.check("k", token()))).toBe(1);
    expect(server.answer(on.check("k", first))).toBe(0);
    server.advance(500);
    expect(server.answer(on.check("k", server.engine.state.revision))).toBe(0);
  });

  test("the limit of keys", () => {
    const server = new ManualEngine({ keysMax: 2 });
    server.run(on.set("a", ""));
    server.run(on.set("b", ""));
    const full = "OOM the limit of 2 keys is reached";
    expect(server.answer(on.set("c", ""))).toBe(full);
    expect(server.answer(append("c", "x"))).toBe(full);
    expect(server.answer(increment("c", 1n))).toBe(full);
    expect(server.answer(many({ a: "x", c: "x" }))).toBe(full);
    expect(server.answer(on.get("a"))).toBe("");
    expect(server.answer(on.set("a", "y"))).toBe("+OK");
    server.run(on.del("b"));
    expect(server.answer(on.set("c", ""))).toBe("+OK");
  });
});

describe("many at once", () => {
  test("MSET, MSETNX, MSETEX, MGET", () => {
    const server = new ManualEngine();
    expect(server.answer(many({ a: "1", b: "2" }))).toBe("+OK");
    expect(server.answer(many({ b: "3", c: "3" }, { condition: "if-none", answer: "one" }))).toBe(0);
    expect(server.answer(many({ b: "3", c: "3" }, { condition: "if-all", answer: "one" }))).toBe(0);
    expect(server.answer(many({ c: "3", d: "4" }, { condition: "if-none", answer: "one" }))).toBe(1);
    expect(server.answer({ kind: "string-get-many", keys: ["a", "b", "x", "c", "a"] })).toEqual([
      "1",
      "2",
      null,
      "3",
      "1",
    ]);
    server.run(many({ a: "9", d: "9" }, { condition: "if-all", answer: "one", expiry: on.inMs(50) }));
    expect(server.answer(on.keyPttl("d"))).toBe(50);
    server.advance(50);
    expect(server.tick().toSorted()).toEqual(["a", "d"]);
  });

  test("a key that is named twice has the last value, by one op", () => {
    const server = new ManualEngine();
    const pairs = [
      { key: "a", value: "1" },
      { key: "b", value: "2" },
      { key: "a", value: "3" },
    ];
    const { ops } = server.run({ kind: "string-set-many", pairs, condition: "always", expiry: on.NONE, answer: "ok" });
    expect(ops.map((op) => op.kind === "string-put" && [op.key, op.value])).toEqual([
      ["a", "3"],
      ["b", "2"],
    ]);
    server.engine.checkInvariants();
  });
});

describe("time", () => {
  test("a key is dead for every command from its deadline, before the tick", () => {
    for (const command of [
      on.get("k"),
      on.exists("k"),
      on.keyTtl("k"),
      getRange("k", 0, -1),
      { kind: "string-get-many", keys: ["k"] } as const,
      on.persist("k"),
      on.list(),
      on.COUNT,
      on.random(0),
      getDelete("k"),
      getExpire("k", on.inMs(5)),
    ]) {
      const server = new ManualEngine();
      server.run(on.setPx("k", "v", 100));
      server.advance(99.9);
      expect(server.answer(on.exists("k"))).toBe(1);
      server.advance(0.1);
      const { reply, ops } = server.run(command);
      expect([null, 0, -2, "", [], [null]]).toContainEqual(reply);
      expect(ops).toEqual([{ kind: "string-end", databaseIndex: 0, key: "k", token: 1, reason: "expired" }]);
      server.engine.checkInvariants();
    }
  });

  test("it ends by the tick as well, in any database, and is counted", () => {
    const server = new ManualEngine();
    server.run(on.setPx("k", "v", 100));
    server.run(on.setPx("k", "v", 100), on.inDatabase(3));
    server.run(on.grant("a", 100));
    expect(server.engine.keysByDatabase.slice(0, 4)).toEqual([1, 0, 0, 1]);
    expect(server.engine.leases).toBe(1);
    server.advance(100);
    expect(server.tick()).toEqual(["a", "k", "k"]);
    expect(server.engine.keysExpired).toBe(2);
    expect(server.engine.leasesExpired).toBe(1);
    server.engine.checkInvariants();
  });

  test("PEXPIRE up to the durable TTL is memory only, a longer one is written", () => {
    const server = new ManualEngine();
    server.run(on.setPx("k", "v", 10_000));
    server.advance(9_000);
    expect(server.run(on.pexpire("k", 10_000))).toMatchObject({ reply: 1, ops: [] });
    expect(server.answer(on.keyPttl("k"))).toBe(10_000);
    expect(server.run(on.pexpire("k", 10))).toMatchObject({ reply: 1, ops: [] });
    expect(server.answer(on.keyPttl("k"))).toBe(10);
    expect(server.run(on.pexpire("k", 10_001)).ops).toMatchObject([
      { kind: "string-put", value: "v", ttlMs: 10_001, token: 1 },
    ]);
    expect(server.answer(on.keyPttl("k"))).toBe(10_001);
    server.advance(10_001);
    expect(server.answer(on.pexpire("k", 10_000))).toBe(0);
    expect(server.answer(on.get("k"))).toBeNull();
  });

  test("a SET of the value that is there renews in memory, within the durable TTL", () => {
    const server = new ManualEngine();
    server.run(on.setPx("k", "me", 10_000));
    server.advance(5_000);
    expect(server.run(on.setPx("k", "me", 10_000)).ops).toEqual([]);
    expect(server.answer(on.keyPttl("k"))).toBe(10_000);
    expect(server.run(on.setPx("k", "me", 10_001)).ops).toHaveLength(1);
    expect(server.run(on.setPx("k", "other", 10)).ops).toHaveLength(1);
    expect(server.run(on.set("k", "other")).ops).toMatchObject([{ ttlMs: null }]);
    expect(server.run(on.set("k", "other")).ops).toHaveLength(1);
  });

  test("the first TTL and PERSIST are written", () => {
    const server = new ManualEngine();
    server.run(on.set("k", "v"));
    expect(server.answer(on.persist("k"))).toBe(0);
    expect(server.run(on.pexpire("k", 100)).ops).toMatchObject([{ ttlMs: 100 }]);
    expect(server.run(on.persist("k"))).toMatchObject({ reply: 1, ops: [{ ttlMs: null }] });
    server.advance(1_000);
    expect(server.tick()).toEqual([]);
    expect(server.answer(on.keyTtl("k"))).toBe(-1);
    expect(server.answer(on.persist("none"))).toBe(0);
    server.engine.checkInvariants();
  });

  test("a TTL of 0 or less deletes", () => {
    const server = new ManualEngine();
    server.run(on.set("k", "v"));
    const decision = server.run({ kind: "key-expire", key: "k", expiry: on.atMs(server.unixMs), condition: "always" });
    expect(decision).toMatchObject({ reply: 1, ops: [{ kind: "string-end", reason: "deleted" }] });
    expect(server.answer(on.pexpire("k", 5))).toBe(0);
  });

  test.each<[on.ExpireCondition, number | null, number, number]>([
    ["nx", null, 500, 1],
    ["nx", 1_000, 500, 0],
    ["xx", null, 500, 0],
    ["xx", 1_000, 500, 1],
    ["gt", 1_000, 1_001, 1],
    ["gt", 1_000, 1_000, 0],
    ["gt", null, 1e12, 0],
    ["lt", 1_000, 999, 1],
    ["lt", 1_000, 1_000, 0],
    ["lt", null, 1e12, 1],
    ["xx-gt", null, 5, 0],
    ["xx-gt", 1_000, 2_000, 1],
    ["xx-lt", null, 5, 0],
    ["xx-lt", 1_000, 5, 1],
  ])("EXPIRE %s with %s left, to %s: %s", (condition, leftMs, ttlMs, reply) => {
    const server = new ManualEngine();
    server.run(leftMs === null ? on.set("k", "v") : on.setPx("k", "v", leftMs));
    expect(server.answer(on.pexpire("k", ttlMs, condition))).toBe(reply);
    expect(server.answer(on.keyPttl("k"))).toBe(reply === 1 ? ttlMs : (leftMs ?? -1));
  });

  test("a restart gives the full durable TTL again, whatever was left", () => {
    const server = new ManualEngine({ clockErrorPerMille: 2 });
    server.run(on.setPx("k", "v", 10_000));
    server.run(on.set("for-ever", "v"));
    server.advance(9_000);
    server.run(on.pexpire("k", 10));
    server.restart(-50_000);
    expect(server.answer(on.keyPttl("k"))).toBe(10_000);
    expect(server.answer(on.keyTtl("for-ever"))).toBe(-1);
    server.advance(10_019);
    expect(server.answer(on.get("k"))).toBe("v");
    server.advance(1_001);
    expect(server.answer(on.get("k"))).toBeNull();
    server.engine.checkInvariants();
  });

  test("GETEX: reads, renews, shortens, persists, deletes", () => {
    const server = new ManualEngine();
    server.run(on.setPx("k", "v", 1_000));
    expect(server.run(getExpire("k"))).toMatchObject({ reply: "v", ops: [] });
    expect(server.run(getExpire("k", on.inMs(500)))).toMatchObject({ reply: "v", ops: [] });
    expect(server.answer(on.keyPttl("k"))).toBe(500);
    expect(server.run(getExpire("k", on.NONE))).toMatchObject({ reply: "v", ops: [{ ttlMs: null }] });
    expect(server.run(getExpire("k", on.atMs(1)))).toMatchObject({ reply: "v", ops: [{ kind: "string-end" }] });
    expect(server.answer(getExpire("k", on.inMs(1)))).toBeNull();
  });
});

describe("parts of values", () => {
  test.each([
    [0, -1, "abcdef"],
    [1, 2, "bc"],
    [-3, -2, "de"],
    [-100, 1, "ab"],
    [4, 100, "ef"],
    [3, 2, ""],
    [-2, -3, ""],
    [0, -100, "a"],
    [6, 9, ""],
    [-Number.MAX_SAFE_INTEGER, Number.MAX_SAFE_INTEGER, "abcdef"],
  ])("GETRANGE %d %d", (start, end, expected) => {
    const server = new ManualEngine();
    server.run(on.set("k", "abcdef"));
    expect(server.answer(getRange("k", start, end))).toBe(expected);
    expect(server.answer(getRange("none", start, end))).toBe("");
  });

  test("SETRANGE fills gaps with zero bytes, and keeps what lies behind", () => {
    const server = new ManualEngine();
    expect(server.answer(setRange("k", 0, ""))).toBe(0);
    expect(server.answer(on.exists("k"))).toBe(0);
    expect(server.answer(setRange("k", 3, "ab"))).toBe(5);
    expect(server.answer(on.get("k"))).toBe("\0\0\0ab");
    expect(server.answer(setRange("k", 1, "xy"))).toBe(5);
    expect(server.answer(on.get("k"))).toBe("\0xyab");
    expect(server.answer(setRange("k", 9, ""))).toBe(5);
    expect(server.answer({ kind: "string-length", key: "k" })).toBe(5);
    expect(server.answer({ kind: "string-length", key: "none" })).toBe(0);
  });

  test("APPEND and SETRANGE stop at the longest value, and change nothing then", () => {
    const server = new ManualEngine();
    const tooLong = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
    server.run(on.set("k", "x".repeat(VALUE_BYTES_MAX)));
    expect(server.answer(append("k", "y"))).toBe(tooLong);
    expect(server.answer(setRange("k", VALUE_BYTES_MAX, "y"))).toBe(tooLong);
    expect(server.answer(append("k", ""))).toBe(VALUE_BYTES_MAX);
    expect(server.answer(append("n", "ab"))).toBe(2);
    expect(server.answer(append("n", "\xff\0"))).toBe(4);
    expect(server.answer(on.get("n"))).toBe("ab\xff\0");
  });
});

describe("numbers", () => {
  test("INCR over the whole range of 64 bits", () => {
    const server = new ManualEngine();
    expect(server.answer(increment("n", 1n))).toBe(1);
    expect(server.answer(increment("n", 2n ** 63n - 2n))).toBe(9_223_372_036_854_775_807n);
    expect(server.answer(on.get("n"))).toBe("9223372036854775807");
    expect(server.answer(increment("n", 1n))).toBe("ERR increment or decrement would overflow");
    expect(server.answer(increment("n", -(2n ** 63n)))).toBe(-1);
    expect(server.answer(increment("n", -(2n ** 63n)))).toBe("ERR increment or decrement would overflow");
    expect(server.answer(increment("n", -(2n ** 63n) + 1n))).toBe(-9_223_372_036_854_775_808n);
    expect(server.answer(increment("n", 2n ** 63n - 1n))).toBe(-1);
  });

  test.each([
    "",
    " 1",
    "1 ",
    "+1",
    "01",
    "-0",
    "1.0",
    "1e3",
    "0x1",
    "9223372036854775808",
    "-9223372036854775809",
    "nan",
  ])("%j is no integer", (value) => {
    const server = new ManualEngine();
    server.run(on.set("k", value));
    expect(server.answer(increment("k", 1n))).toBe("ERR value is not an integer or out of range");
    expect(server.answer(on.get("k"))).toBe(value);
  });

  test.each([
    ["10.50", 0.1, "10.6"],
    ["5.0e3", 200, "5200"],
    ["0.1", 0.2, "0.3"],
    ["3", -3, "0"],
    ["-1.5", 1.25, "-0.25"],
    [".5", 1, "1.5"],
    ["1e-20", 0, "0"],
    ["0.123456789012345678", 0, "0.12345678901234568"],
    ["1000000000000000000000", 1, "1000000000000000000001"],
    ["0", 1e21, "1000000000000000000000"],
    ["0", 1e-7, "0.0000001"],
  ])("INCRBYFLOAT %s + %s", (value, by, expected) => {
    const server = new ManualEngine();
    server.run(on.setPx("k", value, 1_000));
    expect(server.answer(incrementFloat("k", by))).toBe(expected);
    expect(server.answer(on.get("k"))).toBe(expected);
    expect(server.answer(on.keyPttl("k"))).toBe(1_000);
  });

  test("INCRBYFLOAT refuses what is no number", () => {
    const server = new ManualEngine();
    expect(server.answer(incrementFloat("new", 1.5))).toBe("1.5");
    for (const value of ["", "x", "1.", " 1", "1 ", "--1", "e5", "."]) {
      server.run(on.set("k", value));
      const answer = server.answer(incrementFloat("k", 1));
      expect(answer).toBe(value === "1." ? "2" : "ERR value is not a valid float");
    }
    for (const value of ["inf", "-infinity"]) {
      server.run(on.set("k", value));
      expect(server.answer(incrementFloat("k", 1))).toBe("ERR increment would produce NaN or Infinity");
    }
    expect(server.answer(incrementFloat("n", Infinity))).toBe("ERR increment would produce NaN or Infinity");
  });
});

describe("keys that a lease holds", () => {
  const leasedKey = (): ManualEngine => {
    const server = new ManualEngine();
    server.run(on.grant("a", 5_000, { keys: { k: "10" } }));
    return server;
  };

  test.each([
    ["SET", on.set("k", "v"), "v", -1],
    ["SET PX", on.setPx("k", "v", 700), "v", 700],
    ["SET XX", on.set("k", "v", xx), "v", -1],
    ["GETSET", on.set("k", "v", WITH_FORMER), "v", -1],
    ["MSET", many({ k: "v" }), "v", -1],
    ["DEL", on.del("k"), null, -2],
    ["GETDEL", getDelete("k"), null, -2],
    ["DELIFEQ", { kind: "string-delete-if", key: "k", condition: { kind: "eq", value: "10" } } as const, null, -2],
  ])("%s takes the key from its lease, which lives on", (_, command, value, leftMs) => {
    const server = leasedKey();
    const { ops } = server.run(command);
    expect(ops[0]).toMatchObject({ kind: "key-end", leaseId: "a", reason: value === null ? "deleted" : "taken" });
    expect(server.answer(on.get("k"))).toBe(value);
    expect(server.answer(on.keyPttl("k"))).toBe(leftMs);
    expect(server.answer(on.info("a"))).toMatchObject({ keys: [] });
    server.run(on.revoke("a"));
    expect(server.answer(on.get("k"))).toBe(value);
    server.durable();
    server.engine.checkInvariants();
  });

  test.each([
    ["APPEND", append("k", "x"), "10x", "append"],
    ["SETRANGE", setRange("k", 1, "7"), "17", "setrange"],
    ["INCR", increment("k", 1n), "11", "incrby"],
    ["INCRBYFLOAT", incrementFloat("k", 0.5), "10.5", "incrbyfloat"],
    ["SET KEEPTTL", on.set("k", "v", { expiry: on.KEEP }), "v", "set"],
  ])("%s leaves the key with its lease, under the same token", (_, command, value, event) => {
    const server = leasedKey();
    server.advance(1_000);
    const { ops } = server.run(command);
    expect(ops).toMatchObject([{ kind: "key-put", leaseId: "a", token: 1, value, valueOnly: true, event }]);
    expect(server.answer(on.get("k"))).toBe(value);
    expect(server.answer(on.keyPttl("k"))).toBe(4_000);
    expect(server.answer(on.info("a"))).toMatchObject({ keys: ["k"] });
  });

  test.each([
    ["EXPIRE", on.pexpire("k", 5)],
    ["EXPIRE NX", on.pexpire("k", 5, "nx")],
    ["EXPIREAT in the past", { kind: "key-expire", key: "k", expiry: on.atMs(1), condition: "always" } as const],
    ["PERSIST", on.persist("k")],
    ["GETEX PX", getExpire("k", on.inMs(5))],
    ["GETEX PERSIST", getExpire("k", on.NONE)],
  ])("%s is refused: the expiry is the lease's", (_, command) => {
    const server = leasedKey();
    const decision = server.run(command);
    expect(on.plain(decision.reply)).toBe("LEASED the expiry of key 'k' belongs to its lease");
    expect(decision.ops).toEqual([]);
    expect(server.answer(getExpire("k"))).toBe("10");
  });

  test("SET NX misses, ATTACH FORCE and a later GRANT get a plain key", () => {
    const server = leasedKey();
    expect(server.answer(on.setNx("k", "v", 5))).toBeNull();
    server.run(on.setPx("plain", "v", 1_000));
    expect(server.answer(on.attach("a", "plain"))).toBeNull();
    expect(server.answer(on.grant("b", 100, { keys: { plain: "" } }))).toBeNull();
    const { ops, reply } = server.run(on.attach("a", "plain", "w", true));
    expect(ops).toMatchObject([
      { kind: "string-end", reason: "taken" },
      { kind: "key-put", value: "w" },
    ]);
    expect(reply).toBe(server.engine.state.revision);
    server.advance(1_000);
    expect(server.tick()).toEqual([]);
    expect(server.answer(on.get("plain"))).toBe("w");
    server.engine.checkInvariants();
  });
});

describe("plain keys and leases are apart", () => {
  test("no LEASE command sees a plain key, and every count is exact", () => {
    const server = new ManualEngine();
    for (let index = 0; index < 50; index += 1) server.run(on.setPx(`p${index}`, "v", 1_000 + index));
    for (let index = 0; index < 20; index += 1) server.run(on.set(`q${index}`, "v"));
    server.run(on.grant("a", 9_000, { keys: { k: "" } }));
    expect(server.engine.leases).toBe(1);
    expect(server.answer(on.scanLeases(0, 1_000))).toEqual(["0", ["a"]]);
    expect(server.answer(on.COUNT)).toBe(71);
    expect((server.answer(on.scan(0, 1_000)) as [string, string[]])[1]).toHaveLength(71);
    expect(server.engine.lastingKeysByDatabase[0]).toBe(20);
    for (const id of ["", "p0"]) expect(server.answer(on.pttl(id))).toBe(-2);
    server.advance(1_024);
    expect(server.run(on.COUNT)).toMatchObject({ reply: 46, ops: { length: 25 } });
    expect(server.tick()).toEqual([]);
    expect(server.answer(on.COUNT)).toBe(46);
    server.engine.checkInvariants();
  });

  test("FLUSHDB: nothing of the keys is left, in memory neither, and others are unharmed", () => {
    const server = new ManualEngine();
    for (let index = 0; index < 5_000; index += 1) server.run(on.setPx(`p${index}`, "v", 60_000));
    server.run(on.set("q", "v"));
    server.run(on.setPx("elsewhere", "v", 60_000), on.inDatabase(2));
    server.run(on.FLUSH_DATABASE);
    expect(server.answer(on.COUNT)).toBe(0);
    expect(server.engine.leases).toBe(0);
    // Rows are handed out again while the sweep of the old ones is under way.
    server.engine.sweepSome(1_000);
    for (let index = 0; index < 1_000; index += 1) server.run(on.setPx(`p${index}`, "w", 30_000));
    server.engine.checkInvariants();
    server.run(on.FLUSH_DATABASE);
    for (let index = 0; index < 10; index += 1) server.run(on.setPx(`p${index}`, "x", 30_000));
    server.durable();
    server.engine.checkInvariants();
    expect(server.engine.state.leases.hiddenCount).toBe(10 + 1 + 1);
    expect(server.answer(on.get("elsewhere"), on.inDatabase(2))).toBe("v");
    server.advance(30_000);
    expect(server.tick()).toHaveLength(10);
    server.run(on.FLUSH_ALL);
    server.durable();
    expect(server.engine.state.leases.hiddenCount).toBe(0);
    expect(server.engine.nextDueMs()).toBeNull();
    server.run(on.set("q", "again"));
    expect(server.answer(on.keyTtl("q"))).toBe(-1);
    server.engine.checkInvariants();
  });

  test("rows are freed: many keys that come and go take no more memory than those there at once", () => {
    const server = new ManualEngine();
    for (let round = 0; round < 50; round += 1) {
      for (let index = 0; index < 100; index += 1) server.run(on.setPx(`${round} ${index}`, "v", 10));
      server.advance(10);
      expect(server.tick()).toHaveLength(100);
    }
    expect(server.engine.state.leases.rows.rowsUsed).toBe(0);
    expect(server.engine.state.keys(0).rows.rowsUsed).toBe(0);
  });
});

describe("what is told and seen", () => {
  test("a renewal in memory is told to the keyspace, though it is no op", () => {
    const server = new ManualEngine();
    server.run(on.setPx("k", "v", 1_000));
    const names = (command: Command): unknown[] =>
      server.run(command).events.map((event) => "event" in event && event.event);
    expect(names(on.pexpire("k", 900))).toEqual(["expire"]);
    expect(names(on.setPx("k", "v", 900))).toEqual(["set", "expire"]);
    expect(names(on.pexpire("k", 2_000))).toEqual([]);
  });

  test("what a reply reveals: the newest change of the key, its end included", () => {
    const server = new ManualEngine();
    server.run(on.setPx("k", "v", 1_000));
    server.run(on.set("other", "v"));
    expect(server.run(on.get("k")).sawRevision).toBe(1);
    expect(server.run(on.pexpire("k", 10)).sawRevision).toBe(1);
    expect(server.run(on.setNx("k", "w", 10)).sawRevision).toBe(1);
    server.advance(10);
    expect(server.run(on.get("k")).sawRevision).toBe(3);
    expect(server.run(on.setNx("k", "w", 10)).sawRevision).toBe(4);
    server.run(getDelete("k"));
    expect(server.run(on.get("k")).sawRevision).toBe(5);
    expect(server.run(on.persist("k")).sawRevision).toBe(5);
  });

  test("WATCH sees every change of a key, its time being over too, and none of others", () => {
    const server = new ManualEngine();
    const revision = (): number => server.engine.revisionOf(0, "k", server);
    expect(revision()).toBe(0);
    server.run(on.set("other", "v"));
    expect(revision()).toBe(0);
    server.run(on.setPx("k", "v", 1_000));
    const set = revision();
    server.run(on.get("k"));
    server.run(on.set("other", "w"));
    expect(revision()).toBe(set);
    server.run(append("k", "x"));
    expect(revision()).toBeGreaterThan(set);
    server.advance(1_000);
    expect(revision()).toBe(0);
    server.tick();
    expect(revision()).toBe(0);
    server.run(on.grant("a", 100, { keys: { k: "" } }));
    expect(revision()).toBe(server.engine.state.revision);
    server.advance(100);
    expect(revision()).toBe(0);
    server.run(on.set("k", "v"));
    expect(revision()).toBeGreaterThan(0);
    server.run(on.FLUSH_DATABASE);
    expect(revision()).toBe(0);
  });
});
