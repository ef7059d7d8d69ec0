import { DEFAULT_ENGINE_LIMITS, TTL_MS_MAX, type EngineLimits } from "#src/engine/limits.js";
import type { Random } from "./random.js";
import type { PointFaults } from "./sim-node.js";
import type { DiskFaults, DiskTimes } from "./sim-store.js";
import type { WireOptions } from "./sim-wire.js";

/**
 * What one seed is about. Each seed switches operations and faults on and off and sets their rates, so that runs differ in kind:
 * a bug that needs many crashes and no FLUSH is met as well as one that needs the reverse.
 */

export const OPERATIONS = [
  "grant",
  "grant-any-id",
  "keep-alive",
  "keep-alive-at-the-edge",
  "keep-alive-many",
  "revoke",
  "set-ttl",
  "attach",
  "attach-force",
  "detach",
  "delete",
  "flush-database",
  "flush-all",
  "lease-ttl",
  "key-ttl",
  "info",
  "get",
  "exists",
  "type",
  "list",
  "count",
  "random",
  "scan-keys",
  "scan-leases",
] as const;

export const LOCK_OPERATIONS = [
  "acquire",
  "acquire-block",
  "release",
  "release-token",
  "lock-info",
  "lock-check",
] as const;

export const STRING_OPERATIONS = ["set-nx", "set", "delete-if", "expire", "persist", "increment"] as const;

export type Operation =
  | (typeof OPERATIONS)[number]
  | (typeof LOCK_OPERATIONS)[number]
  | (typeof STRING_OPERATIONS)[number]
  | "step";

/** These break what others believe by right; seeds without them put exclusion to the full test. */
const DISTURBING: ReadonlySet<Operation> = new Set<Operation>([
  "attach-force",
  "delete",
  "flush-database",
  "flush-all",
  "set",
  "expire",
]);

export interface Workload {
  /** Nobody does what breaks beliefs of others by right. */
  readonly isCalm: boolean;
  readonly clients: number;
  readonly requests: number;
  /** From one request of a client to its next. */
  readonly thinkMsMean: number;
  readonly pipelineMax: number;
  readonly weights: ReadonlyMap<Operation, number>;
  readonly ttlChoicesMs: readonly number[];
  readonly leaseIds: number;
  /** Clients use the same lease ids. */
  readonly sharedIds: boolean;
  readonly keys: number;
  /** Added to the length of ids and values, in bytes. */
  readonly paddingBytes: number;
  readonly databases: number;
  /** The chance that a grant has a REQUEST nonce. */
  readonly nonceChance: number;
  /** The chance that a lost request is sent again. */
  readonly retryChance: number;
  /** The chance, per request, that the client breaks its connection. */
  readonly breakChance: number;
  /** How long a client waits for a reply before it gives the connection up. */
  readonly patienceMs: number;
}

export interface NodeConditions {
  /** Rate error of every clock, client's and server's, at most. */
  readonly clockErrorMax: number;
  readonly timerEarlyMsMax: number;
  readonly timerLateMsMean: number;
  readonly pauseChance: number;
  readonly pauseMsMax: number;
  readonly batchBytesMax: number;
  readonly limits: EngineLimits;
  readonly hasListeners: boolean;
  /** Sliced work is done in slices of at most this many; Infinity: as in production. */
  readonly stepMax: number;
}

/** Mean true time between two of each; Infinity: never. */
export interface OperatorRates {
  readonly crashMs: number;
  readonly stopMs: number;
  readonly stepDownMs: number;
  readonly holdMs: number;
  readonly wallJumpMs: number;
  /** Somebody begins or stops to listen to events. */
  readonly listenMs: number;
  readonly rivalMs: number;
  /** How long the server is down after it ended. */
  readonly downMsMean: number;
  readonly holdMsMax: number;
}

export interface Swarm {
  readonly workload: Workload;
  readonly wire: WireOptions;
  readonly node: NodeConditions;
  readonly diskTimes: DiskTimes;
  readonly diskFaults: DiskFaults;
  readonly points: PointFaults;
  readonly operator: OperatorRates;
  /** The chance, per start, that rows without a lease have come onto the disk. */
  readonly orphanChance: number;
}

/** A clock that is off by this much, and one that is off the other way, differ by just under the 0.2 % that the server allows for. */
const CLOCK_ERROR_MAX = 0.000_999;

