import { describe, expect, test } from "vitest";
import type { Command } from "#src/engine/command.js";
import { EXPIRIES_PER_TURN_MAX, type EngineLimits } from "#src/engine/limits.js";
import * as on from "./manual-engine.js";
import { ManualEngine } from "./manual-engine.js";

describe("LEASE.GRANT", () => {
  test("answers id, TTL and token, and names owner and time for people", () => {
    const server = new ManualEngine();
    const decision = server.run(on.grant("a", 5_000, { label: "nightly" }));
    expect(decision.reply).toEqual(["a", 5_000, 1]);
    expect(decision.ops).toEqual([
      {
        kind: "lease-put",
        id: "a",
        ttlMs: 5_000,
        token: 1,
        label: "nightly",
        request: null,
        grantedAtUnixMs: server.unixMs,
        owner: on.ORIGIN.owner,
      },
    ]);
    expect(decision.sawRevision).toBe(1);
  });

  test("takes all keys under one token, in the database of the connection", () => {
    const server = new ManualEngine();
    const decision = server.run(on.grant("a", 5_000, { keys: { k1: "v1", k2: "v2" } }), on.inDatabase(3));
    expect(decision.ops.map((op) => op.kind)).toEqual(["lease-put", "key-put", "key-put"]);
    expect(server.reply(on.get("k1"), on.inDatabase(3))).toBe("v1");
    expect(server.reply(on.get("k2"), on.inDatabase(3))).toBe("v2");
    expect(server.reply(on.get("k1"))).toBeNull();
  });

  test("takes none of its keys when one of them is held", () => {
    const server = new ManualEngine();
    server.run(on.grant("a", 5_000, { keys: { k2: "a" } }));
    const decision = server.run(on.grant("b", 5_000, { keys: { k1: "b", k2: "b", k3: "b" } }));
    expect(decision.reply).toBeNull();
    expect(decision.ops).toEqual([]);
    expect(server.reply(on.list())).toEqual(["k2"]);
    expect(server.answer(on.keepAlive("b"))).toBe(on.noLease("b"));
  });

  test("refuses a key that is named twice", () => {
    const server = new ManualEngine();
    const keys = [
      { key: "k", value: "1" },
      { key: "k", value: "2" },
    ];
    const decision = server.run({ kind: "lease-grant", id: "a", ttlMs: 1, keys, label: null, request: null });
    expect(on.plain(decision.reply)).toBe("ERR key 'k' is named twice");
    expect(decision.ops).toEqual([]);
  });

  test("refuses an id that is alive, and takes one that has ended", () => {
    const server = new ManualEngine();
    server.run(on.grant("a", 5_000));
    expect(server.answer(on.grant("a", 9_000))).toBe("LEASEEXISTS lease 'a' is alive already");
    server.run(on.revoke("a"));
    expect(server.reply(on.grant("a", 9_000))).toEqual(["a", 9_000, 3]);
  });

  test("takes over what a lease past its deadline held, in the same turn and log", () => {
    const server = new ManualEngine();
    server.run(on.grant("a", 5_000, { keys: { k: "a" } }));
    server.advance(5_000);
    const decision = server.run(on.grant("b", 5_000, { keys: { k: "b" } }));
    expect(decision.reply).toEqual(["b", 5_000, 2]);
    expect(decision.ops.map((op) => op.kind)).toEqual(["lease-end", "lease-put", "key-put"]);
    expect(server.reply(on.get("k"))).toBe("b");
    server.engine.checkInvariants();
  });

  test("takes over the id of a lease past its deadline, without its keys", () => {
    const server = new ManualEngine();
    server.run(on.grant("a", 5_000, { keys: { k: "old" } }));
    server.advance(5_000);
    expect(server.reply(on.grant("a", 5_000))).toEqual(["a", 5_000, 2]);
    expect(server.reply(on.get("k"))).toBeNull();
    expect(server.reply(on.keepAlive("a"))).toBe(5_000);
    server.engine.checkInvariants();
  });
});

