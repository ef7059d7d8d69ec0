import { createServer, type Server, type Socket } from "node:net";

import { afterEach, describe, expect, test } from "vitest";

import { runClosedLoop } from "../../bench/load/closed-loop.js";
import { runOpenLoop, type OpenLoopJob } from "../../bench/load/open-loop.js";
import { ArrivalSchedule } from "../../bench/load/schedule.js";
import type { TargetSpec } from "../../bench/load/target.js";

/** The generators are measuring instruments: here they measure servers whose faults are known. */

const REQUEST_BYTES = "*2\r\n$15\r\nLEASE.KEEPALIVE\r\n$18\r\nlease:000000000000\r\n".length;

/** Answers each request with `:1` at once, but for a stall: what comes within `stallMs` of the first byte waits for its end. */
class StallingServer {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  readonly #stallMs: number;
  #stallEnd: Promise<void> | null = null;
  readonly #reply: string;
  answered = 0;

  constructor(stallMs: number, reply = ":1\r\n") {
    this.#stallMs = stallMs;
    this.#reply = reply;
    this.#server = createServer((socket) => this.#serve(socket));
  }

  async listen(): Promise<number> {
    await new Promise<void>((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
    const address = this.#server.address();
    if (address === null || typeof address === "string") throw new Error("no port");
    return address.port;
  }

  #serve(socket: Socket): void {
    this.#sockets.add(socket);
    let bytes = 0;
    socket.on("error", () => undefined);
    socket.on("data", (chunk: Buffer) => {
      bytes += chunk.length;
      const requests = Math.floor(bytes / REQUEST_BYTES);
      bytes -= requests * REQUEST_BYTES;
      this.#stallEnd ??= new Promise((resolve) => setTimeout(resolve, this.#stallMs));
      void this.#stallEnd.then(() => {
        this.answered += requests;
        socket.write(this.#reply.repeat(requests));
      });
    });
  }

