import { afterAll, beforeAll, expect, test } from "vitest";
import { Cluster, LONG_ROLE } from "../support/cluster.js";
import { ClusterRun } from "../support/cluster-run.js";
import { EtcdCluster } from "../support/etcd.js";
import { letPass, nowMs, until } from "../support/poll.js";
import { RespConnection, RespError } from "../support/resp-client.js";
import { useServers } from "../support/server.js";
import { describeWith } from "../support/tools.js";

/** What many clients do to a cluster, and what they do not do to etcd. */

const KEEP_ALIVES = 10_000;
const STORM_CLIENTS = 500;

describeWith(["etcd"], "many clients", () => {
  const servers = useServers();
  let etcd: EtcdCluster;

  beforeAll(async () => {
    etcd = await EtcdCluster.start();
  });
  afterAll(() => etcd.stop());

  test(`${KEEP_ALIVES} keep-alives: all that reaches etcd is beats and announcements`, async () => {
    const cluster = await Cluster.start(servers, etcd, 2, { args: LONG_ROLE });
    const primary = await cluster.primary();
    const connection = await RespConnection.connect(primary.port);
    await connection.call("LEASE.GRANT", "kept", "PX", 60_000, "KEY", "k", "v");
    const before = await cluster.newestRevision();
    for (let sent = 0; sent < KEEP_ALIVES; sent += 500) {
      const replies = await connection.pipeline(Array.from({ length: 500 }, () => ["LEASE.KEEPALIVE", "kept"]));
      expect(new Set(replies)).toEqual(new Set([60_000]));
    }
    // A few beats more, so that it shows that they are counted.
    await until("further beats", async () => (await cluster.newestRevision()) > before + 3);
    const { revision, keys } = await cluster.changesSince(before);
    expect([...keys.keys()].filter((key) => key !== "beat" && !key.startsWith("nodes/"))).toEqual([]);
    const counted = [...keys.values()].reduce((sum, count) => sum + count, 0);
    // Each revision is one of them: nothing was written that left no trace.
    expect(counted).toBe(revision - before);
    // Once more with a write, so that a count that counts nothing would be found out.
    await connection.call("LEASE.GRANT", "another", "PX", 60_000);
    expect([...(await cluster.changesSince(before)).keys.keys()].some((key) => key.startsWith("r/"))).toBe(true);
    connection.destroy();
  });

  test(`${STORM_CLIENTS} clients reconnect at once after the primary was killed: all are served`, async () => {
    const cluster = await Cluster.start(servers, etcd, 3);
    const run = new ClusterRun(cluster, {
      clients: STORM_CLIENTS,
      ttlsMs: [60_000, 120_000],
      contendedKeys: 50,
      pauseMs: 400,
    });
    const primary = await run.load(2 * STORM_CLIENTS);
    await primary.server.kill();
    const killedMs = nowMs();
    await run.servedByAnother(primary, killedMs);
    await until("every client to be served again", () => run.clientsServedSince(killedMs) === STORM_CLIENTS, 90_000);
    await run.judge();
  });

  test("clients that wait for a lock are let go when the role moves, and none is told that it has it", async () => {
    const cluster = await Cluster.start(servers, etcd, 2, { args: LONG_ROLE });
    const primary = await cluster.primary();
    const holder = await RespConnection.connect(primary.port);
    await holder.call("LEASE.GRANT", "holder", "PX", 60_000);
    const token = await holder.call("LOCK.ACQUIRE", "lock", "holder");
    const waiters = await Promise.all(
      Array.from({ length: 10 }, async (_, index) => {
        const connection = await RespConnection.connect(primary.port);
        await connection.call("LEASE.GRANT", `waiter-${index}`, "PX", 60_000);
        return connection;
      }),
    );
    const outcomes = waiters.map(async (connection, index) =>
      connection.send("LOCK.ACQUIRE", "lock", `waiter-${index}`, "BLOCK", 0).then(
        (reply) => (reply instanceof RespError ? reply.code : reply),
        () => "closed",
      ),
    );
    await letPass(100);
    const operator = await RespConnection.connect(primary.port);
    await operator.call("FAILOVER");
    const told = await Promise.all(outcomes);
    expect(told.filter((outcome) => typeof outcome !== "string")).toEqual([]);
    const next = await cluster.otherPrimary(primary);
    const after = await RespConnection.connect(next.port);
    expect(await after.send("LOCK.CHECK", "lock", Number(token))).toBe(1);
    expect(await after.send("LOCK.ACQUIRE", "lock", "waiter-0")).toBeNull();
    for (const connection of [holder, operator, after, ...waiters]) connection.destroy();
  });
});
