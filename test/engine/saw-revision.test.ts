import { describe, expect, test } from "vitest";
import * as on from "./manual-engine.js";
import { ManualEngine } from "./manual-engine.js";

/**
 * A reply must wait for the newest change that it reveals, of what it touched, and for no other. Revisions in these tests:
 * 1 grants a with key ka, 2 grants b with key kb, then what the test does.
 */
const two = (): ManualEngine => {
  const server = new ManualEngine();
  server.run(on.grant("a", 5_000, { keys: { ka: "v" } }));
  server.run(on.grant("b", 5_000, { keys: { kb: "v" } }));
  return server;
};

describe("a reply waits for what it reveals", () => {
  test.each([
    ["a keep-alive: the grant of its lease", on.keepAlive("a"), 1],
    ["keep-alives: the newest of their leases", on.keepAliveMany("a", "b"), 2],
    ["a TTL: the grant", on.pttl("b"), 2],
    ["a value: its attach", on.get("ka"), 1],
    ["EXISTS: the newest of its keys", on.exists("kb", "ka"), 2],
    ["TYPE", on.type("ka"), 1],
    ["the TTL of a key", on.keyPttl("kb"), 2],
    ["LEASE.INFO", on.info("a"), 1],
    ["nil of a grant: the key that is held", on.grant("c", 1_000, { keys: { ka: "" } }), 1],
    ["nil of an attach: the leases and the key", on.attach("b", "ka"), 2],
    ["LEASEEXISTS: the lease", on.grant("a", 1_000), 1],
    ["DBSIZE: anything", on.COUNT, 2],
    ["KEYS: anything", on.list("ka"), 2],
    ["SCAN: anything", on.scan(0), 2],
    ["RANDOMKEY: anything", on.random(0), 2],
    ["LEASE.SCAN: anything", on.scanLeases(0), 2],
    ["what never was: nothing", on.get("never"), 0],
    ["a lease that never was: nothing", on.keepAlive("never"), 0],
    ["DEL of nothing: nothing", on.del("never"), 0],
    ["a shorter TTL: the grant", on.setTtl("a", 1), 1],
  ])("%s", (_, command, sawRevision) => {
    const decision = two().run(command);
    expect(decision.ops).toEqual([]);
    expect(decision.sawRevision).toBe(sawRevision);
  });

  test("a keep-alive does not wait for the writes of other leases, nor for attaches to its own", () => {
    const server = two();
    server.run(on.attach("a", "new"));
    server.run(on.detach("a", "ka"));
    server.run(on.revoke("b"));
    expect(server.run(on.keepAlive("a")).sawRevision).toBe(1);
  });

  test("a keep-alive waits for a longer TTL", () => {
    const server = two();
    server.run(on.setTtl("a", 60_000));
    expect(server.run(on.keepAlive("a")).sawRevision).toBe(3);
    expect(server.run(on.keepAlive("b")).sawRevision).toBe(2);
  });

  test("the TTL of a key waits for a longer TTL of its lease", () => {
    const server = two();
    server.run(on.setTtl("a", 60_000));
    expect(server.run(on.keyPttl("ka")).sawRevision).toBe(3);
    expect(server.run(on.keyPttl("kb")).sawRevision).toBe(2);
  });

  test("LEASE.INFO waits for changes of the lease's keys, comings and goings", () => {
    const server = two();
    server.run(on.attach("a", "new"));
    expect(server.run(on.info("a")).sawRevision).toBe(3);
    server.run(on.detach("a", "new"));
    expect(server.run(on.info("a")).sawRevision).toBe(4);
    server.run(on.attach("b", "ka", "taken", true));
    expect(server.run(on.info("a")).sawRevision).toBe(5);
    server.run(on.FLUSH_DATABASE);
    expect(server.run(on.info("a")).sawRevision).toBe(6);
  });

  test.each([
    ["DEL", on.del("ka")],
    ["DETACH", on.detach("a", "ka")],
    ["REVOKE", on.revoke("a")],
    ["FLUSHDB", on.FLUSH_DATABASE],
    ["FLUSHALL", on.FLUSH_ALL],
  ])("absence waits for the removal by %s, until that is durable", (_, removal) => {
    const server = two();
    server.run(removal);
    for (const command of [on.get("ka"), on.exists("ka"), on.keyPttl("ka"), on.del("ka"), on.type("ka")]) {
      expect(server.run(command).sawRevision).toBe(3);
    }
    server.durable();
    expect(server.run(on.get("ka")).sawRevision).toBeLessThanOrEqual(3);
    server.engine.checkInvariants();
  });

  test("a key that came again waits for its coming, one that went again for its going", () => {
    const server = two();
    server.run(on.del("ka"));
    server.run(on.attach("b", "ka"));
    expect(server.run(on.get("ka")).sawRevision).toBe(4);
    server.run(on.del("ka"));
    server.engine.durable(3);
    expect(server.run(on.get("ka")).sawRevision).toBe(5);
    server.engine.durable(5);
    expect(server.run(on.get("ka")).sawRevision).toBe(0);
    server.engine.checkInvariants();
  });

  test("a lease that came again under its id is another one", () => {
    const server = two();
    server.run(on.revoke("a"));
    server.run(on.grant("a", 5_000));
    expect(server.run(on.keepAlive("a")).sawRevision).toBe(4);
    expect(server.run(on.get("ka")).sawRevision).toBe(3);
    server.durable();
    server.run(on.revoke("a"));
    expect(server.run(on.keepAlive("a")).sawRevision).toBe(5);
    server.engine.checkInvariants();
  });

  test("a database is not held up by the keys of another", () => {
    const server = two();
    server.run(on.attach("a", "new"), on.inDatabase(1));
    expect(server.run(on.COUNT).sawRevision).toBe(2);
    expect(server.run(on.COUNT, on.inDatabase(1)).sawRevision).toBe(3);
    expect(server.run(on.get("ka"), on.inDatabase(1)).sawRevision).toBe(0);
  });

  test("what was loaded is durable: nothing waits", () => {
    const server = two();
    server.restart(5);
    for (const command of [on.keepAlive("a"), on.get("ka"), on.list(), on.COUNT, on.info("a"), on.scanLeases(0)]) {
      expect(server.run(command).sawRevision).toBe(0);
    }
  });

  test("a retried grant waits as the first one did", () => {
    const server = new ManualEngine();
    server.run(on.grant("other", 5_000));
    server.run(on.grant("a", 5_000, { request: "n" }));
    expect(server.run(on.grant("a", 5_000, { request: "n" })).sawRevision).toBe(2);
  });
});

describe("decide", () => {
  test("changes nothing and answers alike when asked again", () => {
    const server = two();
    server.advance(5_000);
    const commands = [on.get("ka"), on.keepAlive("b"), on.grant("c", 1, { keys: { kb: "" } }), on.COUNT, on.FLUSH_ALL];
    for (const command of commands) {
      const first = server.decide(command);
      expect(server.decide(command)).toEqual(first);
      expect(server.engine.state.revision).toBe(2);
      expect(server.engine.leases).toBe(2);
    }
    server.engine.checkInvariants();
  });

  test("reads and keep-alives share one empty list of ops", () => {
    const server = two();
    expect(server.run(on.keepAlive("a")).ops).toBe(server.run(on.get("ka")).ops);
  });
});
