import protobuf from "protobufjs/minimal.js";

/**
 * The messages of etcd's API, version 3, as far as the store speaks them: what a request is made of, and its bytes; a reply's bytes,
 * and what the store reads of it. Field numbers are etcd's; fields that we never set or read are left out. protobufjs does the wire
 * format; the messages are few enough to be walked by hand, which spares a load of a million rows an object tree.
 *
 * Invariants:
 *  - a field that is absent has its type's zero, as proto3 says
 *  - unknown fields are skipped, so that newer etcds can be read
 *  - revisions, sizes and counts are numbers: etcd would need thousands of years to leave 2^53
 */

const { Reader, Writer } = protobuf;
type Reader = protobuf.Reader;
type Writer = protobuf.Writer;

const WIRE_TYPE_BITS = 3;
const WIRE_VARINT = 0;
const WIRE_BYTES = 2;

/** One row of etcd. */
export interface KeyValue {
  readonly key: Buffer;
  readonly value: Buffer;
  readonly modRevision: number;
}

/** Rows `key <= row < end`, or the row `key` alone when `end` is absent. */
export interface RangeRequest {
  readonly key: Uint8Array;
  readonly end?: Uint8Array;
  /** 0 or absent: no limit. */
  readonly limit?: number;
  /** 0 or absent: the newest. */
  readonly revision?: number;
  readonly keysOnly?: boolean;
  /** No rows, only how many there are. */
  readonly countOnly?: boolean;
}

export interface RangeReply {
  /** The store's revision when the range was read. */
  readonly revision: number;
  readonly rows: readonly KeyValue[];
  /** More rows lie in the range than the limit allowed. */
  readonly more: boolean;
  /** How many rows lie in the range, whatever the limit. */
  readonly count: number;
}

/** The reply to a range of very many rows, as it came: `PackedRowReader` walks it, a slice at a time. */
export interface PackedRows {
  readonly bytes: Buffer;
  readonly rowCount: number;
  /** Null without rows. */
  readonly lastKey: Buffer | null;
  readonly more: boolean;
}

export type TxnOperation =
  | { readonly kind: "put"; readonly key: Uint8Array; readonly value: Uint8Array }
  | { readonly kind: "delete"; readonly key: Uint8Array; readonly end?: Uint8Array }
  | { readonly kind: "range"; readonly key: Uint8Array; readonly end?: Uint8Array };

/** Holds when the row's modification revision is this one; 0: when there is no such row. */
export interface RevisionGuard {
  readonly key: Uint8Array;
  readonly modRevision: number;
}

export interface TxnRequest {
  readonly guards: readonly RevisionGuard[];
  /** All of it when all guards hold. */
  readonly success: readonly TxnOperation[];
  /** All of it when one does not. */
  readonly failure: readonly TxnOperation[];
}

export interface TxnReply {
  /** The store's revision: that of the changes, if there were any. */
  readonly revision: number;
  /** The guards held. */
  readonly succeeded: boolean;
  /** The rows of the ranges of the branch that was taken, in order. */
  readonly ranges: readonly RangeReply[];
}

export interface WatchEvent {
  readonly kind: "put" | "delete";
  readonly row: KeyValue;
}

export interface WatchReply {
  readonly revision: number;
  /** The watch was refused or ended by etcd. */
  readonly canceled: boolean;
  readonly cancelReason: string;
  /** What was asked for is compacted away up to here; 0: it is not. */
  readonly compactRevision: number;
  readonly events: readonly WatchEvent[];
}

export interface StatusReply {
  readonly revision: number;
  /** As `3.4.23`. */
  readonly version: string;
  readonly databaseBytes: number;
  /** Since etcd 3.6; 0 before. */
  readonly quotaBytes: number;
}

// Requests ------------------------------------------------------------------------------------------------------------

