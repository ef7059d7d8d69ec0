import type { ServerProcess } from "../systems/system.js";
import type { Bench } from "./bench.js";
import { fill, grantTarget, keepAliveTarget } from "./commands.js";
import { leaseCounts } from "./keepalive.js";

/**
 * Against etcd, by CPU time per operation: the gRPC client in Node that carries keep-alives is slower than etcd itself, so
 * throughput would say more about the client. Same generator, same shape of load. etcd, too, does several requests more cheaply at once than one by one,
 * so there are two shapes: 50 connections with one request under way on each, and 8 connections with 32 (etcd's calls side by side in
 * one HTTP/2 connection, Leasehold's in a pipeline). Keep-alives go over one stream per connection, as etcd's own clients do
 * it; grants are grants without keys (in etcd a key would be a second request).
 */

interface Shape {
  readonly connections: number;
  readonly depth: number;
}

const ONE_BY_ONE: Shape = { connections: 50, depth: 1 };
const MANY_AT_ONCE: Shape = { connections: 8, depth: 32 };

const FIRST_ID = 20_000_000_000;
const IDS_PER_ROUND = 10_000_000;
/** The gRPC client needs some thousands of calls until it is compiled. */
const WARMUP_MS = 2000;
const ROUNDS_MAX = 3;

export async function etcd(bench: Bench): Promise<void> {
  for (const leases of leaseCounts(bench)) {
    await bench.withServers(["leasehold", "etcd"], async (servers) => {
      for (const server of servers) {
        const seconds = await fill(server, leases);
        if (leases >= 10_000) bench.say(`  ${server.name} filled with ${leases} leases in ${seconds.toFixed(1)} s`);
      }
      await compare(bench, servers, ONE_BY_ONE, leases);
      if (leases === 1000) await compare(bench, servers, MANY_AT_ONCE, leases);
    });
  }
  await bench.withServers(["leasehold", "etcd"], async (servers) => {
    await compare(bench, servers, ONE_BY_ONE, 0);
    await compare(bench, servers, MANY_AT_ONCE, 0);
  });
}

/** `leases`: renew one of so many; 0: grant new ones. */
async function compare(bench: Bench, servers: readonly ServerProcess[], shape: Shape, leases: number): Promise<void> {
  const operation = leases === 0 ? "grant" : "keep-alive";
  await bench.compareByGenerator(
    { scenario: "etcd", operation, leases, connections: shape.connections, pipeline: shape.depth },
    servers.map((server) => ({
      server,
      argv: commandOf(server, operation),
      job: (round) => ({
        kind: "closed",
        target:
          operation === "grant" ? grantTarget(server, firstId(shape, round), false) : keepAliveTarget(server, leases),
        ...shape,
        warmupMs: WARMUP_MS,
        durationMs: bench.options.roundMs,
        requestsMax: IDS_PER_ROUND,
      }),
    })),
    ROUNDS_MAX,
  );
}

/** No two rounds of one server grant the same id. */
function firstId(shape: Shape, round: number): number {
  return FIRST_ID + (shape.depth * 1000 + round) * IDS_PER_ROUND;
}

function commandOf(server: ServerProcess, operation: "grant" | "keep-alive"): string[] {
  if (server.name === "etcd") return [operation === "grant" ? "LeaseGrant" : "LeaseKeepAlive"];
  return operation === "grant" ? ["LEASE.GRANT", "id", "PX", "ms"] : ["LEASE.KEEPALIVE", "id"];
}
