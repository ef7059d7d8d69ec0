import * as fc from "fast-check";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { PageReader } from "#src/durability/batch.js";
import type { RowPage, Store } from "#src/durability/store.js";
import type { Op } from "#src/engine/op.js";
import { arbitraryOps, decodeAll, keyPut, leasePut, OpModel, packOps } from "./ops.js";
import { acquire, close, commit, loadPages, refusalOf } from "./real.js";

/**
 * What every store promises (`src/durability/store.ts`), as tests: run against memory, RocksDB, and whatever comes later. A
 * harness is one place where rows live; stores are opened on it one after the other, as a server is restarted on a directory.
 */
export interface StoreHarness {
  /** Another store takes the place over, instead of being refused while the first one holds it. */
  readonly isShared?: boolean;
  /** A new store object on the same place. */
  store(): Store;
  /** A store whose first commit fails without leaving anything behind. */
  failingStore(): Store;
  remove(): void;
}

/** `histories`: how many random histories are tried, for stores of different speed. */
export function storeContract(name: string, makeHarness: () => StoreHarness, histories: number): void {
  describe(`${name} keeps the store contract`, () => {
    let harness: StoreHarness;

    beforeEach(() => {
      harness = makeHarness();
    });

    afterEach(() => harness.remove());

    const reload = async (): Promise<ReturnType<typeof decodeAll>> => {
      const store = harness.store();
      await acquire(store);
      const loaded = decodeAll(await loadPages(store));
      await close(store);
      return loaded;
    };

    test("a new store has revision 0; it keeps its incarnation, and each acquire raises the epoch", async () => {
      const identities = [];
      for (let round = 0; round < 3; round += 1) {
        const store = harness.store();
        identities.push(await acquire(store));
        expect(await close(store)).toBeNull();
      }
      expect(identities.map((identity) => identity.revision)).toEqual([0, 0, 0]);
      expect(identities.map((identity) => identity.epoch)).toEqual([1, 2, 3]);
      expect(new Set(identities.map((identity) => identity.incarnation)).size).toBe(1);
      expect(identities[0]?.incarnation).toMatch(/^[a-z0-9]+$/);
    });

    test("after a step-down the holder acquires again: a higher epoch, the newest revision, the same rows", async () => {
      const store = harness.store();
      const first = await acquire(store);
      await commit(store, [leasePut("a")], 5);
      const second = await acquire(store);
      expect(second).toEqual({ incarnation: first.incarnation, epoch: first.epoch + 1, revision: 5 });
      expect(decodeAll(await loadPages(store))).toEqual({ ops: [leasePut("a")], revision: 5 });
      await commit(store, [leasePut("b")], 6);
      expect((await acquire(store)).revision).toBe(6);
      await close(store);
      const third = await acquire(harness.store());
      expect(third).toEqual({ incarnation: first.incarnation, epoch: first.epoch + 3, revision: 6 });
    });

    test("the revision of the newest batch is the identity's at the next acquire", async () => {
      const store = harness.store();
      await acquire(store);
      await commit(store, [leasePut("a")], 7);
      await commit(store, [leasePut("b")], 2 ** 40);
      await close(store);
      expect((await acquire(harness.store())).revision).toBe(2 ** 40);
    });

    test("after any history, cut into batches and restarts anywhere, the rows are exactly the model's, in order", async () => {
      const batch = fc.record({
        ops: arbitraryOps(8),
        restart: fc.integer({ min: 0, max: 3 }).map((dice) => dice === 0),
      });
      await fc.assert(
        fc.asyncProperty(fc.array(batch, { minLength: 1, maxLength: 8 }), async (batches) => {
          const place = makeHarness();
          const model = new OpModel();
          let store = place.store();
          await acquire(store);
          for (const [index, { ops, restart }] of batches.entries()) {
            for (const op of ops) model.apply(op);
            await commit(store, ops, index + 1);
            if (!restart) continue;
            await close(store);
            store = place.store();
            await acquire(store);
          }
          const loaded = decodeAll(await loadPages(store));
          await close(store);
          place.remove();
          expect(loaded.ops).toEqual(model.ops());
          expect(loaded.revision).toBe(batches.length);
        }),
        { numRuns: histories },
      );
    });

    test("the changes of one batch apply in order, range deletes to rows of the same batch as well", async () => {
      const store = harness.store();
      await acquire(store);
      await commit(store, [leasePut("old"), keyPut("old", "on disk"), keyPut("old", "other", { databaseIndex: 1 })], 1);
      const after = keyPut("new", "put after the flush", { token: 3 });
      const ops: Op[] = [
        keyPut("new", "put before the flush"),
        { kind: "key-end", databaseIndex: 0, key: "x", leaseId: "new", token: 1, reason: "detached" },
        { kind: "flush-database", databaseIndex: 0 },
        after,
        leasePut("twice", { ttlMs: 1 }),
        leasePut("twice", { ttlMs: 2 }),
      ];
      await commit(store, ops, 2);
      await close(store);
      expect((await reload()).ops).toEqual([
        leasePut("old"),
        leasePut("twice", { ttlMs: 2 }),
        after,
        keyPut("old", "other", { databaseIndex: 1 }),
      ]);
    });

    test("flush-all leaves nothing but the revision, also of many rows", async () => {
      const store = harness.store();
      await acquire(store);
      const many = Array.from({ length: 3000 }, (_, index) => leasePut(`lease-${index}`));
      await commit(store, [...many, ...many.map((lease) => keyPut(lease.id, lease.id))], 1);
      await commit(store, [leasePut("of the same batch"), { kind: "flush-all", by: "x" }], 2);
      expect(decodeAll(await loadPages(store))).toEqual({ ops: [], revision: 2 });
      await close(store);
      expect(await reload()).toEqual({ ops: [], revision: 2 });
    });

    test("a batch of several megabytes, and a row larger than a page, arrive whole", async () => {
      const store = harness.store();
      await acquire(store);
      const ops = Array.from({ length: 5 }, (_, index) => keyPut("l", `k${index}`, { value: "v".repeat(1_000_000) }));
      await commit(store, ops, 1);
      await commit(store, [keyPut("l", "small")], 2);
      await close(store);
      expect((await reload()).ops).toEqual([...ops, keyPut("l", "small")]);
    });

    test("a load goes page by page: the next page comes only after next was called", async () => {
      const store = harness.store();
      await acquire(store);
      const many = Array.from({ length: 8000 }, (_, index) => leasePut(`lease-${String(index).padStart(5, "0")}`));
      await commit(store, many, 1);
      const pages: RowPage[] = [];
      let next: (() => void) | null = null;
      let ended = 0;
      let waiting: (() => void) | null = null;
      const something = (): Promise<void> =>
        new Promise((resolve) => {
          waiting = resolve;
        });
      let met = something();
      store.load(
        (page, goOn) => {
          pages.push(page);
          next = goOn;
          waiting?.();
        },
        () => {
          ended += 1;
          waiting?.();
        },
      );
      expect(pages.length).toBe(0);
      for (;;) {
        await met;
        if (ended > 0) break;
        const seen = pages.length;
        // Were the page after this one sent unasked, it would come in one of these turns.
        for (let turn = 0; turn < 50; turn += 1) await new Promise((resolve) => setImmediate(resolve));
        expect(pages.length).toBe(seen);
        met = something();
        const goOn: (() => void) | null = next;
        next = null;
        (goOn as (() => void) | null)?.();
      }
      expect(pages.length).toBeGreaterThan(3);
      for (const page of pages) {
        const reader = new PageReader(page);
        let rows = 0;
        while (reader.next()) rows += 1;
        expect(rows).toBe(page.rowCount);
      }
      expect(decodeAll(pages).ops).toEqual(many);
      await close(store);
    });

    test("a load that was abandoned can be begun again, and commits go on after it", async () => {
      const store = harness.store();
      await acquire(store);
      const many = Array.from({ length: 5000 }, (_, index) => leasePut(`lease-${String(index).padStart(5, "0")}`));
      await commit(store, many, 1);
      await new Promise<void>((resolve) => {
        store.load(
          () => resolve(),
          () => resolve(),
        );
      });
      expect(decodeAll(await loadPages(store)).ops).toEqual(many);
      await commit(store, [leasePut("zzz")], 2);
      expect(decodeAll(await loadPages(store)).ops).toEqual([...many, leasePut("zzz")]);
      await close(store);
    });

    test("no callback runs inside the call that takes it", async () => {
      const store = harness.store();
      let inside = true;
      const called = (resolve: (value: unknown) => void) => () => {
        expect(inside).toBe(false);
        resolve(null);
      };
      const check = async (call: (done: () => void) => void): Promise<void> => {
        inside = true;
        const done = new Promise((resolve) => call(called(resolve)));
        inside = false;
        await done;
      };
      await check((done) => store.acquire(done));
      await check((done) => store.commit(packOps([leasePut("a")], 1), done));
      await check((done) => {
        store.load((_page, next) => {
          expect(inside).toBe(false);
          next();
        }, done);
      });
      await check((done) => store.close(done));
    });

    test("one commit in flight: a second one is a programmer's error", async () => {
      const store = harness.store();
      await acquire(store);
      const first = commit(store, [leasePut("a")], 1);
      expect(() => store.commit(packOps([leasePut("b")], 2), () => undefined)).toThrow("one commit at a time");
      await first;
      await close(store);
    });

    test("the next commit may be handed over inside the callback of the last", async () => {
      const store = harness.store();
      await acquire(store);
      await new Promise<void>((resolve) => {
        const step = (revision: number): void => {
          if (revision > 20) {
            resolve();
            return;
          }
          store.commit(packOps([leasePut(`l${revision}`)], revision), (error) => {
            expect(error).toBeNull();
            step(revision + 1);
          });
        };
        step(1);
      });
      await close(store);
      expect((await reload()).ops.length).toBe(20);
    });

    test("close finishes the commit in flight", async () => {
      const store = harness.store();
      await acquire(store);
      const last = commit(store, [leasePut("last")], 1);
      const closed = close(store);
      await last;
      expect(await closed).toBeNull();
      expect((await reload()).ops).toEqual([leasePut("last")]);
    });

    test("the first failure latches: nothing of that batch or a later one is kept, and close names it", async () => {
      const before = harness.store();
      await acquire(before);
      await commit(before, [leasePut("before")], 1);
      await close(before);
      const store = harness.failingStore();
      await acquire(store);
      await expect(commit(store, [leasePut("fails"), leasePut("before", { ttlMs: 1 })], 2)).rejects.toMatchObject({
        code: "write-failed",
      });
      await expect(commit(store, [leasePut("refused")], 3)).rejects.toMatchObject({ code: "write-failed" });
      expect((await close(store))?.code).toBe("write-failed");
      expect(await reload()).toEqual({ ops: [leasePut("before")], revision: 1 });
    });

    test("one holder at a time, and the next one as soon as it closed", async () => {
      const first = harness.store();
      await acquire(first);
      if (harness.isShared !== true) {
        expect((await refusalOf(harness.store())).code).toBe("in-use");
        await commit(first, [leasePut("still works")], 1);
        await close(first);
      }
      const second = harness.store();
      await acquire(second);
      if (harness.isShared === true) {
        await expect(commit(first, [leasePut("too late")], 1)).rejects.toMatchObject({ code: "fenced" });
        await close(first);
      }
      await close(second);
      expect((await reload()).ops).toEqual(harness.isShared === true ? [] : [leasePut("still works")]);
    });
  });
}
