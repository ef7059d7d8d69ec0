import type { Command } from "#src/engine/command.js";
import { ErrorReply, type ByteString, type Reply } from "#src/engine/reply.js";
import type { World } from "../sim-world.js";
import type { ClusterNode } from "./cluster-node.js";
import { isRefusal } from "./cluster-session.js";
import { Wire, type Request, type WireEnd } from "./cluster-wire.js";
import type { Judge, LeaseBelief } from "./judge.js";

/**
 * A client with leases and locks that knows nothing of what is really the case: it has its own clock, asks one node after the other,
 * moves on when a connection closes, a node refuses, or an answer takes too long, and counts every TTL from before it sent the request.
 *
 * It is a small program, written as a generator: each `yield` waits for something in the simulated world. Keep-alives go over a
 * connection of their own, for an answer behind a blocked command would come too late.
 */

export interface Workload {
  readonly clients: number;
  readonly keys: number;
  /** Between the end of one lease and the next, and while a lock is held, on average. */
  readonly thinkMsMean: number;
  readonly ttlsMs: readonly number[];
  readonly blockMsMax: number;
  /** How long an answer may take before the connection is given up. */
  readonly patienceMs: number;
  /** The chance that a grant without an answer is asked for again under its nonce. */
  readonly repeatChance: number;
  /** The chance that a lease is left to its end. */
  readonly abandonChance: number;
  /** The chance that a client asks a node who the primary is before it connects. */
  readonly askChance: number;
}

export interface ClientOptions {
  readonly index: number;
  readonly workload: Workload;
  readonly clockRate: number;
  readonly clockOriginMs: number;
  readonly judge: Judge;
  nodes(): readonly ClusterNode[];
}

/** Waits for something: calls back with what the program goes on with. */
type Wait = (resume: (value: unknown) => void) => void;
type Program<Result> = Generator<Wait, Result, unknown>;

type Answer =
  | { readonly kind: "reply"; readonly reply: Reply; readonly sentAtMs: number }
  /** Nothing happened. */
  | { readonly kind: "refused" }
  | { readonly kind: "unknown" };

/** Before another node is tried. */
const BACKOFF_MS_MEAN = 60;
/** Tries after which a command is given up for good. */
const TRIES_MAX = 40;

interface Pending {
  readonly request: Request;
  readonly answer: (answer: Answer) => void;
}

/** One connection at a time, to one node after the other. */
class Channel implements WireEnd {
  readonly name: string;
  readonly #world: World;
  readonly #pickNode: () => ClusterNode | null;
  #wire: Wire | null = null;
  #pending: Pending[] = [];

  constructor(name: string, world: World, pickNode: () => ClusterNode | null) {
    this.name = name;
    this.#world = world;
    this.#pickNode = pickNode;
  }

  send(request: Request, patienceMs: number, answer: (answer: Answer) => void): void {
    if (this.#wire === null) {
      const node = this.#pickNode();
      if (node === null) {
        // Nobody listens there: it was not even sent.
        this.#world.after(1, () => answer({ kind: "refused" }));
        return;
      }
      this.#wire = new Wire(this.#world, this, node);
    }
    const wire = this.#wire;
    const pending = { request, answer };
    this.#pending.push(pending);
    wire.send(request);
    this.#world.after(patienceMs, () => {
      if (this.#wire === wire && this.#pending.includes(pending)) this.drop();
    });
  }

  hear(request: Request, reply: Reply): void {
    const pending = this.#pending.shift();
    if (pending === undefined || pending.request !== request)
      throw new Error("answers come in the order of the requests");
    if (isRefusal(reply)) {
      pending.answer({ kind: "refused" });
      this.drop();
    } else {
      pending.answer({ kind: "reply", reply, sentAtMs: request.sentAtMs });
    }
  }

  lost(): void {
    this.#forget();
  }

  /** Gives the connection up. */
  drop(): void {
    this.#wire?.giveUp();
    this.#forget();
  }

  #forget(): void {
    this.#wire = null;
    const unanswered = this.#pending;
    this.#pending = [];
    for (const { answer } of unanswered) answer({ kind: "unknown" });
  }
}

export class ClusterClient {
  readonly name: string;
  readonly #world: World;
  readonly #options: ClientOptions;
  readonly #startedAtMs: number;
  readonly #work: Channel;
  readonly #renewals: Channel;
  #target = 0;
  #leases = 0;
  #requests = 0;
  #isResting = false;
  /** True time of the newest answer of a node that serves. */
  servedAtMs = -Infinity;
  /** Leases granted so far. */
  granted = 0;

