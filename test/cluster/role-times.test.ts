import { describe, expect, test } from "vitest";
import {
  BEAT_RETRY_MS,
  CLOCK_GRAIN_MS,
  CLOCK_RATE_ERROR_MAX,
  faultOfTimes,
  safeMarginMs,
  UNCOUNTED_PAUSE_MS_MAX,
  type RoleTimes,
} from "#src/cluster/role-times.js";
import { SUSPEND_MS_MIN } from "#src/cluster/suspend-guard.js";
import { TIMES } from "./role-fixture.js";

describe("the times of the role", () => {
  test("the times that are the default are sound", () => {
    expect(faultOfTimes(TIMES)).toBeNull();
  });

  test("a primary on the slowest clock, held as long as nothing notices, ends before a candidate on the fastest begins", () => {
    for (const roleMs of [1_000, 2_000, 6_000, 60_000, 600_000]) {
      // Both count from one instant: the primary from when it sent the beat, the candidate, at best, from when that took effect.
      const primaryEndsMs =
        (roleMs - safeMarginMs(roleMs)) / (1 - CLOCK_RATE_ERROR_MAX) +
        UNCOUNTED_PAUSE_MS_MAX +
        SUSPEND_MS_MIN +
        CLOCK_GRAIN_MS;
      const candidateBeginsMs = roleMs / (1 + CLOCK_RATE_ERROR_MAX);
      expect(primaryEndsMs, `${roleMs} ms`).toBeLessThanOrEqual(candidateBeginsMs);
    }
  });

  test("a millisecond less of margin than is safe is refused, with the number that would do", () => {
    const marginMs = safeMarginMs(TIMES.roleMs) - 1;
    expect(faultOfTimes({ ...TIMES, marginMs })).toContain(`it takes ${marginMs + 1} ms`);
    expect(faultOfTimes({ ...TIMES, marginMs: marginMs + 1 })).toBeNull();
  });

  test("two beats may fail before the role is over; times that do not leave room for them are refused", () => {
    const roomMs = TIMES.roleMs - TIMES.marginMs - TIMES.beatMs - 2 * BEAT_RETRY_MS;
    const atMost: RoleTimes = { ...TIMES, requestTimeoutMs: roomMs / 2 };
    expect(faultOfTimes(atMost)).toBeNull();
    expect(faultOfTimes({ ...atMost, requestTimeoutMs: roomMs / 2 + 1 })).toContain("does not outlast 2 failed beats");
  });
});
