import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { afterEach, beforeEach, describe, expect, test } from "vitest";

import { Ledger } from "../../bench/ledger.js";
import { aimsOf } from "../../bench/report/aims.js";
import type { Cell, Results, ScenarioName } from "../../bench/report/results.js";
import { includeInReadme, readResults, writeReport } from "../../bench/report/write.js";

/** Reports are made from the results alone: figures that are known in, the same figures out. */

let directory = "";
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "leasehold-bench-report-"));
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

function cell(
  part: Partial<Cell> & Pick<Cell, "scenario" | "operation" | "system">,
  perSecond: number,
  cpu = 10,
): Cell {
  const round = {
    operations: perSecond,
    opsPerSecond: perSecond,
    p50Ms: 1,
    p95Ms: 2,
    p99Ms: 3,
    cpuUsPerOp: cpu,
    mainThreadCpuUsPerOp: cpu,
    serverCores: 0.5,
    generatorCores: 0.25,
  };
  return {
    way: null,
    command: "",
    load: "closed-loop",
    leases: 0,
    connections: 50,
    pipeline: 1,
    ratePerSecond: null,
    rounds: [round, round, round],
    median: round,
    curve: [
      [50, 1],
      [99, 3],
    ],
    generatorLagP99Ms: null,
    ...part,
  };
}

const CYCLE = { scenario: "lock-cycle", operation: "acquire + release" } as const;
const HAND_OVER = { scenario: "lock-contention", operation: "hand-over" } as const;

const CELLS: readonly Cell[] = [
  cell({ ...CYCLE, system: "leasehold", way: "LOCK.*" }, 1300),
  cell({ ...CYCLE, system: "leasehold", way: "SET NX PX + EVALSHA" }, 700),
  cell({ ...CYCLE, system: "redis-memory", way: "SET NX PX + EVALSHA" }, 9000),
  cell({ ...CYCLE, system: "redis-always", way: "SET NX PX + EVALSHA" }, 1000),
  cell({ ...HAND_OVER, system: "leasehold", way: "LOCK.ACQUIRE BLOCK" }, 1000),
  cell({ ...HAND_OVER, system: "redis-memory", way: "redlock" }, 100),
  cell({ ...HAND_OVER, system: "redis-memory", way: "redis-semaphore" }, 500),
  cell({ ...HAND_OVER, system: "redis-always", way: "redlock" }, 125),
];

function resultsOf(measured: readonly ScenarioName[], cutOff: ScenarioName | null, cells = CELLS): Results {
  const wanted = cutOff === null ? measured : [...measured, cutOff];
  const ledger = new Ledger([...wanted, "million"], () => 0);
  for (const name of measured) {
    ledger.begin(name);
    ledger.end(null);
  }
  if (cutOff !== null) {
    ledger.begin(cutOff);
    ledger.cutOff("the limit of 1 minutes");
  }
  return {
    format: 2,
    startedAt: "2026-01-02T03:04:05.000Z",
    commit: "abc1234",
    durationS: 60,
    rounds: 3,
    roundsMax: 5,
    roundMs: 2000,
    quick: false,
    machine: {
      cpu: "a processor",
      cores: 2,
      memoryGiB: 4,
      kernel: "6",
      node: "20",
      redis: "7",
      etcd: null,
      disk: "ext4",
    },
    scenarios: ledger.outcomes,
    cells,
    figures: [],
    storms: [],
    notes: [],
  };
}

function aimNamed(results: Results, part: string): ReturnType<typeof aimsOf>[number] {
  const found = aimsOf(results).filter(({ name }) => name.includes(part));
  expect(found).toHaveLength(1);
  return found[0] as (typeof found)[number];
}

