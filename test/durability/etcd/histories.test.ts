import * as fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { EtcdStore } from "#src/durability/etcd/etcd-store.js";
import type { Op } from "#src/engine/op.js";
import { EtcdCluster } from "../../support/etcd.js";
import { describeWith } from "../../support/tools.js";
import { decodeAll, leasePut } from "../ops.js";
import { acquire, close, commit, loadPages } from "../real.js";
import { type Fate, FlakyClient } from "./flaky-client.js";
import { etcdClient, etcdStore, freshCluster } from "./real-etcd.js";

/**
 * Two nodes take the role from each other and write, while transactions get lost on either way. Every batch writes a lease of its own, and one
 * lease that all of them write.
 */
interface Step {
  readonly node: 0 | 1;
  readonly action: "acquire" | "commit" | "beat";
  readonly leases: number;
  /** By the number of the transaction within the step. */
  readonly fates: readonly Fate[];
}

const fate = fc.constantFrom<Fate>("pass", "pass", "pass", "lose-request", "lose-reply");
const step: fc.Arbitrary<Step> = fc.record({
  node: fc.constantFrom(0 as const, 1 as const),
  action: fc.constantFrom("acquire" as const, "commit" as const, "commit" as const, "beat" as const),
  leases: fc.constantFrom(1, 1, 12),
  fates: fc.array(fate, { maxLength: 4 }),
});

describeWith(["etcd"], "two nodes and lost transactions", () => {
  let etcd: EtcdCluster;

  beforeAll(async () => {
    etcd = await EtcdCluster.start();
  });

  afterAll(() => etcd.stop());

  const batchOf = (number: number, leases: number): Op[] => [
    ...Array.from({ length: leases }, (_, index) => leasePut(`batch ${number}, lease ${index}`)),
    leasePut("shared", { ttlMs: number }),
  ];

  /** Plays the steps and returns the numbers of the batches: acknowledged, and with an unknown outcome. */
  async function play(steps: readonly Step[], cluster: string) {
    const nodes = [0, 1].map(() => {
      const client = new FlakyClient(etcdClient(etcd.endpoints));
      const limits = { txnOperationsMax: 5, txnBytesMax: 1_200, resolveMsMax: 20_000 };
      return { client, store: etcdStore(client, cluster, limits), hasRole: false };
    });
    const acknowledged: number[] = [];
    const unknown: number[] = [];
    const sizes = new Map<number, number>();
    let number = 0;
    for (const { node: index, action, leases, fates } of steps) {
      const node = nodes[index];
      const other = nodes[1 - index];
      if (node === undefined || other === undefined) throw new Error("there are two nodes");
      const writesBefore = node.client.writes;
      node.client.fate = (at) => fates[at - writesBefore] ?? "pass";
      if (action === "acquire") {
        await acquire(node.store);
        node.hasRole = true;
        other.hasRole = false;
      } else if (node.hasRole && action === "commit") {
        number += 1;
        sizes.set(number, leases);
        await commit(node.store, batchOf(number, leases), number).then(
          () => acknowledged.push(number),
          () => unknown.push(number),
        );
      } else if (node.hasRole) {
        await new Promise<void>((resolve) => node.store.beat("serving", () => resolve()));
      } else if (action === "commit" && node.store.sharedReport().fenceRevision > 0) {
        // It had the role once: nothing of this may be there.
        await expect(commit(node.store, [leasePut("forbidden")], 1)).rejects.toMatchObject({ code: "fenced" });
      }
    }
    const stores: EtcdStore[] = nodes.map((node) => node.store);
    for (const store of stores) await close(store);
    return { acknowledged, unknown, sizes };
  }

  test("lose nothing that was acknowledged, and show nothing that was refused", async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 4, maxLength: 14 }), async (steps) => {
        const cluster = freshCluster();
        const { acknowledged, unknown, sizes } = await play(steps, cluster);
        // Lost transactions alone never leave an outcome unknown: only time could.
        expect(unknown).toEqual([]);
        const reader = etcdStore(etcdClient(etcd.endpoints), cluster);
        await acquire(reader);
        const { ops } = decodeAll(await loadPages(reader));
        await close(reader);
        const expected = acknowledged.flatMap((number) => batchOf(number, sizes.get(number) ?? 0).slice(0, -1));
        const last = acknowledged.at(-1);
        if (last !== undefined) expected.push(leasePut("shared", { ttlMs: last }));
        const idOf = (op: Op): string => (op.kind === "lease-put" ? op.id : "");
        expect(ops).toEqual(expected.sort((a, b) => (idOf(a) < idOf(b) ? -1 : 1)));
      }),
      { numRuns: 25 },
    );
  });
});
