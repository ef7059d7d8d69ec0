import type { RoleListener, RoleView, SharedStore } from "../durability/shared-store.js";
import type { Done, StoreError } from "../durability/store.js";
import type {
  Clock,
  ClusterReport,
  ClusterView,
  Log,
  NodeAddress,
  RoleName,
  RoleTerm,
  Scheduler,
  Timer,
} from "../ports.js";
import { Nodes } from "./nodes.js";
import { BEAT_RETRY_MS, type RoleTimes } from "./role-times.js";
import { SuspendGuard, type SuspendClocks } from "./suspend-guard.js";

/**
 * Keeps the primary role, or waits for it. The protocol and why it is safe: docs/CLUSTER.md.
 *
 *   standby   looks at the fence and the beat, and notes by its own clock when it saw them change. Unchanged for D: it tries to take the
 *             role over from exactly that view; the shared store lets one node succeed.
 *   primary   writes a beat every R, from here and never from a request. Each success is worth D - margin, counted from before it was
 *             sent. When that is over, the role is over, whatever anybody knows.
 *
 * Invariants:
 *  1. `holds` is the only answer to "may this node still act as primary", and it asks no one else
 *  2. nothing but a successful take-over or beat moves the end of the term, and only forward within one tenure
 *  3. a beat that was sent in one tenure says nothing in the next
 *  4. the clock that ends the term is CLOCK_MONOTONIC; a machine that slept has lost the role, and what it sent before it slept says
 *     nothing afterwards
 *  5. one beat, one poll and one take-over in flight at most: what is slow is not made slower
 */

/** How often this node announces that it exists. */
const ANNOUNCE_MS = 2_000;

/** What is done at a time rather than on an event is looked at so often. */
const TICK_MS_MAX = 250;

const UNREACHABLE_TOLD_EVERY_MS = 10_000;

/** After a take-over failed, the next is tried no sooner; half of it is left to chance. It doubles up to the greatest one. */
const RETRY_MS_MIN = 250;
const RETRY_MS_MAX = 2_000;

/** Standbys wait a random part of this, so that they do not race in step. */
const RELEASED_JITTER_MS = 50;

/** The node whose role is kept: the coordinator. */
export interface RoleHolder {
  readonly roleName: RoleName;
  /** Takes over from the view that the store was told, loads, serves. Anything else than null: it has no role. */
  takeOver(onTaken: () => void, done: Done): void;
  /** The role is gone, at once: nothing more is acknowledged. Harmless without a role. */
  lose(reason: string): void;
}

export interface RoleKeeperOptions {
  readonly name: string;
  readonly self: NodeAddress;
  readonly store: SharedStore;
  readonly holder: RoleHolder;
  readonly clock: Clock;
  /** For the suspend guard, see there. */
  readonly boottimeMs: () => number;
  readonly scheduler: Scheduler;
  /** 0 <= fraction < 1. */
  readonly fraction: () => number;
  readonly log: Log;
  readonly times: RoleTimes;
  /** False: this node never takes the role. */
  readonly isCandidate: boolean;
  /** The process's own, as the store writes it into the fence. */
  readonly incarnation: string;
}

export class RoleKeeper implements RoleTerm, ClusterView {
  readonly name: string;
  readonly self: NodeAddress;
  readonly #options: RoleKeeperOptions;
  readonly #guard: SuspendGuard;
  readonly #nodes: Nodes;
  readonly #listeners: ((from: NodeAddress | null, to: NodeAddress) => void)[] = [];
  #view: RoleView = { fence: null, beat: null };
  /** By this node's clock: when it saw the view change last. -Infinity before the first look. */
  #viewSinceMs = -Infinity;
  /** The primary that was told to listeners last. */
  #told: NodeAddress | null = null;
  /** Counts the tenures of this node. */
  #tenure = 0;
  #validUntilMs = -Infinity;
  /** How often the machine was found to have slept. */
  #sleeps = 0;
  #beatDueMs = Infinity;
  #beatInFlight = false;
  #releaseAfterBeat = false;
  #pollInFlight = false;
  #polledAtMs = -Infinity;
  /** Null while it can be read. */
  #unreachableToldAtMs: number | null = null;
  #announcing = false;
  #announcedAtMs = -Infinity;
  #takingOver = false;
  /** No take-over before. */
  #waitUntilMs = -Infinity;
  /** Nor before this: the role was handed over, and nobody has taken it since. */
  #yieldUntilMs = -Infinity;
  #retryMs = RETRY_MS_MIN;
  #jitterMs = 0;
  #timer: Timer | null = null;
  #stopped = false;
  #takeOvers = 0;
  #beatsFailed = 0;
  #lastBeatAtMs = -Infinity;
  #lastBeatLatencyMs = 0;
  #beatLatencyMsMax = 0;
  #withoutPrimarySinceMs: number | null;
  #withoutPrimaryMs = 0;