describe("aims of locks", () => {
  const results = resultsOf(["lock-cycle", "lock-contention"], null);

  test("of Leasehold's two ways its own counts, against a Redis that syncs", () => {
    const { reached, met } = aimNamed(results, "LOCK.ACQUIRE + LOCK.RELEASE");
    expect(reached.map(({ value }) => value)).toEqual([1.3]);
    expect(met).toBe(true);
  });

  test("hand-overs are held against each library, and the worst counts", () => {
    const memory = aimNamed(results, "polling library, Redis, no persistence");
    expect(memory.reached.map(({ label, value }) => [label, value])).toEqual([
      ["redlock", 10],
      ["redis-semaphore", 2],
    ]);
    expect(memory.met).toBe(false);
    expect(aimNamed(results, "polling library, Redis, appendfsync always").met).toBe(true);
  });

  test("scripts that write nothing are held against a Redis that writes nothing, the others against one that syncs", () => {
    const shape = { scenario: "script", pipeline: 16 } as const;
    const cells = [
      cell({ ...shape, operation: "EVALSHA extend", system: "leasehold" }, 1, 8),
      cell({ ...shape, operation: "EVALSHA extend", system: "redis-memory" }, 1, 4),
      cell({ ...shape, operation: "EVALSHA release", system: "leasehold" }, 1, 40),
      cell({ ...shape, operation: "EVALSHA release", system: "redis-memory" }, 1, 4),
      cell({ ...shape, operation: "EVALSHA release", system: "redis-always" }, 1, 8),
    ];
    const scripts = resultsOf(["script"], null, cells);
    expect(aimNamed(scripts, "EVALSHA that writes nothing : Redis").reached.map(({ value }) => value)).toEqual([2]);
    expect(aimNamed(scripts, "EVALSHA that deletes").reached.map(({ value }) => value)).toEqual([5]);
  });
});

describe("report", () => {
  test("of a run that was cut off says what is missing, and no aim of it is plainly reached", () => {
    const results = resultsOf(["lock-contention"], "lock-cycle");
    writeReport(directory, results);
    const page = readFileSync(join(directory, "results.md"), "utf8");
    expect(page).toContain("`lock-cycle` (cut off: the limit of 1 minutes)");
    expect(page).toContain("`million` (not reached)");
    expect(page).toMatch(/LOCK\.ACQUIRE \+ LOCK\.RELEASE .*\| reached, measured in part \|/);
    expect(page).toMatch(/polling library, Redis, appendfsync always .*\| reached \|/);
    expect(page).toMatch(/idle with a million leases .*\| not measured \|/);
  });

  test("is read back as it was written, and has a plot of each lock scenario", () => {
    const results = resultsOf(["lock-cycle", "lock-contention"], null);
    writeReport(directory, results);
    expect(readResults(join(directory, "results.json"))).toEqual(results);
    for (const name of ["aims", "lock-cycle", "lock-cycle-cpu", "lock-contention", "lock-contention-waits"]) {
      expect(readFileSync(join(directory, `${name}.svg`), "utf8")).not.toContain("NaN");
    }
    const plot = readFileSync(join(directory, "lock-cycle.svg"), "utf8");
    expect(plot).toContain("Leasehold: LOCK.*");
    // Leasehold's own way by the last bar, the Redis that syncs.
    expect(plot).toContain(">1.30x<");
  });
});

describe("README", () => {
  const BEGIN = "<!-- results: begin (written by --readme) -->";
  const END = "<!-- results: end -->";

  test("gets the run between its markers, keeps the rest, and nothing of an earlier run", () => {
    const path = join(directory, "README.md");
    writeFileSync(path, `# Before\n\n${BEGIN}\nan earlier run: 99.9x\n${END}\n\nafter\n`);
    const results = resultsOf(["lock-cycle", "lock-contention"], null);
    includeInReadme(path, results, "results/one");
    const once = readFileSync(path, "utf8");
    expect(once.startsWith(`# Before\n\n${BEGIN}\n`)).toBe(true);
    expect(once.endsWith(`${END}\n\nafter\n`)).toBe(true);
    expect(once).not.toContain("99.9x");
    expect(once).toContain("Run of 2026-01-02 03:04 UTC, commit abc1234");
    expect(once).toContain("](results/one/aims.svg)");
    expect(once).toMatch(/LOCK\.ACQUIRE \+ LOCK\.RELEASE .*\| >= 1\.20x \| 1\.30x \(1\.30-1\.30\) \| reached \|/);
    includeInReadme(path, results, "results/one");
    expect(readFileSync(path, "utf8")).toBe(once);
  });

  test("without markers is refused and left as it is", () => {
    const path = join(directory, "README.md");
    writeFileSync(path, "no markers\n");
    expect(() => includeInReadme(path, resultsOf([], null), "results/one")).toThrow("no place for results");
    expect(readFileSync(path, "utf8")).toBe("no markers\n");
  });

  test("of this project has the markers", () => {
    const readme = readFileSync(new URL("../../bench/README.md", import.meta.url), "utf8");
    expect(readme.split(BEGIN)).toHaveLength(2);
    expect(readme.split(END)).toHaveLength(2);
    expect(readme.indexOf(BEGIN)).toBeLessThan(readme.indexOf(END));
  });
});
