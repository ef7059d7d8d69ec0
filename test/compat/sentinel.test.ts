import { Redis as Redis6 } from "ioredis";
import { Redis as Redis5 } from "ioredis5";
import { createSentinel as createSentinel6 } from "redis";
import { createSentinel as createSentinel5 } from "redis5";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { NodeAddress } from "#src/ports.js";
import { startNode, type TestNode } from "../resp/commands-harness.js";
import { address, HeldView, startSentinel, type TestSentinel } from "../resp/sentinel-harness.js";
import { freePorts } from "../support/ports.js";
import { until, within } from "../support/poll.js";
import { fields, textOf, type RespConnection } from "../support/resp-client.js";
import { runOk } from "../support/subprocess.js";
import { describeWith } from "../support/tools.js";

/**
 * Clients that know nothing of Leasehold, in their Sentinel mode: they find the primary among three nodes, follow it when the role
 * changes hands, and are not led astray by a node that has lost sight of the cluster.
 *
 * The nodes are real ones, each with a store of its own, so that it shows where a key went; the roles are given by hand.
 */

vi.setConfig({ testTimeout: 60_000, hookTimeout: 60_000 });

const NAME = "leasehold";

class Member {
  readonly node: TestNode;
  readonly address: NodeAddress;
  readonly view: HeldView;
  readonly sentinel: TestSentinel;
  readonly operator: RespConnection;
  #stopping: Promise<unknown> | null = null;

  private constructor(node: TestNode, view: HeldView, sentinel: TestSentinel, operator: RespConnection) {
    this.node = node;
    this.address = view.self;
    this.view = view;
    this.sentinel = sentinel;
    this.operator = operator;
  }

  static async start(node: TestNode, view: HeldView): Promise<Member> {
    const [sentinel, operator] = await Promise.all([startSentinel(view), node.connect()]);
    return new Member(node, view, sentinel, operator);
  }

  /** Both ports close, as they do when the process ends. */
  stop(): Promise<unknown> {
    this.operator.destroy();
    this.#stopping ??= Promise.all([this.sentinel.stop(), this.node.stop()]);
    return this.#stopping;
  }
}

class HandledCluster {
  readonly members: readonly Member[];
  primary: Member;

  constructor(members: readonly Member[]) {
    this.members = members;
    this.primary = this.member(0);
  }

  static async start(): Promise<HandledCluster> {
    const sentinelPorts = await freePorts(3);
    const nodes = await Promise.all(sentinelPorts.map(async () => startNode()));
    const addresses = nodes.map((node, index) => address(node.port, sentinelPorts[index] ?? 0));
    const members = await Promise.all(
      nodes.map(async (node, index): Promise<Member> => {
        const self = addresses[index];
        if (self === undefined) throw new Error("as many addresses as nodes");
        const others = addresses.filter((other) => other !== self);
        return Member.start(node, new HeldView(self, others));
      }),
    );
    const cluster = new HandledCluster(members);
    await Promise.all(members.slice(1).map(async ({ operator }) => operator.call("FAILOVER")));
    for (const { view } of members) view.takeOver(cluster.primary.address);
    return cluster;
  }

  member(index: number): Member {
    const member = this.members[index];
    if (member === undefined) throw new Error(`no member ${index}`);
    return member;
  }

  get sentinels(): { readonly host: string; readonly port: number }[] {
    return this.members.map(({ sentinel }) => ({ host: "127.0.0.1", port: sentinel.port }));
  }

  /** The primary gives up its role, which closes the connections of its clients; nobody has it. */
  async demote(): Promise<void> {
    await this.primary.operator.call("FAILOVER");
    for (const { view } of this.members) view.goStale();
  }

  async promote(member: Member): Promise<void> {
    await member.operator.call("REPLICAOF", "NO", "ONE");
    this.primary = member;
    for (const { view } of this.members) view.takeOver(member.address);
  }

  /** The value of `key` at the node that is primary. */
  async valueOf(key: string): Promise<string | null> {
    const value = await this.primary.operator.call("GET", key);
    return value === null ? null : textOf(value);
  }

  async stop(): Promise<void> {
    await Promise.all(this.members.map(async (member) => member.stop()));
  }
}

/** What the clients under test have in common. */
interface Client {
  connect(): Promise<unknown>;
  set(key: string, value: string): Promise<unknown>;
  disconnect(): void;
}

type Endpoints = HandledCluster["sentinels"];

interface IoredisOptions {
  readonly failoverDetector: boolean;
}

function ioredis(sentinels: Endpoints, version: 5 | 6, { failoverDetector }: IoredisOptions): Client {
  const options = {
    sentinels,
    name: NAME,
    failoverDetector,
    lazyConnect: true,
    sentinelRetryStrategy: () => 50,
    retryStrategy: () => 20,
  };
  const client = version === 5 ? new Redis5(options) : new Redis6(options);
  client.on("error", () => {
    // says that no Sentinel knows a primary, while that is so
  });
  return client;
}

