import { describe, expect, test } from "vitest";
import { reportOfCluster, simulateCluster, simulateOnEtcd } from "./cluster-simulation.js";

/** Several nodes on a simulated shared store. More seeds: `npm run sim:cluster -- --seed 1 --seeds 10000 [--etcd]`. */

const SEEDS = 1_000;
/** So that a failure names few seeds, and a run that hangs is seen early. */
const SEEDS_PER_TEST = 100;

/** Promises make a run several times as slow. */
const ETCD_SEEDS = 60;
const ETCD_SEEDS_PER_TEST = 20;

describe("several nodes", () => {
  for (let first = 1; first <= SEEDS; first += SEEDS_PER_TEST) {
    const last = first + SEEDS_PER_TEST - 1;
    test(`seeds ${first} to ${last} break no promise`, () => {
      for (let seed = first; seed <= last; seed += 1) {
        const result = simulateCluster(seed);
        if (result.failure !== null) expect.fail(reportOfCluster(result));
      }
    });
  }

  test("a seed replays exactly", () => {
    for (const seed of [3, 33]) expect(simulateCluster(seed).traceHash).toBe(simulateCluster(seed).traceHash);
  });

  test("seeds reach what they are for", () => {
    const sums = new Map<string, number>();
    for (let seed = 1; seed <= 40; seed += 1) {
      for (const [name, count] of Object.entries(simulateCluster(seed).counts)) {
        sums.set(name, (sums.get(name) ?? 0) + Number(count));
      }
    }
    // Every fault was there, and every kind of progress in spite of it.
    for (const [name, sum] of sums) if (name !== "journaledBatches") expect(sum, name).toBeGreaterThan(0);
    expect(sums.get("takeOvers")).toBeGreaterThan(80);
    expect(sums.get("repeatedBatches")).toBeGreaterThan(10);
    expect(sums.get("acquisitions")).toBeGreaterThan(1_000);
  });
});

describe("several nodes with the real etcd store over a simulated etcd", () => {
  for (let first = 1; first <= ETCD_SEEDS; first += ETCD_SEEDS_PER_TEST) {
    const last = first + ETCD_SEEDS_PER_TEST - 1;
    test(`seeds ${first} to ${last} break no promise`, async () => {
      for (let seed = first; seed <= last; seed += 1) {
        const result = await simulateOnEtcd(seed);
        if (result.failure !== null) expect.fail(reportOfCluster(result));
      }
    });
  }

  test("a seed replays exactly", async () => {
    const [once, again] = [await simulateOnEtcd(4), await simulateOnEtcd(4)];
    expect(once.traceHash).toBe(again.traceHash);
  });
});

/** As long as what they switch on is chosen as it was then; `test/cluster` and `test/loop` have what they found for good. */
describe("seeds that found something", () => {
  const found = [
    [177, "an answer to a take-over that was sent before the machine slept"],
    [167, "a lock that was given back for the first try of a command, and held by the second"],
    [431, "the same, after a pause of the primary"],
    [949, "the same, and the next in the queue got it"],
  ] as const;
  for (const [seed, what] of found) {
    test(`${seed}: ${what}`, () => {
      const result = simulateCluster(seed);
      if (result.failure !== null) expect.fail(reportOfCluster(result));
    });
  }

  test("2257, on etcd: the same", async () => {
    const result = await simulateOnEtcd(2_257);
    if (result.failure !== null) expect.fail(reportOfCluster(result));
  });
});
