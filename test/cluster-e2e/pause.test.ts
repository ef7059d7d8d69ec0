import { afterAll, beforeAll, expect, test } from "vitest";
import { Cluster, ROLE_MS, type ClusterNode } from "../support/cluster.js";
import { ClusterRun } from "../support/cluster-run.js";
import { EtcdCluster } from "../support/etcd.js";
import { letPass, letPassUntil, nowMs, until, within } from "../support/poll.js";
import { ConnectionClosed, RespConnection, RespError, type RespValue } from "../support/resp-client.js";
import { useServers } from "../support/server.js";
import { describeWith } from "../support/tools.js";

/**
 * The primary stands still and goes on: what lay in its sockets meanwhile it may answer only while its time as primary is not over.
 */

/** How much later than it should be another node may serve, on a machine that does ten other things. */
const SLACK_MS = 20_000;
const QUEUED = 20;
const TTL_MS = 60_000;

/** The code of an error reply, `closed` for none, or the reply. */
const outcomeOf = async (reply: Promise<RespValue>): Promise<unknown> =>
  reply.then(
    (value) => (value instanceof RespError ? value.code : value),
    (error: unknown) => {
      if (error instanceof ConnectionClosed) return "closed";
      throw error;
    },
  );

describeWith(["etcd"], "the primary stands still", () => {
  const servers = useServers();
  let etcd: EtcdCluster;

  beforeAll(async () => {
    etcd = await EtcdCluster.start();
  });
  afterAll(() => etcd.stop());

  /** Connections to the primary, each with a lease of its own that is there. */
  async function leaseholders(cluster: Cluster): Promise<{ primary: ClusterNode; connections: RespConnection[] }> {
    const primary = await cluster.onPrimary(async (connection, node) => {
      for (let index = 0; index < QUEUED; index++) {
        const nonce = `nonce-${index}`;
        await connection.call("LEASE.GRANT", `queued-${index}`, "PX", TTL_MS, "REQUEST", nonce);
      }
      return node;
    });
    const connecting = Array.from({ length: QUEUED }, async () => RespConnection.connect(primary.port));
    return { primary, connections: await Promise.all(connecting) };
  }

  /** A keep-alive of each, sent now; some of the connections send a grant as well. */
  function queue(connections: readonly RespConnection[]): Promise<unknown>[] {
    return connections.flatMap((connection, index) => [
      outcomeOf(connection.send("LEASE.KEEPALIVE", `queued-${index}`)),
      ...(index % 4 === 0 ? [outcomeOf(connection.send("LEASE.GRANT", `zombie-${index}`, "PX", TTL_MS))] : []),
    ]);
  }

  test("for much longer than its role lasts: nothing that was queued in its sockets is acknowledged", async () => {
    const cluster = await Cluster.start(servers, etcd, 3);
    const run = new ClusterRun(cluster);
    await run.load(200);
    const { primary, connections } = await leaseholders(cluster);
    await primary.freeze();
    const frozenMs = nowMs();
    const early = queue(connections);
    expect(await run.servedByAnother(primary, frozenMs)).toBeLessThan(ROLE_MS + SLACK_MS);
    const late = queue(connections);
    await letPassUntil(frozenMs + 2 * ROLE_MS);
    await run.load(100);
    primary.thaw();
    const outcomes = await within("an end of what was queued", Promise.all([...early, ...late]));
    expect([...new Set(outcomes)].filter((outcome) => outcome !== "closed" && outcome !== "READONLY")).toEqual([]);
    // It granted nothing, and what was granted before is there.
    const seen = await cluster.onPrimary(async (connection) => {
      const zombies: RespValue[] = [];
      for (let index = 0; index < QUEUED; index += 4) {
        zombies.push(await connection.call("LEASE.PTTL", `zombie-${index}`));
      }
      return { zombies, kept: await connection.call("LEASE.KEEPALIVE", "queued-0") };
    });
    expect(new Set(seen.zombies)).toEqual(new Set([-2]));
    expect(seen.kept).toBe(TTL_MS);
    for (const connection of connections) connection.destroy();
    await run.judge();
  });

  test("for about as long as its role lasts, several times: whoever serves then, the history is sound", async () => {
    const cluster = await Cluster.start(servers, etcd, 2);
    const run = new ClusterRun(cluster);
    for (const share of [0.5, 0.85, 1, 1.15]) {
      const primary = await run.load(100);
      await primary.freeze();
      await letPass(ROLE_MS * share);
      primary.thaw();
      await run.load(100);
    }
    await run.judge();
  });

  test("between a command and its reply: the reply is late, and promises nothing that is not so", async () => {
    const cluster = new Cluster(servers, etcd);
    const first = await cluster.add({ env: { LEASEHOLD_FAULTS: "commit:before-release=stop@60" } });
    await cluster.primary();
    const run = new ClusterRun(cluster);
    await until("the first node to stand still", () => first.server.isStopped, 60_000);
    first.isFrozen = true;
    await cluster.add();
    const waitsMs = nowMs();
    expect(await run.servedByAnother(first, waitsMs)).toBeLessThan(ROLE_MS + SLACK_MS);
    await run.load(100);
    first.thaw();
    await run.load(100);
    await run.judge();
  });
});
