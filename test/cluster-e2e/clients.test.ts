import { Redlock as SesameRedlock } from "@sesamecare-oss/redlock";
import Redlock4 from "redlock4";
import Redlock5 from "redlock5";
import { Mutex } from "redis-semaphore";
import { afterAll, afterEach, beforeAll, expect, test, vi } from "vitest";
import { Cluster, ROLE_MS, type ClusterNode } from "../support/cluster.js";
import { FOLLOWING_CLIENTS, ioredis6Client, type FollowingClient } from "../support/cluster-clients.js";
import { EtcdCluster } from "../support/etcd.js";
import { letPass, nowMs, until, within } from "../support/poll.js";
import { RespConnection, Status, textOf } from "../support/resp-client.js";
import { useServers } from "../support/server.js";
import { describeWith } from "../support/tools.js";

/**
 * Clients and lock libraries that know nothing of Leasehold, over a kill -9, a primary that stands still, and a hand-over: each
 * goes on by itself, keeps its lock, and nothing is granted twice.
 */

/** How much later than it should be a client may be served again, on a machine that does ten other things. */
const SLACK_MS = 40_000;
const TTL_MS = 60_000;
const KEEP_ALIVE_MS = 50;

/** A client with a lock, which it keeps, and with further leases, which it asks for until it has been told of them. */
class Holder {
  readonly name: string;
  readonly lock: string;
  token = 0;
  /** When the keep-alive was sent that was acknowledged last. The lock is never believed lost: faults are over within the TTL. */
  keptMs = -Infinity;
  granted: string[] = [];
  failure: Error | null = null;
  readonly isPatient: boolean;
  readonly #client: FollowingClient;
  #isOver = false;

  constructor(name: string, client: FollowingClient) {
    this.name = name.replace(" ", "-");
    this.lock = `lock-${this.name}`;
    this.isPatient = client.isPatient ?? false;
    this.#client = client;
  }

  /** Both commands may be sent again: they answer the same. */
  async acquire(): Promise<void> {
    await until(`${this.name} to have a lease`, async () =>
      this.#try("LEASE.GRANT", this.name, "PX", String(TTL_MS), "REQUEST", this.name),
    );
    const token = await until(`${this.name} to have its lock`, async () =>
      this.#try("LOCK.ACQUIRE", this.lock, this.name),
    );
    this.token = Number(token);
  }

  /** Until `stop`. Whatever fails is tried again, on the same client. */
  async run(): Promise<void> {
    for (let round = 0; !this.#isOver; round++) {
      const sentMs = nowMs();
      const kept = await this.#try("LEASE.KEEPALIVE", this.name);
      if (kept !== null) this.keptMs = sentMs;
      if (round % 4 === 0) await this.#grant();
      await letPass(KEEP_ALIVE_MS);
    }
    // The last one may have been granted without an answer.
    await until(`${this.name} to be told of its last lease`, async () => this.#grant());
  }

  /** A further lease, under the same nonce until it is answered. */
  async #grant(): Promise<boolean> {
    const nonce = `${this.name}-${this.granted.length}`;
    const granted = await this.#try("LEASE.GRANT", "*", "PX", "300000", "REQUEST", nonce);
    if (Array.isArray(granted)) this.granted.push(String(granted[0]));
    return Array.isArray(granted);
  }

  async #try(...args: readonly string[]): Promise<unknown> {
    return this.#client.call(...args).catch((error: unknown) => {
      const text = error instanceof Error ? error.message : String(error);
      if (text.includes("NOLEASE")) this.failure = new Error(`${this.name}: ${text}`);
      return null;
    });
  }

  stop(): void {
    this.#isOver = true;
  }
}

/** Asks every node for every lock, all the time; the answer may never be that it has one. */
class Rival {
  refusals = 0;
  readonly tokens: string[] = [];
  readonly #cluster: Cluster;
  readonly #locks: () => readonly string[];
  #isOver = false;

  constructor(cluster: Cluster, locks: () => readonly string[]) {
    this.#cluster = cluster;
    this.#locks = locks;
  }

