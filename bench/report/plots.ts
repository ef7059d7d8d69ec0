import { count, groupOf } from "./aims.js";
import { WAYS_OF_GRANT } from "./cluster-aims.js";
import { aimChart, barChart, percentileChart, timeChart } from "./charts.js";
import type { Aim, Cell, Results, Round, Storm } from "./results.js";
import { grouped } from "../measure/statistics.js";
import { contenderLabel, figure } from "./tables.js";

/** Every plot of a run: file name to SVG text. What was not measured has no plot. */
export function plotsOf(results: Results, aims: readonly Aim[]): Map<string, string> {
  const plots = new Map<string, string>();
  const add: AddPlot = (name, cells, draw) => {
    if (cells.length > 0) plots.set(`${name}.svg`, draw(cells));
  };
  const closed = results.cells.filter((cell) => cell.load !== "open-loop");
  const of = (scenario: Cell["scenario"]): Cell[] => closed.filter((cell) => cell.scenario === scenario);

  // Nothing is a multiple of nought.
  const measured = aims.filter((aim) => aim.met !== null && aim.target !== 0);
  if (measured.length > 0) plots.set("aims.svg", aimsPlot(measured));
  const pipelined = (cell: Cell): string => `P=${cell.pipeline}, ${count(cell.leases, "lease")}`;
  add("keepalive-throughput", of("keepalive"), (cells) =>
    bars("Keep-alives per second, 50 connections", "per second", cells, "opsPerSecond", pipelined),
  );
  add("keepalive-cpu", of("keepalive"), (cells) =>
    bars("CPU time of the server per keep-alive", "us", cells, "cpuUsPerOp", pipelined),
  );
  add("keepalive-durable", of("keepalive-durable"), (cells) =>
    bars(
      "Keep-alives per second against a Redis that syncs",
      "per second",
      cells,
      "opsPerSecond",
      (cell) => `c=${cell.connections}, ${count(cell.leases, "lease")}`,
    ),
  );
  const clients = (cell: Cell): string => count(cell.connections, "client");
  const connected = (cell: Cell): string => count(cell.connections, "connection");
  add("grant-throughput", of("grant"), (cells) =>
    bars("Durable grants per second, one key each", "per second", cells, "opsPerSecond", connected),
  );
  add("grant-cpu", of("grant"), (cells) =>
    bars("CPU time of the server per durable grant", "us", cells, "cpuUsPerOp", connected),
  );
  add("lock-cycle", of("lock-cycle"), (cells) =>
    bars("Acquire and release per second, each client its own lock", "per second", cells, "opsPerSecond", connected),
  );
  add("lock-cycle-cpu", of("lock-cycle"), (cells) =>
    bars("CPU time of the server per acquire and release", "us", cells, "cpuUsPerOp", connected),
  );
  add("lock-contention", of("lock-contention"), (cells) =>
    bars("Hand-overs per second of one lock that fifty clients want", "per second", cells, "opsPerSecond", clients),
  );
  add("lock-contention-waits", of("lock-contention"), (cells) =>
    percentileChart(
      "How long a client waited for the lock",
      cells.map((cell) => ({ label: contenderLabel(cell), points: cell.curve })),
    ),
  );
  add("script-cpu", of("script"), (cells) =>
    bars("CPU time of the server per EVALSHA", "us", cells, "cpuUsPerOp", (cell) => cell.operation),
  );
  add("etcd-cpu", of("etcd"), (cells) =>
    bars("CPU time of the server per operation, against etcd", "us", cells, "cpuUsPerOp", (cell) =>
      [
        cell.operation,
        ...(cell.leases === 0 ? [] : [count(cell.leases, "lease")]),
        ...(cell.pipeline === 1 ? [] : [`${cell.pipeline} at once`]),
      ].join(", "),
    ),
  );
  addCluster(of("cluster"), add);
  addPercentiles(plots, results.cells);
  for (const storm of results.storms) plots.set(`storm-${storm.name}.svg`, stormPlot(storm));
  return plots;
}

function isOneOf(way: string | null, { ours, theirs }: { readonly ours: string; readonly theirs: string }): boolean {
  return way === ours || way === theirs;
}

type AddPlot = (name: string, cells: readonly Cell[], draw: (cells: readonly Cell[]) => string) => void;

