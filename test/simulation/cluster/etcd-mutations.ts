import type { EtcdStore, EtcdStoreOptions } from "#src/durability/etcd/etcd-store.js";
import { withLateRequests } from "./cluster-mutations.js";
import { simulateOnEtcd, type ClusterSimulationResult } from "./cluster-simulation.js";
import type { ClusterSwarm } from "./cluster-swarm.js";
import { mutantUrl, type Edit } from "./mutant-module.js";
import type { ClusterRule } from "./rules.js";

/** Deliberate bugs of the real etcd store, in copies of its modules. */

export interface EtcdMutation {
  readonly bug: string;
  readonly foundBy: readonly ClusterRule[];
  readonly module: "tenure" | "journal" | "take-over";
  readonly edits: readonly Edit[];
  readonly adjust: (swarm: ClusterSwarm) => ClusterSwarm;
}

/** Small transactions, so that most batches go through the journal, and processes that are killed. */
const withJournal = (swarm: ClusterSwarm): ClusterSwarm => ({
  ...swarm,
  txnOperationsMax: 4,
  link: { ...swarm.link, delayMsMean: 40 },
  workload: { ...swarm.workload, clients: 5, thinkMsMean: 50 },
  faults: { ...swarm.faults, crashMs: swarm.times.roleMs / 2, downMsMean: 50 },
});

/** Standbys that stand still for longer than the role lasts, and find the view of then when they wake. */
const withSleepyStandbys = (swarm: ClusterSwarm): ClusterSwarm => {
  const { roleMs } = swarm.times;
  const calm = { crashMs: Infinity, partitionMs: Infinity, outageMs: Infinity, suspendMs: Infinity };
  const faults = { ...calm, pauseMs: roleMs / 2, pauseMsMax: 2 * roleMs };
  return {
    ...swarm,
    link: { ...swarm.link, loseRequestChance: 0, loseAnswerChance: 0, lateRequestChance: 0 },
    faults: { ...swarm.faults, ...faults },
  };
};

export const ETCD_MUTATIONS = {
  "no-fence": {
    bug: "transactions are not guarded by the fence",
    foundBy: ["S1-one-primary", "S2-one-history", "S2-kept", "S2-ended", "S3-early-end", "S4-exclusion", "S4-tokens"],
    module: "tenure",
    edits: [
      [
        "guards: [{ key: keys.fence, modRevision: fenceRevision }], success: operations",
        "guards: [], success: operations",
      ],
    ],
    adjust: withLateRequests,
  },
  "unknown-is-repeated": {
    bug: "a transaction without an answer is sent again under the same fence",
    foundBy: ["S2-one-history", "S2-ended", "S4-exclusion", "S4-tokens"],
    module: "tenure",
    edits: [["if (this.#fenceRevision !== fenceRevision) return; this.#resolving", "return; this.#resolving"]],
    adjust: withLateRequests,
  },
  "take-over-does-not-look-at-beats": {
    bug: "a take-over is guarded by the fence alone",
    foundBy: ["S1-one-primary", "liveness"],
    module: "take-over",
    edits: [["guards.push({ key: keys.beat, modRevision: view.beat?.modRevision ?? 0 });", ";"]],
    adjust: withSleepyStandbys,
  },
  "journal-is-thrown-away": {
    bug: "a take-over drops a batch that was decided and half applied",
    foundBy: ["S2-one-history", "S2-kept", "S3-early-end", "S4-exclusion"],
    module: "journal",
    edits: [["await this.#apply(await this.#plan(batch));", ""]],
    adjust: withJournal,
  },
} as const satisfies Readonly<Record<string, EtcdMutation>>;

export type EtcdMutationName = keyof typeof ETCD_MUTATIONS;

type StoreClass = new (options: EtcdStoreOptions) => EtcdStore;

const HOME = "#src/durability/etcd";

/** Prepares a mutation; what comes back runs one seed with it. */
export async function prepareEtcdMutation(
  name: EtcdMutationName,
): Promise<(seed: number) => Promise<ClusterSimulationResult>> {
  const { module, edits, adjust }: EtcdMutation = ETCD_MUTATIONS[name];
  const mutants: Record<string, string> = {};
  mutants[`${HOME}/${module}.js`] = mutantUrl(`${HOME}/${module}.js`, edits);
  if (module !== "take-over") mutants[`${HOME}/take-over.js`] = mutantUrl(`${HOME}/take-over.js`, [], mutants);
  const { EtcdStore: Store } = (await import(mutantUrl(`${HOME}/etcd-store.js`, [], mutants))) as {
    readonly EtcdStore: StoreClass;
  };
  return (seed) => simulateOnEtcd(seed, { Store, adjust });
}
