import type { Fault, LogLevel } from "../../ports.js";
import { BatchWriter } from "../batch.js";
import {
  decodeMeta,
  encodeFormat,
  encodeIdentity,
  encodeMeta,
  META_RANGE,
  type MetaRows,
  STORE_FORMAT_VERSION,
} from "../schema.js";
import { StoreError, type StoreIdentity } from "../store.js";
import { refusalOf, RocksDatabase } from "./database.js";
import { DataDirectory, type FormatRecord } from "./directory.js";
import { readWitness, WitnessFile, type WitnessRecord } from "./witness.js";

/**
 * Taking a data directory: every check between a path and a store that may be written. Runs in the worker thread.
 *
 *   claim the directory ─ foreign, newer format, unusable: refused, nothing written
 *   link RocksDB's logs aside
 *   open RocksDB ─ locked: `in-use`; damaged tables or manifest: `damaged`
 *   meta rows ─ missing or damaged: `damaged`
 *   chain ─ batches missing from the middle: `damaged`
 *   witness ─ missing, unreadable or of another store: `damaged`; ahead of the rows: `short`
 *   raise the epoch, one synced write
 *   new witness file
 *
 * The order is that of trust: nothing is written before the step that allows it.
 */

export interface OpeningOptions {
  readonly directory: string;
  /** Goes on although acknowledged revisions are missing. */
  readonly acceptLoss: boolean;
  /** For a store that does not exist yet. */
  readonly freshIncarnation: string;
  readonly fault: Fault;
  note(level: LogLevel, message: string): void;
}

export interface OpenedStore {
  readonly directory: DataDirectory;
  readonly database: RocksDatabase;
  readonly witness: WitnessFile;
  readonly identity: StoreIdentity;
}

/**
 * After an accepted loss the revision goes on this far above everything that is known to have been handed out: more than a
 * server can hand out in the second by which a synced witness may lag. Revisions, ids and fencing tokens never repeat.
 */
export const LOSS_GAP_REVISIONS = 1_000_000_000;

const ACCEPT_LOSS_FLAG = "--accept-loss";

/** Throws StoreError. Whatever was opened before is closed again. */
export async function openStore(options: OpeningOptions): Promise<OpenedStore> {
  const directory = new DataDirectory(options.directory);
  let format = directory.claim(options.freshIncarnation);
  if (format.state === "complete") directory.keepLogs();
  let database: RocksDatabase;
  try {
    database = await RocksDatabase.open(directory.databasePath, format.state === "creating");
  } catch (error) {
    if (!(error instanceof StoreError) || error.code !== "in-use") throw error;
    directory.dropOwnLogs();
    throw directory.inUse();
  }
  try {
    options.fault.point("open:after-lock");
    directory.notePlace();
    // Another process may have finished the creation between our look at FORMAT and our lock.
    format = directory.readFormat() ?? format;
    directory.writePid();
    directory.dropTemporaries();
    const revision =
      format.state === "creating"
        ? createRows(directory, database, format, options)
        : checkRows(directory, database, format, options);
    return finishOpening(directory, database, format.incarnation, revision, options.fault);
  } catch (error) {
    directory.removePid();
    await database.close();
    throw error;
  }
}

/** A new store, or one whose creation was cut off: it has acknowledged nothing. Returns its revision. */
function createRows(
  directory: DataDirectory,
  database: RocksDatabase,
  format: FormatRecord,
  options: OpeningOptions,
): number {
  const meta = readMeta(database);
  if (meta.revision !== null && meta.revision > 0) {
    throw new StoreError("damaged", `${directory.path} holds revision ${meta.revision}, but its FORMAT says it is new`);
  }
  const writer = new BatchWriter();
  encodeFormat(writer);
  encodeIdentity(format.incarnation, 0, writer);
  encodeMeta(0, writer);
  database.apply(writer.packed());
  WitnessFile.create(directory.witnessPath, { incarnation: format.incarnation, revision: 0 }, options.fault).close();
  directory.completeFormat(format.incarnation);
  options.note("info", `created a new store in ${directory.path}`);
  return 0;
}

