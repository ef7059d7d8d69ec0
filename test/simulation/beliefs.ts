import type { ByteString } from "#src/engine/reply.js";
import type { LockMode } from "#src/engine/op.js";
import { isSameMode } from "./model.js";
import type { Acquired, ClientClock, DecisionPart, SimRequest } from "./request.js";
import { check } from "./violation.js";
import type { World } from "./sim-world.js";

/**
 * What clients believe, from nothing but the replies that reached them: a client holds a key from the reply that gave it until
 * its lease's time is over by its own clock, counted from before it sent what was answered, or until it sends the word that
 * gives it back. I1: no two leases are believed to hold one key at one moment. I2: tokens rise.
 *
 * A belief that was broken by right (a FORCE, DEL, FLUSH or revoke by somebody, a shorter TTL) does not count. The end of a lease by
 * time is none of these: it is what is on trial.
 */

interface LeaseBelief {
  readonly client: ClientClock;
  readonly instance: string;
  /** By the client's clock. */
  untilMs: number;
  givenBack: boolean;
}

interface Hold {
  readonly belief: LeaseBelief;
  readonly token: number;
  readonly mode: LockMode;
}

export class Beliefs {
  readonly #world: World;
  readonly #byClient = new Map<ClientClock, Map<string, LeaseBelief>>();
  readonly #holds = new Map<string, Hold[]>();
  readonly #leasesTakenAway = new Set<string>();
  readonly #keysTakenAway = new Set<string>();
  /** By lease: only decisions from this one on count. */
  readonly #countsFrom = new Map<string, number>();
  readonly #tokensKnown = new Map<string, number>();
  readonly #tokenOwners = new Map<string, string>();

  constructor(world: World) {
    this.#world = world;
  }

  // What the oracle tells -------------------------------------------------------------------------------------------

  /** A lease was ended by somebody's word: who believes in it is wrong, by right. */
  leaseTakenAway(instance: string): void {
    this.#leasesTakenAway.add(instance);
  }

  /** A key was taken from the lease that held it under this token, by somebody's word. */
  keyTakenAway(name: string, token: number): void {
    this.#keysTakenAway.add(`${name}#${token}`);
  }

  /** A shorter TTL was asked for: what was promised before does not count any more. */
  ttlShortened(instance: string, decisionOrder: number): void {
    this.#countsFrom.set(instance, decisionOrder);
    for (const beliefs of this.#byClient.values()) {
      const belief = beliefs.get(instance);
      if (belief !== undefined) belief.untilMs = -Infinity;
    }
  }

  // What clients do -------------------------------------------------------------------------------------------------

