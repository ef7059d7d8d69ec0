import type { LockMode, Origin, Turn } from "./command.js";
import type { Deadlines } from "./deadlines.js";
import { NO_KEY, type KeyRow, type KeyTable } from "./key-table.js";
import { NO_LEASE, type LeaseRow } from "./lease-table.js";
import { noLease } from "./errors.js";
import type { EngineEvent } from "./events.js";
import { invariant } from "./invariant.js";
import { DATABASE_COUNT, EXPIRIES_PER_TURN_MAX, type EngineLimits } from "./limits.js";
import type { HeldKey, KeyEndReason, KeyName, KeyspaceEvent, LeaseEndOp, LeaseEndReason, Op, Revision } from "./op.js";
import type { ByteString, Reply } from "./reply.js";
import type { State } from "./state.js";
import type { NewWait, Waiter, Waiters, Wake } from "./waiters.js";

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
  /** Not null: there is no answer yet, the command waits; `reply` means nothing then. The answer comes as a wake of a later decision. */
  readonly waits: NewWait | null;
  /** Answers of commands that waited, in their order. They wait for the same revision as the reply. */
  readonly wakes: readonly Wake[];
  /** What clients hear of changes that are no ops: times that were moved in memory alone. */
  readonly events: readonly EngineEvent[];
}

/**
 * Deadlines to move: a row renews that lease by its TTL (the keep-alive, which allocates nothing for it), NO_LEASE is none.
 */
export type Renewals = LeaseRow | readonly LeaseRow[] | Shortening | Repetition;

/** SETTTL and EXPIRE at or below the durable TTL: this TTL, from now on. May lead to a later deadline as well as to an earlier one. */
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

/** The XXH3-64 of a value, as 16 lower-case hexadecimal digits. From outside: the engine has no hash functions. */
export type Digest = (value: ByteString) => ByteString;

export const EXCLUSIVE: LockMode = { kind: "exclusive" };

const NO_OPS: readonly Op[] = Object.freeze([]);
const NO_WAKES: readonly Wake[] = Object.freeze([]);
const NO_EVENTS: readonly EngineEvent[] = Object.freeze([]);

/** Keys removed by this command are remembered by row and database in one number. */
const removedKey = (databaseIndex: number, row: KeyRow): number => row * DATABASE_COUNT + databaseIndex;

export class Draft {
  readonly state: State;
  readonly deadlines: Deadlines;
  readonly waiters: Waiters;
  readonly limits: EngineLimits;
  /** Of the store: the first part of the ids that the server chooses. */
  readonly incarnation: ByteString;
  #origin: Origin = { databaseIndex: 0, owner: "" };
  #turn: Turn = { nowMs: 0, unixMs: 0 };
  #nowMs = 0;
  #ops: Op[] | null = null;
  #renewals: Renewals = NO_LEASE;
  #saw: Revision = 0;
  #waits: NewWait | null = null;
  #wakes: Wake[] | null = null;
  #events: EngineEvent[] | null = null;
  readonly #digest: Digest;
  readonly #ended = new Set<LeaseRow>();
  readonly #removed = new Set<number>();
  /** How many holders of a shared key this command has ended so far. */
  readonly #leaving = new Map<number, number>();
  /** Look-ups by commands that read, as Redis counts them: of keys that were there, and of others. */
  readsHit = 0;
  readsMissed = 0;
  #endedKeyCount = 0;
  #endedHiddenCount = 0;
  /** Keys of ended leases that the ops of this command name. */
  #namedKeyCount = 0;
  /** Leases that this command ends without naming all their keys, and why. */
  readonly #unnamed = new Map<LeaseRow, LeaseEndReason>();
  /** Keys of such leases, and of those that ended so before, that this command has named since. */
  readonly #named = new Set<number>();

