import { randomBytes } from "node:crypto";
import { release, totalmem, type as systemType, arch } from "node:os";
import type { ProcessFigures } from "./server-context.js";

/**
 * The figures of this process, for INFO and MEMORY. Read when asked for and at no other time: reading the heap's size costs
 * some microseconds.
 */
export function nodeProcessFigures(): ProcessFigures {
  return {
    processId: process.pid,
    operatingSystem: `${systemType()} ${release()} ${arch()}`,
    runtimeVersion: process.version,
    executablePath: process.execPath,
    systemMemoryBytes: totalmem(),
    memory: () => {
      const usage = process.memoryUsage();
      return {
        residentBytes: usage.rss,
        residentPeakBytes: Math.max(usage.rss, process.resourceUsage().maxRSS * 1024),
        heapUsedBytes: usage.heapUsed,
        heapTotalBytes: usage.heapTotal,
        externalBytes: usage.external,
      };
    },
    cpu: () => {
      const usage = process.cpuUsage();
      return { userMs: usage.user / 1000, systemMs: usage.system / 1000 };
    },
  };
}

/** A new `run_id`: 40 hexadecimal digits, as Redis has them. */
export const newRunId = (): string => randomBytes(20).toString("hex");
