import { describe, expect, test } from "vitest";
import type { Command } from "#src/engine/command.js";
import type { LockMode } from "#src/engine/op.js";
import type { Reply } from "#src/engine/reply.js";
import { Beliefs } from "./beliefs.js";
import type { ClientClock, DecisionRecord, LeasePromise, SimRequest } from "./request.js";
import { World } from "./sim-world.js";

/**
 * The check of exclusion and tokens on its own: short histories of what clients heard, sound and broken. A check that lets one of
 * the broken ones pass would let the server off.
 */

const FAST = 1.001;
const SLOW = 0.999;

function setting(clockRate = 1) {
  const world = new World(1);
  const beliefs = new Beliefs(world);
  const [a, b]: ClientClock[] = [0, 1].map((index) => ({ index, clockAt: (trueMs) => trueMs * clockRate }));
  let order = 0;
  const hear = (
    client: ClientClock | undefined,
    command: Command,
    reply: Reply,
    instance: string,
    promises: readonly LeasePromise[],
    sentAtTrueMs = world.nowMs,
    tokensKnown = new Map<string, number>(),
  ): void => {
    if (client === undefined) throw new Error("no such client");
    order += 1;
    const token = Array.isArray(reply) ? Number(reply[2]) : Number(reply);
    const isTaking =
      command.kind === "lease-grant" || command.kind === "lease-attach" || command.kind === "lock-acquire";
    const mode = command.kind === "lock-acquire" ? command.mode : ({ kind: "exclusive" } as const);
    const acquired = isTaking && reply !== null ? [{ name: "0:k", token, mode }] : [];
    const part = { command, reply, order, promises, instance, acquired, changedSomething: true };
    const decision: DecisionRecord = { reply, requiredRevision: 0, parts: [part] };
    const request: SimRequest = {
      number: order,
      client,
      databaseIndex: 0,
      command,
      sentAtMs: client.clockAt(sentAtTrueMs),
      tokensKnown,
      decision,
    };
    beliefs.hears(request);
  };
  const grant = (
    client: ClientClock | undefined,
    id: string,
    token: number,
    ttlMs: number,
    sentAtTrueMs?: number,
  ): void =>
    hear(
      client,
      { kind: "lease-grant", id, ttlMs, keys: [{ key: "k", value: "v" }], label: null, request: null },
      [id, ttlMs, token],
      `${id}#${token}`,
      [{ instance: `${id}#${token}`, ms: ttlMs }],
      sentAtTrueMs,
    );
  const keepAlive = (
    client: ClientClock | undefined,
    id: string,
    token: number,
    ttlMs: number,
    sentAtTrueMs?: number,
  ): void =>
    hear(
      client,
      { kind: "lease-keepalive", id },
      ttlMs,
      `${id}#${token}`,
      [{ instance: `${id}#${token}`, ms: ttlMs }],
      sentAtTrueMs,
    );
  /** The lease gets the key `k` as a lock, once it has been granted. */
  const acquire = (client: ClientClock | undefined, id: string, token: number, mode: LockMode): void => {
    hear(client, { kind: "lease-grant", id, ttlMs: 100, keys: [], label: null, request: null }, null, `${id}#0`, [
      { instance: `${id}#0`, ms: 100 },
    ]);
    hear(client, { kind: "lock-acquire", key: "k", id, value: null, mode, blockMs: null }, token, `${id}#0`, []);
  };
  return { world, beliefs, a, b, grant, keepAlive, acquire, hear };
}