function finish(writer: Writer): Buffer {
  const bytes = writer.finish();
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

function writeBytes(writer: Writer, field: number, bytes: Uint8Array | undefined): void {
  if (bytes !== undefined && bytes.length > 0) writer.uint32((field << WIRE_TYPE_BITS) | WIRE_BYTES).bytes(bytes);
}

function writeNumber(writer: Writer, field: number, value: number | undefined): void {
  if (value !== undefined && value !== 0) writer.uint32((field << WIRE_TYPE_BITS) | WIRE_VARINT).int64(value);
}

/** A message inside a message. */
function writeMessage(writer: Writer, field: number, body: (writer: Writer) => void): void {
  writer.uint32((field << WIRE_TYPE_BITS) | WIRE_BYTES).fork();
  body(writer);
  writer.ldelim();
}

function writeRange(writer: Writer, range: RangeRequest): void {
  writeBytes(writer, 1, range.key);
  writeBytes(writer, 2, range.end);
  writeNumber(writer, 3, range.limit);
  writeNumber(writer, 4, range.revision);
  writeNumber(writer, 8, range.keysOnly === true ? 1 : 0);
  writeNumber(writer, 9, range.countOnly === true ? 1 : 0);
}

export function encodeRange(request: RangeRequest): Buffer {
  const writer = Writer.create();
  writeRange(writer, request);
  return finish(writer);
}

const COMPARE_TARGET_MOD_REVISION = 2;

function writeGuard(writer: Writer, guard: RevisionGuard): void {
  // Field 1, the relation, is EQUAL, which is 0.
  writeNumber(writer, 2, COMPARE_TARGET_MOD_REVISION);
  writeBytes(writer, 3, guard.key);
  // One of several alternatives: written even when it is 0, since absence would mean none of them.
  writer.uint32((6 << WIRE_TYPE_BITS) | WIRE_VARINT).int64(guard.modRevision);
}

function writeOperation(writer: Writer, operation: TxnOperation): void {
  switch (operation.kind) {
    case "range":
      writeMessage(writer, 1, (inner) => writeRange(inner, operation));
      return;
    case "put":
      writeMessage(writer, 2, (inner) => {
        writeBytes(inner, 1, operation.key);
        writeBytes(inner, 2, operation.value);
      });
      return;
    case "delete":
      writeMessage(writer, 3, (inner) => {
        writeBytes(inner, 1, operation.key);
        writeBytes(inner, 2, operation.end);
      });
      return;
  }
}

export function encodeTxn(request: TxnRequest): Buffer {
  const writer = Writer.create();
  for (const guard of request.guards) writeMessage(writer, 1, (inner) => writeGuard(inner, guard));
  for (const operation of request.success) writeMessage(writer, 2, (inner) => writeOperation(inner, operation));
  for (const operation of request.failure) writeMessage(writer, 3, (inner) => writeOperation(inner, operation));
  return finish(writer);
}

/** Forgets what was before a revision. */
export function encodeCompact(request: { readonly revision: number }): Buffer {
  const writer = Writer.create();
  writeNumber(writer, 1, request.revision);
  return finish(writer);
}

/** Begins a watch of a range, from a revision on. */
export function encodeWatchCreate(range: {
  readonly key: Uint8Array;
  readonly end: Uint8Array;
  readonly fromRevision: number;
}): Buffer {
  const writer = Writer.create();
  writeMessage(writer, 1, (inner) => {
    writeBytes(inner, 1, range.key);
    writeBytes(inner, 2, range.end);
    writeNumber(inner, 3, range.fromRevision);
  });
  return finish(writer);
}

export function encodeNothing(): Buffer {
  return Buffer.alloc(0);
}

export function encodeAuthenticate(request: { readonly user: string; readonly password: string }): Buffer {
  const writer = Writer.create();
  writeBytes(writer, 1, Buffer.from(request.user, "utf8"));
  writeBytes(writer, 2, Buffer.from(request.password, "utf8"));
  return finish(writer);
}

// Replies -------------------------------------------------------------------------------------------------------------

/** Calls `visit` with each field of the message that ends at `end`; what `visit` does not read is skipped (it returns false). */
function eachField(reader: Reader, end: number, visit: (field: number) => boolean): void {
  while (reader.pos < end) {
    const tag = reader.uint32();
    if (!visit(tag >>> WIRE_TYPE_BITS)) reader.skipType(tag & 7);
  }
}

/** The end of the message inside a message that begins here. */
function endOfMessage(reader: Reader): number {
  const length = reader.uint32();
  return reader.pos + length;
}

function readNumber(reader: Reader): number {
  return Number(reader.int64());
}

function readBytes(reader: Reader): Buffer {
  const bytes = reader.bytes();
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

function readText(reader: Reader): string {
  return readBytes(reader).toString("utf8");
}

/** The store's revision in a reply's header. */
function readHeader(reader: Reader): number {
  let revision = 0;
  eachField(reader, endOfMessage(reader), (field) => {
    if (field !== 3) return false;
    revision = readNumber(reader);
    return true;
  });
  return revision;
}

function readRow(reader: Reader): KeyValue {
  const row = { key: EMPTY, value: EMPTY, modRevision: 0 };
  eachField(reader, endOfMessage(reader), (field) => {
    if (field === 1) row.key = readBytes(reader);
    else if (field === 3) row.modRevision = readNumber(reader);
    else if (field === 5) row.value = readBytes(reader);
    else return false;
    return true;
  });
  return row;
}

const EMPTY: Buffer = Buffer.alloc(0);

function readRange(reader: Reader, end: number): RangeReply {
  const rows: KeyValue[] = [];
  const reply = { revision: 0, rows, more: false, count: 0 };
  eachField(reader, end, (field) => {
    if (field === 1) reply.revision = readHeader(reader);
    else if (field === 2) rows.push(readRow(reader));
    else if (field === 3) reply.more = readNumber(reader) !== 0;
    else if (field === 4) reply.count = readNumber(reader);
    else return false;
    return true;
  });
  return reply;
}

export function decodeRange(bytes: Buffer): RangeReply {
  return readRange(Reader.create(bytes), bytes.length);
}

/** Only counts the rows and finds the last one: the loop is not held up for a whole reply. */
export function decodePackedRows(bytes: Buffer): PackedRows {
  const reader = Reader.create(bytes);
  let rowCount = 0;
  let lastRow = -1;
  let more = false;
  eachField(reader, bytes.length, (field) => {
    if (field === 3) {
      more = readNumber(reader) !== 0;
      return true;
    }
    if (field === 2) {
      lastRow = reader.pos;
      rowCount += 1;
    }
    return false;
  });
  let lastKey: Buffer | null = null;
  if (lastRow !== -1) {
    reader.pos = lastRow;
    lastKey = readRow(reader).key;
  }
  return { bytes, rowCount, lastKey, more };
}

const TAG_ROW = (2 << WIRE_TYPE_BITS) | WIRE_BYTES;
const TAG_ROW_KEY = (1 << WIRE_TYPE_BITS) | WIRE_BYTES;
const TAG_ROW_VALUE = (5 << WIRE_TYPE_BITS) | WIRE_BYTES;

/** Walks the rows of a reply in order: `while (reader.next()) ...`. No object per row. */
export class PackedRowReader {
  keyStart = 0;
  keyEnd = 0;
  valueStart = 0;
  valueEnd = 0;
  readonly bytes: Buffer;
  readonly #reader: Reader;

  constructor(rows: PackedRows) {
    this.bytes = rows.bytes;
    this.#reader = Reader.create(rows.bytes);
  }

  next(): boolean {
    const reader = this.#reader;
    while (reader.pos < reader.len) {
      const tag = reader.uint32();
      if (tag === TAG_ROW) {
        this.#readRow(endOfMessage(reader));
        return true;
      }
      reader.skipType(tag & 7);
    }
    return false;
  }

  #readRow(end: number): void {
    const reader = this.#reader;
    this.keyStart = this.keyEnd = this.valueStart = this.valueEnd = 0;
    while (reader.pos < end) {
      const tag = reader.uint32();
      if (tag === TAG_ROW_KEY) {
        this.keyEnd = endOfMessage(reader);
        this.keyStart = reader.pos;
        reader.pos = this.keyEnd;
      } else if (tag === TAG_ROW_VALUE) {
        this.valueEnd = endOfMessage(reader);
        this.valueStart = reader.pos;
        reader.pos = this.valueEnd;
      } else {
        reader.skipType(tag & 7);
      }
    }
    if (reader.pos !== end) throw new RangeError("a row in a reply of etcd is cut off");
  }
}

export function decodeTxn(bytes: Buffer): TxnReply {
  const reader = Reader.create(bytes);
  const ranges: RangeReply[] = [];
  const reply = { revision: 0, succeeded: false, ranges };
  eachField(reader, bytes.length, (field) => {
    if (field === 1) reply.revision = readHeader(reader);
    else if (field === 2) reply.succeeded = readNumber(reader) !== 0;
    else if (field === 3) readOutcome(reader, ranges);
    else return false;
    return true;
  });
  return reply;
}

/** The outcome of one operation; only ranges have one that matters. */
function readOutcome(reader: Reader, ranges: RangeReply[]): void {
  eachField(reader, endOfMessage(reader), (field) => {
    if (field !== 1) return false;
    ranges.push(readRange(reader, endOfMessage(reader)));
    return true;
  });
}

export function decodeWatch(bytes: Buffer): WatchReply {
  const reader = Reader.create(bytes);
  const events: WatchEvent[] = [];
  const reply = { revision: 0, canceled: false, cancelReason: "", compactRevision: 0, events };
  eachField(reader, bytes.length, (field) => {
    if (field === 1) reply.revision = readHeader(reader);
    else if (field === 4) reply.canceled = readNumber(reader) !== 0;
    else if (field === 5) reply.compactRevision = readNumber(reader);
    else if (field === 6) reply.cancelReason = readText(reader);
    else if (field === 11) events.push(readEvent(reader));
    else return false;
    return true;
  });
  return reply;
}

function readEvent(reader: Reader): WatchEvent {
  const event: { kind: WatchEvent["kind"]; row: KeyValue } = {
    kind: "put",
    row: { key: EMPTY, value: EMPTY, modRevision: 0 },
  };
  eachField(reader, endOfMessage(reader), (field) => {
    if (field === 1) event.kind = readNumber(reader) === 0 ? "put" : "delete";
    else if (field === 2) event.row = readRow(reader);
    else return false;
    return true;
  });
  return event;
}

export function decodeStatus(bytes: Buffer): StatusReply {
  const reader = Reader.create(bytes);
  const reply = { revision: 0, version: "", databaseBytes: 0, quotaBytes: 0 };
  eachField(reader, bytes.length, (field) => {
    if (field === 1) reply.revision = readHeader(reader);
    else if (field === 2) reply.version = readText(reader);
    else if (field === 3) reply.databaseBytes = readNumber(reader);
    else if (field === 12) reply.quotaBytes = readNumber(reader);
    else return false;
    return true;
  });
  return reply;
}

/** A reply that says nothing but that it came. (gRPC takes null for a reply that is missing.) */
export function decodeNothing(): true {
  return true;
}

export function decodeToken(bytes: Buffer): string {
  const reader = Reader.create(bytes);
  let token = "";
  eachField(reader, bytes.length, (field) => {
    if (field !== 2) return false;
    token = readText(reader);
    return true;
  });
  return token;
}
