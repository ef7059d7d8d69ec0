import { afterEach, expect, test } from "vitest";
import type { EtcdStore, EtcdStoreOptions } from "#src/durability/etcd/etcd-store.js";
import { EtcdCluster } from "../../support/etcd.js";
import { until } from "../../support/poll.js";
import { describeWith } from "../../support/tools.js";
import { decodeAll, leasePut } from "../ops.js";
import { acquire, close, commit, loadPages } from "../real.js";
import { etcdClient, etcdStore, freshCluster } from "./real-etcd.js";

describeWith(["etcd"], "a store on an etcd whose members fail", () => {
  let etcd: EtcdCluster | null = null;

  afterEach(async () => {
    await etcd?.stop();
    etcd = null;
  });

  const start = async (members: number): Promise<EtcdCluster> => {
    etcd = await EtcdCluster.start({ members });
    return etcd;
  };

  const open = (endpoints: readonly string[], cluster: string, change: Partial<EtcdStoreOptions> = {}): EtcdStore =>
    etcdStore(etcdClient(endpoints, { requestTimeoutMs: 1_000 }), cluster, { resolveMsMax: 30_000, ...change });

  const lease = (index: number) => leasePut(`lease-${String(index).padStart(3, "0")}`);

  /** Commits one lease after the other, does something in the middle, and checks that all are there for the next primary. */
  async function commitsSurvive(store: EtcdStore, cluster: string, disturb: () => Promise<void>): Promise<void> {
    await acquire(store);
    const leases = Array.from({ length: 60 }, (_, index) => lease(index));
    let disturbed: Promise<void> = Promise.resolve();
    for (const [index, put] of leases.entries()) {
      if (index === 20) disturbed = disturb();
      await commit(store, [put], index + 1);
    }
    await disturbed;
    await close(store);
    const next = open(etcd?.endpoints ?? [], cluster);
    await acquire(next);
    expect(decodeAll(await loadPages(next))).toEqual({ ops: leases, revision: leases.length });
    await close(next);
  }

  test("loses nothing when the leader is killed among commits", async () => {
    const { endpoints } = await start(3);
    const cluster = freshCluster();
    await commitsSurvive(open(endpoints, cluster), cluster, async () => {
      const leader = await etcd?.leader();
      await leader?.kill();
      leader?.start();
    });
  });

  test("loses nothing when the leader stands still and comes back", async () => {
    const { endpoints } = await start(3);
    const cluster = freshCluster();
    const leader = await etcd?.leader();
    // The store's first endpoint is the one that stops.
    const order = [leader?.endpoint ?? "", ...endpoints.filter((endpoint) => endpoint !== leader?.endpoint)];
    const store = open(order, cluster);
    await commitsSurvive(store, cluster, async () => {
      leader?.signal("SIGSTOP");
      await until("the store to go elsewhere", () => store.sharedReport().endpoint !== leader?.endpoint);
      leader?.signal("SIGCONT");
    });
    expect(store.sharedReport().fenceBumps).toBeGreaterThanOrEqual(1);
  });

  test("goes on over the restart of its only member", async () => {
    const { endpoints, members } = await start(1);
    const cluster = freshCluster();
    await commitsSurvive(open(endpoints, cluster), cluster, async () => {
      await members[0]?.kill();
      members[0]?.start();
    });
  });

  test("does not mind endpoints that are down", async () => {
    const { endpoints, members } = await start(3);
    await members[0]?.kill();
    await etcd?.untilHealthy(members.slice(1));
    const cluster = freshCluster();
    const store = open(endpoints, cluster);
    await acquire(store);
    await commit(store, [lease(1)], 1);
    expect(decodeAll(await loadPages(store)).ops).toEqual([lease(1)]);
    await close(store);
  });

  test("fails a write without a quorum, and can take the role again when there is one", async () => {
    const { endpoints, members } = await start(3);
    const cluster = freshCluster();
    const store = open(endpoints, cluster, { resolveMsMax: 300 });
    await acquire(store);
    await commit(store, [lease(1)], 1);
    await members[1]?.kill();
    await members[2]?.kill();
    await expect(commit(store, [lease(2)], 2)).rejects.toMatchObject({ code: "write-failed" });
    await expect(acquire(store)).rejects.toMatchObject({ code: "unusable" });
    members[1]?.start();
    members[2]?.start();
    await etcd?.untilHealthy();
    await until("the role to be taken again", () =>
      acquire(store).then(
        () => true,
        () => false,
      ),
    );
    const { ops, revision } = decodeAll(await loadPages(store));
    // What failed may have been done or not; what was acknowledged is there.
    if (revision === 2) expect(ops).toEqual([lease(1), lease(2)]);
    else expect({ ops, revision }).toEqual({ ops: [lease(1)], revision: 1 });
    await commit(store, [lease(3)], 3);
    await close(store);
  });
});
