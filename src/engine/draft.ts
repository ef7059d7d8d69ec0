import type { Origin, Turn } from "./command.js";
import type { Deadlines } from "./deadlines.js";
import { NO_KEY, type KeyRow, type KeyTable } from "./key-table.js";
import { NO_LEASE, type LeaseRow } from "./lease-table.js";
import { DATABASE_COUNT, EXPIRIES_PER_TURN_MAX, type EngineLimits } from "./limits.js";
import type { HeldKey, KeyEndReason, LeaseEndOp, LeaseEndReason, Op, Revision } from "./op.js";
import type { ByteString, Reply } from "./reply.js";
import type { State } from "./state.js";

/**
 * A decision in the making: what one command sees, and what it is about to do. Reads state and changes nothing.
 *
 * The rules look leases and keys up only through here, because three things have to happen at every look-up:
 *  - a lease past its deadline is ended, once per command, before anything the command itself does, and is absent with
 *    all its keys from then on (ops of the draft are not in the state yet, so the draft remembers what it ended and took)
 *  - the revision of what was found, or of what vanished there, is noted: the reply must not leave before it is durable
 *  - what this very command has ended or removed already is absent
 *
 * One Draft is reused for all commands: `begin`, rules, `finish`.
 */

/** What a command is to do, and its answer. */
export interface Decision {
  readonly reply: Reply;
  /** Durable effects, one revision for all of them; the shared empty array for reads and keep-alives. */
  readonly ops: readonly Op[];
  /** Effects on deadlines alone. */
  readonly renewals: Renewals;
  /** The newest change that the reply may have revealed, of what it touched; 0 when nothing could be taken back. */
  readonly sawRevision: Revision;
}

/**
 * Deadlines to move: a row renews that lease by its TTL (the keep-alive, which allocates nothing for it), NO_LEASE is none.
 */
export type Renewals = LeaseRow | readonly LeaseRow[] | Shortening | Repetition;

/** SETTTL at or below the durable TTL: from now on this TTL. */
export class Shortening {
  readonly row: LeaseRow;
  readonly ttlMs: number;
  constructor(row: LeaseRow, ttlMs: number) {
    this.row = row;
    this.ttlMs = ttlMs;
  }
}

/** A grant asked for again: the deadline is renewed so that the first reply holds once more. */
export class Repetition {
  readonly row: LeaseRow;
  readonly ttlMs: number;
  constructor(row: LeaseRow, ttlMs: number) {
    this.row = row;
    this.ttlMs = ttlMs;
  }
}

const NO_OPS: readonly Op[] = Object.freeze([]);

/** Keys removed by this command are remembered by row and database in one number. */
const removedKey = (databaseIndex: number, row: KeyRow): number => row * DATABASE_COUNT + databaseIndex;

export class Draft {
  readonly state: State;
  readonly deadlines: Deadlines;
  readonly limits: EngineLimits;
  /** Of the store: the first part of the ids that the server chooses. */
  readonly incarnation: ByteString;
  #origin: Origin = { databaseIndex: 0, owner: "" };
  #turn: Turn = { nowMs: 0, unixMs: 0 };
  #nowMs = 0;
  #ops: Op[] | null = null;
  #renewals: Renewals = NO_LEASE;
  #saw: Revision = 0;
  readonly #ended = new Set<LeaseRow>();
  readonly #removed = new Set<number>();
  #endedKeyCount = 0;

  constructor(state: State, deadlines: Deadlines, limits: EngineLimits, incarnation: ByteString) {
    this.state = state;
    this.deadlines = deadlines;
    this.limits = limits;
    this.incarnation = incarnation;
  }

