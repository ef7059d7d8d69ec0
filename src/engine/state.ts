import { invariant } from "./invariant.js";
import { DATABASE_COUNT } from "./limits.js";
import { Graves } from "./graves.js";
import { KeyTable, NO_KEY } from "./key-table.js";
import { LeaseTable, NO_LEASE, type LeaseRow } from "./lease-table.js";
import type { KeyEndOp, KeyPutOp, LeasePutOp, Revision } from "./op.js";
import type { ByteString } from "./reply.js";

/**
 * Leases and keys as the disk knows them, and the revision counter. `replay.ts` is the only caller of the methods that
 * change something, live and at recovery alike; the rules only read. Nothing here knows a clock: deadlines live in
 * `deadlines.ts`.
 *
 * Ends are marks first: an ended lease or key is absent for everybody at once, at a cost that does not depend on the keys of the
 * lease; its rows are swept in small slices once the end is durable. Until then they are what a reply of "absent" finds, with
 * the revision that it has to wait for.
 *
 * Invariants: `checkInvariants` in `audit.ts` holds after every op and every sweep.
 */
export class State {
  /** The newest revision; 0 in a new store. */
  revision: Revision = 0;
  readonly leases = new LeaseTable();
  readonly #tables: KeyTable[] = Array.from({ length: DATABASE_COUNT }, () => new KeyTable(0));
  readonly #leaseGraves = new Graves();
  readonly #keyGraves: Graves[] = Array.from({ length: DATABASE_COUNT }, () => new Graves());

  /** The keys of one database. The object is another one after a flush: do not keep it. */
  keys(databaseIndex: number): KeyTable {
    const table = this.#tables[databaseIndex];
    invariant(table !== undefined, "a database index is 0..15");
    return table;
  }

  /** Keys of live leases, in all databases. */
  get keyCount(): number {
    let sum = 0;
    for (const table of this.#tables) sum += table.liveCount;
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
  endLease(id: ByteString, revision: Revision): void {
    const row = this.leases.findLive(id);
    if (row === NO_LEASE) return;
    this.leases.end(row, revision);
    let bits = this.leases.databases(row);
    for (let index = 0; bits !== 0; index += 1, bits >>>= 1) {
      if ((bits & 1) === 0) continue;
      const table = this.keys(index);
      const count = table.countOf(row);
      if (count === 0) continue;
      table.liveCount -= count;
      table.anyChangedAt = revision;
    }
    this.#leaseGraves.push(row, revision);
  }

  /** Attaches a key to a live lease, whoever held it, or changes its value. */
  putKey(op: KeyPutOp, revision: Revision): void {
    const lease = this.leases.findLive(op.leaseId);
    invariant(lease !== NO_LEASE, "a key is attached to a live lease");
    const table = this.keys(op.databaseIndex);
    const row = table.rowFor(op.key);
    const former = table.holder(row);
    if (former !== lease) {
      if (former !== NO_LEASE) {
        // A live one only at recovery, of a key that two leases claim; the rules end the former hold by an op of its own.
        if (this.leases.isLive(former)) table.liveCount -= 1;
        table.unlink(row);
      }
      table.link(row, lease);
      table.liveCount += 1;
    }
    table.write(row, op.value, op.token, revision);
    this.leases.noteKeyChange(lease, op.databaseIndex, revision);
  }

  /** Takes a key from the lease that the op names. Nothing when that lease does not hold it. */
  endKey(op: KeyEndOp, revision: Revision): void {
    const lease = this.leases.findLive(op.leaseId);
    const table = this.keys(op.databaseIndex);
    const row = table.find(op.key);
    if (lease === NO_LEASE || row === NO_KEY || table.holder(row) !== lease) return;
    table.unlink(row);
    table.end(row, revision);
    table.liveCount -= 1;
    this.leases.noteKeyChange(lease, op.databaseIndex, revision);
    this.#keyGraves[op.databaseIndex]!.push(row, revision);
  }

  flushDatabase(databaseIndex: number, revision: Revision): void {
    this.#tables[databaseIndex] = new KeyTable(revision);
    this.#keyGraves[databaseIndex]!.clear();
  }

  flushAll(revision: Revision): void {
    for (let index = 0; index < DATABASE_COUNT; index += 1) this.flushDatabase(index, revision);
    this.leases.clear(revision);
    this.#leaseGraves.clear();
  }

  // Sweeping --------------------------------------------------------------------------------------------------------

  /** True when rows wait whose end is durable up to `durableRevision`. */
  hasSweepable(durableRevision: Revision): boolean {
    if (this.#leaseGraves.oldestRevision <= durableRevision) return true;
    return this.#keyGraves.some((graves) => graves.oldestRevision <= durableRevision);
  }

  /**
   * Frees up to `limit` rows whose end is durable. Changes nothing that anybody can see, but that an absence which could not be
   * taken back any more has no revision to wait for. Returns true when none is left.
   */
  sweep(durableRevision: Revision, limit: number): boolean {
    let budget = limit;
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
