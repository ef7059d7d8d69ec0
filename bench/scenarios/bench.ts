import type { Cell, Figure, Operation, Round, ScenarioName, Storm } from "../report/results.js";
import type { Pace } from "../pace.js";
import { runGenerator, type GeneratorRun } from "../load/generator.js";
import type { GeneratorJob } from "../load/generator-main.js";
import { runRedisBenchmark } from "../load/redis-benchmark.js";
import { LatencyHistogram } from "../measure/latency.js";
import { cpuBetween, type CpuReading } from "../measure/process-stats.js";
import { median } from "../measure/statistics.js";
import { launch, type Places, type SingleSystemName } from "../systems/launch.js";
import type { ServerProcess } from "../systems/system.js";

/**
 * One run of the benchmark: its options, what it has found so far, and the ways to measure. The systems of a comparison are
 * all up at once and take short turns under load (A B C A B C ...), so that whatever the machine is doing hits all alike.
 */

export interface BenchOptions {
  readonly pace: Pace;
  /** Length of one turn of one system under load. */
  readonly roundMs: number;
  /** Fewer sizes and smaller sets. */
  readonly quick: boolean;
  readonly places: Places;
}

/** One system and what it is to do in a comparison. */
export interface Contender {
  readonly server: ServerProcess;
  /** Where the comparison has several: in which way the operation is done. */
  readonly way?: string;
  readonly argv: readonly string[];
  /** Processes whose CPU time an operation costs, too. */
  readonly helpers?: readonly ServerProcess[];
}

export interface GeneratorContender extends Contender {
  readonly job: (round: number) => GeneratorJob;
  /** What a round needs beforehand; not measured. */
  readonly prepare?: (round: number) => Promise<void>;
  /** Where the contenders hold sets of different size. */
  readonly leases?: number;
}

export interface LoadShape {
  readonly leases: number;
  readonly connections: number;
  readonly pipeline: number;
}

export interface ComparisonShape extends LoadShape {
  readonly scenario: ScenarioName;
  readonly operation: Operation;
}

export class Bench {
  readonly options: BenchOptions;
  readonly cells: Cell[] = [];
  readonly figures: Figure[] = [];
  readonly storms: Storm[] = [];
  readonly notes: string[] = [];
  readonly say: (line: string) => void;

  constructor(options: BenchOptions, say: (line: string) => void) {
    this.options = options;
    this.say = say;
  }

  note(line: string): void {
    this.notes.push(line);
    this.say(`! ${line}`);
  }

  figure(scenario: ScenarioName, name: string, label: string, value: number, unit: string): void {
    this.figures.push({ scenario, name, label, value, unit });
    this.say(`  ${label}: ${formatFigure(value)} ${unit}`);
  }

  /** Starts the systems, hands them to `use` in the same order, discards them and their directories afterwards. */
  async withServers(
    names: readonly SingleSystemName[],
    use: (servers: readonly ServerProcess[]) => Promise<void>,
  ): Promise<void> {
    const servers: ServerProcess[] = [];
    try {
      for (const name of names) servers.push(await launch(name, this.options.places));
      await use(servers);
    } finally {
      for (const server of servers) await this.retire(server);
    }
  }

  /** Ends a server and removes its data. */
  async retire(server: ServerProcess): Promise<void> {
    // A profiled server writes its profile at a graceful end.
    if (this.options.places.nodeFlags.length > 0) await server.stop();
    await server.discard();
  }

