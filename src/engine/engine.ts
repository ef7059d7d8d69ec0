import { checkInvariants } from "./audit.js";
import type { Command, Origin, Turn } from "./command.js";
import { Deadlines } from "./deadlines.js";
import { decide } from "./decide.js";
import { Draft, Repetition, Shortening, type Decision, type Renewals } from "./draft.js";
import { EndedLeases } from "./ended-leases.js";
import type { EngineEvent } from "./events.js";
import { flushEvents } from "./flush-events.js";
import { invariant } from "./invariant.js";
import { NO_LEASE } from "./lease-table.js";
import { DATABASE_COUNT, ENDED_LEASES_REMEMBERED_MAX, SWEPT_PER_CALL_MAX, type EngineLimits } from "./limits.js";
import type { KeyEndOp, LeaseEndOp, LeaseEndReason, Op, Revision } from "./op.js";
import { replay } from "./replay.js";
import type { ByteString } from "./reply.js";
import { Recovery, type OrphanKey } from "./recovery.js";
import { State } from "./state.js";

/**
 * The door of this room: state, deadlines and rules behind one object. Pure and deterministic: time comes with each turn, the
 * disk is somebody else's.
 *
 * Life of an engine, in this order:
 *   recover*, recoverRevision*, finishRecovery     the rows of the store
 *   beginRebuild, rebuildSome*                     every lease gets a deadline by this node's clock
 *   decide, apply, dueLeases, durable, sweepSome   service
 *
 * Invariants:
 *  - `decide` changes nothing; `apply` is the only way into the state while serving, `recover` before that
 *  - between a `decide` and the `apply` of its decision nothing else is applied
 *  - time never steps back from one `apply` to the next
 */

export { checkInvariants, digest } from "./audit.js";
export type { Decision } from "./draft.js";

export interface RecoveryReport {
  /** Keys whose lease is not there, and keys that two leases claim (all but the newest claim). None is in the state. */
  readonly orphanKeys: readonly OrphanKey[];
}

export class Engine {
  readonly state = new State();
  readonly #deadlines: Deadlines;
  readonly #draft: Draft;
  readonly #ended = new EndedLeases();
  readonly #recovery = new Recovery(this.state);
  #durableRevision: Revision = 0;
  #nowMs = -Infinity;

  leasesGranted = 0;
  leasesExpired = 0;
  leasesRevoked = 0;
  keepAlives = 0;
  /** The largest lateness of an expiry so far, in milliseconds. */
  expiryLateMsMax = 0;

  /** `incarnation`: of the store, made when it was created; server-chosen lease ids begin with it. */
  constructor(limits: EngineLimits, incarnation: ByteString) {
    this.#deadlines = new Deadlines(this.state.leases, limits.clockErrorPerMille);
    this.#draft = new Draft(this.state, this.#deadlines, limits, incarnation);
  }

  /** Live leases. */
  get leases(): number {
    return this.state.leases.liveCount;
  }

  /** Keys of live leases, by database index. */
  get keysByDatabase(): readonly number[] {
    return Array.from({ length: DATABASE_COUNT }, (_, index) => this.state.keys(index).liveCount);
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
    return this.state.sweep(this.#durableRevision, limit);
  }

  /** When the tick is needed next, monotonic milliseconds, perhaps in the past; null when it is not. */
  nextDueMs(): number | null {
    const dueMs = this.state.hasSweepable(this.#durableRevision) ? this.#nowMs : this.#deadlines.nextDueMs();
    return dueMs === Infinity ? null : Math.max(dueMs, this.#nowMs);
  }

  /**
   * Up to `limit` ids of leases past their deadline, for a lease-expire command. Work is bounded: it may name fewer, even none,
   * while more are due; `nextDueMs` tells. A lease that was named and did not end is named again by a later call while it is past
   * its deadline, and comes up in its time when it was renewed: nothing has to be given back.
   */
  dueLeases(nowMs: number, limit: number): readonly ByteString[] {
    const rows: number[] = [];
    this.#deadlines.due(nowMs, limit, rows);
    return rows.map((row) => this.state.leases.id(row));
  }

  /** Throws InvariantError when something in here does not fit together. Walks over everything: for tests and simulation. */
  checkInvariants(): void {
    checkInvariants(this.state);
    this.#deadlines.checkInvariants();
  }

  #applyOps(ops: readonly Op[], turn: Turn): void {
    const revision = this.state.revision + 1;
    this.state.revision = revision;
    for (const op of ops) {
      if (op.kind === "lease-end") this.#beforeEnd(op, turn);
      else if (op.kind === "flush-all") this.#beforeFlush(op.by, turn);
      replay(this.state, op, revision);
      if (op.kind === "lease-put") {
        this.#deadlines.start(this.state.leases.findLive(op.id), op.ttlMs, turn.nowMs);
        if (op.token === revision) this.leasesGranted += 1;
      }
    }
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
      if (!leases.isLive(row)) continue;
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
    return { orphanKeys: this.#recovery.orphanKeys };
  }

  /** The ops that remove the orphans from the store; they change nothing here. */
  orphanRemovals(): readonly KeyEndOp[] {
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
