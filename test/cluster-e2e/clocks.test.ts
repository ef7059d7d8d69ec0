import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { Cluster, LONG_ROLE, ROLE_MS } from "../support/cluster.js";
import { checkEpochs } from "../support/cluster-epochs.js";
import { ClusterRun } from "../support/cluster-run.js";
import { EtcdCluster } from "../support/etcd.js";
import { letPass, nowMs, until } from "../support/poll.js";
import { TcpProxy } from "../support/proxy.js";
import { RespConnection } from "../support/resp-client.js";
import { useServers } from "../support/server.js";
import { describeWith, faketimeLibrary } from "../support/tools.js";

/**
 * Clocks of the nodes: the wall clock jumps, or the monotonic clock of a standby runs too fast. The last is the dangerous side: it
 * thinks that the primary's time is over while it is not. The clocks of a machine that is itself too slow cannot be shown here:
 * libfaketime slows the monotonic clock and not the one that counts sleep, and the node notices.
 */

const WALL_ONLY = { DONT_FAKE_MONOTONIC: "1", FAKETIME_DONT_FAKE_MONOTONIC: "1" };

describeWith(["etcd", "libfaketime"], "clocks", () => {
  const servers = useServers();
  let etcd: EtcdCluster;
  let proxy: TcpProxy;

  beforeAll(async () => {
    etcd = await EtcdCluster.start();
    proxy = await TcpProxy.start(etcd.members[0]?.clientPort ?? 0);
  });
  afterAll(async () => {
    await proxy.stop();
    await etcd.stop();
  });

  test("the wall clocks of all nodes jump by an hour, forth and back: nothing happens", async () => {
    const offsetFile = join(servers.directory(), "offset");
    writeFileSync(offsetFile, "+0\n");
    const cluster = await Cluster.start(servers, etcd, 2, {
      args: LONG_ROLE,
      env: {
        LD_PRELOAD: faketimeLibrary(),
        FAKETIME_TIMESTAMP_FILE: offsetFile,
        FAKETIME_NO_CACHE: "1",
        ...WALL_ONLY,
      },
    });
    const run = new ClusterRun(cluster);
    const primary = await cluster.primary();
    const operator = await RespConnection.connect(primary.port);
    const wallSeconds = async (): Promise<number> => {
      const reply = await operator.call("TIME");
      return Number(Array.isArray(reply) ? reply[0] : Number.NaN);
    };
    await run.load(150);
    for (const jump of ["+3600s", "-3600s", "+0"]) {
      const before = await wallSeconds();
      writeFileSync(offsetFile, `${jump}\n`);
      await until("the wall clock to jump", async () => Math.abs((await wallSeconds()) - before) > 3_000);
      await run.load(150);
    }
    // the connection was never closed, the role never moved
    expect(operator.isClosed).toBe(false);
    operator.destroy();
    expect((await cluster.fences()).filter(({ port }) => port !== primary.port)).toEqual([]);
    await run.judge();
  });

  /** A primary that is cut off from etcd while clients reach it, beside a standby whose clock is as fast as told. */
  async function cutOffBeside(rate: string): Promise<{ cluster: Cluster; run: ClusterRun }> {
    const args = ["--role-margin-ms=600"];
    const cluster = new Cluster(servers, etcd);
    const first = await cluster.add({ endpoints: [proxy.endpoint], args });
    await cluster.primary();
    await cluster.add({ args, env: { LD_PRELOAD: faketimeLibrary(), FAKETIME: `+0 ${rate}` } });
    const run = new ClusterRun(cluster, { clients: 12, ttlsMs: [5_000, 120_000], contendedKeys: 6 });
    await run.load(150);
    await cluster.moveRoleTo(first);
    await run.load(50);
    proxy.hold("requests", "answers");
    const cutMs = nowMs();
    await run.servedByAnother(first, cutMs);
    await letPass(ROLE_MS);
    proxy.release();
    await run.load(100);
    return { cluster, run };
  }

  test("a standby's clock is 6 % too fast, and the margin covers it", async () => {
    const { run } = await cutOffBeside("x1.06");
    await run.judge();
  });

  test("the control: a standby's clock is more than twice too fast, which no margin covers, and it shows", async () => {
    const faults: string[] = [];
    for (let attempt = 0; attempt < 3 && faults.length === 0; attempt++) {
      const { cluster, run } = await cutOffBeside("x2.5");
      await run.end();
      faults.push(...checkEpochs(await cluster.fences(), run.acknowledgements));
    }
    expect(faults).not.toEqual([]);
  });
});
