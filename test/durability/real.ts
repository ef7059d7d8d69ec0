import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { BatchWriter } from "#src/durability/batch.js";
import { RocksStore, type RocksStoreOptions } from "#src/durability/rocksdb/rocksdb-store.js";
import { encodeMeta, encodeOp } from "#src/durability/schema.js";
import type { RowPage, Store, StoreError, StoreIdentity } from "#src/durability/store.js";
import type { Op } from "#src/engine/op.js";
import type { Clock, Log, Scheduler } from "#src/ports.js";
import { countingIds } from "./manual.js";

/** Real forms of the ports and promise-shaped calls, for tests with a real disk. */

export const realScheduler: Scheduler = {
  after(delayMs, callback) {
    const timer = setTimeout(callback, delayMs);
    return { cancel: () => clearTimeout(timer) };
  },
  soon: (callback) => void setImmediate(callback),
};

const realClock: Clock = {
  monotonicMs: () => performance.now(),
  unixMs: () => Date.now(),
};

/** A log that keeps its lines. */
class KeptLog implements Log {
  readonly lines: string[] = [];

  write(level: string, message: string): void {
    this.lines.push(`${level}: ${message}`);
  }
}

/** `memory`: where syncs cost nothing, if this machine has such a place; for tests that do not ask for durability. */
export function temporaryDirectory(kind: "disk" | "memory" = "disk"): { path: string; remove(): void } {
  const parent = kind === "memory" && existsSync("/dev/shm") ? "/dev/shm" : tmpdir();
  const path = mkdtempSync(join(parent, "leasehold-store-"));
  return { path, remove: () => rmSync(path, { recursive: true, force: true }) };
}

const ids = countingIds();

export function rocksStore(directory: string, change: Partial<RocksStoreOptions> = {}): RocksStore {
  return new RocksStore({
    directory,
    log: new KeptLog(),
    clock: realClock,
    ids,
    scheduler: realScheduler,
    acceptLoss: false,
    ...change,
  });
}

export const acquire = (store: Store): Promise<StoreIdentity> =>
  new Promise((resolve, reject) => {
    store.acquire((error, identity) => {
      if (error !== null) reject(error);
      else if (identity === null) reject(new Error("neither an error nor an identity"));
      else resolve(identity);
    });
  });

/** Why a store refuses to open. */
export async function refusalOf(store: Store): Promise<StoreError> {
  let refusal: StoreError | null = null;
  await new Promise<void>((resolve) => {
    store.acquire((error) => {
      refusal = error;
      resolve();
    });
  });
  await close(store);
  if (refusal === null) throw new Error("the store opened");
  return refusal;
}

export const commit = (store: Store, ops: readonly Op[], revision: number): Promise<void> =>
  new Promise((resolve, reject) => {
    const writer = new BatchWriter();
    for (const op of ops) encodeOp(op, writer);
    encodeMeta(revision, writer);
    store.commit(writer.batch(revision), (error) => (error === null ? resolve() : reject(error)));
  });

export const loadPages = (store: Store): Promise<RowPage[]> =>
  new Promise((resolve, reject) => {
    const pages: RowPage[] = [];
    store.load(
      (page, next) => {
        pages.push(page);
        next();
      },
      (error) => (error === null ? resolve(pages) : reject(error)),
    );
  });

export const close = (store: Store): Promise<StoreError | null> => new Promise((resolve) => store.close(resolve));
