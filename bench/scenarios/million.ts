import { runClosedLoop } from "../load/closed-loop.js";
import { runGenerator } from "../load/generator.js";
import { withClient, type RespClient } from "../load/resp-connection.js";
import type { LoadResult } from "../load/tally.js";
import { launch, launchLeasehold } from "../systems/launch.js";
import type { ServerProcess } from "../systems/system.js";
import type { Bench } from "./bench.js";
import { fill, keepAliveTarget } from "./commands.js";

/**
 * A million live leases, first without keys, then with one key each: memory, keep-alive latency, idle CPU, start from disk,
 * and all of them falling due at one moment while a thousand other leases are renewed on a fixed schedule.
 */

/** Leases 0..999 are the others that live on; the million comes after them. */
const CALM_LEASES = 1000;
const SMALL_SET = 10_000;
const KEEP_ALIVE_RATE_PER_SECOND = 5000;
const STORM_RATE_PER_SECOND = 2000;
/** Wide enough for a thousand keep-alives, so that each slot has a 99th percentile worth the name. */
const STORM_SLOT_MS = 500;
const STORM_MS_MAX = 90_000;
const SETTLE_MS = 5000;
const IDLE_MS = 10_000;

export async function million(bench: Bench): Promise<void> {
  const failures: unknown[] = [];
  for (const [name, withKey] of [
    ["without-key", false],
    ["with-key", true],
  ] as const) {
    // The second set is worth having without the first.
    await oneSet(bench, name, withKey).catch((error: unknown) => failures.push(error));
  }
  if (failures.length > 0) throw failures[0];
}

async function oneSet(bench: Bench, name: string, withKey: boolean): Promise<void> {
  const count = bench.options.quick ? 100_000 : 1_000_000;
  const label = `${count.toLocaleString("en")} leases ${withKey ? "with one key each" : "without keys"}`;
  const figure = (what: string, text: string, value: number, unit: string): void =>
    bench.figure("million", `${what}/${name}`, `${label}: ${text}`, value, unit);

  let server = await launch("leasehold", bench.options.places);
  try {
    await sleep(bench.options.quick ? 500 : 2000);
    const emptyBytes = server.residentBytes();
    const bytesPerLease = (): number => (server.residentBytes() - emptyBytes) / count;

    const fillSeconds = await fill(server, count + CALM_LEASES, withKey);
    figure("fill-rate", "granted", (count + CALM_LEASES) / fillSeconds, "per second");
    await sleep(settleMs(bench));
    figure("bytes-per-lease", "resident memory of each, once granted", bytesPerLease(), "B");
    figure("idle-cpu", "CPU while idle", await idleCpuPercent(bench, server), "% of a core");
    if (!withKey) await keepAliveLatency(bench, server, count);

    await server.stop();
    server = await launchLeasehold("leasehold", bench.options.places, server.directory, isServing);
    figure("start", "from starting the process to the first keep-alive", server.startMs / 1000, "s");
    figure("start-cpu", "CPU time that the start took, all threads", server.cpu().processMs / 1000, "s");
    await sleep(settleMs(bench));
    figure("bytes-per-lease-restarted", "resident memory of each, after a start from disk", bytesPerLease(), "B");

    await storm(bench, server, { name, label, count, fillSeconds }, figure);
  } finally {
    await server.discard();
  }
}

function settleMs(bench: Bench): number {
  return bench.options.quick ? 1000 : SETTLE_MS;
}

async function isServing(client: RespClient): Promise<boolean> {
  const remaining = await client.call("LEASE.KEEPALIVE", "lease:000000000000");
  return typeof remaining === "number" && remaining > 0;
}

async function idleCpuPercent(bench: Bench, server: ServerProcess): Promise<number> {
  const idleMs = bench.options.quick ? 2000 : IDLE_MS;
  const before = server.cpu();
  await sleep(idleMs);
  return ((server.cpu().processMs - before.processMs) / idleMs) * 100;
}

/** The same open loop against the large set and a small one, in alternation. */
async function keepAliveLatency(bench: Bench, large: ServerProcess, count: number): Promise<void> {
  await bench.withServers(["leasehold"], async ([small]) => {
    if (small === undefined) return;
    await fill(small, SMALL_SET);
    const contenders = [
      { server: large, leases: count },
      { server: small, leases: SMALL_SET },
    ];
    await bench.compareByGenerator(
      { scenario: "million", operation: "keep-alive", leases: count, connections: 50, pipeline: 1 },
      contenders.map(({ server, leases }) => ({
        server,
        leases,
        argv: ["LEASE.KEEPALIVE", "id"],
        job: () => ({
          kind: "open",
          target: keepAliveTarget(server, leases),
          connections: 50,
          ratePerSecond: KEEP_ALIVE_RATE_PER_SECOND,
          warmupMs: 500,
          durationMs: bench.options.roundMs,
          drainMsMax: 10_000,
          slotMs: 0,
        }),
      })),
    );
  });
}

