import { runClosedLoop } from "../load/closed-loop.js";
import type { TargetSpec } from "../load/target.js";
import { countOf, putsBetween } from "../measure/etcd-revisions.js";
import { WAYS_OF_GRANT } from "../report/cluster-aims.js";
import { endpointsOf, launchEtcd, launchNode, type ClusterNode } from "../systems/cluster.js";
import { launch } from "../systems/launch.js";
import type { ServerProcess } from "../systems/system.js";
import type { Bench, GeneratorContender } from "./bench.js";
import { failOver } from "./cluster-failover.js";
import { millionOnEtcd } from "./cluster-million.js";
import { checkAlive, fill, grantTarget, keepAliveArgv, keepAliveTarget, warmUp } from "./commands.js";

/**
 * Several nodes: what the rows in etcd cost, what is left of one machine's speed, and how long clients are without a primary. Each
 * part starts its own servers; one that fails does not keep the others from being measured.
 */

export async function cluster(bench: Bench): Promise<void> {
  const failures: string[] = [];
  const parts = { grants, keepAlives, quietEtcd, failOver, millionOnEtcd };
  for (const [name, part] of Object.entries(parts)) {
    try {
      await part(bench);
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      failures.push(`${name}: ${reason}`);
      bench.say(`! ${name}: ${reason}`);
    }
  }
  if (failures.length > 0) throw new Error(failures.join("; "));
}

/** One etcd member and one node on it, and whatever else is added to `all`, for as long as `use` takes. */
async function withNode(
  bench: Bench,
  use: (node: ClusterNode, etcd: ServerProcess, all: ServerProcess[]) => Promise<void>,
): Promise<void> {
  const { places } = bench.options;
  const all: ServerProcess[] = [];
  try {
    const members = await launchEtcd(places, { members: 1, quotaBytes: null });
    all.push(...members);
    const node = await launchNode(places, { endpoints: endpointsOf(members), quotaBytes: null });
    all.push(node.server);
    const [etcd] = members;
    if (etcd === undefined) throw new Error("no etcd");
    await use(node, etcd, all);
  } finally {
    for (const server of all.toReversed()) await bench.retire(server);
  }
}

// Grants ----------------------------------------------------------------------------------------------------------------------

/** Above every id that fills a server. */
const FIRST_ID = 20_000_000_000;
const IDS_PER_ROUND = 10_000_000;
/** The gRPC client needs some thousands of calls until it is compiled. */
const WARMUP_MS = 2000;
const ROUNDS_MAX = 3;

/**
 * Grants through Leasehold against etcd's own. A grant with a key is one command here; to etcd it is a LeaseGrant and then a
 * transaction that puts the key unless it exists. At 50 connections also without a key: one call on either side.
 */
async function grants(bench: Bench): Promise<void> {
  await withNode(bench, async (node, etcdBelow, all) => {
    const [etcd] = await launchEtcd(bench.options.places, { members: 1, quotaBytes: null });
    if (etcd === undefined) throw new Error("no etcd");
    all.push(etcd);
    let idsFrom = FIRST_ID;
    const target = (server: ServerProcess, withKey: boolean): TargetSpec => {
      idsFrom += IDS_PER_ROUND;
      return grantTarget(server, idsFrom, withKey);
    };
    const leasehold = (withKey: boolean): Omit<GeneratorContender, "job"> => ({
      server: node.server,
      helpers: [etcdBelow],
      way: waysOf(withKey).ours,
      argv: ["LEASE.GRANT", "id", "PX", "ms", ...(withKey ? ["KEY", "key", "value"] : [])],
    });
    const direct = (withKey: boolean): Omit<GeneratorContender, "job"> => ({
      server: etcd,
      way: waysOf(withKey).theirs,
      argv: withKey ? ["LeaseGrant", "+", "Txn"] : ["LeaseGrant"],
    });
    for (const connections of bench.options.quick ? [50] : [1, 50, 500]) {
      const ways = connections === 50 ? [true, false] : [true];
      await bench.compareByGenerator(
        { scenario: "cluster", operation: "grant", leases: 0, connections, pipeline: 1 },
        ways.flatMap((withKey) =>
          [leasehold(withKey), direct(withKey)].map((contender) => ({
            ...contender,
            job: () => ({
              kind: "closed",
              target: target(contender.server, withKey),
              connections,
              depth: 1,
              warmupMs: WARMUP_MS,
              durationMs: bench.options.roundMs,
              requestsMax: IDS_PER_ROUND,
            }),
          })),
        ),
        ROUNDS_MAX,
      );
    }
  });
}

