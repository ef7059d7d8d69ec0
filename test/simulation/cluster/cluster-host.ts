import type { Clock, Scheduler, Timer } from "#src/ports.js";
import { SimHost } from "../sim-host.js";
import type { World } from "../sim-world.js";

/**
 * The machine and process of one incarnation of a node: the clock, timers and crashes of `SimHost`, and the ways in which a machine
 * can stand still.
 *
 *   stop      the process does not run (SIGSTOP, a starved machine): all clocks go on
 *   suspend   the machine sleeps: CLOCK_MONOTONIC stands still, CLOCK_BOOTTIME and the wall clock go on
 *   freeze    the virtual machine is held: no clock of its own counts it
 *
 * What comes in meanwhile waits, and is let in afterwards in no particular order: timers and sockets know nothing of each other.
 * Timers go by CLOCK_MONOTONIC.
 */

export type StandStill = "stop" | "suspend" | "freeze";

export interface ClusterHostOptions {
  /** Milliseconds of its clock per true millisecond. */
  readonly clockRate: number;
  readonly clockOriginMs: number;
  /** What the wall clock is off by; may change at any time. */
  wallOffsetMs(): number;
}

/** What came in while the process stood still is let in within so long. */
const WAKE_MS_MAX = 0.5;

/** CLOCK_BOOTTIME is read in steps of so much. */
const BOOTTIME_GRAIN_MS = 10;

/** Readings whose true times are remembered: more than any turn is old. */
const READINGS_KEPT = 64;

export class ClusterHost {
  readonly clock: Clock;
  readonly scheduler: Scheduler;
  readonly #world: World;
  readonly #inner: SimHost;
  readonly #rate: number;
  #heldUntilMs = 0;
  #sleptMs = 0;
  #frozenMs = 0;
  #lastReadMs = -Infinity;
  /** True times of the newest readings of the monotonic clock. */
  readonly #readAtMs = new Map<number, number>();
  #soon: (() => void)[] = [];

  constructor(world: World, options: ClusterHostOptions) {
    this.#world = world;
    this.#rate = options.clockRate;
    this.#inner = new SimHost(world, {
      clockRate: options.clockRate,
      clockOriginMs: options.clockOriginMs,
      timerEarlyMsMax: 0.5,
      timerLateMsMean: 0.5,
      pauseChance: 0,
      pauseMsMax: 0,
      wallOffsetMs: () => options.wallOffsetMs() - this.#frozenMs,
      onCrash: () => undefined,
    });
    this.clock = { monotonicMs: () => this.#read(), unixMs: () => this.#inner.clock.unixMs() };
    this.scheduler = {
      after: (delayMs, callback) => this.#after(delayMs, callback),
      soon: (callback) => this.#runSoon(callback),
    };
  }

  get alive(): boolean {
    return this.#inner.alive;
  }

  get isHeld(): boolean {
    return this.#world.nowMs < this.#heldUntilMs;
  }

  /** CLOCK_BOOTTIME. */
  boottimeMs(): number {
    const ms = this.#peek() + this.#sleptMs * this.#rate;
    return Math.floor(ms / BOOTTIME_GRAIN_MS) * BOOTTIME_GRAIN_MS;
  }

  /** The true time at which the monotonic clock was read as this. */
  trueTimeOf(reading: number): number {
    return this.#readAtMs.get(reading) ?? this.#world.nowMs;
  }

  kill(): void {
    this.#inner.kill();
  }

  /** Nothing runs for a while; harmless while it stands still already. */
  standStill(ms: number, kind: StandStill): void {
    if (this.isHeld) return;
    this.#heldUntilMs = this.#world.nowMs + ms;
    if (kind === "suspend") this.#sleptMs += ms;
    if (kind === "freeze") this.#frozenMs += ms;
  }

  /** Runs something inside the process, now or when it is let go. */
  enter(run: () => void): void {
    if (!this.alive) return;
    if (this.isHeld) {
      this.#world.at(this.#heldUntilMs + this.#world.random.between(0, WAKE_MS_MAX), () => this.enter(run));
      return;
    }
    this.#inner.enter(run);
  }

  #peek(): number {
    return this.#inner.peekMonotonicMs() - (this.#sleptMs + this.#frozenMs) * this.#rate;
  }

  #read(): number {
    this.#inner.clock.monotonicMs();
    this.#lastReadMs = Math.max(this.#lastReadMs, this.#peek());
    if (this.#readAtMs.size >= READINGS_KEPT) {
      const oldest = this.#readAtMs.keys().next();
      if (oldest.done !== true) this.#readAtMs.delete(oldest.value);
    }
    this.#readAtMs.set(this.#lastReadMs, this.#world.nowMs);
    return this.#lastReadMs;
  }

  #after(delayMs: number, callback: () => void): Timer {
    const dueMs = this.#peek() + delayMs;
    let isArmed = true;
    let inner: Timer;
    const fire = (): void => {
      this.enter(() => {
        if (!isArmed) return;
        const leftMs = dueMs - this.#peek();
        if (leftMs > 1) {
          inner = this.#inner.scheduler.after(leftMs, fire);
          return;
        }
        isArmed = false;
        callback();
      });
    };
    inner = this.#inner.scheduler.after(delayMs, fire);
    return {
      cancel: () => {
        isArmed = false;
        inner.cancel();
      },
    };
  }

  #runSoon(callback: () => void): void {
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
