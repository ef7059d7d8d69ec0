import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import { CHUNK_ROWS, Float64Records } from "#src/engine/columns.js";
import { slotTick, TICK_MS, TimerWheel } from "#src/engine/timer-wheel.js";

const ascending = (a: number, b: number): number => a - b;

/** A wheel with its deadlines, as the engine keeps them. */
class Bench {
  readonly deadlines = new Float64Records([Infinity]);
  readonly wheel = new TimerWheel(this.deadlines, 0);
  nowMs: number;

  constructor(nowMs = 0, chunks = 1) {
    this.nowMs = nowMs;
    for (let chunk = 0; chunk < chunks; chunk += 1) {
      this.deadlines.addChunk();
      for (const column of this.wheel.columns) column.addChunk();
    }
  }

  start(row: number, lifeMs: number): void {
    this.renew(row, lifeMs);
    this.wheel.arm(row, this.nowMs);
  }

  renew(row: number, lifeMs: number): void {
    this.deadlines.set(row, 0, this.nowMs + lifeMs);
  }

  end(row: number): void {
    this.wheel.disarm(row);
    this.deadlines.set(row, 0, Infinity);
  }

  deadlineMs(row: number): number {
    return this.deadlines.get(row, 0);
  }

  due(limit = 1_000): number[] {
    const rows: number[] = [];
    this.wheel.due(this.nowMs, limit, rows);
    return rows;
  }

  /** The clock jumps from slot to slot until `untilMs`; what is offered ends. Returns rows with the time of their offer. */
  run(untilMs: number): [number, number][] {
    const offers: [number, number][] = [];
    for (;;) {
      const dueMs = this.wheel.nextDueMs();
      if (dueMs > untilMs) break;
      this.nowMs = Math.max(this.nowMs, dueMs);
      for (const row of this.due()) {
        offers.push([row, this.nowMs]);
        this.end(row);
      }
    }
    this.nowMs = untilMs;
    return offers;
  }
}