  /** Throughput under redis-benchmark, each contender in its turn, as often as the pace allows. */
  async compareByRedisBenchmark(shape: ComparisonShape, contenders: readonly Contender[]): Promise<void> {
    const rounds = contenders.map((): Round[] => []);
    const opsPerSecond: number[] = [];
    for (const contender of contenders) opsPerSecond.push(await this.#calibrate(shape, contender));
    let lastRoundMs = 0;
    for (let round = 0; this.options.pace.wantsRound(round, rounds, lastRoundMs); round++) {
      const startedMs = performance.now();
      for (const [index, contender] of contenders.entries()) {
        const requests = ((opsPerSecond[index] ?? 1) * this.options.roundMs) / 1000;
        const measured = await this.#redisBenchmarkRound(shape, contender, requests);
        opsPerSecond[index] = measured.opsPerSecond;
        rounds[index]?.push(measured);
      }
      lastRoundMs = performance.now() - startedMs;
    }
    for (const [index, contender] of contenders.entries()) {
      this.#addCell(shape, contender, "redis-benchmark", null, rounds[index] ?? [], [], null);
    }
  }

  /** Operations per second of one contender by itself, roughly: to choose a rate for the open loop. */
  async saturation(contender: Contender, leases: number, connections: number): Promise<number> {
    return this.#calibrate({ leases, connections, pipeline: 1 }, contender);
  }

  /** Two short runs: they warm the server up and tell how many requests fill a turn. */
  async #calibrate(shape: LoadShape, contender: Contender): Promise<number> {
    const first = Math.min(50_000, shape.connections * shape.pipeline * 100);
    const guess = await this.#redisBenchmarkRound(shape, contender, first);
    const second = await this.#redisBenchmarkRound(shape, contender, guess.opsPerSecond * 0.5);
    return second.opsPerSecond;
  }

  async #redisBenchmarkRound(shape: LoadShape, contender: Contender, requests: number): Promise<Round> {
    const before = cpuOf(contender);
    const run = await runRedisBenchmark(
      {
        port: contender.server.port,
        connections: shape.connections,
        pipeline: shape.pipeline,
        idCount: shape.leases === 0 ? 2_000_000_000 : shape.leases,
        requests,
        argv: contender.argv,
      },
      this.options.roundMs * 20 + 30_000,
    );
    const cpu = cpuBetween(before, cpuOf(contender));
    return roundOf(
      run,
      run.requests,
      run.opsPerSecond,
      cpu,
      (run.requests / run.opsPerSecond) * 1000,
      run.generatorCpuMs,
    );
  }

  /** Latencies (and CPU time) under a generator of our own, each contender in its turn. Returns the runs of each contender. */
  async compareByGenerator(
    shape: ComparisonShape,
    contenders: readonly GeneratorContender[],
    roundsMax = Number.POSITIVE_INFINITY,
  ): Promise<readonly (readonly GeneratorRun[])[]> {
    const rounds = contenders.map((): Round[] => []);
    const latencies = contenders.map(() => new LatencyHistogram());
    const lags = contenders.map(() => new LatencyHistogram());
    const runs = contenders.map((): GeneratorRun[] => []);
    let load: "open-loop" | "closed-loop" = "open-loop";
    let ratePerSecond: number | null = null;
    let lastRoundMs = 0;
    for (let round = 0; round < roundsMax && this.options.pace.wantsRound(round, rounds, lastRoundMs); round++) {
      const startedMs = performance.now();
      for (const [index, contender] of contenders.entries()) {
        const job = contender.job(round);
        load = job.kind === "open" ? "open-loop" : "closed-loop";
        ratePerSecond = job.kind === "open" ? job.ratePerSecond : null;
        await contender.prepare?.(round);
        const { run, cpu } = await this.#generatorRound(contender, job);
        runs[index]?.push(run);
        latencies[index]?.add(run.latency);
        lags[index]?.add(run.lag);
        const { p50Ms, p95Ms, p99Ms } = run.latency.summary();
        const perSecond = (run.answered / run.measuredMs) * 1000;
        rounds[index]?.push(
          roundOf({ p50Ms, p95Ms, p99Ms }, run.answered, perSecond, cpu, run.measuredMs, run.generatorCpuMs),
        );
      }
      lastRoundMs = performance.now() - startedMs;
    }
    for (const [index, contender] of contenders.entries()) {
      const curve = latencies[index]?.summary().curve ?? [];
      const lag = load === "open-loop" ? (lags[index]?.percentileMs(99) ?? null) : null;
      const ownShape = { ...shape, leases: contender.leases ?? shape.leases };
      this.#addCell(ownShape, contender, load, ratePerSecond, rounds[index] ?? [], curve, lag);
    }
    return runs;
  }

  async #generatorRound(contender: Contender, job: GeneratorJob): Promise<{ run: GeneratorRun; cpu: CpuReading }> {
    const { server } = contender;
    let before = cpuOf(contender);
    let after = before;
    const run = await runGenerator(job, job.warmupMs + job.durationMs + 60_000, {
      onMeasureStart: () => (before = cpuOf(contender)),
      onMeasureEnd: () => (after = cpuOf(contender)),
    });
    if (run.errors > 0) throw new Error(`${server.name}: ${run.errors} wrong replies, the first: ${run.firstError}`);
    if (run.unanswered > 0) this.note(`${server.name}: ${run.unanswered} requests of ${run.sent} had no reply in time`);
    return { run, cpu: cpuBetween(before, after) };
  }

  #addCell(
    shape: ComparisonShape,
    contender: Contender,
    load: Cell["load"],
    ratePerSecond: number | null,
    rounds: readonly Round[],
    curve: Cell["curve"],
    generatorLagP99Ms: number | null,
  ): void {
    const cell: Cell = {
      ...shape,
      system: contender.server.name,
      way: contender.way ?? null,
      command: contender.argv.join(" "),
      load,
      ratePerSecond,
      rounds,
      median: medianRound(rounds),
      curve,
      generatorLagP99Ms,
    };
    this.cells.push(cell);
    this.say(`  ${describeCell(cell)}`);
  }
}

