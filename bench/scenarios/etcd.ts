import type { ServerProcess } from "../systems/system.js";
import type { Bench } from "./bench.js";
import { fill, grantTarget, keepAliveTarget } from "./commands.js";
import { leaseCounts } from "./keepalive.js";

/**
 * Against etcd, by CPU time per operation: its gRPC client in Node is slower than etcd itself, so throughput would say more
 * about the client. Same generator, same number of connections, one request under way on each. Keep-alives go over one stream per connection, as
 * etcd's own clients do it; grants are grants without keys (in etcd a key would be a second request).
 */

const CONNECTIONS = 50;
const FIRST_ID = 20_000_000_000;
const IDS_PER_ROUND = 10_000_000;

export async function etcd(bench: Bench): Promise<void> {
  if (!bench.options.hasEtcd) {
    bench.note("etcd is not installed: not compared");
    return;
  }
  for (const leases of leaseCounts(bench)) {
    await bench.withServers(["leasehold", "etcd"], async (servers) => {
      for (const server of servers) {
        const seconds = await fill(server, leases);
        if (leases >= 10_000) bench.say(`  ${server.name} filled with ${leases} leases in ${seconds.toFixed(1)} s`);
      }
      await keepAlives(bench, servers, leases);
    });
  }
  await bench.withServers(["leasehold", "etcd"], async (servers) => grants(bench, servers));
}

async function keepAlives(bench: Bench, servers: readonly ServerProcess[], leases: number): Promise<void> {
  await bench.compareByGenerator(
    { scenario: "etcd", operation: "keep-alive", leases, connections: CONNECTIONS, pipeline: 1 },
    servers.map((server) => ({
      server,
      argv: server.name === "etcd" ? ["LeaseKeepAlive"] : ["LEASE.KEEPALIVE", "id"],
      job: () => ({
        kind: "closed",
        target: keepAliveTarget(server, leases),
        connections: CONNECTIONS,
        depth: 1,
        warmupMs: 500,
        durationMs: bench.options.roundMs,
        requestsMax: Number.MAX_SAFE_INTEGER,
      }),
    })),
  );
}

async function grants(bench: Bench, servers: readonly ServerProcess[]): Promise<void> {
  await bench.compareByGenerator(
    { scenario: "etcd", operation: "grant", leases: 0, connections: CONNECTIONS, pipeline: 1 },
    servers.map((server) => ({
      server,
      argv: server.name === "etcd" ? ["LeaseGrant"] : ["LEASE.GRANT", "id", "PX", "ms"],
      job: (round) => ({
        kind: "closed",
        target: grantTarget(server, FIRST_ID + round * IDS_PER_ROUND, false),
        connections: CONNECTIONS,
        depth: 1,
        warmupMs: 500,
        durationMs: bench.options.roundMs,
        requestsMax: IDS_PER_ROUND,
      }),
    })),
  );
}