const TTL_CLASSES: readonly (readonly number[])[] = [
  [1, 2, 3, 5, 10, 20],
  [20, 50, 100, 200, 500],
  [1000, 2000, 5000, 10_000, 60_000],
  [600_000, 3_600_000, 86_400_000, 1_000_000_000_000],
  [1, 10, 100, 1000, 10_000, 100_000, 10_000_000],
  [5, 500, 50_000, TTL_MS_MAX],
];

export function chooseSwarm(random: Random): Swarm {
  const ttlChoicesMs = random.pick(TTL_CLASSES);
  const median = ttlChoicesMs[Math.floor(ttlChoicesMs.length / 2)] ?? 1;
  const thinkMsMean = Math.min(2000, Math.max(0.2, median * random.pick([0.01, 0.1, 1])));
  const workload = chooseWorkload(random, ttlChoicesMs, thinkMsMean);
  const durationMs = (workload.requests * thinkMsMean) / workload.clients;
  const swarm = {
    workload,
    wire: chooseWire(random, thinkMsMean),
    node: chooseConditions(random),
    diskTimes: chooseDiskTimes(random, thinkMsMean),
    diskFaults: chooseDiskFaults(random, thinkMsMean),
    points: {
      crashChance: random.chance(0.4) ? random.pick([0.001, 0.005, 0.02]) : 0,
      errorChance: random.chance(0.2) ? random.pick([0.001, 0.01]) : 0,
    },
    operator: chooseOperator(random, durationMs, thinkMsMean),
    orphanChance: random.chance(0.2) ? 0.3 : 0,
  };
  return { ...swarm, workload: withLocks(random, workload) };
}

/** Many seeds have locks, many have strings, some have neither: what is about leases alone gets its share of all requests. */
function withLocks(random: Random, workload: Workload): Workload {
  const { isCalm } = workload;
  const weights = new Map(workload.weights);
  const add = (operations: readonly Operation[], choices: readonly number[]): void => {
    for (const operation of operations) {
      const isOff = random.chance(0.2) || (isCalm && DISTURBING.has(operation));
      weights.set(operation, isOff ? 0 : random.pick(choices));
    }
  };
  const hasLocks = random.chance(0.6);
  const hasStrings = random.chance(0.5);
  if (hasLocks) add(LOCK_OPERATIONS, [2, 4, 8]);
  if (hasLocks) for (const operation of ["acquire-block", "release"] as const) weights.set(operation, 10);
  // Some of them have little else, so that clients really wait for each other.
  const isAboutLocks = hasLocks && random.chance(0.5);
  if (isAboutLocks) {
    for (const operation of OPERATIONS) {
      if (operation !== "grant" && operation !== "keep-alive")
        weights.set(operation, (weights.get(operation) ?? 0) / 5);
    }
  }
  if (hasStrings) add(STRING_OPERATIONS, [1, 2, 4]);
  if (random.chance(0.5)) weights.set("step", random.pick([1, 4]));
  if (!isAboutLocks) return { ...workload, weights };
  const { clients, keys, leaseIds, patienceMs, thinkMsMean } = workload;
  return {
    ...workload,
    weights,
    clients: Math.max(3, clients),
    keys: Math.min(3, keys),
    leaseIds: Math.min(2, leaseIds),
    patienceMs: Math.max(patienceMs, 20 * thinkMsMean),
  };
}

function chooseWorkload(random: Random, ttlChoicesMs: readonly number[], thinkMsMean: number): Workload {
  const isCalm = random.chance(0.4);
  const weights = new Map<Operation, number>();
  for (const operation of OPERATIONS) {
    const isOff = random.chance(0.35) || (isCalm && DISTURBING.has(operation));
    weights.set(operation, isOff ? 0 : random.pick([1, 2, 4]));
  }
  for (const operation of ["grant", "keep-alive", "attach"] as const) weights.set(operation, random.pick([4, 8, 12]));
  for (const operation of ["flush-database", "flush-all"] as const) {
    weights.set(operation, Math.min(0.5, weights.get(operation) ?? 0));
  }
  return {
    isCalm,
    clients: random.integer(1, 5),
    requests: random.pick([100, 300, 600, 1000]),
    thinkMsMean,
    pipelineMax: random.pick([1, 1, 2, 4, 16]),
    weights,
    ttlChoicesMs,
    leaseIds: random.integer(1, 5),
    sharedIds: !isCalm && random.chance(0.5),
    keys: random.integer(1, 6),
    paddingBytes: random.pick([0, 0, 0, 20, 240]),
    databases: random.pick([1, 1, 2]),
    nonceChance: random.pick([0, 0.5, 1]),
    retryChance: random.pick([0, 0.5, 1]),
    breakChance: random.chance(0.5) ? random.pick([0.005, 0.02, 0.1]) : 0,
    patienceMs: Math.max(5, thinkMsMean * random.pick([2, 20, 200])),
  };
}

