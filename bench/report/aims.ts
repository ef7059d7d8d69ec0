import { ratioOfRounds, type RatioOfRounds } from "../measure/statistics.js";
import type { SystemName } from "../systems/system.js";
import type { Aim, Cell, Results, Round, ScenarioName } from "./results.js";

/**
 * What this server aims at, and what a run reached. An aim that is measured over several sizes is met when it is met at each
 * of them; one that was not measured is neither met nor missed.
 */

type Comparison = Aim["comparison"];
type Reached = Aim["reached"][number];

export function aimsOf(results: Pick<Results, "cells" | "figures" | "quick">): Aim[] {
  const { cells } = results;
  return [
    ...[
      { pipeline: 1, throughput: 0.9, cpu: 1.5 },
      { pipeline: 16, throughput: 1.0, cpu: 1.0 },
      { pipeline: 100, throughput: 1.2, cpu: 0.8 },
    ].flatMap(({ pipeline, throughput, cpu }) => {
      const at = (of: Figure): Reached[] =>
        ratios(cells, "keepalive", "redis-memory", of, (cell) => cell.pipeline === pipeline, byLeases);
      const name = `KEEPALIVE : in-memory PEXPIRE, 50 connections, P=${pipeline}`;
      return [
        aim(`${name}, throughput`, ">=", throughput, "x", at("opsPerSecond")),
        aim(`${name}, CPU per operation`, "<=", cpu, "x", at("cpuUsPerOp")),
      ];
    }),
    ...[
      { connections: 1, target: 5 },
      { connections: 50, target: 2 },
    ].map(({ connections, target }) =>
      aim(
        `KEEPALIVE : PEXPIRE under appendfsync always, ${count(connections, "connection")}, throughput`,
        ">=",
        target,
        "x",
        ratios(
          cells,
          "keepalive-durable",
          "redis-always",
          "opsPerSecond",
          (cell) => cell.connections === connections,
          byLeases,
        ),
      ),
    ),
    aim(
      "KEEPALIVE with the data on disk : on tmpfs, throughput",
      ">=",
      0.95,
      "x",
      ratios(
        cells,
        "tmpfs",
        "leasehold-tmpfs",
        "opsPerSecond",
        () => true,
        (cell) => `P=${cell.pipeline}`,
      ),
    ),
    ...[
      { connections: 1, target: 0.7 },
      { connections: 50, target: 1.0 },
      { connections: 500, target: 1.2 },
    ].map(({ connections, target }) =>
      aim(
        `GRANT with one key : SET NX PX under appendfsync always, ${count(connections, "connection")}, throughput`,
        ">=",
        target,
        "x",
        ratios(
          cells,
          "grant",
          "redis-always",
          "opsPerSecond",
          (cell) => cell.connections === connections && cell.load === "redis-benchmark",
          () => "",
        ),
      ),
    ),
    ...ofLocks(cells),
    ...againstEtcd(cells),
    // A quick run has a tenth of them, and what the process itself needs would be counted ten times over.
    ...ofTheMillion(results.quick ? { cells: [], figures: [] } : results),
  ];
}

function ofLocks(cells: readonly Cell[]): Aim[] {
  const at = (scenario: ScenarioName, figure: Figure, where: (ours: Cell, theirs: Cell) => boolean): Reached[] =>
    cells
      .filter((ours) => ours.scenario === scenario && ours.system === "leasehold")
      .flatMap((ours) =>
        cells
          .filter((theirs) => theirs.system !== "leasehold" && groupOf(theirs) === groupOf(ours) && where(ours, theirs))
          .map((theirs) => reachedBy(ours, theirs, figure, theirs.way ?? "")),
      );
  const cycles = (connections: number): Reached[] =>
    at(
      "lock-cycle",
      "opsPerSecond",
      (ours, theirs) =>
        ours.way?.startsWith("LOCK.") === true && ours.connections === connections && theirs.system === "redis-always",
    ).map((each) => ({ ...each, label: "" }));
  const handOvers = (system: SystemName): Reached[] =>
    at("lock-contention", "opsPerSecond", (_, theirs) => theirs.system === system);
  const scriptCpu = (operation: Cell["operation"], system: SystemName): Reached[] =>
    at("script", "cpuUsPerOp", (ours, theirs) => ours.operation === operation && theirs.system === system).map(
      (each) => ({ ...each, label: operation.replace("EVALSHA ", "") }),
    );
  const cycle = "LOCK.ACQUIRE + LOCK.RELEASE : SET NX PX + release script under appendfsync always";
  const handOver = "hand-over of one lock among 50 clients : a polling library on Redis";
  return [
    aim(`${cycle}, 50 connections, cycles`, ">=", 1.2, "x", cycles(50)),
    aim(`${handOver} without persistence`, ">=", 5, "x", handOvers("redis-memory")),
    aim(`${handOver} under appendfsync always`, ">=", 5, "x", handOvers("redis-always")),
    aim("CPU per EVALSHA that writes nothing : Redis without persistence", "<=", 3, "x", [
      ...scriptCpu("EVALSHA extend", "redis-memory"),
      ...scriptCpu("EVALSHA release, refused", "redis-memory"),
    ]),
    aim(
      "CPU per EVALSHA that releases : Redis under appendfsync always",
      "<=",
      3,
      "x",
      scriptCpu("EVALSHA release", "redis-always").map((each) => ({ ...each, label: "" })),
    ),
  ];
}

