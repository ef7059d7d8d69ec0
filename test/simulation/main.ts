import { parseArgs } from "node:util";
import { MUTATIONS, simulateMutation, type MutationName } from "./mutations.js";
import { reportOf, simulate, type SimulationResult } from "./simulation.js";

/**
 * `npm run sim -- --seed N [--seeds COUNT] [--verbose] [--mutation NAME]`
 *
 * Runs the seeds N, N+1, ...; without --seed it begins at a random one. Prints each seed that fails with its replay command, and a
 * summary. With --mutation the server has that deliberate bug, and the question is how soon it is found. Exit code 1 when
 * a seed failed (with a mutation: when none did).
 */

const USAGE = "npm run sim -- --seed N [--seeds COUNT] [--verbose] [--mutation NAME]";

function main(): number {
  const { values } = parseArgs({
    options: {
      seed: { type: "string" },
      seeds: { type: "string", default: "1" },
      verbose: { type: "boolean", default: false },
      mutation: { type: "string" },
    },
  });
  const first = values.seed === undefined ? Math.floor(Math.random() * 2 ** 32) : Number(values.seed);
  const count = Number(values.seeds);
  if (!Number.isSafeInteger(first) || !Number.isSafeInteger(count) || count < 1) {
    console.log(`usage: ${USAGE}`);
    return 2;
  }
  const mutation = values.mutation;
  if (mutation !== undefined && !isMutation(mutation)) {
    console.log(`no mutation '${mutation}'; there are: ${Object.keys(MUTATIONS).join(", ")}`);
    return 2;
  }
  const failed: SimulationResult[] = [];
  const sums = new Map<string, number>();
  for (let seed = first; seed < first + count; seed += 1) {
    const options = { verbose: values.verbose };
    const result = mutation === undefined ? simulate(seed, options) : simulateMutation(mutation, seed, options);
    const { crashesAt, ...counts } = result.counts;
    for (const [name, value] of [...Object.entries(counts), ...Object.entries(crashesAt)]) {
      sums.set(name, (sums.get(name) ?? 0) + value);
    }
    if (values.verbose && result.failure === null) console.log(result.traceLines.join("\n"));
    if (result.failure === null) continue;
    failed.push(result);
    console.log(reportOf(result, values.verbose ? Infinity : 30));
  }
  const summary = [...sums].map(([name, value]) => `${name} ${value}`).join(", ");
  console.log(`${count} seeds from ${first}: ${failed.length} failed (${summary})`);
  if (failed.length > 0) console.log(`failed seeds: ${failed.map((result) => result.seed).join(" ")}`);
  return failed.length > 0 === (mutation === undefined) ? 1 : 0;
}

function isMutation(name: string): name is MutationName {
  return Object.hasOwn(MUTATIONS, name);
}

process.exitCode = main();