function waysOf(withKey: boolean): { readonly ours: string; readonly theirs: string } {
  return withKey ? WAYS_OF_GRANT.withKey : WAYS_OF_GRANT.withoutKey;
}

// Keep-alives -----------------------------------------------------------------------------------------------------------------

const KEEP_ALIVE_LEASES = 1000;
const WARMUP_REQUESTS = 200_000;

/** A node on etcd against one on RocksDB: keep-alives write to neither. */
async function keepAlives(bench: Bench): Promise<void> {
  await withNode(bench, async (node, _etcd, all) => {
    const embedded = await launch("leasehold", bench.options.places);
    all.push(embedded);
    const servers = [node.server, embedded];
    for (const server of servers) {
      await fill(server, KEEP_ALIVE_LEASES);
      await warmUp(server, KEEP_ALIVE_LEASES, WARMUP_REQUESTS);
    }
    for (const pipeline of [1, 16]) {
      await bench.compareByRedisBenchmark(
        { scenario: "cluster", operation: "keep-alive", leases: KEEP_ALIVE_LEASES, connections: 50, pipeline },
        servers.map((server) => ({ server, argv: keepAliveArgv(server) })),
      );
    }
    for (const server of servers) await checkAlive(server);
  });
}

const QUIET_BURSTS = 10;
const QUIET_BURST_KEEP_ALIVES = 1000;
const BETWEEN_BURSTS_MS = 300;

/** How often etcd is written to while 10,000 keep-alives are answered, and by what. */
async function quietEtcd(bench: Bench): Promise<void> {
  await withNode(bench, async (node, etcd) => {
    await fill(node.server, KEEP_ALIVE_LEASES);
    const prefix = "/leasehold/leasehold/";
    const before = await countOf(etcd.port, prefix);
    for (let burst = 0; burst < QUIET_BURSTS; burst++) {
      const run = await runClosedLoop({
        kind: "closed",
        target: keepAliveTarget(node.server, KEEP_ALIVE_LEASES),
        connections: 50,
        depth: 1,
        warmupMs: 0,
        durationMs: 60_000,
        requestsMax: QUIET_BURST_KEEP_ALIVES,
      });
      if (run.errors > 0 || run.answered !== QUIET_BURST_KEEP_ALIVES) {
        throw new Error(`${run.answered - run.errors} of ${QUIET_BURST_KEEP_ALIVES} keep-alives: ${run.firstError}`);
      }
      // So that beats and announcements fall between them, as they would.
      await new Promise((resolve) => setTimeout(resolve, BETWEEN_BURSTS_MS));
    }
    const after = await countOf(etcd.port, prefix);
    const beats = putsBetween(before, after, (key) => key === `${prefix}beat`);
    const announcements = putsBetween(before, after, (key) => key.startsWith(`${prefix}nodes/`));
    const others = after.revision - before.revision - beats - announcements;
    const during = "10,000 keep-alives, meanwhile";
    bench.figure("cluster", "quiet/beats", `${during} beats in etcd`, beats, "revisions");
    bench.figure("cluster", "quiet/announcements", `${during} announcements in etcd`, announcements, "revisions");
    bench.figure("cluster", "quiet/others", `${during} other writes to etcd`, others, "revisions");
  });
}
