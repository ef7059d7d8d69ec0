import { spawn } from "node:child_process";

import { describe, expect, test } from "vitest";

import { parseCsv } from "../../bench/load/redis-benchmark.js";
import { decodeReply, encodeFields } from "../../bench/load/etcd-target.js";
import { SequenceQueue } from "../../bench/load/resp-target.js";
import { LatencyHistogram } from "../../bench/measure/latency.js";
import {
  cpuBetween,
  cpuTicksOfStat,
  readCpu,
  readEndedChildrenCpuMs,
  readResidentBytes,
} from "../../bench/measure/process-stats.js";
import { median, ratioOfRounds } from "../../bench/measure/statistics.js";

/** The benchmark's instruments, each against something whose size is known by other means. */

const isLinux = process.platform === "linux";

describe("latency histogram", () => {
  test("percentiles are right to three digits", () => {
    const histogram = new LatencyHistogram();
    for (let ms = 1; ms <= 1000; ms++) histogram.recordMs(ms);
    expect(histogram.count).toBe(1000);
    for (const [percentile, expected] of [
      [50, 500],
      [95, 950],
      [99, 990],
      [99.9, 999],
      [100, 1000],
    ] as const) {
      expect(Math.abs(histogram.percentileMs(percentile) - expected)).toBeLessThanOrEqual(expected / 1000);
    }
  });

  test("holds a microsecond and ten minutes, and cuts what lies beyond", () => {
    const histogram = new LatencyHistogram();
    histogram.recordMs(0);
    histogram.recordMs(0.001);
    histogram.recordMs(86_400_000);
    expect(histogram.percentileMs(0)).toBe(0.001);
    expect(Math.abs(histogram.percentileMs(100) - 600_000)).toBeLessThan(600);
  });

  test("survives its text form, and adds up", () => {
    const one = new LatencyHistogram();
    for (let ms = 1; ms <= 100; ms++) one.recordMs(ms);
    const other = LatencyHistogram.decode(one.encode());
    expect(other.count).toBe(100);
    for (const percentile of [0, 50, 95, 99, 100]) {
      const ratio = other.percentileMs(percentile) / one.percentileMs(percentile);
      expect(Math.abs(ratio - 1)).toBeLessThanOrEqual(0.001);
    }
    const sum = new LatencyHistogram();
    sum.add(one);
    sum.add(other);
    expect(sum.count).toBe(200);
    expect(sum.percentileMs(50)).toBe(one.percentileMs(50));
  });
});

describe.skipIf(!isLinux)("process figures", () => {
  test("a program's name with spaces and parentheses does not shift the fields", () => {
    const rest = "S 1 2 3 4 5 6 7 8 9 10 120 34 7 8 20 0 9";
    expect(cpuTicksOfStat(`42 (node) ${rest}`)).toBe(154);
    expect(cpuTicksOfStat(`42 (a b) c (d) ) ${rest}`)).toBe(154);
    expect(() => cpuTicksOfStat("nonsense")).toThrow("stat");
  });

  test("CPU time of a process is what it used itself, and grows on its main thread", () => {
    const before = readCpu(process.pid);
    const usageBefore = process.cpuUsage();
    const untilMs = performance.now() + 300;
    let sum = 0;
    while (performance.now() < untilMs) sum += Math.sqrt(sum + 1);
    const usage = process.cpuUsage(usageBefore);
    const { processMs, mainThreadMs } = cpuBetween(before, readCpu(process.pid));
    // /proc counts in ticks of 10 ms, at both ends.
    expect(Math.abs(processMs - (usage.user + usage.system) / 1000)).toBeLessThanOrEqual(30);
    expect(mainThreadMs).toBeGreaterThan(0);
    expect(mainThreadMs).toBeLessThanOrEqual(processMs + 20);
  });

  test("a child's CPU time is counted once it has ended", async () => {
    const before = readEndedChildrenCpuMs();
    const script = "const end = process.cpuUsage().user + 300000; while (process.cpuUsage().user < end);";
    const child = spawn(process.execPath, ["-e", script]);
    await new Promise((resolve) => child.once("close", resolve));
    expect(readEndedChildrenCpuMs() - before).toBeGreaterThanOrEqual(290);
  });

  test("resident memory follows what is touched", () => {
    const before = readResidentBytes(process.pid);
    const block = Buffer.alloc(64 * 1024 * 1024, 1);
    const grown = readResidentBytes(process.pid) - before;
    expect(block.length).toBe(64 * 1024 * 1024);
    expect(grown).toBeGreaterThan(50 * 1024 * 1024);
  });
});

describe("statistics", () => {
  test("median", () => {
    expect(median([3, 1, 2])).toBe(2);
    expect(median([4, 1, 3, 2])).toBe(2.5);
    expect(median([])).toBeNaN();
  });

  test("ratios are taken round by round", () => {
    // The machine was half as fast in the second round, for both.
    expect(ratioOfRounds([20, 10, 22], [10, 5, 10])).toEqual({ median: 2, lowest: 2, highest: 2.2 });
    expect(ratioOfRounds([20, 10], [10]).median).toBe(2);
  });
});

describe("protocols", () => {
  test("redis-benchmark's CSV, whatever the command holds", () => {
    const head =
      '"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"';
    const line = '"SET "a,b" __rand_int__","48250.10","0.525","0.200","0.495","0.655","1.063","4.823"';
    expect(parseCsv(`${head}\n${line}\n`)).toEqual({
      opsPerSecond: 48_250.1,
      p50Ms: 0.495,
      p95Ms: 0.655,
      p99Ms: 1.063,
    });
    expect(parseCsv("Error from server: ERR unknown command")).toBeNull();
    expect(parseCsv(head)).toBeNull();
  });

  test("protobuf numbers of every length come back, other fields are skipped", () => {
    for (const number of [1, 127, 128, 300, 2 ** 31, 2 ** 35 + 5, Number.MAX_SAFE_INTEGER]) {
      const header = Buffer.from([0x0a, 2, 0x08, 0x01]);
      const reply = decodeReply(
        Buffer.concat([
          header,
          encodeFields([
            [2, number],
            [3, 60],
          ]),
        ]),
      );
      expect(reply).toEqual({ id: number, ttlS: 60 });
    }
    expect([...encodeFields([[1, 300]])]).toEqual([0x08, 0xac, 0x02]);
    expect(decodeReply(encodeFields([[2, 7]]))).toEqual({ id: 7, ttlS: 0 });
    expect(() => decodeReply(Buffer.from([0x10, 0x80]))).toThrow("ends inside");
  });

  test("the queue of sequences keeps order while it grows around its end", () => {
    const queue = new SequenceQueue();
    let next = 0;
    let expected = 0;
    for (let round = 0; round < 200; round++) {
      for (let push = 0; push < 7; push++) queue.push(next++);
      for (let shift = 0; shift < 5; shift++) expect(queue.shift()).toBe(expected++);
    }
    while (expected < next) expect(queue.shift()).toBe(expected++);
    expect(() => queue.shift()).toThrow("nobody asked");
  });
});
