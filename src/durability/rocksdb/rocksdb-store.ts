import { fdatasync } from "node:fs";
import { Worker } from "node:worker_threads";
import { invariant } from "../../engine/invariant.js";
import type { Clock, Ids, Log, Scheduler, Timer } from "../../ports.js";
import { BatchWriter } from "../batch.js";
import { encodeIdentity, encodeMeta } from "../schema.js";
import { type CommitBatch, type Done, type RowPage, type Store, StoreError, type StoreIdentity } from "../store.js";
import {
  allocateShared,
  BATCH_BYTES,
  CHECK_PLACE,
  COMPLETION,
  LOAD_NUMBER,
  OUTCOME,
  PLACE_CHECK_INTERVAL_MS,
  REQUEST,
  REQUEST_CLOSE,
  REQUEST_COMMIT,
  REQUEST_COMMIT_BY_MESSAGE,
  REQUEST_KIND,
  REQUEST_LOAD_FIRST,
  REQUEST_LOAD_NEXT,
  SHARED_BATCH_BYTES_MAX,
  WITNESS_SLOT,
  type WorkerFault,
  type WorkerInput,
  type WorkerMessage,
} from "./shared.js";
import { WitnessSlots } from "./witness.js";

/**
 * The store on RocksDB: this half lives on the main thread and never touches the disk; `worker.ts` does (how they talk, and
 * what that costs: `shared.ts`).
 *
 * Besides passing things on, this half decides when the witness file is synced: a second after the first batch that was not
 * covered by the last sync, through libuv's pool, so that neither the loop nor the worker waits for it. And which batch is due for a look at
 * the directory's place, which costs 5 us.
 *
 * The first failure of anything that makes a batch durable (the write, the sync, the witness, the thread itself) latches: the
 * batch in flight and every later one get that error.
 */

export interface RocksStoreOptions {
  readonly directory: string;
  readonly log: Log;
  readonly clock: Clock;
  readonly ids: Ids;
  readonly scheduler: Scheduler;
  /** Opens a store although acknowledged revisions are missing, or its witness is. */
  readonly acceptLoss: boolean;
  /** Rows are loaded in pages of about this size: one page is one slice of the loop. */
  readonly pageBytes?: number;
  /**
   * The store has failed with no commit in flight, once; every later commit fails too. Without it only those tell.
   */
  readonly onFailure?: (error: StoreError) => void;
  /** Fault points inside the worker thread; tests only. */
  readonly workerFault?: WorkerFault | null;
}

/** About a thousand rows, 2 ms of decoding. */
const PAGE_BYTES = 128 * 1024;

const WITNESS_SYNC_INTERVAL_MS = 1000;

/** The worker holds one batch or page at a time: a small young generation keeps its heap from growing to V8's default of 48 MB. */
const WORKER_LIMITS = { maxYoungGenerationSizeMb: 8 } as const;

type Acquired = (error: StoreError | null, identity: StoreIdentity | null) => void;

interface Load {
  readonly onPage: (page: RowPage, next: () => void) => void;
  readonly done: Done;
}

/** ECMAScript 2024; Node has had it since version 16, the library typings of es2023 do not name it. */
const { waitAsync } = Atomics as unknown as {
  waitAsync(
    this: void,
    words: Int32Array,
    index: number,
    value: number,
  ): { readonly async: boolean; readonly value: PromiseLike<string> | string };
};

export class RocksStore implements Store {
  readonly name = "rocksdb";
  readonly #options: RocksStoreOptions;
  readonly #area = allocateShared();
  #worker: Worker | null = null;
  #state: "new" | "opening" | "open" | "closing" | "ended" = "new";
  #failure: StoreError | null = null;
  #acquired: Acquired | null = null;
  #committing: Done | null = null;
  /** As of the newest acquire; null until the store is open. */
  #identity: StoreIdentity | null = null;
  /** The newest durable one. */
  #revision = 0;
  #completions = 0;
  #load: Load | null = null;
  #placeCheckDueMs = -Infinity;
  #closeCalled = false;
  #closed: Done | null = null;

  readonly #slots = new WitnessSlots();
  #witnessFd = -1;
  #witnessTimer: Timer | null = null;
  #witnessSyncDue = false;

  constructor(options: RocksStoreOptions) {
    this.#options = options;
  }

