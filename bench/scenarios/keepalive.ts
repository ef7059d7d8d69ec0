import type { ScenarioName } from "../report/results.js";
import type { SingleSystemName } from "../systems/launch.js";
import type { ServerProcess, SystemName } from "../systems/system.js";
import type { Bench } from "./bench.js";
import { checkAlive, fill, keepAliveArgv, keepAliveTarget, warmUp } from "./commands.js";

/** Keep-alives: throughput and CPU time by redis-benchmark, latency by an open loop, over small and large sets of leases. */

const CONNECTIONS = 50;
const WARMUP_REQUESTS = 200_000;

/** How many leases the servers hold, one server set after the other. */
export function leaseCounts(bench: Bench): readonly number[] {
  return bench.options.quick ? [1000] : [1, 1000, 100_000];
}

async function overLeaseCounts(
  bench: Bench,
  names: readonly SingleSystemName[],
  measure: (leases: number, servers: readonly ServerProcess[]) => Promise<void>,
): Promise<void> {
  for (const leases of leaseCounts(bench)) {
    await bench.withServers(names, async (servers) => {
      for (const server of servers) {
        await fill(server, leases);
        await warmUp(server, leases, WARMUP_REQUESTS);
      }
      await measure(leases, servers);
      for (const server of servers) await checkAlive(server);
    });
  }
}

async function compare(
  bench: Bench,
  scenario: ScenarioName,
  servers: readonly ServerProcess[],
  leases: number,
  connections: number,
  pipeline: number,
): Promise<void> {
  const contenders = servers.map((server) => ({ server, argv: keepAliveArgv(server) }));
  await bench.compareByRedisBenchmark({ scenario, operation: "keep-alive", leases, connections, pipeline }, contenders);
}

/** KEEPALIVE against PEXPIRE of a Redis that writes nothing. */
export async function keepAlive(bench: Bench): Promise<void> {
  await overLeaseCounts(bench, ["leasehold", "redis-memory"], async (leases, servers) => {
    for (const pipeline of [1, 16, 100]) await compare(bench, "keepalive", servers, leases, CONNECTIONS, pipeline);
  });
}

/** KEEPALIVE against PEXPIRE of a Redis that syncs every write. */
export async function keepAliveDurable(bench: Bench): Promise<void> {
  await overLeaseCounts(bench, ["leasehold", "redis-always"], async (leases, servers) => {
    for (const connections of [1, 50]) await compare(bench, "keepalive-durable", servers, leases, connections, 1);
  });
}

/** KEEPALIVE with the data directory on disk against one in memory: they should not differ, since it writes nothing. */
export async function tmpfs(bench: Bench): Promise<void> {
  await bench.withServers(["leasehold", "leasehold-tmpfs"], async (servers) => {
    for (const server of servers) {
      await fill(server, 1000);
      await warmUp(server, 1000, WARMUP_REQUESTS);
    }
    for (const pipeline of [1, 16]) await compare(bench, "tmpfs", servers, 1000, CONNECTIONS, pipeline);
  });
}

/** A rate that no system of the comparison is short of breath at, and the generator can keep too. */
const RATE_PER_SECOND_MAX = 20_000;
const LOAD_SHARE = 0.4;

/**
 * Latencies on a fixed schedule of arrivals, the same for all systems: a share of what the slowest of the two that hold
 * keep-alives in memory can take. Redis with appendfsync always gets the same share of its own, much lower, saturation.
 */
export async function latency(bench: Bench): Promise<void> {
  await overLeaseCounts(bench, ["leasehold", "redis-memory", "redis-always"], async (leases, servers) => {
    const rates = new Map<SystemName, number>();
    for (const server of servers) rates.set(server.name, await saturation(bench, server, leases));
    const shared = rateFrom(Math.min(rates.get("leasehold") ?? 0, rates.get("redis-memory") ?? 0));
    const slow = rateFrom(Math.min(shared, rates.get("redis-always") ?? 0));
    const fast = servers.filter((server) => server.name !== "redis-always");
    await openLoop(bench, fast, leases, shared);
    // The third one cannot keep up with that rate: all three at one that it can.
    await openLoop(bench, servers, leases, slow);
  });
}

function rateFrom(saturationPerSecond: number): number {
  const rate = Math.min(RATE_PER_SECOND_MAX, saturationPerSecond * LOAD_SHARE);
  return Math.max(100, Math.floor(rate / 100) * 100);
}

async function saturation(bench: Bench, server: ServerProcess, leases: number): Promise<number> {
  return bench.saturation({ server, argv: keepAliveArgv(server) }, leases, CONNECTIONS);
}

async function openLoop(
  bench: Bench,
  servers: readonly ServerProcess[],
  leases: number,
  ratePerSecond: number,
): Promise<void> {
  bench.say(`  open loop at ${ratePerSecond}/s`);
  await bench.compareByGenerator(
    { scenario: "latency", operation: "keep-alive", leases, connections: CONNECTIONS, pipeline: 1 },
    servers.map((server) => ({
      server,
      argv: keepAliveArgv(server),
      job: () => ({
        kind: "open",
        target: keepAliveTarget(server, leases),
        connections: CONNECTIONS,
        ratePerSecond,
        warmupMs: 500,
        durationMs: bench.options.roundMs,
        drainMsMax: 10_000,
        slotMs: 0,
      }),
    })),
  );
}
