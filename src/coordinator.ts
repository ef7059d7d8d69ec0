import { BlockedSessions, GrantsUnderway } from "./blocked-sessions.js";
import type { Command, Origin, Turn } from "./engine/command.js";
import { Engine, type Decision, type WaitId, type Wake } from "./engine/engine.js";
import { READONLY, withCode } from "./engine/errors.js";
import { eventsOf, type EngineEvent } from "./engine/events.js";
import { invariant } from "./engine/invariant.js";
import { EXPIRIES_PER_TURN_MAX, HAND_OVERS_PER_TURN_MAX, type EngineLimits } from "./engine/limits.js";
import type { Op, Revision } from "./engine/op.js";
import { OK, type ByteString, type ErrorReply, type Reply } from "./engine/reply.js";
import { Committer } from "./durability/committer.js";
import { ReleaseQueue } from "./durability/release-queue.js";
import { decodePage } from "./durability/schema.js";
import type { Store, StoreIdentity } from "./durability/store.js";
import { StoreError } from "./durability/store.js";
import {
  PARKED,
  SATURATED,
  type Clock,
  type ClusterReport,
  type Fault,
  type Ids,
  type Log,
  type NodeReport,
  type RoleName,
  type RoleTerm,
  type Scheduler,
  type Session,
  type Timer,
} from "./ports.js";
import { Role } from "./role.js";
import { valueDigest } from "./value-digest.js";

/**
 * The loop: submit -> decide -> apply -> commit -> release, plus the tick and the changes of role.
 *
 * One turn of the process, in this order and with these reasons:
 *   1. sockets are read and their commands submitted: each is decided and applied at once, so the next sees its effect; and what it
 *      set free is handed to those who waited for it at once
 *   2. replies that reveal only durable state go back at once: a keep-alive never waits for the disk
 *   3. the rest is parked under the revision it saw, in the release queue: nobody learns what a crash could take back
 *   4. at the end of the turn the open batch goes to the store, if none is in flight: one sync for all of the turn
 *   5. when the store says durable: tombstones are forgotten, parked replies go out in order, then events are published,
 *      then the next batch leaves
 *   6. the tick, when leases are due: bounded work, through the same door as any command
 *
 * Invariants:
 *  - only `#apply` applies decisions; only this file talks to both the engine and the store
 *  - a batch leaves between turns, never within one: what one turn appends lies in one batch. So a step of several commands
 *    (`atomically`), and a key's way from one holder to the next, are on disk whole or not at all
 *  - the clock is read once per turn of a connection, after the bytes of all its commands arrived and before the first one runs: a
 *    promise never starts before the client sent the command, and a turn lasts milliseconds
 *  - callbacks, not promises: each function here runs to its end before anything else happens
 *  - after the first store failure nothing is answered, published or written any more
 */

/** How long one tick may expire leases before other work gets its turn. */
const TICK_BUDGET_MS = 2;

/** Leases whose deadlines are set per slice when the role is taken; a slice is about a millisecond. */
const REBUILD_PER_TURN_MAX = 5_000;

/** Commands that may write: they wait when the open batch is full. All others go on. */
const WRITING_COMMANDS: ReadonlySet<Command["kind"]> = new Set<Command["kind"]>([
  "lease-grant",
  "lease-revoke",
  "lease-setttl",
  "lease-attach",
  "lease-detach",
  "key-delete",
  "key-expire",
  "key-persist",
  "string-set",
  "string-set-many",
  "string-get-expire",
  "string-get-delete",
  "string-append",
  "string-set-range",
  "string-increment",
  "string-increment-float",
  "string-delete-if",
  "lock-acquire",
  "lock-release",
  "script-load",
  "script-flush",
  "flush-database",
  "flush-all",
]);

/** Commands that make the rows more: they are refused when a shared store is nearly full. All others go on, the ends of leases above all. */
const GROWING_COMMANDS: ReadonlySet<Command["kind"]> = new Set<Command["kind"]>([
  "lease-grant",
  "lease-attach",
  "string-set",
  "string-set-many",
  "string-append",
  "string-set-range",
  "string-increment",
  "string-increment-float",
  "lock-acquire",
  "script-load",
]);

export interface EventSink {
  /** False while nobody listens: then events are not even made. */
  readonly hasListeners: boolean;
  publish(event: EngineEvent): void;
}