describe("LEASE.GRANT *", () => {
  test("gives ids that never repeat, over restarts as well", () => {
    const server = new ManualEngine();
    const ids = new Set<unknown>();
    for (let round = 0; round < 50; round += 1) {
      const [id] = server.reply(on.grant(null, 5_000)) as unknown[];
      ids.add(id);
      if (round % 10 === 0) server.run(on.revoke(String(id)));
      if (round % 20 === 0) server.restart(server.nowMs);
    }
    expect(ids.size).toBe(50);
    expect([...ids].every((id) => String(id).startsWith("inc-"))).toBe(true);
  });

  test("gives another id than one that a client has squatted on", () => {
    const server = new ManualEngine();
    for (const squatted of ["inc-4", "inc-4-1"]) server.run(on.grant(squatted, 5_000));
    server.run(on.grant("other", 5_000));
    expect(server.reply(on.grant(null, 5_000))).toEqual(["inc-4-2", 5_000, 4]);
    expect(server.reply(on.grant(null, 5_000))).toEqual(["inc-5", 5_000, 5]);
  });
});

describe("REQUEST", () => {
  test("gets the first reply again, whatever the retry asks for", () => {
    const server = new ManualEngine();
    const first = server.reply(on.grant("a", 5_000, { request: "n", keys: { k: "v" } }));
    server.run(on.grant("b", 5_000));
    const again = server.run(on.grant("a", 7_000, { request: "n" }));
    expect(again.reply).toEqual(first);
    expect(again.ops).toEqual([]);
  });

  test("renews the lease: the client counts from the retry", () => {
    const server = new ManualEngine();
    server.run(on.grant("a", 5_000, { request: "n" }));
    server.advance(4_000);
    server.run(on.grant("a", 5_000, { request: "n" }));
    server.advance(4_999);
    expect(server.reply(on.pttl("a"))).toBe(1);
  });

  test("makes its reply true even when the TTL was made shorter meanwhile", () => {
    const server = new ManualEngine();
    server.run(on.grant("a", 5_000, { request: "n" }));
    server.run(on.setTtl("a", 1_000));
    expect(server.reply(on.grant("a", 5_000, { request: "n" }))).toEqual(["a", 5_000, 1]);
    expect(server.reply(on.keepAlive("a"))).toBe(1_000);
    server.advance(4_999);
    expect(server.reply(on.pttl("a"))).toBe(1);
  });

  test("finds a server-chosen lease by the nonce alone", () => {
    const server = new ManualEngine();
    const first = server.reply(on.grant(null, 5_000, { request: "n" }));
    expect(server.reply(on.grant(null, 5_000, { request: "n" }))).toEqual(first);
    expect(server.reply(on.grant(null, 5_000, { request: "m" }))).not.toEqual(first);
    expect(server.engine.leases).toBe(2);
  });

  test("grants anew when the lease of the first try has ended", () => {
    const server = new ManualEngine();
    server.run(on.grant(null, 5_000, { request: "n" }));
    server.advance(5_000);
    expect(server.reply(on.grant(null, 5_000, { request: "n" }))).toEqual(["inc-2", 5_000, 2]);
    server.run(on.revoke("inc-2"));
    server.durable();
    expect(server.reply(on.grant(null, 5_000, { request: "n" }))).toEqual(["inc-4", 5_000, 4]);
    server.engine.checkInvariants();
  });

  test("is LEASEEXISTS with another nonce, with none, and for a lease that had none", () => {
    const server = new ManualEngine();
    server.run(on.grant("a", 5_000, { request: "n" }));
    server.run(on.grant("b", 5_000));
    expect(server.answer(on.grant("a", 5_000, { request: "m" }))).toMatch(/^LEASEEXISTS/);
    expect(server.answer(on.grant("a", 5_000))).toMatch(/^LEASEEXISTS/);
    expect(server.answer(on.grant("b", 5_000, { request: "n" }))).toMatch(/^LEASEEXISTS/);
  });

  test("works over a restart", () => {
    const server = new ManualEngine();
    const first = server.reply(on.grant(null, 5_000, { request: "n" }));
    server.run(on.grant("a", 5_000, { request: "n" }));
    server.restart(77);
    expect(server.reply(on.grant(null, 5_000, { request: "n" }))).toEqual(first);
    expect(server.reply(on.grant("a", 5_000, { request: "n" }))).toEqual(["a", 5_000, 2]);
  });
});

