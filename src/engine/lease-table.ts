import { Float64Column, Float64Records, ReferenceColumn, RowAllocator, Uint16Column } from "./columns.js";
import { NameIndex } from "./name-index.js";
import type { LeasePutOp, LeaseRequest, Revision, Token } from "./op.js";
import type { ByteString } from "./reply.js";

/**
 * All leases, one row each, as the disk knows them (deadlines live in `deadlines.ts`). Only `state.ts` writes here.
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

  /** Live leases. */
  liveCount = 0;
  /** The newest grant, end or flush of any lease. */
  anyChangedAt: Revision = 0;
  /** The newest FLUSHALL: an id that is in no row may have vanished then. */
  flushedAt: Revision = 0;

  /** The row of an id, live or ended; NO_LEASE when there is none. */
  find(id: ByteString): LeaseRow {
    return this.#byId.get(id);
  }

  /** The row of a live lease, NO_LEASE otherwise. */
  findLive(id: ByteString): LeaseRow {
    const row = this.#byId.get(id);
    return row >= 0 && this.numbers.get(row, STATUS) === LIVE ? row : NO_LEASE;
  }

  /** The row of the lease that a `*` request with this nonce made; NO_LEASE when it is not alive any more. */
  findByNonce(nonce: ByteString): LeaseRow {
    return this.#byNonce.get(nonce);
  }

  isLive(row: LeaseRow): boolean {
    return this.numbers.get(row, STATUS) === LIVE;
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
