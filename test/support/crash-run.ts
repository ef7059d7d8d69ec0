/**
 * One story told many ways: servers run one after the other over the same directory, each meets its fault under load, and the
 * history of all clients is judged at the end.
 */
import { expect } from "vitest";
import { checkHistory } from "./history-checker.js";
import { History } from "./history.js";
import { LockWorkload } from "./lock-workload.js";
import { until } from "./poll.js";
import type { Server, ServerOptions, ServerPool } from "./server.js";
import { DEFAULT_WORKLOAD, Workload, observeAll, type Target, type WorkloadOptions } from "./workload.js";

/** How long a load may take on a crowded machine. */
const LOAD_MS_MAX = 90_000;

export class CrashRun {
  readonly history = new History();
  readonly dir: string;
  private readonly servers: ServerPool;
  private readonly target: Target = { port: null };
  private readonly workload: Workload;
  /** Lock traffic beside the leases; null: none. */
  readonly locks: LockWorkload | null;

  constructor(servers: ServerPool, dir: string, workload: WorkloadOptions = DEFAULT_WORKLOAD, withLocks = false) {
    this.servers = servers;
    this.dir = dir;
    this.workload = new Workload(this.history, this.target, workload);
    this.locks = withLocks ? new LockWorkload(this.target) : null;
  }

  /** Starts a server over the directory, looks at every lease of the history, and lets the clients in. */
  async start(options: ServerOptions = {}): Promise<Server> {
    const server = await this.servers.start({ ...options, dir: this.dir });
    await this.open(server);
    return server;
  }

  /** Lets the clients in to a server that is ready. */
  async open(server: Server): Promise<void> {
    // a look that is cut off by the server's own fault is an unknown like any other
    const connection = await server.connect().catch(() => null);
    if (connection !== null) await observeAll(this.history, connection);
    this.target.port = server.port;
  }

  /** Waits for so many further answers to clients, or for the server's end. */
  async load(server: Server, answers: number): Promise<void> {
    const before = this.history.answers;
    await until(
      `${answers} answers`,
      () => this.history.answers >= before + answers || !server.isRunning,
      LOAD_MS_MAX,
    ).catch((error: unknown) => {
      const got = `${this.history.answers - before} answers, pending: ${this.history.pending().join(" ")}`;
      throw new Error(`${String(error)}; ${got}\n${server.describe(null)}`, { cause: error });
    });
  }

  /** Tells the clients and the history that this server is gone. Waits for its end. */
  async gone(server: Server): Promise<void> {
    await server.exit();
    this.target.port = null;
    this.history.restart();
    this.locks?.history.restart();
  }

  /** A last server looks at everything; the whole history must be sound. */
  async judge(options: ServerOptions = {}): Promise<void> {
    await Promise.all([this.workload.stop(), this.locks?.stop()]);
    const server = await this.servers.start({ ...options, dir: this.dir });
    const connection = await server.connect();
    await observeAll(this.history, connection);
    expect((await this.locks?.judge(connection)) ?? []).toEqual([]);
    expect(await server.stop()).toEqual({ code: 0, signal: null });
    expect(checkHistory(this.history.events)).toEqual([]);
  }
}
