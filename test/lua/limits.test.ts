import { afterEach, beforeAll, describe, expect, test } from "vitest";
import { ErrorReply, type Reply } from "#src/engine/reply.js";
import type { ScriptEngine, ScriptHost } from "#src/lua/script-engine.js";
import { createEngine, evaluate, MEBIBYTE, noCommands, type EvalOptions } from "./support.js";

/**
 * Nothing that a script does ends the server, runs for ever, or is felt by the next script. After each of these the same engine
 * must run an ordinary script.
 */

let engine: ScriptEngine;
beforeAll(async () => {
  engine = await createEngine();
});

afterEach(() => {
  expect(evaluate(engine, "return {KEYS[1],1+1,('x'):rep(3)}", { keys: ["k"] })).toEqual(["k", 2, "xxx"]);
});

const textOf = (reply: Reply): string => {
  expect(reply).toBeInstanceOf(ErrorReply);
  return (reply as ErrorReply).text;
};

const errorOf = (source: string, options: EvalOptions = {}): string => textOf(evaluate(engine, source, options));

/**
 * A clock on which every look costs a millisecond: runs end after the same number of looks on every machine. What is cut off by the
 * watchdog is cut off by real time.
 */
const steppingClock = (): (() => number) => {
  let nowMs = 0;
  return () => ++nowMs;
};

function endless(source: string): Reply {
  const compiled = engine.compile(source);
  if (compiled instanceof ErrorReply) return compiled;
  const host: ScriptHost = { call: (argv) => argv.length };
  return engine.run({
    sha: compiled.sha,
    keys: [],
    args: [],
    readOnly: false,
    host,
    nowMs: steppingClock(),
    timeLimitMs: 200,
  });
}

describe("the time limit ends", () => {
  const LOOPS: Record<string, string> = {
    "a loop": "while true do end",
    "a loop of several lines": "local n = 0\nwhile true do\nn = n + 1\nend",
    "a loop around pcall": "while true do pcall(function() while true do end end) end",
    "pcall of itself": "local function f() while true do pcall(f) end end f()",
    "a loop around xpcall, whose handler loops too":
      "while true do xpcall(function() while true do end end, function() while true do end end) end",
    "a loop around a coroutine":
      "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
    "a coroutine that goes on yielding":
      "local c = coroutine.wrap(function() while true do coroutine.yield() end end) while true do c() end",
    "a loop in a coroutine in a pcall": "pcall(coroutine.wrap(function() while true do end end)) while true do end",
    "a comparison function":
      "local t = {} for i = 1, 1e5 do t[i] = i end while true do table.sort(t, function(a, b) return a < b end) end",
    "sorting without one": "local t = {} for i = 1, 1e5 do t[i] = i % 100 end while true do table.sort(t) end",
    "a replacement function": "while true do string.gsub(string.rep('a', 100), 'a', function() end) end",
    "a tail call": "local function f() return f() end return f()",
    "a chain of metatables":
      "local t = setmetatable({}, {__index = function(t, k) return k end}) while true do local x = t.x end",
    "calls of redis.call": "while true do redis.call('x') end",
    "calls of redis.pcall": "while true do redis.pcall('x') end",
    "garbage collections": "local t = {} for i = 1, 1e4 do t[i] = {} end while true do collectgarbage() end",
    "loading of chunks": "while true do loadstring('return 1') end",
    "a reader function without end": "load(function() return 'a = 1 ' end)",
    "slow instructions": "local s = string.rep('abc', 1e4) while true do local t = s:upper() end",
  };
  test.each(Object.entries(LOOPS))("%s", (_, source) => {
    expect(textOf(endless(source))).toMatch(/^ERR Script killed: it ran for longer than 200 milliseconds\. script: /);
  });

  test("a run that catches the error and returns: the client is told", () => {
    const text = textOf(endless("local ok = pcall(function() while true do end end) return 'well'"));
    expect(text).toMatch(/^ERR Script killed: .* script: [0-9a-f]{40}/);
  });

  test("only the run that took too long: the next has its whole time", () => {
    expect(textOf(endless("while true do end"))).toContain("Script killed");
    expect(endless("for i = 1, 1000 do end return 'done'")).toBe("done");
  });

  test("with the position where it was", () => {
    expect(textOf(endless("local n = 0\n\nwhile true do end"))).toMatch(/ on @user_script:3\.$/);
  });

  test("and never, when it is infinite", () => {
    const reply = evaluate(engine, "for i = 1, 1e5 do end return string.find(string.rep('a', 150), 'a-a-a-b')", {
      timeLimitMs: Number.POSITIVE_INFINITY,
    });
    expect(reply).toBeNull();
  });
});

