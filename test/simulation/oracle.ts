import { isDeepStrictEqual } from "node:util";
import type { Command, Origin, Turn } from "#src/engine/command.js";
import type { Decision, Engine, Wake } from "#src/engine/engine.js";
import { eventsOf, eventsOfKeys, type EngineEvent } from "#src/engine/events.js";
import { SPREAD_MS_MAX, SPREAD_TTL_FRACTION } from "#src/engine/limits.js";
import type { Op, Revision, Token } from "#src/engine/op.js";
import type { ByteString, Reply } from "#src/engine/reply.js";
import type { Beliefs } from "./beliefs.js";
import { instanceName, isPlainId, keyName, type LeftRow, Model, nameOfPlain, plainId } from "./model.js";
import type { EngineWatcher } from "./probe.js";
import { Queues, type Ask, type Place } from "./queues.js";
import { describe, isError, isOk } from "./reply-forms.js";
import { acquiredBy, checkReply, instanceOf, leasesShown, promisesOf, type ReplyContext } from "./reply-rules.js";
import { commandsOf, mayWait, type ClientClock, type DecisionPart, type SimRequest } from "./request.js";
import { Revealed } from "./revealed.js";
import type { SimDisk } from "./sim-store.js";
import type { World } from "./sim-world.js";
import { simulatedCommand, simulatedOp } from "./simulated.js";
import { check } from "./violation.js";

/**
 * Knows what the server knows and what it owes. Fed with every decision at the moment at which it is carried out, it keeps
 *  - a plain model of leases and keys, live and as the disk has it, and the ops that lie between the two
 *  - for each lease what clients were promised, by their clocks, and when it has to be dead, by the server's
 *  - which revision each reply has to wait for
 * and compares everything that the server says and does with that.
 */

/** What became of one lease or plain key, from its grant on; it outlives crashes, as promises do. */
export interface LeaseLife {
  readonly name: string;
  readonly id: ByteString;
  /** What a keep-alive renews by, in milliseconds; Infinity: a plain key that lasts. */
  ttlMs: number;
  /** By client: until when it may believe, by its own clock. */
  readonly promises: Map<ClientClock, number>;
  /** Promises of decisions before this one do not count any more: a shorter TTL was asked for. */
  voidedAt: number;
  /** By the server's clock: from here on no command may find it alive. */
  deadAtMs: number;
  /** True time of an expiry. */
  expiredAtTrueMs: number | null;
  /** Nobody has renewed it since the role was taken. */
  isOnGrace: boolean;
}

/** Events that come next, in any order among themselves. */
interface ExpectedEvents {
  readonly revision: Revision;
  readonly anyOf: EngineEvent[];
}

interface LoggedOps {
  readonly revision: Revision;
  readonly ops: readonly Op[];
  /** The simulation's event in which it happened. */
  readonly event: number;
}

/** Revisions that are on disk all of them or none. */
interface Glued {
  readonly first: Revision;
  readonly last: Revision;
  readonly what: string;
}

/** A key that was handed to somebody who waited for it. */
interface HandedKey {
  readonly name: string;
  readonly requests: readonly SimRequest[];
  /** Its lease was told by another answer that it has the key. */
  isToldElsewhere: boolean;
}

export interface OracleOptions {
  readonly clockErrorPerMille: number;
  readonly leasesMax: number;
  readonly keysMax: number;
  readonly keysPerLeaseMax: number;
  /** True while events are wanted. */
  hasListeners(): boolean;
  /** The server ended something by itself: by time, or because nobody would hear that they have it. */
  onEnded(op: Op): void;
}

export class Oracle implements EngineWatcher {
  readonly #world: World;
  readonly #disk: SimDisk;
  readonly #beliefs: Beliefs;
  readonly options: OracleOptions;
  readonly lives = new Map<string, LeaseLife>();
  live = new Model();
  #durable = new Model();
  #log: LoggedOps[] = [];
  #revealed = new Revealed();
  #digests = new Map<Revision, string>();
  #decisions = 0;
  /** The newest revision that some released reply revealed. */
  #released: Revision = 0;
  #events: ExpectedEvents[] = [];
  #current: SimRequest | null = null;
  /** What has been decided of it. */
  #parts: DecisionPart[] = [];
  #partsRevision: Revision = 0;
  /** The newest revision before it. */
  #revisionBefore: Revision = 0;
  readonly queues = new Queues();
  #glued: Glued[] = [];
  /** The newest revision that was handed to the store. */
  #batchEnd: Revision = 0;
  #handed = new Map<Token, HandedKey>();
  handedOnCount = 0;
  /** The clock reading of the turn that the current request is part of. */
  #turnNowMs = -Infinity;
  #engine: Engine | null = null;
  #epoch = 0;
  /** Ids that the server chose and a client was told of. */
  readonly #chosenIds = new Set<ByteString>();
  /** Rows that belong to no lease lie on the disk: by `orphanName`. */
  orphans: ReadonlySet<string> = new Set();
  /** The revision of their newest removal, durable or not. */
  orphansRemovedAt: Revision | null = null;
  #removedOrphans = false;
  /** Those of them that ended leases left. */
  #leftRemoved: readonly LeftRow[] = [];
  /** From here on, by the server's clock, nothing keeps it from ending leases in time. */
  calmFromMs = Infinity;
  /** How late it may be then. */
  lateMsMax = Infinity;
  /** Scans under way: the names that each has to meet. */
  readonly scans = new Set<Set<string>>();
  /** The decision since which a lease or key is there without a break; absent: since before this engine served. */
  readonly #thereSince = new Map<string, number>();
  /** The newest decision before this engine served. */
  #servesSince = 0;

