import type { Command, Turn } from "./engine/command.js";
import { Engine, type Decision } from "./engine/engine.js";
import { withCode } from "./engine/errors.js";
import { eventsOf, type EngineEvent } from "./engine/events.js";
import { invariant } from "./engine/invariant.js";
import { EXPIRIES_PER_TURN_MAX, type EngineLimits } from "./engine/limits.js";
import type { Op, Revision } from "./engine/op.js";
import { OK, type Reply } from "./engine/reply.js";
import { Committer } from "./durability/committer.js";
import { ReleaseQueue } from "./durability/release-queue.js";
import { decodePage } from "./durability/schema.js";
import type { Store, StoreIdentity } from "./durability/store.js";
import { StoreError } from "./durability/store.js";
import {
  PARKED,
  SATURATED,
  type Clock,
  type Fault,
  type Ids,
  type Log,
  type NodeReport,
  type Scheduler,
  type Session,
  type Timer,
} from "./ports.js";
import { Role } from "./role.js";

/**
 * The loop: submit -> decide -> apply -> commit -> release, plus the tick and the changes of role.
 *
 * One turn of the process, in this order and with these reasons:
 *   1. sockets are read and their commands submitted: each is decided and applied at once, so the next sees its effect
 *   2. replies that reveal only durable state go back at once: a keep-alive never waits for the disk
 *   3. the rest is parked under the revision it saw, in the release queue: nobody learns what a crash could take back
 *   4. at the end of the turn the open batch goes to the store, if none is in flight: one sync for all of the turn
 *   5. when the store says durable: tombstones are forgotten, parked replies go out in order, then events are published,
 *      then the next batch leaves
 *   6. the tick, when leases are due: bounded work, through the same door as any command
 *
 * Invariants:
 *  - only `#conclude` applies decisions; only this file talks to both the engine and the store
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
  "flush-database",
  "flush-all",
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
  /** The store failed: nothing may be acknowledged any more, the process has to end. Called once. */
  readonly onFailure: (error: StoreError) => void;
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
  events: PendingEvent[];
  tickTimer: Timer | null;
  tickAtMs: number;
  tickSoon: boolean;
  rowsLoaded: number;
}

export class Coordinator {
  readonly #options: CoordinatorOptions;
  readonly #role = new Role();
  readonly #turn: Turn & { nowMs: number };
  #tenure: Tenure | null = null;
  #failed = false;
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
    // A command that was held up keeps the reading of its turn; time does not step back for it.
    this.#turn.nowMs = Math.max(this.#turn.nowMs, session.nowMs);
    const decision = tenure.engine.decide(command, this.#turn, session.origin);
    const revision = this.#conclude(tenure, decision);
    if (decision.ops.length > 0 || command.kind === "lease-setttl") this.#armTick(tenure);
    if (revision <= tenure.committer.durableRevision) return decision.reply;
    tenure.releases.park(revision, session, ticket, decision.reply);
    return PARKED;
  }

