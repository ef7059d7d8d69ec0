import { existsSync, mkdirSync, rmSync } from "node:fs";
import { join, relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";

import { Ledger } from "./ledger.js";
import { currentCommit, describeMachine } from "./machine.js";
import { parseCommandLine, USAGE, type CommandLine } from "./options.js";
import { Pace } from "./pace.js";
import { reportedAims } from "./report/cluster-aims.js";
import type { Results, ScenarioName } from "./report/results.js";
import { aimsTable, cellsTable, figuresTable, plainText, scenariosTable } from "./report/tables.js";
import { includeInReadme, readResults, writeReport } from "./report/write.js";
import { Bench } from "./scenarios/bench.js";
import { cluster } from "./scenarios/cluster.js";
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
 * A scenario that fails is reported and the others go on. The report is written after each scenario and when the run ends, also
 * when that is early (its time limit, a signal): what is missing is marked as such, and the exit code is then 1. No server
 * outlives the run.
 */

const ROOT = fileURLToPath(new URL("../..", import.meta.url));

const SCENARIOS: Record<
  ScenarioName,
  {
    readonly title: string;
    readonly run: (bench: Bench) => Promise<void> | void;
    /** Seconds that it takes with three rounds of two seconds on two cores: see pace.ts. */
    readonly plannedS: number;
  }
> = {
  disk: { title: "The disk by itself", run: disk, plannedS: 2 },
  keepalive: { title: "KEEPALIVE against in-memory PEXPIRE", run: keepAlive, plannedS: 160 },
  "keepalive-durable": {
    title: "KEEPALIVE against PEXPIRE under appendfsync always",
    run: keepAliveDurable,
    plannedS: 105,
  },
  latency: { title: "Keep-alive latency on a fixed schedule", run: latency, plannedS: 165 },
  tmpfs: { title: "KEEPALIVE with data on disk against data in memory", run: tmpfs, plannedS: 38 },
  grant: { title: "GRANT with one key against SET NX PX under appendfsync always", run: grant, plannedS: 75 },
  "lock-cycle": {
    title: "Locks taken and given back, against SET NX PX and the release script",
    run: lockCycle,
    plannedS: 95,
  },
  "lock-contention": {
    title: "One lock that fifty clients want, against libraries that poll",
    run: lockContention,
    plannedS: 90,
  },
  script: { title: "Scripts of lock libraries, by CPU time", run: script, plannedS: 80 },
  etcd: { title: "Against etcd, by CPU time", run: etcd, plannedS: 190 },
  million: { title: "A million leases", run: million, plannedS: 210 },
  cluster: { title: "Several nodes: Leasehold on etcd", run: cluster, plannedS: 400 },
};

/** What the pace leaves between the planned end and `--minutes-max`. */
const MINUTES_IN_RESERVE = 3;

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
  return runAll(commandLine);
}

async function runAll(commandLine: CommandLine): Promise<number> {
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
  return new Run(commandLine, leaseholdMain).run();
}

/** One run from its first scenario to its end, which may come at any moment: see `#endEarly`. */
class Run {
  readonly #commandLine: CommandLine;
  readonly #wanted: readonly ScenarioName[];
  readonly #pace: Pace;
  readonly #bench: Bench;
  readonly #ledger: Ledger;
  readonly #startedAt = new Date();
  readonly #reportDirectory: string;
  /** As they are at the start: somebody may commit meanwhile. */
  readonly #circumstances: Pick<Results, "commit" | "machine">;

