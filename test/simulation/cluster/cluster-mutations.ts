import type { RoleKeeper, RoleKeeperOptions } from "#src/cluster/role-keeper.js";
import { SuspendGuard } from "#src/cluster/suspend-guard.js";
import { ReleaseQueue } from "#src/durability/release-queue.js";
import { Engine } from "#src/engine/engine.js";
import type { Session } from "#src/ports.js";
import { simulateCluster, type ClusterSimulationOptions, type ClusterSimulationResult } from "./cluster-simulation.js";
import type { ClusterFaults, ClusterSwarm } from "./cluster-swarm.js";
import { mutantUrl, type Edit } from "./mutant-module.js";
import { replace } from "../replace.js";
import type { ClusterRule } from "./rules.js";
import type { StoreBugs } from "./sim-shared-store.js";

/**
 * Deliberate bugs of the role protocol: each breaks one thing that the safety argument rests on, and the simulation has to find it.
 *
 * Production code has no switch for any of this. A bug of the store is one of the simulated store's; a public method of a real class is
 * replaced for the time of one run; what is private to the keeper of the role is changed in the text of a copy of it.
 */

export interface ClusterMutation {
  /** What is wrong. */
  readonly bug: string;
  /** The rules that may notice. */
  readonly foundBy: readonly ClusterRule[];
  readonly storeBugs?: Partial<StoreBugs>;
  readonly adjust?: (swarm: ClusterSwarm) => ClusterSwarm;
  /** Puts the bug in; returns what takes it out again. */
  readonly install?: () => () => void;
  /** Text of the keeper of the role, and what stands there instead. */
  readonly keeper?: readonly Edit[];
  /** What only rules about rows and clients may find: it is to be seen by those whom it hurts. */
  readonly rulesOff?: readonly ClusterRule[];
}

type KeeperClass = new (options: RoleKeeperOptions) => RoleKeeper;

/** More of the faults that show it, in terms of the role's duration. */
const withFaults =
  (
    make: (roleMs: number) => Partial<ClusterFaults>,
    more: (swarm: ClusterSwarm) => Partial<ClusterSwarm> = () => ({}),
  ) =>
  (swarm: ClusterSwarm): ClusterSwarm => ({
    ...swarm,
    ...more(swarm),
    faults: { ...swarm.faults, ...make(swarm.times.roleMs) },
  });

/** Requests that come late, after their sender gave them up. */
export const withLateRequests = (swarm: ClusterSwarm): ClusterSwarm => ({
  ...swarm,
  link: { ...swarm.link, lateRequestChance: 0.1, lateMsMax: 2 * swarm.times.roleMs },
});

/** Answers that may take half of the role's duration before the way is cut, and clients that ask all the time. */
const withSlowAnswers = (swarm: ClusterSwarm): ClusterSwarm => ({
  ...withFaults((roleMs) => ({ partitionMs: roleMs, partitionMsMax: 3 * roleMs }))(swarm),
  times: { ...swarm.times, requestTimeoutMs: swarm.times.roleMs / 2 },
  workload: { ...swarm.workload, clients: 5, thinkMsMean: 50, ttlsMs: [300, 3_000] },
});

/** Short pauses of the process at any time, most of them shorter than the role lasts. */
const withPauses = withFaults((roleMs) => ({ pauseMs: roleMs / 2, pauseMsMax: 1.5 * roleMs }));

