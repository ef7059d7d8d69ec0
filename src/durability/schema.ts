import { xxh3 } from "@node-rs/xxhash";
import { Packr, RESET_BUFFER_MODE, REUSE_BUFFER_MODE } from "msgpackr";
import { DATABASE_COUNT, LEASE_ID_BYTES_MAX } from "../engine/limits.js";
import { invariant, unreachable } from "../engine/invariant.js";
import type {
  KeyPutOp,
  LeasePutOp,
  LeaseRequest,
  Op,
  Revision,
  ScriptPutOp,
  StringPutOp,
  LockMode,
} from "../engine/op.js";
import type { ByteString } from "../engine/reply.js";
import { type BatchWriter, CHANGE_CLEAR_RANGE, CHANGE_DELETE, CHANGE_PUT, PageReader } from "./batch.js";
import { type RowPage, StoreError } from "./store.js";

/**
 * What a row means. Ops become row changes here, rows become ops again at load; no other file knows a key's layout.
 *
 *   l/<lease id>                                   [ttlMs, token, label, grantedAtUnixMs, owner, nonce, chosen, firstTtlMs]
 *   m/format                                       [format version, "leasehold"]
 *   m/identity                                     [incarnation, epoch]
 *   m/revision                                     [revision]: the high-water mark, written with every batch
 *   n/<database byte><id length - 1><lease id><key>    [token, value, permits, sinceUnixMs]: a key (a name) and a lease that holds it;
 *                                                  permits: null alone, 0 shared, n as a semaphore of n permits
 *   p/<database byte><key>                         [token, value, ttlMs or null, sinceUnixMs]: a plain key, which no lease holds
 *   q/<sha1, 40 hexadecimal digits>                [body, isPinned]: a script
 *
 * The prefixes are in the order in which a load must hand rows over: leases before the keys that belong to them. Keys are
 * ordered by database first, so that FLUSHDB is one range. (A layout that keeps a lease's keys behind the lease would turn
 * FLUSHDB into a scan of everything, and nothing ever reads one lease alone: a load reads all rows, and a lease that ends names
 * its keys.) Lease ids are binary, so no separator byte can end them: their length goes before them, as one byte, because
 * it is 1..256.
 *
 * Versions of records: a key's is 2; in version 1, which is still read, it was [token, value], and every key was held alone. All others are
 * 1.
 *
 * A value is   `[u8 record version][payload: one msgpack array][u64 XXH3 of key, version and payload]`   (little endian). The
 * checksum stands at the end so that everything it covers lies in one piece, and it covers the key so that a record under
 * another row's key does not pass.
 *
 * Invariants:
 *  - the bytes of a record never change under the same record version; `test/durability/schema.test.ts` holds golden ones
 *  - decoding what was encoded gives equal ops, whatever bytes are in ids, keys, values, labels and owners
 *
 * When a record changes: raise its version, decode the old one too, add golden bytes. When that is not enough: raise
 * STORE_FORMAT_VERSION, which older builds refuse.
 */

/** Raised when an older build must not touch the store any more. */
export const STORE_FORMAT_VERSION = 1;

const RECORD_VERSION = 1;
const KEY_RECORD_VERSION = 2;
const CHECKSUM_BYTES = 8;
const FORMAT_OWNER = "leasehold";

const PREFIX_LEASE = "l/";
const PREFIX_META = "m/";
const PREFIX_KEY = "n/";
const PREFIX_STRING = "p/";
/** Not `s/`: the batch chain of the RocksDB store has that (`rocksdb/chain.ts`). */
const PREFIX_SCRIPT = "q/";
const ROW_FORMAT = "m/format";
const ROW_IDENTITY = "m/identity";
const ROW_REVISION = "m/revision";

const PREFIX_BYTES = 2;
const TABLE_LEASE = "l".charCodeAt(0);
const TABLE_META = "m".charCodeAt(0);
const TABLE_KEY = "n".charCodeAt(0);
const TABLE_STRING = "p".charCodeAt(0);
const TABLE_SCRIPT = "q".charCodeAt(0);
const SLASH = "/".charCodeAt(0);

/** Bytes of the fixed part of a key row's key: prefix, database, length of the lease id. */
const KEY_ROW_HEADER_BYTES = PREFIX_BYTES + 2;

/** The same of a plain key's row: prefix, database. */
const STRING_ROW_HEADER_BYTES = PREFIX_BYTES + 1;

