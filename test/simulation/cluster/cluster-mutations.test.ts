import { describe, expect, test } from "vitest";
import {
  CLUSTER_MUTATIONS,
  prepareClusterMutation,
  type ClusterMutation,
  type ClusterMutationName,
} from "./cluster-mutations.js";
import { ClusterViolation } from "./rules.js";

/**
 * Each deliberate bug of the role protocol is found within some seeds, and by a rule that is about it. More: `npm run sim:cluster --
 * --mutation NAME --seeds 1000`.
 */

/** Twice what the rarest one took. */
const SEEDS_MAX = 120;

/** On a machine that has much else to do. */
const TEST_MS_MAX = 300_000;

describe("a deliberate bug of the role protocol is found", () => {
  for (const [name, { bug, foundBy }] of Object.entries(CLUSTER_MUTATIONS) as [
    ClusterMutationName,
    ClusterMutation,
  ][]) {
    test(
      `${name}: ${bug}`,
      async () => {
        const run = await prepareClusterMutation(name);
        for (let seed = 1; seed <= SEEDS_MAX; seed += 1) {
          const { failure } = run(seed);
          if (failure === null) continue;
          expect(failure).toBeInstanceOf(ClusterViolation);
          expect(foundBy, failure.message).toContain((failure as ClusterViolation).rule);
          return;
        }
        expect.fail(`not found in ${SEEDS_MAX} seeds`);
      },
      TEST_MS_MAX,
    );
  }
});
