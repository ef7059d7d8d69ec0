import { SYSTEM_LABELS } from "../systems/system.js";
import { count } from "./aims.js";
import type { Aim, Cell, Figure, ScenarioOutcome } from "./results.js";

/** Rows for people, the same for the terminal and for Markdown. The first row is the head. */
export type Table = readonly (readonly string[])[];

export function aimsTable(aims: readonly Aim[]): Table {
  return [
    ["what", "aim", "reached", ""],
    ...aims.map((aim) => [
      aim.name,
      `${aim.comparison} ${shown(aim.target, aim.unit)}`,
      aim.reached.map((each) => reachedText(each, aim.unit)).join("; ") || "-",
      verdict(aim),
    ]),
  ];
}

function verdict({ met, complete }: Aim): string {
  if (met === null) return "not measured";
  return `${met ? "reached" : "MISSED"}${complete ? "" : ", measured in part"}`;
}

/** What became of each scenario. */
export function scenariosTable(scenarios: readonly ScenarioOutcome[]): Table {
  return [
    ["scenario", "", "seconds", "why"],
    ...scenarios.map(({ name, state, durationS, reason }) => [
      name,
      state,
      Math.round(durationS).toString(),
      reason?.replaceAll(/\s+/g, " ") ?? "",
    ]),
  ];
}

function reachedText({ label, value, range }: Aim["reached"][number], unit: string): string {
  const spread = range === null ? "" : ` (${figure(range.lowest)}-${figure(range.highest)})`;
  return `${label === "" ? "" : `${label}: `}${shown(value, unit)}${spread}`;
}

export function cellsTable(cells: readonly Cell[]): Table {
  return [
    [
      "what",
      "system",
      "per second",
      "p50 ms",
      "p95 ms",
      "p99 ms",
      "CPU us/op",
      "main thread",
      "cores: server",
      "load",
      "rounds",
    ],
    ...cells.map((cell) => [
      whatOf(cell),
      contenderLabel(cell),
      Math.round(cell.median.opsPerSecond).toLocaleString("en"),
      cell.median.p50Ms.toFixed(3),
      cell.median.p95Ms.toFixed(3),
      cell.median.p99Ms.toFixed(3),
      cell.median.cpuUsPerOp.toFixed(2),
      cell.median.mainThreadCpuUsPerOp.toFixed(2),
      cell.median.serverCores.toFixed(2),
      cell.median.generatorCores.toFixed(2),
      cell.rounds.length.toString(),
    ]),
  ];
}

/** The system, and the way in which it did the operation where there are several. */
export function contenderLabel({ system, way }: Cell): string {
  return way === null ? SYSTEM_LABELS[system] : `${SYSTEM_LABELS[system]}: ${way}`;
}

/** What was measured, without the system. */
export function whatOf(cell: Cell): string {
  const set = cell.leases === 0 ? "" : `, ${count(cell.leases, cell.scenario === "script" ? "lock" : "lease")}`;
  const load =
    cell.load === "open-loop"
      ? `, open loop ${(cell.ratePerSecond ?? 0).toLocaleString("en")}/s`
      : cell.load === "closed-loop"
        ? ", closed loop"
        : "";
  const pipeline = cell.pipeline === 1 ? "" : `, P=${cell.pipeline}`;
  return `${cell.operation}${set}, ${count(cell.connections, "connection")}${pipeline}${load}`;
}

export function figuresTable(figures: readonly Figure[]): Table {
  return [["what", "", ""], ...figures.map((each) => [each.label, figure(each.value), each.unit])];
}

function shown(value: number, unit: string): string {
  return unit === "x" ? `${figure(value)}x` : `${figure(value)} ${unit}`;
}

export function figure(value: number): string {
  if (!Number.isFinite(value)) return "-";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size >= 100) return Math.round(value).toString();
  if (size >= 10) return value.toFixed(1);
  return value.toFixed(2);
}

/** For a terminal: columns in line, numbers to the right. */
export function plainText(table: Table): string {
  const widths: number[] = [];
  for (const row of table) {
    for (const [column, text] of row.entries()) widths[column] = Math.max(widths[column] ?? 0, text.length);
  }
  const line = (row: readonly string[]): string =>
    row
      .map((text, column) => (isNumber(text) ? text.padStart(widths[column] ?? 0) : text.padEnd(widths[column] ?? 0)))
      .join("  ")
      .trimEnd();
  return table.map(line).join("\n");
}

export function markdown(table: Table): string {
  const [head = [], ...rows] = table;
  const numeric = head.map((_, column) => rows.length > 0 && rows.every((row) => isNumber(row[column] ?? "")));
  const line = (row: readonly string[]): string => `| ${row.map((text) => text.replaceAll("|", "\\|")).join(" | ")} |`;
  return [line(head), line(numeric.map((is) => (is ? "---:" : "---"))), ...rows.map(line)].join("\n");
}

function isNumber(text: string): boolean {
  return /^-?[\d.,]+$/.test(text);
}