function nodeRedis(sentinelRootNodes: Endpoints, version: 5 | 6, RESP: 2 | 3): Client {
  const options = { name: NAME, sentinelRootNodes, RESP } as const;
  const client = version === 5 ? createSentinel5(options) : createSentinel6(options);
  client.on("error", () => {
    // each lost connection, and each Sentinel that knows no primary
  });
  return {
    connect: async () => client.connect(),
    set: async (key, value) => client.set(key, value),
    disconnect: () => {
      client.destroy().catch(() => {
        // it may be in the middle of a reconnect
      });
    },
  };
}

interface Candidate {
  readonly make: (sentinels: Endpoints) => Client;
  /** Listens to the Sentinel port's events. */
  readonly listens: boolean;
  /** Gives up for good when the event comes while it is looking for a primary: an error of ioredis, in an option that is off by default. */
  readonly diesOfEvents?: true;
}

const CLIENTS: readonly (readonly [string, Candidate])[] = [
  ...([5, 6] as const).flatMap((version): [string, Candidate][] => [
    [
      `ioredis ${version}`,
      { make: (sentinels) => ioredis(sentinels, version, { failoverDetector: false }), listens: false },
    ],
    [
      `ioredis ${version} with failover detector`,
      {
        make: (sentinels) => ioredis(sentinels, version, { failoverDetector: true }),
        listens: true,
        diesOfEvents: true,
      },
    ],
  ]),
  ...([5, 6] as const).flatMap((version) =>
    ([2, 3] as const).map((protocol): [string, Candidate] => [
      `node-redis ${version}, RESP${protocol}`,
      { make: (sentinels) => nodeRedis(sentinels, version, protocol), listens: true },
    ]),
  ),
];

/** Of the two other nodes, of the operator, and of the client at least one. */
const LINKS_AND_OPERATOR = 4;

const receivedBy = (sentinels: readonly TestSentinel[]): number =>
  sentinels.reduce((sum, { server }) => sum + server.statistics.connectionsReceived, 0);

async function isMasterDisconnected(sentinel: TestSentinel): Promise<boolean> {
  const client = await sentinel.connect();
  const flags = fields(await client.call("SENTINEL", "MASTER", NAME)).get("flags");
  client.destroy();
  return flags === "master,disconnected";
}

const isListenedTo = ({ server }: TestSentinel): boolean =>
  [...server.connections()].some(({ subscriptions }) => subscriptions !== null);

let cluster: HandledCluster;
const clients: Client[] = [];

function useCluster(): void {
  beforeEach(async () => {
    cluster = await HandledCluster.start();
  });
  afterEach(async () => {
    for (const client of clients.splice(0)) client.disconnect();
    await cluster.stop();
  });
}

describe.each(CLIENTS)("%s", (_name, { make, listens, diesOfEvents }) => {
  useCluster();

  async function connected(): Promise<Client> {
    const client = make(cluster.sentinels);
    clients.push(client);
    await within("the client to connect", client.connect());
    return client;
  }

  test.skipIf(diesOfEvents)("finds the primary, and follows the role without being told", async () => {
    const client = await connected();
    await client.set("a", "1");
    expect(await cluster.valueOf("a")).toBe("1");
    await cluster.demote();
    const written = client.set("b", "2");
    await cluster.promote(cluster.member(1));
    await within("the command that was sent in between", written);
    expect(await cluster.valueOf("b")).toBe("2");
    await cluster.demote();
    await cluster.promote(cluster.member(2));
    await within("a command after the next switch", client.set("c", "3"));
    expect(await cluster.valueOf("c")).toBe("3");
  });

  test("passes by a Sentinel port that has lost sight of the cluster, the first of its list", async () => {
    cluster.member(0).view.goStale();
    await cluster.primary.operator.call("FAILOVER");
    await cluster.member(1).operator.call("REPLICAOF", "NO", "ONE");
    cluster.primary = cluster.member(1);
    for (const { view } of cluster.members.slice(1)) view.takeOver(cluster.primary.address);
    const client = await connected();
    await within("a command", client.set("a", "1"));
    expect(await cluster.valueOf("a")).toBe("1");
  });

  test.runIf(listens)("follows a switch that only the events tell of", async () => {
    const client = await connected();
    await client.set("a", "1");
    // The former primary has not noticed: it closes no connection and would still take every command.
    await until("the client to listen to the Sentinel ports", () =>
      cluster.members.some(({ sentinel }) => isListenedTo(sentinel)),
    );
    await cluster.promote(cluster.member(1));
    await until("a command to reach the new primary", async () => {
      await client.set("b", "2");
      return (await cluster.valueOf("b")) === "2";
    });
  });

  test.skipIf(diesOfEvents)(
    "outlasts the end of the primary's process, which the others go on to name for a while",
    async () => {
      const client = await connected();
      await client.set("a", "1");
      const lost = cluster.member(0);
      const ofOthers = cluster.members.slice(1).map(({ sentinel }) => sentinel);
      await until(
        "the others to be linked to the primary",
        () => lost.node.server.connectionCount >= LINKS_AND_OPERATOR,
      );
      await lost.stop();
      await Promise.all(
        ofOthers.map(async (sentinel) => until("the links to break", () => isMasterDisconnected(sentinel))),
      );
      const before = receivedBy(ofOthers);
      const written = client.set("b", "2");
      await until("the client to ask the others", () => receivedBy(ofOthers) > before);
      await cluster.promote(cluster.member(1));
      await within("the command that was sent in between", written);
      expect(await cluster.valueOf("b")).toBe("2");
    },
  );

  test("passes by Sentinel ports that are not there", async () => {
    await cluster.member(0).sentinel.stop();
    const client = await connected();
    await within("a command", client.set("a", "1"));
    expect(await cluster.valueOf("a")).toBe("1");
  });
});

