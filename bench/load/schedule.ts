/**
 * A fixed arrival schedule: request i is meant to leave at `startMs + i / rate`, whatever the server does. Latency counts from
 * that moment, not from the one at which the request really left: while a server stalls, the requests that should have left
 * meanwhile go on ageing, as those of independent clients would. (Waiting for a reply before the next request hides just
 * these: "coordinated omission".)
 *
 * Time is an argument; the schedule owns no clock.
 */
export class ArrivalSchedule {
  readonly startMs: number;
  readonly #intervalMs: number;
  readonly #count: number;
  #next = 0;

  /** `count` requests, the first at `startMs`, evenly spaced at `ratePerSecond`. */
  constructor(startMs: number, ratePerSecond: number, count: number) {
    if (!(ratePerSecond > 0)) throw new RangeError(`a rate must be positive, not ${ratePerSecond}`);
    this.startMs = startMs;
    this.#intervalMs = 1000 / ratePerSecond;
    this.#count = count;
  }

  /** When request `sequence` is meant to leave. Computed from the start each time, so that no error adds up. */
  intendedMs(sequence: number): number {
    return this.startMs + sequence * this.#intervalMs;
  }

  /** The next request that is due at `nowMs`, and moves on; -1 when none is. */
  takeDue(nowMs: number): number {
    if (this.#next >= this.#count || this.intendedMs(this.#next) > nowMs) return -1;
    return this.#next++;
  }

  /** When the next request is due; Infinity after the last. */
  get nextDueMs(): number {
    return this.#next >= this.#count ? Number.POSITIVE_INFINITY : this.intendedMs(this.#next);
  }

  /** How many have been taken so far. */
  get taken(): number {
    return this.#next;
  }
}
