import * as fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import { encodeReply } from "#src/resp/encoder.js";
import type { ScriptEngine } from "#src/lua/script-engine.js";
import { describeWith } from "../support/tools.js";
import { createEngine, evaluate, RealRedis, StoreHost } from "./support.js";

/** Random calls of the functions that are not Lua's own, on a real Redis and here. */

/** Calls compared in one exchange: each result becomes one text. */
const CALLS_PER_SCRIPT = 50;

const literal = (text: string): string =>
  `'${Array.from(text, (character) => `\\${String(character.charCodeAt(0)).padStart(3, "0")}`).join("")}'`;

const number = fc.oneof(
  fc.double({ noNaN: true, noDefaultInfinity: true }),
  fc.maxSafeInteger(),
  fc.integer(),
  fc.integer({ min: -20, max: 20 }),
  fc.constantFrom(0, 2 ** 31, 2 ** 31 - 1, -(2 ** 31), 2 ** 32, 2 ** 53, 2 ** 62, 1_700_000_000_000),
);
const numberText = number.map((value) => `(${Object.is(value, -0) ? "0" : String(value)})`);
const shortText = fc.string({
  unit: fc.constantFrom("a", "b", "c", "1", " ", "%", "-", "\u00ff", "\u0000"),
  maxLength: 12,
});
const digits = fc.stringMatching(/^ ?[-+]?(0x)?[0-9a-fA-F]{1,18} ?$/);

const integerSpecification = fc
  .tuple(
    fc.stringMatching(/^[-+ #0]{0,3}$/),
    fc.stringMatching(/^(\d{0,2})$/),
    fc.stringMatching(/^(\.\d{0,2})?$/),
    fc.constantFrom("d", "i", "x", "X", "u", "o"),
  )
  .map(([flags, width, precision, conversion]) => `%${flags}${width}${precision}${conversion}`);

const patternItem = fc
  .tuple(
    fc.constantFrom("a", "b", ".", "%a", "%d", "[abc]", "[^a]", "[a-c1]", "%s", "%%", "()", "(a)", "(.)"),
    fc.constantFrom("", "", "*", "+", "-", "?"),
  )
  .map(([item, quantifier]) => (item.startsWith("(") ? item : item + quantifier));
const pattern = fc
  .tuple(fc.constantFrom("", "^"), fc.array(patternItem, { minLength: 1, maxLength: 4 }), fc.constantFrom("", "$"))
  .map(([start, items, end]) => start + items.join("") + end);

const jsonKey = fc.stringMatching(/^[a-z0-9]{0,6}$/);
const jsonValue = fc.letrec((tie) => ({
  value: fc.oneof(
    { depthSize: "small" },
    fc.constantFrom(null, true, false, 0, 1, -1.5, 1e20),
    fc.double({ noNaN: true, noDefaultInfinity: true }),
    fc.string({ unit: "grapheme", maxLength: 8 }),
    fc.array(tie("value"), { maxLength: 4 }),
    fc.dictionary(jsonKey, tie("value"), { maxKeys: 5 }),
  ),
})).value;
/** As bytes of UTF-8, or with every character above ASCII escaped. */
const jsonText = fc.tuple(jsonValue, fc.boolean()).map(([value, isEscaped]) => {
  const text = JSON.stringify(value);
  // oxlint-disable-next-line no-control-regex -- everything that is not ASCII
  const escaped = text.replace(/[^\x00-\x7f]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);
  return isEscaped ? escaped : Buffer.from(text, "utf8").toString("latin1");
});

const call: fc.Arbitrary<string> = fc.oneof(
  fc.tuple(integerSpecification, numberText).map(([form, value]) => `string.format('${form}', ${value})`),
  fc
    .tuple(integerSpecification, integerSpecification, numberText, numberText)
    .map(([one, two, a, b]) => `string.format('${one}|%s|${two}', ${a}, 'x', ${b})`),
  fc.tuple(shortText, numberText, numberText).map(([text, from, to]) => `string.sub(${literal(text)}, ${from}, ${to})`),
  fc.tuple(shortText, numberText).map(([text, at]) => `string.byte(${literal(text)}, ${at})`),
  fc.tuple(shortText, fc.integer({ min: -3, max: 9 })).map(([text, count]) => `string.rep(${literal(text)}, ${count})`),
  fc
    .tuple(shortText, pattern, numberText)
    .map(([text, form, init]) => `string.find(${literal(text)}, ${literal(form)}, ${init})`),
  fc.tuple(shortText, pattern).map(([text, form]) => `string.match(${literal(text)}, ${literal(form)})`),
  fc.tuple(shortText, pattern).map(([text, form]) => `string.gsub(${literal(text)}, ${literal(form)}, '<%0>')`),
  fc.tuple(shortText, pattern).map(([text, form]) => `string.gsub(${literal(text)}, ${literal(form)}, string.upper)`),
  fc.tuple(digits, fc.integer({ min: 2, max: 36 })).map(([text, base]) => `tonumber(${literal(text)}, ${base})`),
  digits.map((text) => `tonumber(${literal(text)})`),
  fc
    .tuple(fc.constantFrom("band", "bor", "bxor", "lshift", "rshift", "arshift", "rol", "ror"), numberText, numberText)
    .map(([name, a, b]) => `bit.${name}(${a}, ${b})`),
  fc.tuple(fc.constantFrom("tobit", "bnot", "bswap", "tohex"), numberText).map(([name, a]) => `bit.${name}(${a})`),
  fc.tuple(numberText, fc.integer({ min: -10, max: 10 })).map(([value, count]) => `bit.tohex(${value}, ${count})`),
  numberText.map((value) => `redis.call('echo', ${value})`),
  fc
    .tuple(fc.integer(), fc.integer({ min: 1, max: 2 ** 30 }))
    .map(([seed, upper]) => `(function() math.randomseed(${seed}) return math.random(${upper}), math.random() end)()`),
  jsonText.map((text) => `cjson.encode(cjson.decode(${literal(text)}))`),
  jsonText.map(
    (text) => `(function(t) return type(t) == 'table' and #t or type(t) end)(cjson.decode(${literal(text)}))`,
  ),
  shortText.map((text) => `redis.sha1hex(${literal(text)})`),
  shortText.map((text) => `redis.error_reply(${literal(text)}).err`),
);

/** Every result of every call, or its error, as one text each. */
const asScript = (calls: readonly string[]): string => `
  local shown = {}
  local function show(...)
    local parts = {}
    for at = 1, select('#', ...) do parts[at] = tostring((select(at, ...))) end
    shown[#shown+1] = table.concat(parts, ' ')
  end
  ${calls.map((expression) => `show(pcall(function() return ${expression} end))`).join("\n  ")}
  return shown`;

describeWith(["redis-server"], "random calls give the same as on a real Redis", () => {
  let redis: RealRedis;
  let engine: ScriptEngine;

  beforeAll(async () => {
    redis = await RealRedis.start();
    engine = await createEngine();
  });

  afterAll(() => redis.stop());

  test("in batches", async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(call, { minLength: 1, maxLength: CALLS_PER_SCRIPT }), async (calls) => {
        const script = asScript(calls);
        const theirs = await redis.exchange("EVAL", script, "0");
        expect(encodeReply(evaluate(engine, script, { host: new StoreHost() }), 2)).toBe(theirs);
      }),
      { numRuns: 300 },
    );
  });
});
