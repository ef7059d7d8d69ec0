import { build, decodeFromCompressedBase64, encodeIntoCompressedBase64, type Histogram } from "hdr-histogram-js";

/**
 * Latencies in an HDR histogram: whole microseconds, 1 us to 10 minutes, three significant digits, so that a percentile is
 * right to 0.1 % wherever it lies. What is longer than ten minutes counts as ten minutes.
 */

const LATENCY_US_MAX = 600_000_000;

/** The percentiles of every table and curve. */
export const PERCENTILES = [0, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.99, 100] as const;

export interface LatencySummary {
  readonly count: number;
  readonly p50Ms: number;
  readonly p95Ms: number;
  readonly p99Ms: number;
  readonly maxMs: number;
  /** `[percentile, milliseconds]` for each of PERCENTILES. */
  readonly curve: readonly (readonly [number, number])[];
}

export class LatencyHistogram {
  readonly #histogram: Histogram;

  constructor(histogram: Histogram = newHistogram()) {
    this.#histogram = histogram;
  }

  static decode(encoded: string): LatencyHistogram {
    return new LatencyHistogram(decodeFromCompressedBase64(encoded, 32, false));
  }

  recordMs(latencyMs: number): void {
    const us = Math.round(latencyMs * 1000);
    this.#histogram.recordValue(us < 1 ? 1 : us > LATENCY_US_MAX ? LATENCY_US_MAX : us);
  }

  add(other: LatencyHistogram): void {
    this.#histogram.add(other.#histogram);
  }

  get count(): number {
    return this.#histogram.totalCount;
  }

  percentileMs(percentile: number): number {
    if (this.#histogram.totalCount === 0) return Number.NaN;
    if (percentile <= 0) return this.#histogram.minNonZeroValue / 1000;
    if (percentile >= 100) return this.#histogram.maxValue / 1000;
    return this.#histogram.getValueAtPercentile(percentile) / 1000;
  }

  summary(): LatencySummary {
    return {
      count: this.count,
      p50Ms: this.percentileMs(50),
      p95Ms: this.percentileMs(95),
      p99Ms: this.percentileMs(99),
      maxMs: this.percentileMs(100),
      curve: PERCENTILES.map((percentile) => [percentile, this.percentileMs(percentile)] as const),
    };
  }

  /** Text that `decode` reads: how a generator process hands its latencies over. */
  encode(): string {
    return encodeIntoCompressedBase64(this.#histogram);
  }
}

function newHistogram(): Histogram {
  return build({
    bitBucketSize: 32,
    autoResize: false,
    lowestDiscernibleValue: 1,
    highestTrackableValue: LATENCY_US_MAX,
    numberOfSignificantValueDigits: 3,
    useWebAssembly: false,
  });
}
