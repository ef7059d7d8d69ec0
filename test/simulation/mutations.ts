import { Committer } from "#src/durability/committer.js";
import { ReleaseQueue } from "#src/durability/release-queue.js";
import type { Command } from "#src/engine/command.js";
import { Shortening } from "#src/engine/draft.js";
import { Engine, type Decision } from "#src/engine/engine.js";
import { NO_LEASE } from "#src/engine/lease-table.js";
import type { Op, Revision } from "#src/engine/op.js";
import type { Reply } from "#src/engine/reply.js";
import type { Session } from "#src/ports.js";
import { simulate, type SimulationOptions, type SimulationResult } from "./simulation.js";
import type { DiskBugs } from "./sim-store.js";
import type { Swarm } from "./swarm.js";
import type { RuleName } from "./violation.js";

/**
 * Deliberate bugs. Each replaces a piece of the real server, or of the store below it, by one that is wrong in one way; the
 * simulation has to find it. That is how we know that a run without findings means something.
 *
 * Production code has no switch for any of this: methods of the real classes are replaced for the time of one run.
 */

export interface Mutation {
  /** What is wrong. */
  readonly bug: string;
  /** The rule that has to notice; "harmless": the server has to stand it. */
  readonly foundBy: readonly RuleName[] | "harmless";
  /** Puts the bug in; returns what takes it out again. */
  readonly install?: () => () => void;
  readonly diskBugs?: Partial<DiskBugs>;
  readonly sessionsKeepOldReadings?: boolean;
  readonly adjust?: (swarm: Swarm) => Swarm;
}

/** Replaces a method for the time of a run. */
function replace<Owner extends object, Name extends keyof Owner>(
  owner: Owner,
  name: Name,
  make: (original: Owner[Name]) => Owner[Name],
): () => void {
  const original = owner[name];
  owner[name] = make(original);
  return () => {
    owner[name] = original;
  };
}

/** Changes decisions of the real engine before they are carried out. */
function changeDecisions(change: (engine: Engine, command: Command, decision: Decision) => Decision): () => void {
  return replace(
    Engine.prototype,
    "decide",
    (decide) =>
      function changed(this: Engine, command, turn, origin) {
        return change(this, command, decide.call(this, command, turn, origin));
      },
  );
}

/** As if the clock stood still at the beginning of time while these commands are decided. */
function decideWithoutTime(kind: Command["kind"], nowMs: number): () => void {
  return replace(
    Engine.prototype,
    "decide",
    (decide) =>
      function timeless(this: Engine, command, turn, origin) {
        const isMeant = command.kind === kind;
        return decide.call(this, command, isMeant ? { nowMs, unixMs: turn.unixMs } : turn, origin);
      },
  );
}

/** More crashes than usual: what only a crash can show. */
const withCrashes = (swarm: Swarm): Swarm => ({
  ...swarm,
  operator: { ...swarm.operator, crashMs: (swarm.workload.requests * swarm.workload.thinkMsMean) / 20 },
});

