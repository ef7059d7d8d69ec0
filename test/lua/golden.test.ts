import { afterAll, beforeAll, expect, test } from "vitest";
import { encodeReply } from "#src/resp/encoder.js";
import type { ScriptEngine } from "#src/lua/script-engine.js";
import { describeWith } from "../support/tools.js";
import { ARGUMENTS, KEYS, SCRIPTS } from "./golden-scripts.js";
import { createEngine, evaluate, RealRedis, StoreHost } from "./support.js";

/**
 * The same scripts on a real Redis and on the script engine: the bytes of the reply must be the same, in both versions of the
 * protocol. What is known to differ, and so is in no script here:
 *
 *   - cmsgpack and struct are not there; cjson without the functions that change its settings; os.clock is there, Redis 7.0 has no os
 *   - a seed of math.randomseed is for one run; where Redis's draws stand depends on all scripts before
 *   - a run ends at its time limit, at the limits of memory, reply and arguments; Redis's goes on until SCRIPT KILL
 *   - an error table without `err` is "ERR unknown error"; Redis 7.0.15 crashes
 *   - tonumber('0x') is 0, addresses look different (`tostring({})`, `tostring(cjson.null)`): musl against glibc
 *   - pcall() without a function is an error; table.insert into a library writes where only this run sees it
 */

describeWith(["redis-server"], "scripts answer as on a real Redis", () => {
  let redis: RealRedis;
  let engine: ScriptEngine;

  beforeAll(async () => {
    redis = await RealRedis.start();
    engine = await createEngine();
  });

  afterAll(() => redis.stop());

  for (const protocol of [2, 3] as const) {
    test(`in RESP${protocol}: ${SCRIPTS.length} scripts`, async () => {
      await redis.exchange("HELLO", String(protocol));
      const differing: { script: string; redis: string; ours: string }[] = [];
      for (const script of SCRIPTS) {
        await redis.exchange("FLUSHALL");
        const theirs = await redis.exchange("EVAL", script, String(KEYS.length), ...KEYS, ...ARGUMENTS);
        const reply = evaluate(engine, script, { keys: KEYS, args: ARGUMENTS, host: new StoreHost() });
        const ours = encodeReply(reply, protocol);
        if (ours !== theirs) differing.push({ script, redis: theirs, ours });
      }
      expect(differing).toEqual([]);
    });
  }
});
