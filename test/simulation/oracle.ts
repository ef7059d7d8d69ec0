import { isDeepStrictEqual } from "node:util";
import type { Command, Origin, Turn } from "#src/engine/command.js";
import type { Decision, Engine } from "#src/engine/engine.js";
import { eventsOf, type EngineEvent } from "#src/engine/events.js";
import { SPREAD_MS_MAX, SPREAD_TTL_FRACTION } from "#src/engine/limits.js";
import type { Op, Revision } from "#src/engine/op.js";
import type { ByteString, Reply } from "#src/engine/reply.js";
import type { Beliefs } from "./beliefs.js";
import { instanceName, keyName, Model, type ModelLease } from "./model.js";
import type { EngineWatcher } from "./probe.js";
import { checkReply, describe, leasesShown, promisesOf } from "./reply-rules.js";
import type { ClientClock, SimRequest } from "./request.js";
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

/** What became of one lease, from its grant on; it outlives crashes, as promises do. */
export interface LeaseLife {
  readonly name: string;
  readonly id: ByteString;
  /** What a keep-alive renews by, in milliseconds. */
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
}

export interface OracleOptions {
  readonly clockErrorPerMille: number;
  readonly leasesMax: number;
  readonly keysMax: number;
  readonly keysPerLeaseMax: number;
  /** True while events are wanted. */
  hasListeners(): boolean;
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

  /** The life of the lease that an id names now. */
  lifeOf(id: ByteString): LeaseLife | null {
    const lease = this.live.leases.get(id);
    return lease === undefined ? null : this.#lifeOfLease(lease);
  }