  dropConnections(): void {
    for (const socket of this.#sockets) socket.destroy();
  }

  async close(): Promise<void> {
    this.dropConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

let server: StallingServer | null = null;

async function start(stallMs: number, reply?: string): Promise<number> {
  server = new StallingServer(stallMs, reply);
  return server.listen();
}

afterEach(async () => {
  await server?.close();
  server = null;
});

function target(port: number): TargetSpec {
  return {
    kind: "resp",
    port,
    argv: ["LEASE.KEEPALIVE", "lease:{id}"],
    ids: { kind: "random", count: 1000 },
    expect: "positive",
  };
}

function job(port: number, more: Partial<OpenLoopJob> = {}): OpenLoopJob {
  return {
    kind: "open",
    target: target(port),
    connections: 2,
    ratePerSecond: 1000,
    warmupMs: 0,
    durationMs: 1000,
    drainMsMax: 5000,
    slotMs: 0,
    ...more,
  };
}

describe("arrival schedule", () => {
  test("spaces requests evenly from its start, without drift", () => {
    const schedule = new ArrivalSchedule(500, 3, 3_000_001);
    expect(schedule.intendedMs(0)).toBe(500);
    expect(schedule.intendedMs(3)).toBeCloseTo(1500, 6);
    expect(schedule.intendedMs(3_000_000)).toBeCloseTo(1_000_000_500, 3);
  });

  test("hands out what is due, each once, and what was missed without loss", () => {
    const schedule = new ArrivalSchedule(100, 1000, 5);
    expect(schedule.takeDue(99.9)).toBe(-1);
    expect(schedule.takeDue(100)).toBe(0);
    expect(schedule.takeDue(100.5)).toBe(-1);
    expect(schedule.nextDueMs).toBe(101);
    // The caller was late by three intervals.
    expect([1, 2, 3].map(() => schedule.takeDue(103))).toEqual([1, 2, 3]);
    expect(schedule.takeDue(103)).toBe(-1);
    expect(schedule.takeDue(1000)).toBe(4);
    expect(schedule.takeDue(1000)).toBe(-1);
    expect(schedule.nextDueMs).toBe(Number.POSITIVE_INFINITY);
    expect(schedule.taken).toBe(5);
  });

  test("refuses a rate of nothing", () => {
    expect(() => new ArrivalSchedule(0, 0, 1)).toThrow("rate");
  });
});

describe("open loop", () => {
  test("a stall counts for every request that should have left meanwhile", async () => {
    const port = await start(400);
    const result = await runOpenLoop(job(port));
    expect(result.sent).toBe(1000);
    expect(result.answered).toBe(1000);
    expect(result.errors).toBe(0);
    expect(result.latency.count).toBe(1000);
    // 400 of 1000 requests fell into the stall; they waited 400 ms down to nothing.
    expect(result.latency.percentileMs(99)).toBeGreaterThanOrEqual(380);
    expect(result.latency.percentileMs(80)).toBeGreaterThanOrEqual(190);
    expect(result.latency.percentileMs(100)).toBeGreaterThanOrEqual(390);
    expect(result.latency.percentileMs(0)).toBeLessThan(200);
  });

  test("a closed loop hides the same stall: that is why there is an open one", async () => {
    const port = await start(400);
    const result = await runClosedLoop({
      kind: "closed",
      target: target(port),
      connections: 2,
      depth: 1,
      warmupMs: 0,
      durationMs: 1000,
      requestsMax: 1_000_000,
    });
    // One request of each connection met the stall, and only those tell of it.
    expect(result.answered).toBeGreaterThan(50);
    expect(result.latency.percentileMs(100)).toBeGreaterThanOrEqual(390);
    expect(result.latency.percentileMs(90)).toBeLessThan(190);
  });

  test("requests that are never answered are counted with what they waited", async () => {
    const port = await start(60_000);
    const result = await runOpenLoop(job(port, { durationMs: 200, drainMsMax: 300 }));
    expect(result.sent).toBe(200);
    expect(result.answered).toBe(0);
    expect(result.unanswered).toBe(200);
    expect(result.latency.count).toBe(200);
    expect(result.latency.percentileMs(0)).toBeGreaterThanOrEqual(290);
  });

  test("the warm-up is sent but not counted", async () => {
    const port = await start(0);
    const result = await runOpenLoop(job(port, { warmupMs: 200, durationMs: 100 }));
    expect(result.sent).toBe(100);
    expect(result.latency.count).toBe(100);
    expect(server?.answered).toBe(300);
  });

  test("an error reply and an unexpected one are counted as wrong", async () => {
    const port = await start(0, "-NOLEASE no such lease\r\n");
    const result = await runOpenLoop(job(port, { durationMs: 50 }));
    expect(result.errors).toBe(50);
    expect(result.firstError).toContain("NOLEASE");
    await server?.close();
    const other = await start(0, ":0\r\n");
    expect((await runOpenLoop(job(other, { durationMs: 50 }))).firstError).toContain("unexpected reply 0");
  });

  test("a lost connection fails the run", async () => {
    const port = await start(0);
    const run = runOpenLoop(job(port));
    setTimeout(() => server?.dropConnections(), 200);
    await expect(run).rejects.toThrow("connection lost");
  });

  test("slots place latencies at the moment at which requests were meant to leave", async () => {
    const port = await start(300);
    const startedUnixMs = Date.now();
    const result = await runOpenLoop(job(port, { slotMs: 100 }));
    const total = result.slots.reduce((sum, slot) => sum + slot.count, 0);
    expect(total).toBe(1000);
    expect(result.slots[0]?.startUnixMs).toBeGreaterThan(startedUnixMs - 200);
    // The slot of the start of the stall saw the longest waits.
    const worst = result.slots.toSorted((a, b) => b.maxMs - a.maxMs)[0];
    expect(worst?.startUnixMs).toBeLessThan((result.slots[0]?.startUnixMs ?? 0) + 200);
    expect(worst?.maxMs).toBeGreaterThanOrEqual(290);
  });
});

describe("closed loop", () => {
  test("sends each request of a sequence once and stops after the last", async () => {
    const port = await start(0);
    const result = await runClosedLoop({
      kind: "closed",
      target: target(port),
      connections: 3,
      depth: 10,
      warmupMs: 0,
      durationMs: 30_000,
      requestsMax: 1000,
    });
    expect(result.answered).toBe(1000);
    expect(server?.answered).toBe(1000);
  });
});