/** Payloads are arrays of numbers, strings, booleans and nulls, so none of msgpackr's extensions is wanted. */
const packr = new Packr({ useRecords: false, structuredClone: false, bundleStrings: false });

/** msgpackr packs into the same scratch buffer each time and says where, instead of allocating a Buffer per record. */
const PACK_IN_PLACE = REUSE_BUFFER_MODE | RESET_BUFFER_MODE;

/** What a huge value made of the scratch buffer is not kept. */
const SCRATCH_BYTES = 8 * 1024;
const SCRATCH_KEPT_BYTES_MAX = 256 * 1024;

// Ops to row changes --------------------------------------------------------------------------------------------------

/** Appends the row changes of one op. */
export function encodeOp(op: Op, writer: BatchWriter): void {
  switch (op.kind) {
    case "lease-put":
      encodeLease(op, writer);
      return;
    case "lease-end":
      writer.begin(CHANGE_DELETE);
      writeLeaseKey(op.id, writer);
      writer.end();
      for (const name of op.keys) encodeKeyDelete(name.databaseIndex, op.id, name.key, writer);
      return;
    case "lease-keys-end":
      for (const name of op.keys) encodeKeyDelete(name.databaseIndex, op.leaseId, name.key, writer);
      return;
    case "key-put":
      encodeKey(op, writer);
      return;
    case "key-end":
      encodeKeyDelete(op.databaseIndex, op.leaseId, op.key, writer);
      return;
    case "string-put":
      encodeString(op, writer);
      return;
    case "string-end":
      writer.begin(CHANGE_DELETE);
      writeStringKey(op.databaseIndex, op.key, writer);
      writer.end();
      return;
    case "script-put":
      putRow(PREFIX_SCRIPT + op.sha, [op.body, op.isPinned], writer);
      return;
    case "script-end":
      writer.begin(CHANGE_DELETE);
      writer.writeLatin1(PREFIX_SCRIPT + op.sha);
      writer.end();
      return;
    case "scripts-flush":
      encodeClear(PREFIX_SCRIPT, endOfPrefix(PREFIX_SCRIPT), writer);
      return;
    case "flush-database":
      for (const prefix of [PREFIX_KEY, PREFIX_STRING]) {
        encodeClear(prefix + byteOf(op.databaseIndex), prefix + byteOf(op.databaseIndex + 1), writer);
      }
      return;
    case "flush-all":
      for (const prefix of [PREFIX_LEASE, PREFIX_KEY, PREFIX_STRING]) encodeClear(prefix, endOfPrefix(prefix), writer);
      return;
    default:
      unreachable(op);
  }
}

/** The revision high-water mark: part of every batch, so that revisions, ids and tokens never repeat. */
export function encodeMeta(revision: Revision, writer: BatchWriter): void {
  putRow(ROW_REVISION, [revision], writer);
}

/** The format row of a new store. */
export function encodeFormat(writer: BatchWriter): void {
  putRow(ROW_FORMAT, [STORE_FORMAT_VERSION, FORMAT_OWNER], writer);
}

/** Who the store is, and how often it has been taken. */
export function encodeIdentity(incarnation: string, epoch: number, writer: BatchWriter): void {
  putRow(ROW_IDENTITY, [incarnation, epoch], writer);
}

function encodeLease(op: LeasePutOp, writer: BatchWriter): void {
  writer.begin(CHANGE_PUT);
  writeLeaseKey(op.id, writer);
  const request = op.request;
  writeRecord(
    [
      op.ttlMs,
      op.token,
      op.label,
      op.grantedAtUnixMs,
      op.owner,
      request === null ? null : request.nonce,
      request !== null && request.idChosenByServer,
      request === null ? 0 : request.ttlMs,
    ],
    writer,
  );
}

function encodeKey(op: KeyPutOp, writer: BatchWriter): void {
  writer.begin(CHANGE_PUT);
  writeKeyKey(op.databaseIndex, op.leaseId, op.key, writer);
  writeRecord([op.token, op.value, permitsOf(op.mode), op.sinceUnixMs], writer, KEY_RECORD_VERSION);
}

function permitsOf(mode: LockMode): number | null {
  if (mode.kind === "exclusive") return null;
  return mode.kind === "shared" ? 0 : mode.permits;
}

