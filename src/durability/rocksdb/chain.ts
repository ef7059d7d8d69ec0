import type { Batch } from "rocksdb";
import { PageReader } from "../batch.js";
import { type RowPage, StoreError } from "../store.js";

/**
 * Proof that no batch is missing from the middle.
 *
 * The witness (witness.ts) notices when the newest batches are missing. It does not notice when older ones are while the newest
 * are there, and RocksDB can lose those without a word: one flipped bit in the length of a MANIFEST record makes it take the rest
 * of the MANIFEST for a torn tail, so a whole flushed table is forgotten (and deleted) while the log behind it is replayed; a log
 * file that is gone is not missed either.
 *
 * So batches are numbered, and every batch writes its number into one small row. Consecutive batches share that row, a segment of
 * about half a megabyte; the first batch of the next segment writes down which number the segment before ended with:
 *
 *     s/<segment>/first   the newest batch number before this segment, and the oldest segment that is kept
 *     s/<segment>/last    the newest batch number of this segment
 *
 * At open, for all segments that the newest one says are kept: `first` of each must be `last` of the one before, none missing. Whatever RocksDB loses as a piece
 * (a flushed memtable, a log file) holds at least one end of a segment: memtables are many times larger than a segment, and a new
 * segment begins with every open. If that piece is gone, the next segment says so.
 *
 * Cost: one row of some 30 bytes per batch.
 */

/** Packed batch bytes from which on the next batch begins a new segment: a fraction of what fills a memtable. */
const SEGMENT_BYTES = 512 * 1024;

/** Segments that are kept: 32 MB of batches, more than all memtables and logs hold together. */
const SEGMENTS_KEPT = 64;

const SEGMENT_DIGITS = 12;
const LAST_BYTES = 8;
const FIRST_BYTES = 16;

export const CHAIN_RANGE: readonly [string, string] = ["s/", "s0"];

interface Segment {
  first: number;
  last: number;
  oldest: number;
}

export class BatchChain {
  /** The newest batch. */
  #number: number;
  #segment: number;
  #oldestSegment: number;
  /** Rows of a chain that is no more; the first batch deletes them. */
  #discarded: readonly Buffer[] = [];
  /** Infinity: the next batch begins a segment, as the first after an open does. */
  #segmentBytes = Infinity;
  #lastKey: Buffer = Buffer.alloc(0);
  readonly #lastValue: Buffer = Buffer.alloc(LAST_BYTES);

  private constructor(number: number, segment: number, oldestSegment: number) {
    this.#number = number;
    this.#segment = segment;
    this.#oldestSegment = oldestSegment;
  }

  /** The chain of a store without batches. */
  static begin(): BatchChain {
    return new BatchChain(0, 0, 1);
  }

  /** Goes on from the rows in CHAIN_RANGE. Throws StoreError `damaged` when they are not whole. */
  static continue(rows: RowPage): BatchChain {
    const segments = readSegments(rows);
    const newest = Math.max(0, ...segments.keys());
    const oldest = segments.get(newest)?.oldest ?? Number.NaN;
    if (Number.isNaN(oldest)) throw broken("no batch is numbered");
    let before: Segment | null = null;
    for (let index = oldest; index <= newest; index += 1) {
      const segment = segments.get(index);
      if (segment === undefined || !(segment.last > segment.first)) {
        throw broken(`segment ${index} of ${oldest}..${newest} is missing or incomplete`);
      }
      if (before !== null && before.last !== segment.first) {
        throw broken(`batches ${before.last + 1} to ${segment.first} are missing, later ones are there`);
      }
      before = segment;
    }
    if (segments.size !== newest - oldest + 1) throw broken("segments that were dropped are there again");
    return new BatchChain(before?.last ?? 0, newest, oldest);
  }

  /** Goes on after a loss that was accepted: no old row counts any more. */
  static restart(rows: RowPage): BatchChain {
    const segments = readSegments(rows);
    const newest = Math.max(0, ...segments.keys());
    let number = 0;
    for (const { first, last } of segments.values()) {
      for (const end of [first, last]) if (end > number) number = end;
    }
    const chain = new BatchChain(number, newest, newest + 1);
    chain.#discarded = [...segments.keys()].flatMap((segment) => [rowKey(segment, "first"), rowKey(segment, "last")]);
    return chain;
  }

  /** Adds to a batch the rows that number it. `packedBytes` is the size of the batch. */
  extend(batch: Batch, packedBytes: number): void {
    if (this.#segmentBytes >= SEGMENT_BYTES) this.#beginSegment(batch);
    this.#segmentBytes += packedBytes;
    this.#number += 1;
    this.#lastValue.writeDoubleLE(this.#number);
    batch._put(this.#lastKey, this.#lastValue, undefined);
  }

  #beginSegment(batch: Batch): void {
    this.#segment += 1;
    this.#segmentBytes = 0;
    this.#lastKey = rowKey(this.#segment, "last");
    for (const key of this.#discarded) batch._del(key, undefined);
    this.#discarded = [];
    for (; this.#oldestSegment <= this.#segment - SEGMENTS_KEPT; this.#oldestSegment += 1) {
      batch._del(rowKey(this.#oldestSegment, "first"), undefined);
      batch._del(rowKey(this.#oldestSegment, "last"), undefined);
    }
    const first = Buffer.alloc(FIRST_BYTES);
    first.writeDoubleLE(this.#number);
    first.writeDoubleLE(this.#oldestSegment, 8);
    batch._put(rowKey(this.#segment, "first"), first, undefined);
  }
}

function rowKey(segment: number, end: "first" | "last"): Buffer {
  return Buffer.from(`s/${String(segment).padStart(SEGMENT_DIGITS, "0")}/${end}`, "latin1");
}

/** Segments in rising order; NaN for an end that has no row. */
function readSegments(rows: RowPage): Map<number, Segment> {
  const segments = new Map<number, Segment>();
  const reader = new PageReader(rows);
  while (reader.next()) {
    const key = reader.bytes.toString("latin1", reader.keyStart, reader.keyEnd);
    const [, digits, end] = /^s\/(\d{12})\/(first|last)$/u.exec(key) ?? [];
    const bytes = reader.valueEnd - reader.keyEnd;
    if (digits === undefined || bytes !== (end === "first" ? FIRST_BYTES : LAST_BYTES))
      throw broken(`row ${key} is unknown`);
    const number = Number(digits);
    const segment = segments.get(number) ?? { first: Number.NaN, last: Number.NaN, oldest: Number.NaN };
    if (end === "last") {
      segment.last = reader.bytes.readDoubleLE(reader.keyEnd);
    } else {
      segment.first = reader.bytes.readDoubleLE(reader.keyEnd);
      segment.oldest = reader.bytes.readDoubleLE(reader.keyEnd + 8);
    }
    segments.set(number, segment);
  }
  return segments;
}

function broken(what: string): StoreError {
  return new StoreError("damaged", `the database is not whole: ${what}`);
}