  constructor(world: World, options: ClientOptions) {
    this.#world = world;
    this.#options = options;
    this.name = `client-${options.index}`;
    this.#startedAtMs = world.nowMs;
    this.#target = options.index;
    this.#work = new Channel(this.name, world, () => this.#pickNode());
    this.#renewals = new Channel(`${this.name}-renewals`, world, () => this.#pickNode());
  }

  start(): void {
    this.#spawn(this.#live());
  }

  /** No new leases, and nothing is renewed any more. */
  rest(): void {
    this.#isResting = true;
  }

  breakConnection(): void {
    (this.#world.random.chance(0.5) ? this.#work : this.#renewals).drop();
  }

  get #nowMs(): number {
    const { clockRate, clockOriginMs } = this.#options;
    return clockOriginMs + (this.#world.nowMs - this.#startedAtMs) * clockRate;
  }

  // The program ---------------------------------------------------------------------------------------------------------

  *#live(): Program<void> {
    const { random } = this.#world;
    const { workload, judge } = this.#options;
    while (!this.#isResting) {
      yield* this.#sleep(random.exponential(workload.thinkMsMean));
      const belief = yield* this.#grant();
      if (belief === null) continue;
      this.#spawn(this.#keepAlive(belief));
      for (let round = random.integer(0, 3); round > 0 && this.#believes(belief); round -= 1) yield* this.#lock(belief);
      if (random.chance(workload.abandonChance)) {
        belief.isAbandoned = true;
        // It is believed in until its time is over: nothing may take it before.
        yield* this.#sleep(random.exponential(workload.thinkMsMean));
      } else {
        yield* this.#revoke(belief);
        judge.forgets(belief);
      }
    }
  }

  *#grant(): Program<Belief | null> {
    const { random } = this.#world;
    const { workload, judge } = this.#options;
    this.#leases += 1;
    const ttlMs = random.pick(workload.ttlsMs);
    const nonce = random.chance(workload.repeatChance) ? `nonce-${this.#options.index}-${this.#leases}` : null;
    const belief = new Belief(`c${this.#options.index}-${this.#leases}`, this.name, ttlMs, () => this.#nowMs);
    const key = random.chance(0.4) ? this.#someKey() : null;
    const known = key === null ? 0 : judge.tokenKnown(key);
    const keys = key === null ? [] : [{ key, value: belief.id }];
    const command: Command = { kind: "lease-grant", id: belief.id, ttlMs, keys, label: null, request: nonce };
    const tries = nonce === null ? 1 : TRIES_MAX;
    for (let count = 0; count < tries; count += 1) {
      if (count > 0) belief.wasRepeated = true;
      const answer = yield* this.#ask(this.#work, command);
      if (answer.kind === "refused" && nonce === null) judge.ended(belief, "its grant was refused: no node served it");
      if (answer.kind !== "reply") continue;
      const { reply, sentAtMs } = answer;
      if (!Array.isArray(reply)) {
        judge.ended(belief, "its grant was answered that the key is held");
        return null;
      }
      belief.untilMs = sentAtMs + ttlMs;
      judge.renewed(belief, true);
      this.granted += 1;
      if (key !== null) judge.acquired(belief, key, Number(reply[2]), known);
      return belief;
    }
    return null;
  }

  *#keepAlive(belief: Belief): Program<void> {
    const { random } = this.#world;
    const { judge } = this.#options;
    const { id, ttlMs } = belief;
    while (!belief.isGivenUp && !belief.isAbandoned && !this.#isResting) {
      yield* this.#sleep((ttlMs / 3) * random.between(0.5, 1.1));
      for (let count = 0; count < TRIES_MAX && !belief.isGivenUp && !belief.isAbandoned; count += 1) {
        const answer = yield* this.#ask(this.#renewals, { kind: "lease-keepalive", id });
        if (answer.kind !== "reply") continue;
        if (answer.reply instanceof ErrorReply) {
          judge.deadByWord(belief, answer.reply.text);
          belief.isGivenUp = true;
          judge.forgets(belief);
          return;
        }
        belief.untilMs = Math.max(belief.untilMs, answer.sentAtMs + ttlMs);
        judge.renewed(belief, false);
        break;
      }
    }
  }