/** The main thread is the server's own. */
function cpuOf({ server, helpers = [] }: Contender): CpuReading {
  const { processMs, mainThreadMs } = server.cpu();
  return { processMs: helpers.reduce((sum, helper) => sum + helper.cpu().processMs, processMs), mainThreadMs };
}

function roundOf(
  latency: Pick<Round, "p50Ms" | "p95Ms" | "p99Ms">,
  operations: number,
  opsPerSecond: number,
  cpu: CpuReading,
  elapsedMs: number,
  generatorCpuMs: number,
): Round {
  return {
    operations,
    opsPerSecond,
    p50Ms: latency.p50Ms,
    p95Ms: latency.p95Ms,
    p99Ms: latency.p99Ms,
    cpuUsPerOp: (cpu.processMs * 1000) / operations,
    mainThreadCpuUsPerOp: (cpu.mainThreadMs * 1000) / operations,
    serverCores: cpu.processMs / elapsedMs,
    generatorCores: generatorCpuMs / elapsedMs,
  };
}

/** The median of each figure by itself. */
function medianRound(rounds: readonly Round[]): Round {
  const of = (figure: keyof Round): number => median(rounds.map((round) => round[figure]));
  return {
    operations: of("operations"),
    opsPerSecond: of("opsPerSecond"),
    p50Ms: of("p50Ms"),
    p95Ms: of("p95Ms"),
    p99Ms: of("p99Ms"),
    cpuUsPerOp: of("cpuUsPerOp"),
    mainThreadCpuUsPerOp: of("mainThreadCpuUsPerOp"),
    serverCores: of("serverCores"),
    generatorCores: of("generatorCores"),
  };
}

function describeCell(cell: Cell): string {
  const { opsPerSecond, p50Ms, p99Ms, cpuUsPerOp, generatorCores } = cell.median;
  const where = `${cell.system.padEnd(16)} ${cell.way === null ? "" : `${cell.way} `}leases=${cell.leases} c=${cell.connections} P=${cell.pipeline}`;
  return (
    `${where.padEnd(46)} ${Math.round(opsPerSecond).toString().padStart(9)}/s  p50 ${p50Ms.toFixed(3)}  p99 ${p99Ms.toFixed(3)} ms` +
    `  cpu ${cpuUsPerOp.toFixed(2)} us/op  generator ${generatorCores.toFixed(2)} cores`
  );
}

export function formatFigure(value: number): string {
  if (!Number.isFinite(value)) return "-";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toString();
  if (size >= 10) return value.toFixed(1);
  return value.toFixed(3);
}
