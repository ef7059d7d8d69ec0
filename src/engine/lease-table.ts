import { Float64Column, Float64Records, ReferenceColumn, RowAllocator, Uint16Column } from "./columns.js";
import { NameIndex } from "./name-index.js";
import type { LeasePutOp, LeaseRequest, Revision, Token } from "./op.js";
import type { ByteString } from "./reply.js";

/**
 * All leases, one row each, as the disk knows them (deadlines live in `deadlines.ts`). Only `state.ts` writes here.
 *
 * Plain keys need somebody to hold them too. A key with a TTL of its own has a hidden lease, which nobody can name: so deadlines,
 * wheel, rebuild and expiry serve leases and plain keys alike. It has no id, is in no index, counts nowhere, and goes with its key.
 * All keys without a TTL are held by one hidden lease that never ends, `forever`.
 *
 * A row is live, ended or free. An ended row stays, still found by its id, until the end is durable: it is what remembers at
 * which revision the lease vanished (a reply that says "no such lease" has to wait for that), and what makes the keys of a
 * dead lease count as absent long before they are removed one by one.
 *
 * Invariants:
 *  - at most one live row per id; the index names it, or else the newest ended one that was not swept
 *  - `changedAt` of a row never falls; it moves with the lease (grant, longer TTL, end), not with its keys
 */

/** The row number of a lease. Of no meaning outside of this process, and of another lease once the row was freed. */
export type LeaseRow = number;

/** No lease. */
export const NO_LEASE: LeaseRow = -1;

const FREE = 0;
const LIVE = 1;
const ENDED = 2;
/** Alive as well, but without an id: the lease of a plain key. */
const HIDDEN = 3;

/** Set in the statuses of what is alive. */
const ALIVE_BIT = 1;

/**
 * The fields of `LeaseTable.numbers`. The first three are what only the primary knows and belong to `deadlines.ts`; they lie here
 * so that a keep-alive finds all it needs in one place. Nothing durable depends on them.
 */
export const DEADLINE = 0;
export const CURRENT_TTL = 1;
export const ON_GRACE = 2;
const STATUS = 3;
const CHANGED_AT = 4;
const DURABLE_TTL = 5;
const TOKEN = 6;
const KEYS_CHANGED_AT = 7;

const INITIAL_NUMBERS: readonly number[] = [Infinity, 0, 0, FREE, 0, 0, 0, 0];

export class LeaseTable {
  readonly numbers = new Float64Records(INITIAL_NUMBERS);
  readonly #ids = new ReferenceColumn<ByteString>();
  readonly #owners = new ReferenceColumn<ByteString>();
  readonly #labels = new ReferenceColumn<ByteString>();
  readonly #requests = new ReferenceColumn<LeaseRequest>();
  readonly #grantedAtUnixMs = new Float64Column();
  readonly #databases = new Uint16Column();

  readonly rows = new RowAllocator([
    this.numbers,
    this.#ids,
    this.#owners,
    this.#labels,
    this.#requests,
    this.#grantedAtUnixMs,
    this.#databases,
  ]);

  readonly #byId = new NameIndex(this.#ids);
  /** Leases whose id the server chose, by the nonce of the request. */
  readonly #byNonce = new NameIndex({ get: (row) => this.#requests.get(row)?.nonce ?? null });

  /** Live leases, hidden ones not among them. */
  liveCount = 0;
  /** Hidden leases, `forever` among them. */
  hiddenCount = 0;
  /** The hidden lease that holds the plain keys without a TTL; NO_LEASE until the first such key comes. */
  forever: LeaseRow = NO_LEASE;
  /** The newest grant, end or flush of any lease. */
  anyChangedAt: Revision = 0;
  /** The newest FLUSHALL: an id that is in no row may have vanished then. */
  flushedAt: Revision = 0;

  /** The row of an id, live or ended; NO_LEASE when there is none. */
  find(id: ByteString): LeaseRow {
    return this.#byId.get(id);
  }

  /** The row of a live lease, NO_LEASE otherwise. A hidden lease is found by no id. */
  findLive(id: ByteString): LeaseRow {
    const row = this.#byId.get(id);
    return row >= 0 && this.numbers.get(row, STATUS) === LIVE ? row : NO_LEASE;
  }

  /** The row of the lease that a `*` request with this nonce made; NO_LEASE when it is not alive any more. */
  findByNonce(nonce: ByteString): LeaseRow {
    return this.#byNonce.get(nonce);
  }

  /** True for a lease that has not ended, hidden ones included. */
  isLive(row: LeaseRow): boolean {
    return (this.numbers.get(row, STATUS) & ALIVE_BIT) !== 0;
  }

  /** True for the lease of a plain key. */
  isHidden(row: LeaseRow): boolean {
    return this.numbers.get(row, STATUS) === HIDDEN;
  }

  isEnded(row: LeaseRow): boolean {
    return this.numbers.get(row, STATUS) === ENDED;
  }

  id(row: LeaseRow): ByteString {
    return this.#ids.get(row) ?? "";
  }

  owner(row: LeaseRow): ByteString {
    return this.#owners.get(row) ?? "";
  }

  label(row: LeaseRow): ByteString | null {
    return this.#labels.get(row);
  }

