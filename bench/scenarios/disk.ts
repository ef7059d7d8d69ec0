import { closeSync, fdatasyncSync, fsyncSync, mkdirSync, openSync, rmSync, writeSync } from "node:fs";
import { join } from "node:path";

import { LatencyHistogram } from "../measure/latency.js";
import type { Bench } from "./bench.js";

/** The disk by itself: append 128 bytes, fdatasync, again and again. What every durable figure of this run stands on. */

const APPENDS = 400;
const RECORD_BYTES = 128;

export function disk(bench: Bench): void {
  const directory = bench.options.places.diskDirectory;
  mkdirSync(directory, { recursive: true });
  const path = join(directory, `append-${process.pid}`);
  const file = openSync(path, "w");
  const latency = new LatencyHistogram();
  try {
    const record = Buffer.alloc(RECORD_BYTES, 120);
    writeSync(file, record);
    fsyncSync(file);
    for (let append = 0; append < APPENDS; append++) {
      const startedMs = performance.now();
      writeSync(file, record);
      fdatasyncSync(file);
      latency.recordMs(performance.now() - startedMs);
    }
  } finally {
    closeSync(file);
    rmSync(path, { force: true });
  }
  const { p50Ms, p99Ms, maxMs } = latency.summary();
  bench.figure(
    "disk",
    "fdatasync/p50",
    `append of ${RECORD_BYTES} bytes + fdatasync, median of ${APPENDS}`,
    p50Ms,
    "ms",
  );
  bench.figure("disk", "fdatasync/p99", "the same, 99th percentile", p99Ms, "ms");
  bench.figure("disk", "fdatasync/max", "the same, slowest", maxMs, "ms");
}