export interface CoordinatorOptions {
  readonly store: Store;
  readonly engineLimits: EngineLimits;
  readonly batchBytesMax: number;
  readonly clock: Clock;
  readonly scheduler: Scheduler;
  readonly ids: Ids;
  readonly log: Log;
  readonly fault: Fault;
  readonly events: EventSink;
  /** Closes every client connection but one: the role is lost. */
  readonly closeSessions: (except: Session | null, reason: string) => void;
  /** How long a batch took from hand-over to durable, in milliseconds: of each, before its replies leave. */
  readonly onCommit?: (durationMs: number) => void;
  /** The store failed: nothing may be acknowledged any more, the process has to end. Called once. */
  readonly onFailure: (error: StoreError) => void;
  /**
   * Revisions begin above this, if the store's are lower: tokens never go back, also when the store did, to a backup. Absent: the
   * store's word counts.
   */
  readonly revisionMin?: Revision;
  /** Of a node that shares its store with others; absent for a node of its own, which has the role from start to stop. */
  readonly cluster?: ClusterSeat;
}

/** What a node of a cluster has beside a store: somebody who keeps its role. */
export interface ClusterSeat {
  readonly term: RoleTerm;
  /** The role was given up on request (FAILOVER), everything that was taken is durable and answered. */
  handedOver(): void;
  /** Why nothing may be added to the shared store now; null when it may. */
  fullness(): ErrorReply | null;
  /** Null before the node knows its own address. */
  report(): ClusterReport | null;
}

interface PendingEvent {
  readonly revision: Revision;
  readonly event: EngineEvent;
}

/** What exists only while this node is loading or primary. */
interface Tenure {
  readonly engine: Engine;
  readonly committer: Committer;
  readonly releases: ReleaseQueue;
  readonly blocked: BlockedSessions;
  readonly underway: GrantsUnderway;
  events: PendingEvent[];
  tickTimer: Timer | null;
  tickAtMs: number;
  tickSoon: boolean;
  rowsLoaded: number;
}

/** A command on its way into a queue; it may be answered before it is there. */
interface Entering {
  readonly waitId: WaitId;
  answer: { readonly reply: Reply; readonly revision: Revision } | null;
}

export class Coordinator {
  readonly #options: CoordinatorOptions;
  readonly #role = new Role();
  readonly #turn: Turn & { nowMs: number };
  #tenure: Tenure | null = null;
  #failed = false;
  /** The store was asked for, and has not answered yet. */
  #isAcquiring = false;
  /** A graceful stop that waits for the batch in flight. */
  #closing: (() => void) | null = null;
  /** The command that is just about to wait. */
  #entering: Entering | null = null;
  /** Waiting for a take-over that is under way. */
  #takers: ((reply: Reply) => void)[] = [];

