import { Committer } from "#src/durability/committer.js";
import { ReleaseQueue } from "#src/durability/release-queue.js";
import type { Command } from "#src/engine/command.js";
import { Shortening } from "#src/engine/draft.js";
import { BlockedSessions, GrantsUnderway } from "#src/blocked-sessions.js";
import { Chain, Link } from "#src/engine/chain.js";
import { Engine, type Decision } from "#src/engine/engine.js";
import { Waiter, Waiters } from "#src/engine/waiters.js";
import { NO_LEASE } from "#src/engine/lease-table.js";
import type { Op, Revision } from "#src/engine/op.js";
import { ErrorReply, type Reply } from "#src/engine/reply.js";
import { replace } from "./replace.js";
import { SimHost } from "./sim-host.js";
import { SimSession } from "./sim-session.js";
import type { Session } from "#src/ports.js";
import { simulate, type SimulationOptions, type SimulationResult } from "./simulation.js";
import type { DiskBugs } from "./sim-store.js";
import type { Operation, Swarm } from "./swarm.js";
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

/** Leases, and what keeps and shows them. */
const withLeases = (swarm: Swarm): Swarm => ({
  ...swarm,
  workload: {
    ...swarm.workload,
    weights: new Map<Operation, number>([
      ["grant", 8],
      ["keep-alive", 8],
      ["keep-alive-at-the-edge", 4],
      ["lease-ttl", 6],
      ["attach", 4],
      ["set-ttl", 1],
    ]),
  },
});

/** Locks, and little else: many clients, few keys, leases that live for a while. */
const withLocks = (swarm: Swarm): Swarm => ({
  ...swarm,
  workload: {
    ...swarm.workload,
    clients: 4,
    keys: 2,
    leaseIds: 2,
    patienceMs: 200 * swarm.workload.thinkMsMean,
    weights: new Map<Operation, number>([
      ["grant", 6],
      ["keep-alive", 6],
      ["revoke", 1],
      ["acquire", 3],
      ["acquire-block", 12],
      ["release", 8],
      ["release-token", 4],
    ]),
  },
});

/** Steps of several commands, most of which write. */
const withSteps = (swarm: Swarm): Swarm => {
  const { workload } = withLocks(swarm);
  return { ...swarm, workload: { ...workload, weights: new Map([...workload.weights, ["set", 4], ["step", 8]]) } };
};