  constructor(
    state: State,
    deadlines: Deadlines,
    waiters: Waiters,
    limits: EngineLimits,
    incarnation: ByteString,
    digest: Digest,
  ) {
    this.#digest = digest;
    this.state = state;
    this.deadlines = deadlines;
    this.waiters = waiters;
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
    this.#waits = null;
    this.#wakes = null;
    this.#events = null;
    this.#endedKeyCount = 0;
    this.#endedHiddenCount = 0;
    this.#namedKeyCount = 0;
    if (this.#unnamed.size > 0) this.#unnamed.clear();
    if (this.#named.size > 0) this.#named.clear();
    if (this.#ended.size > 0) this.#ended.clear();
    if (this.#removed.size > 0) this.#removed.clear();
    if (this.#leaving.size > 0) this.#leaving.clear();
  }

  finish(reply: Reply): Decision {
    const ops = this.#ops;
    return {
      reply,
      ops: ops ?? NO_OPS,
      renewals: this.#renewals,
      sawRevision: ops === null ? this.#saw : this.revision,
      waits: this.#waits,
      wakes: this.#wakes ?? NO_WAKES,
      events: this.#events ?? NO_EVENTS,
    };
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
    return this.state.leases.liveCount - (this.#ended.size - this.#endedHiddenCount);
  }

  /** Leases that this decision ends so far, those of plain keys included. */
  get endedCount(): number {
    return this.#ended.size;
  }

  /** Keys once this decision is applied, but for those that it attaches; see `State.keyCount`. */
  get keyCount(): number {
    return this.state.keyCount - this.#endedKeyCount - this.#removed.size;
  }

  add(op: Op): void {
    if (op.kind === "key-put" || op.kind === "string-put") this.#nameLeftKey(op);
    this.#append(op);
  }

  #append(op: Op): void {
    if (this.#ops === null) this.#ops = [op];
    else this.#ops.push(op);
  }

  renew(renewals: Renewals): void {
    this.#renewals = renewals;
  }

  /** The command waits for the key. */
  wait(wait: NewWait): void {
    this.#waits = wait;
  }

  /** A command that waited gets its answer. */
  wake(wake: Wake): void {
    if (this.#wakes === null) this.#wakes = [wake];
    else this.#wakes.push(wake);
  }

  /** The keyspace hears of a change that no op tells. */
  tell(key: ByteString, event: KeyspaceEvent): void {
    const told: EngineEvent = { kind: "keyspace", databaseIndex: this.databaseIndex, key, event };
    if (this.#events === null) this.#events = [told];
    else this.#events.push(told);
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

  /**
   * The row of whoever holds a key of the selected database, of its first holder when it is shared; NO_KEY when nobody does
   * (any more).
   */
  findKey(name: ByteString): KeyRow {
    const { keys } = this;
    const row = keys.find(name);
    if (row >= 0) return this.holderOf(row);
    this.see(keys.flushedAt);
    return NO_KEY;
  }

  /** As `findKey`, for a command that reads: counted. */
  readKey(name: ByteString): KeyRow {
    const row = this.findKey(name);
    if (row === NO_KEY) this.readsMissed += 1;
    else this.readsHit += 1;
    return row;
  }

  /** The row under which a lease, which is alive, holds a key of the selected database, alone or with others; NO_KEY otherwise. */
  findHolding(name: ByteString, lease: LeaseRow): KeyRow {
    const { keys } = this;
    const row = keys.find(name);
    if (row < 0) {
      this.see(keys.flushedAt);
      return NO_KEY;
    }
    this.see(keys.changedAt.get(row));
    const sharing = keys.sharing(row);
    if (sharing === null) {
      const holder = keys.holder(row);
      if (holder === lease) return this.#isRemoved(row) ? NO_KEY : row;
      // The end of a lease is the end of its keys, as for whoever looks the key up by its name alone.
      if (holder !== NO_LEASE) this.see(this.state.leases.changedAt(holder));
      return NO_KEY;
    }
    const member = sharing.byLease.get(lease);
    return member === undefined || this.#isRemoved(member) ? NO_KEY : member;
  }

  /** False for a lease past its deadline, which is ended by that, or ended by this command. `row` is live in the state. */
  isAlive(row: LeaseRow): boolean {
    if (this.#ended.size > 0 && this.#ended.has(row)) return false;
    if (!this.deadlines.isPast(row, this.#nowMs)) return true;
    this.endLease(row, "expired");
    return false;
  }

  /** From the tick: ends a plain key of any database if it is past its deadline. */
  meetKey(databaseIndex: number, name: ByteString): void {
    const table = this.state.keys(databaseIndex);
    const row = table.find(name);
    const holder = row < 0 ? NO_LEASE : table.holder(row);
    if (holder >= 0 && this.state.leases.isHidden(holder)) this.isAlive(holder);
  }

  /** As `findKey`, for a row of the selected database that is no member and not free. */
  holderOf(row: KeyRow): KeyRow {
    const { keys } = this;
    this.see(keys.changedAt.get(row));
    const sharing = keys.sharing(row);
    if (sharing === null) return this.isHolding(row) ? row : NO_KEY;
    for (const member of sharing.byLease.values()) {
      if (this.isHolding(member)) return member;
    }
    return NO_KEY;
  }

  /** Whether somebody holds the key of this row of the selected database, which is no member and not free. */
  isHeld(row: KeyRow): boolean {
    return this.holderOf(row) !== NO_KEY;
  }

  /**
   * The same for commands that walk over everything: beyond what one turn may end, leases past their deadline are absent
   * without being ended. Otherwise KEYS in an expiry storm would end a million leases in one turn.
   */
  isListed(row: KeyRow): boolean {
    if (this.#ended.size < EXPIRIES_PER_TURN_MAX) return this.isHeld(row);
    const sharing = this.keys.sharing(row);
    if (sharing === null) return this.#isHolderLive(row);
    for (const member of sharing.byLease.values()) {
      if (this.#isHolderLive(member)) return true;
    }
    return false;
  }

  /** Whether the holder of a row that one holder has is alive, and was not taken off the key by this command. */
  isHolding(row: KeyRow): boolean {
    const { leases } = this.state;
    const holder = this.keys.holder(row);
    if (holder === NO_LEASE) return false;
    if (!leases.isLive(holder)) {
      this.see(leases.changedAt(holder));
      return false;
    }
    return !this.#isRemoved(row) && this.isAlive(holder);
  }

  #isHolderLive(row: KeyRow): boolean {
    const holder = this.keys.holder(row);
    return holder !== NO_LEASE && this.state.leases.isLive(holder) && !this.deadlines.isPast(holder, this.#nowMs);
  }

  #isRemoved(row: KeyRow): boolean {
    return this.#removed.size > 0 && this.#removed.has(removedKey(this.#origin.databaseIndex, row));
  }

  /** The expiry that this command met for a lease id; null when it met none. */
  expiryOf(id: ByteString): LeaseEndOp | null {
    for (const op of this.#ops ?? NO_OPS) {
      if (op.kind === "lease-end" && op.id === id) return op;
    }
    return null;
  }

  // Plain keys and values --------------------------------------------------------------------------------------------

  /** Whether a held row of the selected database is a plain key, which no lease holds. */
  isPlain(row: KeyRow): boolean {
    return this.state.leases.isHidden(this.keys.holder(row));
  }

  /** The durable TTL of a plain key; null when it has none, or is no plain key. */
  ttlOfPlain(row: KeyRow): number | null {
    const { leases } = this.state;
    const holder = this.keys.holder(row);
    return leases.isHidden(holder) && holder !== leases.forever ? leases.ttlMs(holder) : null;
  }

  /** How a held row of the selected database is held. */
  modeOf(row: KeyRow): LockMode {
    const { keys } = this;
    return keys.isMember(row) ? keys.sharing(keys.find(keys.name(row)))!.mode : EXCLUSIVE;
  }

  /** Another value under the same token, holder and time. */
  changeValue(row: KeyRow, value: ByteString, event: KeyspaceEvent): void {
    const { keys, databaseIndex } = this;
    const { leases } = this.state;
    const key = keys.name(row);
    const token = keys.token.get(row);
    const sinceUnixMs = keys.sinceUnixMs(row);
    if (this.isPlain(row)) {
      const ttlMs = this.ttlOfPlain(row);
      const op = { kind: "string-put", databaseIndex, key, value, ttlMs, token, sinceUnixMs } as const;
      this.add({ ...op, keepsTime: true, events: [event] });
    } else {
      const leaseId = leases.id(keys.holder(row));
      const op = { kind: "key-put", databaseIndex, key, leaseId, value, token, sinceUnixMs } as const;
      this.add({ ...op, mode: this.modeOf(row), valueOnly: true, event });
    }
  }

  /** 16 hexadecimal digits. */
  digestOf(value: ByteString): ByteString {
    return this.#digest(value);
  }

  // Ends ------------------------------------------------------------------------------------------------------------

  /** Ends a live lease with all its keys, or the plain key of a hidden one. Commands of the lease that wait are told. */
  endLease(row: LeaseRow, reason: LeaseEndReason): void {
    const { leases } = this.state;
    this.#ended.add(row);
    if (leases.isHidden(row)) {
      this.#expireString(row);
      return;
    }
    const keyCount = this.state.keyCountOf(row);
    const isNamed = keyCount === 0 || this.#namedKeyCount + keyCount <= this.limits.keysEndedAtOnceMax;
    const keys = this.#keysOf(row, isNamed);
    this.#endedKeyCount += isNamed ? keys.length : keyCount;
    this.#namedKeyCount += keys.length;
    if (!isNamed) this.#unnamed.set(row, reason);
    this.#append({
      kind: "lease-end",
      id: leases.id(row),
      reason,
      lateMs: reason === "expired" ? this.deadlines.lateMs(row, this.#nowMs) : 0,
      by: reason === "expired" ? "" : this.owner,
      keys,
      ...(isNamed ? {} : { hasMore: true }),
    });
    if (this.waiters.count === 0) return;
    for (const waiter of this.waiters.ofLease(row)) this.wakeAll(waiter, noLease(leases.id(row)));
  }

  /** Names up to `limit` keys that ends up to this revision left unnamed. */
  endLeftKeys(durableRevision: Revision, limit: number): void {
    let budget = limit;
    for (const lease of this.state.leftovers(durableRevision)) {
      if (budget === 0) return;
      const keys: HeldKey[] = [];
      for (let index = 0; index < DATABASE_COUNT && keys.length < budget; index += 1) {
        const table = this.state.keys(index);
        let row = table.firstOf(lease);
        for (let left = Math.min(table.countOf(lease), budget - keys.length); left > 0; left -= 1) {
          keys.push({ databaseIndex: index, key: table.name(row), token: table.token.get(row) });
          row = table.nextOf(row);
        }
      }
      if (keys.length > 0) this.#endLeftKeys(lease, keys);
      budget -= keys.length;
    }
  }

  /**
   * Whoever gets a key that the end of a lease left unnamed: its row in the store under the former holder goes in the same batch, since nobody
   * could find it any more.
   */
  #nameLeftKey({ databaseIndex, key }: KeyName): void {
    if (this.#unnamed.size === 0 && this.state.leftoverCount === 0) return;
    const table = this.state.keys(databaseIndex);
    const row = table.find(key);
    const holder = row === NO_KEY ? NO_LEASE : table.holder(row);
    const name = removedKey(databaseIndex, row);
    if (holder < 0 || this.#named.has(name)) return;
    if (!this.#unnamed.has(holder) && this.state.leftoverReason(holder) === null) return;
    this.#named.add(name);
    this.#endLeftKeys(holder, [{ databaseIndex, key, token: table.token.get(row) }]);
  }

  #endLeftKeys(lease: LeaseRow, keys: readonly HeldKey[]): void {
    const reason = this.#unnamed.get(lease) ?? this.state.leftoverReason(lease);
    invariant(reason !== null, "only an ended lease leaves keys behind");
    this.#append({ kind: "lease-keys-end", leaseId: this.state.leases.id(lease), reason, keys });
  }

  /** Before a command is refused because a limit is reached: ends what is past its deadline, as much of it as one turn may. */
  makeRoom(): void {
    const due: LeaseRow[] = [];
    this.deadlines.peekDue(this.#nowMs, EXPIRIES_PER_TURN_MAX, due);
    for (const row of due) this.isAlive(row);
  }

  /** Every command that waits in this place of a queue gets this answer. */
  wakeAll(waiter: Waiter, reply: Reply): void {
    for (const ask of waiter.asks) this.wake({ waitId: ask.id, reply });
  }

  /** The end of a plain key by its deadline. */
  #expireString(row: LeaseRow): void {
    this.#endedHiddenCount += 1;
    const databaseIndex = this.state.leases.databaseOfHidden(row);
    const table = this.state.keys(databaseIndex);
    const key = table.firstOf(row);
    if (key === NO_KEY) return;
    this.#endedKeyCount += 1;
    this.add({
      kind: "string-end",
      databaseIndex,
      key: table.name(key),
      token: table.token.get(key),
      reason: "expired",
    });
  }

  /** Takes a held key of the selected database from all who hold it. `row`: what `findKey` found. */
  takeKey(row: KeyRow, reason: "deleted" | "taken"): void {
    const { keys } = this;
    const sharing = keys.isMember(row) ? keys.sharing(keys.find(keys.name(row))) : null;
    if (sharing === null) {
      this.endKey(row, reason);
      return;
    }
    for (const member of sharing.byLease.values()) {
      if (this.isHolding(member)) this.endKey(member, reason);
    }
  }

  /** Takes a held key of the selected database from the one holder whose row this is. A plain key is deleted or taken. */
  endKey(row: KeyRow, reason: KeyEndReason): void {
    const { keys, databaseIndex } = this;
    const { leases } = this.state;
    const holder = keys.holder(row);
    const key = keys.name(row);
    const token = keys.token.get(row);
    this.#removed.add(removedKey(databaseIndex, row));
    if (leases.isHidden(holder)) {
      this.add({ kind: "string-end", databaseIndex, key, token, reason: reason === "taken" ? "taken" : "deleted" });
    } else {
      const op = { kind: "key-end", databaseIndex, key, leaseId: leases.id(holder), token, reason } as const;
      this.add(keys.isMember(row) && this.#othersRemain(databaseIndex, row) ? { ...op, remains: true } : op);
    }
  }

  /** The keys of a lease, or only those that it shares, which end at once in any case. */
  #keysOf(lease: LeaseRow, isAll: boolean): readonly HeldKey[] {
    const held: HeldKey[] = [];
    for (let index = 0; index < DATABASE_COUNT; index += 1) {
      const table = this.state.keys(index);
      const count = isAll || table.membersOf(lease) > 0 ? table.countOf(lease) : 0;
      for (let left = count, row = table.firstOf(lease); left > 0; left -= 1, row = table.nextOf(row)) {
        if (!isAll && !table.isMember(row)) continue;
        if (this.#removed.size > 0 && this.#removed.has(removedKey(index, row))) continue;
        const key = { databaseIndex: index, key: table.name(row), token: table.token.get(row) };
        held.push(table.isMember(row) && this.#othersRemain(index, row) ? { ...key, remains: true } : key);
      }
    }
    return held;
  }

  /** A holder leaves a shared key. True when others hold it on. */
  #othersRemain(databaseIndex: number, member: KeyRow): boolean {
    const table = this.state.keys(databaseIndex);
    const row = table.find(table.name(member));
    const name = removedKey(databaseIndex, row);
    const leaving = (this.#leaving.get(name) ?? 0) + 1;
    this.#leaving.set(name, leaving);
    return leaving < table.sharing(row)!.byLease.size;
  }
}
