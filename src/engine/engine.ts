import { checkInvariants } from "./audit.js";
import type { Command, KeyName, Origin, Turn } from "./command.js";
import { Deadlines } from "./deadlines.js";
import { decide } from "./decide.js";
import { Draft, Repetition, Shortening, type Decision, type Digest, type Renewals } from "./draft.js";
import { EndedLeases } from "./ended-leases.js";
import type { EngineEvent } from "./events.js";
import { flushEvents } from "./flush-events.js";
import { invariant, unreachable } from "./invariant.js";
import { NO_LEASE, type LeaseRow } from "./lease-table.js";
import { DATABASE_COUNT, ENDED_LEASES_REMEMBERED_MAX, SWEPT_PER_CALL_MAX, type EngineLimits } from "./limits.js";
import { handOver } from "./lock.js";
import type { LeaseEndOp, LeaseEndReason, Op, Revision } from "./op.js";
import { replay } from "./replay.js";
import type { ByteString } from "./reply.js";
import { Recovery, type OrphanKey } from "./recovery.js";
import { State } from "./state.js";
import { Waiters, type WaitId } from "./waiters.js";

/**
 * The door of this room: state, deadlines and rules behind one object. Pure and deterministic: time comes with each turn, the
 * disk is somebody else's.
 *
 * Whoever waits for a key gets it through `handOver`: to be called after every `apply`, again and again until there is nothing to
 * hand over, in the same turn, so that the end of one hold and the beginning of the next lie in one batch.
 *
 * Life of an engine, in this order:
 *   recover*, recoverRevision*, finishRecovery     the rows of the store
 *   beginRebuild, rebuildSome*                     every lease gets a deadline by this node's clock
 *   decide, apply, handOver, dropKeys, due*, durable, sweepSome   service
 *
 * Invariants:
 *  - `decide` changes nothing; `apply` is the only way into the state while serving, `recover` before that
 *  - between a `decide` and the `apply` of its decision nothing else is applied
 *  - time never steps back from one `apply` to the next
 */

export { checkInvariants, digest } from "./audit.js";
export type { Decision, Digest } from "./draft.js";
export type { Grant, WaitId, Wake } from "./waiters.js";

/** What the tick is to end: for a lease-expire command. */
export interface Due {
  readonly ids: readonly ByteString[];
  readonly keys: readonly KeyName[];
}

export interface RecoveryReport {
  /** Keys whose lease is not there, and keys that two leases claim (all but the newest claim). None is in the state. */
  readonly orphanKeys: readonly OrphanKey[];
}

export class Engine {
  readonly state = new State();
  readonly waiters = new Waiters();
  readonly #deadlines: Deadlines;
  readonly #draft: Draft;
  readonly #ended = new EndedLeases();
  readonly #recovery = new Recovery(this.state);
  #durableRevision: Revision = 0;
  /** The newest slice of keys that the ends of large leases left unnamed. */
  #droppedAt: Revision = 0;
  #nowMs = -Infinity;

  leasesGranted = 0;
  leasesExpired = 0;
  leasesRevoked = 0;
  keepAlives = 0;
  /** Plain keys whose time was over. */
  keysExpired = 0;
  /** The largest lateness of an expiry so far, in milliseconds. */
  expiryLateMsMax = 0;

  /**
   * `incarnation`: of the store, made when it was created; server-chosen lease ids begin with it.
   * `digest`: what DIGEST answers; without it the commands that need it are a programmer error.
   */
  constructor(limits: EngineLimits, incarnation: ByteString, digest: Digest = noDigest) {
    this.#deadlines = new Deadlines(this.state.leases, limits.clockErrorPerMille);
    this.#draft = new Draft(this.state, this.#deadlines, this.waiters, limits, incarnation, digest);
  }

  /** Live leases. */
  get leases(): number {
    return this.state.leases.liveCount;
  }

  /** Keys of live leases, by database index. */
  get keysByDatabase(): readonly number[] {
    return Array.from({ length: DATABASE_COUNT }, (_, index) => this.state.keys(index).liveCount);
  }

  /** Look-ups of keys by commands that read, as Redis counts them: those that found one. */
  get keyspaceHits(): number {
    return this.#draft.readsHit;
  }

  /** Those that found none. */
  get keyspaceMisses(): number {
    return this.#draft.readsMissed;
  }