describe("limits", () => {
  test.each([
    ["leases", { leasesMax: 2 }, on.grant("c", 1_000), "OOM the limit of 2 leases is reached"],
    ["keys", { keysMax: 3 }, on.grant("c", 1_000, { keys: { x: "", y: "" } }), "OOM the limit of 3 keys is reached"],
    [
      "keys per lease",
      { keysPerLeaseMax: 1 },
      on.grant("c", 1_000, { keys: { x: "", y: "" } }),
      "OOM the limit of 1 keys per lease is reached",
    ],
    ["keys, by attach", { keysMax: 2 }, on.attach("a", "x"), "OOM the limit of 2 keys is reached"],
    [
      "keys per lease, by attach",
      { keysPerLeaseMax: 1 },
      on.attach("a", "x"),
      "OOM the limit of 1 keys per lease is reached",
    ],
  ])("%s", (_, limits, command, refusal) => {
    const server = new ManualEngine(limits);
    server.run(on.grant("a", 5_000, { keys: { k1: "" } }));
    server.run(on.grant("b", 5_000, { keys: { k2: "" } }));
    expect(server.answer(command)).toBe(refusal);
  });

  test("what shrinks goes on when grants are refused", () => {
    const server = new ManualEngine({ leasesMax: 1, keysMax: 1, keysPerLeaseMax: 1 });
    server.run(on.grant("a", 5_000, { keys: { k: "" } }));
    expect(server.reply(on.keepAlive("a"))).toBe(5_000);
    expect(server.reply(on.attach("a", "k", "new"))).toBe(1);
    expect(server.reply(on.detach("a", "k"))).toBe(1);
    expect(server.reply(on.revoke("a"))).toBe(1);
    expect(server.reply(on.grant("b", 5_000, { keys: { k: "" } }))).toEqual(["b", 5_000, 5]);
  });

  describe("what is past its deadline takes no room, tick or no tick", () => {
    test.each<[string, Partial<EngineLimits>, Command, Command]>([
      ["leases", { leasesMax: 1 }, on.grant("old", 1_000), on.grant("b", 1_000)],
      ["leases, of one without keys", { leasesMax: 1, keysMax: 0 }, on.grant("old", 1_000), on.grant("b", 1_000)],
      [
        "keys of leases",
        { keysMax: 1 },
        on.grant("old", 1_000, { keys: { k: "" } }),
        on.grant("b", 1_000, { keys: { x: "" } }),
      ],
      ["plain keys", { keysMax: 1 }, on.setPx("old", "", 1_000), on.grant("b", 1_000, { keys: { x: "" } })],
      ["plain keys, for a plain key", { keysMax: 1 }, on.setPx("old", "", 1_000), on.set("x", "")],
      ["plain keys, for a lock", { keysMax: 1 }, on.setPx("old", "", 1_000), on.acquire("x", "holder")],
      ["plain keys, for an attach", { keysMax: 1 }, on.setPx("old", "", 1_000), on.attach("holder", "x")],
    ])("%s", (_, limits, former, command) => {
      const server = new ManualEngine(limits);
      if ("id" in command && command.kind !== "lease-grant") server.run(on.grant("holder", 60_000));
      server.run(former);
      server.advance(999);
      expect(server.answer(command)).toMatch(/^OOM /);
      server.advance(1);
      const decision = server.run(command);
      expect(String(on.plain(decision.reply))).not.toMatch(/^OOM /);
      expect(decision.ops[0]).toMatchObject({ reason: "expired" });
      server.engine.checkInvariants();
    });

    test("a refusal ends no more than one turn may", () => {
      const server = new ManualEngine({ leasesMax: EXPIRIES_PER_TURN_MAX + 2 });
      for (let index = 0; index <= EXPIRIES_PER_TURN_MAX; index += 1) server.run(on.setPx(`k${index}`, "", 1_000));
      for (let index = 0; index < EXPIRIES_PER_TURN_MAX + 2; index += 1) server.run(on.grant(`l${index}`, 60_000));
      server.advance(1_000);
      const decision = server.run(on.grant("b", 1_000));
      expect(on.plain(decision.reply)).toMatch(/^OOM /);
      expect(decision.ops.length).toBe(EXPIRIES_PER_TURN_MAX);
    });
  });

  test("what a grant itself clears away counts as room", () => {
    const server = new ManualEngine({ leasesMax: 1, keysMax: 1 });
    server.run(on.grant("a", 1_000, { keys: { k: "" } }));
    server.advance(1_000);
    expect(server.reply(on.grant("a", 1_000, { keys: { k: "" } }))).toEqual(["a", 1_000, 2]);
  });
});
