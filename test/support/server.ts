/**
 * A real server in a process of its own: started, watched, stopped, killed, frozen. Each has a fresh directory unless told
 * otherwise, and a port that the kernel picks.
 *
 * `useServers()` at the top of a file or suite gives a pool that ends every process and removes every directory after each
 * test, whatever happened in it.
 */
import { spawn, type ChildProcess } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, afterEach, vi } from "vitest";
import { within } from "./poll.js";
import { RespConnection, textOf, type ConnectOptions } from "./resp-client.js";

export const MAIN = fileURLToPath(new URL("../../dist/main.js", import.meta.url));

/** The runtime of the server process; `scripts/runtimes.mjs` sets it to run the suite on other versions of Node. */
export const NODE = process.env["LEASEHOLD_TEST_NODE"] ?? process.execPath;

// starting a process takes a tenth of a second on an idle machine and seconds on a crowded one: no test may hang on that
vi.setConfig({ testTimeout: 180_000, hookTimeout: 60_000 });

/** A bug that `scripts/deliberate-bugs.mjs` puts into every server, to see that the suites notice. */
const BUG = process.env["LEASEHOLD_TEST_BUG"];
const BUG_ARGS = BUG === undefined ? [] : ["--import", new URL("../faults/deliberate-bugs.mjs", import.meta.url).href];
const BUG_ENVIRONMENT = BUG === undefined ? {} : { DELIBERATE_BUG: BUG };

const READY = /leasehold ready on (\S+):(\d+)/;

export interface ServerOptions {
  /** Data directory; a fresh one when not given. Never removed when given. */
  readonly dir?: string;
  readonly args?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  /** Put before the command line, e.g. `["unshare", "--time", ...]`. It has to exec, so that the pid stays the server's. */
  readonly wrap?: readonly string[];
  /** Flags for Node itself. */
  readonly nodeArgs?: readonly string[];
  readonly readyWithinMs?: number;
}

export interface Exit {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

/** The environment of a server: nothing of the test runner's gets in. */
function cleanEnvironment(extra: Readonly<Record<string, string>>): NodeJS.ProcessEnv {
  const kept = ["PATH", "HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH"].map((name) => [name, process.env[name]] as const);
  return { ...Object.fromEntries(kept.filter(([, value]) => value !== undefined)), ...BUG_ENVIRONMENT, ...extra };
}

export class Server {
  readonly dir: string;
  stdout = "";
  stderr = "";
  /** 0 until ready. */
  port = 0;
  host = "";
  private readonly child: ChildProcess;
  private readonly exited: Promise<Exit>;
  private exitStatus: Exit | null = null;
  private readonly connections: RespConnection[] = [];
  private onOutput: () => void = () => {};

  constructor(dir: string, options: ServerOptions) {
    this.dir = dir;
    const serve = [NODE, ...BUG_ARGS, ...(options.nodeArgs ?? []), MAIN, "serve", "--port", "0", "--dir", dir];
    const [command = NODE, ...args] = [...(options.wrap ?? []), ...serve, ...(options.args ?? [])];
    this.child = spawn(command, args, { env: cleanEnvironment(options.env ?? {}), stdio: ["ignore", "pipe", "pipe"] });
    this.child.stdout?.on("data", (chunk: Buffer) => {
      this.stdout += chunk.toString();
      this.onOutput();
    });
    this.child.stderr?.on("data", (chunk: Buffer) => {
      this.stderr += chunk.toString();
    });
    this.exited = new Promise((resolve, reject) => {
      this.child.once("error", reject);
      this.child.once("close", (code, signal) => {
        this.exitStatus = { code, signal };
        resolve(this.exitStatus);
      });
    });
  }

  /** Resolves once the server says that it serves; rejects when it ends first. */
  async ready(withinMs = 40_000): Promise<this> {
    const line = new Promise<RegExpExecArray>((resolve, reject) => {
      this.onOutput = () => {
        const found = READY.exec(this.stdout);
        if (found !== null) resolve(found);
      };
      this.onOutput();
      this.exited.then((exit) => {
        reject(new Error(`the server ended before it was ready: ${this.describe(exit)}`));
      }, reject);
    });
    const found = await within("the ready line", line, withinMs).catch((error: unknown) => {
      throw new Error(`${String(error)}\n${this.describe(this.exitStatus)}`, { cause: error });
    });
    this.host = found[1] ?? "";
    this.port = Number(found[2]);
    return this;
  }

