import type { World } from "../sim-world.js";
import type { ClusterHost } from "./cluster-host.js";
import type { SimShared } from "./sim-shared.js";

/**
 * The way from one machine to the shared store and back. Requests take random times and may pass each other; a request or its answer
 * may be lost, cut off by a partition, or come long after its sender gave it up. Who gets no answer knows nothing: what it asked for
 * was done, was not done, or will be done later.
 */

export interface LinkTimes {
  readonly delayMsMean: number;
  /** The chance that a message is much slower than the others. */
  readonly slowChance: number;
  readonly slowMsMax: number;
  /** The chances that a request never arrives, that it arrives late, and that its answer is lost. */
  readonly loseRequestChance: number;
  readonly lateRequestChance: number;
  readonly lateMsMax: number;
  readonly loseAnswerChance: number;
}

/** A link without faults. */
export const CALM_LINK: LinkTimes = {
  delayMsMean: 1,
  slowChance: 0,
  slowMsMax: 0,
  loseRequestChance: 0,
  lateRequestChance: 0,
  lateMsMax: 0,
  loseAnswerChance: 0,
};

export class SimLink {
  readonly #world: World;
  readonly #shared: SimShared;
  times: LinkTimes;
  /** Cut off until then, in each direction. */
  upCutUntilMs = 0;
  downCutUntilMs = 0;
  /** The store is this many times slower until then. */
  slowFactor = 1;
  slowUntilMs = 0;
  /** Answers take up to this much longer until then. */
  answerDelayMsMax = 0;
  answersSlowUntilMs = 0;
  /** The watch tells nothing until then, and does not know it. */
  watchStuckUntilMs = 0;

  constructor(world: World, shared: SimShared, times: LinkTimes) {
    this.#world = world;
    this.#shared = shared;
    this.times = times;
  }

  /**
   * Does `atStore` at the store; `done` gets what it returned, or null when no answer came within the timeout of the asking host's
   * clock. Nothing that a dead host asked for is taken back.
   */
  call<Answer extends object>(
    host: ClusterHost,
    timeoutMs: number,
    atStore: () => Answer,
    done: (answer: Answer | null) => void,
  ): void {
    let isOpen = true;
    const timer = host.scheduler.after(timeoutMs, () => {
      if (!isOpen) return;
      isOpen = false;
      done(null);
    });
    this.#up(() => {
      const answer = atStore();
      this.#down(() =>
        host.enter(() => {
          if (!isOpen) return;
          isOpen = false;
          timer.cancel();
          done(answer);
        }),
      );
    });
  }

  /** A message that the store sends by itself, as a watch does: cut off, it is lost. */
  push(host: ClusterHost, run: () => void): void {
    if (this.#world.nowMs < Math.max(this.downCutUntilMs, this.watchStuckUntilMs) || this.#shared.isOut) return;
    this.#world.after(this.delayMs(), () => host.enter(run));
  }

  heal(): void {
    this.times = CALM_LINK;
    this.upCutUntilMs = 0;
    this.downCutUntilMs = 0;
    this.slowUntilMs = 0;
    this.answersSlowUntilMs = 0;
    this.watchStuckUntilMs = 0;
  }

  #up(arrive: () => void): void {
    const { random, nowMs } = this.#world;
    const { loseRequestChance, lateRequestChance, lateMsMax } = this.times;
    if (random.chance(loseRequestChance)) return;
    let atMs = nowMs + this.delayMs();
    if (random.chance(lateRequestChance)) atMs += random.between(0, lateMsMax);
    if (nowMs < this.upCutUntilMs) {
      // What was written into a socket may go out when the way is free again.
      if (random.chance(0.5)) return;
      atMs = this.upCutUntilMs + this.delayMs();
    }
    this.#world.at(atMs, () => this.#arrive(arrive));
  }

  #arrive(arrive: () => void): void {
    if (!this.#shared.isOut) {
      arrive();
    } else if (this.#world.random.chance(0.5)) {
      this.#world.at(this.#shared.outUntilMs + this.delayMs(), () => this.#arrive(arrive));
    }
  }

  #down(run: () => void): void {
    const { random, nowMs } = this.#world;
    if (random.chance(this.times.loseAnswerChance)) return;
    let atMs = nowMs + this.delayMs();
    if (nowMs < this.answersSlowUntilMs) atMs += random.between(0, this.answerDelayMsMax);
    if (nowMs < this.downCutUntilMs) {
      if (random.chance(0.5)) return;
      atMs = this.downCutUntilMs + this.delayMs();
    }
    this.#world.at(atMs, run);
  }

  /** Of one message, by chance. */
  delayMs(): number {
    const { random, nowMs } = this.#world;
    const { delayMsMean, slowChance, slowMsMax } = this.times;
    const factor = nowMs < this.slowUntilMs ? this.slowFactor : 1;
    return factor * (random.chance(slowChance) ? random.between(0, slowMsMax) : random.exponential(delayMsMean));
  }
}
