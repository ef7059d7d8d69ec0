import { afterAll, beforeAll, expect, test } from "vitest";
import { Cluster, ETCD_TIMEOUT_MS, ROLE_MARGIN_MS, ROLE_MS } from "../support/cluster.js";
import { ClusterRun } from "../support/cluster-run.js";
import { EtcdCluster, type EtcdMember } from "../support/etcd.js";
import { letPass, meanwhile, nowMs, until } from "../support/poll.js";
import { useServers } from "../support/server.js";
import { Trace } from "../support/strace.js";
import { describeWith } from "../support/tools.js";

/** etcd itself fails, of three members: its leader dies or stands still, or too few are left. */

const SLOW_SYNC_MS = ETCD_TIMEOUT_MS + 200;

describeWith(["etcd"], "etcd of three members", () => {
  const servers = useServers();
  let etcd: EtcdCluster;

  beforeAll(async () => {
    etcd = await EtcdCluster.start({ members: 3 });
  });
  afterAll(() => etcd.stop());

  const others = (member: EtcdMember): EtcdMember[] => etcd.members.filter((other) => other !== member);

  test("its leader is killed, and comes back", async () => {
    const cluster = await Cluster.start(servers, etcd, 2);
    const run = new ClusterRun(cluster);
    for (let round = 0; round < 2; round++) {
      await run.load(200);
      const leader = await etcd.leader();
      await leader.kill();
      await run.load(200);
      leader.start();
      await etcd.untilHealthy();
    }
    await run.load(100);
    await run.judge();
  });

  test.each([500, 2_000, 5_000])("its leader stands still for %i ms", async (pauseMs) => {
    const cluster = await Cluster.start(servers, etcd, 2);
    const run = new ClusterRun(cluster);
    await run.load(200);
    const leader = await etcd.leader();
    leader.signal("SIGSTOP");
    await letPass(pauseMs);
    leader.signal("SIGCONT");
    await run.load(300);
    await etcd.untilHealthy();
    await run.judge();
  });

  test("its quorum is gone for longer than the role lasts, and back: nothing is acknowledged meanwhile, no lease has ended", async () => {
    const cluster = await Cluster.start(servers, etcd, 2);
    const run = new ClusterRun(cluster);
    await run.load(200);
    const lost = others(await etcd.leader());
    await Promise.all(lost.map(async (member) => member.kill()));
    const lostMs = nowMs();
    await letPass(2 * ROLE_MS);
    const roles = await Promise.all(cluster.nodes.map(async (node) => node.isPrimary()));
    expect(roles).toEqual([false, false]);
    const backMs = nowMs();
    const late = run.acknowledgements.filter(({ invokeMs }) => invokeMs > lostMs + ROLE_MS - ROLE_MARGIN_MS);
    expect(late.filter(({ returnMs }) => returnMs < backMs)).toEqual([]);
    for (const member of lost) member.start();
    await etcd.untilHealthy();
    await until("a primary", () => run.acknowledgements.some(({ invokeMs }) => invokeMs > backMs), 60_000);
    await run.load(200);
    await run.judge();
  });

  describeWith(["strace", "ptrace"], "with disks that are slow", () => {
    test("a sync takes longer than a write is waited for", async () => {
      const cluster = await Cluster.start(servers, etcd, 2);
      const run = new ClusterRun(cluster);
      await run.load(200);
      const slowness = { calls: ["fdatasync"], inject: [`fdatasync:delay_enter=${SLOW_SYNC_MS * 1000}`] };
      const traces = await Promise.all(etcd.members.map(async ({ pid }) => Trace.attach(pid, slowness)));
      await letPass(2 * ROLE_MS);
      const calls = await Promise.all(traces.map(async (trace) => trace.detach()));
      expect(Math.min(...calls.map(({ length }) => length))).toBeGreaterThan(0);
      await etcd.untilHealthy();
      await run.load(200);
      await run.judge();
    });
  });

  test("its history is compacted away all the time, also while a new primary loads", async () => {
    const cluster = await Cluster.start(servers, etcd, 3);
    const run = new ClusterRun(cluster);
    const seenFences = await cluster.watchFences();
    const failovers = async (): Promise<void> => {
      for (let round = 0; round < 2; round++) {
        const primary = await run.load(200);
        await primary.server.kill();
        await run.servedByAnother(primary, nowMs());
        await cluster.restart(primary);
      }
    };
    await meanwhile(failovers(), async () => {
      await cluster.compact();
      await letPass(20);
    });
    await run.judge(seenFences);
  });
});
