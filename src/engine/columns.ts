import { invariant } from "./invariant.js";

/**
 * Tables as columns: one field of all rows lies together, in chunks of equal size.
 *
 * Why not one object per lease: numbers that change (deadlines, revisions) would each be boxed on the heap, a million objects
 * would be walked by every major garbage collection, and a lease would cost about twice the memory. Why chunks: a column that
 * doubles by copying stalls everyone for as long as the copy takes; a chunk more costs the same at any size.
 *
 * Invariants:
 *  - all columns of one table have the same number of chunks; `RowAllocator` sees to it
 *  - a row keeps its number for life, so that a scan's cursor may be a row number
 *  - rows are taken lowest chunk first, so that a table that shrank gives back the chunks at its end
 */

const CHUNK_SHIFT = 12;

/** Rows of one chunk: 32 KiB of doubles, small enough for a server with ten leases. */
export const CHUNK_ROWS = 1 << CHUNK_SHIFT;

const ROW_MASK = CHUNK_ROWS - 1;

export interface Column {
  addChunk(): void;
  dropChunk(): void;
}

export class Float64Column implements Column {
  readonly #chunks: Float64Array[] = [];

  get(row: number): number {
    return this.#chunks[row >>> CHUNK_SHIFT]![row & ROW_MASK]!;
  }

  set(row: number, value: number): void {
    this.#chunks[row >>> CHUNK_SHIFT]![row & ROW_MASK] = value;
  }

  addChunk(): void {
    this.#chunks.push(new Float64Array(CHUNK_ROWS));
  }

  dropChunk(): void {
    this.#chunks.pop();
  }
}

export class Int32Column implements Column {
  readonly #chunks: Int32Array[] = [];
  readonly #initial: number;

  constructor(initial = 0) {
    this.#initial = initial;
  }

  get(row: number): number {
    return this.#chunks[row >>> CHUNK_SHIFT]![row & ROW_MASK]!;
  }

  set(row: number, value: number): void {
    this.#chunks[row >>> CHUNK_SHIFT]![row & ROW_MASK] = value;
  }

  addChunk(): void {
    const chunk = new Int32Array(CHUNK_ROWS);
    if (this.#initial !== 0) chunk.fill(this.#initial);
    this.#chunks.push(chunk);
  }

  dropChunk(): void {
    this.#chunks.pop();
  }
}

/**
 * Several numbers per row that are used together, side by side: one cache line instead of one per field. Measured with a million
 * leases, where each line that is not in the cache costs more than everything else in a keep-alive.
 */
export class Float64Records implements Column {
  readonly #chunks: Float64Array[] = [];
  readonly #initial: readonly number[];
  readonly #fieldCount: number;

  /** `initial`: one value per field. */
  constructor(initial: readonly number[]) {
    this.#initial = initial;
    this.#fieldCount = initial.length;
  }

  get(row: number, field: number): number {
    return this.#chunks[row >>> CHUNK_SHIFT]![(row & ROW_MASK) * this.#fieldCount + field]!;
  }

  set(row: number, field: number, value: number): void {
    this.#chunks[row >>> CHUNK_SHIFT]![(row & ROW_MASK) * this.#fieldCount + field] = value;
  }

