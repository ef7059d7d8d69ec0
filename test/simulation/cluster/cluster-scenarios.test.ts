import { describe, expect, test } from "vitest";
import { simulateCluster, reportOfCluster, type ClusterControl } from "./cluster-simulation.js";
import type { ClusterSwarm } from "./cluster-swarm.js";

/**
 * One fault at a time, in a cluster that is otherwise well, with the times that are the default: how long nobody serves. All rules of
 * the simulation hold meanwhile.
 */

const ROLE_MS = 6_000;
const BEAT_MS = 1_000;
const FAULT_AT_MS = 20_000;

/** Ticks, the random part of a candidate's wait, round trips, the load. */
const SLACK_MS = BEAT_MS / 2 + 500;

const SEEDS = [1, 2, 3];

/** Nothing goes wrong. */
function calm(swarm: ClusterSwarm): ClusterSwarm {
  return {
    ...swarm,
    nodes: 3,
    candidates: 3,
    times: { roleMs: ROLE_MS, marginMs: 500, beatMs: BEAT_MS, requestTimeoutMs: 1_000 },
    link: {
      ...swarm.link,
      delayMsMean: 1,
      slowChance: 0,
      loseRequestChance: 0,
      lateRequestChance: 0,
      loseAnswerChance: 0,
    },
    workload: { ...swarm.workload, clients: 3, thinkMsMean: 100, ttlsMs: [1_000, 5_000], patienceMs: 1_000 },
    safetyMs: 58_000,
    faults: {
      ...swarm.faults,
      crashMs: Infinity,
      stopMs: Infinity,
      failoverMs: Infinity,
      downMsMean: 500,
      pauseMs: Infinity,
      suspendMs: Infinity,
      freezeMs: Infinity,
      momentChance: 0,
      partitionMs: Infinity,
      outageMs: Infinity,
      slowMs: Infinity,
      watchStuckMs: Infinity,
      compactMs: Infinity,
      wallJumpMs: Infinity,
      breakMs: Infinity,
    },
  };
}

interface Outcome {
  /** Who served when the fault came, and at the end of the faults. */
  readonly before: string;
  readonly after: string;
  /** For how long, in all, nobody served after the fault. */
  readonly outageMs: number;
}

const SAMPLE_MS = 5;

/** Runs one seed with one fault. */
function withFault(
  seed: number,
  act: (control: ClusterControl, index: number) => void,
  more: (swarm: ClusterSwarm) => Partial<ClusterSwarm> = () => ({}),
): Outcome {
  let before = "";
  let after = "";
  let outageMs = 0;
  const operator = (control: ClusterControl): void => {
    const { world } = control;
    const sample = (): void => {
      const primary = control.primary();
      if (primary === null) outageMs += SAMPLE_MS;
      else after = primary.incarnation;
      world.after(SAMPLE_MS, sample);
    };
    world.at(FAULT_AT_MS, () => {
      const primary = control.primary();
      if (primary === null) throw new Error("nobody serves before the fault");
      before = primary.incarnation;
      world.trace(`scenario: the fault, with ${before} as primary`);
      act(control, primary.index);
      sample();
    });
  };
  const result = simulateCluster(seed, { adjust: (swarm) => ({ ...calm(swarm), ...more(calm(swarm)) }), operator });
  if (result.failure !== null) expect.fail(reportOfCluster(result));
  return { before, after, outageMs };
}

