import { describe, expect, test } from "vitest";
import { SUSPEND_MS_MIN, SuspendGuard } from "#src/cluster/suspend-guard.js";

/** A machine with its three clocks. */
class Machine {
  monotonic = 5_000;
  slept = 0;
  wallOffset = 0;
  /** Time that passes before each reading of a clock, as when the process is held up there. */
  beforeReadings: number[] = [];

  readonly clocks = {
    monotonicMs: () => this.#read(this.monotonic),
    unixMs: () => 1_790_000_000_000 + this.monotonic + this.slept + this.wallOffset,
    boottimeMs: () => this.#read(this.monotonic + this.slept + 40_000),
  };

  readonly guard = new SuspendGuard(this.clocks);

  runs(ms: number): void {
    this.monotonic += ms;
  }

  sleeps(ms: number): void {
    this.slept += ms;
  }

  #read(value: number): number {
    const heldMs = this.beforeReadings.shift() ?? 0;
    this.monotonic += heldMs;
    return value + heldMs;
  }
}

describe("the suspend guard", () => {
  test("sees no sleep while the machine runs", () => {
    const machine = new Machine();
    for (const ms of [0, 1, 250, 60_000, 1e9]) {
      machine.runs(ms);
      expect(machine.guard.hasSlept()).toBe(false);
    }
  });

  test("sees a sleep, once", () => {
    const machine = new Machine();
    machine.runs(100);
    machine.sleeps(10_000);
    expect(machine.guard.hasSlept()).toBe(true);
    expect(machine.guard.hasSlept()).toBe(false);
  });

  test("adds up naps that are each too short to be told from grain", () => {
    const machine = new Machine();
    machine.sleeps(SUSPEND_MS_MIN - 1);
    expect(machine.guard.hasSlept()).toBe(false);
    machine.sleeps(SUSPEND_MS_MIN - 1);
    expect(machine.guard.hasSlept()).toBe(true);
  });

  test("takes no hold between its readings for a sleep", () => {
    const machine = new Machine();
    machine.beforeReadings = [0, 3_000];
    expect(machine.guard.hasSlept()).toBe(false);
    expect(machine.guard.hasSlept()).toBe(false);
  });

  test("overlooks no sleep because it was held up when it was made", () => {
    for (const readings of [
      [0, 3_000],
      [3_000, 0],
      [0, 0, 3_000],
    ]) {
      const machine = new Machine();
      machine.beforeReadings = readings;
      const guard = new SuspendGuard(machine.clocks);
      machine.beforeReadings = [];
      // A false alarm would be harmless at that moment: there is no role yet.
      guard.hasSlept();
      machine.sleeps(1_000);
      expect(guard.hasSlept(), readings.join(" ")).toBe(true);
    }
  });

  test("is asked to look when the wall clock has moved against the monotonic one, either way", () => {
    for (const jumpMs of [-3_600_000, -50, 50, 3_600_000]) {
      const machine = new Machine();
      machine.runs(1_000);
      expect(machine.guard.mayHaveSlept(machine.monotonic)).toBe(false);
      machine.wallOffset += jumpMs;
      expect(machine.guard.mayHaveSlept(machine.monotonic)).toBe(true);
      // A wall clock that was set is no sleep, and is not looked into again.
      expect(machine.guard.hasSlept()).toBe(false);
      expect(machine.guard.mayHaveSlept(machine.monotonic)).toBe(false);
    }
  });

  test("is asked to look after a sleep", () => {
    const machine = new Machine();
    machine.sleeps(1_000);
    expect(machine.guard.mayHaveSlept(machine.monotonic)).toBe(true);
  });
});