const PYTHON = `
import json, sys, redis
from redis.sentinel import Sentinel, MasterNotFoundError

ports = [int(port) for port in sys.argv[1:]]
sentinel = Sentinel([("127.0.0.1", port) for port in ports], min_other_sentinels=len(ports) - 1, socket_timeout=20)
said = {}
said["master"] = sentinel.discover_master("leasehold")
said["slaves"] = sentinel.discover_slaves("leasehold")
host, port = sentinel.sentinels[0].sentinel_get_master_addr_by_name("leasehold")
said["address"] = [host.decode(), port]
said["sentinels"] = [other["port"] for other in sentinel.sentinels[0].sentinel_sentinels("leasehold")]
said["flags"] = sentinel.sentinels[0].sentinel_master("leasehold")["flags"]
try:
    sentinel.discover_master("other")
except MasterNotFoundError as error:
    said["other"] = type(error).__name__

master = sentinel.master_for("leasehold")
master.set("before", "1")
print("writing", flush=True)
errors = set()
while True:
    try:
        master.set("after", "2")
        if master.get("stop") is not None:
            break
    except redis.ConnectionError as error:
        errors.add(type(error).__name__)
said["errors"] = sorted(errors)
print(json.dumps(said))
`;

describeWith(["python3-redis"], "python3-redis", () => {
  useCluster();

  test("finds the primary, and follows the role", async () => {
    const ports = cluster.sentinels.map(({ port }) => String(port));
    const dialogue = runOk("/usr/bin/python3", ["-c", PYTHON, ...ports]);
    await until("the script to write", async () => cluster.valueOf("after"), 40_000);
    const [first, second, third] = [cluster.member(0), cluster.member(1), cluster.member(2)];
    await cluster.demote();
    await cluster.promote(second);
    await until("the script to follow", async () => cluster.valueOf("after"), 40_000);
    await cluster.primary.operator.call("SET", "stop", "1");
    const said = JSON.parse((await dialogue).split("\n")[1] ?? "") as Record<string, unknown>;
    expect(said).toMatchObject({
      master: ["127.0.0.1", first.node.port],
      address: ["127.0.0.1", first.node.port],
      flags: "master",
      other: "MasterNotFoundError",
    });
    const ofOthers = [second, third];
    expect(new Set(said["slaves"] as unknown[])).toEqual(new Set(ofOthers.map(({ node }) => ["127.0.0.1", node.port])));
    expect(new Set(said["sentinels"] as unknown[])).toEqual(new Set(ofOthers.map(({ sentinel }) => sentinel.port)));
  });

  test("passes by a Sentinel port that has lost sight of the cluster", async () => {
    cluster.member(0).view.goStale();
    await cluster.primary.operator.call("SET", "stop", "1");
    const ports = cluster.sentinels.map(({ port }) => String(port));
    const said: unknown = JSON.parse((await runOk("/usr/bin/python3", ["-c", PYTHON, ...ports])).split("\n")[1] ?? "");
    expect(said).toMatchObject({ master: ["127.0.0.1", cluster.primary.node.port], errors: [] });
  });
});

describeWith(["redis-cli"], "redis-cli", () => {
  useCluster();

  test.each([
    ["RESP2", []],
    ["RESP3", ["-3"]],
  ] as const)("asks the Sentinel port, %s", async (_name, flags) => {
    const { port } = cluster.member(1).sentinel;
    const cli = async (...args: string[]): Promise<string> =>
      (await runOk("redis-cli", ["-p", String(port), ...flags, ...args])).trimEnd();
    expect(await cli("SENTINEL", "get-master-addr-by-name", NAME)).toBe(`127.0.0.1\n${cluster.primary.node.port}`);
    expect(await cli("SENTINEL", "masters")).toContain("num-other-sentinels");
    expect(await cli("SENTINEL", "ckquorum", NAME)).toMatch(/^OK 3 usable Sentinels\./);
    expect(await cli("SENTINEL", "help")).toContain("GET-MASTER-ADDR-BY-NAME master-name");
    expect(await cli("INFO", "sentinel")).toMatch(/^master0:name=leasehold,status=ok,.*,slaves=2,sentinels=3\r?$/m);
    expect(await cli("GET", "a")).toMatch(/^ERR unknown command/);
    expect(await cli("COMMAND", "DOCS", "sentinel")).toContain("get-master-addr-by-name");
  });
});
