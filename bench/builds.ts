import { rmSync } from "node:fs";
import { join, resolve } from "node:path";
import { parseArgs } from "node:util";

import { runRedisBenchmark } from "./load/redis-benchmark.js";
import { cpuBetween } from "./measure/process-stats.js";
import { median, ratioOfRounds } from "./measure/statistics.js";
import { figure, plainText } from "./report/tables.js";
import { fill, grantArgv, keepAliveArgv } from "./scenarios/commands.js";
import { killChildrenAtExit } from "./systems/children.js";
import { launchLeasehold } from "./systems/launch.js";
import type { ServerProcess } from "./systems/system.js";

/**
 * Two builds of Leasehold against each other, in alternation: is a change worth it?
 *
 *   node dist-dev/bench/builds.js OLD/dist/main.js NEW/dist/main.js --command keepalive -c 50 -P 16 --rounds 15
 *
 * Prints CPU time per operation and throughput of both and the ratio new : old, median over rounds with its range. `least` is the
 * cheapest round: on a machine that others use it is the one that was disturbed least, and the figure to compare.
 */

const LEASES = 1000;

interface Side {
  readonly server: ServerProcess;
  readonly cpuUs: number[];
  readonly mainThreadUs: number[];
  readonly perSecond: number[];
  requests: number;
}

function runDirectory(): string {
  return resolve("bench/results/tmp", `builds-${process.pid}`);
}

async function startSide(leaseholdMain: string, index: number): Promise<Side> {
  const directory = join(runDirectory(), `${index}`);
  const places = {
    leaseholdMain: resolve(leaseholdMain),
    diskDirectory: directory,
    tmpfsDirectory: directory,
    nodeFlags: [],
  };
  const server = await launchLeasehold(
    "leasehold",
    places,
    directory,
    async (client) => (await client.call("LEASE.PTTL", "nobody")) === -2,
  );
  await fill(server, LEASES);
  return { server, cpuUs: [], mainThreadUs: [], perSecond: [], requests: 2000 };
}

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      command: { type: "string", default: "keepalive" },
      connections: { type: "string", short: "c", default: "50" },
      pipeline: { type: "string", short: "P", default: "1" },
      rounds: { type: "string", default: "9" },
      seconds: { type: "string", default: "1" },
      // Instead of --seconds: so many requests per turn. On a busy machine the CPU time of a short turn is too little to read.
      requests: { type: "string" },
    },
  });
  const [connections, pipeline] = [Number(values.connections), Number(values.pipeline)];
  const sides: Side[] = [];
  killChildrenAtExit(() => undefined);
  process.on("exit", () => rmSync(runDirectory(), { recursive: true, force: true }));
  try {
    for (const [index, path] of positionals.entries()) sides.push(await startSide(path, index));
    // The first two rounds warm up and find the number of requests.
    for (let round = -2; round < Number(values.rounds); round++) {
      for (const side of sides) {
        const before = side.server.cpu();
        const argv = values.command === "grant" ? grantArgv(side.server) : keepAliveArgv(side.server);
        const idCount = values.command === "grant" ? 2_000_000_000 : LEASES;
        const { requests } = side;
        const run = await runRedisBenchmark(
          { port: side.server.port, connections, pipeline, idCount, requests, argv },
          60_000,
        );
        const cpu = cpuBetween(before, side.server.cpu());
        side.requests = Number(values.requests ?? run.opsPerSecond * Number(values.seconds));
        if (round < 0) continue;
        side.cpuUs.push((cpu.processMs * 1000) / run.requests);
        side.mainThreadUs.push((cpu.mainThreadMs * 1000) / run.requests);
        side.perSecond.push(run.opsPerSecond);
      }
    }
    print(sides);
  } finally {
    for (const { server } of sides) await server.discard();
  }
}

function print(sides: readonly Side[]): void {
  const [old, ...others] = sides;
  if (old === undefined) return;
  const ratio = (ours: readonly number[], theirs: readonly number[]): string => {
    const range = ratioOfRounds(ours, theirs);
    return `${range.median.toFixed(3)} (${figure(range.lowest)}-${figure(range.highest)})`;
  };
  const rows = sides.map((side, index) => [
    `build ${index + 1}`,
    median(side.cpuUs).toFixed(3),
    Math.min(...side.cpuUs).toFixed(3),
    median(side.mainThreadUs).toFixed(3),
    Math.round(median(side.perSecond)).toString(),
    ratio(side.cpuUs, old.cpuUs),
    ratio(side.perSecond, old.perSecond),
  ]);
  const head = ["", "CPU us/op", "least", "main thread", "per second", "CPU : build 1", "per second : build 1"];
  process.stdout.write(`${plainText([head, ...rows])}\n`);
  if (others.length === 0) process.stdout.write("one build only: nothing to compare\n");
}

await main();
process.exit(0);