function encodeString(op: StringPutOp, writer: BatchWriter): void {
  writer.begin(CHANGE_PUT);
  writeStringKey(op.databaseIndex, op.key, writer);
  writeRecord([op.token, op.value, op.ttlMs, op.sinceUnixMs], writer);
}

function encodeKeyDelete(databaseIndex: number, leaseId: ByteString, key: ByteString, writer: BatchWriter): void {
  writer.begin(CHANGE_DELETE);
  writeKeyKey(databaseIndex, leaseId, key, writer);
  writer.end();
}

function encodeClear(start: ByteString, end: ByteString, writer: BatchWriter): void {
  writer.begin(CHANGE_CLEAR_RANGE);
  writer.writeLatin1(start);
  writer.beginValue();
  writer.writeLatin1(end);
  writer.end();
}

function putRow(key: ByteString, payload: readonly unknown[], writer: BatchWriter): void {
  writer.begin(CHANGE_PUT);
  writer.writeLatin1(key);
  writeRecord(payload, writer);
}

function writeLeaseKey(id: ByteString, writer: BatchWriter): void {
  writer.writeLatin1(PREFIX_LEASE);
  writer.writeLatin1(id);
}

function writeKeyKey(databaseIndex: number, leaseId: ByteString, key: ByteString, writer: BatchWriter): void {
  invariant(leaseId.length >= 1 && leaseId.length <= LEASE_ID_BYTES_MAX, "a lease id is 1..256 bytes");
  writer.writeLatin1(PREFIX_KEY);
  writer.writeByte(databaseIndex);
  writer.writeByte(leaseId.length - 1);
  writer.writeLatin1(leaseId);
  writer.writeLatin1(key);
}

function writeStringKey(databaseIndex: number, key: ByteString, writer: BatchWriter): void {
  writer.writeLatin1(PREFIX_STRING);
  writer.writeByte(databaseIndex);
  writer.writeLatin1(key);
}

/** Ends the key of an open put with its record. */
function writeRecord(payload: readonly unknown[], writer: BatchWriter, version = RECORD_VERSION): void {
  writer.beginValue();
  writer.writeByte(version);
  const packed = packr.pack(payload, PACK_IN_PLACE) as Buffer & { readonly start: number; readonly end: number };
  writer.writeBytes(packed, packed.start, packed.end);
  if (packed.length > SCRATCH_KEPT_BYTES_MAX) packr.useBuffer(Buffer.allocUnsafeSlow(SCRATCH_BYTES));
  writer.writeU64(xxh3.xxh64(writer.writtenOfChange()));
  writer.end();
}

function byteOf(value: number): ByteString {
  return String.fromCharCode(value);
}

/** The first key behind all keys with this prefix. */
function endOfPrefix(prefix: ByteString): ByteString {
  return prefix.slice(0, -1) + byteOf(prefix.charCodeAt(prefix.length - 1) + 1);
}

// Rows to ops ---------------------------------------------------------------------------------------------------------

/** What a row stands for: the op that recreates it. */
export type RowOp = LeasePutOp | KeyPutOp | StringPutOp | ScriptPutOp;

/** What a load hears of the rows, in row order: leases, then the meta rows, then the keys of leases, plain keys, scripts. */
export interface RowVisitor {
  op(op: RowOp): void;
  /** The high-water mark. */
  revision(revision: Revision): void;
}

/** The meta rows of a store; null where a row is absent. */
export interface MetaRows {
  formatVersion: number | null;
  incarnation: string | null;
  epoch: number | null;
  revision: Revision | null;
}

/**
 * Hands over every row of a page as the op that recreates it. Owners are shared: all leases of one owner in a page have one
 * string object.
 *
 * Throws StoreError `damaged` naming the row when its version, checksum or shape is wrong.
 */
export function decodePage(page: RowPage, visitor: RowVisitor): void {
  const owners = new Map<ByteString, ByteString>();
  const reader = new PageReader(page);
  while (reader.next()) {
    const table = reader.keyEnd - reader.keyStart > PREFIX_BYTES ? reader.bytes[reader.keyStart] : 0;
    if (reader.bytes[reader.keyStart + 1] !== SLASH) throw damaged(reader, "belongs to no table");
    if (table === TABLE_LEASE) visitor.op(decodeLease(reader, owners));
    else if (table === TABLE_KEY) visitor.op(decodeKey(reader));
    else if (table === TABLE_STRING) visitor.op(decodeString(reader));
    else if (table === TABLE_SCRIPT) visitor.op(decodeScript(reader));
    else if (table === TABLE_META) {
      const meta = decodeMetaRow(reader);
      if (meta.revision !== null) visitor.revision(meta.revision);
    } else throw damaged(reader, "belongs to no table");
  }
}

