import { createHash } from "node:crypto";
import { beforeEach, describe, expect, test } from "vitest";
import { ErrorReply, OK, type Reply } from "#src/engine/reply.js";
import { NO_SCRIPT, type LoadedScript, type LogLevel, type ScriptEngine } from "#src/lua/script-engine.js";
import { createEngine, evaluate, MEBIBYTE, noCommands, StoreHost, type EvalOptions } from "./support.js";

let engine: ScriptEngine;
beforeEach(async () => {
  engine = await createEngine();
});

function load(source: string, isPinned = false, into = engine): LoadedScript {
  const loaded = into.compile(source, isPinned);
  if (loaded instanceof ErrorReply) throw new Error(loaded.text);
  return loaded;
}

function runSha(sha: string, options: EvalOptions = {}): Reply {
  return engine.run({
    sha,
    keys: options.keys ?? [],
    args: options.args ?? [],
    readOnly: options.readOnly ?? false,
    host: options.host ?? noCommands,
    nowMs: () => 0,
    timeLimitMs: 1000,
  });
}

describe("scripts are kept", () => {
  test("under the SHA-1 of their bytes", () => {
    const source = "return '\u00ff\u0001'";
    const sha = createHash("sha1").update(Buffer.from(source, "latin1")).digest("hex");
    expect(load(source)).toEqual({ sha, isNew: true, evicted: [] });
    expect(load(source)).toEqual({ sha, isNew: false, evicted: [] });
    expect(engine.has(sha)).toBe(true);
    expect(engine.source(sha)).toBe(source);
    expect([...engine.shas()]).toEqual([sha]);
    expect(runSha(sha)).toBe("\u00ff\u0001");
  });

  test("until they are flushed", () => {
    const { sha } = load("return 1", true);
    engine.flush();
    expect(engine.has(sha)).toBe(false);
    expect(engine.source(sha)).toBeUndefined();
    expect(engine.scriptCount).toBe(0);
    expect(runSha(sha)).toBe(NO_SCRIPT);
    expect(load("return 1").isNew).toBe(true);
    expect(runSha(sha)).toBe(1);
  });

  test("not when they do not compile", () => {
    const failed = engine.compile("return (");
    expect(failed).toEqual(
      new ErrorReply("ERR Error compiling script (new function): user_script:1: unexpected symbol near '<eof>'"),
    );
    expect(engine.scriptCount).toBe(0);
  });

  test("unknown ones are NOSCRIPT", () => {
    expect(runSha("0".repeat(40))).toEqual(new ErrorReply("NOSCRIPT No matching script. Please use EVAL."));
  });

  test("over a replaced VM", () => {
    const { sha } = load("return KEYS[1]");
    evaluate(engine, "return string.rep('x', 2^30)");
    expect(engine.has(sha)).toBe(true);
    expect(runSha(sha, { keys: ["k"] })).toBe("k");
  });
});

describe("the number of kept scripts is bounded:", () => {
  test("the one not used for longest goes first", async () => {
    engine = await createEngine({ scriptsMax: 3 });
    const [first, second, third] = ["return 1", "return 2", "return 3"].map((source) => load(source).sha);
    runSha(first as string);
    expect(load("return 4").evicted).toEqual([second]);
    expect(load("return 5").evicted).toEqual([third]);
    expect(runSha(first as string)).toBe(1);
    expect(runSha(second as string)).toBe(NO_SCRIPT);
    expect(engine.scriptCount).toBe(3);
  });

  test("pinned ones stay, and when only they are left no more are taken", async () => {
    engine = await createEngine({ scriptsMax: 2 });
    const pinned = load("return 1", true).sha;
    const other = load("return 2").sha;
    expect(load("return 3").evicted).toEqual([other]);
    load("return 3", true);
    const refused = engine.compile("return 4");
    expect(refused).toEqual(new ErrorReply("OOM the limit of kept scripts is reached; SCRIPT FLUSH makes room"));
    expect(runSha(pinned)).toBe(1);
    expect(engine.scriptCount).toBe(2);
  });

  test("by the bytes of their sources too", async () => {
    engine = await createEngine({ sourceBytesMax: 100 });
    const long = load(`return 1 -- ${"x".repeat(50)}`).sha;
    expect(load(`return 2 -- ${"y".repeat(50)}`).evicted).toEqual([long]);
    expect(engine.compile(`return 3 -- ${"z".repeat(100)}`)).toBeInstanceOf(ErrorReply);
  });

  test("what is evicted leaves the VM", async () => {
    engine = await createEngine({ scriptsMax: 10 });
    const used = (): number =>
      evaluate(engine, "collectgarbage() return math.floor(collectgarbage('count'))") as number;
    const churn = (): void => {
      for (let at = 0; at < 500; at++) load(`local t = {${"1,".repeat(500)}} return ${at}, ${Math.random()}`);
    };
    churn();
    const before = used();
    churn();
    expect(used()).toBeLessThan(before * 1.1);
    expect(engine.memoryBytes).toBe(16 * MEBIBYTE);
  });
});

