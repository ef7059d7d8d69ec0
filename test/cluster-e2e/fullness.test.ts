import { afterAll, beforeAll, expect, test } from "vitest";
import { Cluster, LONG_ROLE } from "../support/cluster.js";
import { EtcdCluster } from "../support/etcd.js";
import { until } from "../support/poll.js";
import { RespConnection, RespError, type RespValue } from "../support/resp-client.js";
import { useServers } from "../support/server.js";
import { describeWith } from "../support/tools.js";

/** A shared store that runs full: nothing is added to it any more, while what makes it emptier and what writes nothing goes on. */

const QUOTA_BYTES = 1_048_576;
const VALUE = "v".repeat(8_192);

const isRefused = (reply: RespValue): boolean =>
  reply instanceof RespError && reply.text.startsWith("OOM the shared store uses ");

describeWith(["etcd"], "a shared store at 80 % of its quota", () => {
  const servers = useServers();
  let etcd: EtcdCluster;

  beforeAll(async () => {
    etcd = await EtcdCluster.start();
  });
  afterAll(() => etcd.stop());

  test("refuses grants, keys and strings; keep-alive, release and revoke go on", async () => {
    const cluster = await Cluster.start(servers, etcd, 1, {
      args: [...LONG_ROLE, `--etcd-quota-bytes=${QUOTA_BYTES}`],
    });
    const primary = await cluster.primary();
    const connection = await RespConnection.connect(primary.port);
    await connection.call("LEASE.GRANT", "kept", "PX", 600_000);
    await connection.call("LOCK.ACQUIRE", "lock", "kept");
    let granted = 0;
    await until(
      "a grant to be refused",
      async () => {
        const reply = await connection.send("LEASE.GRANT", `l${granted}`, "PX", 600_000, "KEY", `k${granted}`, VALUE);
        if (!isRefused(reply)) granted += 1;
        return isRefused(reply);
      },
      60_000,
    );
    expect(granted).toBeGreaterThan(0);
    const refused: string[][] = [
      ["SET", "s", "v"],
      ["LEASE.ATTACH", "kept", "more", "v"],
      ["LOCK.ACQUIRE", "another", "kept"],
    ];
    for (const command of refused) expect(isRefused(await connection.send(...command)), command.join(" ")).toBe(true);
    expect(await connection.call("LEASE.KEEPALIVE", "kept")).toBe(600_000);
    expect(await connection.call("LOCK.RELEASE", "lock", "kept")).toBe(1);
    expect(await connection.call("LEASE.REVOKE", "l0")).toBe(1);
    expect(await connection.call("GET", "k0")).toBeNull();
    connection.destroy();
  });
});
