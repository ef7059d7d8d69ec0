import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { Cluster, type ClusterNode, ETCD_TIMEOUT_MS, ROLE_MARGIN_MS, ROLE_MS } from "../support/cluster.js";
import { ClusterRun } from "../support/cluster-run.js";
import { EtcdCluster } from "../support/etcd.js";
import { letPass, nowMs, until } from "../support/poll.js";
import { type Direction, TcpProxy } from "../support/proxy.js";
import { type Argument, ConnectionClosed, RespConnection, RespError } from "../support/resp-client.js";
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
  async function busiest(through: readonly TcpProxy[], load: () => Promise<unknown>): Promise<TcpProxy> {
    const before = through.map(({ requestBytes }) => requestBytes);
    await load();
    const grown = through.map(({ requestBytes }, index) => requestBytes - (before[index] ?? 0));
    const [first, ...others] = through.toSorted(
      (a, b) => (grown[through.indexOf(b)] ?? 0) - (grown[through.indexOf(a)] ?? 0),
    );
    if (first === undefined) throw new Error(`one of ${others.length} proxies`);
    return first;
  }

  /**
   * Keeps a lease alive at a node that is primary, until it refuses or closes. Returns once the first is acknowledged, with when the
   * last acknowledged one was sent.
   */
  async function keptAliveToTheEnd(cluster: Cluster, node: ClusterNode): Promise<{ lastSentMs: Promise<number> }> {
    let kept = 0;
    for (;;) {
      await cluster.moveRoleTo(node);
      const connection = await RespConnection.connect(node.port);
      const isGranted = await isAcknowledged(connection, "LEASE.GRANT", `kept-${kept++}`, "PX", 60_000);
      if (isGranted) return { lastSentMs: keepAliveToTheEnd(connection, `kept-${kept - 1}`) };
      connection.destroy();
    }
  }

  async function keepAliveToTheEnd(connection: RespConnection, lease: string): Promise<number> {
    let lastMs = -Infinity;
    for (;;) {
      const sentMs = nowMs();
      if (!(await isAcknowledged(connection, "LEASE.KEEPALIVE", lease))) break;
      lastMs = sentMs;
      await letPass(5);
    }
    connection.destroy();
    return lastMs;
  }

  async function isAcknowledged(connection: RespConnection, ...args: Argument[]): Promise<boolean> {
    return connection.send(...args).then(
      (reply) => !(reply instanceof RespError),
      (error: unknown) => {
        if (error instanceof ConnectionClosed) return false;
        throw error;
      },
    );
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
      await run.load(150);
      const { lastSentMs } = await keptAliveToTheEnd(cluster, first);
      through.hold(...directions);
      const cutMs = nowMs();
      expect(await run.servedByAnother(first, cutMs)).toBeLessThan(2 * ROLE_MS + SLACK_MS);
      // A beat that was sent before the cut is worth this much, and none after it is worth anything.
      expect((await lastSentMs) - cutMs).toBeLessThan(ROLE_MS - ROLE_MARGIN_MS);
      await run.load(150);
      through.release();
      await until("the first node to see the other primary", async () => {
        const fields = await first.replication();
        // or has it again, should that one have lost it on a crowded machine
        return fields.get("leasehold_role") === "primary" || fields.get("master_link_status") === "up";
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
    const isRight = async (): Promise<boolean> => (await named()) === (await cluster.primary()).port;
    await until("the standby to name the primary", isRight);
    through.hold("requests", "answers");
    await until("the standby to name nobody", async () => (await named()) === null);
    await run.load(300);
    expect((await standby.replication()).get("leasehold_role")).toBe("standby");
    through.release();
    await until("the standby to name the primary again", isRight);
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
      const used = await busiest([slow, other], async () => run.load(100));
      used.hold(direction);
      await until("the fence to move", async () => {
        await letPass(50);
        return (await cluster.fences()).length > before;
      });
      await run.load(300);
      // What was held back arrives now, guarded by a fence that is gone; before the word that nobody waits for it any more.
      used.passFirst(ETCD_TIMEOUT_MS - 100);
      await letPass(100);
      used.release();
    }
    await run.load(100);
    expect(new Set((await cluster.fences()).map(({ port }) => port))).toEqual(new Set([first.port]));
    // Another node finds what etcd has, late writes and all.
    await first.server.stop();
    await run.load(100);
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
    await run.load(100);
    await run.judge();
  });
});