  constructor(options: RoleKeeperOptions) {
    this.#options = options;
    this.name = options.name;
    this.self = options.self;
    const { clock, boottimeMs } = options;
    const clocks: SuspendClocks = {
      monotonicMs: () => clock.monotonicMs(),
      unixMs: () => clock.unixMs(),
      boottimeMs,
    };
    this.#guard = new SuspendGuard(clocks);
    this.#nodes = new Nodes(3 * ANNOUNCE_MS);
    this.#withoutPrimarySinceMs = clock.monotonicMs();
  }

  /** Begins to watch, and to try for the role. */
  start(): void {
    const listener: RoleListener = {
      onView: (view) => this.#seen(view),
      onNodes: (nodes) => this.#nodes.seen(nodes, this.#options.clock.monotonicMs()),
    };
    this.#options.store.watch(listener);
    this.#tick();
  }

  /** Nothing is tried any more. The term of a primary goes on to its end: it finishes what is in flight. */
  stop(): void {
    this.#stopped = true;
  }

  /** The holder has given the role up on request: others go first, this node tries again when none did. */
  handedOver(): void {
    const { clock, times } = this.#options;
    this.#endTenure();
    this.#yieldUntilMs = clock.monotonicMs() + 2 * times.roleMs;
    if (this.#beatInFlight) this.#releaseAfterBeat = true;
    else this.#release();
  }

  /** Tells the others that they need not wait for this node's time to run out. */
  #release(): void {
    this.#releaseAfterBeat = false;
    this.#beatInFlight = true;
    this.#options.store.beat("released", (error) => {
      this.#beatInFlight = false;
      if (error !== null) this.#options.log.write("warn", `the role could not be released: ${error.message}`);
    });
  }

  // The term ------------------------------------------------------------------------------------------------------------

  holds(nowMs: number): boolean {
    if (nowMs >= this.#validUntilMs) return false;
    if (!this.#guard.mayHaveSlept(nowMs)) return true;
    this.#lookForSleep();
    return nowMs < this.#validUntilMs;
  }

  get hasTerm(): boolean {
    return this.#validUntilMs > this.#options.clock.monotonicMs();
  }

  #lookForSleep(): void {
    if (!this.#guard.hasSlept()) return;
    this.#sleeps += 1;
    this.#options.log.write("warn", "the machine was asleep: what this node knew of the role is void");
    this.#validUntilMs = -Infinity;
    this.#viewSinceMs = this.#options.clock.monotonicMs();
  }

  #endTenure(): void {
    this.#tenure += 1;
    this.#validUntilMs = -Infinity;
    this.#beatDueMs = Infinity;
  }

  // The tick ------------------------------------------------------------------------------------------------------------

  #arm(): void {
    if (this.#stopped && this.#validUntilMs === -Infinity) return;
    const nowMs = this.#options.clock.monotonicMs();
    const dueMs = Math.min(this.#beatInFlight ? Infinity : this.#beatDueMs, this.#tryAtMs(), this.#endsAtMs());
    const delayMs = Math.min(Math.max(dueMs - nowMs, 1), TICK_MS_MAX, this.#options.times.beatMs);
    this.#timer?.cancel();
    this.#timer = this.#options.scheduler.after(delayMs, () => this.#tick());
  }

  #endsAtMs(): number {
    return this.#validUntilMs === -Infinity ? Infinity : this.#validUntilMs;
  }

  #tick(): void {
    const { clock, holder } = this.#options;
    this.#lookForSleep();
    const nowMs = clock.monotonicMs();
    const role = holder.roleName;
    if (role === "primary" || (role === "loading" && !this.#takingOver)) {
      if (nowMs >= this.#validUntilMs) this.#lose("its time as primary ran out without a beat that succeeded");
      else if (nowMs >= this.#beatDueMs) this.#beat();
    } else if (!this.#stopped) {
      if (nowMs >= this.#tryAtMs()) this.#takeOver(nowMs);
    }
    if (!this.#stopped) {
      if (nowMs >= this.#polledAtMs + this.#options.times.beatMs) this.#poll(nowMs);
      if (nowMs >= this.#announcedAtMs + ANNOUNCE_MS) this.#announce(nowMs);
    }
    this.#countTimeWithoutPrimary(nowMs);
    this.#arm();
  }

  #lose(reason: string): void {
    this.#endTenure();
    this.#options.holder.lose(reason);
  }

  // As primary ------------------------------------------------------------------------------------------------------------

  #beat(): void {
    if (this.#beatInFlight) return;
    const { clock, store, times, log, holder } = this.#options;
    const tenure = this.#tenure;
    const sentAtMs = clock.monotonicMs();
    const sleeps = this.#sleeps;
    this.#beatInFlight = true;
    this.#beatDueMs = sentAtMs + times.beatMs;
    store.beat(holder.roleName === "primary" ? "serving" : "loading", (error) => {
      this.#beatInFlight = false;
      const nowMs = clock.monotonicMs();
      if (this.#releaseAfterBeat) this.#release();
      if (tenure !== this.#tenure) return;
      if (error === null) {
        this.#extend(sentAtMs, sleeps);
        this.#lastBeatAtMs = nowMs;
        this.#lastBeatLatencyMs = nowMs - sentAtMs;
        this.#beatLatencyMsMax = Math.max(this.#beatLatencyMsMax, this.#lastBeatLatencyMs);
      } else if (error.code === "fenced") {
        this.#lose("another node has taken the role");
      } else {
        this.#beatsFailed += 1;
        this.#beatDueMs = Math.min(this.#beatDueMs, nowMs + BEAT_RETRY_MS);
        const leftMs = Math.round(this.#validUntilMs - nowMs);
        log.write("warn", `a beat failed: ${error.message}`, { "role-left-ms": leftMs });
      }
      this.#arm();
    });
  }

  /** What was sent at this reading, after so many sleeps, has succeeded. */
  #extend(sentAtMs: number, sleeps: number): void {
    this.#lookForSleep();
    if (sleeps !== this.#sleeps) return;
    const { roleMs, marginMs } = this.#options.times;
    this.#validUntilMs = Math.max(this.#validUntilMs, sentAtMs + roleMs - marginMs);
  }

  // As standby ------------------------------------------------------------------------------------------------------------

  #seen(view: RoleView): void {
    const { clock } = this.#options;
    const nowMs = clock.monotonicMs();
    const isFirst = this.#viewSinceMs === -Infinity;
    const isSame =
      !isFirst &&
      view.fence?.modRevision === this.#view.fence?.modRevision &&
      view.beat?.modRevision === this.#view.beat?.modRevision;
    if (isSame) return;
    this.#view = view;
    this.#viewSinceMs = nowMs;
    // Somebody else went first, as was asked for: when that one gives it up in its turn, this node is a candidate like any other.
    if (view.fence?.incarnation !== this.#options.incarnation) this.#yieldUntilMs = -Infinity;
    this.#jitterMs =
      this.#options.fraction() * (isReleased(view) ? RELEASED_JITTER_MS : this.#options.times.beatMs / 2);
    this.#tellOfSwitch();
    this.#countTimeWithoutPrimary(nowMs);
    if (!this.#takingOver && this.#timer !== null) this.#arm();
  }

  /** When this node may try for the role, by its clock; Infinity while it need not ask. */
  #tryAtMs(): number {
    const { isCandidate, holder, times, incarnation } = this.#options;
    if (!isCandidate || this.#stopped || this.#takingOver || this.#viewSinceMs === -Infinity) return Infinity;
    if (holder.roleName !== "standby") return Infinity;
    const { fence } = this.#view;
    // Its own former tenure: that one has ended, nobody has to be waited for.
    const isFree = fence === null || isReleased(this.#view) || fence.incarnation === incarnation;
    const freeAtMs = isFree ? this.#viewSinceMs : this.#viewSinceMs + times.roleMs;
    return Math.max(freeAtMs + this.#jitterMs, this.#waitUntilMs, this.#yieldUntilMs);
  }

  #takeOver(nowMs: number): void {
    const { store, holder, log, clock } = this.#options;
    const { fence } = this.#view;
    const from = fence === null ? "nobody" : `${fence.node.host}:${fence.node.port}`;
    const quietMs = Math.round(nowMs - this.#viewSinceMs);
    log.write(this.#retryMs < RETRY_MS_MAX ? "info" : "debug", "trying for the primary role", {
      from,
      "quiet-ms": quietMs,
    });
    this.#takingOver = true;
    // What an earlier tenure still had to say must not be said of this one.
    this.#releaseAfterBeat = false;
    this.#tenure += 1;
    const tenure = this.#tenure;
    store.candidateFrom(this.#view);
    const sentAtMs = clock.monotonicMs();
    const sleeps = this.#sleeps;
    const taken = (): void => {
      this.#takingOver = false;
      this.#takeOvers += 1;
      this.#retryMs = RETRY_MS_MIN;
      this.#extend(sentAtMs, sleeps);
      this.#beatDueMs = sentAtMs + this.#options.times.beatMs;
      this.#arm();
    };
    holder.takeOver(taken, (error) => {
      this.#takingOver = false;
      if (tenure !== this.#tenure) return;
      if (error === null) {
        // It serves: the others hear of it with the next beat.
        this.#beatDueMs = -Infinity;
        this.#arm();
        return;
      }
      this.#endTenure();
      this.#tryLater(error);
    });
  }

  #tryLater(error: StoreError): void {
    const { clock, fraction, log } = this.#options;
    const level = this.#retryMs < RETRY_MS_MAX ? "info" : "debug";
    log.write(level, `the primary role was not taken: ${error.message}`, { code: error.code });
    this.#waitUntilMs = clock.monotonicMs() + this.#retryMs * (0.5 + fraction() / 2);
    this.#retryMs = Math.min(this.#retryMs * 2, RETRY_MS_MAX);
    this.#arm();
  }

  #poll(nowMs: number): void {
    if (this.#pollInFlight) return;
    this.#pollInFlight = true;
    this.#polledAtMs = nowMs;
    this.#options.store.poll((error) => {
      this.#pollInFlight = false;
      this.#tellOfReach(error);
    });
  }

  /** The operator hears at once that the shared store cannot be read, then every ten seconds, and when it can again. */
  #tellOfReach(error: StoreError | null): void {
    const { clock, log } = this.#options;
    const nowMs = clock.monotonicMs();
    if (error === null) {
      if (this.#unreachableToldAtMs !== null) log.write("info", "the shared store can be read again");
      this.#unreachableToldAtMs = null;
    } else if (this.#unreachableToldAtMs === null || nowMs - this.#unreachableToldAtMs >= UNREACHABLE_TOLD_EVERY_MS) {
      log.write("warn", `the shared store cannot be read: ${error.message}`);
      this.#unreachableToldAtMs = nowMs;
    }
  }

  #announce(nowMs: number): void {
    if (this.#announcing) return;
    this.#announcing = true;
    this.#announcedAtMs = nowMs;
    this.#options.store.announce(() => {
      this.#announcing = false;
    });
  }

  // What others may know ----------------------------------------------------------------------------------------------------

  get epoch(): number {
    return this.#view.fence?.epoch ?? 0;
  }

  primary(): NodeAddress | null {
    const { roleName } = this.#options.holder;
    if (this.hasTerm && roleName === "primary") return this.self;
    const { fence, beat } = this.#view;
    // One that still loads answers LOADING, and clients that are sent there take it for a failure.
    if (fence === null || beat?.state === "loading" || isReleased(this.#view)) return null;
    // A former tenure of this very process: it has no term, so nobody has.
    if (fence.incarnation === this.#options.incarnation) return null;
    return this.primarySeenAgoMs() < this.#options.times.roleMs ? fence.node : null;
  }

  primarySeenAgoMs(): number {
    const nowMs = this.#options.clock.monotonicMs();
    return this.#view.fence === null ? Infinity : nowMs - this.#viewSinceMs;
  }

  others(): readonly NodeAddress[] {
    return this.#nodes.present(this.#options.clock.monotonicMs()).filter((node) => node.id !== this.self.id);
  }

  onSwitch(listener: (from: NodeAddress | null, to: NodeAddress) => void): void {
    this.#listeners.push(listener);
  }

  #tellOfSwitch(): void {
    const node = this.#view.fence?.node ?? null;
    if (node === null || node.id === this.#told?.id) return;
    const from = this.#told;
    this.#told = node;
    this.#options.log.write("info", "the primary is", {
      node: `${node.host}:${node.port}`,
      epoch: this.epoch,
      "is-this-node": node.id === this.self.id,
    });
    for (const listener of this.#listeners) listener(from, node);
  }

  #countTimeWithoutPrimary(nowMs: number): void {
    const isWithout = this.primary() === null;
    if (isWithout && this.#withoutPrimarySinceMs === null) {
      this.#withoutPrimarySinceMs = nowMs;
    } else if (!isWithout && this.#withoutPrimarySinceMs !== null) {
      this.#withoutPrimaryMs += nowMs - this.#withoutPrimarySinceMs;
      this.#withoutPrimarySinceMs = null;
    }
  }

  report(): ClusterReport {
    const nowMs = this.#options.clock.monotonicMs();
    const current = this.#withoutPrimarySinceMs === null ? 0 : nowMs - this.#withoutPrimarySinceMs;
    return {
      name: this.name,
      epoch: this.epoch,
      primary: this.primary(),
      primarySeenAgoMs: this.primarySeenAgoMs(),
      others: this.others().length,
      takeOvers: this.#takeOvers,
      beatsFailed: this.#beatsFailed,
      lastBeatAgoMs: nowMs - this.#lastBeatAtMs,
      lastBeatLatencyMs: this.#lastBeatLatencyMs,
      beatLatencyMsMax: this.#beatLatencyMsMax,
      roleLeftMs: Math.max(0, this.#validUntilMs - nowMs),
      withoutPrimaryMs: this.#withoutPrimaryMs + current,
    };
  }
}

function isReleased({ fence, beat }: RoleView): boolean {
  return fence !== null && beat !== null && beat.state === "released" && beat.epoch === fence.epoch;
}
