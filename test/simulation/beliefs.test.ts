import { describe, expect, test } from "vitest";
import type { Command } from "#src/engine/command.js";
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
    const decision: DecisionRecord = { reply, order, requiredRevision: 0, promises, instance, changedSomething: true };
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
  return { world, beliefs, a, b, grant, keepAlive, hear };
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
