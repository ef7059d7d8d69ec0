/**
 * The store port: what "durable" means to the rest of the server. Three forms: memory (tests, simulation), RocksDB, etcd.
 * `test/durability/store-contract.ts` is the suite that each of them passes.
 *
 * Invariants of every store:
 *  1. `commit` calls `done(null)` only after the batch is synced: it survives power loss. All of a batch or nothing.
 *  2. The first error of a write or sync latches the store as failed: every later commit fails too, none is retried.
 *  3. One commit in flight at a time (the caller sees to it; the store asserts it).
 *  4. After `load`, the rows are exactly those of the durable batches, in key order, each once.
 *  5. Callbacks never run before the call that takes them has returned.
 *
 * Rows are bytes to a store; `schema.ts` alone knows what they mean.
 */

/** Why a store cannot go on, fit for one line to the operator. */
export class StoreError extends Error {
  override readonly name = "StoreError";
  readonly code: StoreErrorCode;
  constructor(code: StoreErrorCode, message: string) {
    super(message);
    this.code = code;
  }
}

export type StoreErrorCode =
  /** Another process has the directory; the message names its pid. */
  | "in-use"
  /** The directory cannot be made, read or written. */
  | "unusable"
  /** Written by another format version, or not by Leasehold. */
  | "format"
  /** A checksum or an invariant of the rows does not hold. */
  | "damaged"
  /** The recovered revision lies below the witness: acknowledged writes are missing. */
  | "short"
  /** A write or sync failed: the outcome of what was in flight is unknown. */
  | "write-failed"
  /** Another node has taken the role (etcd). */
  | "fenced";

export interface StoreIdentity {
  /** Made when the store was created; part of server-chosen lease ids. */
  readonly incarnation: string;
  /** The newest durable revision; 0 for a new store. */
  readonly revision: number;
  /** Rises with each take-over of the primary role. */
  readonly epoch: number;
}

/** Rows as the store hands them over at load: one buffer, packed `[u32 keyBytes][u32 valueBytes][key][value]`, little endian. */
export interface RowPage {
  readonly bytes: Uint8Array;
  readonly rowCount: number;
}

/**
 * One group-commit batch, packed by `BatchWriter` (batch.ts) in one transferable buffer. Row changes apply in order; a range
 * delete also covers rows put earlier in the same batch.
 */
export interface CommitBatch {
  readonly bytes: Uint8Array;
  readonly changeCount: number;
  /** The revision of the newest command in the batch; the store's high-water mark once it is durable. */
  readonly revision: number;
}

export type Done = (error: StoreError | null) => void;

export interface Store {
  /** For logs and INFO: `rocksdb`, `memory`, `etcd`. */
  readonly name: string;

  /**
   * Opens the store for this process and makes it the only writer; raises the epoch. Before anything else, and again by the
   * holder after a step-down, with no commit in flight.
   */
  acquire(done: (error: StoreError | null, identity: StoreIdentity | null) => void): void;

  /**
   * Hands over all rows in key order, page by page. The next page is read only after `next` was called, so that memory stays
   * bounded and the loop can breathe. May be called again after a step-down, with no commit in flight.
   */
  load(onPage: (page: RowPage, next: () => void) => void, done: Done): void;

  /** Writes and syncs one batch. */
  commit(batch: CommitBatch, done: Done): void;

  /** Finishes the commit in flight, syncs the witness, releases the directory. No call may follow. */
  close(done: Done): void;
}