export const MUTATIONS = {
  "store-acknowledges-before-sync": {
    bug: "the store says durable when a batch is written, before it is synced",
    foundBy: ["release"],
    diskBugs: { acknowledgesBeforeSync: true },
  },
  "store-swallows-failures": {
    bug: "a failed sync is reported as a success",
    foundBy: ["release"],
    diskBugs: { swallowsFailures: true },
    adjust: (swarm) => ({ ...swarm, diskFaults: { ...swarm.diskFaults, commitFailChance: 0.02 } }),
  },
  "store-tears-batches": {
    bug: "after a crash the store may hold half of a batch",
    foundBy: ["recovery", "I3-grants-survive", "ops"],
    diskBugs: { tearsBatches: true },
    adjust: withCrashes,
  },
  "release-lets-everything-go": {
    bug: "when a batch is durable, the replies of the next one leave with it",
    foundBy: ["release"],
    install: () => {
      const parked = new WeakMap<ReleaseQueue, { session: Session; ticket: number; reply: Reply }[]>();
      const undoPark = replace(
        ReleaseQueue.prototype,
        "park",
        () =>
          function park(this: ReleaseQueue, _revision: Revision, session, ticket, reply) {
            const entries = parked.get(this) ?? [];
            entries.push({ session, ticket, reply });
            parked.set(this, entries);
          },
      );
      const undoForget = replace(
        ReleaseQueue.prototype,
        "forget",
        () =>
          function forget(this: ReleaseQueue, session) {
            const entries = parked.get(this) ?? [];
            parked.set(
              this,
              entries.filter((entry) => entry.session !== session),
            );
          },
      );
      const undoRelease = replace(
        ReleaseQueue.prototype,
        "release",
        () =>
          function release(this: ReleaseQueue) {
            const entries = parked.get(this) ?? [];
            parked.set(this, []);
            for (const { session, ticket, reply } of entries) session.deliver(ticket, reply);
          },
      );
      return () => {
        undoPark();
        undoForget();
        undoRelease();
      };
    },
  },
  "reads-do-not-wait": {
    bug: "a reply that changes nothing leaves at once, whatever it saw",
    foundBy: ["release"],
    install: () =>
      changeDecisions((_engine, _command, decision) =>
        decision.ops.length === 0 ? { ...decision, sawRevision: 0 } : decision,
      ),
  },
  "absence-does-not-wait": {
    bug: "a reply that says 'nothing there' does not wait for the removal that it saw",
    foundBy: ["release"],
    install: () =>
      changeDecisions((_engine, command, decision) => {
        const isAbsent = decision.reply === null && command.kind === "key-get" && decision.ops.length === 0;
        return isAbsent ? { ...decision, sawRevision: 0 } : decision;
      }),
  },
  "forgotten-sessions-get-replies": {
    bug: "replies of a connection that is gone are delivered all the same",
    foundBy: ["I8-replies"],
    install: () => replace(ReleaseQueue.prototype, "forget", () => () => undefined),
  },
  "keep-alive-revives-the-dead": {
    bug: "a keep-alive does not look at the deadline: until the tick comes it revives a dead lease",
    foundBy: ["I6-dead-is-dead"],
    install: () => decideWithoutTime("lease-keepalive", -Infinity),
  },
  "turns-keep-old-readings": {
    bug: "a connection that was held up goes on with the clock reading from before its input arrived",
    foundBy: ["I5-early-expiry"],
    sessionsKeepOldReadings: true,
    adjust: (swarm) => ({
      ...swarm,
      workload: { ...swarm.workload, pipelineMax: 16 },
      node: { ...swarm.node, batchBytesMax: 1 },
      diskTimes: { ...swarm.diskTimes, stallChance: 0.05, stallMsMax: 1000 },
    }),
  },
  "expiry-does-not-look-again": {
    bug: "the tick's word is enough to end a lease, and it names leases that were renewed",
    foundBy: ["I5-early-expiry"],
    install: () => {
      const undoDue = nameEveryLease();
      const undoDecide = decideWithoutTime("lease-expire", Number.MAX_VALUE);
      return () => {
        undoDecide();
        undoDue();
      };
    },
  },
  "tick-names-too-many": {
    bug: "the tick names leases that are not due; the decision looks again",
    foundBy: "harmless",
    install: () => nameEveryLease(),
  },
  "deadlines-without-padding": {
    bug: "deadlines leave no room for clocks that run at different rates",
    foundBy: ["I5-early-expiry"],
    adjust: (swarm) => ({
      ...swarm,
      node: { ...swarm.node, clockErrorMax: 0.000_999, limits: { ...swarm.node.limits, clockErrorPerMille: 0 } },
    }),
  },
  "promise-shows-the-padding": {
    bug: "the time left that clients are told includes the padding",
    foundBy: ["I5-early-expiry", "I8-replies"],
    install: () =>
      changeDecisions((engine, command, decision) => {
        const { reply } = decision;
        if (command.kind !== "lease-ttl" || command.unit !== "ms" || typeof reply !== "number") return decision;
        const row = engine.state.leases.findLive(command.id);
        if (reply < 0 || row === NO_LEASE) return decision;
        const ttlMs = engine.state.leases.ttlMs(row);
        return { ...decision, reply: Math.min(reply + Math.ceil(ttlMs * 0.002), ttlMs) };
      }),
  },
  "revisions-start-again": {
    bug: "the high-water mark of revisions is not read back: tokens come twice",
    foundBy: ["I2-tokens", "recovery", "release"],
    install: () =>
      replace(
        Engine.prototype,
        "recoverRevision",
        (recoverRevision) =>
          function low(this: Engine, revision: Revision) {
            recoverRevision.call(this, Math.floor(revision / 2));
          },
      ),
  },
  "restart-gives-what-was-left": {
    bug: "after a restart a lease gets less than its full TTL",
    foundBy: ["I5-early-expiry"],
    adjust: withCrashes,
    install: () =>
      replace(
        Engine.prototype,
        "beginRebuild",
        (beginRebuild) =>
          function early(this: Engine, turn) {
            beginRebuild.call(this, { nowMs: turn.nowMs - 1000, unixMs: turn.unixMs });
          },
      ),
  },
  "restart-forgets-deadlines": {
    bug: "inherited leases get no deadline",
    foundBy: ["liveness", "I6-dead-is-dead", "I3-grants-survive"],
    adjust: withCrashes,
    install: () => replace(Engine.prototype, "rebuildSome", () => () => true),
  },
  "restart-forgets-nonces": {
    bug: "a grant that is asked for again after a restart is refused",
    foundBy: ["recovery", "I8-replies"],
    adjust: withCrashes,
    install: () =>
      replace(
        Engine.prototype,
        "recover",
        (recover) =>
          function forgetful(this: Engine, op: Op) {
            recover.call(this, op.kind === "lease-put" ? { ...op, request: null } : op);
          },
      ),
  },
  "longer-ttl-is-not-written": {
    bug: "SETTTL beyond the durable TTL stays in memory",
    foundBy: ["I5-early-expiry", "I3-grants-survive"],
    adjust: withCrashes,
    install: () =>
      changeDecisions((engine, command, decision) => {
        if (command.kind !== "lease-setttl" || !decision.ops.some((op) => op.kind === "lease-put")) return decision;
        const row = engine.state.leases.findLive(command.id);
        if (row === NO_LEASE || decision.ops.length > 1) return decision;
        return { ...decision, ops: [], sawRevision: 0, renewals: new Shortening(row, command.ttlMs) };
      }),
  },
  "attach-takes-without-force": {
    bug: "every attach is a FORCE",
    foundBy: ["I8-replies"],
    install: () =>
      replace(
        Engine.prototype,
        "decide",
        (decide) =>
          function forceful(this: Engine, command, turn, origin) {
            const isAttach = command.kind === "lease-attach";
            return decide.call(this, isAttach ? { ...command, force: true } : command, turn, origin);
          },
      ),
  },
  "tick-is-never-armed": {
    bug: "leases end only when somebody looks at them",
    foundBy: ["liveness"],
    install: () => replace(Engine.prototype, "nextDueMs", () => () => null),
  },
  "sweeping-waits-for-a-lease": {
    bug: "ended rows beyond one slice are kept until something else is due",
    foundBy: ["liveness"],
    adjust: (swarm) => ({ ...swarm, node: { ...swarm.node, stepMax: 1 } }),
    install: () =>
      replace(
        Engine.prototype,
        "nextDueMs",
        (nextDueMs) =>
          function onlyLeases(this: Engine) {
            return this.leases === 0 ? null : nextDueMs.call(this);
          },
      ),
  },
  "step-down-does-not-drain": {
    bug: "the role is given up with a batch in flight",
    foundBy: ["recovery", "ports", "I8-replies"],
    adjust: (swarm) => ({
      ...swarm,
      operator: { ...swarm.operator, stepDownMs: (swarm.workload.requests * swarm.workload.thinkMsMean) / 20 },
    }),
    install: () => replace(Committer.prototype, "drain", () => (done) => done()),
  },
} as const satisfies Readonly<Record<string, Mutation>>;

