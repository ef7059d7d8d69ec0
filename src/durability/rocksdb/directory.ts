import {
  type BigIntStats,
  existsSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { dirname, join, resolve } from "node:path";
import { xxh3 } from "@node-rs/xxhash";
import { STORE_FORMAT_VERSION } from "../schema.js";
import { StoreError } from "../store.js";
import { createFile, errnoOf, replaceFile, syncDirectory, usable } from "./files.js";

/**
 * The data directory and the small files in it.
 *
 *   FORMAT      what this directory is: format version, incarnation, whether its creation was finished. Text.
 *   WITNESS     the newest durable revision (witness.ts)
 *   PID         who has it open, for the message that a second process gives; a stale one means nothing
 *   rocksdb/    RocksDB's own files, its LOCK among them: the only lock, gone with the process that holds it
 *   wal-before-open.<pid>/   while a store opens: hard links to RocksDB's logs, see below
 *
 * FORMAT decides what may be done here, before RocksDB touches anything: a directory with other files and without FORMAT is somebody
 * else's; a FORMAT of a higher version is a newer build's; and RocksDB may create a database only while FORMAT says `creating`, so
 * that a lost CURRENT or MANIFEST can never turn into a new, empty store.
 *
 * A store whose creation was cut off (power loss between FORMAT and the first sync) has acknowledged nothing; it is created anew.
 *
 * RocksDB recovers its log up to the first damaged record, then deletes the log: a start that is refused afterwards, because
 * revisions are missing, would have destroyed what a person could still read out of it. Hence the links: they cost nothing,
 * go when the open went well, and stay when it was refused.
 */

const FIRST_LINE = "leasehold store";
const DIRECTORY_MODE = 0o700;
const WAL_LINKS_PREFIX = "wal-before-open.";

/** What a fresh file system or a killed start may leave in an otherwise empty directory. */
const NOT_FOREIGN = /^(?:lost\+found|FORMAT\.\d+\.tmp)$/u;

const TEMPORARY = /^(?:FORMAT|WITNESS)\.\d+\.tmp$/u;

export interface FormatRecord {
  readonly version: number;
  readonly incarnation: string;
  readonly state: "creating" | "complete";
}

export class DataDirectory {
  readonly path: string;
  readonly databasePath: string;
  readonly witnessPath: string;
  readonly #formatPath: string;
  readonly #pidPath: string;
  readonly #lockPath: string;
  #lockFile: BigIntStats | null = null;

  constructor(path: string) {
    this.path = resolve(path);
    this.databasePath = join(this.path, "rocksdb");
    this.witnessPath = join(this.path, "WITNESS");
    this.#formatPath = join(this.path, "FORMAT");
    this.#pidPath = join(this.path, "PID");
    this.#lockPath = join(this.databasePath, "LOCK");
  }

  /**
   * Finds out whose the directory is, making it if need be. A new one gets a FORMAT with `incarnation`, state `creating`. Throws
   * StoreError `unusable`, `format` or `damaged`; has written nothing then.
   */
  claim(incarnation: string): FormatRecord {
    usable("the data directory cannot be used", () => {
      makeDirectory(this.path);
      if (!statSync(this.path).isDirectory()) throw new StoreError("unusable", `${this.path} is not a directory`);
    });
    for (;;) {
      const found = this.readFormat();
      if (found !== null) return found;
      this.#refuseForeignFiles();
      const fresh: FormatRecord = { version: STORE_FORMAT_VERSION, incarnation, state: "creating" };
      const created = usable("the data directory cannot be written", () =>
        createFile(this.#formatPath, formatText(fresh)),
      );
      if (created) return fresh;
      // Another process was quicker; read what it wrote.
    }
  }

  /** null when there is none. Throws StoreError `format` or `damaged`. */
  readFormat(): FormatRecord | null {
    let text: string;
    try {
      text = readFileSync(this.#formatPath, "latin1");
    } catch (error) {
      if (errnoOf(error) === "ENOENT") return null;
      throw new StoreError("unusable", `the data directory cannot be read: ${String(error)}`);
    }
    return parseFormat(text, this.#formatPath);
  }

  /** The store is created: from here on RocksDB may never create it again. */
  completeFormat(incarnation: string): void {
    const record: FormatRecord = { version: STORE_FORMAT_VERSION, incarnation, state: "complete" };
    usable("the data directory cannot be written", () => replaceFile(this.#formatPath, formatText(record)));
  }

  // Its place ---------------------------------------------------------------------------------------------------------

  /** RocksDB has its lock: from now on `checkPlace` knows this directory from any other. */
  notePlace(): void {
    this.#lockFile = usable("the data directory cannot be read", () => statSync(this.#lockPath, { bigint: true }));
  }

  /**
   * Throws StoreError `unusable` when the path does not lead to the directory any more that was opened. A process that goes on
   * then writes into files without a name, and another one may take the path. The lock file tells: it is open, so its inode cannot be
   * another file's.
   */
  checkPlace(): void {
    if (this.#lockFile === null) return;
    let found: BigIntStats | undefined;
    try {
      found = statSync(this.#lockPath, { bigint: true, throwIfNoEntry: false });
    } catch (error) {
      throw new StoreError("unusable", `the data directory cannot be looked at: ${String(error)}`);
    }
    if (found?.ino === this.#lockFile.ino && found.dev === this.#lockFile.dev) return;
    const what = found === undefined ? "is gone" : "is another file now";
    throw new StoreError(
      "unusable",
      `${this.path} was removed or replaced while the server ran: ${this.#lockPath} ${what}`,
    );
  }

  // PID ---------------------------------------------------------------------------------------------------------------

  writePid(): void {
    usable("the data directory cannot be written", () =>
      writeFileSync(this.#pidPath, `${process.pid}\n`, { mode: 0o644 }),
    );
  }

  removePid(): void {
    removeIfThere(this.#pidPath);
  }

  /** The refusal when RocksDB's lock is held. */
  inUse(): StoreError {
    let pid = Number.NaN;
    try {
      pid = Number.parseInt(readFileSync(this.#pidPath, "latin1"), 10);
    } catch {
      // The other process is just opening or closing the store: there is no pid to name.
    }
    const who = pid === process.pid ? "this process" : Number.isNaN(pid) ? "another process" : `process ${pid}`;
    return new StoreError("in-use", `${this.path} is in use by ${who}`);
  }

  // RocksDB's logs as they were before the open --------------------------------------------------------------------------

  /**
   * Links RocksDB's logs aside. Best effort: not every file system has hard links. Links that an earlier, refused open left stay
   * as they are: RocksDB has changed its logs since.
   */
  keepLogs(): void {
    const target = join(this.path, `${WAL_LINKS_PREFIX}${process.pid}`);
    if (this.#logLinks().length > 0) return;
    try {
      const logs = readdirSync(this.databasePath).filter((name) => /^\d+\.log$/u.test(name));
      if (logs.length === 0) return;
      mkdirSync(target, { mode: DIRECTORY_MODE });
      for (const name of logs) linkSync(join(this.databasePath, name), join(target, name));
    } catch (error) {
      if (errnoOf(error) === "") throw error;
    }
  }

  /** This process did not get the store, or got it whole: its own links are of no use. */
  dropOwnLogs(): void {
    removeIfThere(join(this.path, `${WAL_LINKS_PREFIX}${process.pid}`));
  }

  /** The store is open and whole: nobody needs any of the links. Only for the holder of the lock. */
  dropAllLogs(): void {
    for (const name of this.#logLinks()) removeIfThere(join(this.path, name));
  }

  /** Removes what killed starts left of files that they were about to rename. Only for the holder of the lock. */
  dropTemporaries(): void {
    for (const name of readdirSync(this.path)) if (TEMPORARY.test(name)) removeIfThere(join(this.path, name));
  }

  /** The loss was accepted: the links stay, under a name that no later open removes. Returns where, null when there are none. */
  keepLostLogs(revision: number): string | null {
    const [newest] = this.#logLinks();
    if (newest === undefined) return null;
    const target = join(this.path, `wal-lost-at-${revision}`);
    usable("the data directory cannot be written", () => {
      rmSync(target, { recursive: true, force: true });
      renameSync(join(this.path, newest), target);
    });
    return target;
  }

  #logLinks(): string[] {
    return usable("the data directory cannot be read", () => readdirSync(this.path)).filter((name) =>
      name.startsWith(WAL_LINKS_PREFIX),
    );
  }

  #refuseForeignFiles(): void {
    const names = usable("the data directory cannot be read", () => readdirSync(this.path));
    const foreign = names.filter((name) => !NOT_FOREIGN.test(name));
    if (foreign.length === 0) return;
    const shown = foreign.slice(0, 3).join(", ") + (foreign.length > 3 ? ", ..." : "");
    throw new StoreError(
      "format",
      `${this.path} is not empty and not a Leasehold data directory: it has no FORMAT file, but ${shown}; nothing was written`,
    );
  }
}

/**
 * Makes the directory and those above it, durably. One by one: Node's own recursive mkdir never ends where the system says that the parent is
 * missing although it is there, as /proc does.
 */
function makeDirectory(path: string): void {
  if (existsSync(path)) return;
  const parent = dirname(path);
  makeDirectory(parent);
  try {
    mkdirSync(path, { mode: DIRECTORY_MODE });
  } catch (error) {
    // Another process was quicker.
    if (errnoOf(error) !== "EEXIST") throw error;
  }
  syncDirectory(parent);
}

function removeIfThere(path: string): void {
  rmSync(path, { recursive: true, force: true });
}

function formatText(record: FormatRecord): string {
  const body = `${FIRST_LINE}\nformat ${record.version}\nincarnation ${record.incarnation}\nstate ${record.state}\n`;
  return `${body}check ${checksumOf(body)}\n`;
}

function parseFormat(text: string, path: string): FormatRecord {
  const lines = text.split("\n");
  if (lines[0] !== FIRST_LINE) throw new StoreError("format", `${path} was not written by Leasehold`);
  const version = Number(/^format (\d+)$/u.exec(lines[1] ?? "")?.[1] ?? "0");
  if (version > STORE_FORMAT_VERSION) {
    throw new StoreError(
      "format",
      `${path} says format ${version}, written by a newer build; this build reads format ${STORE_FORMAT_VERSION}`,
    );
  }
  const body = `${lines.slice(0, 4).join("\n")}\n`;
  const incarnation = /^incarnation ([a-z0-9]+)$/u.exec(lines[2] ?? "")?.[1];
  const state = /^state (creating|complete)$/u.exec(lines[3] ?? "")?.[1];
  const whole = text === `${body}check ${checksumOf(body)}\n`;
  if (!whole || version < 1 || incarnation === undefined || (state !== "creating" && state !== "complete")) {
    throw new StoreError("damaged", `${path} does not match its checksum`);
  }
  return { version, incarnation, state };
}

/** 64-bit XXH3 of latin1 text, as 16 hexadecimal digits. */
export function checksumOf(text: string): string {
  return xxh3.xxh64(Buffer.from(text, "latin1")).toString(16).padStart(16, "0");
}
