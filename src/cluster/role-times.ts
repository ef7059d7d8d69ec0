/**
 * How long the primary role lasts without a sign of life, and the inequalities that make it safe (docs/CLUSTER.md, S1).
 *
 * The old primary counts its time from before it sent a beat, a candidate from when it saw the same beat. Both last for D; the old
 * one stops `marginMs` earlier. That covers: the two clocks running at different rates for D (2 r D), a pause that neither
 * clock counts (P), naps that the suspend guard cannot tell from grain (s), and the grain of the clocks (g). Round trips do not appear.
 */

import { SUSPEND_MS_MIN } from "./suspend-guard.js";

/** r: by how much a machine's clock may run too fast or too slow. 0.1 % is ten times what an undisciplined quartz does. */
export const CLOCK_RATE_ERROR_MAX = 0.001;

/** P: how long a machine may stand still without its clock counting it (a virtual machine that is moved, for instance). */
export const UNCOUNTED_PAUSE_MS_MAX = 400;

/** g: the grain of the clocks. */
export const CLOCK_GRAIN_MS = 10;

export interface RoleTimes {
  /** D: a candidate takes over when it has seen no change for so long. */
  readonly roleMs: number;
  /** m: how much earlier than that the primary stops by itself. */
  readonly marginMs: number;
  /** R: from one beat to the next. */
  readonly beatMs: number;
  /** A request to the shared store is given up after so long. */
  readonly requestTimeoutMs: number;
}

/** How long after a beat that failed the next one is sent. */
export const BEAT_RETRY_MS = 250;

/** Beats that may fail in a row before the role is lost. */
const BEAT_FAILURES_MAX = 2;

/** The smallest margin that is safe for a duration, in milliseconds. */
export function safeMarginMs(roleMs: number): number {
  return Math.ceil(2 * CLOCK_RATE_ERROR_MAX * roleMs + UNCOUNTED_PAUSE_MS_MAX + SUSPEND_MS_MIN + CLOCK_GRAIN_MS);
}

/** What is wrong with these times, as a sentence for the operator; null when they are sound. */
export function faultOfTimes({ roleMs, marginMs, beatMs, requestTimeoutMs }: RoleTimes): string | null {
  const marginMsMin = safeMarginMs(roleMs);
  if (marginMs < marginMsMin) {
    return `a margin of ${marginMs} ms is not safe for a role of ${roleMs} ms; it takes ${marginMsMin} ms`;
  }
  const neededMs = beatMs + BEAT_FAILURES_MAX * (requestTimeoutMs + BEAT_RETRY_MS);
  if (neededMs > roleMs - marginMs) {
    return (
      `a role of ${roleMs} ms less ${marginMs} ms margin does not outlast ${BEAT_FAILURES_MAX} failed beats ` +
      `(${neededMs} ms with a beat every ${beatMs} ms and a request timeout of ${requestTimeoutMs} ms)`
    );
  }
  return null;
}