function againstEtcd(cells: readonly Cell[]): Aim[] {
  const at = (operation: Cell["operation"], label: (cell: Cell) => string): Reached[] =>
    ratios(cells, "etcd", "etcd", "cpuUsPerOp", (cell) => cell.operation === operation, label).map(inverse);
  return [
    aim("etcd's CPU per grant : that of GRANT", ">=", 5, "x", at("grant", byDepth)),
    aim(
      "etcd's CPU per keep-alive : that of KEEPALIVE",
      ">=",
      4,
      "x",
      at("keep-alive", (cell) => `${byLeases(cell)}, ${byDepth(cell)}`),
    ),
  ];
}

function ofTheMillion(results: Pick<Results, "cells" | "figures">): Aim[] {
  const figures = (names: readonly (readonly [string, string])[]): Reached[] =>
    names.flatMap(([name, label]) =>
      results.figures
        .filter((figure) => figure.scenario === "million" && figure.name === name)
        .map((figure) => ({ label, value: figure.value, range: null })),
    );
  const bytes = (set: string): Reached[] =>
    figures([
      [`bytes-per-lease/${set}`, "once granted"],
      [`bytes-per-lease-restarted/${set}`, "after a start from disk"],
    ]);
  const bothSets = (what: string): Reached[] =>
    figures([
      [`${what}/without-key`, "without keys"],
      [`${what}/with-key`, "with keys"],
    ]);
  return [
    aim("resident memory of one of a million leases without keys", "<=", 350, "B", bytes("without-key")),
    aim("resident memory of one of a million leases with one key", "<=", 650, "B", bytes("with-key")),
    aim("keep-alive p99 with a million leases : with 10,000", "<=", 2, "x", largeAgainstSmall(results.cells)),
    aim("a million leases: from process start to serving", "<=", 5, "s", bothSets("start")),
    aim("a million leases due at once: gone within", "<=", 20, "s", bothSets("storm-gone")),
    aim("and keep-alive p99 of other leases, worst half second", "<", 50, "ms", bothSets("storm-p99")),
    aim("idle with a million leases", "<", 1, "%", bothSets("idle-cpu")),
  ];
}

/** The two cells of `million` differ in the size of their sets, not in their system. */
function largeAgainstSmall(cells: readonly Cell[]): Reached[] {
  const ofMillion = cells.filter((cell) => cell.scenario === "million").toSorted((a, b) => b.leases - a.leases);
  const [large, small] = ofMillion;
  if (large === undefined || small === undefined) return [];
  return [reachedBy(large, small, "p99Ms", "")];
}

type Figure = keyof Round;

/** Leasehold's figure by the other system's, for each pair of cells that differ in nothing else. */
function ratios(
  cells: readonly Cell[],
  scenario: ScenarioName,
  other: SystemName,
  figure: Figure,
  where: (cell: Cell) => boolean,
  label: (cell: Cell) => string,
): Reached[] {
  const reached: Reached[] = [];
  for (const ours of cells) {
    if (ours.scenario !== scenario || ours.system !== "leasehold" || !where(ours)) continue;
    const theirs = cells.find((cell) => cell.system === other && groupOf(cell) === groupOf(ours));
    if (theirs !== undefined) reached.push(reachedBy(ours, theirs, figure, label(ours)));
  }
  return reached;
}

function reachedBy(ours: Cell, theirs: Cell, figure: Figure, label: string): Reached {
  const range = ratioOfRounds(
    ours.rounds.map((round) => round[figure]),
    theirs.rounds.map((round) => round[figure]),
  );
  return { label, value: range.median, range };
}

function inverse({ label, value, range }: Reached): Reached {
  const inverted: RatioOfRounds | null =
    range === null ? null : { median: 1 / range.median, lowest: 1 / range.highest, highest: 1 / range.lowest };
  return { label, value: 1 / value, range: inverted };
}

/** The same for cells that were measured in alternation. */
export function groupOf(cell: Cell): string {
  const { scenario, operation, load, leases, connections, pipeline, ratePerSecond } = cell;
  return [scenario, operation, load, leases, connections, pipeline, ratePerSecond ?? ""].join("|");
}

function aim(name: string, comparison: Comparison, target: number, unit: string, reached: Reached[]): Aim {
  const met = reached.length === 0 ? null : reached.every(({ value }) => holds(value, comparison, target));
  return { name, comparison, target, unit, reached, met };
}

function holds(value: number, comparison: Comparison, target: number): boolean {
  switch (comparison) {
    case ">=":
      return value >= target;
    case "<=":
      return value <= target;
    case "<":
      return value < target;
  }
}

function byDepth(cell: Cell): string {
  return cell.pipeline === 1 ? "one by one" : `${cell.pipeline} at once`;
}

function byLeases(cell: Cell): string {
  return count(cell.leases, "lease");
}

export function count(number: number, noun: string): string {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}
