import type { LogLevel } from "../../ports.js";
import type { StoreErrorCode, StoreIdentity } from "../store.js";

/**
 * What the main thread and the worker thread of a RocksStore say to each other.
 *
 * A batch goes through shared memory: the worker sleeps in `Atomics.wait`, the main thread copies the batch, raises REQUEST and wakes
 * it; the worker raises COMPLETION, and the main thread hears of it through `Atomics.waitAsync`. Everything rare (the outcome of the
 * opening, pages of a load, batches larger than the shared memory, failures) goes through messages.
 *
 * Round trip with a batch of 10 KB, median (2 cores, otherwise idle), and CPU time of the main thread per batch:
 *
 *   message there, message back                        38 us    35 us
 *   message and wake-up there, message back            29 us    25 us
 *   shared memory there, message back                  24 us    28 us
 *   shared memory there, waitAsync back (this)         24 us    18 us
 *   ... with one batch per millisecond: messages 73 us, this 35 us
 */

/** How long a directory that was removed or replaced may go unnoticed, in milliseconds. */
export const PLACE_CHECK_INTERVAL_MS = 1000;

/** Words of the control block. */
export const REQUEST = 0;
export const COMPLETION = 1;
/** What the newest request asks: one of the REQUEST_ constants. */
export const REQUEST_KIND = 2;
export const BATCH_BYTES = 3;
/** The witness slot that the batch is to be noted in. */
export const WITNESS_SLOT = 4;
/** 0: the batch is durable; 1: it failed, the text follows as a message. */
export const OUTCOME = 5;
/** Tells pages of an abandoned load from those of the running one. */
export const LOAD_NUMBER = 6;
/** 1: look whether the directory is still in its place before this batch is written. */
export const CHECK_PLACE = 7;
const CONTROL_WORDS = 16;

/** The batch's revision, in the words behind the control block: a double, because revisions go beyond 32 bits. */
const REVISION_OFFSET_BYTES = CONTROL_WORDS * 4;
const BATCH_OFFSET_BYTES = 4096;

/** Address space, not memory: what no batch ever reached is never resident. Larger batches go as messages. */
export const SHARED_BATCH_BYTES_MAX = 512 * 1024;

export const REQUEST_COMMIT = 1;
export const REQUEST_COMMIT_BY_MESSAGE = 2;
export const REQUEST_LOAD_FIRST = 3;
export const REQUEST_LOAD_NEXT = 4;
export const REQUEST_CLOSE = 5;

export interface SharedArea {
  readonly memory: SharedArrayBuffer;
  readonly control: Int32Array;
  readonly revision: Float64Array;
  readonly batch: Buffer;
}

export function allocateShared(): SharedArea {
  return viewShared(new SharedArrayBuffer(BATCH_OFFSET_BYTES + SHARED_BATCH_BYTES_MAX));
}

export function viewShared(memory: SharedArrayBuffer): SharedArea {
  return {
    memory,
    control: new Int32Array(memory, 0, CONTROL_WORDS),
    revision: new Float64Array(memory, REVISION_OFFSET_BYTES, 1),
    batch: Buffer.from(memory, BATCH_OFFSET_BYTES, SHARED_BATCH_BYTES_MAX),
  };
}

/** Where the worker finds its fault points: a module that exports `createFault(spec)`. */
export interface WorkerFault {
  readonly moduleUrl: string;
  readonly spec: string;
}

export interface WorkerInput {
  readonly memory: SharedArrayBuffer;
  readonly directory: string;
  readonly acceptLoss: boolean;
  readonly freshIncarnation: string;
  readonly pageBytes: number;
  readonly fault: WorkerFault | null;
}

export type WorkerMessage =
  | { readonly kind: "note"; readonly level: LogLevel; readonly message: string }
  | { readonly kind: "opened"; readonly identity: StoreIdentity; readonly witnessFd: number }
  | { readonly kind: "refused"; readonly code: StoreErrorCode; readonly message: string }
  | { readonly kind: "page"; readonly load: number; readonly bytes: Uint8Array; readonly rowCount: number }
  | { readonly kind: "loaded"; readonly load: number }
  | { readonly kind: "load-failed"; readonly load: number; readonly code: StoreErrorCode; readonly message: string }
  | { readonly kind: "commit-failed"; readonly code: StoreErrorCode; readonly message: string }
  /** With no batch in flight. */
  | { readonly kind: "failed"; readonly code: StoreErrorCode; readonly message: string }
  | { readonly kind: "closed"; readonly failure: string | null };