  constructor(world: World, disk: SimDisk, beliefs: Beliefs, options: OracleOptions) {
    this.#world = world;
    this.#disk = disk;
    this.#beliefs = beliefs;
    this.options = options;
  }

  get decisions(): number {
    return this.#decisions;
  }

  /** The life of the lease or plain key that an id names now. */
  lifeOf(id: ByteString): LeaseLife | null {
    const instance = instanceOf(this.live, id);
    if (instance === null) return null;
    const life = this.lives.get(instance);
    check(life !== undefined, "ops", () => `${instance} was never granted`);
    return life;
  }

  /** Whether a lease (by id) or key (by `keyName`) was there before a decision and at every moment since. */
  isOlderThan(name: string, decisionOrder: number): boolean {
    return (this.#thereSince.get(name) ?? this.#servesSince) < decisionOrder;
  }

  // Decisions -------------------------------------------------------------------------------------------------------

  /** Whatever is decided until `endSubmit` belongs to this request. */
  beginSubmit(request: SimRequest, turnNowMs: number): void {
    this.#current = request;
    this.#parts = [];
    this.#partsRevision = 0;
    this.#revisionBefore = this.#newestRevision;
    this.#turnNowMs = turnNowMs;
  }

  /** All commands of a step were decided; `reply` is what the step answers. */
  stepDone(request: SimRequest, reply: Reply): void {
    request.decision = { reply, requiredRevision: this.#partsRevision, parts: this.#parts };
    const last = this.#newestRevision;
    if (last > this.#revisionBefore + 1) this.#glue(this.#revisionBefore + 1, last, `step ${request.number}`);
  }

  endSubmit(): void {
    this.#current = null;
  }

  /** The server hears that a connection is gone. `requests`: those whose replies it did not get from the server. */
  connectionGone(requests: readonly SimRequest[]): void {
    for (const request of requests) {
      request.isGone = true;
    }
  }

  /** The server has done what it does about that: it kept no key for those who are gone, of which nobody has heard. */
  connectionForgotten(): void {
    for (const [token, { name, isToldElsewhere, requests }] of this.#handed) {
      const isUnheard = !isToldElsewhere && requests.every((request) => request.isGone && request.isReleased !== true);
      const isHeld = isUnheard && this.live.holders(name).some((hold) => hold.token === token);
      check(!isHeld, "I7-order", () => `${name} is kept for ${token}, of which nobody will hear`);
    }
  }

  get #newestRevision(): Revision {
    return this.#log.at(-1)?.revision ?? this.#disk.syncedRevision;
  }

  #glue(first: Revision, last: Revision, what: string): void {
    const isTorn = first <= this.#batchEnd && this.#batchEnd < last;
    check(!isTorn, "atomic", () => `${what} goes from ${first} to ${last}, a batch ends at ${this.#batchEnd}`);
    this.#glued.push({ first, last, what });
  }

  applied(engine: Engine, applied: Command, origin: Origin, decision: Decision, turn: Turn): void {
    const command = simulatedCommand(applied);
    check(engine === this.#engine, "ports", () => `a command of an engine that does not serve: ${command.kind}`);
    const request = this.#current;
    this.#checkExpected(command, request);
    const isFresh = request === null || turn.nowMs >= this.#turnNowMs;
    check(isFresh, "ports", () => `${command.kind} is decided at ${turn.nowMs}, its turn began at ${this.#turnNowMs}`);
    this.#decisions += 1;
    const { revision } = engine.state;
    const before = "key" in command ? this.live.holders(keyName(origin.databaseIndex, command.key)) : [];
    const deadlines = this.#deadlinesBefore();
    const hadOps = decision.ops.length > 0;
    if (hadOps) this.#applyOps(decision.ops, revision, turn.nowMs, request === null && command.kind === "lock-release");
    this.#noteDeadlines(command, decision, turn);
    this.#noteTimes(decision, revision);
    for (const wake of decision.wakes) this.#wake(wake, decision, revision, turn, command);
    const context: ReplyContext = {
      command,
      origin,
      decision,
      revision,
      before,
      after: this.live,
      queues: this.queues,
      mayWait: request !== null && mayWait(request.command),
      options: this.options,
      lifeOf: (id) => this.lifeOf(id),
      isSurelyAlive: (id) => turn.nowMs < (this.lifeOf(id)?.deadAtMs ?? -Infinity) - this.#slackMs(id),
    };
    checkReply(context);
    for (const id of leasesShown(context)) {
      const life = this.lifeOf(id);
      const deadAtMs = deadlines.get(life) ?? Infinity;
      const text = (): string => `${command.kind} shows ${id} at ${turn.nowMs}, dead since ${deadAtMs}`;
      check(life !== null && turn.nowMs <= deadAtMs, "I6-dead-is-dead", text);
    }
    if (request === null) return;
    check(request.decision === null, "ports", () => `request ${request.number} was decided twice`);
    if (decision.waits !== null) {
      this.#begin(decision.waits, request, origin);
      return;
    }
    const requiredRevision = hadOps ? revision : this.#revealed.by(command, origin, decision.reply, this.live);
    this.#notePart(request, this.#partOf(context), requiredRevision);
  }

  #partOf(context: ReplyContext): DecisionPart {
    const { command, decision, origin } = context;
    const { reply } = decision;
    const target = "id" in command && command.id !== null ? command.id : null;
    const granted = command.kind === "lease-grant" && Array.isArray(reply) ? String(reply[0]) : null;
    const plain = command.kind === "string-set" ? plainId(keyName(origin.databaseIndex, command.key)) : null;
    const id = granted ?? target ?? plain;
    return {
      command,
      reply,
      order: this.#decisions,
      promises: promisesOf(context),
      instance: id === null ? null : instanceOf(this.live, id),
      acquired: acquiredBy(context),
      changedSomething: decision.ops.some((op) => !isExpiry(op) && !(op.kind === "key-put" && op.valueOnly === true)),
    };
  }

  #notePart(request: SimRequest, part: DecisionPart, requiredRevision: Revision): void {
    for (const { token } of part.acquired) {
      const handed = this.#handed.get(token);
      if (handed !== undefined) handed.isToldElsewhere = true;
    }
    this.#parts.push(part);
    this.#partsRevision = Math.max(this.#partsRevision, requiredRevision);
    if (request.command.kind === "step") return;
    request.decision = { reply: part.reply, requiredRevision, parts: [part] };
  }

