import { runClosedLoop, type ClosedLoopJob } from "../load/closed-loop.js";
import type { ContestantKind } from "../load/contestants.js";
import { withClient } from "../load/resp-connection.js";
import type { CycleStep } from "../load/target.js";
import type { ServerProcess } from "../systems/system.js";
import type { Bench, GeneratorContender } from "./bench.js";
import { fill, REDIS_BENCHMARK_ID, TTL_MS } from "./commands.js";
import { HOLDER } from "../load/target.js";

/**
 * Locks: taken and given back by clients that do not meet; one lock that all want; and the scripts with which lock libraries
 * release and extend.
 *
 * Against Redis a lock is what everybody makes of it: SET NX PX with the holder's token, and a script that deletes (or
 * extends) the key if that token is still in it.
 */

const RELEASE_SCRIPT = `if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) else return 0 end`;
const EXTEND_SCRIPT = `if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("pexpire", KEYS[1], ARGV[2]) else return 0 end`;

/** Returns the script's SHA1. */
async function loadScript(server: ServerProcess, source: string): Promise<string> {
  return withClient(server.port, async (client) => String(await client.call("SCRIPT", "LOAD", source)));
}

const CYCLERS_MAX = 50;
const CYCLE_WARMUP_MS = 1000;
const FIRST_ID = 10_000_000_000;
const IDS_PER_ROUND = 10_000_000;

/** Acquire and release, each connection its own lock: one cycle is two requests, the second after the first was answered. */
export async function lockCycle(bench: Bench): Promise<void> {
  await bench.withServers(["leasehold", "redis-memory", "redis-always"], async (servers) => {
    const [leasehold] = servers;
    if (leasehold === undefined) return;
    const scripted = await Promise.all(servers.map(async (server) => byStrings(server)));
    await fill(leasehold, CYCLERS_MAX);
    const contenders = [{ server: leasehold, way: "LOCK.*", steps: LOCK_STEPS }, ...scripted];
    for (const each of contenders) await warmUpCycles(bench, each);
    for (const connections of [1, CYCLERS_MAX]) {
      await bench.compareByGenerator(
        { scenario: "lock-cycle", operation: "acquire + release", leases: 0, connections, pipeline: 1 },
        contenders.map((each, which) => cycler(bench, each, connections, which)),
      );
    }
  });
}

interface Cycling {
  readonly server: ServerProcess;
  readonly way: string;
  readonly steps: readonly CycleStep[];
}

/** Every connection has a lease of its own, from before. */
const LOCK_STEPS: readonly CycleStep[] = [
  { argv: ["LOCK.ACQUIRE", "lock:{id}", "lease:{connection}"], expect: "positive" },
  { argv: ["LOCK.RELEASE", "lock:{id}", "lease:{connection}"], expect: "one" },
];

async function byStrings(server: ServerProcess): Promise<Cycling> {
  const release = await loadScript(server, RELEASE_SCRIPT);
  const token = "holder-{connection}";
  return {
    server,
    way: "SET NX PX + EVALSHA",
    steps: [
      { argv: ["SET", "lock:{id}", token, "NX", "PX", `${TTL_MS}`], expect: "ok" },
      { argv: ["EVALSHA", release, "1", "lock:{id}", token], expect: "one" },
    ],
  };
}

function cycler(bench: Bench, { server, way, steps }: Cycling, connections: number, which: number): GeneratorContender {
  return {
    server,
    way,
    argv: steps.map(({ argv }) => argv[0] ?? ""),
    job: (round) => ({
      kind: "closed",
      // Two ways on one server, and the rounds, take keys of their own.
      target: {
        kind: "resp-cycle",
        port: server.port,
        steps,
        ids: { kind: "sequence", from: FIRST_ID + (which * 1000 + round) * IDS_PER_ROUND },
      },
      connections,
      depth: 1,
      warmupMs: CYCLE_WARMUP_MS,
      durationMs: bench.options.roundMs,
      requestsMax: IDS_PER_ROUND,
    }),
  };
}

