import { RocksLevel, type Batch, type RowIterator } from "rocksdb";
import { invariant } from "../../engine/invariant.js";
import { BatchReader, CHANGE_CLEAR_RANGE, CHANGE_DELETE, CHANGE_PUT, PageWriter } from "../batch.js";
import { type RowPage, StoreError } from "../store.js";
import { BatchChain, CHAIN_RANGE } from "./chain.js";

/**
 * One RocksDB database, as the worker thread sees it: packed batches in, row pages out. Synchronous: the binding writes on the
 * calling thread, fsync included, and that thread is the worker's.
 *
 * Options, measured with 500,000 grants (a lease and a key each) in batches of 50 on a 2-core machine:
 *  - memtables of 8 MB (`memtableMemoryBudget` / 4) instead of the default 64 MB: resident memory at its peak 41 MB instead of
 *    163, worker time per row 1.3 us instead of 2.0 (a small skip list stays in the cache), open after a crash 0.08 s
 *    instead of 2.5 s (less log to replay)
 *  - no compression, in tables and log alike: rows are small, memory and time matter more than disk here
 *  - no block cache and no bloom filters: nothing ever reads a single row; loads read each block once
 *
 * The batch object is reused: a new one costs 7 us, and its memory would grow anew from nothing each time (0.6 us per row).
 */

const OPTIONS = {
  walCompression: false,
  compression: false,
  compaction: "level",
  memtableMemoryBudget: 32 * 1024 * 1024,
  cacheSize: 0,
  blockSize: 16 * 1024,
  filterPolicy: "nullptr",
  parallelism: 1,
} as const;

const SYNCED = { sync: true };

/** Rows fetched from the binding in one call. Their Buffers live until the page is packed. */
const FETCH_ROWS = 512;

const SMALL_RANGE_BYTES = 64 * 1024;

/** A batch object that grew beyond this many packed bytes is replaced: RocksDB never gives its memory back by itself. */
const KEPT_BATCH_BYTES_MAX = 1024 * 1024;

export class RocksDatabase {
  readonly #level: RocksLevel;
  #batch: Batch;
  #chain = BatchChain.begin();

  private constructor(level: RocksLevel) {
    this.#level = level;
    this.#batch = level.batch();
  }

  /** Opens and locks the database. Throws StoreError `in-use` without a pid, `damaged` or `unusable`. */
  static async open(location: string, createIfMissing: boolean): Promise<RocksDatabase> {
    const level = new RocksLevel(location, { keyEncoding: "buffer", valueEncoding: "buffer" });
    try {
      await level.open({ ...OPTIONS, createIfMissing });
    } catch (error) {
      throw openError(error);
    }
    return new RocksDatabase(level);
  }

  /** One more per row change ever written: tells whether anything was written at all. */
  get sequence(): number {
    return this.#level.sequence;
  }

  /**
   * Checks that no batch is missing from the middle and goes on numbering; before that nothing may be written, but to a new
   * database. Throws StoreError `damaged`. `acceptLoss` numbers afresh instead; the result says whether that was needed.
   */
  continueChain(acceptLoss: boolean): { readonly lost: string | null } {
    const rows = this.readRange(CHAIN_RANGE);
    try {
      this.#chain = BatchChain.continue(rows);
      return { lost: null };
    } catch (error) {
      if (!acceptLoss || !(error instanceof StoreError)) throw error;
      this.#chain = BatchChain.restart(rows);
      return { lost: error.message };
    }
  }

  /** All rows of a small range in one page. */
  readRange([start, end]: readonly [string, string]): RowPage {
    const cursor = this.openCursor(Buffer.from(start, "latin1"), Buffer.from(end, "latin1"), SMALL_RANGE_BYTES);
    try {
      const page = cursor.next() ?? { bytes: new Uint8Array(), rowCount: 0 };
      invariant(page.bytes.length < SMALL_RANGE_BYTES, "a small range fits one page");
      return page;
    } finally {
      cursor.close();
    }
  }

  /** Writes and syncs all changes of a packed batch, or none. Throws what the binding throws. */
  apply(packed: Buffer): void {
    const batch = this.#batch;
    const reader = new BatchReader(packed);
    let cleared = 0;
    while (reader.next()) {
      if (reader.kind === CHANGE_PUT) batch._put(reader.key(), reader.value(), undefined);
      else if (reader.kind === CHANGE_DELETE) batch._del(reader.key(), undefined);
      else {
        invariant(reader.kind === CHANGE_CLEAR_RANGE, "an unknown kind of change");
        cleared += this.#clearRange(reader.key(), reader.value(), packed.subarray(0, reader.changeStart));
      }
    }
    this.#chain.extend(batch, packed.length);
    batch._writeSync(SYNCED);
    if (packed.length > KEPT_BATCH_BYTES_MAX || cleared > 10_000) {
      batch._closeSync();
      this.#batch = this.#level.batch();
    } else {
      batch._clear();
    }
  }

