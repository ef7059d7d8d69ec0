import { expect, test } from "vitest";
import { ErrorReply } from "#src/engine/reply.js";
import { createEngine, StoreHost } from "./support.js";

/** A hundred thousand runs leave the VM as they found it: the memory of the module does not grow, nor does what Lua counts. */
test("100,000 runs do not grow the VM", async () => {
  const engine = await createEngine();
  const host = new StoreHost();
  const scripts = [
    "redis.call('set', KEYS[1], ARGV[1]) if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0",
    "return {redis.pcall('nosuch').err, {1, {2, {ok = 'x'}}}, ARGV[1] .. ARGV[2]}",
    "local ok, e = pcall(error, {err = 'A b'}) error(e .. ARGV[2])",
    "local t = {} for i = 1, 10 do t[i] = string.format('%d %s', i, ARGV[2]) end return table.concat(t, ',')",
  ].map((source) => {
    const compiled = engine.compile(source);
    if (compiled instanceof ErrorReply) throw new Error(compiled.text);
    return compiled.sha;
  });
  const counted = engine.compile("collectgarbage() return math.floor(collectgarbage('count'))");
  if (counted instanceof ErrorReply) throw new Error(counted.text);
  let run = 0;
  const runOne = (sha: string) =>
    engine.run({
      sha,
      keys: [`key ${run % 100}`],
      args: [`value ${run}`, String(run)],
      readOnly: false,
      host,
      nowMs: () => 0,
      timeLimitMs: 1000,
    });
  const kibibytesAfter = (runs: number): number => {
    for (const end = run + runs; run < end; run++) runOne(scripts[run % scripts.length] as string);
    return runOne(counted.sha) as number;
  };
  const first = kibibytesAfter(10_000);
  const memoryBytes = engine.memoryBytes;
  const last = kibibytesAfter(90_000);
  expect(engine.memoryBytes).toBe(memoryBytes);
  expect(last).toBeLessThanOrEqual(first + 4);
});