  request(row: LeaseRow): LeaseRequest | null {
    return this.#requests.get(row);
  }

  /** The durable TTL: the upper bound of every promise, in milliseconds. */
  ttlMs(row: LeaseRow): number {
    return this.numbers.get(row, DURABLE_TTL);
  }

  token(row: LeaseRow): Token {
    return this.numbers.get(row, TOKEN);
  }

  grantedAtUnixMs(row: LeaseRow): number {
    return this.#grantedAtUnixMs.get(row);
  }

  /** The revision of the newest change of the lease itself. */
  changedAt(row: LeaseRow): Revision {
    return this.numbers.get(row, CHANGED_AT);
  }

  /** The revision of the newest change of what it holds: attach, detach, taken, deleted. */
  keysChangedAt(row: LeaseRow): Revision {
    return this.numbers.get(row, KEYS_CHANGED_AT);
  }

  /** Bit n: the lease has held keys in database n. A hint, never missing a database that it holds keys in. */
  databases(row: LeaseRow): number {
    return this.#databases.get(row);
  }

  /** Creates the lease, or overwrites what the op tells of a live one. */
  put(op: LeasePutOp, revision: Revision): LeaseRow {
    let row = this.findLive(op.id);
    if (row === NO_LEASE) {
      row = this.rows.take();
      this.#ids.set(row, op.id);
      this.numbers.set(row, STATUS, LIVE);
      this.numbers.set(row, KEYS_CHANGED_AT, 0);
      this.#databases.set(row, 0);
      this.#byId.set(op.id, row);
      this.liveCount += 1;
    }
    this.#owners.set(row, op.owner);
    this.#labels.set(row, op.label);
    this.#setRequest(row, op.request);
    this.numbers.set(row, DURABLE_TTL, op.ttlMs);
    this.numbers.set(row, TOKEN, op.token);
    this.#grantedAtUnixMs.set(row, op.grantedAtUnixMs);
    this.numbers.set(row, CHANGED_AT, revision);
    this.anyChangedAt = revision;
    return row;
  }

  /** The lease of a plain key with a TTL; `databaseIndex` is the key's. */
  putHidden(ttlMs: number, databaseIndex: number): LeaseRow {
    const row = this.rows.take();
    this.numbers.set(row, STATUS, HIDDEN);
    this.numbers.set(row, DURABLE_TTL, ttlMs);
    this.numbers.set(row, CHANGED_AT, 0);
    this.#databases.set(row, 1 << databaseIndex);
    this.hiddenCount += 1;
    return row;
  }

  /** The lease of plain keys without a TTL. */
  putForever(): LeaseRow {
    if (this.forever === NO_LEASE) this.forever = this.putHidden(Infinity, 0);
    return this.forever;
  }

  /** The TTL of a plain key is another one now. */
  setHiddenTtl(row: LeaseRow, ttlMs: number): void {
    this.numbers.set(row, DURABLE_TTL, ttlMs);
  }

  /** The database of the one key that a hidden lease with a TTL holds. */
  databaseOfHidden(row: LeaseRow): number {
    return 31 - Math.clz32(this.#databases.get(row));
  }

  /** Frees a hidden lease, whose deadline was cancelled. */
  freeHidden(row: LeaseRow): void {
    this.numbers.set(row, STATUS, FREE);
    this.hiddenCount -= 1;
    this.rows.free(row);
  }

  /** A key was attached to the lease or left it, in this database. */
  noteKeyChange(row: LeaseRow, databaseIndex: number, revision: Revision): void {
    this.numbers.set(row, KEYS_CHANGED_AT, revision);
    const databases = this.#databases.get(row);
    const changed = databases | (1 << databaseIndex);
    if (changed !== databases) this.#databases.set(row, changed);
  }

  /** Marks a live lease as ended; the row stays until `sweep`. */
  end(row: LeaseRow, revision: Revision): void {
    this.#forgetNonce(row);
    this.numbers.set(row, STATUS, ENDED);
    this.numbers.set(row, CHANGED_AT, revision);
    this.liveCount -= 1;
    this.anyChangedAt = revision;
  }

  /** Frees the row of an ended lease. */
  sweep(row: LeaseRow): void {
    const id = this.id(row);
    this.#byId.deleteIf(id, row);
    this.numbers.set(row, STATUS, FREE);
    this.#ids.set(row, null);
    this.#owners.set(row, null);
    this.#labels.set(row, null);
    this.#requests.set(row, null);
    this.rows.free(row);
  }

  /** Drops all leases at once. */
  clear(revision: Revision): void {
    this.rows.clear();
    this.#byId.clear();
    this.#byNonce.clear();
    this.liveCount = 0;
    this.hiddenCount = 0;
    this.forever = NO_LEASE;
    this.anyChangedAt = revision;
    this.flushedAt = revision;
  }

  #setRequest(row: LeaseRow, request: LeaseRequest | null): void {
    this.#forgetNonce(row);
    this.#requests.set(row, request);
    if (request !== null && request.idChosenByServer) this.#byNonce.set(request.nonce, row);
  }

  #forgetNonce(row: LeaseRow): void {
    const request = this.#requests.get(row);
    if (request !== null && request.idChosenByServer) this.#byNonce.deleteIf(request.nonce, row);
  }
}
