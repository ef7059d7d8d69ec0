import { createHash } from "node:crypto";
import { PriorityQueue } from "@datastructures-js/priority-queue";
import { Random } from "./random.js";

/**
 * Time and chance of one simulation. Events lie in a heap ordered by time, then by the order in which they were made; the next
 * one runs when the one before has returned. Nothing here is real: no clock, no timer, no thread.
 *
 * Work takes time too: whoever works moves `nowMs` forward with `spend`, so an event may run later than it was due, as on a
 * busy machine.
 *
 * Invariants:
 *  - time never goes back
 *  - the same seed gives the same trace, byte for byte
 */

export interface PlannedEvent {
  cancelled: boolean;
}

interface Entry extends PlannedEvent {
  readonly atMs: number;
  readonly sequence: number;
  readonly run: () => void;
}

/** The newest lines of a trace that are kept for a report. */
const TRACE_LINES_KEPT = 400;

export class World {
  readonly random: Random;
  #nowMs = 0;
  #sequence = 0;
  #eventsRun = 0;
  readonly #queue = new PriorityQueue<Entry>((a, b) => a.atMs - b.atMs || a.sequence - b.sequence);
  readonly #hash = createHash("sha256");
  readonly #keepAll: boolean;
  #lines: string[] = [];

  /** `keepAllTrace`: keep every line instead of the newest ones. */
  constructor(seed: number, keepAllTrace = false) {
    this.random = new Random(seed);
    this.#keepAll = keepAllTrace;
  }

  /** True time in milliseconds since the simulation began. No simulated part may read it; clocks are made from it. */
  get nowMs(): number {
    return this.#nowMs;
  }

  get eventsRun(): number {
    return this.#eventsRun;
  }

  /** Whoever runs now took this long. */
  spend(ms: number): void {
    this.#nowMs += ms;
  }

  at(atMs: number, run: () => void): PlannedEvent {
    const entry: Entry = { atMs: Math.max(atMs, this.#nowMs), sequence: this.#sequence, run, cancelled: false };
    this.#sequence += 1;
    this.#queue.enqueue(entry);
    return entry;
  }

  after(delayMs: number, run: () => void): PlannedEvent {
    return this.at(this.#nowMs + delayMs, run);
  }

  /** Runs the next event. False when there is none. */
  step(): boolean {
    for (;;) {
      const entry = this.#queue.dequeue();
      if (entry === null) return false;
      if (entry.cancelled) continue;
      this.#nowMs = Math.max(this.#nowMs, entry.atMs);
      this.#eventsRun += 1;
      entry.run();
      return true;
    }
  }

  /** Notes what happened: part of the hash that two runs of a seed share, and of the report of a failure. */
  trace(line: string): void {
    const stamped = `${this.#nowMs.toFixed(3)} ${line}`;
    this.#hash.update(stamped);
    this.#hash.update("\n");
    this.#lines.push(stamped);
    if (!this.#keepAll && this.#lines.length >= 2 * TRACE_LINES_KEPT)
      this.#lines = this.#lines.slice(-TRACE_LINES_KEPT);
  }

  get traceLines(): readonly string[] {
    return this.#lines;
  }

  /** Ends the trace: no line may follow. */
  traceHash(): string {
    return this.#hash.digest("hex");
  }
}