const withStrings = (swarm: Swarm): Swarm => ({
  ...swarm,
  workload: {
    ...swarm.workload,
    keys: 2,
    weights: new Map<Operation, number>([
      ["set-nx", 6],
      ["set", 2],
      ["delete-if", 2],
      ["expire", 6],
      ["key-ttl", 2],
      ["get", 2],
      ["grant", 1],
    ]),
  },
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
    foundBy: ["I5-early-expiry", "linearizable"],
    sessionsKeepOldReadings: true,
    adjust: (swarm) => ({
      ...swarm,
      workload: { ...withLeases(swarm).workload, pipelineMax: 16, clients: 4, leaseIds: 2 },
      node: { ...swarm.node, batchBytesMax: 1 },
      diskTimes: { ...swarm.diskTimes, stallChance: 0.2, stallMsMax: 1000 },
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
    adjust: (swarm) => ({ ...withLeases(swarm), node: { ...swarm.node, clockErrorMax: 0.000_999 } }),
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
  // Locks, strings, steps
  "keys-are-handed-on-later": {
    bug: "a key that is set free is handed on by the tick, not in the turn that freed it",
    foundBy: ["I7-order", "atomic"],
    adjust: withLocks,
    install: () => {
      let calls = 0;
      return replace(
        Engine.prototype,
        "handOver",
        (handOver) =>
          function late(this: Engine, turn) {
            calls += 1;
            return calls % 2 === 1 ? null : handOver.call(this, turn);
          },
      );
    },
  },
  "handed-keys-do-not-wait": {
    bug: "who was handed a key is told before the release and the grant are durable",
    foundBy: ["release"],
    adjust: withLocks,
    install: () =>
      replace(
        ReleaseQueue.prototype,
        "park",
        (park) =>
          function early(this: ReleaseQueue, revision, session, ticket, reply) {
            const hasWaited = session instanceof SimSession && session.isBlocked && typeof reply === "number";
            if (hasWaited) session.deliver(ticket, reply);
            else park.call(this, revision, session, ticket, reply);
          },
      ),
  },
  "release-ignores-the-token": {
    bug: "a release under a stale token releases what the lease has now",
    foundBy: ["I8-replies"],
    adjust: withLocks,
    install: () =>
      replace(
        Engine.prototype,
        "decide",
        (decide) =>
          function careless(this: Engine, command, turn, origin) {
            // The key that the loop takes back is named by its token too; that one is right.
            const isRelease = command.kind === "lock-release";
            return decide.call(this, isRelease ? { ...command, token: null } : command, turn, origin);
          },
      ),
  },
  "last-come-first-served": {
    bug: "who comes last is handed the key first",
    foundBy: ["I7-order"],
    adjust: withLocks,
    install: () =>
      replace(
        Chain.prototype as Chain<unknown>,
        "append",
        (append) =>
          function unfair(this: Chain<unknown>, item: unknown): Link<unknown> {
            const { first } = this;
            const places: Chain<unknown> | null = item instanceof Waiter ? item.queue.places : null;
            if (first === null || places !== this) return append.call(this, item);
            const link = new Link(item);
            link.next = first;
            first.previous = link;
            this.first = link;
            this.count += 1;
            return link;
          },
      ),
  },
  "readers-pass-a-waiting-writer": {
    bug: "who finds a key free, or shared, gets it, whoever waits already",
    foundBy: ["I8-replies", "I7-order"],
    adjust: withLocks,
    install: () => {
      let isDeciding = false;
      const undoDecide = replace(
        Engine.prototype,
        "decide",
        (decide) =>
          function rude(this: Engine, command, turn, origin) {
            isDeciding = command.kind === "lock-acquire" && command.mode.kind !== "exclusive";
            const decision = decide.call(this, command, turn, origin);
            isDeciding = false;
            return decision;
          },
      );
      const undoQueue = replace(
        Waiters.prototype,
        "queue",
        (queue) =>
          function unseen(this: Waiters, databaseIndex, key) {
            return isDeciding ? null : queue.call(this, databaseIndex, key);
          },
      );
      return () => {
        undoQueue();
        undoDecide();
      };
    },
  },
  "acquire-repeats-an-old-token": {
    bug: "a lease that asks for a key again gets the token of its first time",
    foundBy: ["I8-replies"],
    adjust: withLocks,
    install: () => {
      const first = new Map<string, number>();
      return changeDecisions((_engine, command, decision) => {
        if (command.kind !== "lock-acquire" || typeof decision.reply !== "number") return decision;
        const name = `${command.id} ${command.key}`;
        const reply = first.get(name) ?? decision.reply;
        first.set(name, reply);
        return { ...decision, reply };
      });
    },
  },
  "turns-are-torn": {
    bug: "a batch may leave in the middle of a turn: half of a step, a release without the grant after it",
    foundBy: ["atomic"],
    adjust: withSteps,
    install: () => {
      let isAppending = false;
      const undoAppend = replace(
        Committer.prototype,
        "append",
        (append) =>
          function hasty(this: Committer, ops, revision) {
            isAppending = true;
            append.call(this, ops, revision);
            isAppending = false;
          },
      );
      const undoSoon = replace(
        SimHost.prototype,
        "runSoon",
        (runSoon) =>
          function now(this: SimHost, callback) {
            if (isAppending) callback();
            else runSoon.call(this, callback);
          },
      );
      return () => {
        undoSoon();
        undoAppend();
      };
    },
  },
  "the-dead-go-on-waiting": {
    bug: "a command that waits is not told that its lease has died",
    foundBy: ["I7-order"],
    adjust: withLocks,
    install: () =>
      changeDecisions((_engine, _command, decision) => ({
        ...decision,
        wakes: decision.wakes.filter(({ reply }) => !(reply instanceof ErrorReply)),
      })),
  },
  "closed-connections-keep-their-place": {
    bug: "a connection that waits and is closed stays in its queue",
    foundBy: ["I7-order", "I8-replies"],
    adjust: withLocks,
    install: () => replace(BlockedSessions.prototype, "forget", () => () => []),
  },
  "unheard-grants-stay": {
    bug: "a key that was handed to a connection which closed before it heard is not handed on",
    foundBy: ["I7-order"],
    adjust: (swarm) => ({ ...withLocks(swarm), diskTimes: { ...swarm.diskTimes, syncMsMean: 20, stallChance: 0.2 } }),
    install: () => replace(GrantsUnderway.prototype, "forget", () => () => []),
  },
  "waits-have-no-end": {
    bug: "a command that waits goes on when its time is over",
    foundBy: ["liveness"],
    adjust: (swarm) => {
      const locks = withLocks(swarm);
      return { ...locks, workload: { ...locks.workload, patienceMs: 1e6 } };
    },
    install: () => replace(Engine.prototype, "dueWaits", () => () => []),
  },
  "a-restart-gives-locks-away": {
    bug: "locks that are shared are not read back",
    foundBy: ["recovery", "I3-grants-survive", "ops"],
    adjust: (swarm) => withCrashes(withLocks(swarm)),
    install: () =>
      replace(
        Engine.prototype,
        "recover",
        (recover) =>
          function partly(this: Engine, op: Op) {
            if (op.kind !== "key-put" || op.mode.kind === "exclusive") recover.call(this, op);
          },
      ),
  },
  "plain-keys-get-less-after-a-restart": {
    bug: "after a restart a plain key lives for half of its TTL",
    foundBy: ["recovery", "I3-grants-survive"],
    adjust: (swarm) => withCrashes(withStrings(swarm)),
    install: () =>
      replace(
        Engine.prototype,
        "recover",
        (recover) =>
          function briefly(this: Engine, op: Op) {
            const isPlain = op.kind === "string-put" && op.ttlMs !== null;
            recover.call(this, isPlain ? { ...op, ttlMs: Math.ceil((op.ttlMs ?? 0) / 2) } : op);
          },
      ),
  },
  "longer-expiry-is-not-written": {
    bug: "EXPIRE beyond the durable TTL of a plain key stays in memory",
    foundBy: ["I8-replies", "I5-early-expiry"],
    adjust: withStrings,
    install: () =>
      changeDecisions((_engine, command, decision) =>
        command.kind === "key-expire" && decision.reply === 1 ? { ...decision, ops: [], sawRevision: 0 } : decision,
      ),
  },
  "set-nx-takes-what-is-there": {
    bug: "SET NX sets a key that is there",
    foundBy: ["I8-replies"],
    adjust: withStrings,
    install: () =>
      replace(
        Engine.prototype,
        "decide",
        (decide) =>
          function forceful(this: Engine, command, turn, origin) {
            const isNx = command.kind === "string-set" && command.condition.kind === "nx";
            return decide.call(this, isNx ? { ...command, condition: { kind: "always" } } : command, turn, origin);
          },
      ),
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
