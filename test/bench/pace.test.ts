import { describe, expect, test } from "vitest";

import { Ledger } from "../../bench/ledger.js";
import { differWidely, Pace } from "../../bench/pace.js";
import type { Round } from "../../bench/report/results.js";

/** How often a comparison is repeated, and what is told of each scenario. */

function round(opsPerSecond: number, cpuUsPerOp = 10): Round {
  return {
    operations: opsPerSecond,
    opsPerSecond,
    p50Ms: 1,
    p95Ms: 1,
    p99Ms: 1,
    cpuUsPerOp,
    mainThreadCpuUsPerOp: cpuUsPerOp,
    serverCores: 0.5,
    generatorCores: 0.5,
  };
}

const STEADY = [
  [round(1000), round(1100), round(1000)],
  [round(500), round(560), round(500)],
];
const UNSTEADY = [
  [round(1000), round(1300), round(1000)],
  [round(500), round(500), round(500)],
];

/** How many rounds a comparison gets that takes `roundMs` each. */
function roundsOf(pace: Pace, contenders: readonly (readonly Round[])[], roundMs: number): number {
  let done = 0;
  while (pace.wantsRound(done, contenders, done === 0 ? 0 : roundMs)) done++;
  return done;
}

function paceWith(rounds: number, roundsMax: number, endMs: number): Pace {
  return new Pace({ rounds, roundsMax, endMs, nowMs: () => 0 });
}

describe("pace", () => {
  test("rounds that agree are not repeated, however much time there is", () => {
    const pace = paceWith(3, 5, 1_000_000);
    expect(pace.beginScenario(1000)).toBe(false);
    expect(roundsOf(pace, STEADY, 10)).toBe(3);
  });

  test("rounds that differ widely are, up to the most", () => {
    const pace = paceWith(3, 5, 1_000_000);
    pace.beginScenario(1000);
    expect(roundsOf(pace, UNSTEADY, 10)).toBe(5);
  });

  test("a scenario takes no more than half of the time that is left over", () => {
    const pace = paceWith(3, 5, 10_000);
    pace.beginScenario(9700);
    // 150 ms for it: one round of 100 ms more, not two; nothing for the next comparison.
    expect(roundsOf(pace, UNSTEADY, 100)).toBe(4);
    expect(roundsOf(pace, UNSTEADY, 100)).toBe(3);
    pace.beginScenario(9000);
    expect(roundsOf(pace, UNSTEADY, 100)).toBe(5);
  });

  test("a late run repeats less, and recovers", () => {
    const pace = paceWith(3, 5, 10_000);
    expect(pace.beginScenario(10_001)).toBe(true);
    expect(roundsOf(pace, UNSTEADY, 10)).toBe(2);
    expect(pace.beginScenario(9000)).toBe(false);
    expect(roundsOf(pace, STEADY, 10)).toBe(3);
  });

  test("a number of rounds that was asked for is kept", () => {
    const pace = paceWith(4, 4, 0);
    expect(pace.beginScenario(1_000_000)).toBe(false);
    expect(roundsOf(pace, UNSTEADY, 10)).toBe(4);
  });

  test("ratios count, not figures: what hits all contenders alike is no spread", () => {
    const noisy = [
      [round(1000), round(100)],
      [round(500), round(50)],
    ];
    expect(differWidely(noisy)).toBe(false);
    expect(differWidely(UNSTEADY)).toBe(true);
    expect(
      differWidely([
        [round(1000, 10), round(1000, 13)],
        [round(1000, 10), round(1000, 10)],
      ]),
    ).toBe(true);
    expect(differWidely([[round(1000)]])).toBe(false);
  });
});

describe("ledger", () => {
  const states = (ledger: Ledger): Record<string, string> =>
    Object.fromEntries(
      ledger.outcomes.filter(({ state }) => state !== "left out").map((each) => [each.name, each.state]),
    );

  test("tells what became of each scenario when the run is cut off", () => {
    let nowMs = 0;
    const ledger = new Ledger(["disk", "grant", "etcd", "million"], () => nowMs);
    expect(ledger.outcomes.find(({ name }) => name === "keepalive")?.state).toBe("left out");
    ledger.begin("disk");
    nowMs = 2000;
    ledger.end(null);
    ledger.begin("grant");
    ledger.end("no more disk");
    ledger.begin("etcd");
    expect(states(ledger)["etcd"]).toBe("running");
    nowMs = 5500;
    ledger.cutOff("the limit");
    expect(states(ledger)).toEqual({ disk: "measured", grant: "failed", etcd: "cut off", million: "not reached" });
    expect(ledger.outcomes.find(({ name }) => name === "etcd")).toMatchObject({ durationS: 3.5, reason: "the limit" });
    expect(ledger.isComplete).toBe(false);
  });

  test("between two scenarios nothing is cut off; complete is what was wanted and measured", () => {
    const ledger = new Ledger(["disk"], () => 0);
    expect(ledger.isComplete).toBe(false);
    ledger.begin("disk");
    ledger.end(null);
    ledger.cutOff("SIGINT");
    expect(states(ledger)).toEqual({ disk: "measured" });
    expect(ledger.isComplete).toBe(true);
  });
});