describe("the watchdog ends", () => {
  const BOMBS: Record<string, string> = {
    find: "return string.find(string.rep('a', 30000), '.-.-.-.-b')",
    match: "return string.match(string.rep('a', 30000), '.-.-.-.-b')",
    "a method call": "return (string.rep('a', 30000)):find('.-.-.-.-b')",
    "gsub with a text": "return string.gsub(string.rep('a', 30000), '.-.-.-b', 'x')",
    "gsub with a function": "return string.gsub(string.rep('a', 30000), '.-.-.-b', function() redis.call('x') end)",
    "gsub with a table": "return string.gsub(string.rep('a', 30000), '.-.-.-b', {})",
    gmatch: "for w in string.gmatch(string.rep('a', 30000), 'a-.-.-b') do end",
    "a short subject with many quantifiers": "return string.find(string.rep('a', 60), string.rep('a-', 40) .. 'b')",
    "a plain search": "local a = string.rep('a', 1e7) return string.find(a, string.rep('a', 5e6) .. 'b', 1, true)",
    "inside pcall": "while true do pcall(string.find, string.rep('a', 30000), '.-.-.-.-b') end",
  };
  test.each(Object.entries(BOMBS))("%s", (_, source) => {
    const text = errorOf(source, { timeLimitMs: 50 });
    expect(text).toMatch(/^ERR Script killed: it ran for longer than 50 milliseconds\. script: [0-9a-f]{40}/);
  });

  test("no search that comes to its end", () => {
    const lines = "local s = string.rep('ab,', 5000)";
    expect(evaluate(engine, `${lines} return {string.find(s, '(b,)$')}`)).toEqual([14_999, 15_000, "b,"]);
    expect(evaluate(engine, `${lines} return #string.gsub(s, '[^,]+', 'x')`)).toBe(10_000);
    expect(evaluate(engine, `${lines} return {#string.gsub(s, '[^,]+', string.upper, 2)}`)).toEqual([15_000]);
    const count = `${lines} local n = 0 for w in string.gmatch(s, '[^,]+') do n = n + 1 end return n`;
    expect(evaluate(engine, count)).toBe(5000);
  });

  test("and lets a replacement function call commands", () => {
    const calls: string[] = [];
    const host: ScriptHost = {
      call: ([, key = ""]) => {
        calls.push(key);
        return 1;
      },
    };
    const source = "return #string.gsub(string.rep('ab,', 5000), '[^,]+', function(w) redis.call('del', w) end)";
    expect(evaluate(engine, source, { host })).toBe(15_000);
    expect(calls).toHaveLength(5000);
  });

  test("no pattern error", () => {
    expect(errorOf("string.gsub(string.rep('ab,', 90000), '[^,', function() end)")).toMatch(
      /^ERR user_script:1: malformed pattern \(missing '\]'\) script: /,
    );
    expect(errorOf("for w in string.gmatch(string.rep('a', 90000), '.-.-(') do end")).toContain("unfinished capture");
  });
});

