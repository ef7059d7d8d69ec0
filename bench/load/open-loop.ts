import { availableParallelism } from "node:os";

import { openConnection } from "./open-connection.js";
import { ArrivalSchedule } from "./schedule.js";
import { Tally, type LoadProgress, type LoadResult } from "./tally.js";
import type { LoadConnection, TargetSpec } from "./target.js";

/**
 * The open-loop generator: requests leave on a fixed schedule (schedule.ts), round-robin over the connections, whether or
 * not earlier ones were answered.
 *
 * Between two arrivals it has to wait for less than a timer of Node's can. With cores to spare it polls without a pause, which is exact
 * to some microseconds; on a small machine that would take a core away from the servers, so it sleeps for moments of about 0.1 ms and
 * every latency is blurred upwards by that much, for all systems alike. `lag` in the result tells how late requests left.
 */

export interface OpenLoopJob {
  readonly kind: "open";
  readonly target: TargetSpec;
  readonly connections: number;
  readonly ratePerSecond: number;
  /** Load of the same kind before the measurement, not counted. */
  readonly warmupMs: number;
  readonly durationMs: number;
  /** How long to wait for the last replies. */
  readonly drainMsMax: number;
  /** Width of the slots of `LoadResult.slots`; 0 for none. */
  readonly slotMs: number;
}

/** Below this many cores the generator does not poll without a pause. */
const CORES_TO_POLL_MIN = 4;
const NAP_MS = 0.05;
const napCell = new Int32Array(new SharedArrayBuffer(4));

/** Rejects when a connection is lost or cannot be made. Error replies are counted, not thrown. */
export async function runOpenLoop(job: OpenLoopJob, progress: LoadProgress = {}): Promise<LoadResult> {
  const warmupCount = Math.round((job.warmupMs / 1000) * job.ratePerSecond);
  const count = warmupCount + Math.round((job.durationMs / 1000) * job.ratePerSecond);
  const tally = new Tally(job.slotMs);
  const waiting = new Uint8Array(count);
  let outstanding = 0;
  let lost: string | null = null;
  let schedule = new ArrivalSchedule(performance.now(), job.ratePerSecond, count);

  const onReply = (sequence: number, error: string | null): void => {
    waiting[sequence] = 0;
    outstanding--;
    if (sequence >= warmupCount) tally.reply(schedule.intendedMs(sequence), performance.now(), error);
  };
  const connections: LoadConnection[] = [];
  try {
    for (let index = 0; index < job.connections; index++) {
      connections.push(await openConnection(job.target, index, onReply, (reason) => (lost ??= reason)));
    }
    schedule = new ArrivalSchedule(performance.now() + 1, job.ratePerSecond, count);

    /** Sends what is due, over the connections in turn. */
    const sendDue = (): void => {
      const now = performance.now();
      const first = schedule.taken;
      for (let sequence = schedule.takeDue(now); sequence >= 0; sequence = schedule.takeDue(now)) {
        if (sequence === warmupCount) progress.onMeasureStart?.();
        if (sequence >= warmupCount) tally.lag.recordMs(now - schedule.intendedMs(sequence));
        waiting[sequence] = 1;
        outstanding++;
        connections[sequence % connections.length]?.send(sequence);
      }
      const touched = Math.min(schedule.taken - first, connections.length);
      for (let offset = 0; offset < touched; offset++) connections[(first + offset) % connections.length]?.flush();
    };

    while (schedule.nextDueMs !== Number.POSITIVE_INFINITY && progress.shouldStop?.() !== true) {
      if (lost !== null) throw new Error(`connection lost under load: ${String(lost)}`);
      sendDue();
      await pauseUntil(schedule.nextDueMs);
    }
    progress.onMeasureEnd?.();
    const measuredMs = performance.now() - schedule.intendedMs(warmupCount);
    await drained(() => outstanding === 0 || lost !== null, job.drainMsMax);
    if (lost !== null) throw new Error(`connection lost under load: ${String(lost)}`);

    const now = performance.now();
    for (let sequence = warmupCount; sequence < schedule.taken; sequence++) {
      if (waiting[sequence] === 1) tally.wait(schedule.intendedMs(sequence), now);
    }
    return tally.result(Math.max(0, schedule.taken - warmupCount), measuredMs);
  } finally {
    for (const connection of connections) connection.close();
  }
}

const polls = availableParallelism() >= CORES_TO_POLL_MIN;

/** Lets replies in, then comes back at `dueMs` or a little earlier. */
async function pauseUntil(dueMs: number): Promise<void> {
  const leftMs = dueMs - performance.now();
  if (leftMs > 4 && Number.isFinite(leftMs)) return new Promise((resolve) => setTimeout(resolve, leftMs - 3));
  if (!polls && leftMs > 0) Atomics.wait(napCell, 0, 0, NAP_MS);
  return new Promise((resolve) => setImmediate(resolve));
}

async function drained(isDone: () => boolean, msMax: number): Promise<void> {
  const giveUpMs = performance.now() + msMax;
  while (!isDone() && performance.now() < giveUpMs) await new Promise((resolve) => setTimeout(resolve, 1));
}
