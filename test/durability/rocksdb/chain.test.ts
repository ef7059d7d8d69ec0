import { afterEach, beforeEach, expect, test } from "vitest";
import { BatchChain, CHAIN_RANGE } from "#src/durability/rocksdb/chain.js";
import { asBuffer, PageWriter } from "#src/durability/batch.js";
import { RocksDatabase } from "#src/durability/rocksdb/database.js";
import type { RowPage } from "#src/durability/store.js";
import { keyPut, leasePut, packOps } from "../ops.js";
import { temporaryDirectory } from "../real.js";

/** The chain's rows as a database would hold them, without a database. */
class Rows {
  readonly rows = new Map<string, Uint8Array>();

  /** Applies what the chain adds to one batch. */
  extend(chain: BatchChain, packedBytes: number): void {
    chain.extend(
      {
        _put: (key: Uint8Array, value: Uint8Array) =>
          this.rows.set(asBuffer(key).toString("latin1"), Uint8Array.from(value)),
        _del: (key: Uint8Array) => this.rows.delete(asBuffer(key).toString("latin1")),
        _clear: () => undefined,
        _writeSync: () => undefined,
        _closeSync: () => undefined,
      },
      packedBytes,
    );
  }

  page(): RowPage {
    const writer = new PageWriter(64 * 1024);
    for (const key of [...this.rows.keys()].sort()) {
      writer.append(Buffer.from(key, "latin1"), this.rows.get(key) ?? new Uint8Array());
    }
    return writer.take();
  }

  copy(): Rows {
    const copy = new Rows();
    for (const [key, value] of this.rows) copy.rows.set(key, value);
    return copy;
  }
}

const BATCH_BYTES = 100_000;

test("any run of batches that covers a segment's end is missed, wherever it lies", () => {
  const chain = BatchChain.begin();
  const rows = new Rows();
  const states: Rows[] = [rows.copy()];
  for (let batch = 0; batch < 60; batch += 1) {
    rows.extend(chain, BATCH_BYTES);
    states.push(rows.copy());
  }
  expect(() => BatchChain.continue(rows.page())).not.toThrow();
  // A piece of history is lost when none of the rows that it wrote came through, and those written later did.
  const written = (from: number, to: number): Map<string, Uint8Array> => {
    const changed = new Map<string, Uint8Array>();
    for (const [key, value] of states[to]?.rows ?? []) {
      const before = states[from]?.rows.get(key);
      if (before === undefined || Buffer.compare(before, value) !== 0) changed.set(key, value);
    }
    return changed;
  };
  for (let from = 0; from < 50; from += 1) {
    for (let to = from + 7; to < 59; to += 1) {
      const left = new Rows();
      for (const [key, value] of states[from]?.rows ?? []) left.rows.set(key, value);
      for (const [key, value] of written(to, 60)) left.rows.set(key, value);
      expect(() => BatchChain.continue(left.page()), `batches ${from + 1}..${to}`).toThrow("not whole");
    }
  }
});

test("an open begins a segment, so what was written between two opens is missed however little it was", () => {
  const rows = new Rows();
  rows.extend(BatchChain.begin(), 10);
  const before = rows.copy();
  rows.extend(BatchChain.continue(rows.page()), 10);
  const middle = rows.copy();
  rows.extend(BatchChain.continue(rows.page()), 10);
  const left = before.copy();
  for (const [key, value] of rows.rows) if (!middle.rows.has(key)) left.rows.set(key, value);
  expect(() => BatchChain.continue(left.page())).toThrow("not whole");
});

test("old segments are dropped: the rows stay few, and the chain whole", () => {
  const chain = BatchChain.begin();
  const rows = new Rows();
  for (let batch = 0; batch < 2000; batch += 1) rows.extend(chain, BATCH_BYTES);
  expect(rows.rows.size).toBe(2 * 64);
  expect(() => BatchChain.continue(rows.page())).not.toThrow();
});

test("a chain that was begun anew after a loss drops all rows of the old one", () => {
  const chain = BatchChain.begin();
  const rows = new Rows();
  for (let batch = 0; batch < 100; batch += 1) rows.extend(chain, BATCH_BYTES);
  rows.rows.delete([...rows.rows.keys()][5] ?? "");
  expect(() => BatchChain.continue(rows.page())).toThrow("not whole");
  rows.extend(BatchChain.restart(rows.page()), 10);
  expect(rows.rows.size).toBe(2);
  rows.extend(BatchChain.continue(rows.page()), 10);
  expect(() => BatchChain.continue(rows.page())).not.toThrow();
});

let directory: ReturnType<typeof temporaryDirectory>;

beforeEach(() => {
  directory = temporaryDirectory("memory");
});

afterEach(() => directory.remove());

test("in a database: whole over reopens, with batches beyond a segment, and without a trace in what a load reads", async () => {
  for (let run = 0; run < 3; run += 1) {
    const database = await RocksDatabase.open(directory.path, run === 0);
    if (run > 0) expect(database.continueChain(false)).toEqual({ lost: null });
    for (let batch = 0; batch < 5; batch += 1) {
      const value = "v".repeat(batch === 2 ? 900_000 : 10);
      database.apply(asBuffer(packOps([leasePut("a"), keyPut("a", "k", { value })], batch + 1).bytes));
    }
    expect(database.readRange(CHAIN_RANGE).rowCount).toBeGreaterThan(run * 2);
    expect(database.readRange(["l/", "n0"]).rowCount).toBe(3);
    await database.close();
  }
});
