import type { ChildProcess } from "node:child_process";
import { mkdirSync, rmSync } from "node:fs";
import { createServer } from "node:net";

import { readCpu, readPeakResidentBytes, readResidentBytes, type CpuReading } from "../measure/process-stats.js";
import { ended, startChild } from "./children.js";

/**
 * A server under test: started on a free port of 127.0.0.1 with a directory of its own, measured from outside, stopped.
 */

export type SystemName = "leasehold" | "leasehold-tmpfs" | "leasehold-etcd" | "redis-memory" | "redis-always" | "etcd";

/** How each system is called in tables and plots. */
export const SYSTEM_LABELS: Record<SystemName, string> = {
  leasehold: "Leasehold",
  "leasehold-tmpfs": "Leasehold, data on tmpfs",
  "leasehold-etcd": "Leasehold on etcd",
  "redis-memory": "Redis, no persistence",
  "redis-always": "Redis, appendfsync always",
  etcd: "etcd",
};

export interface LaunchPlan {
  readonly name: SystemName;
  readonly command: string;
  readonly argv: readonly string[];
  readonly port: number;
  readonly directory: string;
  /** Resolves once the server takes commands. Called again and again until it returns true, for `readyMsMax` at most. */
  readonly isReady: () => Promise<boolean>;
  readonly readyMsMax: number;
}

export class ServerProcess {
  readonly name: SystemName;
  readonly port: number;
  readonly directory: string;
  /** Milliseconds from starting the process to its first sign of being ready. */
  readonly startMs: number;
  readonly #child: ChildProcess;

  private constructor(plan: LaunchPlan, child: ChildProcess, startMs: number) {
    this.name = plan.name;
    this.port = plan.port;
    this.directory = plan.directory;
    this.#child = child;
    this.startMs = startMs;
  }

  static async start(plan: LaunchPlan): Promise<ServerProcess> {
    mkdirSync(plan.directory, { recursive: true });
    const startedMs = performance.now();
    const child = startChild(plan.command, plan.argv, { stdio: ["ignore", "pipe", "pipe"] });
    let output = "";
    const note = (bytes: Buffer): void => {
      output = (output + bytes.toString("latin1")).slice(-2000);
    };
    child.stdout?.on("data", note);
    child.stderr?.on("data", note);
    while (!(await plan.isReady())) {
      if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) {
        throw new Error(`${plan.name} ended at start: ${output.trim()}`);
      }
      if (performance.now() - startedMs > plan.readyMsMax) {
        child.kill("SIGKILL");
        throw new Error(`${plan.name} was not ready after ${plan.readyMsMax} ms: ${output.trim()}`);
      }
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
    return new ServerProcess(plan, child, performance.now() - startedMs);
  }

  get pid(): number {
    const pid = this.#child.pid;
    if (pid === undefined || this.#child.exitCode !== null) throw new Error(`${this.name} is gone`);
    return pid;
  }

  cpu(): CpuReading {
    return readCpu(this.pid);
  }

  residentBytes(): number {
    return readResidentBytes(this.pid);
  }

  /** The most that it has had at any moment. */
  peakResidentBytes(): number {
    return readPeakResidentBytes(this.pid);
  }

  /** Sends a signal and does not wait. */
  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal);
  }

  /** SIGTERM, SIGKILL after 30 s; the directory stays. */
  async stop(): Promise<void> {
    this.#child.kill("SIGTERM");
    await ended(this.#child, 30_000);
  }

  /** Stops at once and removes the directory: nothing of it is needed any more. */
  async discard(): Promise<void> {
    this.#child.kill("SIGKILL");
    await ended(this.#child, 10_000);
    rmSync(this.directory, { recursive: true, force: true });
  }
}

/** A port that was free a moment ago. */
export async function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const address = server.address();
      server.close(() => {
        if (address !== null && typeof address === "object") resolve(address.port);
        else reject(new Error("no free port"));
      });
    });
  });
}