  begin(turn: Turn, origin: Origin): void {
    this.#turn = turn;
    this.#nowMs = turn.nowMs;
    this.#origin = origin;
    this.#ops = null;
    this.#renewals = NO_LEASE;
    this.#saw = 0;
    this.#endedKeyCount = 0;
    if (this.#ended.size > 0) this.#ended.clear();
    if (this.#removed.size > 0) this.#removed.clear();
  }

  finish(reply: Reply): Decision {
    const ops = this.#ops;
    if (ops === null) return { reply, ops: NO_OPS, renewals: this.#renewals, sawRevision: this.#saw };
    return { reply, ops, renewals: this.#renewals, sawRevision: this.revision };
  }

  get nowMs(): number {
    return this.#nowMs;
  }

  /** For people to read only. */
  get unixMs(): number {
    return this.#turn.unixMs;
  }

  /** Client name and address. */
  get owner(): ByteString {
    return this.#origin.owner;
  }

  get databaseIndex(): number {
    return this.#origin.databaseIndex;
  }

  /** The keys of the database that the client has selected. */
  get keys(): KeyTable {
    return this.state.keys(this.#origin.databaseIndex);
  }

  /** The revision of this command, if it changes anything: the token of whoever gets something by it. */
  get revision(): Revision {
    return this.state.revision + 1;
  }

  /** Live leases once this decision is applied, but for those that it grants. */
  get leaseCount(): number {
    return this.state.leases.liveCount - this.#ended.size;
  }

  /** Keys once this decision is applied, but for those that it attaches. */
  get keyCount(): number {
    return this.state.keyCount - this.#endedKeyCount - this.#removed.size;
  }

  add(op: Op): void {
    if (this.#ops === null) this.#ops = [op];
    else this.#ops.push(op);
  }

  renew(renewals: Renewals): void {
    this.#renewals = renewals;
  }

  /** The reply reveals a change of this revision. */
  see(revision: Revision): void {
    if (revision > this.#saw) this.#saw = revision;
  }

  // Look-ups --------------------------------------------------------------------------------------------------------

  /** The row of a live lease; NO_LEASE when there is none (any more). */
  findLease(id: ByteString): LeaseRow {
    const { leases } = this.state;
    const row = leases.find(id);
    if (row < 0) {
      this.see(leases.flushedAt);
      return NO_LEASE;
    }
    this.see(leases.changedAt(row));
    return leases.isLive(row) && this.isAlive(row) ? row : NO_LEASE;
  }

  /** The row of a key that a live lease holds in the selected database; NO_KEY when there is none (any more). */
  findKey(name: ByteString): KeyRow {
    const { keys } = this;
    const row = keys.find(name);
    if (row < 0) {
      this.see(keys.flushedAt);
      return NO_KEY;
    }
    return this.isHeld(row) ? row : NO_KEY;
  }

  /** False for a lease past its deadline, which is ended by that, or ended by this command. `row` is live in the state. */
  isAlive(row: LeaseRow): boolean {
    if (this.#ended.size > 0 && this.#ended.has(row)) return false;
    if (!this.deadlines.isPast(row, this.#nowMs)) return true;
    this.endLease(row, "expired");
    return false;
  }

  /** Whether a row of the selected database, which is not free, is a key that a live lease holds. */
  isHeld(row: KeyRow): boolean {
    const { keys } = this;
    const { leases } = this.state;
    this.see(keys.changedAt.get(row));
    const holder = keys.holder(row);
    if (holder === NO_LEASE) return false;
    if (!leases.isLive(holder)) {
      this.see(leases.changedAt(holder));
      return false;
    }
    if (this.#removed.size > 0 && this.#removed.has(removedKey(this.#origin.databaseIndex, row))) return false;
    return this.isAlive(holder);
  }

  /**
   * The same for commands that walk over everything: beyond what one turn may end, leases past their deadline are absent
   * without being ended. Otherwise KEYS in an expiry storm would end a million leases in one turn.
   */
  isListed(row: KeyRow): boolean {
    if (this.#ended.size < EXPIRIES_PER_TURN_MAX) return this.isHeld(row);
    const holder = this.keys.holder(row);
    return holder !== NO_LEASE && this.state.leases.isLive(holder) && !this.deadlines.isPast(holder, this.#nowMs);
  }

  /** The expiry that this command met for a lease id; null when it met none. */
  expiryOf(id: ByteString): LeaseEndOp | null {
    for (const op of this.#ops ?? NO_OPS) {
      if (op.kind === "lease-end" && op.id === id) return op;
    }
    return null;
  }

  // Ends ------------------------------------------------------------------------------------------------------------

  /** Ends a live lease with all its keys. */
  endLease(row: LeaseRow, reason: LeaseEndReason): void {
    const { leases } = this.state;
    const keys = this.#keysOf(row);
    this.#ended.add(row);
    this.#endedKeyCount += keys.length;
    this.add({
      kind: "lease-end",
      id: leases.id(row),
      reason,
      lateMs: reason === "expired" ? this.deadlines.lateMs(row, this.#nowMs) : 0,
      by: reason === "expired" ? "" : this.owner,
      keys,
    });
  }

  /** Takes a held key of the selected database from its lease. */
  endKey(row: KeyRow, reason: KeyEndReason): void {
    const { keys, databaseIndex } = this;
    this.#removed.add(removedKey(databaseIndex, row));
    this.add({
      kind: "key-end",
      databaseIndex,
      key: keys.name(row),
      leaseId: this.state.leases.id(keys.holder(row)),
      token: keys.token.get(row),
      reason,
    });
  }

  #keysOf(lease: LeaseRow): readonly HeldKey[] {
    const held: HeldKey[] = [];
    for (let index = 0; index < DATABASE_COUNT; index += 1) {
      const table = this.state.keys(index);
      const count = table.countOf(lease);
      for (let left = count, row = table.firstOf(lease); left > 0; left -= 1, row = table.nextOf(row)) {
        if (this.#removed.size > 0 && this.#removed.has(removedKey(index, row))) continue;
        held.push({ databaseIndex: index, key: table.name(row), token: table.token.get(row) });
      }
    }
    return held;
  }
}
