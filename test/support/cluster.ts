/**
 * A cluster of real node processes over a real etcd: started, looked at, and judged by what etcd has of its whole life. Each has a
 * name of its own, so that several may share one etcd.
 */
import { createServer } from "node:net";
import { once } from "node:events";
import { EtcdError } from "#src/durability/etcd/etcd-client.js";
import type { KeyValue, WatchEvent } from "#src/durability/etcd/protocol.js";
import { EtcdKeys } from "#src/durability/etcd/rows.js";
import { etcdClient } from "../durability/etcd/real-etcd.js";
import type { Fence } from "./cluster-epochs.js";
import type { EtcdCluster } from "./etcd.js";
import { until, within } from "./poll.js";
import { RespConnection, textOf } from "./resp-client.js";
import type { Server, ServerPool } from "./server.js";

/** A role of short duration, so that tests need not wait; the server checks that these times are safe. On a crowded machine it may be lost. */
export const ROLE_MS = 2_500;
export const ROLE_MARGIN_MS = 450;
const BEAT_MS = 400;
/** A request to etcd is given up after so long. */
export const ETCD_TIMEOUT_MS = 500;

/** A role that no machine is too crowded to keep: for tests in which it must not move by itself. */
export const LONG_ROLE = ["--role-ms=60000", "--role-margin-ms=600", "--etcd-timeout-ms=2000"];

/** Within this there is a primary again after any fault that the cluster should survive, on the slowest of machines. */
const PRIMARY_MS_MAX = 60_000;

interface NodeOptions {
  /** Where the node finds etcd; the members themselves when not given. */
  readonly endpoints?: readonly string[];
  readonly args?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
}

export class ClusterNode {
  readonly label: string;
  readonly port: number;
  readonly sentinelPort: number;
  server: Server;
  /** Stands still: it is not asked for anything. */
  isFrozen = false;

  constructor(label: string, port: number, sentinelPort: number, server: Server) {
    this.label = label;
    this.port = port;
    this.sentinelPort = sentinelPort;
    this.server = server;
  }

  get isRunning(): boolean {
    return this.server.isRunning;
  }

  async freeze(): Promise<void> {
    this.isFrozen = true;
    await this.server.freeze();
  }

  thaw(): void {
    this.server.thaw();
    this.isFrozen = false;
  }

  /** Whether it serves as primary; false as well when it does not say so within a second. */
  async isPrimary(): Promise<boolean> {
    return (await this.replication()).get("leasehold_role") === "primary";
  }

  /** INFO replication; nothing when the node does not answer. */
  async replication(): Promise<Map<string, string>> {
    if (!this.isRunning || this.isFrozen) return new Map();
    const connection = await RespConnection.connect(this.port).catch(() => null);
    if (connection === null) return new Map();
    try {
      const text = textOf(await within("INFO", connection.call("INFO", "replication"), 1_000));
      return new Map(
        text.split("\r\n").map((line) => [line.split(":", 1)[0] ?? "", line.slice(line.indexOf(":") + 1)]),
      );
    } catch {
      return new Map(); // on its way down, or too slow: it is asked again
    } finally {
      connection.destroy();
    }
  }
}

const NUL = Buffer.from([0]);

function fenceOf({ value, modRevision }: KeyValue): Fence {
  const { epoch, node } = JSON.parse(value.toString("utf8")) as { epoch: number; node: { port: number } };
  return { epoch, port: node.port, revision: modRevision };
}

let clusters = 0;

export class Cluster {
  readonly name = `e2e-${process.pid}-${clusters++}`;
  readonly nodes: ClusterNode[] = [];
  readonly etcd: EtcdCluster;
  readonly #servers: ServerPool;
  readonly #keys = new EtcdKeys(this.name);

  constructor(servers: ServerPool, etcd: EtcdCluster) {
    this.#servers = servers;
    this.etcd = etcd;
  }

  /** A cluster of `count` nodes, the first of which is primary. */
  static async start(
    servers: ServerPool,
    etcd: EtcdCluster,
    count: number,
    options: NodeOptions = {},
  ): Promise<Cluster> {
    const cluster = new Cluster(servers, etcd);
    const first = await cluster.add(options);
    await cluster.primary();
    await Promise.all(Array.from({ length: count - 1 }, async () => cluster.add(options)));
    if (!(await first.isPrimary())) await cluster.primary();
    return cluster;
  }