/** At one connection, or with one lock, a turn is too short for Node to compile what it runs. */
async function warmUpCycles(bench: Bench, { server, steps }: Cycling): Promise<void> {
  const run = await runClosedLoop({
    kind: "closed",
    target: { kind: "resp-cycle", port: server.port, steps, ids: { kind: "sequence", from: 0 } },
    connections: CYCLERS_MAX,
    depth: 8,
    warmupMs: 0,
    durationMs: 10_000,
    requestsMax: bench.options.quick ? 2000 : 20_000,
  });
  if (run.errors > 0) throw new Error(`${server.name}: ${run.firstError}`);
}

const CLIENTS = 50;
/** Longer than redlock's longest pause between two attempts, so that no client is still in its first. */
const CONTENTION_WARMUP_MS = 1000;

/** One lock that fifty clients want all the time. */
export async function lockContention(bench: Bench): Promise<void> {
  await bench.withServers(["leasehold", "redis-memory", "redis-always"], async ([leasehold, memory, always]) => {
    if (leasehold === undefined || memory === undefined || always === undefined) return;
    await fill(leasehold, CYCLERS_MAX);
    await warmUpCycles(bench, { server: leasehold, way: "LOCK.*", steps: LOCK_STEPS });
    const contenders = [
      contender(bench, leasehold, "LOCK.ACQUIRE BLOCK"),
      contender(bench, memory, "redlock"),
      contender(bench, memory, "redis-semaphore"),
      contender(bench, always, "redlock"),
      contender(bench, always, "redis-semaphore"),
    ];
    const runs = await bench.compareByGenerator(
      { scenario: "lock-contention", operation: "hand-over", leases: 0, connections: CLIENTS, pipeline: 1 },
      contenders,
    );
    for (const [index, { server, way }] of contenders.entries()) {
      const ofOne = runs[index] ?? [];
      const sum = (of: (run: (typeof ofOne)[number]) => number): number => ofOne.reduce((all, run) => all + of(run), 0);
      bench.figure(
        "lock-contention",
        `handed-over/${server.name}/${way}`,
        `${server.name}, ${way}: acquisitions that went to another client than the last`,
        (sum((run) => run.answered) / sum((run) => run.sent)) * 100,
        "%",
      );
    }
  });
}

function contender(
  bench: Bench,
  server: ServerProcess,
  way: ContestantKind,
): GeneratorContender & { readonly way: string } {
  return {
    server,
    way,
    argv: [way],
    job: (round) => ({
      kind: "contention",
      port: server.port,
      contestants: way,
      clients: CLIENTS,
      // A run ends with the lock held or asked for: each has its own.
      lock: `contended:${way.replaceAll(" ", "-")}:${round}`,
      warmupMs: CONTENTION_WARMUP_MS,
      // Waits are long here: a turn has to be longer than most of them.
      durationMs: bench.options.roundMs * 2,
    }),
  };
}

/** Locks that the scripts of the first two loads find held, of which each request takes one at random. */
const HELD_LOCKS = 1000;
const SCRIPT_CONNECTIONS = 50;
const SCRIPT_PIPELINE = 16;
/** Each round releases so many locks, once each. */
const RELEASES_PER_ROUND = 60_000;
/** So that Node has compiled what it runs. */
const RELEASES_TO_WARM_UP = 20_000;

/**
 * Scripts under a pipelined load, by CPU time: extend, and a release by one who does not hold the lock, write nothing that must
 * be on disk; a release that deletes does, so there Redis stands with and without its log.
 */
