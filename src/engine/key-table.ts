import {
  Float64Column,
  Int32Column,
  ReferenceColumn,
  RowAllocator,
  SparseInt32Column,
  Uint16Column,
} from "./columns.js";
import type { LockMode } from "./command.js";
import { invariant } from "./invariant.js";
import { NO_LEASE, type LeaseRow } from "./lease-table.js";
import { NameIndex } from "./name-index.js";
import type { Revision, Token } from "./op.js";
import type { ByteString } from "./reply.js";

/**
 * The keys of one database, one row each. Only `state.ts` writes here.
 *
 * The keys of a lease are a ring through `#next` and `#previous`, one ring per lease and database: attaching, detaching and
 * taking a key over cost the same however many keys the lease holds, and a key costs no container of its own. A flush drops the
 * whole table, rings included.
 *
 * A row is held, ended or free. An ended row (holder NO_LEASE) stays under its name until its end is durable and remembers
 * when the key vanished; a new put of the same name takes it up again. A key whose lease has ended still names that lease as its
 * holder: whoever looks at a key has to ask whether its holder is alive.
 *
 * A plain key is held by a hidden lease (`lease-table.ts`). A key that several leases may hold at once (LOCK.ACQUIRE with SHARED or LIMIT)
 * has one row for the key, with SHARED in the place of its holder, and one more row for each holder, a member: members have the
 * key's name too, but the index names the key's row, which stays the same for as long as anybody holds the key. Members are in
 * their holders' rings, with value and token of their own, and go at once when their lease ends.
 *
 * Invariants:
 *  - a row is in exactly one ring, its holder's, or in none when it has no holder or several
 *  - a shared key has a member; members of one key have different holders and tokens
 *  - `liveCount` counts the keys of live leases, at once when a lease ends, whatever is still to be swept
 */

/** The row number of a key in its database's table. */
export type KeyRow = number;

/** No key. */
export const NO_KEY: KeyRow = -1;

/** In the place of a holder: the key is shared, its holders have rows of their own. */
export const SHARED: LeaseRow = -2;

/** Who shares a key: member rows, oldest first. */
export class Sharing {
  readonly mode: LockMode;
  readonly byLease = new Map<LeaseRow, KeyRow>();
  readonly byToken = new Map<Token, KeyRow>();

  constructor(mode: LockMode) {
    this.mode = mode;
  }
}

export class KeyTable {
  readonly #names = new ReferenceColumn<ByteString>();
  readonly #values = new ReferenceColumn<ByteString>();
  readonly #holders = new Int32Column(NO_LEASE);
  readonly #next = new Int32Column();
  readonly #previous = new Int32Column();
  readonly #isMember = new Uint16Column();
  readonly #sinceUnixMs = new Float64Column();
  readonly token = new Float64Column();
  /** The revision of the newest change of the key, its end included. */
  readonly changedAt = new Float64Column();

  readonly rows = new RowAllocator([
    this.#names,
    this.#values,
    this.#holders,
    this.#next,
    this.#previous,
    this.#isMember,
    this.#sinceUnixMs,
    this.token,
    this.changedAt,
  ]);

  readonly #byName = new NameIndex(this.#names);
  /** By lease: one more than the row of the newest key of its ring, 0 without a ring. */
  readonly #ringEnds = new SparseInt32Column();
  readonly #ringSizes = new SparseInt32Column();
  /** By lease: how many rows of its ring are members. */
  readonly #memberCounts = new SparseInt32Column();

  readonly #sharings = new Map<KeyRow, Sharing>();

  /** Keys of live leases; a shared key counts once. */
  liveCount = 0;
  /** Members of all shared keys. */
  memberCount = 0;
  /** The newest change of any key of this database. */
  anyChangedAt: Revision;
  /** The flush that this table began with: a name that is in no row may have vanished then. */
  readonly flushedAt: Revision;

  constructor(flushedAt: Revision) {
    this.flushedAt = flushedAt;
    this.anyChangedAt = flushedAt;
  }

  /** The row of a name, held or ended; NO_KEY when there is none. */
  find(name: ByteString): KeyRow {
    return this.#byName.get(name);
  }

  name(row: KeyRow): ByteString {
    return this.#names.get(row) ?? "";
  }

  value(row: KeyRow): ByteString {
    return this.#values.get(row) ?? "";
  }

  /** Wall clock at which the holder got the key, for people; 0 when that is not known. */
  sinceUnixMs(row: KeyRow): number {
    return this.#sinceUnixMs.get(row);
  }

  /** True for a row that is one of the holders of a shared key, and no key itself. */
  isMember(row: KeyRow): boolean {
    return this.#isMember.get(row) !== 0;
  }

  /** The holders of a shared key; null for any other row. */
  sharing(row: KeyRow): Sharing | null {
    return this.#holders.get(row) === SHARED ? this.#sharings.get(row)! : null;
  }

  /** The lease that holds the key, alive or not; NO_LEASE for a row that is ended or free, SHARED when several may. */
  holder(row: KeyRow): LeaseRow {
    return this.#holders.get(row);
  }

  /** True for a free row: no key lies here, not even an ended one. */
  isFree(row: KeyRow): boolean {
    return this.#names.get(row) === null;
  }

  countOf(lease: LeaseRow): number {
    return this.#ringSizes.get(lease);
  }