  async run(): Promise<void> {
    while (!this.#isOver) {
      for (const port of this.#cluster.ports) await this.#ask(port);
      await letPass(20);
    }
  }

  /** Over one connection to one node, as long as it lasts. */
  async #ask(port: number): Promise<void> {
    const connection = await RespConnection.connect(port).catch(() => null);
    if (connection === null) return;
    const silence = setTimeout(() => connection.destroy(), 1_000);
    try {
      const granted = await connection.send("LEASE.GRANT", "rival", "PX", 300_000, "REQUEST", "rival");
      if (!Array.isArray(granted)) return;
      for (const lock of this.#locks()) {
        const token = await connection.send("LOCK.ACQUIRE", lock, "rival");
        if (typeof token === "number") this.tokens.push(`${lock}: ${token}`);
        const set = await connection.send("SET", lock, "rival", "NX", "PX", 300_000);
        if (set instanceof Status) this.tokens.push(`${lock}: ${set.text}`);
        if (set === null) this.refusals += 1;
      }
    } catch {
      // the node went down, or stands still: the next one is asked
    } finally {
      clearTimeout(silence);
      connection.destroy();
    }
  }

  stop(): void {
    this.#isOver = true;
  }
}

/** Waits until each has been acknowledged a keep-alive that it sends from now on. */
async function allServed(what: string, holders: readonly Holder[], cluster: Cluster): Promise<void> {
  const fromMs = nowMs();
  const late = (): Holder[] => holders.filter(({ keptMs, failure }) => keptMs < fromMs && failure === null);
  await until(`all ${what}`, () => late().length === 0, ROLE_MS + SLACK_MS).catch((error: unknown) => {
    const names = late().map(({ name }) => name);
    throw new Error(`${String(error)}: ${names.join(", ")}\n${cluster.describe()}`, { cause: error });
  });
}

/** Something done to the primary, and undone once every client has got over it. */
type Fault = (cluster: Cluster, primary: ClusterNode) => Promise<() => Promise<void>>;

const FAULTS: readonly [string, Fault][] = [
  [
    "kill -9",
    async (cluster, primary) => {
      await primary.server.kill();
      return async () => cluster.restart(primary);
    },
  ],
  [
    "SIGSTOP",
    async (_cluster, primary) => {
      await primary.freeze();
      return async () => Promise.resolve(primary.thaw());
    },
  ],
  [
    "hand-over",
    async (_cluster, primary) => {
      const operator = await RespConnection.connect(primary.port);
      // refused, should it have lost the role just now: then there was another kind of hand-over
      await operator.send("FAILOVER").catch(() => null);
      operator.destroy();
      return async () => Promise.resolve();
    },
  ],
];

