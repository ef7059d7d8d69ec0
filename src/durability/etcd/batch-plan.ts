import { invariant } from "../../engine/invariant.js";
import type { ByteString } from "../../engine/reply.js";
import { asBuffer, BatchReader, CHANGE_CLEAR_RANGE, CHANGE_DELETE, CHANGE_PUT } from "../batch.js";
import type { TxnOperation } from "./protocol.js";

/**
 * From a batch, whose changes apply in order, to operations of etcd, which within one transaction may not meet: no key twice, no
 * put inside a range that is deleted.
 *
 * Folding: the later change of a row wins; a clear-range forgets the changes before it that lie in it. What is left means the same
 * when all clear-ranges go first and everything else after them, in any order. Where a put lies in a cleared range, the range is cut
 * in two around it. After that no two operations touch the same row, so they may go in any order, and be cut into transactions
 * anywhere.
 */

interface Range {
  readonly start: ByteString;
  readonly end: ByteString;
}

/** What an operation takes in a request beside its key and value: tags and lengths. */
const OPERATION_OVERHEAD_BYTES = 24;

/** The operations of a packed batch, with `prefix` before every row's key. The operations hold views of the batch's bytes. */
export function foldBatch(packed: Uint8Array, prefix: Buffer): TxnOperation[] {
  /** Rows by key: where their new value lies in the batch, or null when they are deleted. */
  const rows = new Map<ByteString, Buffer | null>();
  /** The end of each cleared range, by its start. */
  const clears = new Map<ByteString, ByteString>();
  const bytes = asBuffer(packed);
  const reader = new BatchReader(bytes);
  while (reader.next()) {
    const key = bytes.toString("latin1", reader.keyStart, reader.keyEnd);
    if (reader.kind === CHANGE_PUT) {
      rows.set(key, reader.value());
    } else if (reader.kind === CHANGE_DELETE) {
      rows.set(key, null);
    } else {
      invariant(reader.kind === CHANGE_CLEAR_RANGE, "an unknown kind of change");
      const end = bytes.toString("latin1", reader.valueStart, reader.valueEnd);
      for (const row of rows.keys()) if (row >= key && row < end) rows.delete(row);
      const before = clears.get(key);
      if (before === undefined || before < end) clears.set(key, end);
    }
  }
  const operations: TxnOperation[] = [];
  const name = (key: ByteString): Buffer => Buffer.concat([prefix, Buffer.from(key, "latin1")]);
  for (const { start, end } of cutAroundPuts(clears, rows)) {
    operations.push({ kind: "delete", key: name(start), end: name(end) });
  }
  for (const [key, value] of rows) {
    operations.push(value === null ? { kind: "delete", key: name(key) } : { kind: "put", key: name(key), value });
  }
  return operations;
}

/** The cleared ranges without the rows that are put after they were cleared. */
function cutAroundPuts(
  clears: ReadonlyMap<ByteString, ByteString>,
  rows: ReadonlyMap<ByteString, Buffer | null>,
): Range[] {
  if (clears.size === 0) return [];
  const puts = [...rows].filter(([, value]) => value !== null).map(([key]) => key);
  puts.sort();
  const pieces: Range[] = [];
  for (const [start, end] of clears) {
    let from = start;
    for (const put of puts) {
      if (put < from || put >= end) continue;
      if (from < put) pieces.push({ start: from, end: put });
      from = put + "\0"; // the first key behind it
    }
    if (from < end) pieces.push({ start: from, end });
  }
  return pieces;
}

/** Cuts operations into transactions of at most so many operations and about so many bytes. */
export function cutIntoParts(
  operations: readonly TxnOperation[],
  operationsMax: number,
  bytesMax: number,
): TxnOperation[][] {
  const parts: TxnOperation[][] = [];
  let part: TxnOperation[] = [];
  let partBytes = 0;
  for (const operation of operations) {
    const bytes = operationBytes(operation);
    if (part.length === operationsMax || (part.length > 0 && partBytes + bytes > bytesMax)) {
      parts.push(part);
      part = [];
      partBytes = 0;
    }
    part.push(operation);
    partBytes += bytes;
  }
  if (part.length > 0) parts.push(part);
  return parts;
}

/** What an operation takes in a request, in bytes, about. */
export function operationBytes(operation: TxnOperation): number {
  const tail = operation.kind === "put" ? operation.value.length : (operation.end?.length ?? 0);
  return operation.key.length + tail + OPERATION_OVERHEAD_BYTES;
}
