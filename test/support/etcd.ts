/**
 * etcd for tests: one member, or several that form a cluster, on loopback ports that were free, with their data in memory where
 * this machine has such a place. Started means healthy. Everything is killed and removed by `stop`, and when the process ends.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { until } from "./poll.js";
import { freePorts } from "./ports.js";

export interface EtcdOptions {
  readonly members?: number;
  /** Further flags for every member. */
  readonly flags?: readonly string[];
  /** Changes `http` to `https` in what clients connect to; the flags say with which certificate. */
  readonly clientTls?: boolean;
}

export class EtcdMember {
  readonly name: string;
  readonly clientPort: number;
  readonly #argv: readonly string[];
  #process: ChildProcess | null = null;
  #output = "";

  constructor(name: string, clientPort: number, argv: readonly string[]) {
    this.name = name;
    this.clientPort = clientPort;
    this.#argv = argv;
  }

  get endpoint(): string {
    return `127.0.0.1:${this.clientPort}`;
  }

  get pid(): number {
    const pid = this.#process?.pid;
    if (pid === undefined) throw new Error(`etcd ${this.name} is not running`);
    return pid;
  }

  /** Starts it, again too: on its data. Does not wait. */
  start(): void {
    const child = spawn("etcd", this.#argv, { stdio: ["ignore", "pipe", "pipe"] });
    const keep = (chunk: Buffer): void => {
      this.#output = (this.#output + chunk.toString("utf8")).slice(-4000);
    };
    child.stdout.on("data", keep);
    child.stderr.on("data", keep);
    children.add(child);
    child.once("exit", () => children.delete(child));
    this.#process = child;
  }

  signal(signal: NodeJS.Signals): void {
    this.#process?.kill(signal);
  }

  /** Ends it like a power loss would. */
  async kill(): Promise<void> {
    const child = this.#process;
    this.#process = null;
    if (child === null || child.exitCode !== null || child.signalCode !== null) return;
    const exit = once(child, "exit");
    child.kill("SIGKILL");
    await exit;
  }

  /** Throws when the process is gone. */
  checkAlive(): void {
    const child = this.#process;
    if (child === null || child.exitCode !== null) throw new Error(`etcd ${this.name} is not running\n${this.#output}`);
  }
}

export class EtcdCluster {
  readonly members: readonly EtcdMember[];
  readonly #directory: string;
  readonly #clientTls: boolean;

  private constructor(members: readonly EtcdMember[], directory: string, clientTls: boolean) {
    this.members = members;
    this.#directory = directory;
    this.#clientTls = clientTls;
  }

  static async start({ members: count = 1, flags = [], clientTls = false }: EtcdOptions = {}): Promise<EtcdCluster> {
    const parent = existsSync("/dev/shm") ? "/dev/shm" : tmpdir();
    const directory = mkdtempSync(join(parent, "leasehold-etcd-"));
    directories.add(directory);
    const ports = await freePorts(2 * count);
    const peers = Array.from({ length: count }, (_, index) => `http://127.0.0.1:${ports[count + index]}`);
    const initial = peers.map((url, index) => `m${index}=${url}`).join(",");
    const members = peers.map((peer, index) => {
      const client = `${clientTls ? "https" : "http"}://127.0.0.1:${ports[index]}`;
      const argv = ["--name", `m${index}`, "--data-dir", join(directory, `m${index}`), "--logger", "zap"];
      argv.push("--listen-client-urls", client, "--advertise-client-urls", client);
      argv.push("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", initial);
      // Elections within a second, so that tests need not wait for them.
      argv.push("--heartbeat-interval", "50", "--election-timeout", "500", ...flags);
      return new EtcdMember(`m${index}`, ports[index] ?? 0, argv);
    });
    const cluster = new EtcdCluster(members, directory, clientTls);
    for (const member of members) member.start();
    if (!clientTls) await cluster.untilHealthy();
    return cluster;
  }

  get endpoints(): readonly string[] {
    return this.members.map((member) => member.endpoint);
  }

  /** Waits until each of the members, or of those named, has a leader and answers reads. */
  async untilHealthy(members: readonly EtcdMember[] = this.members): Promise<void> {
    for (const member of members) {
      await until(`etcd ${member.name} to be healthy`, () => {
        member.checkAlive();
        return this.#isHealthy(member);
      });
    }
  }

  /** The member that leads. */
  async leader(): Promise<EtcdMember> {
    return until("an etcd leader", async () => {
      for (const member of this.members) if (await this.#isLeader(member)) return member;
      return null;
    });
  }

  async stop(): Promise<void> {
    for (const member of this.members) {
      member.signal("SIGCONT");
      await member.kill();
    }
    rmSync(this.#directory, { recursive: true, force: true });
    directories.delete(this.#directory);
  }

  async #isHealthy(member: EtcdMember): Promise<boolean> {
    if (this.#clientTls) throw new Error("health over TLS is not asked here");
    const reply = await ask(`http://${member.endpoint}/health`);
    return (reply as { health?: unknown } | null)?.health === "true";
  }

  async #isLeader(member: EtcdMember): Promise<boolean> {
    const reply = (await ask(`http://${member.endpoint}/v3/maintenance/status`, "{}")) as {
      leader?: unknown;
      header?: { member_id?: unknown };
    } | null;
    return reply?.leader !== undefined && reply.leader === reply.header?.member_id;
  }
}

/** The JSON of a reply; null without one. */
async function ask(url: string, body?: string): Promise<unknown> {
  try {
    const init = body === undefined ? {} : { method: "POST", body };
    const reply = await fetch(url, { ...init, signal: AbortSignal.timeout(1_000) });
    return reply.ok ? await reply.json() : null;
  } catch {
    return null; // not listening yet, or not any more
  }
}

const children = new Set<ChildProcess>();
const directories = new Set<string>();
process.once("exit", () => {
  for (const child of children) child.kill("SIGKILL");
  for (const directory of directories) rmSync(directory, { recursive: true, force: true });
});