  get pid(): number {
    if (this.child.pid === undefined) throw new Error("the server did not start");
    return this.child.pid;
  }

  get isRunning(): boolean {
    return this.exitStatus === null;
  }

  /** Stands still by SIGSTOP, whoever sent it. */
  get isStopped(): boolean {
    return this.isRunning && /^\d+ \(.*\) [Tt] /.test(readFileSync(`/proc/${this.pid}/stat`, "latin1"));
  }

  /** A new connection; it is closed with the server. */
  async connect(options: ConnectOptions = {}): Promise<RespConnection> {
    const connection = await RespConnection.connect(this.port, options);
    this.connections.push(connection);
    return connection;
  }

  signal(name: NodeJS.Signals): void {
    this.child.kill(name);
  }

  /** How the process ended. Waits for it. */
  async exit(withinMs = 30_000): Promise<Exit> {
    return within("the server's end", this.exited, withinMs).catch((error: unknown) => {
      throw new Error(`${String(error)}\n${this.describe(null)}`, { cause: error });
    });
  }

  /** SIGTERM, and how the process ended. */
  async stop(): Promise<Exit> {
    this.signal("SIGTERM");
    return this.exit();
  }

  /** kill -9, and waits until the process is gone. */
  async kill(): Promise<void> {
    this.signal("SIGKILL");
    await this.exit();
  }

  /** Freezes the process, as a long pause of the machine or the runtime would. Returns when it stands still. */
  async freeze(): Promise<void> {
    this.signal("SIGSTOP");
    const stoppedBy = performance.now() + 10_000;
    while (!this.isStopped) {
      if (performance.now() > stoppedBy) throw new Error("the server did not stop on SIGSTOP");
      await new Promise((resolve) => {
        setTimeout(resolve, 2);
      });
    }
  }

  thaw(): void {
    this.signal("SIGCONT");
  }

  describe(exit: Exit | null): string {
    const state = exit === null ? "still running" : `exit ${exit.code ?? exit.signal ?? "?"}`;
    return `${state}\nstdout: ${this.stdout}\nstderr: ${this.stderr}`;
  }

  async dispose(): Promise<void> {
    for (const connection of this.connections) connection.destroy();
    if (this.isRunning) await this.kill();
  }
}

export interface ServerPool {
  /** Starts a server and waits until it is ready. */
  start(options?: ServerOptions): Promise<Server>;
  /** Starts a server that may never be ready. */
  launch(options?: ServerOptions): Server;
  /** A directory that is removed afterwards. */
  directory(): string;
}

/** A pool whose servers end after each test, or after the suite. */
export function useServers(scope: "test" | "suite" = "test"): ServerPool {
  const servers: Server[] = [];
  const directories: string[] = [];
  const dispose = async (): Promise<void> => {
    await Promise.all(servers.splice(0).map(async (server) => server.dispose()));
    for (const directory of directories.splice(0)) rmSync(directory, { recursive: true, force: true });
  };
  (scope === "test" ? afterEach : afterAll)(dispose);
  process.once("exit", () => {
    for (const server of servers) server.signal("SIGKILL");
  });
  const directory = (): string => {
    const made = mkdtempSync(join(tmpdir(), "leasehold-e2e-"));
    directories.push(made);
    return made;
  };
  const launch = (options: ServerOptions = {}): Server => {
    const server = new Server(options.dir ?? join(directory(), "data"), options);
    servers.push(server);
    return server;
  };
  return {
    directory,
    launch,
    start: async (options = {}) => launch(options).ready(options.readyWithinMs),
  };
}

/** INFO's fields by name, of all sections. */
export async function info(connection: RespConnection): Promise<Map<string, string>> {
  const text = textOf(await connection.call("INFO"));
  const pairs = text
    .split("\r\n")
    .filter((line) => line.includes(":") && !line.startsWith("#"))
    .map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 1)] as const);
  return new Map(pairs);
}

/** A field of INFO that must be there, as a number. */
export async function infoNumber(connection: RespConnection, field: string): Promise<number> {
  const all = await info(connection);
  const text = all.get(field);
  if (text === undefined || !/^-?\d+(\.\d+)?$/.test(text))
    throw new Error(`INFO has no number ${field}: ${text ?? ""}`);
  return Number(text);
}
