/**
 * Redis clients as they come, in Sentinel mode, for tests of a cluster: each finds the primary and follows it by itself. They know
 * nothing of Leasehold; their options are those that one would give them for Redis.
 */
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { Redis as Redis6 } from "ioredis";
import { Redis as Redis5 } from "ioredis5";
import { createSentinel as createSentinel6 } from "redis";
import { createSentinel as createSentinel5 } from "redis5";
import type { Cluster } from "./cluster.js";

export interface FollowingClient {
  /** It waits without end for a process that takes connections and says nothing: until that one goes on, or ends. */
  readonly isPatient?: boolean;
  /** Rejects with whatever the client makes of an error reply, or of a connection that broke. */
  call(...args: readonly string[]): Promise<unknown>;
  close(): void;
}

const sentinelsOf = (cluster: Cluster): { host: string; port: number }[] =>
  cluster.nodes.map(({ sentinelPort }) => ({ host: "127.0.0.1", port: sentinelPort }));

const ignoreErrors = (): void => {
  // each lost connection, and each Sentinel that knows no primary; the calls themselves tell what came of them
};

/**
 * What both versions of ioredis are given. Without time-outs they would stay with a primary, or a Sentinel, that is silent but not
 * closed. Not `failoverDetector`: a switch that is told while the client looks for a primary ends it for good.
 */
function ioredisOptions(cluster: Cluster): object {
  return {
    sentinels: sentinelsOf(cluster),
    name: cluster.name,
    socketTimeout: 2_000,
    sentinelCommandTimeout: 1_000,
    maxRetriesPerRequest: null,
    sentinelRetryStrategy: () => 100,
    retryStrategy: () => 50,
    reconnectOnError: (error: Error) => (error.message.startsWith("READONLY") ? 2 : false),
  };
}

export function ioredis6Client(cluster: Cluster): Redis6 {
  const client = new Redis6(ioredisOptions(cluster));
  client.on("error", ignoreErrors);
  return client;
}

async function ioredis(cluster: Cluster, version: 5 | 6): Promise<FollowingClient> {
  const client = version === 5 ? new Redis5(ioredisOptions(cluster)) : ioredis6Client(cluster);
  client.on("error", ignoreErrors);
  return Promise.resolve({
    call: async (command = "", ...args) => client.call(command, ...args),
    close: () => client.disconnect(),
  });
}

const giveUpSoon = (retries: number): number | Error => (retries < 3 ? 100 : new Error("this node is not coming back"));

async function nodeRedis(cluster: Cluster, version: 5 | 6): Promise<FollowingClient> {
  // Without a time-out it would wait for ever for a Sentinel, or a primary, that is silent but not closed; and it asks the Sentinels
  // again only when connecting to the primary that they named has failed.
  const options = {
    name: cluster.name,
    sentinelRootNodes: sentinelsOf(cluster),
    nodeClientOptions: { socket: { socketTimeout: 2_000, reconnectStrategy: giveUpSoon } },
    sentinelClientOptions: { socket: { socketTimeout: 2_000 } },
  };
  const client = version === 5 ? createSentinel5(options) : createSentinel6(options);
  client.on("error", ignoreErrors);
  await client.connect();
  return {
    // Its handshake has no time-out, and while it lasts it asks no Sentinel; version 6 has mended that.
    isPatient: version === 5,
    call: async (...args) => client.sendCommand(false, [...args]),
    close: () => {
      client.destroy().catch(() => {
        // it may be in the middle of a reconnect
      });
    },
  };
}

/** Reads a JSON array per line, says what redis-py's Sentinel client made of it. */
const PYTHON = `
import json, sys
from redis.sentinel import Sentinel
name, ports = sys.argv[1], [int(port) for port in sys.argv[2:]]
sentinel = Sentinel([("127.0.0.1", port) for port in ports], socket_timeout=1.0)
client = sentinel.master_for(name, socket_timeout=1.0)
def plain(value):
    if isinstance(value, bytes): return value.decode("latin1")
    if isinstance(value, list): return [plain(item) for item in value]
    return value
for line in sys.stdin:
    try:
        said = {"value": plain(client.execute_command(*json.loads(line)))}
    except Exception as error:
        said = {"error": "%s: %s" % (type(error).__name__, error)}
    print(json.dumps(said), flush=True)
`;

async function python(cluster: Cluster): Promise<FollowingClient> {
  const ports = cluster.nodes.map(({ sentinelPort }) => String(sentinelPort));
  const child = spawn("/usr/bin/python3", ["-c", PYTHON, cluster.name, ...ports], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  const waiting: ((line: string) => void)[] = [];
  createInterface({ input: child.stdout }).on("line", (line) => waiting.shift()?.(line));
  return Promise.resolve({
    call: async (...args) => {
      const line = await new Promise<string>((resolve) => {
        waiting.push(resolve);
        child.stdin.write(`${JSON.stringify(args)}\n`);
      });
      const said = JSON.parse(line) as { readonly value?: unknown; readonly error?: string };
      if (said.error !== undefined) throw new Error(said.error);
      return said.value;
    },
    close: () => void child.kill("SIGKILL"),
  });
}

/** All of them, by name. */
export const FOLLOWING_CLIENTS: readonly [string, (cluster: Cluster) => Promise<FollowingClient>][] = [
  ["ioredis 5", async (cluster) => ioredis(cluster, 5)],
  ["ioredis 6", async (cluster) => ioredis(cluster, 6)],
  ["node-redis 5", async (cluster) => nodeRedis(cluster, 5)],
  ["node-redis 6", async (cluster) => nodeRedis(cluster, 6)],
  ["python3-redis", python],
];
