import { openConnection } from "./open-connection.js";
import { Tally, type LoadProgress, type LoadResult } from "./tally.js";
import type { LoadConnection, TargetSpec } from "./target.js";

/**
 * The closed-loop generator: each connection has `depth` requests under way and sends the next one when a reply comes. For
 * filling servers before a measurement, and for throughput where redis-benchmark does not speak the protocol (etcd). Its
 * latencies say how long a reply took, not how long a client that did not wait its turn would have waited: see open-loop.ts.
 */

export interface ClosedLoopJob {
  readonly kind: "closed";
  readonly target: TargetSpec;
  readonly connections: number;
  readonly depth: number;
  readonly warmupMs: number;
  /** Ends after this long, or after `requestsMax`, whichever comes first. */
  readonly durationMs: number;
  readonly requestsMax: number;
}

/** Rejects when a connection is lost or cannot be made. Error replies are counted, not thrown. */
export async function runClosedLoop(job: ClosedLoopJob, progress: LoadProgress = {}): Promise<LoadResult> {
  const loop = new ClosedLoop(job, progress);
  return loop.run();
}

class ClosedLoop {
  readonly #job: ClosedLoopJob;
  readonly #progress: LoadProgress;
  readonly #tally = new Tally(0);
  readonly #sentMs = new Map<number, number>();
  readonly #connections: LoadConnection[] = [];
  #next = 0;
  #measureFromMs = Number.POSITIVE_INFINITY;
  #endMs = Number.POSITIVE_INFINITY;
  #measuring = false;
  #settle: { resolve: () => void; reject: (error: Error) => void } | null = null;

  constructor(job: ClosedLoopJob, progress: LoadProgress) {
    this.#job = job;
    this.#progress = progress;
  }

  async run(): Promise<LoadResult> {
    const job = this.#job;
    try {
      for (let index = 0; index < job.connections; index++) {
        const onLost = (reason: string): void =>
          this.#settle?.reject(new Error(`connection lost under load: ${reason}`));
        const flushSoon = { armed: false };
        const connection = await openConnection(
          job.target,
          index,
          (sequence, error) => this.#onReply(sequence, error, connection, flushSoon),
          onLost,
        );
        this.#connections.push(connection);
      }
      const startMs = performance.now();
      this.#measureFromMs = startMs + job.warmupMs;
      this.#endMs = this.#measureFromMs + job.durationMs;
      const finished = new Promise<void>((resolve, reject) => {
        this.#settle = { resolve, reject };
      });
      if (job.warmupMs === 0) this.#startMeasuring();
      for (let deep = 0; deep < job.depth; deep++) for (const each of this.#connections) this.#sendNext(each);
      for (const each of this.#connections) each.flush();
      const watchdog = setTimeout(
        () => this.#settle?.reject(new Error("the server answers no more")),
        job.warmupMs + job.durationMs + 30_000,
      );
      await finished.finally(() => clearTimeout(watchdog));
      const measuredMs = performance.now() - this.#measureFromMs;
      this.#progress.onMeasureEnd?.();
      return this.#tally.result(this.#tally.answered, measuredMs);
    } finally {
      this.#settle = null;
      for (const each of this.#connections) each.close();
    }
  }

  #startMeasuring(): void {
    this.#measuring = true;
    this.#progress.onMeasureStart?.();
  }

  #sendNext(connection: LoadConnection): void {
    if (this.#next >= this.#job.requestsMax) return;
    const sequence = this.#next++;
    this.#sentMs.set(sequence, performance.now());
    connection.send(sequence);
  }

  #onReply(sequence: number, error: string | null, connection: LoadConnection, flushSoon: { armed: boolean }): void {
    const nowMs = performance.now();
    const sentMs = this.#sentMs.get(sequence) ?? nowMs;
    this.#sentMs.delete(sequence);
    if (!this.#measuring && nowMs >= this.#measureFromMs) this.#startMeasuring();
    if (this.#measuring && nowMs <= this.#endMs) this.#tally.reply(sentMs, nowMs, error);
    const over = nowMs > this.#endMs || this.#progress.shouldStop?.() === true;
    if (!over) {
      this.#sendNext(connection);
      // The requests that the replies of one read set free leave in one write.
      if (!flushSoon.armed) {
        flushSoon.armed = true;
        process.nextTick(() => {
          flushSoon.armed = false;
          connection.flush();
        });
      }
    }
    if (over || this.#sentMs.size === 0) this.#settle?.resolve();
  }
}