/** Checks what was recovered. Returns the revision to go on from. */
function checkRows(
  directory: DataDirectory,
  database: RocksDatabase,
  format: FormatRecord,
  options: OpeningOptions,
): number {
  const meta = readMeta(database);
  if (meta.formatVersion !== null && meta.formatVersion !== STORE_FORMAT_VERSION) {
    throw new StoreError(
      "format",
      `the database has format ${meta.formatVersion}, this build reads format ${STORE_FORMAT_VERSION}`,
    );
  }
  if (meta.formatVersion === null || meta.incarnation === null || meta.epoch === null || meta.revision === null) {
    throw new StoreError("damaged", `the database in ${directory.path} has lost rows that every store has`);
  }
  if (meta.incarnation !== format.incarnation) {
    throw new StoreError("damaged", strangerText(directory, "database", meta.incarnation, format.incarnation));
  }
  const lost = chainLoss(database, options);
  const witness = witnessOf(directory, format, options);
  if (lost === null && witness !== null && witness.revision <= meta.revision) {
    directory.dropAllLogs();
    return meta.revision;
  }
  return acceptLoss(directory, meta.revision, witness, lost, options);
}

/** What is missing from the middle, if that was accepted; null when nothing is. */
function chainLoss(database: RocksDatabase, options: OpeningOptions): string | null {
  try {
    return database.continueChain(options.acceptLoss).lost;
  } catch (error) {
    if (!(error instanceof StoreError) || error.code !== "damaged") throw error;
    throw new StoreError("damaged", `${error.message}; ${ACCEPT_LOSS_FLAG} goes on without what is missing`);
  }
}

/** null when it is missing or unreadable and that was accepted. */
function witnessOf(directory: DataDirectory, format: FormatRecord, options: OpeningOptions): WitnessRecord | null {
  let trouble = `${directory.witnessPath} is missing`;
  try {
    const reading = readWitness(directory.witnessPath);
    if (reading !== null) {
      if (reading.record.incarnation !== format.incarnation) {
        throw new StoreError(
          "format",
          strangerText(directory, "witness file", reading.record.incarnation, format.incarnation),
        );
      }
      if (reading.unreadableSlots > 0) {
        options.note(
          "warn",
          `${reading.unreadableSlots} of the witness file's slots are unreadable; the newest readable one counts`,
        );
      }
      return reading.record;
    }
  } catch (error) {
    if (!(error instanceof StoreError) || error.code !== "damaged") throw error;
    trouble = error.message;
  }
  if (options.acceptLoss) {
    options.note("error", `${trouble}; going on, as ${ACCEPT_LOSS_FLAG} says`);
    return null;
  }
  throw new StoreError(
    "damaged",
    `${trouble}: whether acknowledged changes are missing cannot be told; ${ACCEPT_LOSS_FLAG} goes on all the same`,
  );
}

function acceptLoss(
  directory: DataDirectory,
  recovered: number,
  witness: WitnessRecord | null,
  lost: string | null,
  options: OpeningOptions,
): number {
  if (!options.acceptLoss && witness !== null) {
    throw new StoreError(
      "short",
      `the database ends at revision ${recovered}, but revision ${witness.revision} was acknowledged: ` +
        `${witness.revision - recovered} revisions are missing; ${ACCEPT_LOSS_FLAG} goes on without them`,
    );
  }
  const revision = Math.max(recovered, witness?.revision ?? 0) + LOSS_GAP_REVISIONS;
  const logs = directory.keepLostLogs(recovered);
  options.note(
    "error",
    `the database ends at revision ${recovered}, acknowledged was ${witness?.revision ?? "an unknown one"}` +
      (lost === null ? "" : ` (${lost})`) +
      `: going on without the missing changes, from revision ${revision}` +
      (logs === null ? "" : `; RocksDB's logs as they were found are in ${logs}`),
  );
  return revision;
}

function finishOpening(
  directory: DataDirectory,
  database: RocksDatabase,
  incarnation: string,
  revision: number,
  fault: Fault,
): OpenedStore {
  const epoch = (readMeta(database).epoch ?? 0) + 1;
  const writer = new BatchWriter();
  encodeIdentity(incarnation, epoch, writer);
  encodeMeta(revision, writer);
  try {
    database.apply(writer.packed());
  } catch (error) {
    throw refusalOf("the database cannot be written", error);
  }
  const witness = WitnessFile.create(directory.witnessPath, { incarnation, revision }, fault);
  return { directory, database, witness, identity: { incarnation, revision, epoch } };
}

function readMeta(database: RocksDatabase): MetaRows {
  return decodeMeta(database.readRange(META_RANGE));
}

function strangerText(directory: DataDirectory, what: string, found: string, expected: string): string {
  return `${directory.path} mixes two stores: its ${what} belongs to ${found}, its FORMAT to ${expected}`;
}
