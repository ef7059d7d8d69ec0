import { RoleKeeper, type RoleHolder } from "#src/cluster/role-keeper.js";
import type { RoleTimes } from "#src/cluster/role-times.js";
import type {
  BeatRow,
  NodeSighting,
  RoleListener,
  RoleView,
  SharedStore,
  SharedStoreReport,
} from "#src/durability/shared-store.js";
import { StoreError, type Done, type StoreErrorCode } from "#src/durability/store.js";
import type { NodeAddress, RoleName } from "#src/ports.js";
import { ManualClock, ManualScheduler } from "../durability/manual.js";

/** The real keeper of the role between a store and a holder that do only what a test says, under a clock that only a test moves. */

export const TIMES: RoleTimes = { roleMs: 6_000, marginMs: 500, beatMs: 1_000, requestTimeoutMs: 1_000 };

export const nodeCalled = (name: string): NodeAddress => ({
  id: name,
  host: "10.0.0.1",
  port: 6379,
  sentinelPort: 26379,
});

/** A view with a fence of a node, and a beat. */
export function viewOf(
  name: string,
  {
    epoch = 1,
    fence = 10,
    beat = 11,
    state = "serving",
  }: Partial<Record<"epoch" | "fence" | "beat", number>> & {
    readonly state?: BeatRow["state"];
  } = {},
): RoleView {
  return {
    fence: { epoch, node: nodeCalled(name), incarnation: name, modRevision: fence },
    beat: { epoch, number: 1, state, modRevision: beat },
  };
}

/** A beat that waits for its answer. */
export interface SentBeat {
  readonly state: BeatRow["state"];
  readonly sentAtMs: number;
  readonly answer: Done;
}

export class ScriptedStore implements SharedStore {
  readonly name = "scripted";
  readonly beats: SentBeat[] = [];
  readonly candidacies: RoleView[] = [];
  polls: Done[] = [];
  announcements = 0;
  listener: RoleListener | null = null;
  readonly #clock: ManualClock;

  constructor(clock: ManualClock) {
    this.#clock = clock;
  }

  announceAs(): void {
    throw new Error("the keeper does not name the node");
  }

  watch(listener: RoleListener): void {
    this.listener = listener;
  }

  poll(done: Done): void {
    this.polls.push(done);
  }

  candidateFrom(view: RoleView): void {
    this.candidacies.push(view);
  }

  beat(state: BeatRow["state"], answer: Done): void {
    this.beats.push({ state, sentAtMs: this.#clock.nowMs, answer });
  }

  announce(done: Done): void {
    this.announcements += 1;
    done(null);
  }

  sharedReport(): SharedStoreReport {
    throw new Error("the keeper does not ask for it");
  }

  acquire(): void {
    throw new Error("the holder acquires");
  }

  load(): void {
    throw new Error("the holder loads");
  }

  commit(): void {
    throw new Error("the holder commits");
  }

  close(): void {
    throw new Error("the holder closes");
  }
}

/** A take-over that waits for its end. */
export interface SentTakeOver {
  readonly sentAtMs: number;
  /** The store is this node's. */
  taken(): void;
  /** It serves. */
  serves(): void;
  fails(code: StoreErrorCode): void;
}

class ScriptedHolder implements RoleHolder {
  roleName: RoleName = "standby";
  readonly takeOvers: SentTakeOver[] = [];
  readonly losses: string[] = [];
  readonly #clock: ManualClock;

  constructor(clock: ManualClock) {
    this.#clock = clock;
  }

  takeOver(onTaken: () => void, done: Done): void {
    this.takeOvers.push({
      sentAtMs: this.#clock.nowMs,
      taken: () => {
        this.roleName = "loading";
        onTaken();
      },
      serves: () => {
        this.roleName = "primary";
        done(null);
      },
      fails: (code) => {
        this.roleName = "standby";
        done(new StoreError(code, "scripted"));
      },
    });
  }

  lose(reason: string): void {
    this.losses.push(reason);
    this.roleName = "standby";
  }
}

export class KeeperUnderTest {
  readonly clock = new ManualClock();
  readonly scheduler = new ManualScheduler(this.clock);
  readonly store = new ScriptedStore(this.clock);
  readonly holder = new ScriptedHolder(this.clock);
  readonly log: string[] = [];
  readonly keeper: RoleKeeper;
  /** For how long the machine slept: what CLOCK_BOOTTIME and the wall clock are ahead by. */
  sleptMs = 0;

  constructor({ isCandidate = true, fraction = 0, times = TIMES } = {}) {
    const { clock } = this;
    this.keeper = new RoleKeeper({
      name: "test",
      self: nodeCalled("me"),
      store: this.store,
      holder: this.holder,
      clock: { monotonicMs: () => clock.monotonicMs(), unixMs: () => clock.unixMs() + this.sleptMs },
      boottimeMs: () => clock.nowMs + 77_000 + this.sleptMs,
      scheduler: this.scheduler,
      fraction: () => fraction,
      log: { write: (level, message) => this.log.push(`${level} ${message}`) },
      times,
      isCandidate,
      incarnation: "me",
    });
    this.keeper.start();
  }

  sees(view: RoleView): void {
    this.store.listener?.onView(view);
  }

  seesNodes(sightings: readonly NodeSighting[]): void {
    this.store.listener?.onNodes(sightings);
  }

  /** Lets time pass up to a reading of the clock. */
  advanceTo(atMs: number): void {
    this.advance(atMs - this.nowMs);
  }

  advance(ms: number): void {
    this.scheduler.advance(ms);
  }

  get nowMs(): number {
    return this.clock.nowMs;
  }

  get holds(): boolean {
    return this.keeper.holds(this.nowMs);
  }

  get takeOvers(): readonly SentTakeOver[] {
    return this.holder.takeOvers;
  }

  /** From standby to primary. Returns the reading that its time counts from. */
  becomePrimary(): number {
    this.sees({ fence: null, beat: null });
    this.advance(1);
    const takeOver = this.holder.takeOvers.at(-1);
    if (takeOver === undefined) throw new Error("the keeper does not try for a role that nobody has");
    takeOver.taken();
    takeOver.serves();
    this.sees(viewOf("me", { fence: 20, beat: 21 }));
    this.advance(1);
    // It may say at once that it serves.
    const beats = this.store.beats.splice(0);
    for (const { answer } of beats) answer(null);
    return beats.at(-1)?.sentAtMs ?? takeOver.sentAtMs;
  }

  /** The beat that waits for its answer. */
  get beatUnderway(): SentBeat {
    const beat = this.store.beats.at(-1);
    if (beat === undefined) throw new Error("no beat was sent");
    return beat;
  }

  /** Lets time pass with each beat answered at once. */
  advanceWithBeats(ms: number): void {
    const endMs = this.nowMs + ms;
    let answered = this.store.beats.length;
    while (this.nowMs < endMs) {
      this.advance(Math.min(50, endMs - this.nowMs));
      for (; answered < this.store.beats.length; answered += 1) this.store.beats[answered]?.answer(null);
    }
  }
}
