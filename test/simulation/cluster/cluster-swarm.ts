import { CLOCK_RATE_ERROR_MAX, safeMarginMs, UNCOUNTED_PAUSE_MS_MAX, type RoleTimes } from "#src/cluster/role-times.js";
import { SUSPEND_MS_MIN } from "#src/cluster/suspend-guard.js";
import { DEFAULT_ENGINE_LIMITS } from "#src/engine/limits.js";
import type { Random } from "../random.js";
import type { Workload } from "./cluster-client.js";
import type { LinkTimes } from "./sim-link.js";

/** What one seed switches on. Infinity: never. */
export interface ClusterSwarm {
  readonly nodes: number;
  /** Nodes from this index on never take the role. */
  readonly candidates: number;
  readonly times: RoleTimes;
  /** Bound of the rate error of the nodes' clocks. */
  readonly nodeClockErrorMax: number;
  readonly clientClockErrorMax: number;
  /** By how much deadlines are padded for that, in thousandths. */
  readonly clockErrorPerMille: number;
  readonly link: LinkTimes;
  readonly pageRows: number;
  /** Of the real etcd store: what one transaction may hold. A batch of more goes through the journal. */
  readonly txnOperationsMax: number;
  readonly txnBytesMax: number;
  readonly workload: Workload;
  /** How long faults go on. */
  readonly safetyMs: number;
  readonly faults: ClusterFaults;
}

/** Mean times between faults of a kind, in milliseconds. */
export interface ClusterFaults {
  readonly crashMs: number;
  readonly stopMs: number;
  readonly failoverMs: number;
  readonly downMsMean: number;
  /** SIGSTOP; up to so long. */
  readonly pauseMs: number;
  readonly pauseMsMax: number;
  readonly suspendMs: number;
  readonly suspendMsMax: number;
  readonly freezeMs: number;
  readonly freezeMsMax: number;
  /** The chance that a machine stands still just when a request was sent, or a connection's clock was read. */
  readonly momentChance: number;
  readonly partitionMs: number;
  readonly partitionMsMax: number;
  readonly outageMs: number;
  readonly outageMsMax: number;
  readonly slowMs: number;
  readonly watchStuckMs: number;
  readonly compactMs: number;
  readonly wallJumpMs: number;
  readonly breakMs: number;
}

/** Sound times for a role of this length: the least margin that is safe, so that every millisecond of it is on trial. */
function soundTimes(roleMs: number): RoleTimes {
  const marginMs = safeMarginMs(roleMs);
  const beatMs = Math.round(roleMs / 8);
  const requestTimeoutMs = Math.floor((roleMs - marginMs - beatMs) / 2 - 250);
  return { roleMs, marginMs, beatMs, requestTimeoutMs };
}

export function chooseClusterSwarm(random: Random): ClusterSwarm {
  const times = soundTimes(random.pick([2_000, 2_000, 2_000, 2_000, 3_000, 6_000]));
  const { roleMs, requestTimeoutMs } = times;
  const nodes = random.pick([2, 3, 3, 3]);
  const isLossy = random.chance(0.4);
  return {
    nodes,
    candidates: random.chance(0.15) ? nodes - 1 : nodes,
    times,
    nodeClockErrorMax: CLOCK_RATE_ERROR_MAX,
    // A deadline is padded by 2 in a thousand, a hair less than two clocks of 1 in a thousand can differ by.
    clientClockErrorMax: 0.000_99,
    clockErrorPerMille: DEFAULT_ENGINE_LIMITS.clockErrorPerMille,
    link: {
      delayMsMean: random.pick([0.5, 2, 10, 40]),
      slowChance: random.pick([0, 0, 0.02, 0.1]),
      slowMsMax: requestTimeoutMs * random.pick([0.5, 1.5]),
      loseRequestChance: isLossy ? random.pick([0.005, 0.03]) : 0,
      lateRequestChance: isLossy ? random.pick([0, 0.02, 0.05]) : 0,
      lateMsMax: 4 * roleMs,
      loseAnswerChance: isLossy ? random.pick([0.005, 0.03]) : 0,
    },
    pageRows: random.pick([1, 3, 100]),
    txnOperationsMax: random.pick([4, 8, 128]),
    txnBytesMax: random.pick([500, 1_400_000]),
    workload: {
      clients: random.integer(2, 5),
      keys: random.integer(1, 3),
      thinkMsMean: random.pick([50, 200, 800]),
      ttlsMs: random.pick([[300, 1_000], [1_000, 5_000], [4_000], [500, 3_000, 10_000]]),
      blockMsMax: random.pick([200, 2_000, 8_000]),
      patienceMs: random.pick([300, 1_000, 3_000]),
      repeatChance: random.pick([0, 0.3]),
      abandonChance: random.pick([0, 0.2, 0.5]),
      askChance: random.pick([0, 0.5, 1]),
    },
    safetyMs: roleMs * random.between(5, 9),
    faults: chooseFaults(random, times),
  };
}

function chooseFaults(random: Random, { roleMs }: RoleTimes): ClusterFaults {
  const now = (chance: number, times: number): number => (random.chance(chance) ? roleMs * times : Infinity);
  return {
    crashMs: now(0.35, 3),
    stopMs: now(0.25, 3),
    failoverMs: now(0.25, 3),
    downMsMean: roleMs * random.pick([0.05, 0.5]),
    pauseMs: now(0.45, 2),
    pauseMsMax: roleMs * random.pick([0.5, 1.2, 3]),
    suspendMs: now(0.3, 2),
    suspendMsMax: random.pick([SUSPEND_MS_MIN, roleMs, 3 * roleMs]),
    freezeMs: now(0.3, 1.5),
    freezeMsMax: UNCOUNTED_PAUSE_MS_MAX,
    momentChance: random.pick([0, 0, 0.002]),
    partitionMs: now(0.35, 2),
    partitionMsMax: roleMs * random.pick([0.5, 2]),
    outageMs: now(0.15, 4),
    outageMsMax: roleMs * random.pick([0.3, 2]),
    slowMs: now(0.2, 2),
    watchStuckMs: now(0.3, 2),
    compactMs: now(0.3, 1),
    wallJumpMs: now(0.3, 1),
    breakMs: now(0.3, 0.5),
  };
}
