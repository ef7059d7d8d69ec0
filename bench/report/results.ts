import type { LatencySlot } from "../load/tally.js";
import type { RatioOfRounds } from "../measure/statistics.js";
import type { SystemName } from "../systems/system.js";

/**
 * What a run found, as it lies in results.json. Tables, plots and the list of aims are made from this alone, so a stored run
 * can be rendered again (`--render`).
 */

export type ScenarioName =
  | "disk"
  | "keepalive"
  | "keepalive-durable"
  | "latency"
  | "tmpfs"
  | "grant"
  | "lock-cycle"
  | "lock-contention"
  | "script"
  | "etcd"
  | "million"
  | "cluster";

/** What is run unless the command line says otherwise. */
export const DEFAULT_SCENARIO_NAMES: readonly ScenarioName[] = [
  "disk",
  "keepalive",
  "keepalive-durable",
  "latency",
  "tmpfs",
  "grant",
  "lock-cycle",
  "lock-contention",
  "script",
  "etcd",
  "million",
];

export const SCENARIO_NAMES: readonly ScenarioName[] = [...DEFAULT_SCENARIO_NAMES, "cluster"];

/** One round of one system. */
export interface Round {
  readonly operations: number;
  readonly opsPerSecond: number;
  readonly p50Ms: number;
  readonly p95Ms: number;
  readonly p99Ms: number;
  /** CPU time of the server process, all threads, per operation, in microseconds. */
  readonly cpuUsPerOp: number;
  /** The same of its main thread alone. */
  readonly mainThreadCpuUsPerOp: number;
  /** Cores that the server kept busy. */
  readonly serverCores: number;
  /** Cores that the load generator kept busy: near 1.0 it, not the server, may have been the limit. */
  readonly generatorCores: number;
}

export type Operation =
  | "keep-alive"
  | "grant"
  | "acquire + release"
  | "hand-over"
  | "EVALSHA extend"
  | "EVALSHA release, refused"
  | "EVALSHA release";

/** All rounds of one system under one load. Cells that differ in nothing but `system` and `way` were measured in alternation. */
export interface Cell {
  readonly scenario: ScenarioName;
  readonly operation: Operation;
  readonly system: SystemName;
  /** Where one operation is done in several ways: in which. */
  readonly way: string | null;
  /** The command as sent. */
  readonly command: string;
  readonly load: "redis-benchmark" | "open-loop" | "closed-loop";
  /** Leases (or keys with a TTL) that the server holds, of which each operation takes one at random; 0: it starts empty. */
  readonly leases: number;
  readonly connections: number;
  readonly pipeline: number;
  /** Open loop only: arrivals per second. */
  readonly ratePerSecond: number | null;
  readonly rounds: readonly Round[];
  readonly median: Round;
  /** `[percentile, milliseconds]` over all rounds together; empty for redis-benchmark. */
  readonly curve: readonly (readonly [number, number])[];
  /** Open loop only: the 99th percentile of the generator's own lateness, in milliseconds. */
  readonly generatorLagP99Ms: number | null;
}

/** A single figure, for what is not a comparison of rounds. */
export interface Figure {
  readonly scenario: ScenarioName;
  /** Stable, e.g. `bytes-per-lease/without-key`: aims refer to it. */
  readonly name: string;
  /** For people. */
  readonly label: string;
  readonly value: number;
  readonly unit: string;
}

/** A million leases falling due at one moment. */
export interface Storm {
  readonly name: string;
  readonly label: string;
  readonly dueAtUnixMs: number;
  /** `[wall-clock ms, leases left]`. */
  readonly remaining: readonly (readonly [number, number])[];
  /** Keep-alives of other leases meanwhile. */
  readonly slots: readonly LatencySlot[];
}

export interface Aim {
  readonly name: string;
  /** Whether its scenario was measured to its end; if not, what is shown may be a part only. */
  readonly complete: boolean;
  readonly comparison: ">=" | "<=" | "<";
  readonly target: number;
  /** `x` for ratios, else `B`, `s`, `ms`, `us`, `%`. */
  readonly unit: string;
  readonly reached: readonly { readonly label: string; readonly value: number; readonly range: RatioOfRounds | null }[];
  /** null: not measured in this run. */
  readonly met: boolean | null;
}

export interface Machine {
  readonly cpu: string;
  readonly cores: number;
  readonly memoryGiB: number;
  readonly kernel: string;
  readonly node: string;
  readonly redis: string;
  readonly etcd: string | null;
  /** File system of the data directories. */
  readonly disk: string;
}

/**
 * What became of a scenario: `measured`; `failed`, or `cut off` by the end of the run, with what it had found by then; `not reached`
 * before the end of the run; `left out` as the command line wanted it; `running`, in a report from the middle of a run.
 */
export interface ScenarioOutcome {
  readonly name: ScenarioName;
  readonly state: "measured" | "failed" | "cut off" | "not reached" | "left out" | "running";
  readonly durationS: number;
  /** Why it failed or was cut off. */
  readonly reason: string | null;
}

export interface Results {
  readonly format: 2;
  /** ISO 8601. */
  readonly startedAt: string;
  readonly commit: string;
  readonly durationS: number;
  /** Of each comparison; where more than this, they differed widely. */
  readonly rounds: number;
  readonly roundsMax: number;
  readonly roundMs: number;
  readonly quick: boolean;
  readonly machine: Machine;
  /** One for each that there is, in their order. */
  readonly scenarios: readonly ScenarioOutcome[];
  readonly cells: readonly Cell[];
  readonly figures: readonly Figure[];
  readonly storms: readonly Storm[];
  /** What could not be measured, and why. */
  readonly notes: readonly string[];
}
