import type { Clock, Fault, FaultPoint, Ids, Scheduler, Session, Timer } from "#src/ports.js";
import type { Reply } from "#src/engine/reply.js";

/** Hand-cranked forms of the ports: nothing here runs unless a test says so. */

export class ManualClock implements Clock {
  nowMs = 1000;

  monotonicMs(): number {
    return this.nowMs;
  }

  unixMs(): number {
    return 1_790_000_000_000 + this.nowMs;
  }
}

/** Callbacks of `soon` run in rounds, those of `after` when the clock reaches them. */
export class ManualScheduler implements Scheduler {
  readonly clock: ManualClock;
  #soon: (() => void)[] = [];
  #timers: { dueMs: number; callback: () => void }[] = [];

  constructor(clock = new ManualClock()) {
    this.clock = clock;
  }

  get pending(): number {
    return this.#soon.length;
  }

  after(delayMs: number, callback: () => void): Timer {
    const timer = { dueMs: this.clock.nowMs + delayMs, callback };
    this.#timers.push(timer);
    return {
      cancel: () => {
        this.#timers = this.#timers.filter((other) => other !== timer);
      },
    };
  }

  soon(callback: () => void): void {
    this.#soon.push(callback);
  }

  /** One end of a loop turn: what is scheduled now, not what that schedules. */
  turn(): void {
    const callbacks = this.#soon;
    this.#soon = [];
    for (const callback of callbacks) callback();
  }

  /** Turns until nothing is scheduled. */
  run(): void {
    for (let turns = 0; this.#soon.length > 0; turns += 1) {
      if (turns === 10_000) throw new Error("the scheduler never comes to rest");
      this.turn();
    }
  }

  /** Lets time pass, timers in order, each followed by the turns it asks for. */
  advance(ms: number): void {
    const end = this.clock.nowMs + ms;
    for (;;) {
      this.run();
      const next = this.#timers.filter((timer) => timer.dueMs <= end).sort((a, b) => a.dueMs - b.dueMs)[0];
      if (next === undefined) break;
      this.#timers = this.#timers.filter((timer) => timer !== next);
      this.clock.nowMs = next.dueMs;
      next.callback();
    }
    this.clock.nowMs = end;
  }
}

export const countingIds = (): Ids => {
  let count = 0;
  return {
    incarnation: () => `incarnation${String((count += 1)).padStart(4, "0")}`,
    fraction: () => 0.5,
  };
};

export const noFault: Fault = { point: () => undefined };

/** Throws at the named point, from the `skip`-th time on. */
export function faultAt(name: FaultPoint, skip = 0): Fault {
  let met = 0;
  return {
    point(at) {
      if (at === name && (met += 1) > skip) throw new Error(`fault at ${name}`);
    },
  };
}

/** A session that writes down what it gets. */
export class RecordingSession implements Session {
  readonly origin = { databaseIndex: 0, owner: "tester 127.0.0.1:1" };
  readonly nowMs = 0;
  readonly delivered: [ticket: number, reply: Reply][] = [];
  readonly closed: string[] = [];
  onDeliver: (() => void) | null = null;

  deliver(ticket: number, reply: Reply): void {
    this.delivered.push([ticket, reply]);
    this.onDeliver?.();
  }

  close(reason: string): void {
    this.closed.push(reason);
  }
}
