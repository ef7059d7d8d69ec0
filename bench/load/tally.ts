import { LatencyHistogram } from "../measure/latency.js";

/** What a generator found. Everything but the warm-up is in it. */
export interface LoadResult {
  readonly sent: number;
  readonly answered: number;
  /** Replies other than the expected one; they are counted in `answered` too. */
  readonly errors: number;
  readonly firstError: string | null;
  /** Requests without a reply when the generator gave up; their latency is counted as what they had waited by then. */
  readonly unanswered: number;
  /** From the first measured request to the end of the measurement, in milliseconds. */
  readonly measuredMs: number;
  readonly latency: LatencyHistogram;
  /** How long after its intended moment each request really left: the generator's own lateness (open loop only). */
  readonly lag: LatencyHistogram;
  /** Latencies in slots of time, when asked for. */
  readonly slots: readonly LatencySlot[];
}

export interface LatencySlot {
  /** Wall-clock milliseconds of the start of the slot; requests belong to the slot in which they were meant to leave. */
  readonly startUnixMs: number;
  readonly count: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
  readonly maxMs: number;
}

/** The text form in which a generator process hands its result over. */
export interface EncodedLoadResult extends Omit<LoadResult, "latency" | "lag"> {
  readonly latency: string;
  readonly lag: string;
}

export function encodeResult(result: LoadResult): EncodedLoadResult {
  return { ...result, latency: result.latency.encode(), lag: result.lag.encode() };
}

export function decodeResult(encoded: EncodedLoadResult): LoadResult {
  return {
    ...encoded,
    latency: LatencyHistogram.decode(encoded.latency),
    lag: LatencyHistogram.decode(encoded.lag),
  };
}

/** What a generator tells while it runs, so that the server's CPU time can be read at the same two moments. */
export interface LoadProgress {
  onMeasureStart?: () => void;
  onMeasureEnd?: () => void;
  /** Asked often; true ends the load early. */
  shouldStop?: () => boolean;
}

/** Counts replies and latencies while a generator runs. */
export class Tally {
  readonly latency = new LatencyHistogram();
  readonly lag = new LatencyHistogram();
  readonly #slotMs: number;
  readonly #slots = new Map<number, number[]>();
  answered = 0;
  errors = 0;
  firstError: string | null = null;

  /** `slotMs`: 0 for no slots. */
  constructor(slotMs: number) {
    this.#slotMs = slotMs;
  }

  /** `intendedMs`: performance.now() of the moment from which the latency counts. */
  reply(intendedMs: number, nowMs: number, error: string | null): void {
    this.answered++;
    if (error !== null) {
      this.errors++;
      this.firstError ??= error;
    }
    this.wait(intendedMs, nowMs);
  }

  /** A latency without a reply: what an unanswered request had waited. */
  wait(intendedMs: number, nowMs: number): void {
    this.latency.recordMs(nowMs - intendedMs);
    if (this.#slotMs === 0) return;
    const slot = Math.floor((intendedMs + performance.timeOrigin) / this.#slotMs);
    const latencies = this.#slots.get(slot);
    if (latencies === undefined) this.#slots.set(slot, [nowMs - intendedMs]);
    else latencies.push(nowMs - intendedMs);
  }

  result(sent: number, measuredMs: number): LoadResult {
    return {
      sent,
      answered: this.answered,
      errors: this.errors,
      firstError: this.firstError,
      unanswered: sent - this.answered,
      measuredMs,
      latency: this.latency,
      lag: this.lag,
      slots: [...this.#slots].sort(([a], [b]) => a - b).map(([slot, latencies]) => this.#slotOf(slot, latencies)),
    };
  }

  #slotOf(slot: number, latencies: readonly number[]): LatencySlot {
    const sorted = latencies.toSorted((a, b) => a - b);
    const at = (share: number): number => sorted[Math.ceil(sorted.length * share) - 1] ?? Number.NaN;
    return {
      startUnixMs: slot * this.#slotMs,
      count: sorted.length,
      p50Ms: at(0.5),
      p99Ms: at(0.99),
      maxMs: at(1),
    };
  }
}
