import * as fc from "fast-check";
import { beforeAll, describe, expect, test } from "vitest";
import {
  BigNumberReply,
  BooleanReply,
  doubleText,
  DoubleReply,
  ErrorReply,
  MapReply,
  NULL_ARRAY,
  NullArrayReply,
  PushReply,
  SetReply,
  StatusReply,
  VerbatimReply,
  type Reply,
} from "#src/engine/reply.js";
import type { ScriptEngine } from "#src/lua/script-engine.js";
import { createEngine, evaluate } from "./support.js";

/** Random values through Lua and back, against a model of the conversions that shares no code with them. */

let engine: ScriptEngine;
beforeAll(async () => {
  engine = await createEngine();
});

const bytes = (maxLength: number): fc.Arbitrary<string> =>
  fc.string({ unit: fc.integer({ min: 0, max: 255 }).map((code) => String.fromCharCode(code)), maxLength });
const word = fc.stringMatching(/^[a-zA-Z0-9]{1,8}$/);

const scalar: fc.Arbitrary<Reply> = fc.oneof(
  bytes(80),
  fc.maxSafeInteger(),
  fc.integer(),
  fc.constant(null),
  fc.constant(NULL_ARRAY),
  word.map((text) => new StatusReply(text)),
  fc.tuple(word, word).map(([code, text]) => new ErrorReply(`${code.toUpperCase()} ${text}`)),
  bytes(20).map((text) => new VerbatimReply(text)),
  fc.boolean().map((value) => new BooleanReply(value)),
  fc.double({ noNaN: true }).map((value) => new DoubleReply(value)),
  fc.bigInt().map((value) => new BigNumberReply(String(value))),
);

const nested: fc.Arbitrary<Reply> = fc.letrec<{ reply: Reply }>((tie) => ({
  reply: fc.oneof(
    { depthSize: "small", withCrossShrink: true },
    scalar,
    fc.array(tie("reply"), { maxLength: 5 }),
    fc.array(tie("reply"), { maxLength: 5 }).map((items) => new PushReply(items)),
    fc.uniqueArray(word, { maxLength: 1 }).map((items) => new SetReply(items)),
    fc.uniqueArray(fc.tuple(word, tie("reply")), { maxLength: 1 }).map((pairs) => new MapReply(pairs)),
  ),
})).reply;

/** What comes back when a script returns what it got, in RESP2. */
function throughLua2(reply: Reply): Reply {
  if (reply instanceof NullArrayReply) return null;
  if (reply instanceof VerbatimReply) return reply.text;
  if (reply instanceof BooleanReply) return reply.value ? 1 : 0;
  if (reply instanceof DoubleReply) return doubleText(reply.value);
  if (reply instanceof BigNumberReply) return reply.digits;
  if (reply instanceof PushReply) return reply.items.map(throughLua2);
  if (reply instanceof SetReply) return reply.items.map(throughLua2);
  if (reply instanceof MapReply) return reply.pairs.flat().map(throughLua2);
  if (Array.isArray(reply)) return (reply as Reply[]).map(throughLua2);
  return reply;
}

/** The same after `redis.setresp(3)`: null is nil there, and an array ends at the first one. */
function throughLua3(reply: Reply): Reply {
  if (reply instanceof NullArrayReply) return null;
  if (reply instanceof PushReply) return upToNull(reply.items);
  if (reply instanceof MapReply) {
    const pairs = reply.pairs.filter(([, value]) => value !== null && !(value instanceof NullArrayReply));
    return new MapReply(pairs.map(([key, value]) => [key, throughLua3(value)] as const));
  }
  if (Array.isArray(reply)) return upToNull(reply as Reply[]);
  return reply;
}

function upToNull(items: readonly Reply[]): Reply[] {
  const shown = items.map(throughLua3);
  const end = shown.indexOf(null);
  return end < 0 ? shown : shown.slice(0, end);
}

describe("a reply that a script returns as it got it", () => {
  test("in RESP2", () => {
    fc.assert(
      fc.property(nested, (reply) => {
        const got = evaluate(engine, "return redis.pcall('x')", { host: { call: () => reply } });
        expect(got).toEqual(throughLua2(reply));
      }),
      { numRuns: 500 },
    );
  });

  test("after setresp(3)", () => {
    fc.assert(
      fc.property(nested, (reply) => {
        const got = evaluate(engine, "redis.setresp(3) return redis.pcall('x')", { host: { call: () => reply } });
        expect(got).toEqual(throughLua3(reply));
      }),
      { numRuns: 500 },
    );
  });
});

describe("bytes", () => {
  test("of keys and arguments come back as they went in, and reach commands so", () => {
    const sizes = fc.oneof(
      bytes(60),
      bytes(5).map((text) => text.repeat(1000)),
    );
    fc.assert(
      fc.property(fc.array(sizes, { maxLength: 8 }), fc.array(sizes, { maxLength: 8 }), (keys, args) => {
        const called: (readonly string[])[] = [];
        const host = {
          call: (argv: readonly string[]) => {
            called.push(argv);
            return [...argv];
          },
        };
        const reply = evaluate(engine, "return {KEYS, ARGV, redis.call('x', unpack(ARGV))}", { keys, args, host });
        expect(reply).toEqual([keys, args, ["x", ...args]]);
        expect(called).toEqual([["x", ...args]]);
      }),
      { numRuns: 200 },
    );
  });

  test("of any length around the sizes that are copied in different ways", () => {
    for (const length of [0, 1, 7, 8, 9, 23, 24, 25, 4095, 4096, 4097, 100_000]) {
      const text = "\u0000\u00ffab".repeat(length).slice(0, length);
      expect(evaluate(engine, "return {#ARGV[1], ARGV[1]}", { args: [text] })).toEqual([length, text]);
    }
  });

  test("of a status or an error end at a zero byte, and stay on one line", () => {
    expect(evaluate(engine, "return {ok = 'a\\r\\nb\\0c'}")).toEqual(new StatusReply("a  b"));
    expect(evaluate(engine, "return {err = 'A\\r\\nb\\r\\n'}")).toEqual(new ErrorReply("A  b"));
  });
});

describe("numbers", () => {
  test("as arguments of commands read back as the same number", () => {
    const host = { call: ([, text = ""]: readonly string[]) => text };
    fc.assert(
      fc.property(fc.double({ noNaN: true, noDefaultInfinity: true }), (value) => {
        const source = `return redis.call('x', ${value < 0 ? "" : "0+"}tonumber(ARGV[1]))`.replace("0+", "");
        const text = evaluate(engine, source, { args: [doubleText(value)], host }) as string;
        expect(text).toBe(doubleText(value));
        expect(Number(text)).toBe(value);
      }),
      { numRuns: 300 },
    );
  });

  test("as replies are cut toward zero, and keep 64 bits", () => {
    fc.assert(
      fc.property(fc.double({ noNaN: true }), (value) => {
        const reply = evaluate(engine, "return tonumber(ARGV[1])", { args: [doubleText(value)] });
        const fits = value >= -(2 ** 63) && value < 2 ** 63;
        expect(BigInt(reply as number)).toBe(fits ? BigInt(Math.trunc(value)) : -(2n ** 63n));
        expect(typeof reply === "number" ? Number.isSafeInteger(reply) : true).toBe(true);
      }),
      { numRuns: 300 },
    );
  });

  test("a zero has no sign", () => {
    expect(Object.is(evaluate(engine, "return -0.5"), 0)).toBe(true);
  });
});
