import { EXCLUSIVE } from "#src/engine/draft.js";
import { describe, expect, test } from "vitest";
import { BatchWriter } from "#src/durability/batch.js";
import { encodeMeta, encodeOp } from "#src/durability/schema.js";
import type { CommitBatch } from "#src/durability/store.js";
import { SimHost } from "./sim-host.js";
import {
  CALM_DISK_TIMES,
  CORRECT_DISK,
  NO_DISK_FAULTS,
  SimDisk,
  SimStore,
  type DiskBugs,
  type DiskFaults,
} from "./sim-store.js";
import { World } from "./sim-world.js";

/** The simulated disk itself: it forgets what was not synced, and nothing else; with its bugs on it does worse. */

function setting(seed: number, bugs: Partial<DiskBugs> = {}, faults: Partial<DiskFaults> = {}) {
  const world = new World(seed);
  const disk = new SimDisk(world, CALM_DISK_TIMES, { ...NO_DISK_FAULTS, ...faults }, { ...CORRECT_DISK, ...bugs });
  const open = () => {
    const host = new SimHost(world, {
      clockRate: 1,
      clockOriginMs: 0,
      timerEarlyMsMax: 0,
      timerLateMsMean: 0,
      pauseChance: 0,
      pauseMsMax: 0,
      wallOffsetMs: () => 0,
      onCrash: () => undefined,
    });
    return { host, store: new SimStore(disk, host, "incarnation", { point: () => undefined }) };
  };
  const run = (): void => {
    while (world.step());
  };
  const acquire = () => {
    const { host, store } = open();
    let answer: unknown = null;
    store.acquire((error, identity) => {
      answer = error ?? identity;
    });
    run();
    return { host, store, answer };
  };
  return { world, disk, run, acquire };
}

function batchOf(revision: number): CommitBatch {
  const writer = new BatchWriter();
  const lease = { kind: "lease-put", label: null, request: null, grantedAtUnixMs: 0, owner: "" } as const;
  encodeOp({ ...lease, id: `lease-${revision}`, ttlMs: 1000, token: revision }, writer);
  const key = { kind: "key-put", databaseIndex: 0, key: "key", value: "v", mode: EXCLUSIVE, sinceUnixMs: 0 } as const;
  encodeOp({ ...key, leaseId: `lease-${revision}`, token: revision }, writer);
  encodeMeta(revision, writer);
  return writer.batch(revision);
}

const leasesOn = (disk: SimDisk): string[] => [...disk.rows.keys()].filter((row) => row.startsWith("l/"));

describe("the simulated disk", () => {
  test("what was acknowledged survives every crash", () => {
    for (let seed = 1; seed <= 50; seed += 1) {
      const { disk, run, acquire } = setting(seed);
      const { host, store } = acquire();
      let isAcknowledged = false;
      store.commit(batchOf(1), (error) => {
        isAcknowledged = error === null;
      });
      run();
      host.kill();
      disk.crash();
      expect(isAcknowledged).toBe(true);
      expect(leasesOn(disk)).toEqual(["l/lease-1"]);
      expect(acquire().answer).toMatchObject({ revision: 1, epoch: 2, incarnation: "incarnation" });
    }
  });

  test("a batch in flight at a crash is there whole or not at all, and both happen", () => {
    const outcomes = new Set<number>();
    for (let seed = 1; seed <= 50; seed += 1) {
      const { world, disk, acquire } = setting(seed);
      const { host, store } = acquire();
      store.commit(batchOf(1), () => expect.fail("a dead process hears nothing"));
      world.step();
      host.kill();
      disk.crash();
      while (world.step());
      const rows = [...disk.rows.keys()].filter((row) => !row.startsWith("m/")).length;
      expect([0, 2]).toContain(rows);
      outcomes.add(rows);
    }
    expect(outcomes).toEqual(new Set([0, 2]));
  });

  test("after a failure every commit fails, and the outcome of the first is open", () => {
    const outcomes = new Set<number>();
    for (let seed = 1; seed <= 50; seed += 1) {
      const { disk, run, acquire } = setting(seed, {}, { commitFailChance: 1 });
      const { store } = acquire();
      const errors: (string | undefined)[] = [];
      for (const revision of [1, 2]) {
        store.commit(batchOf(revision), (error) => errors.push(error?.code));
        run();
        disk.faults = NO_DISK_FAULTS;
      }
      expect(errors).toEqual(["write-failed", "write-failed"]);
      expect(leasesOn(disk)).not.toContain("l/lease-2");
      outcomes.add(leasesOn(disk).length);
    }
    expect(outcomes).toEqual(new Set([0, 1]));
  });

  test("a second process is refused while the first lives", () => {
    const { disk, acquire } = setting(1);
    const first = acquire();
    expect(acquire().answer).toMatchObject({ code: "in-use" });
    first.host.kill();
    disk.crash();
    expect(acquire().answer).toMatchObject({ epoch: 2 });
  });

  test("with its bugs it loses what it acknowledged, and tears a batch apart", () => {
    let lost = 0;
    let torn = 0;
    for (let seed = 1; seed <= 50; seed += 1) {
      const { world, disk, acquire } = setting(seed, { acknowledgesBeforeSync: true, tearsBatches: true });
      const { host, store } = acquire();
      const acknowledged: number[] = [];
      store.commit(batchOf(1), () => acknowledged.push(1));
      while (acknowledged.length === 0) world.step();
      host.kill();
      disk.crash();
      const rows = [...disk.rows.keys()].filter((row) => !row.startsWith("m/")).length;
      if (rows < 2) lost += 1;
      if (rows === 1) torn += 1;
    }
    expect(lost).toBeGreaterThan(0);
    expect(torn).toBeGreaterThan(0);
  });
});