describe("timer wheel", () => {
  test("the example at the head of the file", () => {
    const left = (fromMs: number, deadlineMs: number): number => slotTick(deadlineMs, fromMs) * TICK_MS;
    expect(left(0, 10_020)).toBe(9_920);
    expect(left(9_920, 10_020)).toBe(10_020);
    expect(left(9_920, 17_020)).toBe(16_960);
  });

  test("a slot comes up before the deadline or within a tick after it, and always in the future", () => {
    fc.assert(
      fc.property(
        fc.double({ min: -1e9, max: 1e12, noNaN: true }),
        fc.double({ min: 0.001, max: 2 ** 45, noNaN: true }),
        (nowMs, leftMs) => {
          const deadlineMs = nowMs + leftMs;
          fc.pre(deadlineMs > nowMs);
          const slotMs = slotTick(deadlineMs, nowMs) * TICK_MS;
          expect(slotMs).toBeLessThan(deadlineMs + TICK_MS);
          expect(slotMs).toBeGreaterThan(nowMs);
          expect(slotMs).toBeGreaterThanOrEqual(deadlineMs - leftMs / 32);
        },
      ),
    );
  });

  test("offers each lease once, not before its deadline and within a tick after it, however the clock jumps", () => {
    const bench = new Bench(123.456);
    const deadlines = new Map<number, number>();
    for (let row = 0; row < 1_000; row += 1) {
      bench.start(row, 1.7 ** (row % 50));
      deadlines.set(row, bench.deadlineMs(row));
    }
    const offers = bench.run(1e13);
    expect(offers.length).toBe(1_000);
    for (const [row, atMs] of offers) {
      expect(atMs).toBeGreaterThanOrEqual(deadlines.get(row)!);
      expect(atMs).toBeLessThan(deadlines.get(row)! + TICK_MS);
    }
    expect(bench.wheel.nextDueMs()).toBe(Infinity);
  });

  test("a lease that is kept alive is met about once per TTL, not once per renewal", () => {
    const bench = new Bench();
    bench.start(0, 10_000);
    let wakes = 0;
    for (let step = 0; step < 100_000; step += 1) {
      bench.nowMs += 10;
      bench.renew(0, 10_000);
      if (bench.wheel.nextDueMs() > bench.nowMs) continue;
      wakes += 1;
      expect(bench.due()).toEqual([]);
    }
    expect(wakes).toBeGreaterThanOrEqual(100);
    expect(wakes).toBeLessThanOrEqual(110);
  });

  test("a deadline that was moved earlier and armed again comes up in time", () => {
    const bench = new Bench();
    bench.start(0, 1e9);
    bench.start(0, 50);
    expect(bench.run(1_000)).toEqual([[0, 50]]);
  });

  test("an unreachable deadline is never armed", () => {
    const bench = new Bench();
    bench.start(0, 2 ** 53);
    bench.deadlines.set(1, 0, Infinity);
    bench.wheel.arm(1, 0);
    expect(bench.wheel.nextDueMs()).toBe(Infinity);
    expect(bench.wheel.isArmed(0)).toBe(false);
  });

  test("a herd in one slot comes out in bounded pieces", () => {
    const chunks = 25;
    const herd = chunks * CHUNK_ROWS;
    const bench = new Bench(0, chunks);
    for (let row = 0; row < herd; row += 1) bench.start(row, 100);
    expect(bench.wheel.slotCount).toBe(1);
    bench.nowMs = 100;
    const seen = new Set<number>();
    for (;;) {
      const rows = bench.due(500);
      if (rows.length === 0) break;
      expect(rows.length).toBeLessThanOrEqual(500);
      for (const row of rows) {
        seen.add(row);
        bench.end(row);
      }
    }
    expect(seen.size).toBe(herd);
  });

  test("renewed leases in a slot that came up are moved on in bounded pieces too", () => {
    const bench = new Bench();
    for (let row = 0; row < CHUNK_ROWS; row += 1) bench.start(row, 100);
    bench.nowMs = 50;
    for (let row = 0; row < CHUNK_ROWS; row += 1) bench.renew(row, 100);
    bench.nowMs = 100;
    let calls = 0;
    while (bench.wheel.nextDueMs() <= bench.nowMs) {
      expect(bench.due(10)).toEqual([]);
      calls += 1;
    }
    expect(calls).toBeGreaterThan(10);
    expect(bench.run(150).length).toBe(CHUNK_ROWS);
  });

  test("what was offered and did not end is offered again; what was renewed meanwhile comes up in its time", () => {
    const bench = new Bench();
    for (const row of [0, 1, 2]) bench.start(row, 100);
    bench.nowMs = 100;
    expect(bench.due()).toEqual([0, 1, 2]);
    expect(bench.wheel.nextDueMs()).toBeLessThanOrEqual(100);
    bench.end(0);
    bench.renew(1, 500);
    expect(bench.due()).toEqual([2]);
    bench.end(2);
    expect(bench.wheel.nextDueMs()).toBe(600);
    expect(bench.run(1_000)).toEqual([[1, 600]]);
  });

  test("leases that end leave nothing behind; slots stay few", () => {
    const bench = new Bench();
    let most = 0;
    for (let round = 0; round < 20_000; round += 1) {
      const row = round % CHUNK_ROWS;
      bench.start(row, 100 + ((round * 7919) % 600_000));
      bench.end(row);
      bench.nowMs += 3;
      bench.wheel.nextDueMs();
      most = Math.max(most, bench.wheel.slotCount);
    }
    expect(bench.wheel.checkInvariants().size).toBe(0);
    expect(most).toBeLessThan(1_000);
  });

  test("looks up what is due without touching it", () => {
    const bench = new Bench();
    bench.start(0, 95);
    bench.start(1, 300);
    bench.start(2, 101);
    const peek = (nowMs: number, limit = 10): number[] => {
      const rows: number[] = [];
      bench.wheel.peek(nowMs, limit, rows);
      return rows;
    };
    expect(peek(94)).toEqual([]);
    expect(peek(95)).toEqual([0]);
    expect(peek(101).toSorted(ascending)).toEqual([0, 2]);
    expect(peek(101, 1).length).toBe(1);
    bench.nowMs = 100;
    expect(bench.due()).toEqual([0]);
    expect(peek(101).toSorted(ascending)).toEqual([0, 2]);
    bench.wheel.checkInvariants();
  });

  test("clear forgets everything and can be used again", () => {
    const bench = new Bench();
    for (let row = 0; row < 50; row += 1) bench.start(row, 100 + row * 30);
    bench.nowMs = 200;
    bench.due();
    bench.wheel.clear();
    for (const column of [bench.deadlines, ...bench.wheel.columns]) {
      column.dropChunk();
      column.addChunk();
    }
    expect(bench.wheel.nextDueMs()).toBe(Infinity);
    bench.start(3, 100);
    expect(bench.run(1_000)).toEqual([[3, 300]]);
  });
});

