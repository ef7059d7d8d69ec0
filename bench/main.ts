import { existsSync, mkdirSync, rmSync } from "node:fs";
import { join, relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";

import { currentCommit, describeMachine } from "./machine.js";
import { parseCommandLine, USAGE, type CommandLine } from "./options.js";
import { aimsOf } from "./report/aims.js";
import type { Results, ScenarioName } from "./report/results.js";
import { aimsTable, cellsTable, figuresTable, plainText } from "./report/tables.js";
import { includeInReadme, readResults, writeReport } from "./report/write.js";
import { Bench } from "./scenarios/bench.js";
import { disk } from "./scenarios/disk.js";
import { etcd } from "./scenarios/etcd.js";
import { grant } from "./scenarios/grant.js";
import { keepAlive, keepAliveDurable, latency, tmpfs } from "./scenarios/keepalive.js";
import { lockContention, lockCycle, script } from "./scenarios/locks.js";
import { million } from "./scenarios/million.js";
import { killChildrenAtExit } from "./systems/children.js";
import { versionOf } from "./systems/launch.js";

/**
 * `npm run bench`: one command, one run, one machine. Leasehold beside Redis and etcd, in alternation; a table here, and
 * results.json, results.md and plots in bench/results/<date>. README.md beside this file tells how to read them.
 *
 * A scenario that fails is reported and the others go on; the exit code is then 1. No server outlives the run.
 */

const ROOT = fileURLToPath(new URL("../..", import.meta.url));

const SCENARIOS: Record<
  ScenarioName,
  { readonly title: string; readonly run: (bench: Bench) => Promise<void> | void }
> = {
  disk: { title: "The disk by itself", run: disk },
  keepalive: { title: "KEEPALIVE against in-memory PEXPIRE", run: keepAlive },
  "keepalive-durable": { title: "KEEPALIVE against PEXPIRE under appendfsync always", run: keepAliveDurable },
  latency: { title: "Keep-alive latency on a fixed schedule", run: latency },
  tmpfs: { title: "KEEPALIVE with data on disk against data in memory", run: tmpfs },
  grant: { title: "GRANT with one key against SET NX PX under appendfsync always", run: grant },
  "lock-cycle": { title: "Locks taken and given back, against SET NX PX and the release script", run: lockCycle },
  "lock-contention": { title: "One lock that fifty clients want, against libraries that poll", run: lockContention },
  script: { title: "Scripts of lock libraries, by CPU time", run: script },
  etcd: { title: "Against etcd, by CPU time", run: etcd },
  million: { title: "A million leases", run: million },
};

function say(line: string): void {
  process.stdout.write(`${line}\n`);
}

async function main(): Promise<number> {
  let commandLine: CommandLine;
  try {
    commandLine = parseCommandLine(process.argv.slice(2));
  } catch (error) {
    process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n\n${USAGE}`);
    return 2;
  }
  if (commandLine.help) {
    say(USAGE);
    return 0;
  }
  if (commandLine.render !== null) {
    const path = resolve(commandLine.render);
    report(readResults(path), resolve(path, ".."), commandLine.readme);
    return 0;
  }
  return run(commandLine);
}

async function run(commandLine: CommandLine): Promise<number> {
  const leaseholdMain = resolve(commandLine.server ?? join(ROOT, "dist/main.js"));
  const missing = [
    ...(existsSync(leaseholdMain) ? [] : [`${leaseholdMain}: build first`]),
    ...(versionOf("redis-server") === null ? ["redis-server (Debian: redis-server)"] : []),
    ...(versionOf("redis-benchmark") === null ? ["redis-benchmark (Debian: redis-tools)"] : []),
  ];
  if (missing.length > 0) {
    process.stderr.write(`missing: ${missing.join("; ")}\n`);
    return 2;
  }
  killChildrenAtExit(say);
  setTimeout(() => {
    say(`gave up after ${commandLine.minutesMax} minutes`);
    process.exit(1);
  }, commandLine.minutesMax * 60_000).unref();

  const diskDirectory = resolve(commandLine.directory ?? join(ROOT, "bench/results/tmp"), `run-${process.pid}`);
  const tmpfsDirectory = resolve(commandLine.tmpfs, `leasehold-bench-${process.pid}`);
  mkdirSync(diskDirectory, { recursive: true });
  process.on("exit", () => {
    for (const directory of [diskDirectory, tmpfsDirectory]) rmSync(directory, { recursive: true, force: true });
  });

  const bench = new Bench(
    {
      rounds: commandLine.rounds,
      roundMs: commandLine.roundMs,
      quick: commandLine.quick,
      places: { leaseholdMain, diskDirectory, tmpfsDirectory, nodeFlags: commandLine.nodeFlags },
      hasEtcd: versionOf("etcd") !== null,
    },
    say,
  );
  const startedAt = new Date();
  const failures = await runScenarios(bench, commandLine.only);
  const results: Results = {
    format: 1,
    startedAt: startedAt.toISOString(),
    commit: currentCommit(ROOT),
    durationS: (Date.now() - startedAt.getTime()) / 1000,
    rounds: commandLine.rounds,
    roundMs: commandLine.roundMs,
    quick: commandLine.quick,
    machine: describeMachine(diskDirectory),
    cells: bench.cells,
    figures: bench.figures,
    storms: bench.storms,
    notes: bench.notes,
  };
  const stamp = results.startedAt.slice(0, 16).replaceAll(":", "");
  report(results, resolve(commandLine.out ?? join(ROOT, "bench/results", stamp)), commandLine.readme);
  return failures === 0 ? 0 : 1;
}

/** Returns how many failed. */
async function runScenarios(bench: Bench, names: readonly ScenarioName[]): Promise<number> {
  let failures = 0;
  for (const name of names) {
    const scenario = SCENARIOS[name];
    bench.say(`\n${scenario.title}`);
    try {
      await scenario.run(bench);
    } catch (error) {
      failures++;
      bench.note(`${name} failed: ${error instanceof Error ? error.message : String(error)}`);
    }
  }
  return failures;
}

function report(results: Results, directory: string, alsoReadme: boolean): void {
  writeReport(directory, results);
  say(`\n${plainText(cellsTable(results.cells))}`);
  say(`\n${plainText(figuresTable(results.figures))}`);
  say(`\n${plainText(aimsTable(aimsOf(results)))}`);
  say(`\nreport: ${relative(process.cwd(), directory)}/results.md`);
  if (alsoReadme) includeInReadme(join(ROOT, "bench/README.md"), results, relative(join(ROOT, "bench"), directory));
}

process.exit(await main());
