import { invariant } from "../engine/invariant.js";
import type { ByteString } from "../engine/reply.js";
import type { CommitBatch, RowPage } from "./store.js";

/**
 * Packed bytes between the rules about rows (`schema.ts`) and whatever keeps rows (the stores): row changes on the way in,
 * row pages on the way out. Everything is written straight into one buffer, because a grant must not cost four small Buffers.
 *
 * A change is   `[u8 kind][u32 keyBytes][u32 valueBytes][key][value]`   (numbers little endian)
 *   put          the row `key` becomes `value`
 *   delete       the row `key` goes; valueBytes is 0
 *   clear-range  all rows with  key <= row < value  go, those put earlier in the same batch too
 *
 * A row of a page is   `[u32 keyBytes][u32 valueBytes][key][value]`.
 *
 * Invariants:
 *  - the key and the value of a row lie next to each other, so that one checksum call covers both
 *  - a change that was begun is ended before the batch is looked at
 */

export const CHANGE_PUT = 1;
export const CHANGE_DELETE = 2;
export const CHANGE_CLEAR_RANGE = 3;

const CHANGE_HEADER_BYTES = 9;
const ROW_HEADER_BYTES = 8;

/** Below this many characters a loop in JavaScript is quicker than the call into V8's own copy. */
const LATIN1_LOOP_CHARACTERS_MAX = 16;

/** The same for copies of bytes. */
const BYTES_LOOP_MAX = 64;

const INITIAL_BYTES = 16 * 1024;

/** A batch larger than this is rare; its buffer is not kept for the next one. */
const KEPT_BYTES_MAX = 1024 * 1024;

/** A growing buffer that row changes are packed into. Reused from batch to batch. */
export class BatchWriter {
  #bytes: Buffer = Buffer.allocUnsafeSlow(INITIAL_BYTES);
  #view: DataView = viewOf(this.#bytes);
  #length = 0;
  #changeCount = 0;
  /** Start of the change that is being written, -1 between changes. */
  #changeStart = -1;
  #valueStart = -1;

  get byteLength(): number {
    return this.#length;
  }

  get changeCount(): number {
    return this.#changeCount;
  }

