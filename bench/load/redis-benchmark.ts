import { readEndedChildrenCpuMs } from "../measure/process-stats.js";
import { ended, startChild } from "../systems/children.js";

/** Runs redis-benchmark, the closed-loop generator that everybody knows, and reads its figures. */

export interface RedisBenchmarkJob {
  readonly port: number;
  readonly connections: number;
  /** Requests per write of one connection. */
  readonly pipeline: number;
  /** `__rand_int__` in `argv` becomes 12 digits from 0 to this, exclusive. */
  readonly idCount: number;
  readonly requests: number;
  readonly argv: readonly string[];
}

export interface RedisBenchmarkRun {
  readonly requests: number;
  readonly opsPerSecond: number;
  readonly p50Ms: number;
  readonly p95Ms: number;
  readonly p99Ms: number;
  /** CPU milliseconds of redis-benchmark, its start included. */
  readonly generatorCpuMs: number;
  readonly elapsedMs: number;
}

/** Rejects at the first error reply (redis-benchmark stops there), and after `msMax`. */
export async function runRedisBenchmark(job: RedisBenchmarkJob, msMax: number): Promise<RedisBenchmarkRun> {
  // Whole pipelines only, and at least one per connection.
  const perTurn = job.pipeline * job.connections;
  const requests = Math.max(1, Math.round(job.requests / perTurn)) * perTurn;
  const cpuBeforeMs = readEndedChildrenCpuMs();
  const startedMs = performance.now();
  const load = ["-p", `${job.port}`, "-c", `${job.connections}`, "-P", `${job.pipeline}`, "-n", `${requests}`];
  const form = ["-h", "127.0.0.1", "-r", `${job.idCount}`, "--csv", "--precision", "3"];
  const child = startChild("redis-benchmark", [...load, ...form, ...job.argv], { stdio: ["ignore", "pipe", "pipe"] });
  let output = "";
  let errors = "";
  child.stdout?.on("data", (bytes: Buffer) => (output += bytes.toString("latin1")));
  child.stderr?.on("data", (bytes: Buffer) => (errors += bytes.toString("latin1")));
  const closed = new Promise((resolve) => child.once("close", resolve));
  const code = await ended(child, msMax);
  await closed;
  const elapsedMs = performance.now() - startedMs;
  const figures = parseCsv(output);
  if (code !== 0 || figures === null) {
    throw new Error(`redis-benchmark ended with ${code}: ${(errors + output).trim().slice(0, 500)}`);
  }
  return { ...figures, requests, generatorCpuMs: readEndedChildrenCpuMs() - cpuBeforeMs, elapsedMs };
}

/** Reads the last line of `--csv`: "test","rps","avg","min","p50","p95","p99","max". The test's name may hold anything. */
export function parseCsv(output: string): Pick<RedisBenchmarkRun, "opsPerSecond" | "p50Ms" | "p95Ms" | "p99Ms"> | null {
  const line = output.trimEnd().split("\n").at(-1) ?? "";
  const numbers =
    /(?:,"([\d.]+)")(?:,"([\d.]+)")(?:,"([\d.]+)")(?:,"([\d.]+)")(?:,"([\d.]+)")(?:,"([\d.]+)")(?:,"([\d.]+)")$/.exec(
      line,
    );
  if (numbers === null) return null;
  const [, opsPerSecond, , , p50, p95, p99] = numbers.map(Number);
  if (opsPerSecond === undefined || p50 === undefined || p95 === undefined || p99 === undefined) return null;
  return { opsPerSecond, p50Ms: p50, p95Ms: p95, p99Ms: p99 };
}
