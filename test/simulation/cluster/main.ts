import { parseArgs } from "node:util";
import { CLUSTER_MUTATIONS, prepareClusterMutation, type ClusterMutationName } from "./cluster-mutations.js";
import {
  reportOfCluster,
  simulateCluster,
  simulateOnEtcd,
  type ClusterSimulationResult,
} from "./cluster-simulation.js";

/**
 * `npm run sim:cluster -- --seed N [--seeds COUNT] [--verbose] [--mutation NAME | --etcd]`
 *
 * Runs the seeds N, N+1, ...; without --seed it begins at a random one. Prints each seed that fails with its replay command, and a
 * summary. With --mutation the cluster has that deliberate bug, and the question is how soon it is found. With --etcd the real etcd
 * store runs over a simulated etcd. Exit code 1 when a seed failed (with a mutation: when none did).
 */

const USAGE = "npm run sim:cluster -- --seed N [--seeds COUNT] [--verbose] [--mutation NAME | --etcd]";

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      seed: { type: "string" },
      seeds: { type: "string", default: "1" },
      verbose: { type: "boolean", default: false },
      mutation: { type: "string" },
      etcd: { type: "boolean", default: false },
    },
  });
  const first = values.seed === undefined ? Math.floor(Math.random() * 2 ** 32) : Number(values.seed);
  const count = Number(values.seeds);
  if (!Number.isSafeInteger(first) || !Number.isSafeInteger(count) || count < 1) {
    console.log(`usage: ${USAGE}`);
    return 2;
  }
  const { mutation } = values;
  if (mutation !== undefined && !isMutation(mutation)) {
    console.log(`no mutation '${mutation}'; there are: ${Object.keys(CLUSTER_MUTATIONS).join(", ")}`);
    return 2;
  }
  const simulate = values.etcd ? simulateOnEtcd : simulateCluster;
  const run = mutation === undefined ? simulate : await prepareClusterMutation(mutation);
  const failed: ClusterSimulationResult[] = [];
  const sums = new Map<string, number>();
  for (let seed = first; seed < first + count; seed += 1) {
    const result = await run(seed, { verbose: values.verbose });
    for (const [name, value] of Object.entries(result.counts)) sums.set(name, (sums.get(name) ?? 0) + Number(value));
    if (values.verbose && result.failure === null) console.log(result.traceLines.join("\n"));
    if (result.failure === null) continue;
    failed.push(result);
    console.log(reportOfCluster(result, values.verbose ? Infinity : 30));
  }
  const summary = [...sums].map(([name, value]) => `${name} ${Math.round(value)}`).join(", ");
  console.log(`${count} seeds from ${first}: ${failed.length} failed (${summary})`);
  if (failed.length > 0) console.log(`failed seeds: ${failed.map((result) => result.seed).join(" ")}`);
  return failed.length > 0 === (mutation === undefined) ? 1 : 0;
}

function isMutation(name: string): name is ClusterMutationName {
  return Object.hasOwn(CLUSTER_MUTATIONS, name);
}

process.exitCode = await main();
