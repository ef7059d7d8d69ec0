import type { Clock } from "../ports.js";
import type { CommandSpec } from "./command.js";

/**
 * How long commands took, without a clock reading for each: a turn's duration is shared among the commands that ran in it. Turns
 * mostly run one kind of command, over and over; then the share is exact.
 */
export class TurnLedger {
  readonly #clock: Clock;
  /** The kinds of this turn and how often each ran; the last one is counted in `#newestCalls` until the kind changes. */
  readonly #specs: CommandSpec[] = [];
  readonly #calls: number[] = [];
  #newest: CommandSpec | null = null;
  #newestCalls = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  count(spec: CommandSpec): void {
    if (spec !== this.#newest) this.#change(spec);
    this.#newestCalls++;
  }

  /** Ends the turn that began at `startedAtMs`. */
  settle(startedAtMs: number): void {
    const newest = this.#newest;
    if (newest === null) return;
    const durationMs = this.#clock.monotonicMs() - startedAtMs;
    if (this.#specs.length === 0) {
      newest.counters.durationMs += durationMs;
    } else {
      this.#share(durationMs);
    }
    this.#newest = null;
    this.#newestCalls = 0;
  }

  #change(spec: CommandSpec): void {
    if (this.#newest !== null) {
      this.#specs.push(this.#newest);
      this.#calls.push(this.#newestCalls);
    }
    this.#newest = spec;
    this.#newestCalls = 0;
  }

  #share(durationMs: number): void {
    this.#specs.push(this.#newest as CommandSpec);
    this.#calls.push(this.#newestCalls);
    let total = 0;
    for (const calls of this.#calls) total += calls;
    for (let index = 0; index < this.#specs.length; index++) {
      (this.#specs[index] as CommandSpec).counters.durationMs += (durationMs * (this.#calls[index] as number)) / total;
    }
    this.#specs.length = 0;
    this.#calls.length = 0;
  }
}