function addCluster(cells: readonly Cell[], add: AddPlot): void {
  const grants = cells.filter((cell) => cell.operation === "grant" && isOneOf(cell.way, WAYS_OF_GRANT.withKey));
  const connected = (cell: Cell): string => count(cell.connections, "connection");
  add("cluster-grant", grants, (shown) =>
    bars("Durable grants per second, one key each", "per second", shown, "opsPerSecond", connected),
  );
  add("cluster-grant-cpu", grants, (shown) =>
    bars("CPU time per durable grant, the node's etcd included", "us", shown, "cpuUsPerOp", connected),
  );
  const keepAlives = cells.filter(({ operation }) => operation === "keep-alive");
  add("cluster-keepalive", keepAlives, (shown) =>
    bars("Keep-alives per second, 50 connections", "per second", shown, "opsPerSecond", (cell) => `P=${cell.pipeline}`),
  );
}

/** One group of bars per load, one bar per contender; below it the first one's median by that of the last. */
function bars(
  title: string,
  unit: string,
  cells: readonly Cell[],
  of: keyof Round,
  label: (cell: Cell) => string,
): string {
  const contenders = [...new Set(cells.map(contenderLabel))];
  const groups = [...grouped(cells, groupOf).values()].map((group) => {
    const values = contenders.map(
      (contender) => group.find((cell) => contenderLabel(cell) === contender)?.median[of] ?? Number.NaN,
    );
    const ours = values[0] ?? Number.NaN;
    const theirs = values.findLast(Number.isFinite) ?? Number.NaN;
    const [first] = group;
    return {
      label: first === undefined ? "" : label(first),
      values,
      ratio: Number.isFinite(ours / theirs) ? `${figure(ours / theirs)}x` : "",
    };
  });
  return barChart(title, unit, contenders, groups);
}

function addPercentiles(plots: Map<string, string>, cells: readonly Cell[]): void {
  const open = cells.filter((cell) => cell.load === "open-loop" && cell.curve.length > 0);
  for (const group of grouped(open, plotOfLatency).values()) {
    const [first] = group;
    if (first === undefined) continue;
    const bySize = first.scenario === "million";
    const set = first.leases === 0 || bySize ? "" : `, ${count(first.leases, "lease")}`;
    const rate = (first.ratePerSecond ?? 0).toLocaleString("en");
    plots.set(
      `latency-${plotOfLatency(first)}.svg`,
      percentileChart(
        `${first.operation} latency at ${rate}/s${set}`,
        group.map((cell) => ({
          label: bySize ? count(cell.leases, "lease") : contenderLabel(cell),
          points: cell.curve,
        })),
      ),
    );
  }
}

function plotOfLatency(cell: Cell): string {
  if (cell.scenario === "million") return "million";
  const set = cell.leases === 0 ? "" : `-${cell.leases}`;
  return `${cell.operation}${set}-at-${cell.ratePerSecond ?? 0}`;
}

function stormPlot(storm: Storm): string {
  const second = (unixMs: number): number => (unixMs - storm.dueAtUnixMs) / 1000;
  const end = storm.remaining.at(-1)?.[0] ?? storm.dueAtUnixMs;
  const slots = storm.slots.filter((slot) => slot.startUnixMs <= end + 1000);
  const middle = (slots[1]?.startUnixMs ?? 0) - (slots[0]?.startUnixMs ?? 0);
  const points = (of: (slot: (typeof slots)[number]) => number): (readonly [number, number])[] =>
    slots.map((slot) => [second(slot.startUnixMs + middle / 2), of(slot)] as const);
  return timeChart(`All due at once: ${storm.label}`, [
    {
      label: "leases left",
      unit: "leases",
      logarithmic: false,
      curves: [{ label: "leases left", points: storm.remaining.map(([at, left]) => [second(at), left] as const) }],
    },
    {
      label: "keep-alives of other leases",
      unit: "ms",
      logarithmic: true,
      curves: [
        { label: "keep-alives of other leases: p50", points: points((slot) => slot.p50Ms) },
        { label: "p99", points: points((slot) => slot.p99Ms) },
        { label: "slowest", points: points((slot) => slot.maxMs) },
      ],
    },
  ]);
}

function aimsPlot(aims: readonly Aim[]): string {
  return aimChart(
    "Aims: right of the line is reached",
    aims.flatMap((aim) => {
      const shares = aim.reached.map(({ value }) =>
        aim.comparison === ">=" ? value / aim.target : aim.target / value,
      );
      const worst = Math.min(...shares);
      const shownAt = aim.reached[shares.indexOf(worst)]?.value ?? Number.NaN;
      return [
        {
          label: aim.name,
          text: `${figure(shownAt)} (aim ${aim.comparison} ${aim.target} ${aim.unit === "x" ? "times" : aim.unit})`,
          share: worst,
          met: aim.met === true,
        },
      ];
    }),
  );
}
