import { execFileSync } from "node:child_process";
import { join } from "node:path";

import { withClient, type RespClient } from "../load/resp-connection.js";
import { freePort, ServerProcess, type SystemName } from "./system.js";

/** How each system is started. Every setting that is not the system's default is here, with its reason. */

export interface Places {
  /** Leasehold's dist/main.js. */
  readonly leaseholdMain: string;
  /** Directory on the disk under test. */
  readonly diskDirectory: string;
  /** Directory in memory. */
  readonly tmpfsDirectory: string;
  /** Extra flags for Leasehold's Node, e.g. `--cpu-prof`. */
  readonly nodeFlags: readonly string[];
}

let launches = 0;

/** What runs by itself: for the others see cluster.ts. */
export type SingleSystemName = Exclude<SystemName, "leasehold-etcd">;

/** Starts one system on a fresh directory. */
export async function launch(name: SingleSystemName, places: Places): Promise<ServerProcess> {
  const parent = name === "leasehold-tmpfs" ? places.tmpfsDirectory : places.diskDirectory;
  const ownDirectory = join(parent, `${name}-${process.pid}-${++launches}`);
  const port = await freePort();
  switch (name) {
    case "leasehold":
    case "leasehold-tmpfs":
      return launchLeasehold(name, places, ownDirectory, isPrimary);
    case "redis-memory":
    case "redis-always":
      return ServerProcess.start({
        name,
        command: "redis-server",
        argv: redisArguments(name, port, ownDirectory),
        port,
        directory: ownDirectory,
        isReady: async () => holds(port, isAnsweringPing),
        readyMsMax: 30_000,
      });
    case "etcd":
      return ServerProcess.start({
        name,
        command: "etcd",
        argv: etcdArguments(port, await freePort(), ownDirectory),
        port,
        directory: ownDirectory,
        isReady: () => isEtcdHealthy(port),
        readyMsMax: 30_000,
      });
  }
}

function redisArguments(name: "redis-memory" | "redis-always", port: number, directory: string): string[] {
  const common = ["--port", `${port}`, "--bind", "127.0.0.1", "--dir", directory, "--save", ""];
  if (name === "redis-memory") return [...common, "--appendonly", "no"];
  // No rewrite of the log in the background: it would cost Redis CPU and disk time at random moments of a short run.
  return [...common, "--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"];
}

function etcdArguments(port: number, peerPort: number, directory: string): string[] {
  const clients = `http://127.0.0.1:${port}`;
  const peers = `http://127.0.0.1:${peerPort}`;
  const self = ["--name", "bench", "--data-dir", directory, "--logger", "zap", "--log-outputs", "stderr"];
  const listen = ["--listen-client-urls", clients, "--advertise-client-urls", clients];
  const cluster = ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers];
  return [...self, ...listen, ...cluster, "--initial-cluster", `bench=${peers}`];
}

/**
 * Starts Leasehold, on what an earlier process left in `directory` if there was one. Ready once `isServing` holds; it may
 * throw while the server is still loading.
 */
export async function launchLeasehold(
  name: "leasehold" | "leasehold-tmpfs",
  places: Places,
  directory: string,
  isServing: (client: RespClient) => Promise<boolean>,
): Promise<ServerProcess> {
  const port = await freePort();
  return ServerProcess.start({
    name,
    command: process.execPath,
    argv: [...places.nodeFlags, places.leaseholdMain, "serve", "--port", `${port}`, "--dir", directory],
    port,
    directory,
    isReady: async () => holds(port, isServing),
    readyMsMax: 60_000,
  });
}

/** PING is answered while the server still loads; a question about a lease is not. */
async function isPrimary(client: RespClient): Promise<boolean> {
  return (await client.call("LEASE.PTTL", "nobody")) === -2;
}

async function isAnsweringPing(client: RespClient): Promise<boolean> {
  return (await client.call("PING")) === "PONG";
}

async function holds(port: number, condition: (client: RespClient) => Promise<boolean>): Promise<boolean> {
  try {
    return await withClient(port, condition);
  } catch {
    // Not listening yet, or still LOADING.
    return false;
  }
}

/** Whether an etcd member has a leader and answers. */
export async function isEtcdHealthy(port: number): Promise<boolean> {
  try {
    const response = await fetch(`http://127.0.0.1:${port}/health`, { signal: AbortSignal.timeout(1000) });
    return response.ok && (await response.text()).includes("true");
  } catch {
    // Not listening yet.
    return false;
  }
}

/** The first line that a program prints about its version; null when it is not installed. */
export function versionOf(command: string): string | null {
  try {
    const output = execFileSync(command, ["--version"], { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
    return output.split("\n")[0]?.trim() ?? null;
  } catch {
    return null;
  }
}
