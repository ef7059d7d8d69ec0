import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import * as fc from "fast-check";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { readWitness, WITNESS_SLOTS, WitnessFile, WitnessSlots } from "#src/durability/rocksdb/witness.js";
import { ManualScheduler, noFault } from "../manual.js";
import { leasePut } from "../ops.js";
import { acquire, close, commit, rocksStore, temporaryDirectory } from "../real.js";

let directory: ReturnType<typeof temporaryDirectory>;
let path: string;

beforeEach(() => {
  directory = temporaryDirectory("memory");
  path = join(directory.path, "WITNESS");
});

afterEach(() => directory.remove());

describe("the witness file", () => {
  test("golden text of a slot: what is on disk stays readable", () => {
    WitnessFile.create(path, { incarnation: "abc123", revision: 42 }, noFault).close();
    const text = readFileSync(path, "latin1");
    expect(text.length).toBe(WITNESS_SLOTS * 4096);
    expect(text.slice(0, 100).trimEnd()).toMatchInlineSnapshot(
      `"leasehold-witness abc123 0000000000000042 1e9e175891caf6ed"`,
    );
    for (let slot = 1; slot < WITNESS_SLOTS; slot += 1) {
      expect(text.slice(slot * 4096, (slot + 1) * 4096)).toBe(text.slice(0, 4096));
    }
  });

  test("the newest readable slot counts, up to the largest revision there is", () => {
    const file = WitnessFile.create(path, { incarnation: "abc123", revision: 42 }, noFault);
    file.write(1, 43);
    file.write(2, Number.MAX_SAFE_INTEGER);
    file.close();
    const record = { incarnation: "abc123", revision: Number.MAX_SAFE_INTEGER };
    expect(readWitness(path)).toEqual({ record, unreadableSlots: 0 });
  });

  test("a slot with any flipped bit in its record is not read; the others are", () => {
    const file = WitnessFile.create(path, { incarnation: "abc123", revision: 42 }, noFault);
    file.write(1, 99);
    file.close();
    const sound = readFileSync(path);
    const recordBytes = sound.toString("latin1", 4096, 4096 + 128).trimEnd().length;
    for (let at = 0; at < recordBytes; at += 1) {
      const bytes = Buffer.from(sound);
      bytes[4096 + at] = (bytes[4096 + at] ?? 0) ^ 4;
      writeFileSync(path, bytes);
      expect(readWitness(path)).toEqual({ record: { incarnation: "abc123", revision: 42 }, unreadableSlots: 1 });
    }
  });

  test("without one readable slot it is damaged; without the file there is none", () => {
    expect(readWitness(path)).toBeNull();
    writeFileSync(path, "x".repeat(3 * 4096));
    expect(() => readWitness(path)).toThrow("no slot matches its checksum");
  });
});

test("slots: at any moment one is synced and neither written nor being synced", () => {
  // A model of the disk: each slot holds a revision, and a slot that was written since its last sync is torn by a power loss.
  fc.assert(
    fc.property(fc.array(fc.constantFrom("commit", "begin", "end"), { maxLength: 60 }), (steps) => {
      const slots = new WitnessSlots();
      const onDisk = [0, 0, 0];
      const torn = [false, false, false];
      let revision = 0;
      let newestSynced = 0;
      let unsynced = false;
      let syncing: { slot: number; revision: number } | null = null;
      for (const step of steps) {
        if (step === "commit") {
          revision += 1;
          torn[slots.writing] = true;
          onDisk[slots.writing] = revision;
          slots.noteWritten();
          unsynced = true;
        } else if (step === "begin" && !slots.syncInProgress && unsynced) {
          unsynced = false;
          syncing = { slot: slots.writing, revision };
          slots.beginSync();
        } else if (step === "end" && syncing !== null) {
          slots.endSync();
          torn[syncing.slot] = false;
          newestSynced = syncing.revision;
          syncing = null;
        }
        const readable = onDisk.filter((_, slot) => torn[slot] === false);
        expect(Math.max(...readable)).toBeGreaterThanOrEqual(newestSynced);
      }
    }),
    { numRuns: 500 },
  );
});

test("slots: nothing is synced that holds no new revision", () => {
  const slots = new WitnessSlots();
  expect(() => slots.beginSync()).toThrow("something to sync");
  slots.noteWritten();
  slots.beginSync();
  slots.endSync();
  expect(() => slots.beginSync()).toThrow("something to sync");
});

describe("a store's witness", () => {
  const slotRevisions = (): number[] => {
    const text = readFileSync(path, "latin1");
    return [0, 1, 2].map((slot) => Number(text.slice(slot * 4096).split(" ")[2]));
  };

  test("has each revision before it is acknowledged, and moves to another slot once a second while there are commits", async () => {
    const time = new ManualScheduler();
    const store = rocksStore(directory.path, {
      scheduler: { soon: setImmediate, after: (delayMs, callback) => time.after(delayMs, callback) },
    });
    await acquire(store);
    expect(slotRevisions()).toEqual([0, 0, 0]);
    await commit(store, [leasePut("a")], 1);
    expect(slotRevisions()).toEqual([1, 0, 0]);
    await commit(store, [leasePut("a")], 2);
    time.advance(999);
    await commit(store, [leasePut("a")], 3);
    expect(slotRevisions()).toEqual([3, 0, 0]);
    time.advance(1); // The sync begins; the slot that it covers is not written again.
    await commit(store, [leasePut("a")], 4);
    expect(slotRevisions()).toEqual([3, 4, 0]);
    // The sync's end comes from libuv's pool in its own time; a close waits for it.
    await close(store);
    expect(Math.max(...slotRevisions())).toBe(4);
  });

  test("a timer that fires during a commit syncs after it, once", async () => {
    const time = new ManualScheduler();
    let timers = 0;
    const store = rocksStore(directory.path, {
      scheduler: {
        soon: setImmediate,
        after: (delayMs, callback) => {
          timers += 1;
          return time.after(delayMs, callback);
        },
      },
    });
    await acquire(store);
    await commit(store, [leasePut("a")], 1);
    const second = commit(store, [leasePut("a")], 2);
    time.advance(1000);
    await second;
    expect(timers).toBe(1);
    await commit(store, [leasePut("a")], 3);
    expect(slotRevisions()).toEqual([2, 3, 0]);
    await close(store);
  });

  test("no timer is armed on a store without commits, and none is left after close", async () => {
    const armed: number[] = [];
    let cancelled = 0;
    const store = rocksStore(directory.path, {
      scheduler: {
        soon: setImmediate,
        after: (delayMs) => {
          armed.push(delayMs);
          return { cancel: () => (cancelled += 1) };
        },
      },
    });
    await acquire(store);
    expect(armed).toEqual([]);
    await commit(store, [leasePut("a")], 1);
    await commit(store, [leasePut("b")], 2);
    expect(armed).toEqual([1000]);
    await close(store);
    expect(cancelled).toBe(1);
  });
});
