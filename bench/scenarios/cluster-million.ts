import { withClient } from "../load/resp-connection.js";
import { endpointsOf, isServing, launchEtcd, launchNode, type ClusterNode } from "../systems/cluster.js";
import type { ServerProcess } from "../systems/system.js";
import type { Bench } from "./bench.js";
import { checkAlive, fill } from "./commands.js";

/**
 * A million leases on one local etcd: how long a standby takes from the moment at which the primary is asked to end until it
 * answers a keep-alive of one of them, and what memory that takes at most. The time holds the hand-over as well as the load.
 */

const QUOTA_BYTES = 8 * 2 ** 30;
const FILL_MS_MAX = 600_000;
const SERVING_MS_MAX = 120_000;
const SETTLE_MS = 5000;
const MIB = 2 ** 20;

export async function millionOnEtcd(bench: Bench): Promise<void> {
  const { places, quick } = bench.options;
  const count = quick ? 20_000 : 1_000_000;
  const label = `${count.toLocaleString("en")} leases on etcd`;
  const figure = (name: string, text: string, value: number, unit: string): void =>
    bench.figure("cluster", `million/${name}`, `${label}: ${text}`, value, unit);
  const servers: ServerProcess[] = [];
  try {
    const members = await launchEtcd(places, { members: 1, quotaBytes: QUOTA_BYTES });
    servers.push(...members);
    const plan = { endpoints: endpointsOf(members), quotaBytes: QUOTA_BYTES };
    const former = await launchNode(places, plan);
    servers.push(former.server);
    figure("fill-rate", "granted", count / (await fill(former.server, count, false, FILL_MS_MAX)), "per second");

    const successor = await launchNode(places, plan);
    servers.push(successor.server);
    await sleep(quick ? 500 : 2000);
    const emptyBytes = successor.server.residentBytes();
    const cpuBefore = servers.map((server) => server.cpu().processMs);
    const startedMs = performance.now();
    former.server.signal("SIGTERM");
    await untilServing(successor);
    figure("load", "from SIGTERM of the primary to the first keep-alive", (performance.now() - startedMs) / 1000, "s");
    const cpuSeconds = (server: ServerProcess): number =>
      (server.cpu().processMs - (cpuBefore[servers.indexOf(server)] ?? Number.NaN)) / 1000;
    figure("load-cpu", "CPU time that this took, the new primary", cpuSeconds(successor.server), "s");
    for (const etcd of members) figure("load-cpu-etcd", "CPU time that this took, etcd", cpuSeconds(etcd), "s");
    const peakBytes = successor.server.peakResidentBytes();
    await former.server.stop();
    await sleep(quick ? 500 : SETTLE_MS);
    const afterBytes = successor.server.residentBytes();
    figure("empty-memory", "resident memory of the standby before", emptyBytes / MIB, "MiB");
    figure("peak-memory", "resident memory while loading, at most", peakBytes / MIB, "MiB");
    figure("memory", "resident memory five seconds after", afterBytes / MIB, "MiB");
    figure("peak-by-after", "the most while loading, by that after", peakBytes / afterBytes, "x");
    figure("etcd-memory", "resident memory of etcd", (members[0]?.residentBytes() ?? Number.NaN) / MIB, "MiB");
    await checkAll(successor, count);
  } finally {
    for (const server of servers.toReversed()) await bench.retire(server);
  }
}

async function untilServing(node: ClusterNode): Promise<void> {
  const endMs = performance.now() + SERVING_MS_MAX;
  while (!(await isServing(node.server.port))) {
    if (performance.now() > endMs) throw new Error(`the standby did not serve within ${SERVING_MS_MAX} ms`);
    await sleep(10);
  }
  await withClient(node.server.port, async (client) => client.call("LEASE.KEEPALIVE", "lease:000000000000"));
}

async function checkAll(node: ClusterNode, count: number): Promise<void> {
  await checkAlive(node.server);
  const info = await withClient(node.server.port, async (client) => client.call("INFO", "leases"));
  const leases = Number(/^leases:(\d+)/m.exec(String(info))?.[1]);
  if (leases !== count) throw new Error(`${leases} of ${count} leases were loaded`);
}

async function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