describe("how long nobody serves", () => {
  test("after the primary is killed: the role's duration", () => {
    for (const seed of SEEDS) {
      const { before, after, outageMs } = withFault(seed, ({ primary }) => primary()?.crash());
      expect(after).not.toBe(before);
      // Its newest beat was up to a beat's time ago.
      expect(outageMs).toBeGreaterThan(ROLE_MS - BEAT_MS - 200);
      expect(outageMs).toBeLessThan(ROLE_MS + SLACK_MS);
    }
  });

  test("after a graceful stop, or FAILOVER: no time worth speaking of", () => {
    for (const seed of SEEDS) {
      const stopped = withFault(seed, ({ primary }) => primary()?.stop());
      expect(stopped.after).not.toBe(stopped.before);
      expect(stopped.outageMs).toBeLessThan(500);
      const moved = withFault(seed, ({ primary }) => primary()?.failover());
      expect(moved.after).not.toBe(moved.before);
      expect(moved.outageMs).toBeLessThan(500);
    }
  });

  test("after a pause shorter than the role's rest: the pause; after a longer one another serves, and goes on serving", () => {
    for (const seed of SEEDS) {
      const short = withFault(seed, ({ primary }) => primary()?.host.standStill(2_000, "stop"));
      expect(short.after).toBe(short.before);
      expect(short.outageMs).toBeLessThan(2_100);
      const long = withFault(seed, ({ primary }) => primary()?.host.standStill(15_000, "stop"));
      expect(long.after).not.toBe(long.before);
      expect(long.outageMs).toBeLessThan(ROLE_MS + SLACK_MS);
    }
  });

  test("after a machine slept a moment: a load, for it knows that its former tenure has ended", () => {
    for (const seed of SEEDS) {
      const { before, after, outageMs } = withFault(seed, ({ primary }) =>
        primary()?.host.standStill(1_000, "suspend"),
      );
      expect(after).toBe(before);
      expect(outageMs).toBeLessThan(1_000 + BEAT_MS + SLACK_MS);
    }
  });

  test("after the primary is cut off from the store: the role's duration, whichever way is cut", () => {
    for (const seed of SEEDS) {
      for (const ways of [["upCutUntilMs"], ["downCutUntilMs"], ["upCutUntilMs", "downCutUntilMs"]] as const) {
        const { before, after, outageMs } = withFault(seed, ({ links, world }, index) => {
          const link = links[index];
          for (const way of ways) if (link !== undefined) link[way] = world.nowMs + 20_000;
        });
        // Cut off one way, a batch without an answer moves the fence: candidates begin to wait anew.
        expect(after).not.toBe(before);
        expect(outageMs).toBeLessThan(ROLE_MS + SLACK_MS + (ways.length === 1 ? 4_000 : 0));
      }
    }
  });

  test("a standby that is cut off, or killed, is not noticed", () => {
    for (const seed of SEEDS) {
      const { before, after, outageMs } = withFault(seed, ({ links, nodes, world }, index) => {
        const standbys = nodes().filter((node) => node.index !== index);
        for (const link of links)
          if (link !== links[index]) link.upCutUntilMs = link.downCutUntilMs = world.nowMs + 15_000;
        standbys[0]?.crash();
      });
      expect(after).toBe(before);
      expect(outageMs).toBe(0);
    }
  });

  test("the store is away for half a minute: somebody serves again soon after it is back", () => {
    for (const seed of SEEDS) {
      const awayMs = 30_000;
      const { outageMs } = withFault(seed, ({ shared, world }) => {
        shared.outUntilMs = world.nowMs + awayMs;
      });
      expect(outageMs).toBeGreaterThan(awayMs - ROLE_MS);
      expect(outageMs).toBeLessThan(awayMs + ROLE_MS + SLACK_MS + 2_000);
    }
  });

  test("the store is away for less than a role lasts: nobody loses it", () => {
    for (const seed of SEEDS) {
      const { before, after, outageMs } = withFault(seed, ({ shared, world }) => {
        shared.outUntilMs = world.nowMs + 2_000;
      });
      expect(after).toBe(before);
      expect(outageMs).toBe(0);
    }
  });

  test("with one candidate: a node that should only stand by does, and the role waits for the one", () => {
    for (const seed of SEEDS) {
      const { before, after } = withFault(
        seed,
        ({ primary }) => primary()?.crash(),
        () => ({ candidates: 1 }),
      );
      expect(before.startsWith("n0.")).toBe(true);
      expect(after.startsWith("n0.")).toBe(true);
      expect(after).not.toBe(before);
    }
  });
});