  constructor(commandLine: CommandLine, leaseholdMain: string) {
    const { rounds, roundsMax, minutesMax, only } = commandLine;
    this.#commandLine = commandLine;
    const diskDirectory = resolve(commandLine.directory ?? join(ROOT, "bench/results/tmp"), `run-${process.pid}`);
    const tmpfsDirectory = resolve(commandLine.tmpfs, `leasehold-bench-${process.pid}`);
    mkdirSync(diskDirectory, { recursive: true });
    // In this order: nothing is removed under a server that still writes.
    killChildrenAtExit((signal) => this.#endEarly(signal, false));
    process.on("exit", () => {
      for (const directory of [diskDirectory, tmpfsDirectory]) {
        rmSync(directory, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 });
      }
    });

    const nowMs = (): number => performance.now();
    const endMs = nowMs() + Math.max(0.5, minutesMax - MINUTES_IN_RESERVE) * 60_000;
    this.#pace = new Pace({ rounds, roundsMax, endMs, nowMs });
    this.#bench = new Bench(
      {
        pace: this.#pace,
        roundMs: commandLine.roundMs,
        quick: commandLine.quick,
        places: { leaseholdMain, diskDirectory, tmpfsDirectory, nodeFlags: commandLine.nodeFlags },
      },
      say,
    );
    const hasEtcd = versionOf("etcd") !== null;
    const needsEtcd = (name: ScenarioName): boolean => name === "etcd" || name === "cluster";
    this.#wanted = only.filter((name) => !needsEtcd(name) || hasEtcd);
    if (only.some(needsEtcd) && !hasEtcd) this.#bench.note("etcd is not installed: not compared");
    this.#ledger = new Ledger(this.#wanted, nowMs);
    this.#circumstances = { commit: currentCommit(ROOT), machine: describeMachine(diskDirectory) };
    const stamp = this.#startedAt.toISOString().slice(0, 16).replaceAll(":", "");
    this.#reportDirectory = resolve(commandLine.out ?? join(ROOT, "bench/results", stamp));
  }

  /** Returns the exit code: 0 when everything was measured. */
  async run(): Promise<number> {
    const { minutesMax } = this.#commandLine;
    setTimeout(() => {
      this.#endEarly(`the limit of ${minutesMax} minutes`, this.#commandLine.readme);
      process.exit(1);
    }, minutesMax * 60_000).unref();
    process.on("uncaughtException", (error) => {
      process.stderr.write(`${error.stack ?? error.message}\n`);
      this.#endEarly(`an error outside of any scenario: ${error.message}`, false);
      process.exit(1);
    });

    for (const [index, name] of this.#wanted.entries()) {
      await this.#runScenario(name, this.#wanted.slice(index));
      // Whatever happens to the rest, this is kept.
      writeReport(this.#reportDirectory, this.#results());
    }
    report(this.#results(), this.#reportDirectory, this.#commandLine.readme);
    return this.#ledger.isComplete ? 0 : 1;
  }

  async #runScenario(name: ScenarioName, thisAndLater: readonly ScenarioName[]): Promise<void> {
    const bench = this.#bench;
    const plannedS = thisAndLater.reduce((sum, each) => sum + SCENARIOS[each].plannedS, 0);
    const elapsedS = (Date.now() - this.#startedAt.getTime()) / 1000;
    bench.say(`\n${SCENARIOS[name].title} (${name}, at ${minutesAndSeconds(elapsedS)})`);
    if (this.#pace.beginScenario(plannedS * 1000)) bench.note(`${name}: the run is late, so fewer rounds`);
    this.#ledger.begin(name);
    try {
      await SCENARIOS[name].run(bench);
      this.#ledger.end(null);
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      this.#ledger.end(reason);
      bench.note(`${name} failed: ${reason}`);
    }
  }

  /** Writes the report of what there is; the caller ends the process. Who breaks a run off does not want it in the README. */
  #endEarly(reason: string, alsoReadme: boolean): void {
    this.#ledger.cutOff(reason);
    this.#bench.note(`ended by ${reason}`);
    report(this.#results(), this.#reportDirectory, alsoReadme);
  }

  #results(): Results {
    const { rounds, roundsMax, roundMs, quick } = this.#commandLine;
    const { cells, figures, storms, notes } = this.#bench;
    return {
      format: 2,
      startedAt: this.#startedAt.toISOString(),
      ...this.#circumstances,
      durationS: (Date.now() - this.#startedAt.getTime()) / 1000,
      rounds,
      roundsMax,
      roundMs,
      quick,
      scenarios: this.#ledger.outcomes,
      cells,
      figures,
      storms,
      notes,
    };
  }
}

function minutesAndSeconds(seconds: number): string {
  return `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
}

function report(results: Results, directory: string, alsoReadme: boolean): void {
  writeReport(directory, results);
  say(`\n${plainText(cellsTable(results.cells))}`);
  say(`\n${plainText(figuresTable(results.figures))}`);
  say(`\n${plainText(aimsTable(reportedAims(results)))}`);
  say(`\n${plainText(scenariosTable(results.scenarios))}`);
  say(`\nreport: ${relative(process.cwd(), directory)}/results.md`);
  if (!alsoReadme) return;
  if (results.quick) say("bench/README.md is left as it is: a quick run is not for quoting");
  else includeInReadme(join(ROOT, "bench/README.md"), results, relative(join(ROOT, "bench"), directory));
}

process.exit(await main());
