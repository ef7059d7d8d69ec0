import type { Clock, Scheduler } from "../../ports.js";
import { StoreError } from "../store.js";
import { EtcdError } from "./etcd-client.js";

/** Reads may be tried again, on another endpoint, for as long as the caller can wait. */

export interface ReadPatience {
  readonly clock: Clock;
  readonly scheduler: Scheduler;
  /** After so long no further attempt is made. */
  readonly patienceMs: number;
}

const PAUSE_MS = 50;

export const pause = (scheduler: Scheduler, delayMs: number): Promise<void> =>
  new Promise((resolve) => {
    scheduler.after(delayMs, resolve);
  });

/**
 * What `read` returns. It is tried again while its errors say that another attempt may succeed; other errors of etcd, and the last one when
 * the time is over, become StoreError `unusable`, but for those kinds that `except` names, which are thrown as they are.
 */
export async function readPatiently<T>(
  patience: ReadPatience,
  read: () => Promise<T>,
  except: readonly EtcdError["kind"][] = [],
): Promise<T> {
  const giveUpAtMs = patience.clock.monotonicMs() + patience.patienceMs;
  for (;;) {
    try {
      return await read();
    } catch (error) {
      if (!(error instanceof EtcdError) || except.includes(error.kind)) throw error;
      const mayPass = error.kind === "unknown" || error.kind === "behind" || error.kind === "token";
      if (!mayPass || patience.clock.monotonicMs() >= giveUpAtMs) {
        throw new StoreError("unusable", `etcd cannot be read: ${error.message}`);
      }
      await pause(patience.scheduler, PAUSE_MS);
    }
  }
}