  /** Keys without a TTL, by database index. */
  get lastingKeysByDatabase(): readonly number[] {
    const { forever } = this.state.leases;
    return Array.from({ length: DATABASE_COUNT }, (_, index) =>
      forever === NO_LEASE ? 0 : this.state.keys(index).countOf(forever),
    );
  }

  // Service ---------------------------------------------------------------------------------------------------------

  /** What a command answers and what is to be done for it. Changes nothing. */
  decide(command: Command, turn: Turn, origin: Origin): Decision {
    return decide(this.#draft, this.#ended, command, turn, origin);
  }

  /** Carries out a decision, in the turn in which it was made. Its ops take the next revision, one for all of them. */
  apply(decision: Decision, turn: Turn): void {
    invariant(turn.nowMs >= this.#nowMs, "time does not step back");
    this.#nowMs = turn.nowMs;
    if (decision.ops.length > 0) this.#applyOps(decision.ops, turn);
    if (decision.renewals !== NO_LEASE) this.#renew(decision.renewals, turn.nowMs);
    if (decision.wakes.length > 0) for (const { waitId } of decision.wakes) this.waiters.remove(waitId);
    if (decision.waits !== null) this.waiters.add(decision.waits, turn.nowMs);
  }

  /**
   * What is to be done for the next of those who wait for a key that may be free: a grant, or the end of a lease that died while it
   * waited. To be applied like any decision; its reply means nothing. null when nobody can be helped: cheap, when nothing happened.
   */
  handOver(turn: Turn): Decision | null {
    const { waiters } = this;
    for (let queue = waiters.firstReady; queue !== null; queue = waiters.firstReady) {
      this.#draft.begin(turn, { databaseIndex: queue.databaseIndex, owner: "" });
      const hasMoved = handOver(this.#draft, queue);
      const decision = this.#draft.finish(null);
      if (hasMoved || decision.ops.length > 0) return decision;
      waiters.settle(queue);
    }
    return null;
  }

  /**
   * What is to be done for the next keys that the ends of large leases left unnamed: they are gone for everybody already, their rows go
   * now. To be applied like any decision, before anything else; its reply means nothing. One slice per batch: null until the one
   * before is durable, and when there is none.
   */
  dropKeys(turn: Turn): Decision | null {
    if (!this.#canDropKeys) return null;
    this.#draft.begin(turn, { databaseIndex: 0, owner: "" });
    this.#draft.endLeftKeys(this.#durableRevision, this.#draft.limits.keysEndedAtOnceMax);
    const decision = this.#draft.finish(null);
    if (decision.ops.length === 0) return null;
    this.#droppedAt = this.#draft.revision;
    return decision;
  }

  get #canDropKeys(): boolean {
    return this.#droppedAt <= this.#durableRevision && this.state.hasLeftovers(this.#durableRevision);
  }

  /**
   * For WATCH: the revision at which a key that is there last changed; 0 for a key that is not, be it that its time is over. Two
   * equal answers: the key is as it was, but for a time that was moved in memory alone, or it was absent and is again.
   */
  revisionOf(databaseIndex: number, key: ByteString, turn: Turn): Revision {
    const table = this.state.keys(databaseIndex);
    const row = table.find(key);
    if (row < 0) return 0;
    this.#draft.begin(turn, { databaseIndex, owner: "" });
    return this.#draft.isHeld(row) ? table.changedAt.get(row) : 0;
  }

  /** The source of a script; null when there is none of that SHA-1. */
  scriptSource(sha: ByteString): ByteString | null {
    return this.state.scripts.find(sha)?.body ?? null;
  }

  /** What clients hear of the flushes among these ops, which only the state before them can tell: call before `apply`. */
  flushEvents(ops: readonly Op[]): readonly EngineEvent[] {
    return flushEvents(this.state, ops);
  }

  /** Carries out ops that no command decided, as `orphanRemovals`. Returns their revision. */
  applyOps(ops: readonly Op[]): Revision {
    const revision = this.state.revision + 1;
    this.state.revision = revision;
    for (const op of ops) replay(this.state, op, revision);
    return revision;
  }

  /** Everything up to this revision is durable: ended rows need not be remembered any more. Sweeps a slice of them. */
  durable(revision: Revision): void {
    this.#durableRevision = revision;
    this.sweepSome(SWEPT_PER_CALL_MAX);
  }

  /** Frees up to `limit` rows of ended leases and keys. Returns true when none is left that could be. */
  sweepSome(limit: number): boolean {
    const isSwept = this.state.sweep(this.#durableRevision, limit);
    return this.state.sweepStrays(limit, this.#cancel) && isSwept;
  }

  readonly #cancel = (row: LeaseRow): void => {
    this.#deadlines.cancel(row);
  };

  /** When the tick is needed next, monotonic milliseconds, perhaps in the past; null when it is not. */
  nextDueMs(): number | null {
    if (this.state.hasSweepable(this.#durableRevision) || this.#canDropKeys) return this.#nowMs;
    if (this.waiters.firstReady !== null) return this.#nowMs;
    const dueMs = Math.min(this.#deadlines.nextDueMs(), this.waiters.nextDueMs());
    return dueMs === Infinity ? null : Math.max(dueMs, this.#nowMs);
  }

  /**
   * Up to `limit` leases and plain keys past their deadline, for a lease-expire command. Work is bounded: it may name fewer, even none,
   * while more are due; `nextDueMs` tells. What was named and did not end is named again by a later call while it is past
   * its deadline, and comes up in its time when it was renewed: nothing has to be given back.
   */
  dueLeases(nowMs: number, limit: number): Due {
    const { leases } = this.state;
    const rows: LeaseRow[] = [];
    this.#deadlines.due(nowMs, limit, rows);
    const ids: ByteString[] = [];
    const keys: KeyName[] = [];
    for (const row of rows) {
      if (!leases.isHidden(row)) ids.push(leases.id(row));
      else if (!this.state.isStray(row)) keys.push(this.#keyOfHidden(row));
    }
    return { ids, keys };
  }

  /** Up to `limit` blocked commands whose time is over, for a wait-end command; bounded work as `dueLeases`. */
  dueWaits(nowMs: number, limit: number): readonly WaitId[] {
    return this.waiters.due(nowMs, limit);
  }

  #keyOfHidden(row: LeaseRow): KeyName {
    const databaseIndex = this.state.leases.databaseOfHidden(row);
    const table = this.state.keys(databaseIndex);
    return { databaseIndex, key: table.name(table.firstOf(row)) };
  }

  /** Throws InvariantError when something in here does not fit together. Walks over everything: for tests and simulation. */
  checkInvariants(): void {
    checkInvariants(this.state);
    this.#deadlines.checkInvariants();
    this.waiters.checkInvariants((row) => this.state.leases.isLive(row));
  }

  #applyOps(ops: readonly Op[], turn: Turn): void {
    const revision = this.state.revision + 1;
    this.state.revision = revision;
    for (const op of ops) {
      this.#beforeOp(op, turn);
      replay(this.state, op, revision);
      this.#afterOp(op, revision, turn);
    }
  }

  /** Deadlines and notes of what goes: while it can still be found. */
  #beforeOp(op: Op, turn: Turn): void {
    switch (op.kind) {
      case "lease-end":
        this.#beforeEnd(op, turn);
        return;
      case "string-put":
        if (op.ttlMs === null) this.#cancelKey(op);
        return;
      case "string-end":
        this.#cancelKey(op);
        if (op.reason === "expired") this.keysExpired += 1;
        return;
      case "flush-all":
        this.#beforeFlush(op.by, turn);
        return;
      case "lease-put":
      case "lease-keys-end":
      case "key-put":
      case "key-end":
      case "script-put":
      case "script-end":
      case "scripts-flush":
      case "flush-database":
        return;
      default:
        unreachable(op);
    }
  }

  /** Deadlines of what came, and those who wait for what went. */
  #afterOp(op: Op, revision: Revision, turn: Turn): void {
    const { waiters } = this;
    switch (op.kind) {
      case "lease-put":
        this.#deadlines.start(this.state.leases.findLive(op.id), op.ttlMs, turn.nowMs);
        if (op.token === revision) this.leasesGranted += 1;
        return;
      case "string-put":
        if (op.ttlMs !== null && op.keepsTime !== true) {
          this.#deadlines.start(this.#holderOf(op), op.ttlMs, turn.nowMs);
        }
        return;
      case "key-put":
      case "key-end":
      case "string-end":
        if (waiters.count > 0) waiters.touch(op.databaseIndex, op.key);
        return;
      case "lease-end":
      case "lease-keys-end":
        if (waiters.count === 0) return;
        for (const { databaseIndex, key } of op.keys) waiters.touch(databaseIndex, key);
        return;
      case "flush-database":
        waiters.touchAll(op.databaseIndex);
        return;
      case "flush-all":
      case "script-put":
      case "script-end":
      case "scripts-flush":
        return;
      default:
        unreachable(op);
    }
  }

  /** The deadline of a plain key, if it has one. */
  #cancelKey(name: KeyName): void {
    const { leases } = this.state;
    const holder = this.#holderOf(name);
    if (holder >= 0 && holder !== leases.forever && leases.isHidden(holder)) this.#deadlines.cancel(holder);
  }

  #holderOf({ databaseIndex, key }: KeyName): LeaseRow {
    const table = this.state.keys(databaseIndex);
    const row = table.find(key);
    return row < 0 ? NO_LEASE : table.holder(row);
  }

  #beforeEnd(op: LeaseEndOp, turn: Turn): void {
    const row = this.state.leases.findLive(op.id);
    if (row === NO_LEASE) return;
    this.#deadlines.cancel(row);
    this.#ended.note(op.id, { reason: op.reason, endedAtUnixMs: turn.unixMs, lateMs: op.lateMs, by: op.by });
    if (op.reason === "expired") {
      this.leasesExpired += 1;
      this.expiryLateMsMax = Math.max(this.expiryLateMsMax, op.lateMs);
    } else if (op.reason === "revoked") {
      this.leasesRevoked += 1;
    }
  }

  /** All leases go; some of them, as many as are remembered at all, can be asked about afterwards. */
  #beforeFlush(by: ByteString, turn: Turn): void {
    const { leases } = this.state;
    const reason: LeaseEndReason = "forced";
    let noted = 0;
    for (let row = 0; row < leases.rows.rowsEnd && noted < ENDED_LEASES_REMEMBERED_MAX; row += 1) {
      if (!leases.isLive(row) || leases.isHidden(row)) continue;
      this.#ended.note(leases.id(row), { reason, endedAtUnixMs: turn.unixMs, lateMs: 0, by });
      noted += 1;
    }
    this.#deadlines.clear();
  }

  #renew(renewals: Renewals, nowMs: number): void {
    if (typeof renewals === "number") {
      this.#deadlines.renew(renewals, nowMs);
      this.keepAlives += 1;
    } else if (renewals instanceof Shortening) {
      this.#deadlines.start(renewals.row, renewals.ttlMs, nowMs);
    } else if (renewals instanceof Repetition) {
      this.#deadlines.renewAtLeast(renewals.row, renewals.ttlMs, nowMs);
    } else {
      for (const row of renewals) this.#deadlines.renew(row, nowMs);
      this.keepAlives += renewals.length;
    }
  }

