import { SCENARIO_NAMES, type ScenarioName, type ScenarioOutcome } from "./report/results.js";

/**
 * What became of each scenario, at any moment: so that a report can be written after each, and at the end whenever and however it
 * comes, and tells what is missing from it.
 */
export class Ledger {
  readonly #outcomes = new Map<ScenarioName, ScenarioOutcome>();
  readonly #nowMs: () => number;
  #running: { readonly name: ScenarioName; readonly startedMs: number } | null = null;

  constructor(wanted: readonly ScenarioName[], nowMs: () => number) {
    this.#nowMs = nowMs;
    for (const name of SCENARIO_NAMES) {
      const state = wanted.includes(name) ? "not reached" : "left out";
      this.#outcomes.set(name, { name, state, durationS: 0, reason: null });
    }
  }

  begin(name: ScenarioName): void {
    this.#running = { name, startedMs: this.#nowMs() };
    this.#record("running", null);
  }

  /** The running scenario has ended. `failure`: null when it was measured to its end. */
  end(failure: string | null): void {
    this.#record(failure === null ? "measured" : "failed", failure);
    this.#running = null;
  }

  /** The run ends here, in the middle of a scenario or not. */
  cutOff(reason: string): void {
    this.#record("cut off", reason);
    this.#running = null;
  }

  get outcomes(): readonly ScenarioOutcome[] {
    return [...this.#outcomes.values()];
  }

  /** Whether everything that was wanted was measured to its end. */
  get isComplete(): boolean {
    return this.outcomes.every(({ state }) => state === "measured" || state === "left out");
  }

  #record(state: ScenarioOutcome["state"], reason: string | null): void {
    if (this.#running === null) return;
    const { name, startedMs } = this.#running;
    this.#outcomes.set(name, { name, state, durationS: (this.#nowMs() - startedMs) / 1000, reason });
  }
}
