/**
 * A cluster of real node processes over a real etcd: started, looked at, and judged by what etcd has of its whole life. Each has a
 * name of its own, so that several may share one etcd.
 */
import { createServer } from "node:net";
import { once } from "node:events";
import { EtcdKeys } from "#src/durability/etcd/rows.js";
import { etcdClient } from "../durability/etcd/real-etcd.js";
import type { Fence } from "./cluster-epochs.js";
import type { EtcdCluster } from "./etcd.js";
import { until, within } from "./poll.js";
import { RespConnection, textOf } from "./resp-client.js";
import type { Server, ServerPool } from "./server.js";

/** A role of short duration, so that tests need not wait; the server checks that these times are safe. */
export const ROLE_MS = 2_500;
export const ROLE_MARGIN_MS = 450;
const BEAT_MS = 400;
const ETCD_TIMEOUT_MS = 500;

/** Within this there is a primary again after any fault that the cluster should survive, on the slowest of machines. */
const PRIMARY_MS_MAX = 60_000;

export interface NodeOptions {
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

  /** A primary other than this node. */
  async otherPrimary(node: ClusterNode): Promise<ClusterNode> {
    return this.primary(this.nodes.filter((other) => other !== node));
  }

  /** Every change of the fence since the cluster began, from etcd's history. */
  async fences(): Promise<Fence[]> {
    const rows = await this.written(this.#keys.fence, 1);
    return rows.map(({ value, modRevision }) => {
      const { epoch, node } = JSON.parse(value) as { epoch: number; node: { port: number } };
      return { epoch, port: node.port, revision: modRevision };
    });
  }

  /** Everything that was put under a key since a revision, from etcd's history, which nobody compacts here. */
  async written(key: Buffer, fromRevision: number): Promise<{ value: string; modRevision: number }[]> {
    const client = etcdClient(this.etcd.endpoints);
    try {
      const newest = (await client.range({ key })).rows[0]?.modRevision ?? 0;
      const found: { value: string; modRevision: number }[] = [];
      const all = new Promise<void>((resolve, reject) => {
        if (newest < fromRevision) resolve();
        const end = Buffer.concat([key, Buffer.from([0])]);
        client.watch(
          [{ key, end, fromRevision }],
          ({ events }) => {
            for (const { kind, row } of events) {
              if (kind === "put") found.push({ value: row.value.toString("utf8"), modRevision: row.modRevision });
              if (row.modRevision >= newest) resolve();
            }
          },
          (reason) => reject(new Error(reason)),
        );
      });
      await within(`etcd's history of ${key.toString("utf8")}`, all);
      return found.filter(({ modRevision }) => modRevision <= newest);
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
