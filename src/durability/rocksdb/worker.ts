import { parentPort, receiveMessageOnPort, workerData, type MessagePort } from "node:worker_threads";
import { invariant } from "../../engine/invariant.js";
import type { Fault } from "../../ports.js";
import { asBuffer } from "../batch.js";
import { ALL_ROWS_RANGE } from "../schema.js";
import { type RowPage, StoreError } from "../store.js";
import { messageOf, type RowCursor } from "./database.js";
import { type OpenedStore, openStore } from "./opening.js";
import {
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
  type SharedArea,
  viewShared,
  WITNESS_SLOT,
  type WorkerInput,
  type WorkerMessage,
} from "./shared.js";

/**
 * The thread that owns RocksDB. It opens the store, then sleeps until the main thread asks for something, does it while
 * blocking, and sleeps again: a slow disk holds up this thread and nobody else.
 *
 * A batch: apply and sync, note its revision in the witness, tell the main thread. In this order, so that the witness never lags
 * behind an acknowledgement.
 *
 * About once a second, with batches and without, it looks whether the directory is still in its place: one that was removed or replaced is a
 * failure.
 *
 * After the first failure no batch is written any more, whatever is asked.
 */

const NO_FAULT: Fault = { point: () => undefined };

class StoreThread {
  readonly #port: MessagePort;
  readonly #area: SharedArea;
  readonly #input: WorkerInput;
  readonly #store: OpenedStore;
  readonly #fault: Fault;
  #failure: StoreError | null = null;
  #cursor: RowCursor | null = null;
  /** Read ahead, so that the main thread decodes one page while this one reads the next. */
  #nextPage: RowPage | null = null;

  constructor(port: MessagePort, area: SharedArea, input: WorkerInput, store: OpenedStore, fault: Fault) {
    this.#port = port;
    this.#area = area;
    this.#input = input;
    this.#store = store;
    this.#fault = fault;
  }

  /** Serves requests until the one to close. */
  serve(): void {
    const { control } = this.#area;
    for (let served = 0; ;) {
      const woken = Atomics.wait(control, REQUEST, served, PLACE_CHECK_INTERVAL_MS);
      const request = Atomics.load(control, REQUEST);
      if (request === served) {
        if (woken === "timed-out") this.#checkPlace();
        continue;
      }
      served = request;
      const kind = Atomics.load(control, REQUEST_KIND);
      if (kind === REQUEST_COMMIT) this.#commit(this.#area.batch.subarray(0, Atomics.load(control, BATCH_BYTES)));
      else if (kind === REQUEST_COMMIT_BY_MESSAGE) this.#commit(this.#receiveBatch());
      else if (kind === REQUEST_LOAD_FIRST) this.#loadFirst();
      else if (kind === REQUEST_LOAD_NEXT) this.#loadNext();
      else if (kind === REQUEST_CLOSE) return;
    }
  }

