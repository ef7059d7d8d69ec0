import { withClient } from "../load/resp-connection.js";
import { SentinelClient, type Pauses } from "../load/sentinel-client.js";
import { median } from "../measure/statistics.js";
import { endpointsOf, isStandingBy, launchEtcd, launchNode, primaryOf, type ClusterNode } from "../systems/cluster.js";
import type { ServerProcess } from "../systems/system.js";
import type { Bench } from "./bench.js";
import { fill, TTL_MS } from "./commands.js";

/**
 * Three etcd members, three nodes with their default times, ten thousand leases. The primary is killed, and another time asked to end:
 * how long until clients of its successor are served. Clients use the old primary up to that moment, and only an answer of
 * another node counts. A node that is gone is replaced before the next round.
 */

/** The default. */
const CLUSTER = "leasehold";
const LEASES = 10_000;
const NODES = 3;
const ACKNOWLEDGED_MS_MAX = 60_000;
/** So that the moment of the end has nothing to do with the moment of a beat. */
const BEFORE_MS_MIN = 1000;
const BEFORE_MS_SPREAD = 1000;

const PAUSES: readonly Pauses[] = ["50 ms", "its defaults"];
const KEEP_ALIVE = ["LEASE.KEEPALIVE", "lease:000000000000"] as const;
const GRANT = ["LEASE.GRANT", "*", "PX", `${TTL_MS}`] as const;

interface Ending {
  readonly name: string;
  readonly label: string;
  readonly signal: NodeJS.Signals;
  readonly rounds: number;
}

export async function failOver(bench: Bench): Promise<void> {
  const { places, quick } = bench.options;
  const endings: readonly Ending[] = [
    { name: "kill", label: "primary killed (kill -9)", signal: "SIGKILL", rounds: quick ? 1 : 3 },
    { name: "hand-over", label: "primary ended by SIGTERM", signal: "SIGTERM", rounds: quick ? 2 : 5 },
  ];
  const members: ServerProcess[] = [];
  const nodes: ClusterNode[] = [];
  try {
    members.push(...(await launchEtcd(places, { members: 3, quotaBytes: null })));
    const plan = { endpoints: endpointsOf(members), quotaBytes: null };
    while (nodes.length < NODES) nodes.push(await launchNode(places, plan));
    await fill((await primaryOf(nodes)).server, LEASES);
    for (const ending of endings) {
      const roundsMs: OutageMs[] = [];
      for (let round = 0; round < ending.rounds; round++) {
        const former = await primaryOf(nodes);
        roundsMs.push(await endPrimary(nodes, former, ending.signal));
        await former.server.stop();
        await bench.retire(former.server);
        nodes.splice(nodes.indexOf(former), 1, await launchNode(places, plan));
        await checkLeases(await primaryOf(nodes));
      }
      report(bench, ending, roundsMs);
    }
  } finally {
    for (const { server } of nodes) await bench.retire(server);
    for (const member of members) await bench.retire(member);
  }
}

/** By kind of client: from the end of the primary to the first acknowledgement of another node, in milliseconds. */
type OutageMs = ReadonlyMap<Pauses, { readonly keepAliveMs: number; readonly grantMs: number }>;

async function endPrimary(
  nodes: readonly ClusterNode[],
  primary: ClusterNode,
  signal: NodeJS.Signals,
): Promise<OutageMs> {
  for (const node of nodes) if (node !== primary) await untilStandingBy(node);
  const sentinels = nodes.map(({ sentinelPort }) => sentinelPort);
  const clients = PAUSES.map((pauses) => ({ pauses, client: new SentinelClient(CLUSTER, sentinels, pauses) }));
  try {
    for (const { client } of clients) {
      await client.acknowledgedAtMs(KEEP_ALIVE, null, ACKNOWLEDGED_MS_MAX);
      await client.acknowledgedAtMs(GRANT, null, ACKNOWLEDGED_MS_MAX);
    }
    await sleep(BEFORE_MS_MIN + Math.random() * BEFORE_MS_SPREAD);
    const formerPort = primary.server.port;
    const endedMs = performance.now();
    primary.server.signal(signal);
    const outages = clients.map(async ({ pauses, client }) => {
      const [keptMs, grantedMs] = await Promise.all([
        client.acknowledgedAtMs(KEEP_ALIVE, formerPort, ACKNOWLEDGED_MS_MAX),
        client.acknowledgedAtMs(GRANT, formerPort, ACKNOWLEDGED_MS_MAX),
      ]);
      return [pauses, { keepAliveMs: keptMs - endedMs, grantMs: grantedMs - endedMs }] as const;
    });
    return new Map(await Promise.all(outages));
  } finally {
    for (const { client } of clients) client.close();
  }
}

function report(bench: Bench, { name, label }: Ending, rounds: readonly OutageMs[]): void {
  for (const pauses of PAUSES) {
    const who = pauses === "50 ms" ? "ioredis" : "ioredis with its default pauses";
    for (const [operation, of] of [
      ["keep-alive", "keepAliveMs"],
      ["grant", "grantMs"],
    ] as const) {
      const valuesMs = rounds.map((round) => round.get(pauses)?.[of] ?? Number.NaN);
      const text = `${label}, ${who}: first ${operation} after`;
      const figureName = `${name}/${operation}/${pauses}`;
      bench.figure("cluster", figureName, `${text}, median of ${rounds.length}`, median(valuesMs), "ms");
      if (pauses !== "50 ms") continue;
      bench.figure("cluster", `${figureName}/lowest`, `${text}, lowest`, Math.min(...valuesMs), "ms");
      bench.figure("cluster", `${figureName}/highest`, `${text}, highest`, Math.max(...valuesMs), "ms");
    }
  }
}

/** Throws when a lease was lost on the way. */
async function checkLeases(primary: ClusterNode): Promise<void> {
  const info = await withClient(primary.server.port, async (client) => client.call("INFO", "leases"));
  const leases = Number(/^leases:(\d+)/m.exec(String(info))?.[1]);
  if (!(leases >= LEASES)) throw new Error(`${leases} of ${LEASES} leases after a change of the primary`);
}

async function untilStandingBy(node: ClusterNode): Promise<void> {
  const endMs = performance.now() + ACKNOWLEDGED_MS_MAX;
  while (!(await isStandingBy(node.server.port))) {
    if (performance.now() > endMs) throw new Error("a standby does not follow the primary");
    await sleep(50);
  }
}

async function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
