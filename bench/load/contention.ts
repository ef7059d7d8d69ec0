import { performance } from "node:perf_hooks";

import { openContestant, type Contestant, type ContestantKind } from "./contestants.js";
import { Tally, type LoadProgress, type LoadResult } from "./tally.js";

/**
 * Many clients that all want one lock, over and over: each takes it, holds it for one turn of the event loop (a second holder
 * would show in that), gives it back and asks again. No work is done under the lock, so that what is measured is the hand-over and
 * nothing else.
 *
 * What counts is a hand-over: the lock goes to another client than the last. A client that polls often gets its own lock
 * straight back, since nobody else asked in that moment; that helps no one who waits, and is not counted. Its share shows in the
 * result, as `sent` are all acquisitions and `answered` the hand-overs. The latency of a hand-over is how long the new holder
 * had waited since it asked first; those who still wait at the end count with what they have waited by then.
 *
 * Invariant: from the moment at which a client is told that it holds the lock until it asks for its release, no other
 * client is told so. A violation fails the run.
 */

export interface ContentionJob {
  readonly kind: "contention";
  readonly port: number;
  readonly contestants: ContestantKind;
  readonly clients: number;
  readonly lock: string;
  readonly warmupMs: number;
  readonly durationMs: number;
}

/** Rejects when a client fails, two hold the lock at once, or nobody gets it. */
export async function runContention(job: ContentionJob, progress: LoadProgress = {}): Promise<LoadResult> {
  const contestants: Contestant[] = [];
  try {
    for (let index = 0; index < job.clients; index++) {
      contestants.push(await openContestant(job.contestants, job.port, job.lock));
    }
    return await new Contention(job, progress, contestants).run();
  } finally {
    for (const contestant of contestants) contestant.close();
  }
}

class Contention {
  readonly #job: ContentionJob;
  readonly #progress: LoadProgress;
  readonly #contestants: readonly Contestant[];
  readonly #tally = new Tally(0);
  /** performance.now() at which each waiting client asked first. */
  readonly #askedMs = new Map<number, number>();
  #holder: number | null = null;
  #lastHolder: number | null = null;
  #acquisitions = 0;
  #measuring = false;
  #over = false;

  constructor(job: ContentionJob, progress: LoadProgress, contestants: readonly Contestant[]) {
    this.#job = job;
    this.#progress = progress;
    this.#contestants = contestants;
  }

  async run(): Promise<LoadResult> {
    const failed = new Promise<never>((_, reject) => {
      for (const [index, contestant] of this.#contestants.entries()) {
        this.#contend(index, contestant).catch((error: unknown) => {
          // The connections of those who wait are closed under them at the end.
          if (!this.#over) reject(error instanceof Error ? error : new Error(String(error)));
        });
      }
    });
    try {
      await Promise.race([failed, sleep(this.#job.warmupMs)]);
      this.#measuring = true;
      this.#progress.onMeasureStart?.();
      const startMs = performance.now();
      await Promise.race([failed, sleep(this.#job.durationMs)]);
      const nowMs = performance.now();
      this.#measuring = false;
      this.#progress.onMeasureEnd?.();
      for (const askedMs of this.#askedMs.values()) this.#tally.wait(askedMs, nowMs);
      if (this.#acquisitions === 0) throw new Error("nobody got the lock");
      const result = this.#tally.result(this.#acquisitions, nowMs - startMs);
      return { ...result, unanswered: 0 };
    } finally {
      this.#over = true;
    }
  }

  async #contend(index: number, contestant: Contestant): Promise<void> {
    while (!this.#over) {
      const askedMs = performance.now();
      this.#askedMs.set(index, askedMs);
      while (!(await contestant.acquire())) if (this.#over) return;
      if (this.#holder !== null) throw new Error(`clients ${this.#holder} and ${index} held the lock at once`);
      this.#holder = index;
      this.#askedMs.delete(index);
      if (this.#measuring) {
        this.#acquisitions++;
        if (this.#lastHolder !== index) this.#tally.reply(askedMs, performance.now(), null);
      }
      this.#lastHolder = index;
      await new Promise((resolve) => setImmediate(resolve));
      this.#holder = null;
      await contestant.release();
    }
  }
}

async function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