  #checkExpected(command: Command, request: SimRequest | null): void {
    const isOwn = ["lease-expire", "wait-end", "lock-release"].includes(command.kind);
    const expected = request === null ? undefined : commandsOf(request.command)[this.#parts.length];
    const isExpected =
      request === null
        ? isOwn
        : request.command.kind === "step"
          ? expected?.kind === command.kind
          : expected === command;
    check(isExpected, "ports", () => `a stray command: ${command.kind}`);
    if (request !== null || command.kind !== "lock-release") return;
    // A key that was handed to somebody who has gone meanwhile.
    const handed = command.token === null ? undefined : this.#handed.get(command.token);
    const isUnheard =
      handed !== undefined && !handed.isToldElsewhere && handed.requests.every((asked) => asked.isReleased !== true);
    check(isUnheard, "I7-order", () => `key ${command.key} is taken back from ${command.id}, who was told of it`);
  }

  // Waiting -----------------------------------------------------------------------------------------------------------

  #begin(waits: NonNullable<Decision["waits"]>, request: SimRequest, origin: Origin): void {
    const { command } = request;
    const isAcquire = command.kind === "lock-acquire" && command.blockMs !== null;
    check(isAcquire, "I7-order", () => `${command.kind} waits`);
    const { waitId, key, mode, deadlineMs } = waits;
    const name = keyName(origin.databaseIndex, key);
    const value = command.value ?? command.id;
    this.queues.add({ name, leaseId: command.id, mode, value }, { waitId, request, deadlineMs });
  }

  /** Somebody's wait is over. */
  #wake(wake: Wake, decision: Decision, revision: Revision, turn: Turn, cause: Command | null): void {
    const found = this.queues.find(wake.waitId);
    check(found !== null, "I7-order", () => `${wake.waitId} is answered and does not wait`);
    const { place, ask } = found;
    const { reply } = wake;
    if (typeof reply === "number") this.#checkHandOver(place, reply, decision);
    else if (reply === null) this.#checkTimeOver(ask, turn, cause);
    else this.#checkRefusal(place, reply);
    this.queues.remove(wake.waitId);
    this.#answerAsk(place, ask, reply, revision, decision);
  }

  /** Who is handed a key is the first who waits for it, and everybody who waits in that place is told. */
  #checkHandOver(place: Place, token: Token, decision: Decision): void {
    const own = this.live.holdOf(place.name, place.leaseId);
    const [first] = this.queues.of(place.name);
    const text = (): string => `${place.name} is handed to ${place.leaseId}, ${first?.leaseId} came first`;
    check(first === place, "I7-order", text);
    const isHeld = own?.token === token && own.mode.kind === place.mode.kind;
    check(isHeld, "I7-order", () => `${place.leaseId} is told ${token} of ${place.name}: ${JSON.stringify(own)}`);
    const isNew = decision.ops.some((op) => op.kind === "key-put" && op.token === token);
    check(!isNew || own.value === place.value, "I7-order", () => `${place.name} is handed on as ${own.value}`);
    const isHeard = place.asks.some((ask) => ask.request.isGone !== true);
    check(isHeard, "I7-order", () => `${place.name} is handed to ${place.leaseId}, whose connection is gone`);
    const woken = new Set(decision.wakes.map((wake) => wake.waitId));
    const isWhole = place.asks.every((ask) => woken.has(ask.waitId));
    check(isWhole, "I7-order", () => `${place.leaseId} has ${place.name} and still waits for it`);
    if (!isNew) return;
    this.handedOnCount += 1;
    this.#handed.set(token, {
      name: place.name,
      requests: place.asks.map((ask) => ask.request),
      isToldElsewhere: false,
    });
  }

  #checkTimeOver(ask: Ask, turn: Turn, cause: Command | null): void {
    const isOver = cause?.kind === "wait-end" && (ask.request.isGone === true || turn.nowMs >= ask.deadlineMs);
    check(
      isOver,
      "I7-order",
      () => `${ask.request.number} waits no more at ${turn.nowMs}, it may until ${ask.deadlineMs}`,
    );
    const lateMs = ask.request.isGone === true ? 0 : turn.nowMs - ask.deadlineMs;
    const isInTime = ask.deadlineMs < this.calmFromMs || lateMs <= this.lateMsMax;
    check(isInTime, "liveness", () => `${ask.request.number} waits ${lateMs} ms too long on an idle server`);
  }

  #checkRefusal(place: Place, reply: Reply): void {
    const { live } = this;
    const own = live.holdOf(place.name, place.leaseId);
    const lease = live.leases.get(place.leaseId);
    const { keysMax, keysPerLeaseMax } = this.options;
    const isRight =
      lease === undefined
        ? isError(reply, "NOLEASE")
        : own !== undefined
          ? isError(reply, "WRONGMODE") && own.mode.kind !== place.mode.kind
          : isError(reply, "OOM") && (live.keyCountForLimits >= keysMax || lease.keys.size >= keysPerLeaseMax);
    check(isRight, "I7-order", () => `${place.leaseId} waits for ${place.name} and gets ${describe(reply)}`);
  }

  #answerAsk(place: Place, { request }: Ask, reply: Reply, revision: Revision, decision: Decision): void {
    const { command } = request;
    if (command.kind !== "lock-acquire") return;
    const hadOps = decision.ops.length > 0;
    const { name, leaseId, mode } = place;
    const required = hadOps ? revision : this.#revealed.ofAcquire(leaseId, request.databaseIndex, command.key, reply);
    const part: DecisionPart = {
      command,
      reply,
      order: this.#decisions,
      promises: [],
      instance: instanceOf(this.live, leaseId),
      acquired: typeof reply === "number" ? [{ name, token: reply, mode }] : [],
      changedSomething: hadOps,
    };
    request.decision = { reply, requiredRevision: required, parts: [part] };
  }

  handedOn(engine: Engine, decision: Decision, turn: Turn): void {
    check(engine === this.#engine, "ports", () => "an engine that does not serve hands keys on");
    this.#decisions += 1;
    const { revision } = engine.state;
    const cause = this.#log.at(-1);
    const deadlines = this.#deadlinesBefore();
    for (const op of decision.ops) {
      const isGrant = op.kind === "key-put" && op.valueOnly !== true;
      check(
        isGrant || isExpiry(op) || op.kind === "lease-keys-end",
        "ops",
        () => `keys are handed on by ${JSON.stringify(op)}`,
      );
    }
    if (decision.ops.length > 0) {
      this.#applyOps(decision.ops, revision, turn.nowMs, false);
      if (cause?.event === this.#world.eventsRun) this.#glue(cause.revision, revision, "a key's way to the next");
    }
    for (const wake of decision.wakes) {
      const id = this.queues.find(wake.waitId)?.place.leaseId ?? "";
      if (typeof wake.reply === "number") {
        const deadAtMs = deadlines.get(this.lifeOf(id)) ?? -Infinity;
        check(turn.nowMs <= deadAtMs, "I6-dead-is-dead", () => `a key is handed to ${id}, dead since ${deadAtMs}`);
      }
      this.#wake(wake, decision, revision, turn, null);
    }
  }

  /** Between two events: nobody waits for what it could have, or in vain. `nowMs`: by the server's clock. */
  checkQueues(nowMs: number): void {
    if (this.queues.isEmpty) return;
    for (const { leaseId, name, asks } of this.queues.places) {
      check(this.live.leases.has(leaseId), "I7-order", () => `${leaseId} waits for ${name} and is dead`);
      const isInTime = nowMs < this.calmFromMs || asks.every((ask) => nowMs <= ask.deadlineMs + this.lateMsMax);
      check(isInTime, "liveness", () => `${leaseId} waits for ${name} beyond its time on an idle server`);
    }
    for (const { name, mode, leaseId } of this.queues.firsts()) {
      const text = (): string => `${leaseId} is kept waiting for ${name}, which is free`;
      // Its turn comes with the row's.
      if (this.live.left.has(name)) continue;
      check(this.live.fit(name, mode) !== "fits", "I7-order", text);
    }
  }

  /** Keys without a lease are removed while the role is taken: what was planted, what ended leases left, and nothing else. */
  appliedOps(engine: Engine, ops: readonly Op[]): void {
    const removed = ops.map((op) =>
      op.kind === "key-end" ? orphanName(op.databaseIndex, op.key, op.leaseId) : op.kind,
    );
    const expected = new Set(this.orphans);
    const left = [...this.durableNow().left.values()];
    for (const { databaseIndex, key, leaseId } of left) expected.add(orphanName(databaseIndex, key, leaseId));
    const isExact = removed.length === expected.size && removed.every((name) => expected.has(name));
    check(isExact, "recovery", () => `removes ${removed.join(" ")} of ${[...expected].join(" ")}`);
    this.#leftRemoved = left;
    this.#removedOrphans = true;
    this.orphansRemovedAt = engine.state.revision;
  }

  /** The state that a recovery of what is durable now has to give. */
  durableNow(): Model {
    const model = this.#durable.clone();
    for (const { revision, ops } of this.#log) {
      if (revision > this.#disk.syncedRevision) break;
      for (const op of ops) model.apply(simulatedOp(op), revision);
    }
    return model;
  }

  /** When what is there now has to be dead, before a command that may renew it. */
  #deadlinesBefore(): Map<LeaseLife | null, number> {
    const deadlines = new Map<LeaseLife | null, number>();
    const note = (life: LeaseLife | null): void => {
      if (life !== null) deadlines.set(life, life.deadAtMs);
    };
    for (const id of this.live.leases.keys()) note(this.lifeOf(id));
    for (const hold of this.live.allHolds()) if (hold.plainTtlMs !== null) note(this.lifeOf(hold.leaseId));
    return deadlines;
  }

  /** How much earlier than at `deadAtMs` it may be dead. */
  #slackMs(id: ByteString): number {
    const life = this.lifeOf(id);
    const graceMs = life?.isOnGrace === true ? Math.min(SPREAD_MS_MAX, life.ttlMs * SPREAD_TTL_FRACTION) : 0;
    return 2 + graceMs;
  }

  /** Changes of time that are no ops are told of at once, in their place among the others. */
  #noteTimes(decision: Decision, revision: Revision): void {
    if (!this.options.hasListeners()) return;
    for (const event of decision.events) this.#events.push({ revision, anyOf: [event] });
  }

  /** `takesBack`: nobody believes in the key that ends, or it is the server's fault. */
  #applyOps(ops: readonly Op[], revision: Revision, nowMs: number, takesBack: boolean): void {
    const newest = this.#newestRevision;
    check(revision > newest, "I2-tokens", () => `revision ${revision} after ${newest}`);
    check(
      revision > this.#released,
      "I2-tokens",
      () => `revision ${revision} again, ${this.#released} was told to a client`,
    );
    this.#log.push({ revision, ops, event: this.#world.eventsRun });
    const flushed = this.options.hasListeners() ? this.#flushEvents(ops) : [];
    for (const appliedOp of ops) {
      const op = simulatedOp(appliedOp);
      if (isExpiry(op) || (takesBack && op.kind === "key-end")) this.options.onEnded(this.#withAllKeys(op));
      if (!(takesBack && op.kind === "key-end")) this.#beforeOp(op, nowMs);
      this.#revealed.note(op, revision, this.live);
      this.#noteNewName(op);
      const isOld = op.kind === "lease-put" && this.#chosenIds.has(op.id) && !this.live.leases.has(op.id);
      check(!isOld || !this.#isServersChoice(), "ops", () => `id ${JSON.stringify(op)} was given before`);
      this.live.apply(op, revision);
      if (op.kind === "lease-put") this.#beginLife(op.id, op.token, op.ttlMs, nowMs);
      if (op.kind === "string-put" && op.keepsTime !== true) {
        this.#beginLife(plainId(keyName(op.databaseIndex, op.key)), op.token, op.ttlMs ?? Infinity, nowMs);
      }
      if (this.options.hasListeners())
        for (const event of eventsOf(op)) this.#events.push({ revision, anyOf: [event] });
    }
    if (flushed.length > 0) this.#events.push({ revision, anyOf: flushed });
  }

  /** The end of a lease with every key that it takes with it, those that the op leaves unnamed too. */
  #withAllKeys(op: Op): Op {
    if (op.kind !== "lease-end" || op.hasMore !== true) return op;
    const names = [...(this.live.leases.get(op.id)?.keys ?? [])];
    const keys = names.flatMap((name) => this.live.holdOf(name, op.id) ?? []);
    return { ...op, keys };
  }

  /** What a flush does to those who listen: every lease and key that goes is named, in any order. */
  #flushEvents(ops: readonly Op[]): EngineEvent[] {
    const events: EngineEvent[] = [];
    for (const op of ops) {
      if (op.kind !== "flush-all" && op.kind !== "flush-database") continue;
      if (op.kind === "flush-all") {
        for (const { id } of this.live.leases.values()) events.push({ kind: "lease", id, message: "forced" });
      }
      for (const { databaseIndex, key, leaseId, token, plainTtlMs } of this.live.allHolds()) {
        if (plainTtlMs !== null) continue;
        if (op.kind === "flush-database" && databaseIndex !== op.databaseIndex) continue;
        events.push({ kind: "lock", key, message: `released ${leaseId} ${token}` });
      }
      for (const row of this.live.left.values()) {
        if (op.kind === "flush-database" && row.databaseIndex !== op.databaseIndex) continue;
        events.push(...eventsOfKeys(row.leaseId, row.reason, [row]));
      }
    }
    return events;
  }

  #beforeOp(op: Op, nowMs: number): void {
    const { live } = this;
    if (op.kind === "lease-end") {
      const lease = live.leases.get(op.id);
      const life = this.lifeOf(op.id);
      if (lease === undefined || life === null) return;
      if (op.reason === "expired") this.#expire(life, nowMs);
      else this.#beliefs.leaseTakenAway(life.name);
      for (const name of lease.keys) this.#forgetInScans(name);
      this.#forgetInScans(op.id);
    } else if (op.kind === "string-end" && op.reason === "expired") {
      const name = keyName(op.databaseIndex, op.key);
      const life = this.lifeOf(plainId(name));
      if (life !== null) this.#expire(life, nowMs);
      this.#forgetInScans(name);
    } else if (op.kind === "key-end" || op.kind === "string-end") {
      const name = keyName(op.databaseIndex, op.key);
      this.#beliefs.keyTakenAway(name, op.token);
      this.#forgetInScans(name);
    } else if (op.kind === "string-put") {
      // Set to something else: another key of the same name.
      const name = keyName(op.databaseIndex, op.key);
      const held = live.first(name);
      if (held !== undefined && held.token !== op.token) this.#beliefs.keyTakenAway(name, held.token);
    } else if (op.kind === "flush-database" || op.kind === "flush-all") {
      for (const hold of live.allHolds()) {
        if (op.kind === "flush-database" && hold.databaseIndex !== op.databaseIndex) continue;
        const name = keyName(hold.databaseIndex, hold.key);
        this.#beliefs.keyTakenAway(name, hold.token);
        this.#forgetInScans(name);
      }
      if (op.kind === "flush-database") return;
      for (const lease of live.leases.values()) {
        this.#beliefs.leaseTakenAway(instanceName(lease.id, lease.token));
        this.#forgetInScans(lease.id);
      }
    }
  }

  /** The request that is decided now leaves the id to the server. */
  #isServersChoice(): boolean {
    const commands = this.#current === null ? [] : commandsOf(this.#current.command);
    const command = commands[this.#parts.length];
    return command?.kind === "lease-grant" && command.id === null;
  }

  #noteNewName(op: Op): void {
    if (op.kind === "lease-put" && !this.live.leases.has(op.id)) this.#thereSince.set(op.id, this.#decisions);
    if (op.kind !== "key-put" && op.kind !== "string-put") return;
    const name = keyName(op.databaseIndex, op.key);
    if (!this.live.has(name)) this.#thereSince.set(name, this.#decisions);
  }

  #forgetInScans(name: string): void {
    for (const names of this.scans) names.delete(name);
  }

  /** I5: a lease ends by time only when every client that was promised something has stopped believing, by its own clock. */
  #expire(life: LeaseLife, nowMs: number): void {
    life.expiredAtTrueMs = this.#world.nowMs;
    const lateMs = nowMs - life.deadAtMs;
    const isInTime = life.deadAtMs < this.calmFromMs || lateMs <= this.lateMsMax;
    check(isInTime, "liveness", () => `${life.name} expired ${lateMs} ms late on an idle server`);
    for (const [client, untilMs] of life.promises) this.#checkOver(life, client, untilMs);
  }

  #checkOver(life: LeaseLife, client: ClientClock, untilMs: number): void {
    const atMs = client.clockAt(life.expiredAtTrueMs ?? Infinity);
    const text = (): string =>
      `${life.name} expired ${untilMs - atMs} ms before client ${client.index} stops believing in it`;
    check(atMs >= untilMs, "I5-early-expiry", text);
  }

  #beginLife(id: ByteString, token: number, ttlMs: number, nowMs: number): void {
    const name = instanceName(id, token);
    const deadAtMs = nowMs + this.#paddedMs(ttlMs);
    const life = this.lives.get(name);
    if (life === undefined) {
      const promises = new Map<ClientClock, number>();
      this.lives.set(name, {
        name,
        id,
        ttlMs,
        promises,
        voidedAt: 0,
        deadAtMs,
        expiredAtTrueMs: null,
        isOnGrace: false,
      });
    } else if (life.ttlMs === Infinity && ttlMs < Infinity) {
      this.#shorten(life, ttlMs, deadAtMs);
    } else {
      // A longer TTL: it outlasts every promise that was made before.
      life.isOnGrace = false;
      life.ttlMs = ttlMs;
      life.deadAtMs = deadAtMs;
    }
  }

  /** A TTL at or below the durable one was asked for: from now on it counts, whatever was promised before. */
  #shorten(life: LeaseLife, ttlMs: number, deadAtMs: number): void {
    life.isOnGrace = false;
    life.ttlMs = ttlMs;
    life.deadAtMs = deadAtMs;
    life.voidedAt = this.#decisions;
    life.promises.clear();
    this.#beliefs.ttlShortened(life.name, this.#decisions);
  }

  /** What a command that writes nothing does to deadlines. */
  #noteDeadlines(command: Command, decision: Decision, turn: Turn): void {
    const renew = (id: ByteString, atLeastMs: number): void => {
      const life = this.lifeOf(id);
      if (life === null) return;
      life.isOnGrace = false;
      life.deadAtMs = Math.max(life.deadAtMs, turn.nowMs + this.#paddedMs(Math.max(life.ttlMs, atLeastMs)));
    };
    const { reply } = decision;
    if (command.kind === "lease-keepalive") renew(command.id, 0);
    else if (command.kind === "lease-keepalive-many") for (const id of command.ids) renew(id, 0);
    else if (command.kind === "lease-grant" && Array.isArray(reply)) renew(String(reply[0]), Number(reply[1]));
    else if (command.kind === "key-expire" || command.kind === "string-set")
      this.#noteShorterTime(command, decision, turn);
    else if (command.kind === "lease-setttl") {
      const life = this.lifeOf(command.id);
      if (life === null || decision.ops.some((op) => op.kind === "lease-put")) return;
      this.#shorten(life, command.ttlMs, turn.nowMs + this.#paddedMs(command.ttlMs));
    }
  }

  /** A plain key that is given a time which the disk knows already. */
  #noteShorterTime(
    { key, expiry }: Extract<Command, { kind: "key-expire" | "string-set" }>,
    decision: Decision,
    turn: Turn,
  ): void {
    const isDone = decision.reply === 1 || isOk(decision.reply);
    const isWritten = decision.ops.some((op) => op.kind === "string-put");
    const id = plainId(keyName(this.#current?.databaseIndex ?? 0, key));
    const life = this.lifeOf(id);
    if (!isDone || isWritten || life === null || expiry.kind !== "in") return;
    this.#shorten(life, expiry.ttlMs, turn.nowMs + this.#paddedMs(expiry.ttlMs));
  }

  /** The longest that a lease may live after `ttlMs` were promised: padding, and what rounding adds. */
  #paddedMs(ttlMs: number): number {
    if (ttlMs === Infinity) return Infinity;
    return ttlMs + Math.ceil((ttlMs * this.options.clockErrorPerMille) / 1000) + 1;
  }

  // Replies ---------------------------------------------------------------------------------------------------------

  /** A reply leaves the server: what it reveals is durable, and what it promises counts from now on. */
  released(request: SimRequest, reply: Reply): void {
    const { decision } = request;
    check(decision !== null, "I8-replies", () => `request ${request.number} is answered without having been decided`);
    check(
      decision.reply === reply,
      "I8-replies",
      () => `request ${request.number} gets another reply than was decided`,
    );
    const { requiredRevision } = decision;
    const { syncedRevision } = this.#disk;
    const text = (): string =>
      `${request.command.kind} reveals revision ${requiredRevision}, the disk has ${syncedRevision}: ${JSON.stringify(reply)}`;
    check(requiredRevision <= syncedRevision, "release", text);
    this.#released = Math.max(this.#released, requiredRevision);
    request.isReleased = true;
    for (const part of decision.parts) this.#releasedPart(request, part);
  }

  #releasedPart(request: SimRequest, { command, reply, promises, order }: DecisionPart): void {
    if (command.kind === "lease-grant" && command.id === null && Array.isArray(reply))
      this.#chosenIds.add(String(reply[0]));
    for (const promise of promises) {
      const life = this.lives.get(promise.instance);
      if (life === undefined || order < life.voidedAt) continue;
      const untilMs = request.sentAtMs + promise.ms;
      life.promises.set(request.client, Math.max(untilMs, life.promises.get(request.client) ?? -Infinity));
      if (life.expiredAtTrueMs !== null) this.#checkOver(life, request.client, untilMs);
    }
  }

  published(event: EngineEvent): void {
    const expected = this.#events[0];
    const index = expected?.anyOf.findIndex((candidate) => isDeepStrictEqual(event, candidate)) ?? -1;
    const text = (): string => `published ${JSON.stringify(event)}, expected ${JSON.stringify(expected)}`;
    check(expected !== undefined && index >= 0, "events", text);
    check(
      expected.revision <= this.#disk.syncedRevision,
      "events",
      () => `published too early: ${JSON.stringify(event)}`,
    );
    expected.anyOf.splice(index, 1);
    if (expected.anyOf.length === 0) this.#events.shift();
  }

  // Crashes and recovery --------------------------------------------------------------------------------------------

  /** The committer hands a batch over that ends with this revision: what the engine holds now is what recovery has to give. */
  handedOver(revision: Revision, digest: string): void {
    this.#digests.set(revision, digest);
    this.#batchEnd = revision;
    this.#checkGlued(revision, "a batch ends at");
  }

  #checkGlued(revision: Revision, where: string): void {
    for (const { first, last, what } of this.#glued) {
      const isWhole = last <= revision || revision < first;
      check(isWhole, "atomic", () => `${what} goes from ${first} to ${last}, ${where} ${revision}`);
    }
    this.#glued = this.#glued.filter(({ last }) => last > this.#disk.syncedRevision);
  }

  /** The engine that served is gone. */
  engineGone(wasDrained: boolean): void {
    const { revision } = this.#log.at(-1) ?? { revision: 0 };
    const { syncedRevision } = this.#disk;
    if (wasDrained) {
      check(revision <= syncedRevision, "recovery", () => `a clean stop at ${syncedRevision} leaves out ${revision}`);
      check(this.#events.length === 0, "events", () => `${this.#events.length} events were not published`);
    }
    this.#engine = null;
    this.#removedOrphans = false;
    this.calmFromMs = Infinity;
    this.#events = [];
    this.queues.clear();
    this.#handed.clear();
  }

  /** An engine serves: it knows what is durable, all of it and nothing else. `nowMs`: by its clock. */
  recovered(engine: Engine, digest: string, epoch: number, nowMs: number): void {
    const { syncedRevision } = this.#disk;
    this.#engine = engine;
    check(epoch > this.#epoch, "recovery", () => `epoch ${epoch} after ${this.#epoch}`);
    this.#epoch = epoch;
    check(
      this.#released <= syncedRevision,
      "I3-grants-survive",
      () => `${this.#released} was told, ${syncedRevision} is there`,
    );
    const steps = this.#removedOrphans ? 1 : 0;
    const { revision: current } = engine.state;
    check(current === syncedRevision + steps, "recovery", () => `engine ${current}, disk ${syncedRevision}`);
    check(steps === 1 || this.orphans.size === 0, "recovery", () => "keys without a lease were overlooked");
    this.#batchEnd = syncedRevision;
    this.#checkGlued(syncedRevision, "the disk is at");
    this.#glued = [];
    this.#durable = this.durableNow();
    this.live = this.#durable.clone();
    this.#log = this.#leftRemovals(current);
    for (const { ops } of this.#log) for (const op of ops) this.live.apply(simulatedOp(op), current);
    this.#revealed = new Revealed();
    this.#thereSince.clear();
    this.#servesSince = this.#decisions;
    // A cursor of another engine means nothing.
    for (const names of this.scans) names.clear();
    const expected = this.#digests.get(syncedRevision);
    const isExpected = expected === undefined || withoutRevision(digest) === withoutRevision(expected);
    check(isExpected, "recovery", () => `the state differs from that of ${syncedRevision}`);
    this.#digests = new Map([[syncedRevision, digest]]);
    for (const [name, life] of this.lives) {
      if (instanceOf(this.live, life.id) !== name) {
        if (Number(name.slice(name.lastIndexOf("#") + 1)) > syncedRevision) this.lives.delete(name);
        continue;
      }
      const { id } = life;
      const ttlMs = isPlainId(id) ? this.live.first(nameOfPlain(id))?.plainTtlMs : this.live.leases.get(id)?.ttlMs;
      life.ttlMs = ttlMs ?? Infinity;
      life.expiredAtTrueMs = null;
      life.isOnGrace = true;
      life.deadAtMs = nowMs + this.#paddedMs(life.ttlMs) + Math.min(SPREAD_MS_MAX, life.ttlMs * SPREAD_TTL_FRACTION);
    }
    this.#compareByCommands(engine);
  }

  /** What ended leases left is gone with the first revision after a take-over. */
  #leftRemovals(revision: Revision): LoggedOps[] {
    const ops = this.#leftRemoved.map(({ databaseIndex, key, leaseId, token }): Op => {
      return { kind: "lease-keys-end", leaseId, reason: "forced", keys: [{ databaseIndex, key, token }] };
    });
    this.#leftRemoved = [];
    return ops.length === 0 ? [] : [{ revision, ops, event: -1 }];
  }

  /** What the recovered engine answers about each lease and key: asked, not applied. */
  #compareByCommands(engine: Engine): void {
    // Before every deadline: a lease of a millisecond may be over before anybody asks.
    const turn: Turn = { nowMs: -Infinity, unixMs: 0 };
    const rule = "I3-grants-survive";
    check(engine.leases === this.live.leases.size, rule, () => `${engine.leases} leases of ${this.live.leases.size}`);
    for (const lease of this.live.leases.values()) {
      const { reply } = engine.decide({ kind: "lease-keepalive", id: lease.id }, turn, NOBODY);
      check(
        reply === lease.ttlMs,
        rule,
        () => `lease ${lease.id} has a TTL of ${describe(reply)}, not ${lease.ttlMs} ms`,
      );
    }
    const count = engine.keysByDatabase.reduce((sum, keys) => sum + keys, 0);
    check(count === this.live.keyCount, rule, () => `${count} keys of ${this.live.keyCount}`);
    for (const held of this.live.allHolds()) {
      const { key, leaseId: id, mode, plainTtlMs } = held;
      const origin = { ...NOBODY, databaseIndex: held.databaseIndex };
      if (this.live.first(keyName(held.databaseIndex, key)) === held) {
        const { reply } = engine.decide({ kind: "key-get", key }, turn, origin);
        check(reply === held.value, rule, () => `key ${key} is ${describe(reply)}, not ${held.value}`);
      }
      if (plainTtlMs === null) {
        const again = { kind: "lock-acquire", key, id, value: null, mode, blockMs: null } as const;
        const token = engine.decide(again, turn, origin).reply;
        const text = (): string => `key ${key} of ${id} has token ${describe(token)}, not ${held.token}`;
        check(token === held.token, "I2-tokens", text);
      } else {
        const { reply } = engine.decide({ kind: "key-ttl", key, unit: "ms" }, turn, origin);
        const text = (): string => `key ${key} has ${describe(reply)} ms to live, not ${plainTtlMs}`;
        check(reply === (plainTtlMs === Infinity ? -1 : plainTtlMs), rule, text);
      }
    }
  }
}

/** One name for a row that says that a lease holds a key. */
export const orphanName = (databaseIndex: number, key: ByteString, leaseId: ByteString): string =>
  `${keyName(databaseIndex, key)} of ${leaseId}`;

const isExpiry = (op: Op): boolean => (op.kind === "lease-end" || op.kind === "string-end") && op.reason === "expired";

/** A digest begins with the revision, which the removal of orphans moves. */
const withoutRevision = (digest: string): string => digest.replace(/^revision \d+/, "");

const NOBODY: Origin = { databaseIndex: 0, owner: "" };
