import type { ServerProcess } from "../systems/system.js";
import type { Bench } from "./bench.js";
import { fill, grantArgv, grantTarget } from "./commands.js";

/**
 * Grants with one key against SET NX PX of a Redis that syncs every write: both are on disk before they are answered. The
 * sets grow while they are measured, on both sides alike; nothing falls due or is removed in between.
 */

/** Above every id that redis-benchmark draws. */
const FIRST_ID = 10_000_000_000;
const IDS_PER_ROUND = 10_000_000;
const WARMUP_GRANTS = 20_000;

export async function grant(bench: Bench): Promise<void> {
  await bench.withServers(["leasehold", "redis-always"], async (servers) => {
    // At one connection a turn is too short for Node to compile what it runs.
    for (const server of servers) await fill(server, WARMUP_GRANTS, true);
    for (const connections of bench.options.quick ? [1, 50] : [1, 50, 500]) {
      await bench.compareByRedisBenchmark(
        { scenario: "grant", operation: "grant", leases: 0, connections, pipeline: 1 },
        servers.map((server) => ({ server, argv: grantArgv(server) })),
      );
    }
    await openLoop(bench, servers);
  });
}

/** Latencies on a fixed schedule, at 40 % of what the slower of the two took at 50 connections. */
async function openLoop(bench: Bench, servers: readonly ServerProcess[]): Promise<void> {
  const saturations = bench.cells
    .filter((cell) => cell.scenario === "grant" && cell.connections === 50)
    .map((cell) => cell.median.opsPerSecond);
  const ratePerSecond = Math.max(100, Math.floor((Math.min(...saturations) * 0.4) / 100) * 100);
  bench.say(`  open loop at ${ratePerSecond}/s`);
  await bench.compareByGenerator(
    { scenario: "grant", operation: "grant", leases: 0, connections: 50, pipeline: 1 },
    servers.map((server) => ({
      server,
      argv: grantArgv(server),
      job: (round) => ({
        kind: "open",
        target: grantTarget(server, FIRST_ID + round * IDS_PER_ROUND, true),
        connections: 50,
        ratePerSecond,
        warmupMs: 500,
        durationMs: bench.options.roundMs,
        drainMsMax: 10_000,
        slotMs: 0,
      }),
    })),
  );
}