export async function script(bench: Bench): Promise<void> {
  const shape = { connections: SCRIPT_CONNECTIONS, pipeline: SCRIPT_PIPELINE };
  await bench.withServers(["leasehold", "redis-memory"], async (servers) => {
    const extend = await Promise.all(servers.map(async (server) => loadScript(server, EXTEND_SCRIPT)));
    const release = await Promise.all(servers.map(async (server) => loadScript(server, RELEASE_SCRIPT)));
    for (const server of servers) await setLocks(server, 0, HELD_LOCKS);
    const lock = `lock:${REDIS_BENCHMARK_ID}`;
    await bench.compareByRedisBenchmark(
      { scenario: "script", operation: "EVALSHA extend", leases: HELD_LOCKS, ...shape },
      servers.map((server, index) => ({
        server,
        argv: ["EVALSHA", extend[index] ?? "", "1", lock, HOLDER, `${TTL_MS}`],
      })),
    );
    await bench.compareByRedisBenchmark(
      { scenario: "script", operation: "EVALSHA release, refused", leases: HELD_LOCKS, ...shape },
      servers.map((server, index) => ({ server, argv: ["EVALSHA", release[index] ?? "", "1", lock, "another"] })),
    );
    for (const [index, server] of servers.entries()) await checkScripts(server, extend[index] ?? "");
  });
  await bench.withServers(["leasehold", "redis-memory", "redis-always"], async (servers) => {
    const release = await Promise.all(servers.map(async (server) => loadScript(server, RELEASE_SCRIPT)));
    for (const [index, server] of servers.entries()) {
      await setLocks(server, 0, RELEASES_TO_WARM_UP);
      await runClosedLoop(releaseJob(server, release[index] ?? "", 0, RELEASES_TO_WARM_UP, 60_000));
    }
    await bench.compareByGenerator(
      { scenario: "script", operation: "EVALSHA release", leases: 0, ...shape },
      servers.map((server, index) => releaser(bench, server, release[index] ?? "")),
    );
  });
}

function releaser(bench: Bench, server: ServerProcess, release: string): GeneratorContender {
  const count = bench.options.quick ? RELEASES_PER_ROUND / 4 : RELEASES_PER_ROUND;
  const from = (round: number): number => FIRST_ID + round * IDS_PER_ROUND;
  return {
    server,
    argv: ["EVALSHA", "release"],
    prepare: async (round) => setLocks(server, from(round), count),
    job: (round) => releaseJob(server, release, from(round), count, bench.options.roundMs * 5),
  };
}

/** Releases locks `from` .. `from + count - 1`, each once. */
function releaseJob(
  server: ServerProcess,
  release: string,
  from: number,
  count: number,
  durationMs: number,
): ClosedLoopJob {
  return {
    kind: "closed",
    target: {
      kind: "resp",
      port: server.port,
      argv: ["EVALSHA", release, "1", "lock:{id}", HOLDER],
      ids: { kind: "sequence", from },
      expect: "one",
    },
    connections: SCRIPT_CONNECTIONS,
    depth: SCRIPT_PIPELINE,
    warmupMs: 0,
    durationMs,
    requestsMax: count,
  };
}

/** Sets locks `from` .. `from + count - 1` as their holder would. */
async function setLocks(server: ServerProcess, from: number, count: number): Promise<void> {
  const run = await runClosedLoop({
    kind: "closed",
    target: {
      kind: "resp",
      port: server.port,
      argv: ["SET", "lock:{id}", HOLDER, "NX", "PX", `${TTL_MS}`],
      ids: { kind: "sequence", from },
      expect: "ok",
    },
    connections: 8,
    depth: 100,
    warmupMs: 0,
    durationMs: 120_000,
    requestsMax: count,
  });
  if (run.errors > 0) throw new Error(`${server.name}: locks cannot be set: ${run.firstError}`);
  if (run.answered !== count) throw new Error(`${server.name}: ${run.answered} locks of ${count} were set`);
}

/** redis-benchmark does not look at replies: throws unless the held locks are still held, and extended by their holder alone. */
async function checkScripts(server: ServerProcess, extend: string): Promise<void> {
  await withClient(server.port, async (client) => {
    for (const [holder, expected] of [
      [HOLDER, 1],
      ["another", 0],
    ] as const) {
      const reply = await client.call("EVALSHA", extend, "1", "lock:000000000000", holder, `${TTL_MS}`);
      if (reply !== expected) throw new Error(`${server.name}: extend as ${holder} said ${JSON.stringify(reply)}`);
    }
  });
}
