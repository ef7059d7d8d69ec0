import { invariant } from "../engine/invariant.js";
import type { Op, Revision } from "../engine/op.js";
import type { Clock, Fault, Scheduler } from "../ports.js";
import { BatchWriter } from "./batch.js";
import { encodeMeta, encodeOp } from "./schema.js";
import { type Store, StoreError } from "./store.js";

/**
 * Group commit. Ops join the open batch; one synced batch is in flight; what arrives meanwhile is the next batch. There is no
 * timer: on an idle server a batch leaves at the end of the loop turn that opened it, so that all input of that turn shares one
 * sync; on a busy one it leaves the moment the batch before it is durable.
 *
 *   append ──► open batch ──(nothing in flight: end of turn)──► Store.commit ──► durable ──► onDurable, in order
 *                   ▲                                                │
 *                   └─────────── fills while one is in flight ◄──────┘ next one leaves before onDurable is called
 *
 * The next batch is handed over before the replies of the last one are released, so that the disk works while the loop writes
 * replies.
 *
 * Invariants:
 *  1. All ops of one append lie in one batch: a command is durable whole or not at all.
 *  2. `durableRevision` never falls and never runs ahead of what the store has synced.
 *  3. One batch in flight.
 *  4. After the first failure nothing is called any more but `onFailure`, once; nothing is retried.
 *  5. No callback runs inside `append`, `drain` or `onRoom`.
 */

export interface CommitterOptions {
  readonly store: Store;
  readonly scheduler: Scheduler;
  readonly clock: Clock;
  readonly fault: Fault;
  /** From this size on the open batch counts as full: callers stop reading input. Not a hard limit: nothing is dropped. */
  readonly batchBytesMax: number;
  /** What the store held when it was acquired. */
  readonly durableRevision: Revision;
  /** After each batch is synced, in order. May append. */
  onDurable(revision: Revision): void;
  /** Once; nothing is called afterwards. The outcome of what was in flight is unknown. */
  onFailure(error: StoreError): void;
}

interface Drainer {
  readonly revision: Revision;
  readonly done: () => void;
}

export class Committer {
  readonly #options: CommitterOptions;
  #open = new BatchWriter();
  #inFlight = new BatchWriter();
  #openRevision: Revision;
  #durableRevision: Revision;
  #busy = false;
  #startScheduled = false;
  /** True after a failure or `stop`. */
  #ended = false;
  #handedOverAtMs = 0;
  #roomCallbacks: (() => void)[] = [];
  #drainers: Drainer[] = [];
  #batchesCommitted = 0;
  #bytesCommitted = 0;
  #lastCommitMs = 0;

  constructor(options: CommitterOptions) {
    this.#options = options;
    this.#durableRevision = options.durableRevision;
    this.#openRevision = options.durableRevision;
  }

  /** The newest revision that is synced. */
  get durableRevision(): Revision {
    return this.#durableRevision;
  }

  /** Bytes that wait for the next batch; those in flight are not counted. */
  get openBytes(): number {
    return this.#open.byteLength;
  }

  /** True when everything appended so far is durable. */
  get idle(): boolean {
    return !this.#busy && this.#open.byteLength === 0;
  }

  get saturated(): boolean {
    return this.#open.byteLength >= this.#options.batchBytesMax;
  }

  get batchesCommitted(): number {
    return this.#batchesCommitted;
  }

  get bytesCommitted(): number {
    return this.#bytesCommitted;
  }

  /** From hand-over to durable, the newest batch. */
  get lastCommitMs(): number {
    return this.#lastCommitMs;
  }

  /** All ops of one command join the open batch. `revision` is the command's, above every one appended before. */
  append(ops: readonly Op[], revision: Revision): void {
    invariant(!this.#ended, "append after the committer ended");
    invariant(revision > this.#openRevision, "revisions rise from append to append");
    invariant(ops.length > 0, "a command without ops has nothing to commit");
    this.#openRevision = revision;
    for (const op of ops) encodeOp(op, this.#open);
    if (this.#busy || this.#startScheduled) return;
    this.#startScheduled = true;
    this.#options.scheduler.soon(this.#startSoon);
  }

  /** Calls back once, after a batch left and the open one is no longer saturated. */
  onRoom(callback: () => void): void {
    this.#roomCallbacks.push(callback);
    if (!this.saturated) this.#options.scheduler.soon(this.#callRoom);
  }

  /** Calls back once everything appended so far is durable. Never calls back after a failure. */
  drain(done: () => void): void {
    this.#drainers.push({ revision: this.#openRevision, done });
    if (this.idle) this.#options.scheduler.soon(this.#callDrainers);
  }

  /** Nothing is called any more. A batch in flight may still become durable; nobody hears of it. */
  stop(): void {
    this.#ended = true;
    this.#roomCallbacks = [];
    this.#drainers = [];
  }

  readonly #startSoon = (): void => {
    this.#startScheduled = false;
    if (!this.#ended && !this.#busy) this.#start();
  };

  /** Hands the open batch to the store. */
  #start(): void {
    const { store, clock, fault } = this.#options;
    const batch = this.#open;
    const revision = this.#openRevision;
    encodeMeta(revision, batch);
    this.#open = this.#inFlight;
    this.#inFlight = batch;
    this.#busy = true;
    this.#handedOverAtMs = clock.monotonicMs();
    try {
      fault.point("commit:before-write");
      store.commit(batch.batch(revision), (error) => this.#completed(revision, error));
    } catch (cause) {
      this.#fail(asStoreError(cause));
    }
  }

  #completed(revision: Revision, error: StoreError | null): void {
    if (this.#ended) return;
    if (error !== null) {
      this.#fail(error);
      return;
    }
    try {
      this.#options.fault.point("commit:after-write");
    } catch (cause) {
      this.#fail(asStoreError(cause));
      return;
    }
    this.#lastCommitMs = this.#options.clock.monotonicMs() - this.#handedOverAtMs;
    this.#batchesCommitted += 1;
    this.#bytesCommitted += this.#inFlight.byteLength;
    this.#inFlight.clear();
    this.#busy = false;
    invariant(revision > this.#durableRevision, "durable revisions rise");
    this.#durableRevision = revision;
    if (this.#open.byteLength > 0) this.#start();
    this.#announce(revision);
  }

  #announce(revision: Revision): void {
    if (this.#ended) return;
    try {
      this.#options.fault.point("commit:before-release");
    } catch (cause) {
      this.#fail(asStoreError(cause));
      return;
    }
    this.#options.onDurable(revision);
    this.#callDrainers();
    this.#callRoom();
  }

  readonly #callDrainers = (): void => {
    for (;;) {
      const next = this.#drainers[0];
      if (next === undefined || next.revision > this.#durableRevision) return;
      this.#drainers.shift();
      next.done();
    }
  };

  readonly #callRoom = (): void => {
    if (this.#ended || this.saturated || this.#roomCallbacks.length === 0) return;
    const callbacks = this.#roomCallbacks;
    this.#roomCallbacks = [];
    for (const callback of callbacks) callback();
  };

  #fail(error: StoreError): void {
    this.stop();
    this.#options.onFailure(error);
  }
}

function asStoreError(cause: unknown): StoreError {
  if (cause instanceof StoreError) return cause;
  if (!(cause instanceof Error) || cause.name === "InvariantError") throw cause;
  return new StoreError("write-failed", cause.message);
}
