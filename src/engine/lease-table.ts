import { Float64Column, ReferenceColumn, RowAllocator, Uint16Column } from "./columns.js";
import { NameIndex } from "./name-index.js";
import type { LeasePutOp, LeaseRequest, Revision } from "./op.js";
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

export class LeaseTable {
  readonly #ids = new ReferenceColumn<ByteString>();
  readonly #owners = new ReferenceColumn<ByteString>();
  readonly #labels = new ReferenceColumn<ByteString>();
  readonly #requests = new ReferenceColumn<LeaseRequest>();
  readonly #status = new Uint16Column();
  /** The durable TTL: the upper bound of every promise, in milliseconds. */
  readonly ttlMs = new Float64Column();
  readonly token = new Float64Column();
  readonly grantedAtUnixMs = new Float64Column();
  /** The revision of the newest change of the lease itself. */
  readonly changedAt = new Float64Column();
  /** The revision of the newest change of what it holds: attach, detach, taken, deleted. */
  readonly keysChangedAt = new Float64Column();
  /** Bit n: the lease has held keys in database n. A hint, never missing a database that it holds keys in. */
  readonly databases = new Uint16Column();

  readonly rows = new RowAllocator([
    this.#ids,
    this.#owners,
    this.#labels,
    this.#requests,
    this.#status,
    this.ttlMs,
    this.token,
    this.grantedAtUnixMs,
    this.changedAt,
    this.keysChangedAt,
    this.databases,
  ]);

  readonly #byId = new NameIndex();
  /** Leases whose id the server chose, by the nonce of the request. */
  readonly #byNonce = new NameIndex();

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
    return row >= 0 && this.#status.get(row) === LIVE ? row : NO_LEASE;
  }

  /** The row of the lease that a `*` request with this nonce made; NO_LEASE when it is not alive any more. */
  findByNonce(nonce: ByteString): LeaseRow {
    return this.#byNonce.get(nonce);
  }

  isLive(row: LeaseRow): boolean {
    return this.#status.get(row) === LIVE;
  }

  isEnded(row: LeaseRow): boolean {
    return this.#status.get(row) === ENDED;
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

  /** Creates the lease, or overwrites what the op tells of a live one. */
  put(op: LeasePutOp, revision: Revision): LeaseRow {
    let row = this.findLive(op.id);
    if (row === NO_LEASE) {
      row = this.rows.take();
      this.#ids.set(row, op.id);
      this.#status.set(row, LIVE);
      this.keysChangedAt.set(row, 0);
      this.databases.set(row, 0);
      this.#byId.set(op.id, row);
      this.liveCount += 1;
    }
    this.#owners.set(row, op.owner);
    this.#labels.set(row, op.label);
    this.#requests.set(row, op.request);
    this.ttlMs.set(row, op.ttlMs);
    this.token.set(row, op.token);
    this.grantedAtUnixMs.set(row, op.grantedAtUnixMs);
    this.changedAt.set(row, revision);
    if (op.request !== null && op.request.idChosenByServer) this.#byNonce.set(op.request.nonce, row);
    this.anyChangedAt = revision;
    return row;
  }

  /** Marks a live lease as ended; the row stays until `sweep`. */
  end(row: LeaseRow, revision: Revision): void {
    const request = this.#requests.get(row);
    if (request !== null && request.idChosenByServer && this.#byNonce.get(request.nonce) === row) {
      this.#byNonce.delete(request.nonce);
    }
    this.#status.set(row, ENDED);
    this.changedAt.set(row, revision);
    this.liveCount -= 1;
    this.anyChangedAt = revision;
  }

  /** Frees the row of an ended lease. */
  sweep(row: LeaseRow): void {
    const id = this.id(row);
    if (this.#byId.get(id) === row) this.#byId.delete(id);
    this.#status.set(row, FREE);
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
}
