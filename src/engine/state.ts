import { invariant } from "./invariant.js";
import { DATABASE_COUNT } from "./limits.js";
import { Graves } from "./graves.js";
import { KeyTable, NO_KEY, SHARED, type KeyRow } from "./key-table.js";
import { LeaseTable, NO_LEASE, type LeaseRow } from "./lease-table.js";
import type {
  KeyEndOp,
  KeyPutOp,
  LeaseEndOp,
  LeaseEndReason,
  LeaseKeysEndOp,
  LeasePutOp,
  Revision,
  StringEndOp,
  StringPutOp,
} from "./op.js";
import { ScriptTable } from "./script-table.js";

/**
 * Leases and keys as the disk knows them, and the revision counter. `replay.ts` is the only caller of the methods that
 * change something, live and at recovery alike; the rules only read. Nothing here knows a clock: deadlines live in
 * `deadlines.ts`.
 *
 * Ends are marks first: an ended lease or key is absent for everybody at once, at a cost that does not depend on the keys of the
 * lease; its rows are swept in small slices once the end is durable. Until then they are what a reply of "absent" finds, with
 * the revision that it has to wait for.
 *
 * The keys that the end of a large lease left unnamed have rows in the store still. So their rows here stay in the ring of the ended
 * lease until an op names them; `sweep` does not touch them.
 *
 * Invariants: `checkInvariants` in `audit.ts` holds after every op and every sweep.
 */
export class State {
  /** The newest revision; 0 in a new store. */
  revision: Revision = 0;
  readonly leases = new LeaseTable();
  readonly scripts = new ScriptTable();
  readonly #tables: KeyTable[] = Array.from({ length: DATABASE_COUNT }, () => new KeyTable(0));
  readonly #leaseGraves = new Graves();
  /** Ended leases with keys that no op has named yet, and why each ended; all of them are in the queue, by the revision of their end. */
  readonly #leftovers = new Map<LeaseRow, LeaseEndReason>();
  readonly #leftoverQueue = new Graves();
  readonly #keyGraves: Graves[] = Array.from({ length: DATABASE_COUNT }, () => new Graves());
  /** Tables that a FLUSHDB emptied, with the rows still to be looked at: the hidden leases of their keys are freed in slices. */
  #flushed: { readonly table: KeyTable; rowsLeft: number }[] = [];

  /** The keys of one database. The object is another one after a flush: do not keep it. */
  keys(databaseIndex: number): KeyTable {
    const table = this.#tables[databaseIndex];
    invariant(table !== undefined, "a database index is 0..15");
    return table;
  }