/** The meta rows among the rows of a page: a store reads its own identity with it. Throws StoreError `damaged` or `format`. */
export function decodeMeta(page: RowPage): MetaRows {
  const found: MetaRows = { formatVersion: null, incarnation: null, epoch: null, revision: null };
  const reader = new PageReader(page);
  while (reader.next()) {
    if (reader.bytes[reader.keyStart] !== TABLE_META) continue;
    const row = decodeMetaRow(reader);
    found.formatVersion = row.formatVersion ?? found.formatVersion;
    found.incarnation = row.incarnation ?? found.incarnation;
    found.epoch = row.epoch ?? found.epoch;
    found.revision = row.revision ?? found.revision;
  }
  return found;
}

/** The range that holds the meta rows: first key, and first key behind. */
export const META_RANGE: readonly [ByteString, ByteString] = [PREFIX_META, endOfPrefix(PREFIX_META)];

/** The range that holds all rows. */
export const ALL_ROWS_RANGE: readonly [ByteString, ByteString] = [PREFIX_LEASE, endOfPrefix(PREFIX_SCRIPT)];

function decodeLease(reader: PageReader, owners: Map<ByteString, ByteString>): LeasePutOp {
  const [ttlMs, token, label, grantedAtUnixMs, owner, nonce, chosen, firstTtlMs] = payloadOf(reader, 8);
  if (
    !isCount(ttlMs) ||
    !isCount(token) ||
    !(label === null || typeof label === "string") ||
    typeof grantedAtUnixMs !== "number" ||
    typeof owner !== "string" ||
    !(nonce === null || typeof nonce === "string") ||
    typeof chosen !== "boolean" ||
    !isCount(firstTtlMs)
  ) {
    throw damaged(reader, "is not a lease");
  }
  let sharedOwner = owners.get(owner);
  if (sharedOwner === undefined) {
    owners.set(owner, owner);
    sharedOwner = owner;
  }
  const request: LeaseRequest | null = nonce === null ? null : { nonce, idChosenByServer: chosen, ttlMs: firstTtlMs };
  return {
    kind: "lease-put",
    id: reader.bytes.toString("latin1", reader.keyStart + PREFIX_BYTES, reader.keyEnd),
    ttlMs,
    token,
    label,
    request,
    grantedAtUnixMs,
    owner: sharedOwner,
  };
}

function decodeKey(reader: PageReader): KeyPutOp {
  const isOld = reader.bytes[reader.keyEnd] === RECORD_VERSION;
  const [token, value, permits, sinceUnixMs] = isOld
    ? [...payloadOf(reader, 2), null, 0]
    : payloadOf(reader, 4, KEY_RECORD_VERSION);
  const databaseIndex = reader.bytes[reader.keyStart + PREFIX_BYTES];
  const idBytes = (reader.bytes[reader.keyStart + PREFIX_BYTES + 1] ?? 0) + 1;
  const idStart = reader.keyStart + KEY_ROW_HEADER_BYTES;
  if (
    !isCount(token) ||
    typeof value !== "string" ||
    !(permits === null || isCount(permits)) ||
    typeof sinceUnixMs !== "number" ||
    databaseIndex === undefined ||
    databaseIndex >= DATABASE_COUNT ||
    idStart + idBytes > reader.keyEnd
  ) {
    throw damaged(reader, "is not a key");
  }
  return {
    kind: "key-put",
    databaseIndex,
    key: reader.bytes.toString("latin1", idStart + idBytes, reader.keyEnd),
    leaseId: reader.bytes.toString("latin1", idStart, idStart + idBytes),
    value,
    token,
    mode: modeFrom(permits),
    sinceUnixMs,
  };
}

const EXCLUSIVE: LockMode = { kind: "exclusive" };
const SHARED: LockMode = { kind: "shared" };

function modeFrom(permits: number | null): LockMode {
  if (permits === null) return EXCLUSIVE;
  return permits === 0 ? SHARED : { kind: "limit", permits };
}

