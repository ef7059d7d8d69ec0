import { ratioOfRounds } from "./measure/statistics.js";
import type { Round } from "./report/results.js";

/**
 * How often a comparison is repeated, so that a run ends in time and spends what time it has where it helps.
 *
 * Each comparison gets `rounds` rounds. Where these differ widely it gets more, up to `roundsMax`, as long as time is left over
 * beyond what the scenarios to come are planned to take; a scenario may use half of that. When a run is late, a comparison
 * gets ROUNDS_WHEN_LATE instead: fewer repetitions rather than scenarios that are never reached.
 */

export interface PaceOptions {
  readonly rounds: number;
  /** The same as `rounds`: so many rounds, whatever the clock says. */
  readonly roundsMax: number;
  /** The moment by which the run should have ended, on the clock of `nowMs`. */
  readonly endMs: number;
  readonly nowMs: () => number;
}

const ROUNDS_WHEN_LATE = 2;

/** Rounds differ widely when the largest ratio of two systems is so many times the smallest. */
const SPREAD_MAX = 1.15;

export class Pace {
  readonly #options: PaceOptions;
  #extraMs = 0;
  #late = false;

  constructor(options: PaceOptions) {
    this.#options = options;
  }

  /** A scenario begins. `plannedMs`: what it and all later ones take with `rounds` rounds. Returns whether the run is late. */
  beginScenario(plannedMs: number): boolean {
    const { rounds, roundsMax, endMs, nowMs } = this.#options;
    if (rounds === roundsMax) return false;
    const spareMs = endMs - nowMs() - plannedMs;
    this.#late = spareMs < 0;
    this.#extraMs = Math.max(0, spareMs) / 2;
    return this.#late;
  }

  /** Asked before each round. `lastRoundMs`: what the last one took, all contenders. */
  wantsRound(done: number, contenders: readonly (readonly Round[])[], lastRoundMs: number): boolean {
    const { rounds, roundsMax } = this.#options;
    if (done < (this.#late ? Math.min(ROUNDS_WHEN_LATE, rounds) : rounds)) return true;
    if (done >= roundsMax || this.#late || !differWidely(contenders) || this.#extraMs < lastRoundMs) return false;
    this.#extraMs -= lastRoundMs;
    return true;
  }
}

/** Whether throughput or CPU time of any contender, by that of the first, changed much from round to round. */
export function differWidely([first = [], ...others]: readonly (readonly Round[])[]): boolean {
  return others.some((other) =>
    (["opsPerSecond", "cpuUsPerOp"] as const).some((figure) => {
      const { lowest, highest } = ratioOfRounds(
        first.map((round) => round[figure]),
        other.map((round) => round[figure]),
      );
      return highest > lowest * SPREAD_MAX;
    }),
  );
}