  /** Keys of live leases, in all databases; a shared key counts as often as it is held. For limits: memory goes by this number. */
  get keyCount(): number {
    let sum = 0;
    for (const table of this.#tables) sum += table.liveCount + table.memberCount;
    return sum;
  }

  /** Keys of one lease, in all databases. */
  keyCountOf(lease: LeaseRow): number {
    let sum = 0;
    let bits = this.leases.databases(lease);
    for (let index = 0; bits !== 0; index += 1, bits >>>= 1) {
      if ((bits & 1) !== 0) sum += this.keys(index).countOf(lease);
    }
    return sum;
  }

  /** The newest flush of any database. */
  get flushedAt(): Revision {
    let newest = 0;
    for (const table of this.#tables) newest = Math.max(newest, table.flushedAt);
    return newest;
  }

  /** Whether hidden leases without a key may be there: those of a FLUSHDB that is still being swept. */
  get hasStrays(): boolean {
    return this.#flushed.length > 0;
  }

  /** Why a lease ended that left keys unnamed, some of which are still there; null for any other row. */
  leftoverReason(row: LeaseRow): LeaseEndReason | null {
    return this.#leftovers.get(row) ?? null;
  }

  /** Ended leases whose end left keys unnamed. */
  get leftoverCount(): number {
    return this.#leftovers.size;
  }

  /** The same whose end is durable, oldest first. */
  leftovers(durableRevision: Revision): Iterable<LeaseRow> {
    return this.#leftoverQueue.upTo(durableRevision);
  }

  /** Whether `leftovers` names any. */
  hasLeftovers(durableRevision: Revision): boolean {
    return this.#leftoverQueue.oldestRevision <= durableRevision;
  }

  /** Ended leases that wait to be swept. */
  get leaseGraveCount(): number {
    return this.#leaseGraves.size;
  }

  /** Ends of keys that wait to be looked at by the sweep. */
  keyGraveCount(databaseIndex: number): number {
    return this.#keyGraves[databaseIndex]!.size;
  }

  // Changes: for replay.ts only -------------------------------------------------------------------------------------

  putLease(op: LeasePutOp, revision: Revision): void {
    this.leases.put(op, revision);
  }

  /** Ends a lease and, by that, all its keys. Nothing for a lease that is not alive. */
  endLease({ id, reason, hasMore }: LeaseEndOp, revision: Revision): void {
    const row = this.leases.findLive(id);
    if (row === NO_LEASE) return;
    this.leases.end(row, revision);
    let bits = this.leases.databases(row);
    for (let index = 0; bits !== 0; index += 1, bits >>>= 1) {
      if ((bits & 1) === 0) continue;
      const table = this.keys(index);
      if (table.membersOf(row) > 0) this.#leaveSharedKeys(index, row, revision);
      const count = table.countOf(row);
      if (count === 0) continue;
      table.liveCount -= count;
      table.anyChangedAt = revision;
    }
    if (hasMore === true) {
      this.#leftovers.set(row, reason);
      this.#leftoverQueue.push(row, revision);
    } else {
      this.#leaseGraves.push(row, revision);
    }
  }

  /** Frees keys of ended leases; nothing for one that somebody has got since. What reveals that they are absent is the lease's end. */
  endLeftKeys({ keys }: LeaseKeysEndOp): void {
    for (const { databaseIndex, key, token } of keys) {
      const table = this.keys(databaseIndex);
      const row = table.find(key);
      if (row === NO_KEY || !this.#leftovers.has(table.holder(row)) || table.token.get(row) !== token) continue;
      table.unlink(row);
      table.sweep(row);
    }
  }

  /** Attaches a key to a live lease, whoever held it, or changes its value. A shared key gets one more holder. */
  putKey(op: KeyPutOp, revision: Revision): void {
    const lease = this.leases.findLive(op.leaseId);
    invariant(lease !== NO_LEASE, "a key is attached to a live lease");
    const table = this.keys(op.databaseIndex);
    const row = table.rowFor(op.key);
    this.leases.noteKeyChange(lease, op.databaseIndex, revision);
    if (op.mode.kind !== "exclusive") {
      this.#share(op, row, lease, revision);
      return;
    }
    const former = table.holder(row);
    invariant(
      former !== SHARED && !(former >= 0 && this.leases.isHidden(former)),
      "a key is held in one mode at a time",
    );
    if (former !== lease) {
      if (former !== NO_LEASE) {
        // A live one only at recovery, of a key that two leases claim; the rules end the former hold by an op of its own.
        if (this.leases.isLive(former)) table.liveCount -= 1;
        table.unlink(row);
      }
      table.link(row, lease);
      table.liveCount += 1;
    }
    table.write(row, op.value, op.token, op.sinceUnixMs, revision);
  }

  #share(op: KeyPutOp, row: KeyRow, lease: LeaseRow, revision: Revision): void {
    const table = this.keys(op.databaseIndex);
    if (table.holder(row) !== SHARED) {
      // Only what a dead lease left behind may lie here.
      if (table.holder(row) !== NO_LEASE) table.unlink(row);
      table.liveCount += 1;
    }
    const member = table.memberFor(row, lease, op.mode);
    table.write(member, op.value, op.token, op.sinceUnixMs, revision);
    table.noteToken(row, member);
    table.touch(row, revision);
  }

  /** Takes a key from the lease that the op names. Nothing when that lease does not hold it. */
  endKey(op: KeyEndOp, revision: Revision): void {
    const lease = this.leases.findLive(op.leaseId);
    const table = this.keys(op.databaseIndex);
    const row = table.find(op.key);
    if (lease === NO_LEASE || row === NO_KEY) return;
    const member = table.sharing(row)?.byLease.get(lease);
    if (member !== undefined) {
      this.#removeMember(op.databaseIndex, row, member, revision);
    } else if (table.holder(row) === lease) {
      table.unlink(row);
      this.#endRow(op.databaseIndex, row, revision);
    } else {
      return;
    }
    this.leases.noteKeyChange(lease, op.databaseIndex, revision);
  }

  #removeMember(databaseIndex: number, row: KeyRow, member: KeyRow, revision: Revision): void {
    const table = this.keys(databaseIndex);
    if (table.removeMember(row, member)) table.touch(row, revision);
    else this.#endRow(databaseIndex, row, revision);
  }

  /** A row without a holder is no key any more. */
  #endRow(databaseIndex: number, row: KeyRow, revision: Revision): void {
    const table = this.keys(databaseIndex);
    table.end(row, revision);
    table.liveCount -= 1;
    this.#keyGraves[databaseIndex]!.push(row, revision);
  }

