import { closeSync, fdatasyncSync, openSync, readFileSync, writeSync } from "node:fs";
import { xxh3 } from "@node-rs/xxhash";
import { invariant } from "../../engine/invariant.js";
import type { Fault } from "../../ports.js";
import { StoreError } from "../store.js";
import { checksumOf } from "./directory.js";
import { errnoOf, replaceFile, usable } from "./files.js";

/**
 * The witness file: the newest durable revision, kept beside the database.
 *
 * RocksDB recovers its log up to the first record that does not match its checksum and says nothing of the rest. The witness knows
 * better: a recovered revision below it means that acknowledged changes are missing.
 *
 * The file has three slots, one disk block each, each a line of text that names incarnation, revision and checksum.
 *
 *   - After every batch is synced and **before** it is acknowledged, its revision is written to one slot, without a sync (4 us,
 *     next to the 250 us of the batch). So after a crash of the process, of whatever kind, the witness knows every
 *     acknowledged revision: the page cache outlives the process.
 *   - At most once a second while there are writes, that slot is frozen and the file is synced, off the path of the commits, which
 *     go to another slot meanwhile. The third one, the newest slot that is known to be on disk, is touched by neither. So a power
 *     loss may tear a slot, but never the synced one, and the witness is behind by a second at most.
 *   - The whole file is made anew, by rename, whenever a store is opened.
 *
 * What is not covered: a power loss **and**, at the same time, damage to log records that were synced within the last second
 * before it. Damage alone, or power loss alone, is always noticed or harmless.
 *
 * Invariants:
 *  1. When a batch is acknowledged, a slot of the file, as any process on this machine reads it, has its revision.
 *  2. At any moment one slot is synced and not being written.
 */

export interface WitnessRecord {
  readonly incarnation: string;
  readonly revision: number;
}

export const WITNESS_SLOTS = 3;
const SLOT_BYTES = 4096;
/** What is written of a slot: `leasehold-witness <incarnation> <revision, 16 digits> <checksum, 16 hexadecimal digits>`. */
const RECORD_BYTES_MAX = 128;
const WORD = "leasehold-witness";
const DIGITS = 16;

/** The witness as it is written: the worker's half. */
export class WitnessFile {
  /** Also used by the main thread, for the sync. */
  readonly fd: number;
  /** A record whose revision and checksum are replaced in place: this runs once per batch. */
  readonly #record: Buffer;
  readonly #body: Buffer;

  private constructor(fd: number, record: WitnessRecord) {
    this.fd = fd;
    this.#record = Buffer.from(recordText(record), "latin1");
    this.#body = this.#record.subarray(0, this.#record.length - DIGITS - 1);
  }

  /** Makes the file anew, durably, all slots alike. Throws StoreError `unusable`. */
  static create(path: string, record: WitnessRecord, fault: Fault): WitnessFile {
    const slot = recordText(record).padEnd(SLOT_BYTES - 1, " ") + "\n";
    return usable("the witness file cannot be written", () => {
      replaceFile(path, slot.repeat(WITNESS_SLOTS), {
        beforeRename: () => fault.point("witness:before-rename"),
        afterRename: () => fault.point("witness:after-rename"),
      });
      return new WitnessFile(openSync(path, "r+"), record);
    });
  }

