import { beforeAll, describe, expect, test } from "vitest";
import { ErrorReply } from "#src/engine/reply.js";
import type { ScriptEngine } from "#src/lua/script-engine.js";
import { createEngine, evaluate, MEBIBYTE } from "./support.js";

let engine: ScriptEngine;
beforeAll(async () => {
  engine = await createEngine();
});

/** What a later script sees must be this, whatever an earlier one did. */
const PROBE = `
  local seen = {}
  local function see(name, value) seen[#seen+1] = name .. '=' .. tostring(value) end
  for _, library in ipairs({'string', 'table', 'math', 'coroutine', 'redis', 'bit', 'os', 'cjson'}) do
    local names, raw = {}, 0
    for name, value in pairs(_G[library]) do names[#names+1] = tostring(name) .. ':' .. type(value) end
    table.sort(names)
    see(library, table.concat(names, ','))
    see(library .. ' metatable', getmetatable(_G[library]))
    see(library .. ' length', #_G[library])
  end
  local globals = {}
  for name, value in pairs(_G) do globals[#globals+1] = tostring(name) .. ':' .. type(value) end
  table.sort(globals)
  see('globals', table.concat(globals, ','))
  see('works', string.format('%d %s', 7, ('x'):rep(3)) .. math.floor(2.5) .. table.concat({1, 2}, '-'))
  see('method', ('abc'):upper())
  see('random', math.random(1, 1))
  see('resp', redis.call('get', 'nothing'))
  see('metatable of strings', rawget(getmetatable(''), '__index') == string)
  see('keys', #KEYS)
  see('argv', #ARGV)
  see('collector', collectgarbage('setpause', 200) .. ' ' .. collectgarbage('setstepmul', 200))
  return seen
`;

const host = { call: () => null };

describe("no script changes what the next one sees:", () => {
  const ATTEMPTS: Record<string, string> = {
    "a global": "leak = 1",
    "a global through _G": "_G.leak = 1",
    "a global through rawset": "rawset(_G, 'leak', 1)",
    "a global function": "function leak() end",
    "a function of a library": "string.format = function() return 'mine' end",
    "a new function of a library": "string.leak = 1",
    "a library through rawset": "rawset(string, 'format', 1)",
    "a library through table.insert": "table.insert(string, 'leak')",
    "the globals through table.insert": "table.insert(_G, 'leak')",
    "redis through table.insert": "table.insert(redis, 1, 'leak')",
    "a library through table.sort": "table.insert(math, 2) table.insert(math, 1) table.sort(math)",
    "a library through table.setn": "pcall(table.setn, string, 5)",
    "a library through what pairs gives": "local f, t = pairs(string) t.format = 1",
    "a library through next": "local k = next(string) string[k] = nil",
    "a library through foreach": "table.foreach(string, function(k) string[k] = nil end)",
    "a library through its metatable": "local m = getmetatable(string) if m then m.__index = {} end",
    "a new metatable of a library": "setmetatable(string, {__index = function() return 'mine' end})",
    "a new metatable of the globals": "setmetatable(_G, {})",
    "the metatable of the globals": "getmetatable(_G).__index = nil",
    "the metatable of the globals, raw": "rawset(getmetatable(_G), '__index', nil)",
    "the metatable of strings": "getmetatable('').__index = function() return 'mine' end",
    "the metatable of strings, raw": "rawset(getmetatable(''), '__index', nil)",
    "the metatable of strings through table.insert": "table.insert(getmetatable(''), 1)",
    "a library as a metatable":
      "setmetatable({}, string).x = 1 local t = setmetatable({}, {__newindex = string}) t.format = 1",
    "a library behind a metatable":
      "local t = setmetatable({}, {__newindex = function(t, k, v) string[k] = v end}) t.format = 1",
    "the collector": "collectgarbage('stop')",
    "the pace of the collector": "collectgarbage('setpause', 1) collectgarbage('setstepmul', 1)",
    "the protocol": "redis.setresp(3)",
    "a coroutine left behind": "coroutine.resume(coroutine.create(function() coroutine.yield() end))",
    "KEYS and ARGV": "KEYS[1] = 'leak' ARGV[7] = 'leak'",
    "an environment": "local f = loadstring('leak = 1') f()",
    "an error with a metatable":
      "error(setmetatable({}, {__index = function() leak = 1 end, __tostring = function() leak = 1 end}))",
    "a metatable that runs at the end":
      "return setmetatable({}, {__gc = function() leak = 1 end, __len = function() leak = 1 end})",
    "a stolen function": "local f = redis.call redis.call = nil redis = nil",
    "a time that is over": "while true do end",
    "memory that is full": "local t = {} while true do t[#t+1] = string.rep('x', 1e6) .. #t end",
  };

  test.each(Object.entries(ATTEMPTS))("%s", async (_, attempt) => {
    const fresh = await createEngine({ memoryBytesMax: 20 * MEBIBYTE });
    const before = evaluate(fresh, PROBE, { host });
    expect(before).not.toBeInstanceOf(ErrorReply);
    for (let round = 0; round < 2; round++) {
      evaluate(fresh, attempt, { host, keys: ["k"], args: ["a"], timeLimitMs: 100 });
      evaluate(fresh, `return pcall(loadstring(${JSON.stringify(attempt)}))`, { host, timeLimitMs: 100 });
      expect(evaluate(fresh, PROBE, { host })).toEqual(before);
    }
  });

  test("draws of math.random go on, but a seed does not stay", () => {
    const draw = "return {math.random(1e9), math.random(1e9)}";
    const first = evaluate(engine, draw);
    expect(evaluate(engine, draw)).not.toEqual(first);
    const seeded = "math.randomseed(5) return {math.random(1e9), math.random(1e9)}";
    const drawn = evaluate(engine, seeded);
    expect(evaluate(engine, draw)).not.toEqual(drawn);
    expect(evaluate(engine, seeded)).toEqual(drawn);
  });

  test("the same seed of the engine gives the same draws", async () => {
    const draws = async (randomSeed: number): Promise<unknown> =>
      evaluate(await createEngine({ randomSeed }), "return {math.random(1e9), math.random(1e9)}");
    expect(await draws(7)).toEqual(await draws(7));
    expect(await draws(7)).not.toEqual(await draws(8));
  });
});