  addChunk(): void {
    const chunk = new Float64Array(CHUNK_ROWS * this.#fieldCount);
    for (const [field, value] of this.#initial.entries()) {
      if (value === 0) continue;
      for (let index = field; index < chunk.length; index += this.#fieldCount) chunk[index] = value;
    }
    this.#chunks.push(chunk);
  }

  dropChunk(): void {
    this.#chunks.pop();
  }
}

/** Small flags and bit sets. */
export class Uint16Column implements Column {
  readonly #chunks: Uint16Array[] = [];

  get(row: number): number {
    return this.#chunks[row >>> CHUNK_SHIFT]![row & ROW_MASK]!;
  }

  set(row: number, value: number): void {
    this.#chunks[row >>> CHUNK_SHIFT]![row & ROW_MASK] = value;
  }

  addChunk(): void {
    this.#chunks.push(new Uint16Array(CHUNK_ROWS));
  }

  dropChunk(): void {
    this.#chunks.pop();
  }
}

/** A column of references; a row that was never set, or was cleared, holds null. */
export class ReferenceColumn<T> implements Column {
  readonly #chunks: (T | null)[][] = [];

  get(row: number): T | null {
    return this.#chunks[row >>> CHUNK_SHIFT]![row & ROW_MASK]!;
  }

  set(row: number, value: T | null): void {
    this.#chunks[row >>> CHUNK_SHIFT]![row & ROW_MASK] = value;
  }

  addChunk(): void {
    this.#chunks.push(Array.from<T | null>({ length: CHUNK_ROWS }).fill(null));
  }

  dropChunk(): void {
    this.#chunks.pop();
  }
}

/** Integers by the row of another table, 0 where none was set; chunks exist only where one was. */
export class SparseInt32Column {
  readonly #chunks: (Int32Array | undefined)[] = [];

  get(row: number): number {
    const chunk = this.#chunks[row >>> CHUNK_SHIFT];
    return chunk === undefined ? 0 : chunk[row & ROW_MASK]!;
  }

  set(row: number, value: number): void {
    const index = row >>> CHUNK_SHIFT;
    let chunk = this.#chunks[index];
    if (chunk === undefined) {
      while (this.#chunks.length < index) this.#chunks.push(undefined);
      chunk = new Int32Array(CHUNK_ROWS);
      this.#chunks[index] = chunk;
    }
    chunk[row & ROW_MASK] = value;
  }
}

const NO_ROW = -1;

/** Hands out the rows of a table and makes its columns as long as they need to be. */
export class RowAllocator {
  readonly #columns: Column[];
  /** Per free row: the next free row of the same chunk. */
  readonly #nextFree = new Int32Column(NO_ROW);
  readonly #freeHeads: number[] = [];
  /** Rows of each chunk that were handed out at least once: the rest is untouched. */
  readonly #touched: number[] = [];
  readonly #used: number[] = [];
  /** No chunk before this one has room. */
  #firstWithRoom = 0;

  constructor(columns: readonly Column[]) {
    this.#columns = [this.#nextFree, ...columns];
  }

  /** A column kept elsewhere by the same row numbers; it grows and shrinks with the table from now on. */
  follow(column: Column): void {
    for (let chunk = 0; chunk < this.#used.length; chunk += 1) column.addChunk();
    this.#columns.push(column);
  }

  /** All rows ever handed out and not given back at the end lie below this number. */
  get rowsEnd(): number {
    const last = this.#used.length - 1;
    return last < 0 ? 0 : last * CHUNK_ROWS + this.#touched[last]!;
  }

  /** Rows in use; rows that ended and wait to be swept are in use. */
  get rowsUsed(): number {
    let sum = 0;
    for (const used of this.#used) sum += used;
    return sum;
  }

  /** `end`, or what is left below it after stepping over chunks in which no row is in use. */
  skipUnused(end: number): number {
    let row = end;
    while (row > 0 && this.#used[(row - 1) >>> CHUNK_SHIFT] === 0) row = (row - 1) & ~ROW_MASK;
    return row;
  }

  /** Takes a free row. Its columns hold what their last owner left there. */
  take(): number {
    while (this.#firstWithRoom < this.#used.length && this.#used[this.#firstWithRoom] === CHUNK_ROWS) {
      this.#firstWithRoom += 1;
    }
    const chunk = this.#firstWithRoom;
    if (chunk === this.#used.length) this.#addChunk();
    this.#used[chunk]! += 1;
    const head = this.#freeHeads[chunk]!;
    if (head !== NO_ROW) {
      this.#freeHeads[chunk] = this.#nextFree.get(head);
      return head;
    }
    const row = chunk * CHUNK_ROWS + this.#touched[chunk]!;
    this.#touched[chunk]! += 1;
    return row;
  }

  /** Gives a row back. */
  free(row: number): void {
    const chunk = row >>> CHUNK_SHIFT;
    invariant(chunk < this.#used.length && this.#used[chunk]! > 0, "a row is freed once");
    this.#nextFree.set(row, this.#freeHeads[chunk]!);
    this.#freeHeads[chunk] = row;
    this.#used[chunk]! -= 1;
    if (chunk < this.#firstWithRoom) this.#firstWithRoom = chunk;
    this.#dropEmptyChunks();
  }

  /** Drops all rows at once. */
  clear(): void {
    while (this.#used.length > 0) this.#dropChunk();
    this.#firstWithRoom = 0;
  }

  #addChunk(): void {
    for (const column of this.#columns) column.addChunk();
    this.#freeHeads.push(NO_ROW);
    this.#touched.push(0);
    this.#used.push(0);
  }

  #dropChunk(): void {
    for (const column of this.#columns) column.dropChunk();
    this.#freeHeads.pop();
    this.#touched.pop();
    this.#used.pop();
  }

  /** The last chunk goes only when the one before it has plenty of room, so that a table at the brink does not flap. */
  #dropEmptyChunks(): void {
    for (;;) {
      const last = this.#used.length - 1;
      if (last < 1 || this.#used[last] !== 0 || this.#used[last - 1]! > CHUNK_ROWS / 2) return;
      this.#dropChunk();
    }
  }
}