  /** Acquires a key, holds it for a while, gives it back or not. */
  *#lock(belief: Belief): Program<void> {
    const { random } = this.#world;
    const { workload, judge } = this.#options;
    const key = this.#someKey();
    const known = judge.tokenKnown(key);
    const blockMs = random.chance(0.5) ? random.integer(1, workload.blockMsMax) : null;
    const command: Command = {
      kind: "lock-acquire",
      key,
      id: belief.id,
      value: null,
      mode: { kind: "exclusive" },
      blockMs,
    };
    let token: number | null = null;
    for (let count = 0; count < TRIES_MAX && this.#believes(belief); count += 1) {
      const answer = yield* this.#ask(this.#work, command, blockMs ?? 0);
      if (answer.kind !== "reply") continue;
      if (typeof answer.reply === "number") token = answer.reply;
      else if (answer.reply instanceof ErrorReply && answer.reply.text.startsWith("NOLEASE"))
        judge.deadByWord(belief, answer.reply.text);
      break;
    }
    if (token === null || belief.isGivenUp) return;
    judge.acquired(belief, key, token, known);
    yield* this.#sleep(random.exponential(workload.thinkMsMean));
    if (random.chance(0.7)) yield* this.#release(belief, key, token);
  }

  *#release(belief: Belief, key: ByteString, token: number): Program<void> {
    const { judge } = this.#options;
    belief.keys.delete(key);
    for (let count = 0; count < TRIES_MAX; count += 1) {
      const answer = yield* this.#ask(this.#work, { kind: "lock-release", key, id: belief.id, token });
      if (answer.kind !== "reply") continue;
      judge.released(belief, key, token);
      return;
    }
  }

  *#revoke(belief: Belief): Program<void> {
    const { judge } = this.#options;
    belief.isGivenUp = true;
    for (let count = 0; count < TRIES_MAX; count += 1) {
      const answer = yield* this.#ask(this.#work, { kind: "lease-revoke", ids: [belief.id] });
      if (answer.kind !== "reply") continue;
      judge.ended(belief, "its end was acknowledged");
      return;
    }
  }

  #believes(belief: Belief): boolean {
    return !belief.isGivenUp && this.#nowMs < belief.untilMs;
  }

  #someKey(): ByteString {
    return `key-${this.#world.random.integer(0, this.#options.workload.keys - 1)}`;
  }

  // What programs wait for ----------------------------------------------------------------------------------------------

  *#sleep(ms: number): Program<void> {
    yield (resume) => this.#world.after(ms, () => resume(undefined));
  }

  /** Sends a command; after anything but a reply waits a little, for the next try goes to another node. */
  *#ask(channel: Channel, command: Command, extraPatienceMs = 0): Program<Answer> {
    const { judge, workload } = this.#options;
    this.#requests += 1;
    const request: Request = { number: this.#requests, command, sentAtMs: this.#nowMs };
    const patienceMs = workload.patienceMs + extraPatienceMs;
    const answer = (yield (resume) => channel.send(request, patienceMs, resume)) as Answer;
    if (answer.kind === "reply") {
      this.servedAtMs = this.#world.nowMs;
    } else {
      if (answer.kind === "unknown") judge.unknownOutcome();
      this.#target += 1;
      yield* this.#sleep(this.#world.random.exponential(BACKOFF_MS_MEAN));
    }
    return answer;
  }

  /** A node that listens, or null: the one that is tried next has no process, or its machine stands still. */
  #pickNode(): ClusterNode | null {
    const { random } = this.#world;
    const nodes = this.#options.nodes();
    if (random.chance(this.#options.workload.askChance)) {
      const asked = nodes.length === 0 ? null : random.pick(nodes);
      const told = asked === null || asked.host.isHeld ? null : asked.keeper.primary();
      return nodes.find((node) => node.incarnation === told?.id) ?? null;
    }
    return nodes.find(({ index }) => index === this.#target % 3) ?? null;
  }

  #spawn(program: Program<void>): void {
    const resume = (value: unknown): void => {
      const next = program.next(value);
      if (next.done !== true) next.value(resume);
    };
    resume(undefined);
  }
}

class Belief implements LeaseBelief {
  readonly id: ByteString;
  readonly clientName: string;
  readonly ttlMs: number;
  readonly clientNowMs: () => number;
  readonly keys = new Map<ByteString, number>();
  untilMs = -Infinity;
  isGivenUp = false;
  wasRepeated = false;
  /** It is not renewed any more. */
  isAbandoned = false;

  constructor(id: ByteString, clientName: string, ttlMs: number, clientNowMs: () => number) {
    this.id = id;
    this.clientName = clientName;
    this.ttlMs = ttlMs;
    this.clientNowMs = clientNowMs;
  }
}