  /** A lease that ended leaves the keys that it shares at once: others may hold them on. */
  #leaveSharedKeys(databaseIndex: number, lease: LeaseRow, revision: Revision): void {
    const table = this.keys(databaseIndex);
    for (let left = table.countOf(lease), row = table.firstOf(lease); left > 0; left -= 1) {
      const next = table.nextOf(row);
      if (table.isMember(row)) this.#removeMember(databaseIndex, table.find(table.name(row)), row, revision);
      row = next;
    }
  }

  /** A plain key gets a value, or another TTL. No lease holds it. */
  putString(op: StringPutOp, revision: Revision): void {
    const { leases } = this;
    const table = this.keys(op.databaseIndex);
    const row = table.rowFor(op.key);
    const former = table.holder(row);
    invariant(former !== SHARED, "a key is held in one mode at a time");
    const isPlain = former !== NO_LEASE && leases.isHidden(former);
    invariant(
      former === NO_LEASE || isPlain || !leases.isLive(former),
      "a lease was left before its key becomes a plain one",
    );
    let holder = former;
    if (op.ttlMs === null) holder = leases.putForever();
    else if (isPlain && former !== leases.forever) leases.setHiddenTtl(former, op.ttlMs);
    else holder = leases.putHidden(op.ttlMs, op.databaseIndex);
    if (former !== holder) {
      if (former !== NO_LEASE) table.unlink(row);
      if (isPlain) this.#letGo(former);
      else table.liveCount += 1;
      table.link(row, holder);
    }
    table.write(row, op.value, op.token, op.sinceUnixMs, revision);
  }

  /** A plain key ends. Nothing when it is none. */
  endString(op: StringEndOp, revision: Revision): void {
    const table = this.keys(op.databaseIndex);
    const row = table.find(op.key);
    const holder = row === NO_KEY ? NO_LEASE : table.holder(row);
    if (holder < 0 || !this.leases.isHidden(holder)) return;
    table.unlink(row);
    this.#letGo(holder);
    this.#endRow(op.databaseIndex, row, revision);
  }

  #letGo(hidden: LeaseRow): void {
    if (hidden !== this.leases.forever) this.leases.freeHidden(hidden);
  }

  flushDatabase(databaseIndex: number, revision: Revision): void {
    const table = this.keys(databaseIndex);
    if (table.rows.rowsEnd > 0) this.#flushed.push({ table, rowsLeft: table.rows.rowsEnd });
    this.#tables[databaseIndex] = new KeyTable(revision);
    this.#keyGraves[databaseIndex]!.clear();
  }

  flushAll(revision: Revision): void {
    for (let index = 0; index < DATABASE_COUNT; index += 1) this.flushDatabase(index, revision);
    this.leases.clear(revision);
    this.#leaseGraves.clear();
    this.#leftovers.clear();
    this.#leftoverQueue.clear();
    this.#flushed = [];
  }

  // Sweeping --------------------------------------------------------------------------------------------------------

  /** True when rows wait whose end is durable up to `durableRevision`. */
  hasSweepable(durableRevision: Revision): boolean {
    if (this.#flushed.length > 0 || this.#leaseGraves.oldestRevision <= durableRevision) return true;
    if (this.#hasEmptied(durableRevision)) return true;
    return this.#keyGraves.some((graves) => graves.oldestRevision <= durableRevision);
  }

  /**
   * Frees hidden leases whose keys a FLUSHDB dropped, looking at up to `limit` of those keys; calls `beforeFree` for each, to cancel its
   * deadline. Nobody can see it. Returns true when none is left.
   *
   * The rows that the dropped tables name may be other leases by now: one is a stray if it is hidden and holds no key.
   */
  sweepStrays(limit: number, beforeFree: (row: LeaseRow) => void): boolean {
    const { leases } = this;
    let budget = limit;
    for (let entry = this.#flushed.at(-1); entry !== undefined && budget > 0; entry = this.#flushed.at(-1)) {
      for (; entry.rowsLeft > 0 && budget > 0; entry.rowsLeft -= 1, budget -= 1) {
        const hidden = entry.table.holder(entry.rowsLeft - 1);
        if (hidden < 0 || hidden >= leases.rows.rowsEnd || hidden === leases.forever || !this.isStray(hidden)) continue;
        beforeFree(hidden);
        leases.freeHidden(hidden);
      }
      if (entry.rowsLeft === 0) this.#flushed.pop();
    }
    return this.#flushed.length === 0;
  }

  /** True for a hidden lease whose key was dropped by a FLUSHDB. */
  isStray(row: LeaseRow): boolean {
    const { leases } = this;
    return leases.isHidden(row) && row !== leases.forever && this.keys(leases.databaseOfHidden(row)).countOf(row) === 0;
  }

  /**
   * Frees up to `limit` rows whose end is durable. Changes nothing that anybody can see, but that an absence which could not be
   * taken back any more has no revision to wait for. Returns true when none is left.
   */
  sweep(durableRevision: Revision, limit: number): boolean {
    let budget = limit;
    for (; budget > 0 && this.#hasEmptied(durableRevision); budget -= 1) {
      const row = this.#leftoverQueue.oldestRow;
      this.#leftovers.delete(row);
      this.#leftoverQueue.shift();
      this.leases.sweep(row);
    }
    while (budget > 0 && this.#leaseGraves.oldestRevision <= durableRevision) {
      const row = this.#leaseGraves.oldestRow;
      budget = this.#sweepKeysOf(row, budget);
      if (budget === 0) return false;
      this.leases.sweep(row);
      this.#leaseGraves.shift();
      budget -= 1;
    }
    for (let index = 0; index < DATABASE_COUNT && budget > 0; index += 1) {
      const graves = this.#keyGraves[index]!;
      const table = this.keys(index);
      while (budget > 0 && graves.oldestRevision <= durableRevision) {
        const row = graves.oldestRow;
        // Taken up again since, or ended once more under a later entry: then this entry is none.
        if (
          !table.isFree(row) &&
          table.holder(row) === NO_LEASE &&
          table.changedAt.get(row) === graves.oldestRevision
        ) {
          table.sweep(row);
        }
        graves.shift();
        budget -= 1;
      }
    }
    return budget > 0 || !this.hasSweepable(durableRevision);
  }

  /** Whether the oldest of the leases that left keys unnamed has none any more. */
  #hasEmptied(durableRevision: Revision): boolean {
    const graves = this.#leftoverQueue;
    return graves.oldestRevision <= durableRevision && this.keyCountOf(graves.oldestRow) === 0;
  }

  /** Frees keys of an ended lease; returns what is left of the budget, 0 when the lease may still have keys. */
  #sweepKeysOf(lease: LeaseRow, budget: number): number {
    let left = budget;
    let bits = this.leases.databases(lease);
    for (let index = 0; bits !== 0; index += 1, bits >>>= 1) {
      if ((bits & 1) === 0) continue;
      const table = this.keys(index);
      for (let row = table.firstOf(lease); row !== NO_KEY; row = table.firstOf(lease)) {
        if (left === 0) return 0;
        table.unlink(row);
        table.sweep(row);
        left -= 1;
      }
    }
    return left;
  }
}