describeWith(["etcd", "python3-redis"], "clients in Sentinel mode", () => {
  const servers = useServers();
  const closers: (() => void)[] = [];
  let etcd: EtcdCluster;

  beforeAll(async () => {
    etcd = await EtcdCluster.start();
    // node-redis prints each Sentinel that does not answer
    vi.spyOn(console, "log").mockImplementation(() => {});
  });
  afterEach(() => {
    for (const close of closers.splice(0)) close();
  });
  afterAll(async () => {
    vi.restoreAllMocks();
    await etcd.stop();
  });

  test("each gets over every failover by itself, and keeps its lock", async () => {
    const cluster = await Cluster.start(servers, etcd, 3);
    const holders = await Promise.all(
      FOLLOWING_CLIENTS.map(async ([name, make]) => {
        const client = await make(cluster);
        closers.push(() => client.close());
        return new Holder(name, client);
      }),
    );
    await Promise.all(holders.map(async (holder) => holder.acquire()));
    const rival = new Rival(cluster, () => holders.map(({ lock }) => lock));
    const running = [...holders, rival].map(async (one) => one.run());
    for (const [name, fault] of FAULTS) {
      const primary = await cluster.primary();
      const undo = await fault(cluster, primary);
      const waited = name === "SIGSTOP" ? holders.filter(({ isPatient }) => !isPatient) : holders;
      await allServed(`to get over ${name}`, waited, cluster);
      expect(holders.flatMap(({ failure }) => failure ?? [])).toEqual([]);
      const refusedBefore = rival.refusals;
      await until("the rival to be refused", () => rival.refusals > refusedBefore + holders.length);
      await undo();
      await allServed(`to go on after ${name}`, holders, cluster);
    }
    for (const one of [...holders, rival]) one.stop();
    await within("all to end", Promise.all(running));
    expect(rival.tokens).toEqual([]);
    const seen = await cluster.onPrimary(async (connection) => {
      const lost: string[] = [];
      for (const { name, lock, token } of holders) {
        if ((await connection.call("LOCK.CHECK", lock, token)) !== 1) lost.push(name);
      }
      return { lost, leases: await allLeases(connection) };
    });
    expect(seen.lost).toEqual([]);
    // Every lease that was asked for was granted once: the ids that the server chose are those that clients were told.
    const told = holders.flatMap(({ name, granted }) => [name, ...granted]);
    expect(seen.leases.toSorted()).toEqual([...told, "rival"].toSorted());
  });

  test("lock libraries keep their locks", async () => {
    const cluster = await Cluster.start(servers, etcd, 3);
    const client = ioredis6Client(cluster);
    closers.push(() => client.disconnect());
    const state = { isOver: false, lost: [] as string[] };
    const mutex = new Mutex(client, "semaphore", {
      lockTimeout: TTL_MS,
      refreshInterval: 200,
      onLockLost: (error) => state.lost.push(`redis-semaphore: ${error.message}`),
    });
    await mutex.acquire();
    const redlock = new Redlock5([client], { automaticExtensionThreshold: TTL_MS - 200 });
    const inRedlock = redlock.using(["redlock"], TTL_MS, {}, async () => {
      await until("the end", () => state.isOver, 150_000);
    });
    const refused = inRedlock.catch((error: unknown) => state.lost.push(`redlock: ${String(error)}`));
    const sesame = new SesameRedlock([client as never], { automaticExtensionThreshold: TTL_MS - 200 });
    const inSesame = sesame
      .using(["sesame"], TTL_MS, {}, async () => {
        await until("the end", () => state.isOver, 150_000);
      })
      .catch((error: unknown) => state.lost.push(`@sesamecare-oss/redlock: ${String(error)}`));
    // This one does not extend by itself; what a failover cuts off is tried again, as its users do.
    const lock4 = await new Redlock4([client], { retryCount: 0 }).lock("redlock4", TTL_MS);
    const extended = { count: 0 };
    const inRedlock4 = (async () => {
      while (!state.isOver) {
        await letPass(200);
        await lock4.extend(TTL_MS).then(
          () => (extended.count += 1),
          () => null,
        );
      }
    })();
    const values = async (): Promise<unknown> => client.mget(...LIBRARY_KEYS);
    await until("all locks to be there", async () => !JSON.stringify(await values()).includes("null"));
    const before = await values();
    const rival = new Rival(cluster, () => LIBRARY_KEYS);
    const rivalry = rival.run();
    for (const [, fault] of FAULTS) {
      const primary = await cluster.primary();
      const undo = await fault(cluster, primary);
      await cluster.otherPrimary(primary);
      expect(await within("an answer", values(), ROLE_MS + SLACK_MS)).toEqual(before);
      const refusedBefore = rival.refusals;
      await until("the rival to be refused", () => rival.refusals > refusedBefore);
      const extendedBefore = extended.count;
      await until("the lock of redlock 4 to be extended", () => extended.count > extendedBefore);
      await undo();
    }
    rival.stop();
    await rivalry;
    expect(rival.tokens).toEqual([]);
    expect(state.lost).toEqual([]);
    state.isOver = true;
    await Promise.all([refused, inSesame, inRedlock4]);
    await mutex.release();
    await lock4.unlock();
    expect(state.lost).toEqual([]);
    expect(await values()).toEqual(LIBRARY_KEYS.map(() => null));
  });
});

/** Of redis-semaphore, redlock 5, its fork, redlock 4. */
const LIBRARY_KEYS = ["mutex:semaphore", "redlock", "sesame", "redlock4"];

async function allLeases(connection: RespConnection): Promise<string[]> {
  const ids: string[] = [];
  let cursor = "0";
  do {
    const reply = await connection.call("LEASE.SCAN", cursor, "COUNT", 1_000);
    if (!Array.isArray(reply) || !Array.isArray(reply[1])) throw new Error("LEASE.SCAN answers a cursor and ids");
    cursor = textOf(reply[0]);
    ids.push(...reply[1].map((id) => textOf(id)));
  } while (cursor !== "0");
  return ids;
}