  // Recovery --------------------------------------------------------------------------------------------------------

  /** One row of the store, as the op that recreates it: all leases before all keys. No deadlines yet. */
  recover(op: Op): void {
    this.#recovery.recover(op);
  }

  /** The revision high-water mark of the store. */
  recoverRevision(revision: Revision): void {
    this.state.revision = Math.max(this.state.revision, revision);
    this.#durableRevision = this.state.revision;
  }

  finishRecovery(): RecoveryReport {
    this.sweepSome(Infinity);
    for (let index = 0; index < DATABASE_COUNT; index += 1) this.state.keys(index).orderMembers();
    return { orphanKeys: this.#recovery.orphanKeys };
  }

  /** The ops that remove the orphans from the store; they change nothing here. */
  orphanRemovals(): readonly Op[] {
    return this.#recovery.removals();
  }

  /** The role was taken: every lease is to get its full TTL from now on, by this node's clock. */
  beginRebuild(turn: Turn): void {
    this.#nowMs = turn.nowMs;
    this.#deadlines.beginRebuild(turn.nowMs);
  }

  /** Gives up to `limit` more leases their deadline. Returns true when all have one. */
  rebuildSome(limit: number): boolean {
    return this.#deadlines.rebuildSome(limit);
  }
}

function noDigest(): never {
  invariant(false, "DIGEST needs a hash function");
}