  /** How many of the lease's keys it shares, or might. */
  membersOf(lease: LeaseRow): number {
    return this.memberCount === 0 ? 0 : this.#memberCounts.get(lease);
  }

  /** The oldest key of a lease, NO_KEY when it holds none here. */
  firstOf(lease: LeaseRow): KeyRow {
    const end = this.#ringEnds.get(lease);
    return end === 0 ? NO_KEY : this.#next.get(end - 1);
  }

  /** The key of the same lease that was attached after this one; after the newest comes the oldest. */
  nextOf(row: KeyRow): KeyRow {
    return this.#next.get(row);
  }

  /** The row that a name has or gets. A new row is ended. */
  rowFor(name: ByteString): KeyRow {
    const found = this.#byName.get(name);
    if (found >= 0) return found;
    const row = this.rows.take();
    this.#names.set(row, name);
    this.#holders.set(row, NO_LEASE);
    this.#byName.set(name, row);
    return row;
  }

  write(row: KeyRow, value: ByteString, token: Token, sinceUnixMs: number, revision: Revision): void {
    this.#values.set(row, value);
    this.#sinceUnixMs.set(row, sinceUnixMs);
    this.token.set(row, token);
    this.touch(row, revision);
  }

  /** The key changed at `revision`. */
  touch(row: KeyRow, revision: Revision): void {
    this.changedAt.set(row, revision);
    this.anyChangedAt = revision;
  }

  /** The member row of a lease that shares the key, or is to share it from now on. `row` has no holder, or is shared in this mode. */
  memberFor(row: KeyRow, lease: LeaseRow, mode: LockMode): KeyRow {
    let sharing = this.sharing(row);
    if (sharing === null) {
      invariant(this.#holders.get(row) === NO_LEASE, "a key is held in one mode at a time");
      sharing = new Sharing(mode);
      this.#sharings.set(row, sharing);
      this.#holders.set(row, SHARED);
      this.#values.set(row, null);
    }
    let member = sharing.byLease.get(lease);
    if (member === undefined) {
      member = this.rows.take();
      this.#names.set(member, this.#names.get(row));
      this.#isMember.set(member, 1);
      sharing.byLease.set(lease, member);
      this.memberCount += 1;
      this.#memberCounts.set(lease, this.#memberCounts.get(lease) + 1);
      this.link(member, lease);
    }
    return member;
  }

  /** After a member was written: it is found by its token. */
  noteToken(row: KeyRow, member: KeyRow): void {
    this.sharing(row)?.byToken.set(this.token.get(member), member);
  }

  /** Takes a member out of a shared key. Returns false when none is left: then the row has no holder any more. */
  removeMember(row: KeyRow, member: KeyRow): boolean {
    const sharing = this.sharing(row);
    invariant(sharing !== null, "a member has a key");
    const lease = this.#holders.get(member);
    sharing.byLease.delete(lease);
    this.#memberCounts.set(lease, this.#memberCounts.get(lease) - 1);
    sharing.byToken.delete(this.token.get(member));
    this.unlink(member);
    this.#isMember.set(member, 0);
    this.#names.set(member, null);
    this.#values.set(member, null);
    this.rows.free(member);
    this.memberCount -= 1;
    if (sharing.byLease.size > 0) return true;
    this.#sharings.delete(row);
    this.#holders.set(row, NO_LEASE);
    return false;
  }

  /** Brings the members of every shared key into the order of their tokens: rows of a store come in another one. */
  orderMembers(): void {
    for (const sharing of this.#sharings.values()) {
      const members = [...sharing.byLease].sort(([, a], [, b]) => this.token.get(a) - this.token.get(b));
      sharing.byLease.clear();
      for (const [lease, member] of members) sharing.byLease.set(lease, member);
    }
  }

  /** Puts a row without a holder into the ring of a lease. */
  link(row: KeyRow, lease: LeaseRow): void {
    const end = this.#ringEnds.get(lease);
    if (end === 0) {
      this.#next.set(row, row);
      this.#previous.set(row, row);
    } else {
      const newest = end - 1;
      const oldest = this.#next.get(newest);
      this.#next.set(newest, row);
      this.#previous.set(row, newest);
      this.#next.set(row, oldest);
      this.#previous.set(oldest, row);
    }
    this.#ringEnds.set(lease, row + 1);
    this.#ringSizes.set(lease, this.#ringSizes.get(lease) + 1);
    this.#holders.set(row, lease);
  }

  /** Takes a row out of its holder's ring. */
  unlink(row: KeyRow): void {
    const lease = this.#holders.get(row);
    const next = this.#next.get(row);
    const previous = this.#previous.get(row);
    if (next === row) {
      this.#ringEnds.set(lease, 0);
    } else {
      this.#next.set(previous, next);
      this.#previous.set(next, previous);
      if (this.#ringEnds.get(lease) === row + 1) this.#ringEnds.set(lease, previous + 1);
    }
    this.#ringSizes.set(lease, this.#ringSizes.get(lease) - 1);
    this.#holders.set(row, NO_LEASE);
  }

  /** Marks an unlinked row as ended at `revision`. */
  end(row: KeyRow, revision: Revision): void {
    this.#values.set(row, null);
    this.touch(row, revision);
  }

  /** Frees a row without a holder. */
  sweep(row: KeyRow): void {
    this.#byName.deleteIf(this.name(row), row);
    this.#names.set(row, null);
    this.#values.set(row, null);
    this.rows.free(row);
  }
}