  /** Begins a row change; the key's bytes follow through the write methods. */
  begin(kind: typeof CHANGE_PUT | typeof CHANGE_DELETE | typeof CHANGE_CLEAR_RANGE): void {
    invariant(this.#changeStart === -1, "the change before was not ended");
    this.#reserve(CHANGE_HEADER_BYTES);
    this.#changeStart = this.#length;
    this.#valueStart = -1;
    this.#bytes[this.#length] = kind;
    this.#length += CHANGE_HEADER_BYTES;
  }

  /** The key is complete; what follows is the value (of a clear-range: the end of the range). */
  beginValue(): void {
    invariant(this.#changeStart !== -1 && this.#valueStart === -1, "a value follows a key");
    this.#valueStart = this.#length;
  }

  /** The change is complete. */
  end(): void {
    const start = this.#changeStart;
    invariant(start !== -1, "no change was begun");
    const valueStart = this.#valueStart === -1 ? this.#length : this.#valueStart;
    this.#view.setUint32(start + 1, valueStart - start - CHANGE_HEADER_BYTES, true);
    this.#view.setUint32(start + 5, this.#length - valueStart, true);
    this.#changeStart = -1;
    this.#changeCount += 1;
  }

  writeByte(byte: number): void {
    this.#reserve(1);
    this.#bytes[this.#length] = byte;
    this.#length += 1;
  }

  writeLatin1(text: ByteString): void {
    const characters = text.length;
    this.#reserve(characters);
    const bytes = this.#bytes;
    const start = this.#length;
    if (characters <= LATIN1_LOOP_CHARACTERS_MAX) {
      for (let index = 0; index < characters; index += 1) bytes[start + index] = text.charCodeAt(index);
    } else {
      bytes.write(text, start, characters, "latin1");
    }
    this.#length = start + characters;
  }

  /** Copies `source` from `start` to before `end`. */
  writeBytes(source: Uint8Array, start: number, end: number): void {
    const length = end - start;
    this.#reserve(length);
    const bytes = this.#bytes;
    const offset = this.#length - start;
    if (length <= BYTES_LOOP_MAX) {
      for (let index = start; index < end; index += 1) bytes[offset + index] = source[index] ?? 0;
    } else {
      bytes.set(source.subarray(start, end), this.#length);
    }
    this.#length += length;
  }

  writeU64(value: bigint): void {
    this.#reserve(8);
    this.#view.setBigUint64(this.#length, value, true);
    this.#length += 8;
  }

  /** Key and value bytes of the open change, as far as they are written: what a checksum covers. Valid until the next write. */
  writtenOfChange(): Uint8Array {
    invariant(this.#changeStart !== -1, "no change was begun");
    return this.#bytes.subarray(this.#changeStart + CHANGE_HEADER_BYTES, this.#length);
  }

  /** The batch so far. Its bytes are the writer's own: they stay as they are until `clear`. */
  batch(revision: number): CommitBatch {
    return { bytes: this.packed(), changeCount: this.#changeCount, revision };
  }

  /** The changes so far, without a revision: for the rows that a store writes for itself. */
  packed(): Buffer {
    invariant(this.#changeStart === -1, "a change is still open");
    return this.#bytes.subarray(0, this.#length);
  }

  /** Empty again, for the next batch. */
  clear(): void {
    invariant(this.#changeStart === -1, "a change is still open");
    this.#length = 0;
    this.#changeCount = 0;
    if (this.#bytes.length > KEPT_BYTES_MAX) this.#use(Buffer.allocUnsafeSlow(INITIAL_BYTES));
  }

  #reserve(bytes: number): void {
    const needed = this.#length + bytes;
    if (needed <= this.#bytes.length) return;
    const grown = Buffer.allocUnsafeSlow(Math.max(needed, this.#bytes.length * 2));
    grown.set(this.#bytes.subarray(0, this.#length));
    this.#use(grown);
  }

  #use(bytes: Buffer): void {
    this.#bytes = bytes;
    this.#view = viewOf(bytes);
  }
}

/** Walks the changes of a batch in order: `while (reader.next()) ...`. One reader object, no object per change. */
export class BatchReader {
  kind = 0;
  changeStart = 0;
  keyStart = 0;
  keyEnd = 0;
  valueStart = 0;
  valueEnd = 0;
  readonly #bytes: Buffer;

  constructor(bytes: Uint8Array) {
    this.#bytes = asBuffer(bytes);
  }

  next(): boolean {
    const start = this.valueEnd;
    if (start === this.#bytes.length) return false;
    invariant(start + CHANGE_HEADER_BYTES <= this.#bytes.length, "a change header is cut off");
    this.kind = this.#bytes[start] ?? 0;
    this.changeStart = start;
    this.keyStart = start + CHANGE_HEADER_BYTES;
    this.keyEnd = this.keyStart + this.#bytes.readUInt32LE(start + 1);
    this.valueStart = this.keyEnd;
    this.valueEnd = this.valueStart + this.#bytes.readUInt32LE(start + 5);
    invariant(this.valueEnd <= this.#bytes.length, "a change is cut off");
    return true;
  }

  /** A view of the key of the current change. */
  key(): Buffer {
    return this.#bytes.subarray(this.keyStart, this.keyEnd);
  }

  /** A view of the value of the current change. */
  value(): Buffer {
    return this.#bytes.subarray(this.valueStart, this.valueEnd);
  }
}

/** Packs rows into a page of about `pageBytes`; one row may make it larger. */
export class PageWriter {
  #bytes: Buffer;
  #length = 0;
  #rowCount = 0;
  readonly #pageBytes: number;

  constructor(pageBytes: number) {
    this.#pageBytes = pageBytes;
    this.#bytes = Buffer.allocUnsafeSlow(pageBytes);
  }

  get full(): boolean {
    return this.#length >= this.#pageBytes;
  }

  get rowCount(): number {
    return this.#rowCount;
  }

  append(key: Uint8Array, value: Uint8Array): void {
    const start = this.#begin(key.length, value.length);
    this.#bytes.set(key, start);
    this.#bytes.set(value, start + key.length);
  }

  /** A row whose key and value lie somewhere in `source`: no views are made of them. */
  appendFrom(source: Buffer, keyStart: number, keyEnd: number, valueStart: number, valueEnd: number): void {
    const start = this.#begin(keyEnd - keyStart, valueEnd - valueStart);
    source.copy(this.#bytes, start, keyStart, keyEnd);
    source.copy(this.#bytes, start + keyEnd - keyStart, valueStart, valueEnd);
  }

  /** Writes a row's header; returns where its key goes, with room for both behind it. */
  #begin(keyBytes: number, valueBytes: number): number {
    const start = this.#length;
    const end = start + ROW_HEADER_BYTES + keyBytes + valueBytes;
    if (end > this.#bytes.length) {
      const grown = Buffer.allocUnsafeSlow(Math.max(end, this.#bytes.length + (this.#bytes.length >> 2)));
      grown.set(this.#bytes.subarray(0, start));
      this.#bytes = grown;
    }
    this.#bytes.writeUInt32LE(keyBytes, start);
    this.#bytes.writeUInt32LE(valueBytes, start + 4);
    this.#length = end;
    this.#rowCount += 1;
    return start + ROW_HEADER_BYTES;
  }

  /** Hands the page over and starts the next one in a new buffer. */
  take(): RowPage {
    const page: RowPage = { bytes: this.#bytes.subarray(0, this.#length), rowCount: this.#rowCount };
    this.#bytes = Buffer.allocUnsafeSlow(this.#pageBytes);
    this.#length = 0;
    this.#rowCount = 0;
    return page;
  }
}

/** Walks the rows of a page in order: `while (reader.next()) ...`. */
export class PageReader {
  keyStart = 0;
  keyEnd = 0;
  valueEnd = 0;
  readonly bytes: Buffer;

  constructor(page: RowPage) {
    this.bytes = asBuffer(page.bytes);
  }

  next(): boolean {
    const start = this.valueEnd;
    if (start === this.bytes.length) return false;
    invariant(start + ROW_HEADER_BYTES <= this.bytes.length, "a row header is cut off");
    this.keyStart = start + ROW_HEADER_BYTES;
    this.keyEnd = this.keyStart + this.bytes.readUInt32LE(start);
    this.valueEnd = this.keyEnd + this.bytes.readUInt32LE(start + 4);
    invariant(this.valueEnd <= this.bytes.length, "a row is cut off");
    return true;
  }
}

/** The same bytes as a Buffer, without a copy. */
export function asBuffer(bytes: Uint8Array): Buffer {
  return Buffer.isBuffer(bytes) ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}