describe("the first line of a script", () => {
  test("may say that it writes nothing: the host is told", () => {
    const seen: boolean[] = [];
    const host = {
      call: (_: readonly string[], readOnly: boolean) => {
        seen.push(readOnly);
        return OK;
      },
    };
    evaluate(engine, "#!lua flags=no-writes\nreturn redis.call('x')", { host });
    evaluate(engine, "#!lua\nreturn redis.call('x')", { host });
    evaluate(engine, "return redis.call('x')", { host });
    evaluate(engine, "return redis.call('x')", { host, readOnly: true });
    expect(seen).toEqual([true, false, false, true]);
  });

  test("that does not say so keeps it from EVAL_RO", () => {
    const refused = new ErrorReply("ERR Can not execute a script with write flag using *_ro command.");
    expect(evaluate(engine, "#!lua\nreturn 1", { readOnly: true })).toEqual(refused);
    expect(evaluate(engine, "#!lua flags=no-writes\nreturn 1", { readOnly: true })).toBe(1);
    expect(evaluate(engine, "return 1", { readOnly: true })).toBe(1);
  });

  test("counts as a line", () => {
    const reply = evaluate(engine, "#!lua flags=allow-stale\n\nerror('here')") as ErrorReply;
    expect(reply.text).toMatch(/^ERR user_script:3: here script: .* on @user_script:3\.$/);
  });
});

describe("what a script gets", () => {
  test("every byte of keys and arguments", () => {
    const bytes = Array.from({ length: 256 }, (_, code) => String.fromCharCode(code)).join("");
    const args = [bytes, "", bytes.repeat(100)];
    expect(evaluate(engine, "return {KEYS[1], ARGV, #ARGV[3]}", { keys: [bytes], args })).toEqual([
      bytes,
      args,
      25_600,
    ]);
  });

  test("the commands of its host, one after the other", () => {
    const host = new StoreHost();
    const script =
      "redis.call('set', KEYS[1], ARGV[1]) return {redis.call('get', KEYS[1]), redis.call('del', KEYS[1])}";
    expect(evaluate(engine, script, { keys: ["k"], args: ["v"], host })).toEqual(["v", 1]);
  });

  test("its version and that as a number", async () => {
    engine = await createEngine({ redisVersion: "7.2.4" });
    const reply = evaluate(engine, "return {redis.REDIS_VERSION, redis.REDIS_VERSION_NUM}");
    expect(reply).toEqual(["7.2.4", 0x070204]);
  });

  test("acl_check_cmd is answered by the host, or true", () => {
    const ask = "return redis.acl_check_cmd('get', 'k')";
    expect(evaluate(engine, ask)).toBe(1);
    const asked: (readonly string[])[] = [];
    const host = {
      ...noCommands,
      mayCall: (argv: readonly string[]) => {
        asked.push(argv);
        return false;
      },
    };
    expect(evaluate(engine, ask, { host })).toBeNull();
    expect(asked).toEqual([["get", "k"]]);
  });
});

describe("what is logged", () => {
  test("by a script, with its level", async () => {
    const lines: [LogLevel, string][] = [];
    engine = await createEngine({ log: (level, text) => lines.push([level, text]) });
    evaluate(engine, "redis.log(redis.LOG_WARNING, 'a', 1, {}, 'b\\0c') redis.log(redis.LOG_DEBUG, 'd')");
    expect(lines).toEqual([
      ["warning", "a 1 b\0c"],
      ["debug", "d"],
    ]);
  });

  test("when a VM had to be replaced", async () => {
    const lines: string[] = [];
    engine = await createEngine({ log: (level, text) => lines.push(`${level} ${text}`) });
    evaluate(engine, "table.insert(string, 1)");
    expect(lines).toHaveLength(1);
    expect(lines[0]).toMatch(/^notice script [0-9a-f]{40} left its VM unfit for others/);
    evaluate(engine, "string.format = 1");
    expect(lines).toHaveLength(1);
  });
});
