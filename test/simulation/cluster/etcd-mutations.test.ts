import { describe, expect, test } from "vitest";
import { ETCD_MUTATIONS, prepareEtcdMutation, type EtcdMutation, type EtcdMutationName } from "./etcd-mutations.js";
import { ClusterViolation } from "./rules.js";

/** Each deliberate bug of the etcd store is found within some seeds, and by a rule that is about it. */

/** Twice what the rarest one took. */
const SEEDS_MAX = 60;

/** On a machine that has much else to do. */
const TEST_MS_MAX = 300_000;

describe("a deliberate bug of the etcd store is found", () => {
  for (const [name, { bug, foundBy }] of Object.entries(ETCD_MUTATIONS) as [EtcdMutationName, EtcdMutation][]) {
    test(
      `${name}: ${bug}`,
      async () => {
        const run = await prepareEtcdMutation(name);
        for (let seed = 1; seed <= SEEDS_MAX; seed += 1) {
          const { failure } = await run(seed);
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
