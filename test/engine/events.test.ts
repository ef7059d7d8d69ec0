import { describe, expect, test } from "vitest";
import type { Command } from "#src/engine/command.js";
import { eventsOf, type EngineEvent } from "#src/engine/events.js";
import * as on from "./manual-engine.js";
import { ManualEngine } from "./manual-engine.js";

const keyspace = (event: string, key: string, databaseIndex = 0): unknown => ({
  kind: "keyspace",
  databaseIndex,
  key,
  event,
});
const lock = (key: string, message: string): unknown => ({ kind: "lock", key, message });
const lease = (id: string, message: string): unknown => ({ kind: "lease", id, message });

/** A server with lease a (revision 1, key k) and lease b (revision 2), and what was heard of a command. */
function heard(command: Parameters<ManualEngine["run"]>[0], afterMs = 0): EngineEvent[] {
  const server = new ManualEngine();
  server.run(on.grant("a", 5_000, { keys: { k: "v" } }));
  server.run(on.grant("b", 9_000));
  server.advance(afterMs);
  return server.run(command).ops.flatMap((op) => [...eventsOf(op)]);
}

describe("clients hear", () => {
  test("of a grant: each key acquired and set", () => {
    expect(heard(on.grant("c", 1_000, { keys: { x: "", y: "" } }))).toEqual([
      lock("x", "acquired c 3"),
      keyspace("set", "x"),
      lock("y", "acquired c 3"),
      keyspace("set", "y"),
    ]);
  });

  test("of an attach: acquired only when the holder is new", () => {
    expect(heard(on.attach("b", "x"))).toEqual([lock("x", "acquired b 3"), keyspace("set", "x")]);
    expect(heard(on.attach("a", "k", "other"))).toEqual([keyspace("set", "k")]);
    expect(heard(on.attach("a", "k", "v"))).toEqual([]);
  });

  test("of a key taken by force: released by the one, acquired by the other, and never deleted", () => {
    expect(heard(on.attach("b", "k", "w", true))).toEqual([
      lock("k", "released a 1"),
      lock("k", "acquired b 3"),
      keyspace("set", "k"),
    ]);
  });

  test.each([
    ["a detach", on.detach("a", "k")],
    ["a delete", on.del("k")],
  ])("of %s: released and deleted", (_, command) => {
    expect(heard(command)).toEqual([lock("k", "released a 1"), keyspace("del", "k")]);
  });

  test("of a revoke: who did it, and each key released and deleted", () => {
    expect(heard(on.revoke("a"))).toEqual([
      lease("a", `revoked by=${on.ORIGIN.owner}`),
      lock("k", "released a 1"),
      keyspace("del", "k"),
    ]);
  });

  test("of an expiry: how late, and each key released and expired", () => {
    expect(heard(on.expire("a"), 5_003)).toEqual([
      lease("a", "expired late-ms=3"),
      lock("k", "released a 1"),
      keyspace("expired", "k"),
    ]);
  });

  test("of an end that somebody forced", () => {
    const op = { kind: "lease-end", id: "a", reason: "forced", lateMs: 0, by: "x", keys: [] } as const;
    expect(eventsOf(op)).toEqual([lease("a", "forced")]);
  });

  test("of the database of a key", () => {
    const server = new ManualEngine();
    server.run(on.grant("a", 5_000));
    const { ops } = server.run(on.attach("a", "k"), on.inDatabase(4));
    expect(ops.flatMap((op) => [...eventsOf(op)])).toContainEqual(keyspace("set", "k", 4));
  });

  test("of keep-alives, TTLs and flushes nothing", () => {
    for (const command of [
      on.keepAlive("a"),
      on.setTtl("a", 1),
      on.setTtl("a", 60_000),
      on.FLUSH_ALL,
      on.FLUSH_DATABASE,
    ]) {
      expect(heard(command)).toEqual([]);
    }
  });

  test("of a shared key: who comes and goes, but set and deleted once", () => {
    const server = new ManualEngine();
    for (const id of ["a", "b", "c"]) server.run(on.grant(id, 5_000));
    const told = (command: Command): unknown[] => server.run(command).ops.flatMap((op) => [...eventsOf(op)]);
    expect(told(on.acquire("k", "a", { mode: on.SHARED }))).toEqual([lock("k", "acquired a 4"), keyspace("set", "k")]);
    expect(told(on.acquire("k", "b", { mode: on.SHARED }))).toEqual([lock("k", "acquired b 5")]);
    expect(told(on.acquire("k", "c", { mode: on.SHARED }))).toEqual([lock("k", "acquired c 6")]);
    expect(told(on.release("k", "b"))).toEqual([lock("k", "released b 5")]);
    expect(told(on.revoke("c", "a"))).toEqual([
      lease("c", `revoked by=${on.ORIGIN.owner}`),
      lock("k", "released c 6"),
      lease("a", `revoked by=${on.ORIGIN.owner}`),
      lock("k", "released a 4"),
      keyspace("del", "k"),
    ]);
  });

  test("of a plain key: the keyspace alone, in Redis's words", () => {
    const server = new ManualEngine();
    server.run(on.grant("a", 5_000, { keys: { leased: "1" } }));
    const told = (command: Command): unknown[] => server.run(command).ops.flatMap((op) => [...eventsOf(op)]);
    expect(told(on.set("k", "1"))).toEqual([keyspace("set", "k")]);
    expect(told(on.setPx("k", "2", 100))).toEqual([keyspace("set", "k"), keyspace("expire", "k")]);
    expect(told({ kind: "string-increment", key: "k", by: 1n })).toEqual([keyspace("incrby", "k")]);
    expect(told({ kind: "string-append", key: "k", value: "0" })).toEqual([keyspace("append", "k")]);
    expect(told(on.persist("k"))).toEqual([keyspace("persist", "k")]);
    expect(told(on.pexpire("k", 100))).toEqual([keyspace("expire", "k")]);
    expect(told({ kind: "string-increment", key: "leased", by: 1n })).toEqual([keyspace("incrby", "leased")]);
    expect(told(on.attach("a", "k", "v", true))).toEqual([lock("k", "acquired a 9"), keyspace("set", "k")]);
    expect(told(on.set("leased", "v"))).toEqual([lock("leased", "released a 1"), keyspace("set", "leased")]);
    expect(told({ kind: "string-get-delete", key: "leased" })).toEqual([keyspace("del", "leased")]);
    server.run(on.setPx("k", "v", 100));
    server.advance(100);
    expect(told(on.get("k"))).toEqual([keyspace("expired", "k")]);
  });
});