describe("the memory limit ends", () => {
  const HUNGRY: Record<string, string> = {
    "a string that doubles": "local s = 'x' while true do s = s .. s end",
    "string.rep": "return string.rep('x', 2^30)",
    "string.rep, caught": "local ok, e = pcall(string.rep, 'x', 2^30) error(e, 0)",
    "a table": "local t = {} while true do t[#t+1] = #t end",
    "a table of strings": "local t = {} for i = 1, 1e8 do t[i] = 'key' .. i end",
    "table.concat": "local t = {} for i = 1, 1e5 do t[i] = string.rep('x', 1000) end return table.concat(t)",
    "nested tables": "local t = {} while true do t = {t, t, t, t} end",
    closures: "local t = {} while true do local n = #t t[n+1] = function() return n end end",
    coroutines: "local t = {} while true do t[#t+1] = coroutine.create(function() end) end",
  };
  test.each(Object.entries(HUNGRY))("%s", async (_, source) => {
    const small = await createEngine({ memoryBytesMax: 20 * MEBIBYTE });
    const text = textOf(evaluate(small, source));
    expect(text).toMatch(/^OOM not enough memory for the script: .* script: [0-9a-f]{40}$/);
    expect(small.memoryBytes).toBe(16 * MEBIBYTE);
    expect(evaluate(small, "return 'well'")).toBe("well");
  });

  test("but a script may catch it and go on", () => {
    const source = "local ok, e = pcall(string.rep, 'x', 2^30) return {tostring(ok), e, #string.rep('x', 1000)}";
    expect(evaluate(engine, source)).toEqual(["false", "not enough memory", 1000]);
  });

  test("arguments that do not fit", async () => {
    const small = await createEngine({ memoryBytesMax: 20 * MEBIBYTE });
    const args = Array.from({ length: 40 }, (_, at) => String(at).padEnd(MEBIBYTE, "x"));
    expect(textOf(evaluate(small, "return #ARGV", { args }))).toMatch(/^OOM not enough memory for the script/);
    expect(evaluate(small, "return #ARGV", { args: ["a"] })).toBe(1);
  });

  test("a reply of a command that does not fit", async () => {
    const small = await createEngine({ memoryBytesMax: 20 * MEBIBYTE });
    const host: ScriptHost = { call: () => "x".repeat(30 * MEBIBYTE) };
    expect(textOf(evaluate(small, "return #redis.call('get','k')", { host }))).toMatch(/^OOM not enough memory/);
    expect(evaluate(small, "return 1")).toBe(1);
  });

  test("a script too large to compile", async () => {
    const small = await createEngine({ memoryBytesMax: 20 * MEBIBYTE, sourceBytesMax: 100 * MEBIBYTE });
    const source = `return {${"'0123456789',".repeat(1_500_000)}}`;
    expect(textOf(evaluate(small, source))).toMatch(/^OOM not enough memory for the script/);
    expect(evaluate(small, "return 1")).toBe(1);
  });

  test("no script whose code alone takes more than a VM may keep", async () => {
    const large = await createEngine({ memoryBytesMax: 256 * MEBIBYTE });
    const source = `local t = {${"'0123456789',".repeat(500_000)}} return {#t, #ARGV}`;
    for (let round = 0; round < 2; round++) {
      expect(evaluate(large, source, { args: ["a"] })).toEqual([500_000, 1]);
      expect(evaluate(large, "return 'well'")).toBe("well");
    }
  });

  test("memory that one run needed is given back", async () => {
    const large = await createEngine({ memoryBytesMax: 256 * MEBIBYTE });
    expect(evaluate(large, "return #string.rep('x', 2e7)")).toBe(20_000_000);
    expect(large.memoryBytes).toBe(16 * MEBIBYTE);
  });

  test("limits too small to begin with are refused", async () => {
    await expect(createEngine({ memoryBytesMax: MEBIBYTE })).rejects.toThrow(RangeError);
  });
});