  async close(): Promise<void> {
    this.#cursor?.close();
    const { directory, database, witness } = this.#store;
    try {
      this.#fault.point("close:before-sync");
      witness.sync();
    } catch (error) {
      this.#fail(error);
    }
    witness.close();
    if (this.#isInPlace()) directory.removePid();
    try {
      await database.close();
    } catch (error) {
      this.#fail(error);
    }
    send(this.#port, { kind: "closed", failure: this.#failure?.message ?? null });
  }

  #fail(error: unknown): StoreError {
    this.#failure ??= error instanceof StoreError ? error : new StoreError("write-failed", messageOf(error));
    return this.#failure;
  }

  /** With no batch at hand. */
  #checkPlace(): void {
    if (this.#failure !== null) return;
    try {
      this.#store.directory.checkPlace();
    } catch (error) {
      const { code, message } = this.#fail(error);
      send(this.#port, { kind: "failed", code, message });
    }
  }

  /** Whether small files at the path are this store's still. */
  #isInPlace(): boolean {
    try {
      this.#store.directory.checkPlace();
      return true;
    } catch (error) {
      this.#fail(error);
      return false;
    }
  }

  #commit(batch: Buffer): void {
    const { control, revision } = this.#area;
    let outcome = 0;
    try {
      if (this.#failure !== null) throw this.#failure;
      if (Atomics.load(control, CHECK_PLACE) !== 0) this.#store.directory.checkPlace();
      this.#fault.point("commit:before-write");
      this.#store.database.apply(batch);
      this.#fault.point("commit:after-write");
      this.#store.witness.write(Atomics.load(control, WITNESS_SLOT), revision[0] ?? 0);
    } catch (error) {
      const { code, message } = this.#fail(error);
      outcome = 1;
      send(this.#port, { kind: "commit-failed", code, message });
    }
    Atomics.store(control, OUTCOME, outcome);
    Atomics.add(control, COMPLETION, 1);
    Atomics.notify(control, COMPLETION);
  }

  #receiveBatch(): Buffer {
    const received = receiveMessageOnPort(this.#port);
    invariant(received?.message instanceof Uint8Array, "a batch by message comes before its request");
    return asBuffer(received.message);
  }

  #loadFirst(): void {
    this.#cursor?.close();
    this.#nextPage = null;
    const [start, end] = ALL_ROWS_RANGE;
    this.#cursor = this.#store.database.openCursor(
      Buffer.from(start, "latin1"),
      Buffer.from(end, "latin1"),
      this.#input.pageBytes,
    );
    if (this.#readAhead()) this.#loadNext();
  }

  #loadNext(): void {
    const load = Atomics.load(this.#area.control, LOAD_NUMBER);
    const page = this.#nextPage;
    if (page !== null) {
      const { bytes, rowCount } = page;
      send(this.#port, { kind: "page", load, bytes, rowCount }, [bytes.buffer as ArrayBuffer]);
      this.#nextPage = null;
      this.#readAhead();
    } else if (this.#cursor !== null) {
      this.#cursor.close();
      this.#cursor = null;
      send(this.#port, { kind: "loaded", load });
    }
  }

  /** False when reading failed, which is told at once. */
  #readAhead(): boolean {
    try {
      this.#nextPage = this.#cursor?.next() ?? null;
      return true;
    } catch (error) {
      this.#cursor?.close();
      this.#cursor = null;
      const load = Atomics.load(this.#area.control, LOAD_NUMBER);
      const code = error instanceof StoreError ? error.code : "damaged";
      send(this.#port, { kind: "load-failed", load, code, message: messageOf(error) });
      return false;
    }
  }
}

function send(port: MessagePort, message: WorkerMessage, transfer: readonly ArrayBuffer[] = []): void {
  port.postMessage(message, transfer);
}

async function faultOf(input: WorkerInput): Promise<Fault> {
  if (input.fault === null) return NO_FAULT;
  const module = (await import(input.fault.moduleUrl)) as { createFault(spec: string): Fault };
  return module.createFault(input.fault.spec);
}

async function main(port: MessagePort, input: WorkerInput): Promise<void> {
  const fault = await faultOf(input);
  let store: OpenedStore;
  try {
    store = await openStore({
      directory: input.directory,
      acceptLoss: input.acceptLoss,
      freshIncarnation: input.freshIncarnation,
      fault,
      note: (level, message) => send(port, { kind: "note", level, message }),
    });
  } catch (error) {
    const code = error instanceof StoreError ? error.code : "unusable";
    send(port, { kind: "refused", code, message: messageOf(error) });
    return;
  }
  send(port, { kind: "opened", identity: store.identity, witnessFd: store.witness.fd });
  const thread = new StoreThread(port, viewShared(input.memory), input, store, fault);
  thread.serve();
  await thread.close();
}

invariant(parentPort !== null, "this file runs as a worker thread");
await main(parentPort, workerData as WorkerInput);
