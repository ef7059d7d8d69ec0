import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

import { aimsOf } from "./aims.js";
import { clusterAimsOf, hasCluster, hasOneNode, reportedAims } from "./cluster-aims.js";
import { plotsOf } from "./plots.js";
import type { Results, ScenarioOutcome } from "./results.js";
import { aimsTable, cellsTable, figure, figuresTable, markdown, scenariosTable } from "./tables.js";

/**
 * Puts a run into a directory: results.json, results.md and the plots. All but the first can be made again from it. In the middle
 * of a run, too: each time all files are written anew, results.json first.
 */

/** Between these lines of bench/README.md stands what `--readme` writes. */
interface Place {
  readonly begin: string;
  readonly end: string;
}

const ONE_NODE: Place = { begin: "<!-- results: begin (written by --readme) -->", end: "<!-- results: end -->" };
/** The scenario `cluster` has a place of its own: it is measured in a run of its own. */
const SEVERAL_NODES: Place = { begin: "<!-- cluster: begin (written by --readme) -->", end: "<!-- cluster: end -->" };

export function writeReport(directory: string, results: Results): void {
  mkdirSync(directory, { recursive: true });
  const aims = reportedAims(results);
  writeFileSync(join(directory, "results.json"), `${JSON.stringify(results, finiteOrNull, 1)}\n`);
  const plots = plotsOf(results, aims);
  for (const [name, svg] of plots) writeFileSync(join(directory, name), svg);
  writeFileSync(join(directory, "results.md"), page(results, [...plots.keys()]));
}

export function readResults(path: string): Results {
  const results = JSON.parse(readFileSync(path, "utf8")) as Results;
  if (results.format !== 2) throw new Error(`${path} is of a format that this benchmark does not read`);
  return results;
}

/**
 * Replaces the run shown in bench/README.md: everything between the two lines is made from `results`, so that each figure there was
 * measured in the run that it names. What the run did not want to measure stays as it was. `resultsPath` is relative to it.
 */
export function includeInReadme(readmePath: string, results: Results, resultsPath: string): void {
  if (!existsSync(readmePath)) throw new Error(`${readmePath} is missing`);
  let readme = readFileSync(readmePath, "utf8");
  if (hasOneNode(results)) readme = withSection(readme, ONE_NODE, oneNodeSection(results, resultsPath));
  if (hasCluster(results)) readme = withSection(readme, SEVERAL_NODES, clusterSection(results, resultsPath));
  writeFileSync(readmePath, readme);
}

function withSection(readme: string, { begin, end }: Place, lines: readonly string[]): string {
  const [from, to] = [readme.indexOf(begin), readme.indexOf(end)];
  if (from < 0 || to < from) throw new Error(`the README has no place for results: ${begin}`);
  return `${readme.slice(0, from)}${[begin, "", ...lines, ""].join("\n")}${readme.slice(to)}`;
}

const A_BY_B = "`A : B` is A's figure by B's, round by round: the median, lowest and highest round in parentheses.";

function oneNodeSection(results: Results, resultsPath: string): string[] {
  return [
    machineLine(results),
    ...diskLine(results),
    ...missingLine(results.scenarios.filter(({ name }) => name !== "cluster")),
    "",
    allFigures(resultsPath),
    "",
    `![How far each aim was reached](${resultsPath}/aims.svg)`,
    "",
    A_BY_B,
    "",
    markdown(aimsTable(aimsOf(results))),
  ];
}

function clusterSection(results: Results, resultsPath: string): string[] {
  const cells = results.cells.filter(({ scenario }) => scenario === "cluster");
  const figures = results.figures.filter(({ scenario }) => scenario === "cluster");
  return [
    machineLine(results),
    ...missingLine(results.scenarios.filter(({ name }) => name === "cluster")),
    "",
    allFigures(resultsPath),
    "",
    A_BY_B,
    "",
    markdown(aimsTable(clusterAimsOf(results))),
    "",
    "Medians over rounds. CPU is that of all threads of the measured server; for grants through Leasehold, of the node and its etcd together.",
    "`load` is the generator's: near 1.0 it, not the server, may have been the limit.",
    "",
    markdown(cellsTable(cells)),
    "",
    markdown(figuresTable(figures)),
  ];
}

function allFigures(resultsPath: string): string {
  return `All figures: [results.md](${resultsPath}/results.md), [results.json](${resultsPath}/results.json).`;
}

function page(results: Results, plots: readonly string[]): string {
  const notes = results.notes.map((note) => `* ${note}`);
  return [
    `# Benchmark of ${results.startedAt.slice(0, 16).replace("T", " ")} UTC`,
    "",
    machineLine(results),
    ...missingLine(results.scenarios),
    ...(results.quick ? ["", "A `--quick` run: small sets, few rounds. Not for quoting."] : []),
    ...(notes.length > 0 ? ["", ...notes] : []),
    "",
    "## Aims",
    "",
    A_BY_B,
    "",
    markdown(aimsTable(reportedAims(results))),
    "",
    "## Comparisons",
    "",
    "Medians over rounds. CPU is the server process's, all threads; `main thread` is its first thread alone; `load` is the generator's.",
    "",
    markdown(cellsTable(results.cells)),
    "",
    "## Single figures",
    "",
    markdown(figuresTable(results.figures)),
    "",
    "## Scenarios",
    "",
    markdown(scenariosTable(results.scenarios)),
    "",
    "## Plots",
    "",
    ...plots.map((name) => `![${name}](${name})\n`),
  ].join("\n");
}

/** What every durable figure stands on. */
function diskLine({ figures }: Results): string[] {
  const shown = ["fdatasync/p50", "fdatasync/p99"].map((name) => figures.find((each) => each.name === name)?.value);
  const [p50Ms, p99Ms] = shown;
  if (p50Ms === undefined || p99Ms === undefined) return [];
  return [`An append and fdatasync took ${figure(p50Ms)} ms (median), ${figure(p99Ms)} ms (99th percentile).`];
}

/** What a reader would otherwise take for measured. */
function missingLine(scenarios: readonly ScenarioOutcome[]): string[] {
  const missing = scenarios
    // `cluster` is not part of a run that does not ask for it.
    .filter(({ name, state }) => state !== "measured" && !(name === "cluster" && state === "left out"))
    .map(({ name, state, reason }) => `\`${name}\` (${state}${reason === null ? "" : `: ${reason}`})`);
  return missing.length === 0 ? [] : ["", `**Not measured, or in part only:** ${missing.join(", ")}.`];
}

function machineLine({ startedAt, machine, commit, rounds, roundsMax, roundMs, durationS }: Results): string {
  const systems = [`Node ${machine.node}`, machine.redis, ...(machine.etcd === null ? [] : [machine.etcd])].join("; ");
  const more = roundsMax > rounds ? ` (up to ${roundsMax} where they differed widely)` : "";
  return (
    `Run of ${startedAt.slice(0, 16).replace("T", " ")} UTC, commit ${commit}; ${machine.cores} cores of ${machine.cpu}, ${machine.memoryGiB} GiB, Linux ${machine.kernel}, data on ${machine.disk}; ` +
    `${systems}. ${rounds} rounds of ${roundMs / 1000} s${more}, ${Math.round(durationS / 60)} minutes in all.`
  );
}

/** JSON knows no NaN; a missing figure is null. */
function finiteOrNull(_key: string, value: unknown): unknown {
  return typeof value === "number" && !Number.isFinite(value) ? null : value;
}
