import { randomBytes } from "node:crypto";
import type { Clock, Fault, FaultPoint, Ids, Log, LogLevel, Scheduler, Timer } from "./ports.js";

/**
 * The real forms of `ports.ts`: the only file of the server that reads clocks, sets timers, draws random numbers or writes
 * to the log.
 */

/** CLOCK_MONOTONIC through `performance.now()`, which wall clock changes never move. */
export class SystemClock implements Clock {
  monotonicMs(): number {
    return performance.now();
  }
  unixMs(): number {
    return Date.now();
  }
}

/** setTimeout takes at most 2^31 - 1 ms and fires at once when given more; longer delays are armed in legs. */
const TIMEOUT_MS_MAX = 2_147_483_647;

class SystemTimer implements Timer {
  #handle: NodeJS.Timeout | null = null;
  readonly #callback: () => void;

  constructor(delayMs: number, callback: () => void) {
    this.#callback = callback;
    this.#arm(delayMs);
  }

  cancel(): void {
    if (this.#handle !== null) clearTimeout(this.#handle);
    this.#handle = null;
  }

  #arm(delayMs: number): void {
    const legMs = Math.min(Math.max(delayMs, 0), TIMEOUT_MS_MAX);
    this.#handle = setTimeout(() => {
      if (delayMs > legMs) this.#arm(delayMs - legMs);
      else this.#callback();
    }, legMs);
  }
}

export class SystemScheduler implements Scheduler {
  after(delayMs: number, callback: () => void): Timer {
    return new SystemTimer(delayMs, callback);
  }
  soon(callback: () => void): void {
    setImmediate(callback);
  }
}

export class SystemIds implements Ids {
  incarnation(): string {
    let text = "";
    // 256 is a multiple of 32, so every letter is equally likely: 20 letters of 5 bits are 100 random bits.
    for (const byte of randomBytes(20)) text += "abcdefghijklmnopqrstuvwxyz234567".charAt(byte % 32);
    return text;
  }
  fraction(): number {
    return Math.random();
  }
}

const LOG_LEVELS: readonly LogLevel[] = ["debug", "info", "warn", "error"];

/** One line to standard error per message: `2026-11-30T12:00:00.000Z info  message name=value`. */
export class StderrLog implements Log {
  readonly #lowest: number;

  constructor(lowest: LogLevel) {
    this.#lowest = LOG_LEVELS.indexOf(lowest);
  }

  write(level: LogLevel, message: string, fields?: Readonly<Record<string, string | number | boolean>>): void {
    if (LOG_LEVELS.indexOf(level) < this.#lowest) return;
    let line = `${new Date().toISOString()} ${level.padEnd(5)} ${message}`;
    for (const [name, value] of Object.entries(fields ?? {})) {
      const text = String(value);
      line += ` ${name}=${/^[\w.:/@%+-]+$/.test(text) ? text : JSON.stringify(text)}`;
    }
    process.stderr.write(`${line}\n`);
  }
}

/** What production runs with: no point does anything. */
export const NO_FAULTS: Fault = { point() {} };

/** Points that the store's own thread comes by; the committer passes two of them too, for stores without such a thread. */
const STORE_POINTS: ReadonlySet<string> = new Set<FaultPoint>([
  "open:after-lock",
  "witness:before-rename",
  "witness:after-rename",
  "commit:before-write",
  "commit:after-write",
  "close:before-sync",
]);

export type FaultSide = "main" | "store";

/** What the store's worker thread calls to get its half of the script. */
export function createFault(script: string): Fault {
  return new ScriptedFaults(script, "store");
}

interface FaultRule {
  readonly action: "kill" | "stop" | "error" | "stall";
  readonly stallMs: number;
  remaining: number;
}

/**
 * Faults by environment, for end-to-end tests: `LEASEHOLD_FAULTS=name=action[@nth][,...]`. The action happens at the nth
 * time that the point is reached (the first by default): `kill` is SIGKILL to oneself, `stop` is SIGSTOP, `error` throws,
 * `stall:MS` keeps the thread busy. Each side, the main thread and the store's, acts at its own points only, so that a stalled
 * store does not stall the loop.
 */
export class ScriptedFaults implements Fault {
  readonly #rules = new Map<string, FaultRule>();

  /** Throws a SyntaxError that names the part of `script` that is not understood. */
  constructor(script: string, side: FaultSide) {
    for (const part of script.split(",")) {
      const match = /^([a-z-]+:[a-z-]+)=(kill|stop|error|stall:(\d+))(?:@(\d+))?$/.exec(part.trim());
      if (match === null)
        throw new SyntaxError(`LEASEHOLD_FAULTS: '${part}' is not of the form name=kill|stop|error|stall:MS[@nth]`);
      const [, name = "", action = "", stallMs = "0", nth = "1"] = match;
      if ((side === "store") !== STORE_POINTS.has(name)) continue;
      this.#rules.set(name, {
        action: action.startsWith("stall") ? "stall" : (action as "kill" | "stop" | "error"),
        stallMs: Number(stallMs),
        remaining: Number(nth),
      });
    }
  }

  point(name: FaultPoint): void {
    const rule = this.#rules.get(name);
    if (rule === undefined) return;
    rule.remaining -= 1;
    if (rule.remaining !== 0) return;
    switch (rule.action) {
      case "kill":
        process.kill(process.pid, "SIGKILL");
        return;
      case "stop":
        process.kill(process.pid, "SIGSTOP");
        return;
      case "error":
        throw new Error(`fault asked for at ${name}`);
      case "stall": {
        const endMs = performance.now() + rule.stallMs;
        while (performance.now() < endMs);
        return;
      }
    }
  }
}
