/**
 * System calls of a running server as strace saw them, and faults injected into them.
 *
 * The order of lines in strace's output is an order of events that can be relied on where one event caused the other: each
 * thread stands still at the entry and at the exit of a traced call until strace has written the line. So "the sync had
 * returned before the reply was written" can be read off: the line that ends the sync lies before the one that starts the write.
 */
import { spawn, type ChildProcess } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { until, within } from "./poll.js";

export interface SystemCall {
  readonly thread: number;
  readonly name: string;
  /** Everything between the parentheses, as strace prints it. */
  readonly args: string;
  /** What follows ` = `, e.g. `42` or `-1 EIO (Input/output error) (INJECTED)`. */
  readonly result: string;
  /** Line at which the call began. */
  readonly entry: number;
  /** Line at which it returned; Infinity when it never did. */
  readonly exit: number;
}

const WHOLE = /^(\d+)\s+(\w+)\((.*)\)\s+= (.*)$/s;
const UNFINISHED = /^(\d+)\s+(\w+)\((.*?)\s*<unfinished \.\.\.>$/s;
const RESUMED = /^(\d+)\s+<\.\.\. (\w+) resumed>(.*)\)\s+= (.*)$/s;

/** Reads the output of `strace -f -o FILE`. Lines that are no calls (signals, exits) count as lines only. */
export function parseTrace(text: string): SystemCall[] {
  const calls: SystemCall[] = [];
  const unfinished = new Map<number, SystemCall>();
  text.split("\n").forEach((line, index) => {
    const begun = UNFINISHED.exec(line);
    if (begun !== null) {
      const [, thread, name = "", args = ""] = begun;
      const call = { thread: Number(thread), name, args, result: "", entry: index, exit: Infinity };
      unfinished.set(call.thread, call);
      return;
    }
    const resumed = RESUMED.exec(line);
    if (resumed !== null) {
      const [, thread, , args = "", result = ""] = resumed;
      const call = unfinished.get(Number(thread));
      if (call === undefined) return;
      unfinished.delete(call.thread);
      calls.push({ ...call, args: call.args + args, result, exit: index });
      return;
    }
    const whole = WHOLE.exec(line);
    if (whole === null) return;
    const [, thread, name = "", args = "", result = ""] = whole;
    calls.push({ thread: Number(thread), name, args, result, entry: index, exit: index });
  });
  calls.push(...unfinished.values());
  return calls.sort((a, b) => a.entry - b.entry);
}

export const WRITE_CALLS = ["write", "writev", "pwrite64", "pwritev", "pwritev2", "sendto", "sendmsg", "sendmmsg"];
export const READ_CALLS = ["read", "readv", "recvfrom", "recvmsg"];
export const SYNC_CALLS = ["fsync", "fdatasync", "sync_file_range", "msync", "sync", "syncfs"];

/** The first argument when it is a descriptor shown with its path (`-yy`): what lies between `<` and `>`. */
export function target(call: SystemCall): string {
  return /^\d+<((?:[^<>]|->)*)>/.exec(call.args)?.[1] ?? "";
}

export const isSocket = (call: SystemCall): boolean => target(call).startsWith("TCP");
export const isFile = (call: SystemCall): boolean => target(call).startsWith("/") && !target(call).startsWith("/dev/");
export const succeeded = (call: SystemCall): boolean => call.exit !== Infinity && !call.result.startsWith("-1");

export interface TraceOptions {
  readonly calls: readonly string[];
  /** strace's expressions for `-e inject=`, e.g. `fdatasync:error=EIO:when=1`. */
  readonly inject?: readonly string[];
  /** Only calls on these files, injected faults too. */
  readonly paths?: readonly string[];
}

export class Trace {
  private readonly child: ChildProcess;
  private readonly scratch: string;
  private stderr = "";

  private constructor(pid: number, options: TraceOptions) {
    this.scratch = mkdtempSync(join(tmpdir(), "leasehold-trace-"));
    const injections = (options.inject ?? []).flatMap((expression) => ["-e", `inject=${expression}`]);
    const paths = (options.paths ?? []).flatMap((path) => ["-P", path]);
    const args = ["-f", "-yy", "-s", "65536", "-e", `trace=${options.calls.join(",")}`, "-e", "signal=none"];
    this.child = spawn("strace", [...args, ...injections, ...paths, "-o", this.file, "-p", String(pid)], {
      stdio: ["ignore", "ignore", "pipe"],
    });
    this.child.stderr?.on("data", (chunk: Buffer) => {
      this.stderr += chunk.toString();
    });
  }

  /** Attaches to every thread of a running process. */
  static async attach(pid: number, options: TraceOptions): Promise<Trace> {
    const trace = new Trace(pid, options);
    await until("strace to attach", () => {
      if (trace.child.exitCode !== null) throw new Error(`strace ended: ${trace.stderr}`);
      return /attached/.test(trace.stderr);
    });
    return trace;
  }

  private get file(): string {
    return join(this.scratch, "trace");
  }

  /** The calls so far. */
  calls(): SystemCall[] {
    return parseTrace(readFileSync(this.file, "latin1"));
  }

  /** Detaches and returns all calls. The process goes on; injected faults end. */
  async detach(): Promise<SystemCall[]> {
    if (this.child.exitCode === null && this.child.signalCode === null) {
      const ended = new Promise<void>((resolve) => {
        this.child.once("close", () => {
          resolve();
        });
      });
      this.child.kill("SIGINT");
      await within("strace to detach", ended);
    }
    const calls = this.calls();
    rmSync(this.scratch, { recursive: true, force: true });
    return calls;
  }
}
