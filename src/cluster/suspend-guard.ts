/**
 * Notices that the machine was suspended. CLOCK_MONOTONIC, by which this node counts its time as primary, stands still meanwhile,
 * the other nodes' clocks do not: so a node that was asleep knows nothing about the role any more.
 *
 * CLOCK_BOOTTIME counts the time asleep: as long as the machine is awake both clocks move alike. The wall clock serves as a cheap
 * hint, to look again before the next regular look is due; it decides nothing.
 *
 * Invariant: never a false alarm from being held up between two readings: of the monotonic clock the later reading counts. But for the
 * first look, when being held up while the guard was made may count as a sleep.
 */

export interface SuspendClocks {
  monotonicMs(): number;
  unixMs(): number;
  /** CLOCK_BOOTTIME in milliseconds; its grain may be 10 ms. */
  boottimeMs(): number;
}

/** A difference below this is grain: naps that are shorter, all together, go unnoticed. */
export const SUSPEND_MS_MIN = 30;

/** A wall clock that moved by so much against the monotonic one is a reason to look. */
const WALL_JUMP_MS_MIN = 50;

export class SuspendGuard {
  readonly #clocks: SuspendClocks;
  #aheadMs: number;
  #wallAheadMs: number;

  constructor(clocks: SuspendClocks) {
    this.#clocks = clocks;
    // In the order of `hasSlept`: held up in between, the first look may see a sleep that was none, and overlooks none later.
    const boottimeMs = clocks.boottimeMs();
    const monotonicMs = clocks.monotonicMs();
    this.#aheadMs = boottimeMs - monotonicMs;
    this.#wallAheadMs = clocks.unixMs() - monotonicMs;
  }

  /** Whether the machine slept since the last call that said so, or since the start. */
  hasSlept(): boolean {
    const boottimeMs = this.#clocks.boottimeMs();
    const monotonicMs = this.#clocks.monotonicMs();
    this.#wallAheadMs = this.#clocks.unixMs() - monotonicMs;
    const aheadMs = boottimeMs - monotonicMs;
    if (aheadMs - this.#aheadMs < SUSPEND_MS_MIN) return false;
    this.#aheadMs = aheadMs;
    return true;
  }

  /** The same for every turn: costs two readings, unless the wall clock moved. `nowMs`: a monotonic reading of just now. */
  mayHaveSlept(nowMs: number): boolean {
    const wallAheadMs = this.#clocks.unixMs() - nowMs;
    return Math.abs(wallAheadMs - this.#wallAheadMs) >= WALL_JUMP_MS_MIN;
  }
}
