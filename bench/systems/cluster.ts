import { join } from "node:path";

import { withClient, type RespClient } from "../load/resp-connection.js";
import { isEtcdHealthy, type Places } from "./launch.js";
import { freePort, ServerProcess } from "./system.js";

/**
 * etcd members and Leasehold nodes on them, all on this machine. Every setting that is not a default is here, with its
 * reason. The etcd that is measured by itself is started in the same way as the one under Leasehold.
 */

export interface EtcdPlan {
  readonly members: number;
  /** What the member's database may grow to; null: etcd's own 2 GiB. */
  readonly quotaBytes: number | null;
}

export interface NodePlan {
  /** `HOST:PORT` of each member. */
  readonly endpoints: readonly string[];
  readonly quotaBytes: number | null;
}

/** A Leasehold node whose rows lie in etcd. */
export interface ClusterNode {
  readonly server: ServerProcess;
  readonly sentinelPort: number;
}

let launches = 0;

function directoryOf(places: Places, what: string): string {
  return join(places.diskDirectory, `${what}-of-cluster-${process.pid}-${++launches}`);
}

/** Resolves when all members are healthy. */
export async function launchEtcd(places: Places, { members, quotaBytes }: EtcdPlan): Promise<readonly ServerProcess[]> {
  const plans = [];
  for (let index = 0; index < members; index++) {
    plans.push({ name: `bench${index}`, port: await freePort(), peers: `http://127.0.0.1:${await freePort()}` });
  }
  const initial = plans.map(({ name, peers }) => `${name}=${peers}`).join(",");
  // None is healthy before most of them are up.
  return Promise.all(
    plans.map(async ({ name, port, peers }) => {
      const directory = directoryOf(places, "etcd");
      const clients = `http://127.0.0.1:${port}`;
      const self = ["--name", name, "--data-dir", directory, "--logger", "zap", "--log-outputs", "stderr"];
      const listen = ["--listen-client-urls", clients, "--advertise-client-urls", clients];
      const cluster = ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers];
      // As docs/CLUSTER.md wants it.
      const upkeep = ["--auto-compaction-mode", "periodic", "--auto-compaction-retention", "1h"];
      const quota = quotaBytes === null ? [] : ["--quota-backend-bytes", `${quotaBytes}`];
      return ServerProcess.start({
        name: "etcd",
        command: "etcd",
        argv: [...self, ...listen, ...cluster, "--initial-cluster", initial, ...upkeep, ...quota],
        port,
        directory,
        isReady: () => isEtcdHealthy(port),
        readyMsMax: 30_000,
      });
    }),
  );
}

export function endpointsOf(members: readonly ServerProcess[]): string[] {
  return members.map(({ port }) => `127.0.0.1:${port}`);
}

/** Resolves when the node is primary, or stands by for another that is. */
export async function launchNode(places: Places, { endpoints, quotaBytes }: NodePlan): Promise<ClusterNode> {
  const port = await freePort();
  const sentinelPort = await freePort();
  const directory = directoryOf(places, "node");
  const store = ["--store", `etcd://${endpoints.join(",")}`, "--sentinel-port", `${sentinelPort}`];
  const quota = quotaBytes === null ? [] : ["--etcd-quota-bytes", `${quotaBytes}`];
  const server = await ServerProcess.start({
    name: "leasehold-etcd",
    command: process.execPath,
    argv: [
      ...places.nodeFlags,
      places.leaseholdMain,
      "serve",
      "--port",
      `${port}`,
      "--dir",
      directory,
      ...store,
      ...quota,
    ],
    port,
    directory,
    isReady: async () => (await isServing(port)) || (await isStandingBy(port)),
    readyMsMax: 60_000,
  });
  return { server, sentinelPort };
}

/** Whether it is primary, with all rows loaded. */
export async function isServing(port: number): Promise<boolean> {
  return holds(port, async (client) => (await client.call("LEASE.PTTL", "nobody")) === -2);
}

/** Whether it follows a primary and would replace it. */
export async function isStandingBy(port: number): Promise<boolean> {
  return holds(port, async (client) => {
    const info = String(await client.call("INFO", "replication"));
    return /^role:slave\r?$/m.test(info) && /^master_link_status:up\r?$/m.test(info);
  });
}

async function holds(port: number, condition: (client: RespClient) => Promise<boolean>): Promise<boolean> {
  try {
    return await withClient(port, condition);
  } catch {
    // Not listening yet or any more, or LOADING, or READONLY.
    return false;
  }
}

/** The node that serves as primary; waits for one. */
export async function primaryOf(nodes: readonly ClusterNode[], msMax = 60_000): Promise<ClusterNode> {
  const endMs = performance.now() + msMax;
  for (;;) {
    for (const node of nodes) if (await isServing(node.server.port)) return node;
    if (performance.now() > endMs) throw new Error(`no node was primary within ${msMax} ms`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
