import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { leasePut } from "../ops.js";
import { acquire, close, commit, loadPages, rocksStore, temporaryDirectory } from "../real.js";
import { storeContract } from "../store-contract.js";

const workerFault = (spec: string) => ({ moduleUrl: new URL("worker-fault.mjs", import.meta.url).href, spec });

storeContract(
  "RocksStore",
  () => {
    const directory = temporaryDirectory("memory");
    return {
      store: () => rocksStore(directory.path),
      failingStore: () => rocksStore(directory.path, { workerFault: workerFault("commit:before-write") }),
      remove: () => directory.remove(),
    };
  },
  10,
);

describe("the store's thread", () => {
  let directory: ReturnType<typeof temporaryDirectory>;

  beforeEach(() => {
    directory = temporaryDirectory("memory");
  });

  afterEach(() => directory.remove());

  test("that goes away in the middle of a commit fails it and every later one", async () => {
    const store = rocksStore(directory.path, { workerFault: workerFault("commit:before-write leave") });
    await acquire(store);
    const failed = { code: "write-failed", message: expect.stringContaining("thread is gone") as string };
    await expect(commit(store, [leasePut("a")], 1)).rejects.toMatchObject(failed);
    await expect(commit(store, [leasePut("b")], 2)).rejects.toMatchObject(failed);
    expect(await close(store)).toMatchObject(failed);
  });

  test("that fails after the write reports a failure, although the batch is on disk: its outcome is unknown", async () => {
    const store = rocksStore(directory.path, { workerFault: workerFault("commit:after-write") });
    await acquire(store);
    await expect(commit(store, [leasePut("a")], 1)).rejects.toMatchObject({ code: "write-failed" });
    await close(store);
    const again = rocksStore(directory.path);
    expect((await acquire(again)).revision).toBe(1);
    await close(again);
  });

  test("that cannot sync at the end says so", async () => {
    const store = rocksStore(directory.path, { workerFault: workerFault("close:before-sync") });
    await acquire(store);
    expect(await close(store)).toMatchObject({ code: "write-failed", message: "fault at close:before-sync" });
  });

  test("may stall in a write while the loop goes on", async () => {
    const store = rocksStore(directory.path, { workerFault: workerFault("commit:before-write stall") });
    await acquire(store);
    let turns = 0;
    let over = false;
    const count = (): void => {
      turns += 1;
      if (!over) setImmediate(count);
    };
    setImmediate(count);
    await commit(store, [leasePut("a")], 1);
    over = true;
    // The thread slept for 300 ms; a loop that waited for it would have had a turn or two.
    expect(turns).toBeGreaterThan(20);
    await close(store);
  });

  test("is not held up by anything that the loop did not ask for: a store that is closed at once closes", async () => {
    const store = rocksStore(directory.path);
    const acquired = acquire(store);
    const closed = close(store);
    await acquired;
    expect(await closed).toBeNull();
  });

  test("takes batches up to and beyond the shared memory", async () => {
    const store = rocksStore(directory.path);
    await acquire(store);
    const lengths = [0, 1, 100, 524_000, 524_100, 524_200, 524_300, 700_000];
    for (const [index, length] of lengths.entries()) {
      await commit(store, [leasePut(`l${index}`, { label: "x".repeat(length) })], index + 1);
    }
    const rows = (await loadPages(store)).reduce((sum, page) => sum + page.rowCount, 0);
    expect(rows).toBe(lengths.length + 3);
    await close(store);
  });
});