  onRoom(callback: () => void): void {
    if (this.#tenure === null) this.#options.scheduler.soon(callback);
    else this.#tenure.committer.onRoom(callback);
  }

  forget(session: Session): void {
    this.#tenure?.releases.forget(session);
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
      done(OK);
    });
  }

  /** Takes the primary role again, with a load from the store and new deadlines. OK at once for a primary. */
  takeRole(done: (reply: Reply) => void): void {
    if (this.#role.name === "primary") {
      done(OK);
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
    tenure.committer.drain(close);
  }

  /** For tests and the simulation: the engine while there is one. */
  get engine(): Engine | null {
    return this.#tenure?.engine ?? null;
  }

  // The way of a decision ---------------------------------------------------------------------------------------------

  /** Applies a decision and hands its ops to the committer. Returns the revision that its reply has to wait for. */
  #conclude(tenure: Tenure, decision: Decision): Revision {
    const { engine } = tenure;
    const isHeard = decision.ops.length > 0 && this.#options.events.hasListeners;
    const flushed = isHeard ? engine.flushEvents(decision.ops) : [];
    engine.apply(decision, this.#turn);
    if (decision.ops.length === 0) return decision.sawRevision;
    const { revision } = engine.state;
    tenure.committer.append(decision.ops, revision);
    if (isHeard) this.#noteEvents(tenure, decision.ops, revision);
    for (const event of flushed) tenure.events.push({ revision, event });
    return revision;
  }

  #noteEvents(tenure: Tenure, ops: readonly Op[], revision: Revision): void {
    for (const op of ops) {
      for (const event of eventsOf(op)) tenure.events.push({ revision, event });
    }
  }

  #onDurable(tenure: Tenure, revision: Revision): void {
    tenure.engine.durable(revision);
    tenure.releases.release(revision);
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
    for (;;) {
      if (tenure.committer.saturated) {
        // The batch is full: the leases stay due, and dead for every command, until there is room to write it down.
        tenure.tickSoon = true;
        tenure.committer.onRoom(() => this.#tick(tenure));
        return;
      }
      this.#turn.nowMs = clock.monotonicMs();
      const ids = tenure.engine.dueLeases(this.#turn.nowMs, EXPIRIES_PER_TURN_MAX);
      const swept = tenure.engine.sweepSome(EXPIRIES_PER_TURN_MAX);
      if (ids.length === 0 && swept) break;
      if (ids.length > 0) {
        const decision = tenure.engine.decide({ kind: "lease-expire", ids }, this.#turn, SERVER_ORIGIN);
        this.#conclude(tenure, decision);
      }
      if (clock.monotonicMs() - startMs >= TICK_BUDGET_MS) {
        tenure.tickSoon = true;
        scheduler.soon(() => this.#tick(tenure));
        return;
      }
    }
    this.#armTick(tenure);
  }

  // Roles -------------------------------------------------------------------------------------------------------------

  #takeOver(done: (error: StoreError | null) => void): void {
    const { store, log } = this.#options;
    this.#role.become("loading");
    store.acquire((error, identity) => {
      if (this.#failed || this.#role.name !== "loading") return;
      if (error !== null || identity === null) {
        done(error ?? new StoreError("unusable", "the store gave no identity"));
        return;
      }
      this.#role.enterEpoch(identity.epoch);
      log.write("info", "loading", { store: store.name, epoch: identity.epoch, revision: identity.revision });
      this.#load(identity, done);
    });
  }

  #load(identity: StoreIdentity, done: (error: StoreError | null) => void): void {
    const { store, clock, scheduler, fault, engineLimits, batchBytesMax } = this.#options;
    const engine = new Engine(engineLimits, identity.incarnation);
    engine.recoverRevision(identity.revision);
    const tenure: Tenure = {
      engine,
      committer: new Committer({
        store,
        scheduler,
        clock,
        fault,
        batchBytesMax,
        durableRevision: identity.revision,
        onDurable: (revision) => this.#onDurable(tenure, revision),
        onFailure: (error) => this.#fail(error),
      }),
      releases: new ReleaseQueue(),
      events: [],
      tickTimer: null,
      tickAtMs: 0,
      tickSoon: false,
      rowsLoaded: 0,
    };
    this.#tenure = tenure;
    const startMs = clock.monotonicMs();
    let damage: StoreError | null = null;
    store.load(
      (page, next) => {
        if (this.#tenure !== tenure || this.#failed) return;
        fault.point("load:page");
        try {
          decodePage(page, {
            op: (op) => engine.recover(op),
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
        if (error === null) this.#rebuild(tenure, startMs, done);
        else done(error);
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
    this.#options.log.write("warn", "keys without a lease were found and are removed", { count });
    const ops = tenure.engine.orphanRemovals();
    const revision = tenure.engine.applyOps(ops);
    tenure.committer.append(ops, revision);
  }

  #fail(error: StoreError): void {
    if (this.#failed) return;
    this.#failed = true;
    const tenure = this.#tenure;
    if (this.#role.mayBecome("stopped")) this.#role.become("stopped");
    if (tenure !== null) {
      this.#cancelTick(tenure);
      tenure.committer.stop();
      for (const session of tenure.releases.discard()) session.close("the store failed, the outcome is unknown");
    }
    this.#options.log.write("error", `the store failed: ${error.message}`, { code: error.code });
    this.#options.onFailure(error);
  }

  #mustServe(): never {
    invariant(false, "a primary without an engine");
  }
}

/** Where expiries come from. */
const SERVER_ORIGIN = { databaseIndex: 0, owner: "" } as const;