  /** Starts a further node. */
  async add(options: NodeOptions = {}): Promise<ClusterNode> {
    const [port = 0, sentinelPort = 0] = await quietPorts(2);
    const server = await this.#launch(port, sentinelPort, options).ready();
    const node = new ClusterNode(`node ${this.nodes.length}`, port, sentinelPort, server);
    this.nodes.push(node);
    return node;
  }

  /** Starts the process of a node again, on the same ports. */
  async restart(node: ClusterNode, options: NodeOptions = {}): Promise<void> {
    node.server = await this.#launch(node.port, node.sentinelPort, options).ready();
    node.isFrozen = false;
  }

  #launch(port: number, sentinelPort: number, { endpoints, args = [], env = {} }: NodeOptions): Server {
    const flags = [
      `--store=etcd://${(endpoints ?? this.etcd.endpoints).join(",")}`,
      `--cluster=${this.name}`,
      `--port=${port}`,
      `--sentinel-port=${sentinelPort}`,
      `--role-ms=${ROLE_MS}`,
      `--role-margin-ms=${ROLE_MARGIN_MS}`,
      `--beat-ms=${BEAT_MS}`,
      `--etcd-timeout-ms=${ETCD_TIMEOUT_MS}`,
    ];
    return this.#servers.launch({ dir: this.#servers.directory(), args: [...flags, ...args], env });
  }

  get ports(): number[] {
    return this.nodes.filter((node) => node.isRunning).map((node) => node.port);
  }

  /** The node that serves as primary. Waits for one, among those nodes only when they are named. */
  async primary(among: readonly ClusterNode[] = this.nodes): Promise<ClusterNode> {
    return until(
      "a primary",
      async () => {
        const answers = await Promise.all(among.map(async (node) => node.isPrimary()));
        return among[answers.indexOf(true)] ?? null;
      },
      PRIMARY_MS_MAX,
    ).catch((error: unknown) => {
      throw new Error(`${String(error)}\n${this.describe()}`, { cause: error });
    });
  }

  /** Hands the role on until this node has it. */
  async moveRoleTo(node: ClusterNode): Promise<void> {
    await until(
      `${node.label} to be primary`,
      async () => {
        const primary = await this.primary();
        if (primary === node) return true;
        const operator = await RespConnection.connect(primary.port).catch(() => null);
        // refused by a node that has just lost the role: whoever has it now is asked
        await operator?.send("FAILOVER").catch(() => null);
        operator?.destroy();
        return false;
      },
      PRIMARY_MS_MAX,
    );
  }

  /** Does something over a connection to the primary: again, from the start, when that one lost its role or the connection broke. */
  async onPrimary<T>(ask: (connection: RespConnection, primary: ClusterNode) => Promise<T>): Promise<T> {
    const done: T[] = [];
    await until(
      "the primary to do what it was asked",
      async () => {
        const primary = await this.primary();
        const connection = await RespConnection.connect(primary.port).catch(() => null);
        if (connection === null) return false;
        try {
          done.push(await ask(connection, primary));
        } catch (error) {
          if (await primary.isPrimary()) throw error;
        } finally {
          connection.destroy();
        }
        return done.length > 0;
      },
      PRIMARY_MS_MAX,
    );
    const [result] = done;
    return result as T;
  }

  /** A primary other than this node. */
  async otherPrimary(node: ClusterNode): Promise<ClusterNode> {
    return this.primary(this.nodes.filter((other) => other !== node));
  }

  /** Every change of the fence since the cluster began, from etcd's history. */
  async fences(): Promise<Fence[]> {
    const changes = await this.#historyOf(this.#keys.fence, Buffer.concat([this.#keys.fence, NUL]), 1);
    return changes.map(({ row }) => fenceOf(row));
  }

  /** The same while it happens, for when etcd is made to forget its history. Returns what ends it, with all that there were. */
  async watchFences(): Promise<() => Promise<readonly Fence[]>> {
    const client = etcdClient(this.etcd.endpoints);
    const key = this.#keys.fence;
    const fences: Fence[] = [];
    const ended: string[] = [];
    client.watch(
      [{ key, end: Buffer.concat([key, NUL]), fromRevision: 1 }],
      ({ events, cancelReason }) => {
        if (cancelReason !== "") ended.push(cancelReason);
        fences.push(...events.map(({ row }) => fenceOf(row)));
      },
      (reason) => ended.push(reason),
    );
    const untilSeen = async (revision: number): Promise<void> => {
      await until("the watch of the fence", () => {
        if (ended.length > 0) throw new Error(`it ended: ${ended.join(", ")}`);
        return (fences.at(-1)?.revision ?? -1) >= revision;
      });
    };
    await untilSeen(0);
    return async () => {
      await untilSeen((await client.range({ key })).rows[0]?.modRevision ?? 0);
      client.close();
      return fences;
    };
  }

  /** Makes etcd forget everything but what there is now. */
  async compact(): Promise<void> {
    const client = etcdClient(this.etcd.endpoints);
    try {
      await client.compact((await client.range({ key: this.#keys.fence })).revision);
    } catch (error) {
      // nothing was written since the last time
      if (!(error instanceof EtcdError && error.kind === "compacted")) throw error;
    } finally {
      client.close();
    }
  }

  /** The revision that etcd is at. */
  async newestRevision(): Promise<number> {
    const client = etcdClient(this.etcd.endpoints);
    try {
      return (await client.range({ key: this.#keys.fence })).revision;
    } finally {
      client.close();
    }
  }

  /**
   * Everything that was written to etcd after a revision, by whomever: how often which key, named without the cluster's prefix, and the
   * revision of the last change.
   */
  async changesSince(revision: number): Promise<{ revision: number; keys: ReadonlyMap<string, number> }> {
    const changes = await this.#historyOf(NUL, NUL, revision + 1);
    const keys = new Map<string, number>();
    for (const { row } of changes) {
      const name = row.key.toString("latin1").replace(`/leasehold/${this.name}/`, "");
      keys.set(name, (keys.get(name) ?? 0) + 1);
    }
    return { revision: changes.at(-1)?.row.modRevision ?? revision, keys };
  }

  /** The changes of a range from a revision until now, from etcd's history, which nobody compacts here. */
  async #historyOf(key: Buffer, end: Buffer, fromRevision: number): Promise<WatchEvent[]> {
    const client = etcdClient(this.etcd.endpoints);
    try {
      const { rows } = await client.range({ key, end });
      const newest = Math.max(0, ...rows.map(({ modRevision }) => modRevision));
      const found: WatchEvent[] = [];
      const all = new Promise<void>((resolve, reject) => {
        if (newest < fromRevision) resolve();
        client.watch(
          [{ key, end, fromRevision }],
          ({ events }) => {
            found.push(...events);
            if (events.some(({ row }) => row.modRevision >= newest)) resolve();
          },
          (reason) => reject(new Error(reason)),
        );
      });
      await within(`etcd's history of ${key.toString("latin1")}`, all);
      return found.filter(({ row }) => row.modRevision <= newest);
    } finally {
      client.close();
    }
  }

  describe(): string {
    return this.nodes.map((node) => `--- ${node.label} (${node.port}): ${node.server.describe(null)}`).join("\n");
  }
}

/** Below those that the kernel gives to outgoing connections: they stay free while a node is down. */
const QUIET_PORT_MIN = 12_000;
const QUIET_PORT_MAX = 31_000;

async function quietPorts(count: number): Promise<number[]> {
  const found: number[] = [];
  while (found.length < count) {
    const port = QUIET_PORT_MIN + Math.floor(Math.random() * (QUIET_PORT_MAX - QUIET_PORT_MIN));
    const server = createServer();
    const isFree = await new Promise<boolean>((resolve) => {
      server.once("error", () => resolve(false));
      server.listen(port, "127.0.0.1", () => resolve(true));
    });
    if (!isFree) continue;
    server.close();
    await once(server, "close");
    if (!found.includes(port)) found.push(port);
  }
  return found;
}