  /** Whether a lease (by id) or key (by `keyName`) was there before a decision and at every moment since. */
  isOlderThan(name: string, decisionOrder: number): boolean {
    return (this.#thereSince.get(name) ?? this.#servesSince) < decisionOrder;
  }

  // Decisions -------------------------------------------------------------------------------------------------------

  /** Whatever is decided until `endSubmit` belongs to this request. */
  beginSubmit(request: SimRequest, turnNowMs: number): void {
    this.#current = request;
    this.#turnNowMs = turnNowMs;
  }

  endSubmit(): void {
    this.#current = null;
  }

  applied(engine: Engine, applied: Command, origin: Origin, decision: Decision, turn: Turn): void {
    const command = simulatedCommand(applied);
    check(engine === this.#engine, "ports", () => `a command of an engine that does not serve: ${command.kind}`);
    const request = this.#current;
    check(
      request === null ? command.kind === "lease-expire" : request.command === command,
      "ports",
      () => "a stray command",
    );
    const isFresh = request === null || turn.nowMs >= this.#turnNowMs;
    check(isFresh, "ports", () => `${command.kind} is decided at ${turn.nowMs}, its turn began at ${this.#turnNowMs}`);
    this.#decisions += 1;
    const before = this.live;
    const hadOps = decision.ops.length > 0;
    const deadlines = this.#deadlinesBefore();
    if (hadOps) this.live = before.clone();
    if (hadOps) this.#applyOps(decision.ops, engine.state.revision, turn.nowMs);
    this.#noteDeadlines(command, decision, turn);
    const context = {
      command,
      origin,
      decision,
      revision: engine.state.revision,
      before,
      after: this.live,
      oracle: this,
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
    const target = "id" in command && command.id !== null ? this.live.leases.get(command.id) : undefined;
    const granted = command.kind === "lease-grant" && Array.isArray(decision.reply) ? String(decision.reply[0]) : null;
    const lease = granted === null ? target : this.live.leases.get(granted);
    request.decision = {
      reply: decision.reply,
      order: this.#decisions,
      requiredRevision: hadOps ? engine.state.revision : this.#revealed.by(command, origin, decision.reply, this.live),
      promises: promisesOf(context),
      instance: lease === undefined ? null : instanceName(lease.id, lease.token),
      changedSomething: decision.ops.some((op) => !(op.kind === "lease-end" && op.reason === "expired")),
    };
  }

  /** Keys without a lease are removed while the role is taken: those that were planted, and no others. */
  appliedOps(engine: Engine, ops: readonly Op[]): void {
    const removed = ops.map((op) =>
      op.kind === "key-end" ? orphanName(op.databaseIndex, op.key, op.leaseId) : op.kind,
    );
    const isExact = removed.length === this.orphans.size && removed.every((name) => this.orphans.has(name));
    check(isExact, "recovery", () => `removes ${removed.join(" ")} of ${[...this.orphans].join(" ")}`);
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

  /** When the leases that are there now have to be dead, before a command that may renew them. */
  #deadlinesBefore(): Map<LeaseLife | null, number> {
    const deadlines = new Map<LeaseLife | null, number>();
    for (const lease of this.live.leases.values()) {
      const life = this.#lifeOfLease(lease);
      deadlines.set(life, life.deadAtMs);
    }
    return deadlines;
  }

  #applyOps(ops: readonly Op[], revision: Revision, nowMs: number): void {
    const newest = this.#log.at(-1)?.revision ?? this.#disk.syncedRevision;
    check(revision > newest, "I2-tokens", () => `revision ${revision} after ${newest}`);
    check(
      revision > this.#released,
      "I2-tokens",
      () => `revision ${revision} again, ${this.#released} was told to a client`,
    );
    this.#log.push({ revision, ops });
    const flushed = this.options.hasListeners() ? this.#flushEvents(ops) : [];
    for (const appliedOp of ops) {
      const op = simulatedOp(appliedOp);
      this.#beforeOp(op, nowMs);
      this.#revealed.note(op, revision, this.live);
      this.#noteNewName(op);
      const isOld = op.kind === "lease-put" && this.#chosenIds.has(op.id) && !this.live.leases.has(op.id);
      check(!isOld || !this.#isServersChoice(), "ops", () => `id ${JSON.stringify(op)} was given before`);
      this.live.apply(op, revision);
      if (op.kind === "lease-put") this.#beginLife(op.id, op.token, op.ttlMs, nowMs);
      if (this.options.hasListeners())
        for (const event of eventsOf(op)) this.#events.push({ revision, anyOf: [event] });
    }
    if (flushed.length > 0) this.#events.push({ revision, anyOf: flushed });
  }

  /** What a flush does to those who listen: every lease and key that goes is named, in any order. */
  #flushEvents(ops: readonly Op[]): EngineEvent[] {
    const events: EngineEvent[] = [];
    for (const op of ops) {
      if (op.kind !== "flush-all" && op.kind !== "flush-database") continue;
      if (op.kind === "flush-all") {
        for (const { id } of this.live.leases.values()) events.push({ kind: "lease", id, message: "forced" });
      }
      for (const { databaseIndex, key, leaseId, token } of this.live.keys.values()) {
        if (op.kind === "flush-database" && databaseIndex !== op.databaseIndex) continue;
        events.push({ kind: "lock", key, message: `released ${leaseId} ${token}` });
      }
    }
    return events;
  }

  #beforeOp(op: Op, nowMs: number): void {
    const { live } = this;
    if (op.kind === "lease-end") {
      const lease = live.leases.get(op.id);
      if (lease === undefined) return;
      if (op.reason === "expired") this.#expire(this.#lifeOfLease(lease), nowMs);
      else this.#beliefs.leaseTakenAway(instanceName(lease.id, lease.token));
      for (const name of lease.keys) this.#forgetInScans(name);
      this.#forgetInScans(op.id);
    } else if (op.kind === "key-end") {
      const name = keyName(op.databaseIndex, op.key);
      this.#beliefs.keyTakenAway(name, op.token);
      this.#forgetInScans(name);
    } else if (op.kind === "flush-database" || op.kind === "flush-all") {
      for (const [name, key] of live.keys) {
        if (op.kind === "flush-database" && key.databaseIndex !== op.databaseIndex) continue;
        this.#beliefs.keyTakenAway(name, key.token);
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
    const command = this.#current?.command;
    return command?.kind === "lease-grant" && command.id === null;
  }

  #noteNewName(op: Op): void {
    if (op.kind === "lease-put" && !this.live.leases.has(op.id)) this.#thereSince.set(op.id, this.#decisions);
    if (op.kind !== "key-put") return;
    const name = keyName(op.databaseIndex, op.key);
    if (!this.live.keys.has(name)) this.#thereSince.set(name, this.#decisions);
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
    else if (command.kind === "lease-setttl") {
      const life = this.lifeOf(command.id);
      if (life === null || decision.ops.some((op) => op.kind === "lease-put")) return;
      this.#shorten(life, command.ttlMs, turn.nowMs + this.#paddedMs(command.ttlMs));
    }
  }

  /** The longest that a lease may live after `ttlMs` were promised: padding, and what rounding adds. */
  #paddedMs(ttlMs: number): number {
    return ttlMs + Math.ceil((ttlMs * this.options.clockErrorPerMille) / 1000) + 1;
  }

  #lifeOfLease(lease: ModelLease): LeaseLife {
    const life = this.lives.get(instanceName(lease.id, lease.token));
    check(life !== undefined, "ops", () => `lease ${lease.id} was never granted`);
    return life;
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
    const { command } = request;
    if (command.kind === "lease-grant" && command.id === null && Array.isArray(reply))
      this.#chosenIds.add(String(reply[0]));
    for (const promise of decision.promises) {
      const life = this.lives.get(promise.instance);
      if (life === undefined || decision.order < life.voidedAt) continue;
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
    this.#durable = this.durableNow();
    this.#log = [];
    this.live = this.#durable.clone();
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
      const lease = this.live.leases.get(life.id);
      if (lease === undefined || instanceName(lease.id, lease.token) !== name) {
        if (Number(name.slice(name.lastIndexOf("#") + 1)) > syncedRevision) this.lives.delete(name);
        continue;
      }
      life.ttlMs = lease.ttlMs;
      life.expiredAtTrueMs = null;
      life.isOnGrace = true;
      life.deadAtMs = nowMs + this.#paddedMs(lease.ttlMs) + Math.min(SPREAD_MS_MAX, lease.ttlMs * SPREAD_TTL_FRACTION);
    }
    this.#compareByCommands(engine);
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
    check(count === this.live.keys.size, rule, () => `${count} keys of ${this.live.keys.size}`);
    for (const held of this.live.keys.values()) {
      const origin = { ...NOBODY, databaseIndex: held.databaseIndex };
      const { reply } = engine.decide({ kind: "key-get", key: held.key }, turn, origin);
      check(reply === held.value, rule, () => `key ${held.key} is ${describe(reply)}, not ${held.value}`);
      const attach = {
        kind: "lease-attach",
        id: held.leaseId,
        key: held.key,
        value: held.value,
        force: false,
      } as const;
      const token = engine.decide(attach, turn, origin).reply;
      check(token === held.token, "I2-tokens", () => `key ${held.key} has token ${describe(token)}, not ${held.token}`);
    }
  }
}

/** One name for a row that says that a lease holds a key. */
export const orphanName = (databaseIndex: number, key: ByteString, leaseId: ByteString): string =>
  `${keyName(databaseIndex, key)} of ${leaseId}`;

/** A digest begins with the revision, which the removal of orphans moves. */
const withoutRevision = (digest: string): string => digest.replace(/^revision \d+/, "");

const NOBODY: Origin = { databaseIndex: 0, owner: "" };