describe("exclusion", () => {
  test("one holder after the other is sound", () => {
    const { world, a, b, grant } = setting();
    grant(a, "a", 1, 100);
    world.spend(100);
    grant(b, "b", 2, 100);
  });

  test("two at once is not", () => {
    const { world, a, b, grant } = setting();
    grant(a, "a", 1, 100);
    world.spend(99);
    expect(() => grant(b, "b", 2, 100)).toThrow("I1-exclusion");
  });

  test("time counts from before the request was sent, not from the reply", () => {
    const { world, a, b, grant } = setting();
    world.spend(60);
    grant(a, "a", 1, 100, 0);
    world.spend(41);
    grant(b, "b", 2, 100);
  });

  test("a keep-alive that is heard late makes two holders", () => {
    const { world, a, b, grant, keepAlive } = setting();
    grant(a, "a", 1, 100);
    world.spend(150);
    grant(b, "b", 2, 100);
    expect(() => keepAlive(a, "a", 1, 100, 90)).toThrow("I1-exclusion");
  });

  test.each([
    [FAST, false],
    [SLOW, true],
  ])("the client's own clock counts: at rate %d", (rate, isBroken) => {
    const { world, a, b, grant } = setting(rate);
    grant(a, "a", 1, 10_000);
    world.spend(10_000);
    const act = (): void => grant(b, "b", 2, 100);
    if (isBroken) expect(act).toThrow("I1-exclusion");
    else act();
  });

  test("who gives a lease back holds nothing from the moment of sending", () => {
    const { beliefs, a, b, grant } = setting();
    grant(a, "a", 1, 100);
    if (a !== undefined) beliefs.givesBack(a, "a");
    grant(b, "b", 2, 100);
  });

  test("who gives a key back keeps the lease", () => {
    const { beliefs, a, b, grant } = setting();
    grant(a, "a", 1, 100);
    if (a !== undefined) beliefs.givesBackKey(a, "0:k");
    grant(b, "b", 2, 100);
    if (a !== undefined) expect(beliefs.believesUntil(a, "a")).toBe(100);
  });

  test("a key that was taken by force is nobody's fault", () => {
    const { beliefs, a, b, grant } = setting();
    grant(a, "a", 1, 100);
    beliefs.keyTakenAway("0:k", 1);
    grant(b, "b", 2, 100);
  });

  test("a lease that was revoked by somebody is nobody's fault, nor is a shorter TTL", () => {
    for (const takeAway of ["revoke", "shorten"]) {
      const { beliefs, a, b, grant } = setting();
      grant(a, "a", 1, 100);
      if (takeAway === "revoke") beliefs.leaseTakenAway("a#1");
      else beliefs.ttlShortened("a#1", 2);
      grant(b, "b", 2, 100);
    }
  });

  test("a promise from before the shorter TTL does not bring the belief back", () => {
    const { beliefs, a, b, grant, keepAlive } = setting();
    grant(a, "a", 1, 100);
    beliefs.ttlShortened("a#1", 5);
    keepAlive(a, "a", 1, 100);
    grant(b, "b", 2, 100);
  });
});

describe("locks", () => {
  const exclusive: LockMode = { kind: "exclusive" };
  const shared: LockMode = { kind: "shared" };
  const limit = (permits: number): LockMode => ({ kind: "limit", permits });

  test.each<[LockMode, LockMode, boolean]>([
    [exclusive, exclusive, false],
    [shared, shared, true],
    [shared, exclusive, false],
    [limit(2), limit(2), true],
    [limit(1), limit(1), false],
    [limit(2), limit(3), false],
    [shared, limit(2), false],
  ])("%o and %o at once: %s", (first, second, isSound) => {
    const { a, b, acquire } = setting();
    acquire(a, "a", 1, first);
    const act = (): void => acquire(b, "b", 2, second);
    if (isSound) act();
    else expect(act).toThrow("I1-exclusion");
  });

  test("a semaphore of two has no third", () => {
    const { a, b, acquire } = setting();
    acquire(a, "a", 1, limit(2));
    acquire(b, "b", 2, limit(2));
    expect(() => acquire(b, "c", 3, limit(2))).toThrow("I1-exclusion");
  });

  test("a release under another token gives nothing back", () => {
    for (const [token, isGivenBack] of [
      [1, true],
      [7, false],
    ] as const) {
      const { beliefs, a, b, acquire } = setting();
      acquire(a, "a", 1, exclusive);
      if (a !== undefined) beliefs.givesBackKey(a, "0:k", "a", token);
      const act = (): void => acquire(b, "b", 2, exclusive);
      if (isGivenBack) act();
      else expect(act).toThrow("I1-exclusion");
    }
  });
});

describe("tokens", () => {
  test("one token for two leases is broken", () => {
    const { world, a, b, grant } = setting();
    grant(a, "a", 1, 100);
    world.spend(200);
    expect(() => grant(b, "b", 1, 100)).toThrow("I2-tokens");
  });

  test("a token below one that was known when the request was sent is broken", () => {
    const { a, hear } = setting();
    const attach: Command = { kind: "lease-attach", id: "a", key: "k", value: "v", force: false };
    const known = new Map([["0:k", 7]]);
    expect(() => hear(a, attach, 6, "a#1", [], 0, known)).toThrow("I2-tokens");
    hear(a, attach, 8, "a#1", [], 0, known);
  });
});
