import { describe, expect, test } from "vitest";
import { MUTATIONS, simulateMutation, type Mutation, type MutationName } from "./mutations.js";
import { reportOf } from "./simulation.js";
import { Violation } from "./violation.js";

/**
 * Each deliberate bug is found within some seeds, and by a rule that is about it. More: `npm run sim -- --mutation NAME
 * --seeds 1000`.
 */

/** Twice what the rarest one took. */
const SEEDS_MAX = 60;

/** What has to be stood is tried with as many. */
const HARMLESS_SEEDS = 15;

const entries = Object.entries(MUTATIONS) as [MutationName, Mutation][];

describe("a deliberate bug is found", () => {
  for (const [name, { bug, foundBy }] of entries) {
    if (foundBy === "harmless") continue;
    test(`${name}: ${bug}`, () => {
      for (let seed = 1; seed <= SEEDS_MAX; seed += 1) {
        const { failure } = simulateMutation(name, seed);
        if (failure === null) continue;
        expect(failure).toBeInstanceOf(Violation);
        expect(foundBy, failure.message).toContain((failure as Violation).rule);
        return;
      }
      expect.fail(`not found in ${SEEDS_MAX} seeds`);
    });
  }
});

describe("what the server has to stand is no finding", () => {
  for (const [name, { bug, foundBy }] of entries) {
    if (foundBy !== "harmless") continue;
    test(`${name}: ${bug}`, () => {
      for (let seed = 1; seed <= HARMLESS_SEEDS; seed += 1) {
        const result = simulateMutation(name, seed);
        if (result.failure !== null) expect.fail(reportOf(result));
      }
    });
  }
});