function chooseWire(random: Random, thinkMsMean: number): WireOptions {
  return {
    delayMsMean: random.pick([0.02, 0.2, 1, Math.min(50, thinkMsMean)]),
    slowChance: random.chance(0.5) ? random.pick([0.01, 0.1]) : 0,
    slowMsMax: random.pick([10, 100, 1000]),
  };
}

function chooseConditions(random: Random): NodeConditions {
  const conditions = {
    clockErrorMax: random.chance(0.6) ? CLOCK_ERROR_MAX : 0,
    timerEarlyMsMax: random.chance(0.5) ? 1 : 0,
    timerLateMsMean: random.pick([0.1, 1, 10]),
    pauseChance: random.chance(0.3) ? random.pick([0.0005, 0.005]) : 0,
    pauseMsMax: random.pick([10, 100, 1000]),
    batchBytesMax: random.pick([1, 100, 500, 8_000_000]),
    limits: {
      ...DEFAULT_ENGINE_LIMITS,
      ...(random.chance(0.2) ? { leasesMax: random.integer(1, 6) } : {}),
      ...(random.chance(0.2) ? { keysMax: random.integer(1, 6) } : {}),
      ...(random.chance(0.2) ? { keysPerLeaseMax: random.integer(1, 3) } : {}),
    },
    hasListeners: random.chance(0.6),
    stepMax: random.chance(0.5) ? random.integer(1, 3) : Infinity,
  };
  const { limits, stepMax } = conditions;
  return { ...conditions, limits: { ...limits, keysEndedAtOnceMax: Math.min(limits.keysEndedAtOnceMax, stepMax) } };
}

function chooseDiskTimes(random: Random, thinkMsMean: number): DiskTimes {
  return {
    writeMsMean: random.pick([0.01, 0.1, 1]),
    syncMsMean: random.pick([0.1, 0.3, 3, Math.min(100, thinkMsMean * 3)]),
    stallChance: random.chance(0.4) ? random.pick([0.005, 0.05]) : 0,
    stallMsMax: random.pick([50, 1000, 5000]),
    pageDelayMsMean: random.pick([0.01, 1, 20]),
  };
}

function chooseDiskFaults(random: Random, thinkMsMean: number): DiskFaults {
  const isOn = random.chance(0.4);
  const sometimes = (chances: readonly number[]): number => (isOn && random.chance(0.5) ? random.pick(chances) : 0);
  return {
    commitFailChance: sometimes([0.002, 0.01]),
    fullChance: sometimes([0.002, 0.01]),
    fullMsMax: thinkMsMean * 100,
    loadFailChance: sometimes([0.02, 0.1]),
    flipChance: sometimes([0.02, 0.1]),
  };
}

function chooseOperator(random: Random, durationMs: number, thinkMsMean: number): OperatorRates {
  const sometimes = (probability: number, perRun: readonly number[]): number =>
    random.chance(probability) ? durationMs / random.pick(perRun) : Infinity;
  return {
    crashMs: sometimes(0.5, [1, 5, 20]),
    stopMs: sometimes(0.25, [1, 5]),
    stepDownMs: sometimes(0.35, [1, 5, 20]),
    holdMs: sometimes(0.3, [1, 5, 20]),
    wallJumpMs: sometimes(0.3, [5]),
    listenMs: sometimes(0.3, [5, 50]),
    rivalMs: sometimes(0.1, [3]),
    downMsMean: thinkMsMean * random.pick([0.1, 2, 10]),
    holdMsMax: random.pick([5, 100, 2000]),
  };
}