  acquire(done: Acquired): void {
    if (this.#identity !== null) {
      this.#acquireAgain(this.#identity, done);
      return;
    }
    invariant(this.#state === "new", "the store is not being opened already");
    this.#state = "opening";
    this.#acquired = done;
    const input: WorkerInput = {
      memory: this.#area.memory,
      directory: this.#options.directory,
      acceptLoss: this.#options.acceptLoss,
      freshIncarnation: this.#options.ids.incarnation(),
      pageBytes: this.#options.pageBytes ?? PAGE_BYTES,
      fault: this.#options.workerFault ?? null,
    };
    const worker = new Worker(new URL("worker.js", import.meta.url), {
      workerData: input,
      resourceLimits: WORKER_LIMITS,
    });
    worker.on("message", (message: WorkerMessage) => this.#hear(message));
    worker.on("error", (error) => this.#threadEnded(`it threw ${String(error)}`));
    worker.on("exit", (code) => this.#threadEnded(`it ended with code ${code}`));
    this.#worker = worker;
  }

  /** After a step-down: the directory is this process's still, the epoch rises in a synced batch of its own. */
  #acquireAgain(before: StoreIdentity, done: Acquired): void {
    const identity: StoreIdentity = { ...before, epoch: before.epoch + 1, revision: this.#revision };
    const writer = new BatchWriter();
    encodeIdentity(identity.incarnation, identity.epoch, writer);
    encodeMeta(identity.revision, writer);
    this.commit(writer.batch(identity.revision), (error) => {
      if (error === null) this.#identity = identity;
      done(error, error === null ? identity : null);
    });
  }

  load(onPage: Load["onPage"], done: Done): void {
    invariant(
      this.#state === "open" && this.#committing === null,
      "load needs an open store without a commit in flight",
    );
    this.#load = { onPage, done };
    Atomics.add(this.#area.control, LOAD_NUMBER, 1);
    this.#request(REQUEST_LOAD_FIRST);
  }

  commit(batch: CommitBatch, done: Done): void {
    invariant(!this.#closeCalled, "no commit after close");
    invariant(this.#committing === null, "one commit at a time");
    if (this.#failure !== null) {
      const failure = this.#failure;
      this.#options.scheduler.soon(() => done(failure));
      return;
    }
    invariant(this.#state === "open", "commit needs an open store");
    this.#committing = done;
    const { control, revision, batch: shared } = this.#area;
    revision[0] = batch.revision;
    Atomics.store(control, WITNESS_SLOT, this.#slots.writing);
    Atomics.store(control, CHECK_PLACE, this.#isPlaceCheckDue() ? 1 : 0);
    this.#awaitCompletion();
    if (batch.bytes.length <= SHARED_BATCH_BYTES_MAX) {
      shared.set(batch.bytes);
      Atomics.store(control, BATCH_BYTES, batch.bytes.length);
      this.#request(REQUEST_COMMIT);
    } else {
      const copy = Uint8Array.from(batch.bytes);
      this.#worker?.postMessage(copy, [copy.buffer]);
      this.#request(REQUEST_COMMIT_BY_MESSAGE);
    }
  }

  #isPlaceCheckDue(): boolean {
    const nowMs = this.#options.clock.monotonicMs();
    if (nowMs < this.#placeCheckDueMs) return false;
    this.#placeCheckDueMs = nowMs + PLACE_CHECK_INTERVAL_MS;
    return true;
  }

  close(done: Done): void {
    invariant(!this.#closeCalled, "close is called once");
    this.#closeCalled = true;
    this.#closed = done;
    this.#witnessTimer?.cancel();
    if (this.#worker === null) this.#options.scheduler.soon(() => this.#endClose());
    else this.#closeWhenQuiet();
  }

  // Requests ----------------------------------------------------------------------------------------------------------

  #request(kind: number): void {
    const { control } = this.#area;
    Atomics.store(control, REQUEST_KIND, kind);
    Atomics.add(control, REQUEST, 1);
    Atomics.notify(control, REQUEST);
  }

  #awaitCompletion(): void {
    const result = waitAsync(this.#area.control, COMPLETION, this.#completions);
    invariant(typeof result.value !== "string", "no completion without a request");
    void result.value.then(this.#completed);
  }

  readonly #completed = (): void => {
    this.#completions += 1;
    // A failed batch ends with the message that says why; see #hear.
    if (Atomics.load(this.#area.control, OUTCOME) !== 0) return;
    const done = this.#committing;
    if (done === null) return; // failed meanwhile, for another reason
    this.#committing = null;
    this.#revision = this.#area.revision[0] ?? 0;
    this.#witnessLags();
    done(null);
    this.#closeWhenQuiet();
  };

  #hear(message: WorkerMessage): void {
    switch (message.kind) {
      case "note":
        this.#options.log.write(message.level, message.message);
        return;
      case "opened":
        this.#state = "open";
        this.#witnessFd = message.witnessFd;
        this.#identity = message.identity;
        this.#revision = message.identity.revision;
        this.#endAcquire(null, message.identity);
        return;
      case "refused":
        this.#state = "ended";
        this.#endAcquire(new StoreError(message.code, message.message), null);
        return;
      case "page":
        if (message.load === Atomics.load(this.#area.control, LOAD_NUMBER)) this.#handOver(message);
        return;
      case "loaded":
        if (message.load === Atomics.load(this.#area.control, LOAD_NUMBER)) this.#endLoad(null);
        return;
      case "load-failed":
        if (message.load !== Atomics.load(this.#area.control, LOAD_NUMBER)) return;
        this.#endLoad(new StoreError(message.code, message.message));
        return;
      case "commit-failed":
      case "failed":
        this.#fail(new StoreError(message.code, message.message));
        return;
      case "closed":
        if (message.failure !== null) this.#failure ??= new StoreError("write-failed", message.failure);
        return;
    }
  }

  #handOver(page: RowPage): void {
    const load = this.#load;
    if (load === null || this.#closeCalled) return;
    let answered = false;
    load.onPage(page, () => {
      invariant(!answered, "next is called once per page");
      answered = true;
      if (this.#load === load && !this.#closeCalled) this.#request(REQUEST_LOAD_NEXT);
    });
  }

  #endAcquire(error: StoreError | null, identity: StoreIdentity | null): void {
    const acquired = this.#acquired;
    this.#acquired = null;
    acquired?.(error, identity);
    this.#closeWhenQuiet();
  }

  #endLoad(error: StoreError | null): void {
    const load = this.#load;
    this.#load = null;
    load?.done(error);
  }

  // Failure and the end -----------------------------------------------------------------------------------------------

  #fail(error: StoreError): void {
    const isFirst = this.#failure === null;
    this.#failure ??= error;
    const done = this.#committing;
    this.#committing = null;
    if (done !== null) done(this.#failure);
    else if (isFirst && !this.#closeCalled) this.#options.onFailure?.(this.#failure);
    this.#closeWhenQuiet();
  }

  #threadEnded(how: string): void {
    if (this.#worker === null) return;
    this.#worker = null;
    const before = this.#state;
    this.#state = "ended";
    if (before === "opening" || before === "open") {
      const error = new StoreError("write-failed", `the store's thread is gone: ${how}`);
      if (before === "opening") this.#endAcquire(error, null);
      this.#endLoad(error);
      this.#fail(error);
    }
    this.#endClose();
  }

  /** Sends the thread home once nothing is under way any more, if close was called. */
  #closeWhenQuiet(): void {
    if (!this.#closeCalled || this.#state !== "open") return;
    if (this.#committing !== null || this.#slots.syncInProgress) return;
    this.#state = "closing";
    this.#request(REQUEST_CLOSE);
  }

  #endClose(): void {
    const done = this.#closed;
    this.#closed = null;
    done?.(this.#failure);
  }

  // The witness -------------------------------------------------------------------------------------------------------

  /** A batch was noted in the witness file without a sync. Called between two commits. */
  #witnessLags(): void {
    this.#slots.noteWritten();
    if (this.#witnessSyncDue) this.#syncWitness();
    else if (this.#witnessTimer === null && !this.#closeCalled) this.#setWitnessTimer();
  }

  #setWitnessTimer(): void {
    this.#witnessTimer = this.#options.scheduler.after(WITNESS_SYNC_INTERVAL_MS, () => {
      this.#witnessTimer = null;
      if (this.#slots.syncInProgress) {
        this.#setWitnessTimer();
        return;
      }
      this.#witnessSyncDue = true;
      if (this.#committing === null) this.#syncWitness();
    });
  }

  /** Only between two commits: the slot in use is frozen here. */
  #syncWitness(): void {
    if (this.#state !== "open" || this.#failure !== null) return;
    this.#witnessSyncDue = false;
    this.#slots.beginSync();
    fdatasync(this.#witnessFd, (error) => {
      this.#slots.endSync();
      if (error !== null) this.#fail(new StoreError("write-failed", `the witness file: ${error.message}`));
      this.#closeWhenQuiet();
    });
  }
}