describe("against a naive wheel", () => {
  const row = fc.nat(7);
  const life = fc.oneof(
    fc.double({ min: 0.5, max: 50, noNaN: true }),
    fc.double({ min: 50, max: 5_000, noNaN: true }),
    fc.double({ min: 5_000, max: 1e9, noNaN: true }),
    fc.constant(2 ** 53),
  );
  const step = fc.oneof(
    fc.record({ kind: fc.constantFrom("start" as const, "renew" as const), row, life }),
    fc.record({ kind: fc.constantFrom("end" as const, "offer-lost" as const), row, life: fc.constant(0) }),
    fc.record({ kind: fc.constant("pass" as const), row, life }),
  );

  test("random schedules, renewals, ends, lost offers and jumps of time", () => {
    fc.assert(
      fc.property(
        fc.array(step, { maxLength: 60 }),
        fc.double({ min: -1e6, max: 1e6, noNaN: true }),
        (steps, originMs) => {
          const bench = new Bench(originMs);
          const naive = new Map<number, number>();
          for (const { kind, row: target, life: lifeMs } of steps) {
            if (kind === "start") {
              bench.start(target, lifeMs);
              naive.set(target, bench.deadlineMs(target));
            } else if (kind === "renew" && naive.has(target)) {
              // As a keep-alive: never to an earlier time.
              if (bench.nowMs + lifeMs > naive.get(target)!) bench.renew(target, lifeMs);
              naive.set(target, bench.deadlineMs(target));
            } else if (kind === "end") {
              bench.end(target);
              naive.delete(target);
            } else if (kind === "offer-lost") {
              // Offered, and nobody does anything about it.
              for (const offered of bench.due()) expect(naive.get(offered)).toBeLessThanOrEqual(bench.nowMs);
            } else if (kind === "pass") {
              const untilMs = bench.nowMs + Math.min(lifeMs, 2 ** 40);
              const offers = bench.run(untilMs);
              const expected = [...naive].filter(
                ([, deadlineMs]) => Math.ceil(deadlineMs / TICK_MS) * TICK_MS <= untilMs,
              );
              expect(offers.map(([offered]) => offered).toSorted(ascending)).toEqual(
                expected.map(([due]) => due).toSorted(ascending),
              );
              for (const [offered] of offers) naive.delete(offered);
            }
            const armed = bench.wheel.checkInvariants();
            const reachable = [...naive].filter(([, deadlineMs]) => deadlineMs < 2 ** 46);
            for (const [alive] of reachable) expect(armed.has(alive)).toBe(true);
            for (const held of armed) expect(naive.has(held)).toBe(true);
          }
        },
      ),
      { numRuns: 500 },
    );
  });
});
