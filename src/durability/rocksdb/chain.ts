import type { Batch } from "rocksdb";
import { invariant } from "../../engine/invariant.js";
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
 *     s/<segment>/first   the newest batch number before this segment
 *     s/<segment>/last    the newest batch number of this segment
 *
 * At open, for all segments kept: `first` of each must be `last` of the one before, none missing. Whatever RocksDB loses as a piece
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
const NUMBER_BYTES = 8;

export const CHAIN_RANGE: readonly [string, string] = ["s/", "s0"];

interface Segment {
  first: number;
  last: number;
}

export class BatchChain {
  /** The newest batch. */
  #number: number;
  #segment: number;
  #oldestSegment: number;
  /** Infinity: the next batch begins a segment, as the first after an open does. */
  #segmentBytes = Infinity;
  #lastKey: Buffer = Buffer.alloc(0);
  readonly #lastValue: Buffer = Buffer.alloc(NUMBER_BYTES);

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
    const numbers = [...segments.keys()];
    const [oldest, newest] = [numbers[0], numbers.at(-1)];
    if (oldest === undefined || newest === undefined) throw broken("no batch is numbered");
    let before: Segment | null = null;
    for (let index = oldest; index <= newest; index += 1) {
      const segment = segments.get(index);
      if (segment === undefined || Number.isNaN(segment.first) || !(segment.last > segment.first)) {
        throw broken(`segment ${index} of ${oldest}..${newest} is missing or incomplete`);
      }
      if (before !== null && before.last !== segment.first) {
        throw broken(`batches ${before.last + 1} to ${segment.first} are missing, later ones are there`);
      }
      before = segment;
    }
    return new BatchChain(before?.last ?? 0, newest, oldest);
  }

  /** Goes on after a loss that was accepted: no old row counts any more. */
  static restart(rows: RowPage): BatchChain {
    const segments = readSegments(rows);
    const newest = Math.max(0, ...segments.keys());
    const number = Math.max(0, ...[...segments.values()].map((segment) => (segment.last >= 0 ? segment.last : 0)));
    // All old rows are among those that the first batch deletes.
    return new BatchChain(number, newest + SEGMENTS_KEPT, Math.min(newest, ...segments.keys()));
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
    const first = Buffer.alloc(NUMBER_BYTES);
    first.writeDoubleLE(this.#number);
    batch._put(rowKey(this.#segment, "first"), first, undefined);
    for (; this.#oldestSegment <= this.#segment - SEGMENTS_KEPT; this.#oldestSegment += 1) {
      batch._del(rowKey(this.#oldestSegment, "first"), undefined);
      batch._del(rowKey(this.#oldestSegment, "last"), undefined);
    }
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
    if (digits === undefined || reader.valueEnd - reader.keyEnd !== NUMBER_BYTES) throw broken(`row ${key} is unknown`);
    const number = Number(digits);
    const segment = segments.get(number) ?? { first: Number.NaN, last: Number.NaN };
    invariant(end === "first" || end === "last", "the pattern says so");
    segment[end] = reader.bytes.readDoubleLE(reader.keyEnd);
    segments.set(number, segment);
  }
  return segments;
}

function broken(what: string): StoreError {
  return new StoreError("damaged", `the database is not whole: ${what}`);
}
