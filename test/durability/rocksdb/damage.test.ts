import {
  copyFileSync,
  cpSync,
  existsSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { asBuffer } from "#src/durability/batch.js";
import {
  LOSS_GAP_REVISIONS,
  type OpenedStore,
  type OpeningOptions,
  openStore,
} from "#src/durability/rocksdb/opening.js";
import { ALL_ROWS_RANGE } from "#src/durability/schema.js";
import { type RowPage, StoreError } from "#src/durability/store.js";
import type { LeasePutOp, Op } from "#src/engine/op.js";
import { countingIds, noFault } from "../manual.js";
import { decodeAll, leasePut, OpModel, packOps } from "../ops.js";
import { temporaryDirectory } from "../real.js";

/**
 * Damage to the files of a closed store, of every kind and at every kind of place. There are two good ends: the store is refused (at
 * open or while it loads), or everything that was acknowledged is there. There is no third: never silent loss.
 */

const RUNS = 4;
const BATCHES_PER_RUN = 25;

/**
 * A store of four runs: an older table, a newer one and a log that was not yet flushed, so that each kind of file holds
 * acknowledged rows, and the MANIFEST's newest edit is the only thing that knows the newer table.
 */
let original: ReturnType<typeof temporaryDirectory>;
let copies: ReturnType<typeof temporaryDirectory>;
const model = new OpModel();
const newestRevision = RUNS * BATCHES_PER_RUN;

const noNote = (): void => undefined;

/** The store without its worker thread: what is tested here is what lies on disk. */
const open = (directory: string, acceptLoss = false, note: OpeningOptions["note"] = noNote): Promise<OpenedStore> =>
  openStore({ directory, acceptLoss, freshIncarnation: ids.incarnation(), fault: noFault, note });

const ids = countingIds();

async function shut(store: OpenedStore): Promise<void> {
  store.witness.close();
  store.directory.removePid();
  await store.database.close();
}

function write(store: OpenedStore, ops: readonly Op[], revision: number): void {
  store.database.apply(asBuffer(packOps(ops, revision).bytes));
  store.witness.write(0, revision);
}

function load(store: OpenedStore): ReturnType<typeof decodeAll> {
  const [start, end] = ALL_ROWS_RANGE;
  const cursor = store.database.openCursor(Buffer.from(start, "latin1"), Buffer.from(end, "latin1"), 8192);
  const pages: RowPage[] = [];
  try {
    for (let page = cursor.next(); page !== null; page = cursor.next()) pages.push(page);
  } finally {
    cursor.close();
  }
  return decodeAll(pages);
}

async function refusalOf(directory: string): Promise<StoreError> {
  const store = await open(directory).catch((error: unknown) => error);
  if (store instanceof StoreError) return store;
  throw new Error("the store opened");
}

/**
 * RocksDB merges tables in the background whenever it gets the CPU for that. Where it had merged the two before the last close, no
 * edit of the MANIFEST alone knows a table any more: such a store is of no use here and made anew.
 */
const MAKINGS_MAX = 50;

async function makeOriginal(): Promise<void> {
  let revision = 0;
  for (let run = 0; run < RUNS; run += 1) {
    const store = await open(original.path);
    for (let batch = 0; batch < BATCHES_PER_RUN; batch += 1) {
      revision += 1;
      const label = `${revision}:`.padEnd(batch === 7 ? 40_000 : 700, "x");
      const ops: LeasePutOp[] = [leasePut(`lease-${revision}`, { label }), leasePut("rewritten", { ttlMs: revision })];
      for (const op of ops) model.apply(op);
      write(store, ops, revision);
    }
    await shut(store);
  }
}

beforeAll(async () => {
  original = temporaryDirectory("memory");
  copies = temporaryDirectory("memory");
  for (let makings = 1; files(/\.sst$/).length < 2; makings += 1) {
    if (makings > MAKINGS_MAX) throw new Error("RocksDB merged the tables each time");
    rmSync(original.path, { recursive: true });
    await makeOriginal();
  }
});

afterAll(() => {
  original.remove();
  copies.remove();
});

const files = (pattern: RegExp, directory = original.path): string[] =>
  !existsSync(join(directory, "rocksdb"))
    ? []
    : readdirSync(join(directory, "rocksdb"))
        .filter((name) => pattern.test(name))
        .sort()
        .map((name) => join("rocksdb", name));

let copyCount = 0;

function copyWith(damage: (directory: string) => void): string {
  copyCount += 1;
  const directory = join(copies.path, String(copyCount));
  cpSync(original.path, directory, { recursive: true });
  damage(directory);
  return directory;
}

const flip =
  (file: string, at: number, bit = 3) =>
  (directory: string): void => {
    const path = join(directory, file);
    const bytes = readFileSync(path);
    bytes[at] = (bytes[at] ?? 0) ^ (1 << bit);
    writeFileSync(path, bytes);
  };

const truncate =
  (file: string, length: number) =>
  (directory: string): void =>
    truncateSync(join(directory, file), length);

const remove =
  (file: string) =>
  (directory: string): void =>
    rmSync(join(directory, file));

/** Opens and loads what a damage left. The code and message of the refusal, or "whole". Anything else fails the test. */
async function outcomeOf(damage: (directory: string) => void): Promise<string> {
  const directory = copyWith(damage);
  let store: OpenedStore | null = null;
  try {
    store = await open(directory);
    const loaded = load(store);
    expect(loaded.ops).toEqual(model.ops());
    expect(store.identity.revision).toBe(newestRevision);
    return "whole";
  } catch (error) {
    if (!(error instanceof StoreError)) throw error;
    expect(["damaged", "short", "format"]).toContain(error.code);
    return `${error.code}: ${error.message}`;
  } finally {
    if (store !== null) await shut(store);
    rmSync(directory, { recursive: true, force: true });
  }
}

const tally = (outcomes: readonly string[]): Record<string, number> => {
  const counts: Record<string, number> = {};
  for (const outcome of outcomes) {
    const code = outcome.split(":")[0] ?? "";
    counts[code] = (counts[code] ?? 0) + 1;
  }
  return counts;
};

test("the undamaged store is whole, so that the other outcomes mean something", async () => {
  expect(await outcomeOf(() => undefined)).toBe("whole");
  expect(files(/\.sst$/).length).toBeGreaterThan(0);
  expect(files(/\.log$/).length).toBe(1);
});

describe("RocksDB's log", () => {
  const log = (): string => files(/\.log$/)[0] ?? "";
  const size = (): number => statSync(join(original.path, log())).size;

  test("one flipped bit, from the first record to the last, in headers and in contents: never silent loss", async () => {
    const places: number[] = [0, 4, 5, 6, 7, 20, size() - 1, size() - 30];
    for (let place = 100; place < size(); place += Math.floor(size() / 20)) places.push(place);
    const outcomes: string[] = [];
    for (const [index, place] of places.entries()) outcomes.push(await outcomeOf(flip(log(), place, index % 8)));
    // RocksDB stops silently at each of these; without the witness every one would have been taken as whole but shorter.
    expect(tally(outcomes)["short"]).toBeGreaterThan(20);
  });

  test("cut off anywhere: never silent loss", async () => {
    const lengths = [0, 1, 7, 8, size() - 1, size() - 40];
    for (let length = 500; length < size(); length += Math.floor(size() / 8)) lengths.push(length);
    const outcomes: string[] = [];
    for (const length of lengths) outcomes.push(await outcomeOf(truncate(log(), length)));
    expect(tally(outcomes)).toEqual({ short: lengths.length });
  });

  test("gone, or empty", async () => {
    expect(await outcomeOf(remove(log()))).toMatch(/^short: /);
    expect(await outcomeOf(truncate(log(), 0))).toMatch(/^short: /);
  });

  test("the refusal names both revisions and the flag, stays, and keeps the log for whoever wants to look into it", async () => {
    const directory = copyWith(flip(log(), Math.floor(size() / 2)));
    const found = readFileSync(join(directory, log()));
    for (let attempt = 0; attempt < 2; attempt += 1) {
      const refusal = await refusalOf(directory);
      expect(refusal.code).toBe("short");
      expect(refusal.message).toMatch(
        new RegExp(`ends at revision \\d+, but revision ${newestRevision} was acknowledged: .* --accept-loss`),
      );
    }
    const kept = readdirSync(directory).filter((name) => name.startsWith("wal-before-open."));
    expect(kept.length).toBe(1);
    const [first] = readdirSync(join(directory, kept[0] ?? "")).sort();
    expect(readFileSync(join(directory, kept[0] ?? "", first ?? "")).equals(found)).toBe(true);
  });

  test("an accepted loss goes on above every revision that was ever acknowledged, once", async () => {
    const directory = copyWith(flip(log(), Math.floor(size() / 2)));
    const notes: string[] = [];
    const store = await open(directory, true, (level, message) => notes.push(`${level}: ${message}`));
    const { revision } = store.identity;
    expect(revision).toBe(newestRevision + LOSS_GAP_REVISIONS);
    expect(notes.filter((line) => line.startsWith("error:")).join()).toContain("going on without the missing changes");
    const loaded = load(store);
    expect(loaded.ops.length).toBeLessThan(model.ops().length);
    expect(loaded.revision).toBe(revision);
    write(store, [leasePut("afterwards")], revision + 1);
    await shut(store);
    // The loss is accepted once; from then on the store is whole again, without the flag.
    const again = await open(directory);
    expect(again.identity.revision).toBe(revision + 1);
    await shut(again);
    expect(readdirSync(directory).some((name) => name.startsWith("wal-lost-at-"))).toBe(true);
  });
});

describe("RocksDB's tables", () => {
  test("one flipped bit anywhere in a table: never silent loss", async () => {
    const outcomes: string[] = [];
    for (const table of files(/\.sst$/)) {
      const size = statSync(join(original.path, table)).size;
      for (let place = 0; place < size; place += Math.ceil(size / 12))
        outcomes.push(await outcomeOf(flip(table, place)));
      outcomes.push(await outcomeOf(flip(table, size - 1)), await outcomeOf(flip(table, size - 50)));
    }
    expect(tally(outcomes)["damaged"]).toBeGreaterThan(5);
  });

  test("a table that is gone or cut off is missed at open", async () => {
    for (const table of files(/\.sst$/)) {
      expect(await outcomeOf(remove(table))).toMatch(/^damaged: /);
      expect(await outcomeOf(truncate(table, statSync(join(original.path, table)).size - 10))).toMatch(/^damaged: /);
    }
  });
});

describe("RocksDB's MANIFEST and CURRENT", () => {
  const manifest = (): string => files(/^MANIFEST/)[0] ?? "";
  /** Offsets of the records: `[u32 crc][u16 length][u8 type]` and that many bytes. */
  const records = (): number[] => {
    const bytes = readFileSync(join(original.path, manifest()));
    const offsets: number[] = [];
    for (let at = 0; at + 7 <= bytes.length; at += 7 + bytes.readUInt16LE(at + 4)) offsets.push(at);
    return offsets;
  };

  test("a flipped bit in the length of any record, which RocksDB takes for the end: never silent loss", async () => {
    const outcomes: string[] = [];
    for (const record of records()) outcomes.push(await outcomeOf(flip(manifest(), record + 5, 6)));
    // At least one of them makes RocksDB forget a whole table while it replays the log behind it: only the chain notices.
    expect(outcomes.filter((outcome) => outcome.includes("the database is not whole")).length).toBeGreaterThan(0);
  });

  test("a table that was forgotten in the middle can be accepted; then the store is whole again, above all revisions", async () => {
    let directory = "";
    for (const record of records()) {
      const outcome = await outcomeOf(flip(manifest(), record + 5, 6));
      if (outcome.includes("the database is not whole")) directory = copyWith(flip(manifest(), record + 5, 6));
    }
    expect((await refusalOf(directory)).message).toMatch(/the database is not whole: .*; --accept-loss/);
    const store = await open(directory, true);
    expect(store.identity.revision).toBe(newestRevision + LOSS_GAP_REVISIONS);
    write(store, [leasePut("afterwards")], store.identity.revision + 1);
    await shut(store);
    for (let round = 0; round < 3; round += 1) await shut(await open(directory));
  });

  test("flipped bits and cuts elsewhere: never silent loss", async () => {
    const size = statSync(join(original.path, manifest())).size;
    for (const record of records()) {
      await outcomeOf(flip(manifest(), record));
      await outcomeOf(flip(manifest(), record + 9));
      await outcomeOf(truncate(manifest(), record));
    }
    await outcomeOf(truncate(manifest(), size - 1));
  });

  test("a store that lost CURRENT or its MANIFEST never turns into a new, empty one", async () => {
    expect(await outcomeOf(remove("rocksdb/CURRENT"))).toMatch(/^damaged: /);
    expect(await outcomeOf(remove(manifest()))).toMatch(/^damaged: /);
    expect(await outcomeOf((directory) => rmSync(join(directory, "rocksdb"), { recursive: true }))).toMatch(
      /^damaged: /,
    );
  });

  test("files that hold no rows may go", async () => {
    for (const name of ["rocksdb/LOCK", "rocksdb/IDENTITY"]) expect(await outcomeOf(remove(name))).toBe("whole");
  });
});

describe("Leasehold's own files", () => {
  test("a witness that is missing or unreadable is refused, and can be accepted", async () => {
    expect(await outcomeOf(remove("WITNESS"))).toMatch(/^damaged: .*WITNESS is missing.*--accept-loss/);
    expect(await outcomeOf(truncate("WITNESS", 0))).toMatch(/^damaged: .*WITNESS is not readable.*--accept-loss/);
    const directory = copyWith(remove("WITNESS"));
    const store = await open(directory, true);
    expect(store.identity.revision).toBe(newestRevision + LOSS_GAP_REVISIONS);
    expect(load(store).ops).toEqual(model.ops());
    await shut(store);
    expect(existsSync(join(directory, "WITNESS"))).toBe(true);
  });

  test("one torn slot of the witness does not keep a store from starting", async () => {
    for (const slot of [0, 1, 2]) expect(await outcomeOf(flip("WITNESS", slot * 4096 + 40))).toBe("whole");
  });

  test("the files of two stores do not mix", async () => {
    const other = temporaryDirectory("memory");
    await shut(await open(other.path));
    for (const name of ["WITNESS", "FORMAT"]) {
      const outcome = await outcomeOf((directory) => copyFileSync(join(other.path, name), join(directory, name)));
      expect(outcome).toMatch(/mixes two stores/);
    }
    other.remove();
  });

  test("an older copy of the database under the newer witness is short", async () => {
    const directory = copyWith(() => undefined);
    const store = await open(directory);
    write(store, [leasePut("newer")], store.identity.revision + 1);
    await shut(store);
    rmSync(join(directory, "rocksdb"), { recursive: true });
    cpSync(join(original.path, "rocksdb"), join(directory, "rocksdb"), { recursive: true });
    expect((await refusalOf(directory)).code).toBe("short");
  });

  test("one flipped bit anywhere in FORMAT is refused", async () => {
    const size = statSync(join(original.path, "FORMAT")).size;
    for (let at = 0; at < size; at += 9) expect(await outcomeOf(flip("FORMAT", at))).toMatch(/^(?:damaged|format): /);
  });
});