  /** The largest tokens of these keys that any client has been told of. */
  tokensKnown(names: readonly string[]): ReadonlyMap<string, number> {
    return new Map(names.map((name) => [name, this.#tokensKnown.get(name) ?? 0]));
  }

  /** The client gives a lease back with the request that it is about to send. */
  givesBack(client: ClientClock, id: ByteString): void {
    for (const belief of this.#byClient.get(client)?.values() ?? []) {
      if (belief.instance.startsWith(`${id}#`)) belief.givenBack = true;
    }
  }

  /**
   * The client gives a key back with the request that it is about to send: whatever it has of it, or only what it has for one lease
   * (`id`), or only what it got under one token.
   */
  givesBackKey(client: ClientClock, name: string, id: ByteString | null = null, token: number | null = null): void {
    const holds = this.#holds.get(name) ?? [];
    const isMeant = (hold: Hold): boolean =>
      hold.belief.client === client &&
      (id === null || hold.belief.instance.startsWith(`${id}#`)) &&
      (token === null || hold.token === token);
    this.#holds.set(
      name,
      holds.filter((hold) => !isMeant(hold)),
    );
  }

  /** Until when the client believes in the lease of this id, by its clock; -Infinity when it does not. */
  believesUntil(client: ClientClock, id: ByteString): number {
    let untilMs = -Infinity;
    for (const belief of this.#byClient.get(client)?.values() ?? []) {
      if (belief.instance.startsWith(`${id}#`) && !belief.givenBack) untilMs = Math.max(untilMs, belief.untilMs);
    }
    return untilMs;
  }

  /** A reply reached the client that sent the request. */
  hears(request: SimRequest): void {
    for (const part of request.decision?.parts ?? []) this.#hearsPart(request, part);
  }

  #hearsPart(request: SimRequest, part: DecisionPart): void {
    const { client } = request;
    const { command, instance } = part;
    for (const promise of part.promises) {
      // Looking at somebody's lease is not holding it.
      const mayBegin = command.kind === "lease-grant" || (command.kind === "string-set" && part.acquired.length > 0);
      const belief = this.#beliefIn(client, promise.instance, mayBegin);
      const counts = part.order >= (this.#countsFrom.get(promise.instance) ?? 0);
      if (belief !== null && counts) belief.untilMs = Math.max(belief.untilMs, request.sentAtMs + promise.ms);
    }
    if (instance === null) return;
    for (const acquired of part.acquired) this.#hold(request, part, instance, acquired);
    this.#checkKeysOf(client, instance);
  }

  #beliefIn(client: ClientClock, instance: string, mayBegin: boolean): LeaseBelief | null {
    let beliefs = this.#byClient.get(client);
    if (beliefs === undefined) {
      beliefs = new Map();
      this.#byClient.set(client, beliefs);
    }
    let belief = beliefs.get(instance);
    if (belief === undefined) {
      if (!mayBegin) return null;
      belief = { client, instance, untilMs: -Infinity, givenBack: false };
      beliefs.set(instance, belief);
    }
    return belief;
  }

  #hold(request: SimRequest, part: DecisionPart, instance: string, { name, token, mode }: Acquired): void {
    const owner = this.#tokenOwners.get(`${name}#${token}`);
    check(
      owner === undefined || owner === instance,
      "I2-tokens",
      () => `token ${token} of ${name}: ${owner}, ${instance}`,
    );
    this.#tokenOwners.set(`${name}#${token}`, instance);
    const known = request.tokensKnown.get(name) ?? 0;
    // A repeated request gets its first reply again, whatever happened since.
    const isNews = owner === undefined && part.changedSomething;
    check(!isNews || token > known, "I2-tokens", () => `${name} is taken with token ${token} after ${known} was known`);
    this.#tokensKnown.set(name, Math.max(token, this.#tokensKnown.get(name) ?? 0));
    const belief = this.#beliefIn(request.client, instance, false);
    if (belief === null) return;
    const holds = this.#holds.get(name) ?? [];
    if (!holds.some((hold) => hold.belief === belief && hold.token === token)) holds.push({ belief, token, mode });
    this.#holds.set(name, holds);
  }

  /** I1, for every key that this belief covers. */
  #checkKeysOf(client: ClientClock, instance: string): void {
    for (const [name, holds] of this.#holds) {
      if (!holds.some(({ belief }) => belief.client === client && belief.instance === instance)) continue;
      const believed = holds.filter((hold) => this.#isBelieved(name, hold));
      this.#holds.set(
        name,
        holds.filter((hold) => !this.#keysTakenAway.has(`${name}#${hold.token}`)),
      );
      const text = (): string =>
        `${name} is believed held at once by ${believed
          .map(({ belief, token }) => `client ${belief.client.index} with ${belief.instance} (token ${token})`)
          .join(" and ")}`;
      check(goTogether(believed), "I1-exclusion", text);
    }
  }

  #isBelieved(name: string, { belief, token }: Hold): boolean {
    return (
      !belief.givenBack &&
      belief.client.clockAt(this.#world.nowMs) < belief.untilMs &&
      !this.#leasesTakenAway.has(belief.instance) &&
      !this.#keysTakenAway.has(`${name}#${token}`)
    );
  }
}

/** Whether these may hold one key at one moment: one lease, or readers, or no more leases than a semaphore has permits. */
function goTogether(holds: readonly Hold[]): boolean {
  const leases = new Set(holds.map((hold) => hold.belief.instance));
  const [first] = holds;
  if (first === undefined || leases.size === 1) return true;
  if (!holds.every((hold) => isSameMode(hold.mode, first.mode))) return false;
  return first.mode.kind === "shared" || (first.mode.kind === "limit" && leases.size <= first.mode.permits);
}