  /** Writes a slot, unsynced. */
  write(slot: number, revision: number): void {
    invariant(slot >= 0 && slot < WITNESS_SLOTS, "a slot of the witness");
    const record = this.#record;
    writeDecimal(record, this.#body.length - DIGITS, revision);
    writeHexadecimal(record, this.#body.length + 1, xxh3.xxh64(this.#body));
    const written = writeSync(this.fd, record, 0, record.length, slot * SLOT_BYTES);
    if (written !== record.length) throw new Error(`the witness file took ${written} of ${record.length} bytes`);
  }

  sync(): void {
    fdatasyncSync(this.fd);
  }

  close(): void {
    closeSync(this.fd);
  }
}

export interface WitnessReading {
  /** The newest revision that any slot names. */
  readonly record: WitnessRecord;
  /** Slots that a power loss tore, or that were damaged otherwise. */
  readonly unreadableSlots: number;
}

/** null when there is no file. Throws StoreError `damaged` when no slot is readable or two disagree on the incarnation. */
export function readWitness(path: string): WitnessReading | null {
  let text: string;
  try {
    text = readFileSync(path, "latin1");
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return null;
    throw new StoreError("unusable", `the witness file cannot be read: ${String(error)}`);
  }
  let newest: WitnessRecord | null = null;
  let unreadableSlots = 0;
  for (let slot = 0; slot < WITNESS_SLOTS; slot += 1) {
    const record = parseSlot(text.slice(slot * SLOT_BYTES, slot * SLOT_BYTES + RECORD_BYTES_MAX));
    if (record === null) unreadableSlots += 1;
    else if (newest !== null && newest.incarnation !== record.incarnation) {
      throw new StoreError("damaged", `${path} names two stores, ${newest.incarnation} and ${record.incarnation}`);
    } else if (newest === null || record.revision > newest.revision) newest = record;
  }
  if (newest === null) throw new StoreError("damaged", `${path} is not readable: no slot matches its checksum`);
  return { record: newest, unreadableSlots };
}

function recordText(record: WitnessRecord): string {
  const body = `${WORD} ${record.incarnation} ${String(record.revision).padStart(DIGITS, "0")}`;
  const text = `${body} ${checksumOf(body)}`;
  invariant(text.length <= RECORD_BYTES_MAX, "a witness record fits its slot");
  return text;
}

function parseSlot(text: string): WitnessRecord | null {
  const match = /^(leasehold-witness ([a-z0-9]+) (\d{16})) ([0-9a-f]{16}) *$/u.exec(text);
  const [, body, incarnation, revision, checksum] = match ?? [];
  if (body === undefined || incarnation === undefined || checksum !== checksumOf(body)) return null;
  return { incarnation, revision: Number(revision) };
}

/** 16 decimal digits with leading zeros. */
function writeDecimal(target: Buffer, start: number, value: number): void {
  let rest = value;
  for (let at = start + DIGITS - 1; at >= start; at -= 1) {
    const next = Math.floor(rest / 10);
    target[at] = 0x30 + (rest - next * 10);
    rest = next;
  }
}

/** 16 hexadecimal digits, as `checksumOf` gives them. */
function writeHexadecimal(target: Buffer, start: number, value: bigint): void {
  const halves = [Number(value >> 32n), Number(value & 0xffffffffn)];
  for (const [index, half] of halves.entries()) {
    for (let digit = 0; digit < 8; digit += 1) {
      const nibble = (half >>> (28 - digit * 4)) & 15;
      target[start + index * 8 + digit] = nibble < 10 ? 0x30 + nibble : 0x57 + nibble;
    }
  }
}

/** Which slot is for what: the main thread's half. See invariant 2. */
export class WitnessSlots {
  #writing = 0;
  #syncing = -1;
  #free = 1;
  #synced = 2;
  #written = false;

  /** The slot for the next batch. */
  get writing(): number {
    return this.#writing;
  }

  get syncInProgress(): boolean {
    return this.#syncing !== -1;
  }

  /** A batch was noted in the slot for writing. */
  noteWritten(): void {
    this.#written = true;
  }

  /**
   * Freezes the slot that was written so far; sync the file now. Only after `noteWritten`: a slot without a new revision holds an
   * old one, which must not take the place of the newest. No batch may be in flight: it would still write there.
   */
  beginSync(): void {
    invariant(this.#syncing === -1, "one sync at a time");
    invariant(this.#written, "there is something to sync");
    this.#written = false;
    this.#syncing = this.#writing;
    this.#writing = this.#free;
  }

  /** The file is synced: the frozen slot is the one to keep. */
  endSync(): void {
    invariant(this.#syncing !== -1, "no sync was begun");
    this.#free = this.#synced;
    this.#synced = this.#syncing;
    this.#syncing = -1;
  }
}