describe("recursion ends with an error", () => {
  const DEEP: Record<string, [source: string, error: RegExp]> = {
    functions: ["local function f(n) return 1 + f(n+1) end return f(1)", /stack overflow/],
    metamethods: [
      "local m = {} m.__add = function(a, b) return a + b end return setmetatable({}, m) + 1",
      /C stack overflow/,
    ],
    "replacement functions": [
      "local function f() return (string.gsub('a', 'a', function() return f() end)) end return f()",
      /C stack overflow/,
    ],
    "comparison functions": [
      "local function f() table.sort({2, 1}, function(a, b) f() return a < b end) end f()",
      /C stack overflow/,
    ],
    coroutines: [
      "local function f() return coroutine.wrap(function() return f() end)() end return f()",
      /stack overflow|broke the interpreter/,
    ],
    patterns: [
      "return string.find(string.rep('a', 300000), string.rep('a?', 300000))",
      /broke the interpreter|Script killed/,
    ],
  };
  test.each(Object.entries(DEEP))("of %s", (_, [source, error]) => {
    expect(errorOf(source)).toMatch(error);
  });

  test("of pcall", () => {
    const reply = evaluate(engine, "local function f() return pcall(f) end local t = {f()} return #t");
    expect(reply).toBeGreaterThan(100);
  });

  test("of the compiler", () => {
    expect(errorOf(`return ${"(".repeat(100_000)}`)).toMatch(/^ERR Error compiling script .*(levels|overflow|limit)/);
    expect(evaluate(engine, `return {loadstring("return " .. string.rep("(", 1e6))}`)).toEqual([]);
  });
});

describe("sizes have their limits:", () => {
  test("tables that hold themselves", () => {
    let reply = evaluate(engine, "local t = {} t[1] = t return t");
    let depth = 0;
    while (Array.isArray(reply)) {
      reply = (reply as Reply[])[0] as Reply;
      depth += 1;
    }
    expect(textOf(reply)).toBe("ERR reached lua stack limit");
    expect(depth).toBe(1000);
  });

  test("tables that hold themselves twice", () => {
    expect(errorOf("local t = {} t[1] = t t[2] = t return t")).toMatch(/^ERR the script's reply has more than/);
  });

  test("one long string many times in a reply", () => {
    const source = "local s = string.rep('x', 1e6) local t = {} for i = 1, 200 do t[i] = s end return t";
    expect(errorOf(source)).toMatch(/^ERR the script's reply has more than/);
  });

  test("one long string many times in a command", () => {
    const source =
      "local s = string.rep('x', 1e6) local t = {} for i = 1, 7000 do t[i] = s end return redis.call(unpack(t))";
    expect(errorOf(source)).toMatch(/^ERR the arguments of a call may be 67108864 bytes long in all script: /);
  });

  test("thousands of arguments", () => {
    const host: ScriptHost = { call: (argv) => argv.length };
    const call = (count: number): Reply =>
      evaluate(engine, `local t = {} for i = 1, ${count} do t[i] = i end return redis.call(unpack(t))`, { host });
    expect(call(7000)).toBe(7000);
    expect(textOf(call(9000))).toContain("too many results to unpack");
    const keys = Array.from({ length: 20_000 }, (_, at) => `key ${at}`);
    expect(evaluate(engine, "return {#KEYS, KEYS[20000], #ARGV}", { keys, args: keys })).toEqual([
      20_000,
      "key 19999",
      20_000,
    ]);
  });

  test("a reply nested deeper than Lua's stack", () => {
    let nested: Reply = 1;
    for (let depth = 0; depth < 3000; depth++) nested = [nested];
    const host: ScriptHost = { call: () => nested };
    expect(errorOf("return redis.call('x')", { host })).toContain("nested too deeply");
  });
});

describe("what the host throws", () => {
  test("comes out of run, and the engine goes on", () => {
    const failure = new Error("a bug in the server");
    const host: ScriptHost = {
      call: () => {
        throw failure;
      },
    };
    expect(() => evaluate(engine, "return redis.call('x')", { host })).toThrow(failure);
    expect(() => evaluate(engine, "return {pcall(redis.call, 'x')}", { host })).toThrow(failure);
    const inCoroutine = "return coroutine.wrap(function() return redis.call('x') end)()";
    expect(() => evaluate(engine, inCoroutine, { host })).toThrow(failure);
  });

  test("may not be a run of its own", () => {
    const host: ScriptHost = { call: () => evaluate(engine, "return 1", { host: noCommands }) };
    expect(() => evaluate(engine, "return redis.call('eval')", { host })).toThrow(/while one runs/);
  });
});
