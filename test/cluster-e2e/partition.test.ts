import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { Cluster, ROLE_MARGIN_MS, ROLE_MS, type ClusterNode } from "../support/cluster.js";
import { ClusterRun } from "../support/cluster-run.js";
import { EtcdCluster } from "../support/etcd.js";
import { letPass, nowMs, until } from "../support/poll.js";
import { type Direction, TcpProxy } from "../support/proxy.js";
import { ConnectionClosed, RespConnection, RespError } from "../support/resp-client.js";
import { useServers } from "../support/server.js";
import { describeWith } from "../support/tools.js";

/**
 * The network between a node and etcd: nothing passes in one direction or in both, or it passes much later. Clients reach all nodes
 * all the time.
 */

/** How much later than it should be another node may serve, on a machine that does ten other things. */
const SLACK_MS = 20_000;

describeWith(["etcd"], "the network between a node and etcd", () => {
  const servers = useServers();
  const proxies: TcpProxy[] = [];
  let etcd: EtcdCluster;

  beforeAll(async () => {
    etcd = await EtcdCluster.start();
  });
  afterEach(async () => {
    await Promise.all(proxies.splice(0).map(async (proxy) => proxy.stop()));
  });
  afterAll(() => etcd.stop());

  async function newProxy(): Promise<TcpProxy> {
    const made = await TcpProxy.start(etcd.members[0]?.clientPort ?? 0);
    proxies.push(made);
    return made;
  }

  /** A cluster whose first node, the primary, reaches etcd through these proxies only. */
  async function clusterBehind(
    through: readonly TcpProxy[],
    args: readonly string[] = [],
  ): Promise<{ cluster: Cluster; first: ClusterNode }> {
    const cluster = new Cluster(servers, etcd);
    const first = await cluster.add({ endpoints: through.map(({ endpoint }) => endpoint), args });
    await cluster.primary();
    await cluster.add({ args });
    return { cluster, first };
  }

  /** The one that most requests go through meanwhile. */
  async function busiest(through: readonly TcpProxy[], load: () => Promise<void>): Promise<TcpProxy> {
    const before = through.map(({ requestBytes }) => requestBytes);
    await load();
    const grown = through.map(({ requestBytes }, index) => requestBytes - (before[index] ?? 0));
    const [first, ...others] = through.toSorted(
      (a, b) => (grown[through.indexOf(b)] ?? 0) - (grown[through.indexOf(a)] ?? 0),
    );
    if (first === undefined) throw new Error(`one of ${others.length} proxies`);
    return first;
  }

  /** Keeps one lease alive at this node, until the node refuses or closes. Returns when the last acknowledged one was sent. */
  async function keepAliveToTheEnd(node: ClusterNode, lease: string): Promise<number> {
    let sentMs = -Infinity;
    const connection = await RespConnection.connect(node.port);
    await connection.call("LEASE.GRANT", lease, "PX", 60_000);
    for (;;) {
      const nextMs = nowMs();
      const reply = await connection.send("LEASE.KEEPALIVE", lease).catch((error: unknown) => {
        if (error instanceof ConnectionClosed) return new RespError("CLOSED");
        throw error;
      });
      if (reply instanceof RespError) break;
      sentMs = nextMs;
      await letPass(5);
    }
    connection.destroy();
    return sentMs;
  }

  const CUTS: readonly [string, readonly Direction[]][] = [
    ["both ways", ["requests", "answers"]],
    ["its requests do not arrive", ["requests"]],
    ["the answers do not arrive", ["answers"]],
  ];

  describe.each(CUTS)("the primary is cut off, %s", (_name, directions) => {
    test("it acknowledges until its time is over, another one after that, and it stands by once it is back", async () => {
      const through = await newProxy();
      const { cluster, first } = await clusterBehind([through]);
      const run = new ClusterRun(cluster);
      await run.load(150, first);
      const lastKeepAlive = keepAliveToTheEnd(first, "kept");
      await letPass(100);
      through.hold(...directions);
      const cutMs = nowMs();
      expect(await run.servedByAnother(first, cutMs)).toBeLessThan(2 * ROLE_MS + SLACK_MS);
      // A beat that was sent before the cut is worth this much, and none after it is worth anything.
      expect((await lastKeepAlive) - cutMs).toBeLessThan(ROLE_MS - ROLE_MARGIN_MS);
      await run.load(150);
      through.release();
      await until("the first node to see the other primary", async () => {
        const fields = await first.replication();
        return fields.get("leasehold_role") === "standby" && fields.get("master_link_status") === "up";
      });
      await run.load(100);
      await run.judge();
    });
  });

  test("a standby is cut off: it names no primary after a while, takes no role, and follows again", async () => {
    const through = await newProxy();
    const cluster = await Cluster.start(servers, etcd, 1);
    const standby = await cluster.add({ endpoints: [through.endpoint] });
    const run = new ClusterRun(cluster);
    const named = async (): Promise<unknown> => {
      const connection = await RespConnection.connect(standby.sentinelPort);
      const address = await connection.call("SENTINEL", "get-master-addr-by-name", cluster.name);
      connection.destroy();
      return Array.isArray(address) ? Number(address[1]) : null;
    };
    const [first] = cluster.nodes;
    await until("the standby to name the primary", async () => (await named()) === first?.port);
    through.hold("requests", "answers");
    await until("the standby to name nobody", async () => (await named()) === null);
    await run.load(300);
    expect((await standby.replication()).get("leasehold_role")).toBe("standby");
    through.release();
    await until("the standby to name the primary again", async () => (await named()) === first?.port);
    expect((await cluster.fences()).filter(({ port }) => port !== first?.port)).toEqual([]);
    await run.judge();
  });

  test.each<[string, Direction]>([
    ["a write that etcd gets much later", "requests"],
    ["a write that etcd has done, without an answer", "answers"],
  ])("%s: the fence moves, and nothing is done twice or lost", async (_name, direction) => {
    const slow = await newProxy();
    const other = await newProxy();
    // Time enough to find out, on any machine: the role is not lost.
    const { cluster, first } = await clusterBehind([slow, other], ["--role-ms=30000", "--role-margin-ms=600"]);
    const run = new ClusterRun(cluster);
    for (let round = 0; round < 3; round++) {
      const before = (await cluster.fences()).length;
      const used = await busiest([slow, other], async () => run.load(100, first));
      used.hold(direction);
      await until("the fence to move", async () => {
        await letPass(50);
        return (await cluster.fences()).length > before;
      });
      await run.load(50, first);
      // What was held back arrives now, guarded by a fence that is gone.
      used.release();
    }
    await run.load(100, first);
    expect(new Set((await cluster.fences()).map(({ port }) => port))).toEqual(new Set([first.port]));
    await run.judge();
  });

  test("a watch that is stuck costs time, not more: polls see that the primary is gone", async () => {
    const slow = await newProxy();
    const other = await newProxy();
    const cluster = await Cluster.start(servers, etcd, 1);
    const standby = await cluster.add({ endpoints: [slow.endpoint, other.endpoint] });
    const [first] = cluster.nodes;
    if (first === undefined) throw new Error("a cluster of one");
    const run = new ClusterRun(cluster);
    await until("the standby to see the primary", async () => {
      return (await standby.replication()).get("master_link_status") === "up";
    });
    slow.hold("requests", "answers");
    await run.load(200);
    await first.server.kill();
    const killedMs = nowMs();
    expect(await run.servedByAnother(first, killedMs)).toBeLessThan(2 * ROLE_MS + SLACK_MS);
    await run.load(100, standby);
    await run.judge();
  });
});
