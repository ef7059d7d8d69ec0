/** Runs another program to its end, with input, output, a deadline and a clear failure. */
import { spawn } from "node:child_process";

export interface Finished {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface RunOptions {
  readonly input?: string | Buffer;
  readonly env?: NodeJS.ProcessEnv;
  readonly withinMs?: number;
  /** Encoding of the output; `latin1` keeps every byte. */
  readonly encoding?: "utf8" | "latin1";
}

/** Runs a program and returns how it ended; does not judge its exit code. Killed, and an error, after `withinMs`. */
export async function run(command: string, args: readonly string[], options: RunOptions = {}): Promise<Finished> {
  const { withinMs = 45_000, encoding = "utf8" } = options;
  const child = spawn(command, args, { env: options.env ?? process.env, stdio: "pipe" });
  const stdout: Buffer[] = [];
  const stderr: Buffer[] = [];
  child.stdout.on("data", (chunk: Buffer) => stdout.push(chunk));
  child.stderr.on("data", (chunk: Buffer) => stderr.push(chunk));
  child.stdin.on("error", () => {
    // a program that ends without reading its input is judged by its exit code and output
  });
  child.stdin.end(options.input ?? "");
  let timedOut = false;
  const timer = setTimeout(() => {
    timedOut = true;
    child.kill("SIGKILL");
  }, withinMs);
  const ended = await new Promise<{ code: number | null; signal: NodeJS.Signals | null }>((resolve, reject) => {
    child.once("error", reject);
    child.once("close", (code, signal) => {
      resolve({ code, signal });
    });
  });
  clearTimeout(timer);
  const finished = {
    ...ended,
    stdout: Buffer.concat(stdout).toString(encoding),
    stderr: Buffer.concat(stderr).toString(encoding),
  };
  if (timedOut) throw new Error(`${command} ${args.join(" ")} took more than ${withinMs} ms\n${describe(finished)}`);
  return finished;
}

/** Runs a program that must succeed and returns its standard output. */
export async function runOk(command: string, args: readonly string[], options: RunOptions = {}): Promise<string> {
  const finished = await run(command, args, options);
  if (finished.code !== 0) throw new Error(`${command} ${args.join(" ")} failed\n${describe(finished)}`);
  return finished.stdout;
}

const describe = (finished: Finished): string =>
  `exit ${finished.code ?? finished.signal ?? "?"}\nstdout: ${finished.stdout}\nstderr: ${finished.stderr}`;