  /** Reads the rows with start <= key < end, page by page. Close it. */
  openCursor(start: Buffer, end: Buffer, pageBytes: number): RowCursor {
    return new RowCursor(this.#iterator(start, end, true), pageBytes);
  }

  async close(): Promise<void> {
    this.#batch._closeSync();
    await this.#level.close();
  }

  /**
   * The binding knows no range delete within a batch, and one outside of it would not be atomic with the rest: so the rows in
   * the range are deleted one by one, those on disk and those that earlier changes of the same batch put there. Returns how many.
   */
  #clearRange(start: Buffer, end: Buffer, changesBefore: Buffer): number {
    let count = 0;
    const iterator = this.#iterator(start, end, false);
    try {
      for (let finished = false; !finished;) {
        const fetched = iterator._nextvSync(FETCH_ROWS, {});
        for (let index = 0; index < fetched.rows.length; index += 2) {
          const key = fetched.rows[index];
          if (key !== undefined) this.#batch._del(key, undefined);
        }
        count += fetched.rows.length / 2;
        finished = fetched.finished;
      }
    } finally {
      iterator._closeSync();
    }
    const reader = new BatchReader(changesBefore);
    while (reader.next()) {
      if (reader.kind !== CHANGE_PUT) continue;
      const key = reader.key();
      if (key.compare(start) < 0 || key.compare(end) >= 0) continue;
      this.#batch._del(key, undefined);
      count += 1;
    }
    return count;
  }

  #iterator(start: Buffer, end: Buffer, values: boolean): RowIterator {
    return this.#level.iterator({
      // Copies: the binding keeps a reference only while it opens, but a view of shared memory must not be asked for text.
      gte: Buffer.from(start),
      lt: Buffer.from(end),
      values,
      keyEncoding: "buffer",
      valueEncoding: "buffer",
      highWaterMarkBytes: 1024 * 1024,
    });
  }
}

/** Rows of a range, packed into pages. */
export class RowCursor {
  readonly #iterator: RowIterator;
  readonly #writer: PageWriter;
  #rows: (Uint8Array | undefined)[] = [];
  #position = 0;
  #finished = false;

  constructor(iterator: RowIterator, pageBytes: number) {
    this.#iterator = iterator;
    this.#writer = new PageWriter(pageBytes);
  }

  /** The next page; null at the end. Throws StoreError `damaged` when RocksDB finds a block that does not match its checksum. */
  next(): RowPage | null {
    const writer = this.#writer;
    while (!writer.full) {
      if (this.#position === this.#rows.length) {
        if (this.#finished) break;
        this.#fetch();
        continue;
      }
      const key = this.#rows[this.#position];
      const value = this.#rows[this.#position + 1];
      invariant(key !== undefined && value !== undefined, "rows come as key and value");
      writer.append(key, value);
      this.#position += 2;
    }
    return writer.rowCount === 0 ? null : writer.take();
  }

  close(): void {
    this.#rows = [];
    this.#iterator._closeSync();
  }

  #fetch(): void {
    try {
      const fetched = this.#iterator._nextvSync(FETCH_ROWS, {});
      this.#rows = fetched.rows;
      this.#finished = fetched.finished;
      this.#position = 0;
    } catch (error) {
      throw new StoreError("damaged", `the database cannot be read: ${messageOf(error)}`);
    }
  }
}

/** abstract-level wraps what RocksDB said; the cause is what an operator can use. */
function openError(error: unknown): StoreError {
  const cause = error instanceof Error && error.cause !== undefined ? error.cause : error;
  const code = cause instanceof Error && "code" in cause ? cause.code : "";
  if (code === "LEVEL_LOCKED") return new StoreError("in-use", messageOf(cause));
  return refusalOf("the database cannot be opened", cause);
}

/** RocksDB names what the system refused; everything else that keeps it from opening or writing is damage. */
export function refusalOf(what: string, error: unknown): StoreError {
  const message = messageOf(error);
  const system = /No space left|Permission denied|Read-only file system|Too many open files|Disk quota/u.test(message);
  return new StoreError(system ? "unusable" : "damaged", `${what}: ${message}`);
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