  constructor(options: CoordinatorOptions) {
    this.#options = options;
    const { clock } = options;
    this.#turn = {
      nowMs: 0,
      get unixMs() {
        return clock.unixMs();
      },
    };
  }

  /**
   * Takes the primary role for the first time: acquires the store, loads, rebuilds the deadlines, serves.
   * `done` gets the StoreError when the store cannot be had; the node is then of no use.
   */
  start(done: (error: StoreError | null) => void): void {
    this.#takeOver(done);
  }

  /** One engine command; see `resp/backend.ts` for the contract. */
  submit(command: Command, session: Session, ticket: number): Reply | typeof PARKED | typeof SATURATED {
    const tenure = this.#tenure;
    if (tenure === null || this.#role.name !== "primary") return this.#role.refusal() ?? this.#mustServe();
    if (tenure.committer.saturated && WRITING_COMMANDS.has(command.kind)) return SATURATED;
    if (!this.#holdsRole(session.nowMs)) return READONLY;
    // A command that was held up keeps the reading of its turn; time does not step back for it.
    this.#turn.nowMs = Math.max(this.#turn.nowMs, session.nowMs);
    const full = this.#fullness(command);
    if (full !== null) return full;
    const decision = tenure.engine.decide(command, this.#turn, session.origin);
    if (decision.waits !== null) return this.#block(tenure, decision, decision.waits.waitId, session, ticket);
    this.#noteTold(tenure, command, decision.reply);
    const revision = this.#conclude(tenure, decision, this.#turn);
    if (needsTick(decision)) this.#armTick(tenure);
    return this.#answer(tenure, revision, session, ticket, decision.reply);
  }

  /** Several engine commands as one step; see `resp/backend.ts` for the contract. */
  atomically(
    session: Session,
    ticket: number,
    work: (run: (command: Command) => Reply) => Reply,
  ): Reply | typeof PARKED | typeof SATURATED {
    const tenure = this.#tenure;
    if (tenure === null || this.#role.name !== "primary") return this.#role.refusal() ?? this.#mustServe();
    if (tenure.committer.saturated) return SATURATED;
    if (!this.#holdsRole(session.nowMs)) return READONLY;
    const { clock } = this.#options;
    this.#turn.nowMs = Math.max(this.#turn.nowMs, session.nowMs);
    const turn: Turn = { nowMs: this.#turn.nowMs, unixMs: clock.unixMs() };
    let newest: Revision = 0;
    const reply = work((command) => {
      const full = this.#fullness(command);
      if (full !== null) return full;
      const decision = tenure.engine.decide(withoutBlocking(command), turn, session.origin);
      this.#noteTold(tenure, command, decision.reply);
      newest = Math.max(newest, this.#apply(tenure, decision, turn));
      return decision.reply;
    });
    // Only now: nobody else comes in between.
    this.#handOver(tenure, turn);
    this.#armTick(tenure);
    return this.#answer(tenure, newest, session, ticket, reply);
  }

  /** For WATCH; see `resp/backend.ts`. */
  revisionOf(databaseIndex: number, key: ByteString): Revision {
    const tenure = this.#tenure;
    if (tenure === null || this.#role.name !== "primary") return 0;
    this.#turn.nowMs = this.#options.clock.monotonicMs();
    return tenure.engine.revisionOf(databaseIndex, key, this.#turn);
  }

  /** Ends the waits of a session with this answer; see `resp/backend.ts`. */
  unblock(session: Session, reply: Reply): boolean {
    const tenure = this.#tenure;
    if (tenure === null || this.#role.name !== "primary") return false;
    const waitIds = tenure.blocked.of(session);
    if (waitIds.length > 0) this.#runOwn(tenure, { kind: "wait-end", waitIds, reply }, SERVER_ORIGIN);
    return waitIds.length > 0;
  }

  onRoom(callback: () => void): void {
    if (this.#tenure === null) this.#options.scheduler.soon(callback);
    else this.#tenure.committer.onRoom(callback);
  }

  /**
   * A session is gone. It leaves the queues that it waits in; and a key that it was just handed, of which nobody has heard, goes to the
   * next.
   */
  forget(session: Session): void {
    const tenure = this.#tenure;
    if (tenure === null) return;
    tenure.releases.forget(session);
    const waitIds = tenure.blocked.forget(session);
    const unheard = tenure.underway.forget(session);
    if (this.#role.name !== "primary" || this.#failed) return;
    if (waitIds.length > 0) this.#runOwn(tenure, { kind: "wait-end", waitIds, reply: null }, SERVER_ORIGIN);
    for (const { databaseIndex, key, leaseId, token } of unheard) {
      this.#runOwn(tenure, { kind: "lock-release", key, id: leaseId, token }, { databaseIndex, owner: "" });
    }
  }

  report(): NodeReport {
    const tenure = this.#tenure;
    const engine = tenure?.engine ?? null;
    const committer = tenure?.committer ?? null;
    return {
      role: this.#role.name,
      epoch: this.#role.epoch,
      rowsLoaded: tenure?.rowsLoaded ?? 0,
      revision: engine?.state.revision ?? 0,
      durableRevision: committer?.durableRevision ?? 0,
      leases: engine?.leases ?? 0,
      keysByDatabase: engine?.keysByDatabase ?? [],
      lastingKeysByDatabase: engine?.lastingKeysByDatabase ?? [],
      keysExpired: engine?.keysExpired ?? 0,
      keyspaceHits: engine?.keyspaceHits ?? 0,
      keyspaceMisses: engine?.keyspaceMisses ?? 0,
      commandsBlocked: tenure?.blocked.size ?? 0,
      leasesExpired: engine?.leasesExpired ?? 0,
      leasesRevoked: engine?.leasesRevoked ?? 0,
      leasesGranted: engine?.leasesGranted ?? 0,
      keepAlives: engine?.keepAlives ?? 0,
      expiryLateMsMax: engine?.expiryLateMsMax ?? 0,
      batchesCommitted: committer?.batchesCommitted ?? 0,
      bytesCommitted: committer?.bytesCommitted ?? 0,
      lastCommitMs: committer?.lastCommitMs ?? 0,
      batchOpenBytes: committer?.openBytes ?? 0,
      repliesParked: tenure?.releases.size ?? 0,
      storeName: this.#options.store.name,
      cluster: this.#options.cluster?.report() ?? null,
    };
  }

  /**
   * Gives up the primary role: takes no further command, lets what was taken become durable and be answered, drops state and
   * deadlines, closes every session but `except`. A node without the role answers OK at once: there is nothing to give up.
   */
  stepDown(except: Session | null, done: (reply: Reply) => void): void {
    const tenure = this.#tenure;
    if (tenure === null || this.#role.name !== "primary") {
      done(withCode("ERR", `this node is ${this.#role.name}, it holds no role to give up`));
      return;
    }
    this.#role.become("standby");
    this.#cancelTick(tenure);
    this.#options.log.write("info", "stepping down: finishing the batch in flight", { epoch: this.#role.epoch });
    tenure.committer.drain(() => {
      tenure.committer.stop();
      this.#tenure = null;
      this.#options.closeSessions(except, "this node gave up the primary role");
      this.#options.log.write("info", "standby", { epoch: this.#role.epoch });
      this.#options.cluster?.handedOver();
      done(OK);
    });
  }

  /**
   * Takes the primary role again, with a load from the store and new deadlines. OK at once for a primary. In a cluster nobody takes
   * it by command: two that were told so would push each other out.
   */
  takeRole(done: (reply: Reply) => void): void {
    if (this.#role.name === "primary") {
      done(OK);
    } else if (this.#options.cluster !== undefined) {
      done(
        withCode(
          "ERR",
          "the nodes of a cluster agree on the primary by themselves; FAILOVER on the primary moves the role",
        ),
      );
    } else if (this.#role.name === "loading") {
      this.#takers.push(done);
    } else if (this.#tenure !== null) {
      done(withCode("ERR", "this node is still stepping down, try again"));
    } else if (!this.#role.mayBecome("loading")) {
      done(withCode("ERR", `this node is ${this.#role.name} and cannot take the primary role`));
    } else {
      this.#takers.push(done);
      this.#takeOver((error) => {
        if (error !== null) this.#fail(error);
      });
    }
  }

  get roleName(): RoleName {
    return this.#role.name;
  }

  /**
   * For the keeper of the role: a standby takes it over from the view that the store was told. `onTaken` when the store is this
   * node's, before the load; `done(null)` once it serves. An error leaves a standby that may try again. `done` is not called when the role
   * is lost meanwhile.
   */
  takeOver(onTaken: () => void, done: (error: StoreError | null) => void): void {
    invariant(this.#options.cluster !== undefined, "only in a cluster is the role taken over");
    if (this.#role.name !== "standby" || this.#tenure !== null || this.#isAcquiring) {
      done(new StoreError("fenced", `this node is ${this.#role.name}`));
      return;
    }
    this.#takeOver((error) => {
      if (error !== null && this.#endsProcess(error)) this.#fail(error);
      else if (error !== null && this.#role.name === "loading") this.#drop(`the load failed: ${error.message}`);
      done(error);
    }, onTaken);
  }

  /**
   * The role is lost, to another node or to time: nothing more is acknowledged, what was promised nobody yet is dropped, every client's
   * connection is closed, for many notice a change only so. Harmless without a role.
   */
  lose(reason: string): void {
    if (this.#role.name !== "primary" && this.#role.name !== "loading") return;
    this.#options.log.write("warn", `the primary role is lost: ${reason}`, { epoch: this.#role.epoch });
    this.#drop(reason);
  }

  /** Graceful stop: what was taken becomes durable and is answered, the store is closed. `done` may get a store error. */
  stop(done: (error: StoreError | null) => void): void {
    const tenure = this.#tenure;
    const close = (): void => {
      tenure?.committer.stop();
      this.#tenure = null;
      this.#options.store.close(done);
    };
    if (this.#failed) return;
    const wasPrimary = this.#role.name === "primary";
    this.#role.become("stopped");
    if (tenure === null || !wasPrimary) {
      close();
      return;
    }
    this.#cancelTick(tenure);
    this.#closing = close;
    tenure.committer.drain(close);
  }

  /** The store has failed with nothing in flight: the same end as when a batch fails. */
  storeFailed(error: StoreError): void {
    if (this.#tenure === null) this.#fail(error);
    else this.#storeFailed(this.#tenure, error);
  }

  /** For tests and the simulation: the engine while there is one. */
  get engine(): Engine | null {
    return this.#tenure?.engine ?? null;
  }

  // The way of a decision ---------------------------------------------------------------------------------------------

  /** Applies a decision, and hands on what it set free. Returns the revision that its reply has to wait for. */
  #conclude(tenure: Tenure, decision: Decision, turn: Turn): Revision {
    const revision = this.#apply(tenure, decision, turn);
    this.#handOver(tenure, turn);
    return revision;
  }

  /** Applies a decision, hands its ops to the committer, and its answers to those who waited for them. */
  #apply(tenure: Tenure, decision: Decision, turn: Turn): Revision {
    const { engine, committer } = tenure;
    const { ops, wakes, events } = decision;
    const isHeard = ops.length > 0 && this.#options.events.hasListeners;
    const flushed = isHeard ? engine.flushEvents(ops) : [];
    engine.apply(decision, turn);
    let revision = decision.sawRevision;
    if (ops.length > 0) {
      ({ revision } = engine.state);
      committer.append(ops, revision);
      if (isHeard) this.#noteEvents(tenure, ops, revision);
      for (const event of flushed) tenure.events.push({ revision, event });
    }
    if (events.length > 0 && this.#options.events.hasListeners) this.#noteTimes(tenure, events);
    if (wakes.length > 0) for (const wake of wakes) this.#wake(tenure, wake, revision);
    return revision;
  }

  /** Keys that are free go to those who wait for them, one after the other; beyond a turn's share the tick goes on at once. */
  #handOver(tenure: Tenure, turn: Turn): void {
    for (let count = 0; count < HAND_OVERS_PER_TURN_MAX; count += 1) {
      const decision = tenure.engine.handOver(turn);
      if (decision === null) return;
      this.#apply(tenure, decision, turn);
    }
  }

  /** A command of the loop itself, between those of clients: its answer goes nowhere. */
  #runOwn(tenure: Tenure, command: Command, origin: Origin): void {
    this.#turn.nowMs = this.#options.clock.monotonicMs();
    this.#conclude(tenure, tenure.engine.decide(command, this.#turn, origin), this.#turn);
    this.#armTick(tenure);
  }

  /** The reply now, or parked until what it reveals is durable. */
  #answer(tenure: Tenure, revision: Revision, session: Session, ticket: number, reply: Reply): Reply | typeof PARKED {
    if (revision <= tenure.committer.durableRevision) return reply;
    tenure.releases.park(revision, session, ticket, reply);
    return PARKED;
  }

  // Waiting -----------------------------------------------------------------------------------------------------------

  /** The command waits in a queue, unless its turn comes at once: then this is its answer. */
  #block(tenure: Tenure, decision: Decision, waitId: WaitId, session: Session, ticket: number): Reply | typeof PARKED {
    const entering: Entering = { waitId, answer: null };
    this.#entering = entering;
    tenure.blocked.add(waitId, session, ticket);
    this.#conclude(tenure, decision, this.#turn);
    this.#entering = null;
    this.#armTick(tenure);
    const { answer } = entering;
    return answer === null ? PARKED : this.#answer(tenure, answer.revision, session, ticket, answer.reply);
  }

  /** A command that waited has its answer, unless its session is gone. */
  #wake(tenure: Tenure, { waitId, reply, grant }: Wake, revision: Revision): void {
    const command = tenure.blocked.take(waitId);
    if (command === null) return;
    const { session, ticket } = command;
    const isDurable = revision <= tenure.committer.durableRevision;
    if (this.#entering?.waitId === waitId) this.#entering.answer = { reply, revision };
    else if (isDurable) session.deliver(ticket, reply);
    else tenure.releases.park(revision, session, ticket, reply);
    if (grant !== undefined && !isDurable) tenure.underway.add(grant, session, revision);
  }

  /** A lease was told that it holds a key: should a grant of it be underway to another connection, that one stands. */
  #noteTold(tenure: Tenure, command: Command, reply: Reply): void {
    if (tenure.underway.size === 0 || typeof reply !== "number") return;
    if (command.kind === "lock-acquire" || command.kind === "lease-attach") tenure.underway.told(reply);
  }

  // Events ------------------------------------------------------------------------------------------------------------

  #noteEvents(tenure: Tenure, ops: readonly Op[], revision: Revision): void {
    for (const op of ops) {
      for (const event of eventsOf(op)) tenure.events.push({ revision, event });
    }
  }

  /** Changes that are no ops: they are told in their place among the others, and at once when nothing is on its way to the disk. */
  #noteTimes(tenure: Tenure, events: readonly EngineEvent[]): void {
    const { revision } = tenure.engine.state;
    for (const event of events) tenure.events.push({ revision, event });
    this.#publish(tenure, tenure.committer.durableRevision);
  }

  #onDurable(tenure: Tenure, revision: Revision): void {
    this.#options.onCommit?.(tenure.committer.lastCommitMs);
    tenure.engine.durable(revision);
    tenure.releases.release(revision);
    tenure.underway.delivered(revision);
    this.#options.fault.point("release:after-reply");
    if (tenure.events.length > 0) this.#publish(tenure, revision);
    // More rows may have ended than one slice frees: the tick frees the rest, also when nothing else is due.
    if (this.#role.name === "primary") this.#armTick(tenure);
  }

  #publish(tenure: Tenure, revision: Revision): void {
    const { events } = tenure;
    let count = 0;
    for (const { revision: eventRevision, event } of events) {
      if (eventRevision > revision) break;
      count += 1;
      this.#options.events.publish(event);
    }
    tenure.events = count === events.length ? [] : events.slice(count);
  }

  // The tick ----------------------------------------------------------------------------------------------------------

  /** Arms the timer for the earliest slot, if that is earlier than what it is armed for. */
  #armTick(tenure: Tenure): void {
    const dueMs = tenure.engine.nextDueMs();
    if (dueMs === null || tenure.tickSoon || (tenure.tickTimer !== null && tenure.tickAtMs <= dueMs)) return;
    tenure.tickTimer?.cancel();
    tenure.tickAtMs = dueMs;
    const delayMs = Math.max(0, Math.ceil(dueMs - this.#options.clock.monotonicMs()));
    tenure.tickTimer = this.#options.scheduler.after(delayMs, () => {
      tenure.tickTimer = null;
      this.#tick(tenure);
    });
  }

  #cancelTick(tenure: Tenure): void {
    tenure.tickTimer?.cancel();
    tenure.tickTimer = null;
  }

  #tick(tenure: Tenure): void {
    tenure.tickSoon = false;
    if (this.#tenure !== tenure || this.#role.name !== "primary" || this.#failed) return;
    const { clock, scheduler } = this.#options;
    const startMs = clock.monotonicMs();
    if (!this.#holdsRole(startMs)) return;
    for (;;) {
      if (tenure.committer.saturated) {
        // The batch is full: the leases stay due, and dead for every command, until there is room to write it down.
        tenure.tickSoon = true;
        tenure.committer.onRoom(() => this.#tick(tenure));
        return;
      }
      this.#turn.nowMs = clock.monotonicMs();
      if (!this.#tickOnce(tenure)) break;
      if (clock.monotonicMs() - startMs >= TICK_BUDGET_MS) {
        tenure.tickSoon = true;
        scheduler.soon(() => this.#tick(tenure));
        return;
      }
    }
    this.#armTick(tenure);
  }

  /** A slice of what is due. Returns false when nothing is. */
  #tickOnce(tenure: Tenure): boolean {
    const { engine } = tenure;
    const { nowMs } = this.#turn;
    const { ids, keys } = engine.dueLeases(nowMs, EXPIRIES_PER_TURN_MAX);
    const waitIds = engine.dueWaits(nowMs, EXPIRIES_PER_TURN_MAX);
    const isSwept = engine.sweepSome(EXPIRIES_PER_TURN_MAX);
    const hasReady = engine.waiters.firstReady !== null;
    if (ids.length > 0 || keys.length > 0) {
      const decision = engine.decide({ kind: "lease-expire", ids, keys }, this.#turn, SERVER_ORIGIN);
      this.#conclude(tenure, decision, this.#turn);
    }
    if (waitIds.length > 0) {
      const decision = engine.decide({ kind: "wait-end", waitIds, reply: null }, this.#turn, SERVER_ORIGIN);
      this.#conclude(tenure, decision, this.#turn);
    }
    const dropped = engine.dropKeys(this.#turn);
    if (dropped !== null) this.#conclude(tenure, dropped, this.#turn);
    if (hasReady) this.#handOver(tenure, this.#turn);
    if (dropped !== null) return true;
    return ids.length > 0 || keys.length > 0 || waitIds.length > 0 || !isSwept || hasReady;
  }

  // Roles -------------------------------------------------------------------------------------------------------------

  #takeOver(done: (error: StoreError | null) => void, onTaken?: () => void): void {
    const { store, log, cluster } = this.#options;
    // A node of a cluster that only tries is still a standby.
    if (cluster === undefined) this.#role.become("loading");
    this.#isAcquiring = true;
    store.acquire((error, identity) => {
      this.#isAcquiring = false;
      if (this.#failed || this.#role.name === "stopped") return;
      if (error !== null || identity === null) {
        done(error ?? new StoreError("unusable", "the store gave no identity"));
        return;
      }
      if (cluster !== undefined) this.#role.become("loading");
      this.#role.enterEpoch(identity.epoch);
      onTaken?.();
      log.write("info", "loading", { store: store.name, epoch: identity.epoch, revision: identity.revision });
      this.#load(identity, done);
    });
  }

  #load(identity: StoreIdentity, done: (error: StoreError | null) => void): void {
    const { store, clock, scheduler, fault, engineLimits, batchBytesMax } = this.#options;
    const engine = new Engine(engineLimits, identity.incarnation, valueDigest);
    const firstRevision = Math.max(identity.revision, this.#options.revisionMin ?? 0);
    engine.recoverRevision(firstRevision);
    const tenure: Tenure = {
      engine,
      committer: new Committer({
        store,
        scheduler,
        clock,
        fault,
        batchBytesMax,
        durableRevision: firstRevision,
        onDurable: (revision) => this.#onDurable(tenure, revision),
        onFailure: (error) => this.#storeFailed(tenure, error),
      }),
      releases: new ReleaseQueue(),
      blocked: new BlockedSessions(),
      underway: new GrantsUnderway(),
      events: [],
      tickTimer: null,
      tickAtMs: 0,
      tickSoon: false,
      rowsLoaded: 0,
    };
    this.#tenure = tenure;
    const startMs = clock.monotonicMs();
    let damage: StoreError | null = null;
    let newestToken: Revision = 0;
    store.load(
      (page, next) => {
        if (this.#tenure !== tenure || this.#failed) return;
        fault.point("load:page");
        try {
          decodePage(page, {
            op: (op) => {
              if ("token" in op) newestToken = Math.max(newestToken, op.token);
              engine.recover(op);
            },
            revision: (revision) => engine.recoverRevision(revision),
          });
        } catch (error) {
          if (!(error instanceof StoreError)) throw error;
          damage = error;
          done(error);
          return;
        }
        tenure.rowsLoaded += page.rowCount;
        next();
      },
      (error) => {
        if (this.#tenure !== tenure || this.#failed || damage !== null) return;
        if (error !== null) done(error);
        else if (newestToken > engine.state.revision) done(lostMark(newestToken, engine.state.revision));
        else this.#rebuild(tenure, startMs, done);
      },
    );
  }

  /** Every inherited lease gets its full TTL by this node's clock, in slices; then the node serves. */
  #rebuild(tenure: Tenure, startMs: number, done: (error: StoreError | null) => void): void {
    const { clock, scheduler, log } = this.#options;
    const { engine } = tenure;
    const { orphanKeys } = engine.finishRecovery();
    this.#turn.nowMs = clock.monotonicMs();
    engine.beginRebuild(this.#turn);
    const slice = (): void => {
      if (this.#tenure !== tenure || this.#failed || this.#role.name !== "loading") return;
      if (!engine.rebuildSome(REBUILD_PER_TURN_MAX)) {
        scheduler.soon(slice);
        return;
      }
      this.#role.become("primary");
      if (orphanKeys.length > 0) this.#removeOrphans(tenure, orphanKeys.length);
      this.#armTick(tenure);
      log.write("info", "primary", {
        epoch: this.#role.epoch,
        leases: engine.leases,
        revision: engine.state.revision,
        "load-ms": Math.round(clock.monotonicMs() - startMs),
      });
      for (const taker of this.#takers.splice(0)) taker(OK);
      done(null);
    };
    slice();
  }

  #removeOrphans(tenure: Tenure, count: number): void {
    this.#options.log.write("warn", "keys whose lease had ended were found and are removed", { count });
    const ops = tenure.engine.orphanRemovals();
    const revision = tenure.engine.applyOps(ops);
    tenure.committer.append(ops, revision);
  }

  // Losses --------------------------------------------------------------------------------------------------------------

  /** Whether this node may act as primary at this reading; when its time is over, it is none from now on. */
  #holdsRole(nowMs: number): boolean {
    const { cluster } = this.#options;
    if (cluster === undefined || cluster.term.holds(nowMs)) return true;
    this.lose("its time as primary is over");
    return false;
  }

  #fullness(command: Command): ErrorReply | null {
    const { cluster } = this.#options;
    return cluster !== undefined && GROWING_COMMANDS.has(command.kind) ? cluster.fullness() : null;
  }

  /** Errors after which this process is of no use; a shared store that is out of reach, or another node's, is there again later. */
  #endsProcess(error: StoreError): boolean {
    if (this.#options.cluster === undefined) return true;
    return error.code !== "fenced" && error.code !== "write-failed" && error.code !== "unusable";
  }

  #storeFailed(tenure: Tenure, error: StoreError): void {
    if (this.#endsProcess(error)) this.#fail(error);
    else if (this.#tenure === tenure) this.#lostTo(tenure, error);
  }

  /** The shared store is out of reach, or another node's, with a batch in flight: its outcome is unknown to those who wait for it. */
  #lostTo(tenure: Tenure, error: StoreError): void {
    if (this.#role.name === "primary" || this.#role.name === "loading") {
      this.lose(error.message);
      return;
    }
    // While stepping down, or stopping.
    tenure.releases.discard();
    this.#tenure = null;
    this.#options.log.write("warn", `the last batch was not confirmed: ${error.message}`, { code: error.code });
    this.#options.closeSessions(null, error.message);
    this.#closing?.();
  }

  /** Drops all that a tenure had. Sessions are closed in a turn of their own: one of them may be asking just now. */
  #drop(reason: string): void {
    const tenure = this.#tenure;
    this.#role.become("fenced");
    this.#tenure = null;
    if (tenure !== null) {
      this.#cancelTick(tenure);
      tenure.committer.stop();
      tenure.releases.discard();
    }
    this.#options.scheduler.soon(() => {
      if (this.#role.name !== "fenced") return;
      this.#role.become("standby");
      this.#options.closeSessions(null, reason);
      this.#options.log.write("info", "standby", { epoch: this.#role.epoch });
    });
  }

  #fail(error: StoreError): void {
    if (this.#failed) return;
    this.#failed = true;
    const tenure = this.#tenure;
    if (this.#role.mayBecome("stopped")) this.#role.become("stopped");
    if (tenure !== null) {
      this.#cancelTick(tenure);
      tenure.committer.stop();
      const waiting = new Set([...tenure.releases.discard(), ...tenure.blocked.sessions()]);
      for (const session of waiting) session.close("the store failed, the outcome is unknown");
    }
    this.#options.log.write("error", `the store failed: ${error.message}`, { code: error.code });
    this.#options.onFailure(error);
  }

  #mustServe(): never {
    invariant(false, "a primary without an engine");
  }
}

/** Whether a decision may have brought forward what the tick has to do. */
function needsTick({ ops, renewals, wakes }: Decision): boolean {
  return ops.length > 0 || wakes.length > 0 || typeof renewals === "object";
}

/** A row is newer than the newest revision: the store has lost its high-water mark, and tokens would be given twice. */
function lostMark(token: Revision, revision: Revision): StoreError {
  return new StoreError(
    "damaged",
    `a row has token ${token}, above the newest revision ${revision}: the record of that is lost; ` +
      "--token-min with a number above every token that was ever given goes on",
  );
}

/** Nothing waits within a step, as in Redis. */
function withoutBlocking(command: Command): Command {
  return command.kind === "lock-acquire" && command.blockMs !== null ? { ...command, blockMs: null } : command;
}

/** Where expiries come from. */
const SERVER_ORIGIN = { databaseIndex: 0, owner: "" } as const;
