import type { Clock, Scheduler, Timer } from "#src/ports.js";
import { check } from "./violation.js";
import type { World } from "./sim-world.js";

/**
 * The machine and process that one incarnation of the server runs in: its clock, its timers, its event loop.
 *
 * Everything that reaches the server comes in through `enter`: it is dropped when the process is dead, put off while the process
 * is held up, and a simulated crash that comes out of it ends the process. The clock runs at its own rate from its own
 * origin; reading it costs a little time, now and then a lot.
 */

/** Thrown by fault points. Not an Error: production code that handles Errors must not be able to handle the end of its process. */
export class SimulatedCrash {
  readonly where: string;
  constructor(where: string) {
    this.where = where;
  }
}

export interface HostOptions {
  /** Milliseconds of its clock per true millisecond. */
  readonly clockRate: number;
  readonly clockOriginMs: number;
  /** How early a timer may fire, in milliseconds: real ones are off by up to one. */
  readonly timerEarlyMsMax: number;
  /** How late a timer fires on average, in milliseconds. */
  readonly timerLateMsMean: number;
  /** The chance that reading the clock finds the process held up by its garbage collector. */
  readonly pauseChance: number;
  readonly pauseMsMax: number;
  /** What the wall clock is off by; may change at any time. */
  wallOffsetMs(): number;
  /** The process is gone by a fault point. */
  onCrash(crash: SimulatedCrash): void;
}

/** 2026, for the wall clock. */
const WALL_START_MS = 1_790_000_000_000;

export class SimHost {
  readonly clock: Clock;
  readonly scheduler: Scheduler;
  readonly #world: World;
  readonly #options: HostOptions;
  readonly #startedAtMs: number;
  #alive = true;
  #heldUntilMs = 0;
  #suspendedMs = 0;
  #lastReadMs = -Infinity;
  #soon: (() => void)[] = [];
  #timers = 0;
  /** Set while faults are off: work is then quick. */
  calm = false;

  constructor(world: World, options: HostOptions) {
    this.#world = world;
    this.#options = options;
    this.#startedAtMs = world.nowMs;
    this.clock = {
      monotonicMs: () => this.#readClock(),
      unixMs: () => Math.floor(WALL_START_MS + world.nowMs + options.wallOffsetMs()),
    };
    this.scheduler = {
      after: (delayMs, callback) => this.#after(delayMs, callback),
      soon: (run) => this.runSoon(run),
    };
  }

  get alive(): boolean {
    return this.#alive;
  }

  /** Timers that are armed: a server at rest has none. */
  get timersArmed(): number {
    return this.#timers;
  }

  /** The clock without the cost of reading it: for checks. */
  peekMonotonicMs(): number {
    const { clockRate, clockOriginMs } = this.#options;
    return clockOriginMs + (this.#world.nowMs - this.#startedAtMs - this.#suspendedMs) * clockRate;
  }

  /** The process is gone: nothing enters it any more. */
  kill(): void {
    this.#alive = false;
  }

  /** Nothing enters the process for a while. When suspended, its clock stands still too. */
  hold(ms: number, suspended: boolean): void {
    const { nowMs } = this.#world;
    if (nowMs < this.#heldUntilMs) return;
    this.#heldUntilMs = nowMs + ms;
    if (suspended) this.#suspendedMs += ms;
  }

  /** Runs something inside the process, now or when it is let go. */
  enter(run: () => void): void {
    if (!this.#alive) return;
    if (this.#world.nowMs < this.#heldUntilMs) {
      this.#world.at(this.#heldUntilMs, () => this.enter(run));
      return;
    }
    try {
      run();
    } catch (crash) {
      if (!(crash instanceof SimulatedCrash)) throw crash;
      if (!this.#alive) return;
      this.#alive = false;
      this.#options.onCrash(crash);
    }
  }

  /** Runs something inside the process at a time. */
  enterAt(atMs: number, run: () => void): void {
    this.#world.at(atMs, () => this.enter(run));
  }

  #readClock(): number {
    const { random } = this.#world;
    const paused = !this.calm && random.chance(this.#options.pauseChance);
    this.#world.spend(paused ? random.between(1, this.#options.pauseMsMax) : random.between(0, 0.02));
    // A suspended clock is behind the time at which the hold began only while nothing runs.
    this.#lastReadMs = Math.max(this.#lastReadMs, this.peekMonotonicMs());
    return this.#lastReadMs;
  }

  #after(delayMs: number, callback: () => void): Timer {
    check(delayMs >= 0 && Number.isFinite(delayMs), "ports", () => `a timer of ${delayMs} ms`);
    const { random } = this.#world;
    const { clockRate, timerEarlyMsMax, timerLateMsMean } = this.#options;
    const earlyMs = Math.min(delayMs, random.between(0, timerEarlyMsMax));
    const lateMs = random.exponential(timerLateMsMean);
    let armed = true;
    this.#timers += 1;
    const event = this.#world.after((delayMs - earlyMs) / clockRate + lateMs, () =>
      this.enter(() => {
        if (!armed) return;
        armed = false;
        this.#timers -= 1;
        callback();
      }),
    );
    return {
      cancel: () => {
        event.cancelled = true;
        if (armed) this.#timers -= 1;
        armed = false;
      },
    };
  }

  /** What `scheduler.soon` does. */
  runSoon(callback: () => void): void {
    this.#soon.push(callback);
    if (this.#soon.length > 1) return;
    const round = (): void => {
      const callbacks = this.#soon;
      this.#soon = [];
      for (const run of callbacks) run();
    };
    this.#world.after(this.#world.random.between(0, 0.1), () => this.enter(round));
  }
}