type SayFigure = (what: string, text: string, value: number, unit: string) => void;

interface LeaseSet {
  readonly name: string;
  readonly label: string;
  readonly count: number;
  /** How long granting them took: shortening their TTLs takes less. */
  readonly fillSeconds: number;
}

async function storm(bench: Bench, server: ServerProcess, set: LeaseSet, figure: SayFigure): Promise<void> {
  const { name, label, count } = set;
  const dueAtUnixMs = Date.now() + 3000 + set.fillSeconds * 1000;
  await shortenAll(server, count, dueAtUnixMs);
  const leftMs = dueAtUnixMs - Date.now();
  if (leftMs < 1500) throw new Error(`shortening the TTL of ${count} leases took longer than their time`);
  await sleep(leftMs - 1500);

  let stop: (() => void) | null = null;
  const load = runGenerator(
    {
      kind: "open",
      target: keepAliveTarget(server, CALM_LEASES),
      connections: 10,
      ratePerSecond: STORM_RATE_PER_SECOND,
      warmupMs: 200,
      durationMs: STORM_MS_MAX,
      drainMsMax: 20_000,
      slotMs: STORM_SLOT_MS,
    },
    STORM_MS_MAX + 60_000,
    { onStoppable: (how) => (stop = how) },
  );
  // The watcher may fail first; the load's own failure is then not news.
  load.catch(() => undefined);
  const remaining = await watchLeases(server, dueAtUnixMs);
  (stop as (() => void) | null)?.();
  const run = await load;

  const goneAtUnixMs = remaining.at(-1)?.[0] ?? Number.NaN;
  figure("storm-gone", "all due at once: gone and on disk after", (goneAtUnixMs - dueAtUnixMs) / 1000, "s");
  stormLatency(run, dueAtUnixMs, goneAtUnixMs, figure);
  bench.storms.push({ name, label, dueAtUnixMs, remaining, slots: run.slots });
}

/** Gives every lease but the calm ones the TTL that makes it due at one moment: memory only, no write. */
async function shortenAll(server: ServerProcess, count: number, dueAtUnixMs: number): Promise<void> {
  const run = await runClosedLoop({
    kind: "closed",
    target: {
      kind: "resp",
      port: server.port,
      argv: ["LEASE.SETTTL", "lease:{id}", "PX", "{msUntilDue}"],
      ids: { kind: "sequence", from: CALM_LEASES },
      expect: "positive",
      dueAtUnixMs,
    },
    connections: 4,
    depth: 500,
    warmupMs: 0,
    durationMs: 60_000,
    requestsMax: count,
  });
  if (run.errors > 0 || run.answered !== count) {
    throw new Error(`shortened ${run.answered - run.errors} of ${count} leases: ${run.firstError}`);
  }
}

/** Counts the leases until only the calm ones are left and that is on disk. */
async function watchLeases(server: ServerProcess, dueAtUnixMs: number): Promise<(readonly [number, number])[]> {
  return withClient(server.port, async (client) => {
    const remaining: (readonly [number, number])[] = [];
    for (;;) {
      const left = await countLeases(client);
      remaining.push([Date.now(), left]);
      if (left <= CALM_LEASES) break;
      if (Date.now() > dueAtUnixMs + STORM_MS_MAX) throw new Error(`${left} leases were left after ${STORM_MS_MAX} ms`);
      await sleep(100);
    }
    // A grant is answered when it is on disk, and the log is in order: so are the expiries before it.
    await client.call("LEASE.GRANT", "after-the-storm", "PX", "60000");
    remaining.push([Date.now(), CALM_LEASES]);
    return remaining;
  });
}

async function countLeases(client: RespClient): Promise<number> {
  const info = await client.call("INFO", "leases");
  const match = /^leases:(\d+)/m.exec(String(info));
  if (match === null) throw new Error("INFO leases tells no number of leases");
  return Number(match[1]);
}

function stormLatency(run: LoadResult, dueAtUnixMs: number, goneAtUnixMs: number, figure: SayFigure): void {
  if (run.errors > 0) throw new Error(`a calm lease was not renewed: ${run.firstError}`);
  const during = run.slots.filter(
    (slot) => slot.startUnixMs + STORM_SLOT_MS > dueAtUnixMs && slot.startUnixMs < goneAtUnixMs,
  );
  const worst = (of: (slot: (typeof during)[number]) => number): number => Math.max(...during.map(of));
  const what = "meanwhile, keep-alives of other leases";
  figure(
    "storm-p99",
    `${what}: p99 of the worst half second`,
    worst((slot) => slot.p99Ms),
    "ms",
  );
  figure(
    "storm-max",
    `${what}: the slowest`,
    worst((slot) => slot.maxMs),
    "ms",
  );
}

async function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
