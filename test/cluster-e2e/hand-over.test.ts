import { afterAll, beforeAll, expect, test } from "vitest";
import { Cluster, LONG_ROLE, ROLE_MS } from "../support/cluster.js";
import { ClusterRun } from "../support/cluster-run.js";
import { EtcdCluster } from "../support/etcd.js";
import { nowMs, until } from "../support/poll.js";
import { RespConnection } from "../support/resp-client.js";
import { useServers } from "../support/server.js";
import { describeWith } from "../support/tools.js";

/** The primary gives its role up because it was asked to: nobody waits for it to run out. */

/** So long that nobody can have waited for its end. */
const UNHURRIED = { args: LONG_ROLE };

describeWith(["etcd"], "hand-over", () => {
  const servers = useServers();
  let etcd: EtcdCluster;

  beforeAll(async () => {
    etcd = await EtcdCluster.start();
  });
  afterAll(() => etcd.stop());

  test("by FAILOVER, again and again under load", async () => {
    const cluster = await Cluster.start(servers, etcd, 3, UNHURRIED);
    const run = new ClusterRun(cluster);
    for (let round = 0; round < 4; round++) {
      const primary = await run.load(150);
      const operator = await RespConnection.connect(primary.port);
      const askedMs = nowMs();
      await operator.call("FAILOVER");
      operator.destroy();
      expect(await run.servedByAnother(primary, askedMs)).toBeLessThan(30_000);
    }
    await run.load(100);
    await run.judge();
  });

  test("by SIGTERM: a rolling restart of all nodes under load, the primary last", async () => {
    const cluster = await Cluster.start(servers, etcd, 3, UNHURRIED);
    const run = new ClusterRun(cluster);
    const primary = await run.load(100);
    const inOrder = [...cluster.nodes.filter((node) => node !== primary), primary];
    for (const node of inOrder) {
      await run.load(150);
      const stoppedMs = nowMs();
      expect(await node.server.stop()).toEqual({ code: 0, signal: null });
      if (node === primary) expect(await run.servedByAnother(node, stoppedMs)).toBeLessThan(30_000);
      await cluster.restart(node, UNHURRIED);
      await until("the node to see the primary", async () => {
        const fields = await node.replication();
        return fields.get("leasehold_role") === "primary" || fields.get("master_link_status") === "up";
      });
    }
    // Each release was told: no node ever had to wait for the end of a role, and there was one switch only.
    expect(new Set((await cluster.fences()).map(({ port }) => port)).size).toBe(2);
    await run.load(100);
    await run.judge();
  });

  test("a node that is no candidate takes no role, even when nobody else is there", async () => {
    const cluster = await Cluster.start(servers, etcd, 1);
    const [first] = cluster.nodes;
    if (first === undefined) throw new Error("a cluster of one");
    const bystander = await cluster.add({ args: ["--candidate=no"] });
    await first.server.stop();
    const endedMs = nowMs();
    await until("the bystander to have waited twice as long as a candidate would", async () => {
      expect(await bystander.isPrimary()).toBe(false);
      return nowMs() - endedMs > 2 * ROLE_MS;
    });
    expect((await cluster.fences()).filter(({ port }) => port !== first.port)).toEqual([]);
  });
});
