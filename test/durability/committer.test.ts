import { describe, expect, test } from "vitest";
import type { Fault } from "#src/ports.js";
import { Committer } from "#src/durability/committer.js";
import type { CommitBatch, Done, Store, StoreError } from "#src/durability/store.js";
import { StoreError as StoreErrorClass } from "#src/durability/store.js";
import { applyBatch } from "#src/durability/memory-store.js";
import { faultAt, ManualScheduler, noFault } from "./manual.js";
import { keyPut, leasePut } from "./ops.js";

/** A store whose commits end when the test says so. */
class HeldStore implements Store {
  readonly name = "held";
  readonly revisions: number[] = [];
  readonly rows = new Map<string, Uint8Array>();
  #held: { batch: CommitBatch; done: Done } | null = null;

  acquire(): void {
    throw new Error("not used");
  }

  load(): void {
    throw new Error("not used");
  }

  commit(batch: CommitBatch, done: Done): void {
    if (this.#held !== null) throw new Error("two commits in flight");
    this.revisions.push(batch.revision);
    this.#held = { batch, done };
  }

  close(): void {
    throw new Error("not used");
  }

  get inFlight(): number | null {
    return this.#held?.batch.revision ?? null;
  }

  end(error: StoreError | null = null): void {
    const held = this.#held;
    if (held === null) throw new Error("nothing is in flight");
    this.#held = null;
    if (error === null) applyBatch(this.rows, held.batch.bytes);
    held.done(error);
  }
}

function setUp(change: { fault?: Fault; batchBytesMax?: number; durableRevision?: number } = {}) {
  const scheduler = new ManualScheduler();
  const store = new HeldStore();
  const durable: number[] = [];
  const failures: StoreError[] = [];
  const committer: Committer = new Committer({
    store,
    scheduler,
    clock: scheduler.clock,
    fault: change.fault ?? noFault,
    batchBytesMax: change.batchBytesMax ?? 1_000_000,
    durableRevision: change.durableRevision ?? 0,
    onDurable: (revision) => durable.push(revision),
    onFailure: (error) => failures.push(error),
  });
  return { scheduler, store, durable, failures, committer };
}

describe("grouping", () => {
  test("all appends of one turn share a batch, and nothing leaves before the turn ends", () => {
    const { scheduler, store, committer, durable } = setUp();
    committer.append([leasePut("a")], 1);
    committer.append([leasePut("b"), keyPut("b", "k")], 2);
    expect(store.inFlight).toBeNull();
    scheduler.turn();
    expect(store.inFlight).toBe(2);
    expect(durable).toEqual([]);
    store.end();
    expect(durable).toEqual([2]);
    expect([...store.rows.keys()].sort()).toEqual(["l/a", "l/b", "m/revision", "n/\0\0bk"]);
    expect(committer.idle).toBe(true);
  });

  test("what arrives while a batch is in flight is the next batch, which leaves before the last is announced", () => {
    const order: string[] = [];
    const { scheduler, store, committer } = setUp();
    committer.append([leasePut("a")], 1);
    scheduler.turn();
    committer.append([leasePut("b")], 2);
    committer.append([leasePut("c")], 3);
    committer.drain(() => order.push("drained"));
    scheduler.run();
    expect(store.revisions).toEqual([1]);
    store.end();
    expect(store.revisions).toEqual([1, 3]);
    expect(committer.durableRevision).toBe(1);
    expect(order).toEqual([]);
    store.end();
    expect(committer.durableRevision).toBe(3);
    expect(order).toEqual(["drained"]);
  });

  test("appends made while a revision is announced leave with a batch of their own", () => {
    const scheduler = new ManualScheduler();
    const store = new HeldStore();
    const committer: Committer = new Committer({
      store,
      scheduler,
      clock: scheduler.clock,
      fault: noFault,
      batchBytesMax: 1000,
      durableRevision: 0,
      onDurable: (revision) => {
        if (revision < 3) committer.append([leasePut("again")], revision + 1);
      },
      onFailure: (error) => {
        throw error;
      },
    });
    committer.append([leasePut("first")], 1);
    for (let turn = 0; turn < 3; turn += 1) {
      scheduler.run();
      store.end();
    }
    expect(store.revisions).toEqual([1, 2, 3]);
  });

  test("an idle committer has nothing scheduled", () => {
    const { scheduler, store, committer } = setUp();
    committer.append([leasePut("a")], 1);
    scheduler.run();
    store.end();
    expect(scheduler.pending).toBe(0);
  });

  test("revisions rise, also above what the store held", () => {
    const { committer } = setUp({ durableRevision: 5 });
    expect(committer.durableRevision).toBe(5);
    expect(() => committer.append([leasePut("a")], 5)).toThrow("revisions rise");
    committer.append([leasePut("a")], 6);
    expect(() => committer.append([leasePut("b")], 6)).toThrow("revisions rise");
  });

  test("counts batches, bytes and the duration of the newest", () => {
    const { scheduler, store, committer } = setUp();
    committer.append([leasePut("a")], 1);
    const bytes = committer.openBytes;
    scheduler.turn();
    scheduler.clock.nowMs += 12;
    store.end();
    expect(committer.batchesCommitted).toBe(1);
    expect(committer.bytesCommitted).toBeGreaterThan(bytes);
    expect(committer.lastCommitMs).toBe(12);
  });
});

describe("saturation", () => {
  test("a full open batch is saturated until it leaves, then room is announced once", () => {
    const { scheduler, store, committer } = setUp({ batchBytesMax: 100 });
    let room = 0;
    committer.append([leasePut("a")], 1);
    scheduler.turn();
    committer.append([leasePut("b", { label: "x".repeat(200) })], 2);
    expect(committer.saturated).toBe(true);
    committer.onRoom(() => {
      room += 1;
    });
    scheduler.run();
    expect(room).toBe(0);
    store.end();
    expect(committer.saturated).toBe(false);
    expect(room).toBe(1);
    store.end();
    expect(room).toBe(1);
  });

  test("asking for room when there is room is answered, but not inside the call", () => {
    const { scheduler, committer } = setUp();
    let room = 0;
    committer.onRoom(() => {
      room += 1;
    });
    expect(room).toBe(0);
    scheduler.run();
    expect(room).toBe(1);
  });
});

describe("drain", () => {
  test("an idle committer drains at once, but not inside the call", () => {
    const { scheduler, committer } = setUp();
    let drained = 0;
    committer.drain(() => {
      drained += 1;
    });
    expect(drained).toBe(0);
    scheduler.run();
    expect(drained).toBe(1);
  });

  test("waits for what was appended before it, not for what comes later", () => {
    const { scheduler, store, committer } = setUp();
    let drained = 0;
    committer.append([leasePut("a")], 1);
    committer.drain(() => {
      drained += 1;
    });
    scheduler.turn();
    committer.append([leasePut("b")], 2);
    expect(drained).toBe(0);
    store.end();
    expect(drained).toBe(1);
    expect(committer.idle).toBe(false);
  });
});

describe("failure", () => {
  const broken = new StoreErrorClass("write-failed", "IO error: No space left on device");

  test("latches: one report, nothing acknowledged, drained or announced afterwards", () => {
    const { scheduler, store, committer, durable, failures } = setUp({ batchBytesMax: 1 });
    const called: string[] = [];
    committer.append([leasePut("a")], 1);
    scheduler.turn();
    committer.append([leasePut("b")], 2);
    committer.drain(() => called.push("drain"));
    committer.onRoom(() => called.push("room"));
    store.end(broken);
    scheduler.run();
    expect(failures).toEqual([broken]);
    expect(durable).toEqual([]);
    expect(called).toEqual([]);
    expect(store.revisions).toEqual([1]);
    expect(committer.durableRevision).toBe(0);
    expect(() => committer.append([leasePut("c")], 3)).toThrow("ended");
  });

  test.each(["commit:before-write", "commit:after-write", "commit:before-release"] as const)(
    "a fault at %s is a failure of the batch: its revision is not announced",
    (point) => {
      const { scheduler, store, committer, durable, failures } = setUp({ fault: faultAt(point) });
      committer.append([leasePut("a")], 1);
      scheduler.turn();
      if (store.inFlight !== null) store.end();
      expect(durable).toEqual([]);
      expect(failures.map((error) => [error.code, error.message])).toEqual([["write-failed", `fault at ${point}`]]);
    },
  );

  test("after stop a batch in flight ends in silence", () => {
    const { scheduler, store, committer, durable, failures } = setUp();
    committer.append([leasePut("a")], 1);
    scheduler.turn();
    committer.stop();
    store.end(broken);
    expect(durable).toEqual([]);
    expect(failures).toEqual([]);
  });

  test("a batch that was stopped before it left never leaves", () => {
    const { scheduler, store, committer } = setUp();
    committer.append([leasePut("a")], 1);
    committer.stop();
    scheduler.run();
    expect(store.revisions).toEqual([]);
  });
});
