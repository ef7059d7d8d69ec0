import { afterAll, beforeAll, expect, test } from "vitest";
import { Cluster, type ClusterNode, ROLE_MS } from "../support/cluster.js";
import { ClusterRun } from "../support/cluster-run.js";
import { EtcdCluster } from "../support/etcd.js";
import { nowMs } from "../support/poll.js";
import { useServers } from "../support/server.js";
import { describeWith } from "../support/tools.js";

/** The primary dies, from outside and at the worst places. */

/** How much later than it should be another node may serve, on a machine that does ten other things. */
const SLACK_MS = 20_000;

describeWith(["etcd"], "the primary is killed", () => {
  const servers = useServers();
  let etcd: EtcdCluster;

  beforeAll(async () => {
    etcd = await EtcdCluster.start();
  });
  afterAll(() => etcd.stop());

  test("kill -9 under load, three times", async () => {
    const cluster = await Cluster.start(servers, etcd, 3);
    const run = new ClusterRun(cluster);
    for (let round = 0; round < 3; round++) {
      const primary = await run.load(200);
      const killedMs = nowMs();
      await primary.server.kill();
      expect(await run.servedByAnother(primary, killedMs)).toBeLessThan(ROLE_MS + SLACK_MS);
      await cluster.restart(primary);
    }
    await run.load(200);
    await run.judge();
  });

  test("killed at every step between a command and its reply, and during the take-over", async () => {
    const cluster = new Cluster(servers, etcd);
    const add = async (faults: string): Promise<ClusterNode> => cluster.add({ env: { LEASEHOLD_FAULTS: faults } });
    // The first has the role at once, so that those that die of a load find something to load.
    const first = await add("commit:before-write=kill@20");
    await cluster.primary();
    const doomed = [
      "commit:after-write=kill@20",
      "commit:before-release=kill@20",
      "release:after-reply=kill@20",
      "open:after-lock=kill",
      "load:page=kill",
    ];
    const nodes = [first, ...(await Promise.all(doomed.map(add)))];
    const run = new ClusterRun(cluster);
    // Each takes the role in its turn, and dies of it.
    for (const node of nodes) expect(await node.server.exit(90_000)).toEqual({ code: null, signal: "SIGKILL" });
    await cluster.add();
    await run.load(200);
    await run.judge();
  });
});