export type MutationName = keyof typeof MUTATIONS;

function nameEveryLease(): () => void {
  return replace(
    Engine.prototype,
    "dueLeases",
    (dueLeases) =>
      function every(this: Engine, nowMs, limit) {
        const due = dueLeases.call(this, nowMs, limit);
        if (due.ids.length === 0) return due;
        const { leases } = this.state;
        const ids: string[] = [];
        for (let row = 0; row < leases.rows.rowsEnd; row += 1) if (leases.isLive(row)) ids.push(leases.id(row));
        return { ids, keys: due.keys };
      },
  );
}

/** One seed with a deliberate bug. */
export function simulateMutation(
  name: MutationName,
  seed: number,
  options: Pick<SimulationOptions, "verbose"> = {},
): SimulationResult {
  const mutation: Mutation = MUTATIONS[name];
  const undo = mutation.install?.() ?? (() => undefined);
  try {
    return simulate(seed, {
      ...options,
      audit: false,
      ...(mutation.adjust === undefined ? {} : { adjust: mutation.adjust }),
      sessionsKeepOldReadings: mutation.sessionsKeepOldReadings ?? false,
      ...(mutation.diskBugs === undefined ? {} : { diskBugs: mutation.diskBugs }),
    });
  } finally {
    undo();
  }
}
