import { afterAll, beforeAll, expect, test } from "vitest";
import { Announcements } from "#src/durability/etcd/announcements.js";
import type { EtcdClient } from "#src/durability/etcd/etcd-client.js";
import { EtcdHealth, type HealthOptions } from "#src/durability/etcd/health.js";
import { decodeNode, EtcdKeys } from "#src/durability/etcd/rows.js";
import type { NodeSighting } from "#src/durability/shared-store.js";
import type { NodeAddress, Scheduler } from "#src/ports.js";
import { EtcdCluster } from "../../support/etcd.js";
import { until } from "../../support/poll.js";
import { describeWith } from "../../support/tools.js";
import { ManualClock } from "../manual.js";
import { realScheduler } from "../real.js";
import { etcdClient, freshCluster, KeptLog } from "./real-etcd.js";

/** Time runs a thousand times as fast: what is done every ten seconds is done every ten milliseconds. */
const hastyScheduler: Scheduler = {
  after: (delayMs, callback) => realScheduler.after(delayMs / 1000, callback),
  soon: (callback) => realScheduler.soon(callback),
};

const GIBIBYTE = 1024 ** 3;

describeWith(["etcd"], "looking after etcd", () => {
  let etcd: EtcdCluster;
  let client: EtcdClient;

  beforeAll(async () => {
    etcd = await EtcdCluster.start();
    client = etcdClient(etcd.endpoints);
  });

  afterAll(async () => {
    client.close();
    await etcd.stop();
  });

  const put = async (value: string): Promise<number> => {
    const key = Buffer.from("some key");
    const write = { kind: "put", key, value: Buffer.from(value) } as const;
    return (await client.txn({ guards: [], success: [write], failure: [] })).revision;
  };

  const isCompacted = (revision: number): Promise<boolean> =>
    client.range({ key: Buffer.from("some key"), revision }).then(
      () => false,
      (error: { kind?: unknown }) => {
        expect(error.kind).toBe("compacted");
        return true;
      },
    );

  const health = (change: Partial<HealthOptions>): { health: EtcdHealth; log: KeptLog } => {
    const log = new KeptLog();
    const options: HealthOptions = {
      client,
      scheduler: hastyScheduler,
      log,
      quotaBytes: 3 * GIBIBYTE,
      compaction: null,
      isPrimary: () => true,
      ...change,
    };
    return { health: new EtcdHealth(options), log };
  };

  test("tells how full it is, and says once what is wrong with it", async () => {
    const { health: looks, log } = health({});
    expect(looks.usedBytes).toBeNull();
    expect(looks.quotaBytes).toBeNull();
    looks.start();
    looks.start();
    await until("a first look", () => looks.usedBytes !== null);
    await put("x".repeat(1_000_000));
    await until("the growth to be seen", () => (looks.usedBytes ?? 0) > 1_000_000);
    const { version, quotaBytes } = await client.status(client.endpoint);
    expect(looks.quotaBytes).toBe(quotaBytes > 0 ? quotaBytes : 3 * GIBIBYTE);
    looks.stop();
    const [major = 0, minor = 0, patch = 0] = version.split(".").map(Number);
    const isOld = major === 3 && (minor < 4 || (minor === 4 && patch < 42));
    expect(log.lines.filter((line) => line.includes("older than")).length).toBe(isOld ? 1 : 0);
    expect(log.lines.filter((line) => line.includes("auto-compaction")).length).toBe(1);
  });

  test("compacts when it is asked to, as the primary, and keeps what it shall keep", async () => {
    let isPrimary = false;
    const compaction = { everyMs: 20_000, keepRevisions: 10 };
    const { health: looks, log } = health({ compaction, isPrimary: () => isPrimary });
    const first = await put("first");
    for (let count = 0; count < 20; count += 1) await put(`${count}`);
    looks.start();
    const looksTaken = { count: 0 };
    await until("several looks", () => (looksTaken.count += 1) > 20);
    expect(await isCompacted(first)).toBe(false);
    isPrimary = true;
    await until("a compaction", () => isCompacted(first));
    const newest = await put("newest");
    expect(await isCompacted(newest - 5)).toBe(false);
    looks.stop();
    expect(log.lines).not.toContainEqual(expect.stringContaining("could not be compacted"));
    expect(log.lines).not.toContainEqual(expect.stringContaining("auto-compaction"));
  });

  test("forgets a node that has not announced itself for long, if it is the primary that looks", async () => {
    const keys = new EtcdKeys(freshCluster());
    const clock = new ManualClock();
    let isPrimary = false;
    let sightings: NodeSighting[] = [];
    const announcements = new Announcements({
      client,
      keys,
      clock,
      nodes: () => sightings,
      isPrimary: () => isPrimary,
    });
    const node = (name: string): NodeAddress => ({ id: name, host: "127.0.0.1", port: 1, sentinelPort: 2 });
    const announce = async (...names: string[]): Promise<string[]> => {
      for (const name of names) await announcements.announce(node(name));
      sightings = (await client.range(keys.nodesRange)).rows.map(decodeNode);
      return sightings.map((sighting) => sighting.node.id);
    };
    expect(await announce("self", "alive", "gone")).toEqual(["alive", "gone", "self"]);
    for (let minutes = 0; minutes < 12; minutes += 1) {
      clock.nowMs += 60_000;
      expect(await announce("self", "alive")).toEqual(["alive", "gone", "self"]);
    }
    isPrimary = true;
    await announce("self", "alive");
    expect(await announce("self")).toEqual(["alive", "self"]);
    await announcements.withdraw(node("self"));
    expect((await client.range(keys.nodesRange)).rows.map((row) => decodeNode(row).node.id)).toEqual(["alive"]);
  });
});