export const CLUSTER_MUTATIONS = {
  "no-margin": {
    bug: "the primary stops no earlier than candidates begin, and clocks are 3 % off",
    foundBy: ["S1-one-primary"],
    adjust: (swarm) => ({
      ...withFaults((roleMs) => ({ partitionMs: roleMs, partitionMsMax: 3 * roleMs }))(swarm),
      times: { ...swarm.times, marginMs: 0 },
      nodeClockErrorMax: 0.03,
      clockErrorPerMille: 70,
    }),
  },
  "no-margin-for-freezes": {
    bug: "the margin covers clocks, and no pause that they do not count",
    foundBy: ["S1-one-primary"],
    adjust: (swarm) => ({
      ...withFaults((roleMs) => ({ freezeMs: roleMs / 2, partitionMs: roleMs, partitionMsMax: 3 * roleMs }))(swarm),
      times: { ...swarm.times, marginMs: 20 },
    }),
  },
  "no-fence": {
    bug: "commits are not guarded by the fence",
    foundBy: ["S2-one-history", "S2-kept", "S2-ended", "S3-early-end", "S4-exclusion", "S4-tokens"],
    storeBugs: { commitsWithoutFence: true },
    adjust: withLateRequests,
  },
  "no-fence-seen-by-rows": {
    bug: "commits are not guarded by the fence; the order of batches is not watched",
    foundBy: ["S2-kept", "S2-ended", "S3-early-end", "S4-exclusion", "S4-tokens", "liveness"],
    storeBugs: { commitsWithoutFence: true },
    adjust: withLateRequests,
    rulesOff: ["S2-one-history"],
  },
  "unknown-is-repeated": {
    bug: "a batch without an answer is sent again under the same fence",
    foundBy: ["S2-one-history", "S2-ended", "S4-exclusion", "S4-tokens"],
    storeBugs: { repeatsWithoutNewFence: true },
    adjust: withLateRequests,
  },
  "unknown-is-refused": {
    bug: "when the outcome of a batch stays unknown its clients are told that they did not get what they asked for",
    foundBy: ["S2-ended", "S3-early-end"],
    install: answerNilInsteadOfNothing,
    adjust: (swarm) =>
      withFaults((roleMs) => ({ partitionMs: roleMs / 2, partitionMsMax: 2 * roleMs }))({
        ...swarm,
        workload: { ...swarm.workload, repeatChance: 0, patienceMs: 10_000 },
      }),
  },
  "counted-from-receipt": {
    bug: "the primary counts its time from the answer to a beat instead of from before it was sent",
    foundBy: ["S1-one-primary"],
    keeper: [
      [
        "this.#extend(sentAtMs, sleeps);\n                this.#lastBeatAtMs",
        "this.#extend(nowMs, sleeps);\n                this.#lastBeatAtMs",
      ],
    ],
    adjust: withSlowAnswers,
  },
  "candidate-does-not-wait": {
    bug: "a candidate takes over from whatever it sees",
    foundBy: ["S1-one-primary"],
    keeper: [["this.#viewSinceMs + times.roleMs", "this.#viewSinceMs"]],
  },
  "candidate-does-not-look-at-beats": {
    bug: "a take-over is guarded by the fence alone: beats that a candidate did not see do not stop it",
    foundBy: ["S1-one-primary"],
    storeBugs: { takesOverWithoutBeat: true },
    adjust: withFaults((roleMs) => ({
      partitionMs: roleMs / 4,
      partitionMsMax: 2 * roleMs,
      pauseMs: roleMs,
      pauseMsMax: 2 * roleMs,
    })),
  },
  "acts-after-its-time": {
    bug: "the primary does not ask whether its time is over, but once per tick",
    foundBy: ["S1-one-primary"],
    keeper: [["if (nowMs >= this.#validUntilMs)\n            return false;", ""]],
    adjust: withPauses,
  },
  "no-suspend-guard": {
    bug: "a machine that slept goes on as if it had not",
    foundBy: ["S1-one-primary"],
    install: () => replace(SuspendGuard.prototype, "hasSlept", () => () => false),
    adjust: withFaults((roleMs) => ({ suspendMs: roleMs / 2, suspendMsMax: 3 * roleMs })),
  },
  "deadlines-are-inherited": {
    bug: "a new primary counts the TTLs of leases from when the old one was last heard of",
    foundBy: ["S3-early-end"],
    install: () =>
      replace(
        Engine.prototype,
        "beginRebuild",
        (beginRebuild) =>
          function early(this: Engine, turn) {
            beginRebuild.call(this, { nowMs: turn.nowMs - 2_000, unixMs: turn.unixMs });
          },
      ),
    adjust: withFaults((roleMs) => ({ crashMs: roleMs, failoverMs: roleMs })),
  },
} as const satisfies Readonly<Record<string, ClusterMutation>>;

export type ClusterMutationName = keyof typeof CLUSTER_MUTATIONS;

/** Replies that are dropped with the role are answered nil. */
function answerNilInsteadOfNothing(): () => void {
  const parked = new WeakMap<ReleaseQueue, { readonly session: Session; readonly ticket: number }[]>();
  const undoPark = replace(
    ReleaseQueue.prototype,
    "park",
    (park) =>
      function noting(this: ReleaseQueue, revision, session, ticket, reply) {
        parked.set(this, [...(parked.get(this) ?? []), { session, ticket }]);
        park.call(this, revision, session, ticket, reply);
      },
  );
  const undoDeliver = replace(
    ReleaseQueue.prototype,
    "release",
    (release) =>
      function forgetting(this: ReleaseQueue, revision) {
        release.call(this, revision);
        if (this.size === 0) parked.delete(this);
      },
  );
  const undoDiscard = replace(
    ReleaseQueue.prototype,
    "discard",
    (discard) =>
      function answering(this: ReleaseQueue) {
        const waiting = this.size;
        for (const { session, ticket } of (parked.get(this) ?? []).slice(-waiting)) session.deliver(ticket, null);
        return discard.call(this);
      },
  );
  return () => {
    undoPark();
    undoDeliver();
    undoDiscard();
  };
}

async function importKeeper(edits: readonly Edit[]): Promise<KeeperClass> {
  const module = (await import(mutantUrl("#src/cluster/role-keeper.js", edits))) as {
    readonly RoleKeeper: KeeperClass;
  };
  return module.RoleKeeper;
}

/** Prepares a mutation; what comes back runs one seed with it. */
export async function prepareClusterMutation(
  name: ClusterMutationName,
): Promise<(seed: number, options?: Pick<ClusterSimulationOptions, "verbose">) => ClusterSimulationResult> {
  const mutation: ClusterMutation = CLUSTER_MUTATIONS[name];
  const Keeper = mutation.keeper === undefined ? null : await importKeeper(mutation.keeper);
  return (seed, options = {}) => {
    const undo = mutation.install?.() ?? (() => undefined);
    try {
      return simulateCluster(seed, {
        ...options,
        ...(mutation.adjust === undefined ? {} : { adjust: mutation.adjust }),
        ...(mutation.storeBugs === undefined ? {} : { storeBugs: mutation.storeBugs }),
        ...(Keeper === null ? {} : { Keeper }),
        ...(mutation.rulesOff === undefined ? {} : { rulesOff: mutation.rulesOff }),
      });
    } finally {
      undo();
    }
  };
}
