import { expect, test } from "vitest";
import { textOf, type RespConnection } from "../support/resp-client.js";
import { describeWith } from "../support/tools.js";
import { argvOf, useBothServers } from "./golden-harness.js";

/** INFO's keyspace_hits and keyspace_misses: the same commands count the same in Redis and here. */

/** Of `k`, a string that is there, and of `nosuch`. */
const COUNTED = [
  "GET k",
  "GET nosuch",
  "MGET k nosuch k",
  "EXISTS k nosuch nosuch",
  "TYPE k",
  "TYPE nosuch",
  "TTL k",
  "PTTL nosuch",
  "EXPIRETIME k",
  "PEXPIRETIME nosuch",
  "STRLEN k",
  "STRLEN nosuch",
  "GETRANGE k 0 1",
  "GETRANGE nosuch 0 1",
  "GETEX k",
  "GETEX k EX 100",
  "GETEX nosuch",
  "GETSET k v",
  "SET k v GET",
  "SET nosuch v XX GET",
  "OBJECT ENCODING k",
  "GETDEL nosuch",
  'EVAL "return redis.call([[GET]], KEYS[1])" 1 k',
];

/** They write, or look at no key. */
const NOT_COUNTED = [
  "PING",
  "SET k v",
  "SET k v NX",
  "SET new v NX",
  "INCR number",
  "APPEND k v",
  "SETRANGE k 0 x",
  "EXPIRE k 100",
  "EXPIRE nosuch 100",
  "PERSIST k",
  "DEL new nosuch",
  "KEYS *",
  "SCAN 0",
  "DBSIZE",
];

async function counted(connection: RespConnection): Promise<{ hits: number; misses: number }> {
  const info = textOf(await connection.call("INFO", "stats"));
  const field = (name: string): number => Number(new RegExp(`^${name}:(\\d+)\\r?$`, "m").exec(info)?.[1]);
  return { hits: field("keyspace_hits"), misses: field("keyspace_misses") };
}

/** What each command adds to the two counters. */
async function increases(connection: RespConnection, lines: readonly string[]): Promise<string[]> {
  const told: string[] = [];
  await connection.call("FLUSHALL");
  await connection.call("SET", "k", "value");
  for (const line of lines) {
    const before = await counted(connection);
    await connection.call(...argvOf(line));
    const after = await counted(connection);
    told.push(`${line}: ${after.hits - before.hits} hits, ${after.misses - before.misses} misses`);
  }
  return told;
}

describeWith(["redis-server"], "keyspace_hits and keyspace_misses", () => {
  const both = useBothServers();

  test("count as in Redis", async () => {
    const { theirs, ours } = await both.connect();
    const lines = [...COUNTED, ...NOT_COUNTED, "GETDEL k"];
    const wanted = await increases(theirs, lines);
    expect(await increases(ours, lines)).toEqual(wanted);
    for (const line of NOT_COUNTED) expect(wanted).toContain(`${line}: 0 hits, 0 misses`);
    expect(wanted).toContain("MGET k nosuch k: 2 hits, 1 misses");
    theirs.destroy();
    ours.destroy();
  });
});
