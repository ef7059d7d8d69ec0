import { invariant } from "../engine/invariant.js";
import type { ByteString } from "../engine/reply.js";
import type { Ids, Scheduler } from "../ports.js";
import {
  asBuffer,
  BatchReader,
  BatchWriter,
  CHANGE_CLEAR_RANGE,
  CHANGE_DELETE,
  CHANGE_PUT,
  PageWriter,
} from "./batch.js";
import {
  decodeMeta,
  encodeFormat,
  encodeIdentity,
  encodeMeta,
  META_RANGE,
  type MetaRows,
  STORE_FORMAT_VERSION,
} from "./schema.js";
import { type CommitBatch, type Done, type RowPage, type Store, StoreError, type StoreIdentity } from "./store.js";

/**
 * The store port in memory: for unit tests, the simulation and `--store memory`. It takes its turns from the Scheduler port, so
 * a manual scheduler makes every step of it deterministic.
 *
 * A `MemoryDisk` outlives the stores that are opened on it, as a directory does: tests restart a server by opening a second
 * store on the same disk. What a store was told to commit reaches the disk in the turn before its callback, whole or not at all.
 */

/** What survives a restart: rows by key, and whether a store holds it. */
export class MemoryDisk {
  readonly rows = new Map<ByteString, Uint8Array>();
  /** The store that holds the disk; null when none does. */
  holder: MemoryStore | null = null;
}

export interface MemoryStoreOptions {
  readonly scheduler: Scheduler;
  readonly ids: Ids;
  /** A fresh one when absent. */
  readonly disk?: MemoryDisk;
  /** Rows are handed over in pages of about this size. */
  readonly pageBytes?: number;
  /** How long a commit takes, in milliseconds; absent: the end of the turn. */
  readonly commitDelayMs?: number;
}

const PAGE_BYTES = 64 * 1024;

export class MemoryStore implements Store {
  readonly name = "memory";
  readonly #options: MemoryStoreOptions;
  readonly #disk: MemoryDisk;
  #failure: StoreError | null = null;
  #failNext: StoreError | null = null;
  #committing = false;
  #closed = false;

  constructor(options: MemoryStoreOptions) {
    this.#options = options;
    this.#disk = options.disk ?? new MemoryDisk();
  }

  /** Makes the next commit fail and with it all later ones; nothing of that batch reaches the disk. */
  failNextCommit(message: string): void {
    this.#failNext = new StoreError("write-failed", message);
  }

  acquire(done: (error: StoreError | null, identity: StoreIdentity | null) => void): void {
    const { scheduler, ids } = this.#options;
    scheduler.soon(() => {
      const disk = this.#disk;
      if (disk.holder !== null && disk.holder !== this) {
        done(new StoreError("in-use", "another store of this process holds the memory disk"), null);
        return;
      }
      const meta = this.#meta();
      if (meta.formatVersion !== null && meta.formatVersion !== STORE_FORMAT_VERSION) {
        const text = `written by format version ${meta.formatVersion}, this build reads version ${STORE_FORMAT_VERSION}`;
        done(new StoreError("format", text), null);
        return;
      }
      disk.holder = this;
      const identity: StoreIdentity = {
        incarnation: meta.incarnation ?? ids.incarnation(),
        revision: meta.revision ?? 0,
        epoch: (meta.epoch ?? 0) + 1,
      };
      const writer = new BatchWriter();
      encodeFormat(writer);
      encodeIdentity(identity.incarnation, identity.epoch, writer);
      encodeMeta(identity.revision, writer);
      applyBatch(disk.rows, writer.batch(identity.revision).bytes);
      done(null, identity);
    });
  }

  load(onPage: (page: RowPage, next: () => void) => void, done: Done): void {
    invariant(this.#disk.holder === this, "load needs an acquired store");
    invariant(!this.#committing, "load needs a store without a commit in flight");
    const { scheduler } = this.#options;
    const keys = [...this.#disk.rows.keys()].sort();
    let index = 0;
    const step = (): void => {
      if (index === keys.length) {
        done(null);
        return;
      }
      const writer = new PageWriter(this.#options.pageBytes ?? PAGE_BYTES);
      while (index < keys.length && !writer.full) {
        const key = keys[index] ?? "";
        const value = this.#disk.rows.get(key);
        if (value !== undefined) writer.append(Buffer.from(key, "latin1"), value);
        index += 1;
      }
      let answered = false;
      onPage(writer.take(), () => {
        invariant(!answered, "next is called once per page");
        answered = true;
        scheduler.soon(step);
      });
    };
    scheduler.soon(step);
  }

  commit(batch: CommitBatch, done: Done): void {
    invariant(this.#disk.holder === this, "commit needs an acquired store");
    invariant(!this.#committing, "one commit at a time");
    this.#committing = true;
    const finish = (): void => {
      this.#committing = false;
      this.#failure ??= this.#failNext;
      if (this.#failure === null) applyBatch(this.#disk.rows, batch.bytes);
      done(this.#failure);
    };
    const { scheduler, commitDelayMs } = this.#options;
    if (commitDelayMs === undefined) scheduler.soon(finish);
    else scheduler.after(commitDelayMs, finish);
  }

  close(done: Done): void {
    invariant(!this.#closed, "close is called once");
    this.#closed = true;
    const finish = (): void => {
      if (this.#committing) {
        this.#options.scheduler.soon(finish);
        return;
      }
      if (this.#disk.holder === this) this.#disk.holder = null;
      done(this.#failure);
    };
    this.#options.scheduler.soon(finish);
  }

  #meta(): MetaRows {
    const writer = new PageWriter(1024);
    for (const [key, value] of this.#disk.rows) {
      if (key >= META_RANGE[0] && key < META_RANGE[1]) writer.append(Buffer.from(key, "latin1"), value);
    }
    return decodeMeta(writer.take());
  }
}

/** Applies the changes of a packed batch in order to rows kept by key. */
export function applyBatch(rows: Map<ByteString, Uint8Array>, packed: Uint8Array): void {
  const bytes = asBuffer(packed);
  const reader = new BatchReader(bytes);
  while (reader.next()) {
    const key = bytes.toString("latin1", reader.keyStart, reader.keyEnd);
    if (reader.kind === CHANGE_PUT) {
      rows.set(key, Uint8Array.prototype.slice.call(bytes, reader.valueStart, reader.valueEnd));
    } else if (reader.kind === CHANGE_DELETE) {
      rows.delete(key);
    } else {
      invariant(reader.kind === CHANGE_CLEAR_RANGE, "an unknown kind of change");
      const end = bytes.toString("latin1", reader.valueStart, reader.valueEnd);
      for (const row of rows.keys()) if (row >= key && row < end) rows.delete(row);
    }
  }
}