function decodeString(reader: PageReader): StringPutOp {
  const [token, value, ttlMs, sinceUnixMs] = payloadOf(reader, 4);
  const databaseIndex = reader.bytes[reader.keyStart + PREFIX_BYTES];
  const keyStart = reader.keyStart + STRING_ROW_HEADER_BYTES;
  if (
    !isCount(token) ||
    typeof value !== "string" ||
    !(ttlMs === null || (isCount(ttlMs) && ttlMs > 0)) ||
    typeof sinceUnixMs !== "number" ||
    databaseIndex === undefined ||
    databaseIndex >= DATABASE_COUNT ||
    keyStart > reader.keyEnd
  ) {
    throw damaged(reader, "is not a plain key");
  }
  const key = reader.bytes.toString("latin1", keyStart, reader.keyEnd);
  return { kind: "string-put", databaseIndex, key, value, ttlMs, token, sinceUnixMs };
}

function decodeScript(reader: PageReader): ScriptPutOp {
  const [body, isPinned] = payloadOf(reader, 2);
  if (typeof body !== "string" || typeof isPinned !== "boolean") throw damaged(reader, "is not a script");
  const sha = reader.bytes.toString("latin1", reader.keyStart + PREFIX_BYTES, reader.keyEnd);
  return { kind: "script-put", sha, body, isPinned };
}

function decodeMetaRow(reader: PageReader): MetaRows {
  const meta: MetaRows = { formatVersion: null, incarnation: null, epoch: null, revision: null };
  const name = reader.bytes.toString("latin1", reader.keyStart, reader.keyEnd);
  if (name === ROW_REVISION) {
    const [revision] = payloadOf(reader, 1);
    if (!isCount(revision)) throw damaged(reader, "is not a revision");
    meta.revision = revision;
  } else if (name === ROW_IDENTITY) {
    const [incarnation, epoch] = payloadOf(reader, 2);
    if (typeof incarnation !== "string" || !isCount(epoch)) throw damaged(reader, "is not an identity");
    meta.incarnation = incarnation;
    meta.epoch = epoch;
  } else if (name === ROW_FORMAT) {
    const [version, owner] = payloadOf(reader, 2);
    if (!isCount(version) || owner !== FORMAT_OWNER) throw damaged(reader, "is not Leasehold's format");
    meta.formatVersion = version;
  } else {
    throw damaged(reader, "is unknown");
  }
  return meta;
}

/** Checks version and checksum of the current row and unpacks its payload, an array of `length` values. */
function payloadOf(reader: PageReader, length: number, newest = RECORD_VERSION): readonly unknown[] {
  const { bytes, keyStart, keyEnd, valueEnd } = reader;
  const checksumStart = valueEnd - CHECKSUM_BYTES;
  if (checksumStart <= keyEnd) throw damaged(reader, "is cut off");
  if (xxh3.xxh64(bytes.subarray(keyStart, checksumStart)) !== bytes.readBigUInt64LE(checksumStart)) {
    throw damaged(reader, "does not match its checksum");
  }
  const version = bytes[keyEnd];
  if (version !== newest) {
    throw damaged(reader, `has record version ${version}, this build reads version ${newest}`);
  }
  let payload: unknown;
  try {
    payload = packr.unpack(bytes, { start: keyEnd + 1, end: checksumStart });
  } catch {
    payload = null; // msgpackr throws on bytes that it did not write; the row is named below
  }
  if (!Array.isArray(payload) || payload.length !== length)
    throw damaged(reader, "has another shape than its version says");
  return payload;
}

function isCount(value: unknown): value is number {
  return typeof value === "number" && Number.isSafeInteger(value) && value >= 0;
}

function damaged(reader: PageReader, what: string): StoreError {
  const key = reader.bytes.toString("latin1", reader.keyStart, reader.keyEnd);
  return new StoreError("damaged", `row ${printable(key)} ${what}`);
}

/** A row's key for people: everything but plain ASCII as `\xNN`, cut to a line's length. */
function printable(key: ByteString): string {
  let shown = "";
  for (let index = 0; index < key.length && shown.length < 100; index += 1) {
    const code = key.charCodeAt(index);
    const plain = code > 0x20 && code < 0x7f && code !== 0x5c;
    shown += plain ? key.charAt(index) : `\\x${code.toString(16).padStart(2, "0")}`;
  }
  return shown;
}