describe("there is no way out:", () => {
  const ABSENT = [
    "io",
    "package",
    "debug",
    "require",
    "module",
    "dofile",
    "loadfile",
    "print",
    "getfenv",
    "setfenv",
    "newproxy",
    "arg",
    "jit",
    "ffi",
    "cmsgpack",
    "struct",
  ];
  test.each(ABSENT)("%s", (name) => {
    const reply = evaluate(engine, `return ${name}`);
    expect(reply).toBeInstanceOf(ErrorReply);
    expect((reply as ErrorReply).text).toMatch(
      /^ERR user_script:1: (Script attempted to access nonexistent global variable|This server has no library) '/,
    );
    expect(evaluate(engine, `return rawget(_G, '${name}') == nil`)).toBe(1);
  });

  test("libraries that Redis has are named as such", () => {
    const reply = evaluate(engine, "return cmsgpack.pack({})") as ErrorReply;
    expect(reply.text).toMatch(/^ERR user_script:1: This server has no library 'cmsgpack' for scripts script: /);
  });

  test("os has a clock only", () => {
    expect(evaluate(engine, "local n = {} for k in pairs(os) do n[#n+1] = k end return n")).toEqual(["clock"]);
    expect(evaluate(engine, "return os.time")).toBeNull();
  });

  test("the clock goes on while a script runs", () => {
    const script = "local start = os.clock() for i = 1, 1e5 do end return os.clock() > start";
    expect(evaluate(engine, script)).toBe(1);
  });

  test("bytecode is not loaded, by any door", () => {
    const dump = "local code = string.dump(function() return 'ran' end)";
    expect(evaluate(engine, `${dump} return type(loadstring(code))`)).toBe("nil");
    expect(evaluate(engine, `${dump} return type(loadstring(code, '=name'))`)).toBe("nil");
    expect(
      evaluate(
        engine,
        `${dump} local given return type(load(function() if not given then given = true return code end end))`,
      ),
    ).toBe("nil");
    const bytewise = `${dump} local at = 0 return type(load(function() at = at + 1 return code:sub(at, at) end))`;
    expect(evaluate(engine, bytewise)).toBe("nil");
    const compiled = engine.compile("\u001bLuaQ\u0000\u0001\u0004\u0004\u0004\u0008\u0000");
    expect(compiled).toBeInstanceOf(ErrorReply);
    expect((compiled as ErrorReply).text).toMatch(/^ERR Error compiling script \(new function\): user_script:1: /);
  });

  test("the number of levels that error reports is that of the script", () => {
    for (let level = 0; level < 8; level++) {
      const reply = evaluate(engine, `error('x', ${level})`) as ErrorReply;
      expect(reply.text).toMatch(/^ERR (user_script:1: )?x script: /);
    }
  });
});
