import { fork, spawn, type ChildProcess, type SpawnOptions } from "node:child_process";

/**
 * Every process that the benchmark starts is on this list until it has ended, and is killed when the benchmark ends, however
 * it ends (SIGKILL apart). Only processes of this list are ever signalled.
 */

const running = new Set<ChildProcess>();

export function startChild(command: string, argv: readonly string[], options: SpawnOptions): ChildProcess {
  return keep(spawn(command, [...argv], options));
}

/** A Node process with a message channel. */
export function forkChild(module: string): ChildProcess {
  return keep(fork(module, [], { stdio: ["ignore", "inherit", "inherit", "ipc"], serialization: "advanced" }));
}

function keep(child: ChildProcess): ChildProcess {
  running.add(child);
  child.once("exit", () => running.delete(child));
  // Without this a program that is not installed would end the benchmark; `spawn` callers see it as an exit without a pid.
  child.on("error", () => running.delete(child));
  return child;
}

export function killAllChildren(): void {
  for (const child of running) child.kill("SIGKILL");
  running.clear();
}

/** Sees to it that no child outlives the benchmark. `onSignal` is called before a signal ends it. */
export function killChildrenAtExit(onSignal: (signal: string) => void): void {
  process.on("exit", killAllChildren);
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
    process.on(signal, () => {
      onSignal(signal);
      process.exit(130);
    });
  }
}

/** Resolves with the exit code (or signal name) once the child has ended; kills it after `msMax`. */
export async function ended(child: ChildProcess, msMax: number): Promise<number | string> {
  if (child.exitCode !== null) return child.exitCode;
  if (child.signalCode !== null) return child.signalCode;
  return new Promise((resolve) => {
    const deadline = setTimeout(() => child.kill("SIGKILL"), msMax);
    child.once("exit", (code, signal) => {
      clearTimeout(deadline);
      resolve(code ?? signal ?? "unknown");
    });
  });
}
