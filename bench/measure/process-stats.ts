import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";

/**
 * CPU time and resident memory of another process, from /proc (Linux only).
 *
 * CPU time per operation is the figure of this benchmark that noise hurts least: a neighbour on the machine delays a server,
 * but does not make it compute more. The kernel keeps the sum of user and system time exactly and shows it in ticks of
 * usually 10 ms, so a reading over two seconds of work is good to half a per cent.
 *
 * Invariants:
 *  - `processMs` counts every thread of the process, threads that have ended included
 *  - `mainThreadMs` counts the first thread alone: Redis's command loop, Leasehold's JavaScript; of Go servers it says nothing
 */

export interface CpuReading {
  readonly processMs: number;
  readonly mainThreadMs: number;
}

let tickMsKnown: number | null = null;

/** Milliseconds per kernel clock tick as /proc shows it: 10 on nearly every Linux. */
function tickMs(): number {
  if (tickMsKnown === null) {
    const ticksPerSecond = Number(execFileSync("getconf", ["CLK_TCK"], { encoding: "utf8" }).trim());
    if (!(ticksPerSecond > 0)) throw new Error("getconf CLK_TCK gave no number");
    tickMsKnown = 1000 / ticksPerSecond;
  }
  return tickMsKnown;
}

/**
 * utime + stime in ticks from one line of /proc/PID/stat. The second field is the program's name in parentheses and may hold
 * spaces and parentheses itself, so fields are counted from the last closing one.
 */
export function cpuTicksOfStat(stat: string): number {
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  // Field 3 (the state) is fields[0]: utime is field 14, stime field 15.
  const ticks = Number(fields[11]) + Number(fields[12]);
  if (!Number.isFinite(ticks)) throw new Error(`not a line of /proc/PID/stat: ${stat.slice(0, 80)}`);
  return ticks;
}

/** Throws when the process is gone. */
export function readCpu(pid: number): CpuReading {
  const ms = tickMs();
  return {
    processMs: cpuTicksOfStat(readFileSync(`/proc/${pid}/stat`, "latin1")) * ms,
    mainThreadMs: cpuTicksOfStat(readFileSync(`/proc/${pid}/task/${pid}/stat`, "latin1")) * ms,
  };
}

export function cpuBetween(before: CpuReading, after: CpuReading): CpuReading {
  return {
    processMs: after.processMs - before.processMs,
    mainThreadMs: after.mainThreadMs - before.mainThreadMs,
  };
}

/** CPU milliseconds of all children of this process that have ended and been waited for: a load generator's, once it is gone. */
export function readEndedChildrenCpuMs(): number {
  const stat = readFileSync("/proc/self/stat", "latin1");
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return (Number(fields[13]) + Number(fields[14])) * tickMs();
}

/** Resident memory in bytes (VmRSS). Throws when the process is gone. */
export function readResidentBytes(pid: number): number {
  return readStatusBytes(pid, "VmRSS");
}

/** The most resident memory in bytes that the process has ever had (VmHWM). Throws when the process is gone. */
export function readPeakResidentBytes(pid: number): number {
  return readStatusBytes(pid, "VmHWM");
}

function readStatusBytes(pid: number, field: "VmRSS" | "VmHWM"): number {
  const match = new RegExp(`^${field}:\\s+(\\d+) kB$`, "m").exec(readFileSync(`/proc/${pid}/status`, "latin1"));
  if (match === null) throw new Error(`no ${field} of process ${pid}`);
  return Number(match[1]) * 1024;
}
