import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";

import { Ledger } from "../../bench/ledger.js";
import { runClosedLoop, type ClosedLoopJob } from "../../bench/load/closed-loop.js";
import { SentinelClient } from "../../bench/load/sentinel-client.js";
import { countOf, putsBetween } from "../../bench/measure/etcd-revisions.js";
import { parseCommandLine } from "../../bench/options.js";
import { clusterAimsOf, reportedAims } from "../../bench/report/cluster-aims.js";
import { SCENARIO_NAMES, type Cell, type Figure, type Results, type ScenarioName } from "../../bench/report/results.js";
import { includeInReadme, writeReport } from "../../bench/report/write.js";
import { Cluster } from "../support/cluster.js";
import { EtcdCluster } from "../support/etcd.js";
import { useServers } from "../support/server.js";
import { describeWith } from "../support/tools.js";

/** The scenario of several nodes: what it makes of figures that are known, and that its load on etcd does what it says. */

// Report ----------------------------------------------------------------------------------------------------------------------

function cell(part: Pick<Cell, "operation" | "system" | "way"> & Partial<Cell>, perSecond: number): Cell {
  const round = {
    operations: perSecond,
    opsPerSecond: perSecond,
    p50Ms: 1,
    p95Ms: 2,
    p99Ms: 3,
    cpuUsPerOp: 10,
    mainThreadCpuUsPerOp: 10,
    serverCores: 0.5,
    generatorCores: 0.25,
  };
  return {
    scenario: "cluster",
    command: "",
    load: "closed-loop",
    leases: 0,
    connections: 50,
    pipeline: 1,
    ratePerSecond: null,
    rounds: [round, round],
    median: round,
    curve: [],
    generatorLagP99Ms: null,
    ...part,
  };
}

const GRANT = { operation: "grant" } as const;
const KEEP_ALIVE = { operation: "keep-alive", way: null } as const;

const CELLS: readonly Cell[] = [
  cell({ ...GRANT, connections: 1, system: "leasehold-etcd", way: "GRANT with one key" }, 10),
  cell({ ...GRANT, connections: 1, system: "etcd", way: "LeaseGrant, then Txn(Put)" }, 10),
  cell({ ...GRANT, system: "leasehold-etcd", way: "GRANT with one key" }, 5000),
  cell({ ...GRANT, system: "etcd", way: "LeaseGrant, then Txn(Put)" }, 1000),
  cell({ ...GRANT, system: "leasehold-etcd", way: "GRANT without a key" }, 5000),
  cell({ ...GRANT, system: "etcd", way: "LeaseGrant alone" }, 2000),
  cell({ ...KEEP_ALIVE, system: "leasehold-etcd" }, 98),
  cell({ ...KEEP_ALIVE, system: "leasehold" }, 100),
  cell({ ...KEEP_ALIVE, system: "leasehold-etcd", pipeline: 16 }, 80),
  cell({ ...KEEP_ALIVE, system: "leasehold", pipeline: 16 }, 100),
];

function figure(name: string, value: number): Figure {
  return { scenario: "cluster", name, label: name, value, unit: "" };
}

const FIGURES: readonly Figure[] = [
  figure("quiet/others", 0),
  figure("kill/keep-alive/50 ms", 6100),
  figure("kill/grant/50 ms", 7100),
  figure("kill/grant/its defaults", 9000),
  figure("hand-over/keep-alive/50 ms", 100),
  figure("hand-over/grant/50 ms", 110),
  figure("million/load", 12),
];

function resultsOf(measured: readonly ScenarioName[], change: Partial<Results> = {}): Results {
  const ledger = new Ledger(measured, () => 0);
  for (const name of measured) {
    ledger.begin(name);
    ledger.end(null);
  }
  const machine = { cpu: "a processor", cores: 2, memoryGiB: 4, kernel: "6", node: "20", redis: "7", disk: "ext4" };
  return {
    format: 2,
    startedAt: "2026-01-02T03:04:05.000Z",
    commit: "abc1234",
    durationS: 60,
    rounds: 3,
    roundsMax: 5,
    roundMs: 2000,
    quick: false,
    machine: { ...machine, etcd: "etcd 3" },
    scenarios: ledger.outcomes,
    cells: CELLS,
    figures: FIGURES,
    storms: [],
    notes: [],
    ...change,
  };
}

describe("aims of several nodes", () => {
  const reachedOf = (results: Results, part: string): unknown[] => {
    const found = clusterAimsOf(results).filter(({ name }) => name.includes(part));
    expect(found).toHaveLength(1);
    return [found[0]?.met, ...(found[0]?.reached ?? []).map(({ label, value }) => [label, value])];
  };

  test("like is held against like, and the worst counts", () => {
    const results = resultsOf(["cluster"]);
    expect(reachedOf(results, "GRANT with one key on etcd")).toEqual([true, ["", 5]]);
    expect(reachedOf(results, "GRANT without a key on etcd")).toEqual([false, ["", 2.5]]);
    expect(reachedOf(results, "KEEPALIVE on etcd")).toEqual([false, ["P=1", 0.98], ["P=16", 0.8]]);
    expect(reachedOf(results, "primary killed")).toEqual([false, ["keep-alive", 6100], ["grant", 7100]]);
    expect(reachedOf(results, "SIGTERM")).toEqual([true, ["keep-alive", 100], ["grant", 110]]);
    expect(reachedOf(results, "loaded from etcd")).toEqual([true, ["", 12]]);
    expect(reachedOf(results, "writes to etcd")).toEqual([true, ["", 0]]);
  });

  test("one write to etcd over the keep-alives is one too many, and a quick run loads no million", () => {
    const results = resultsOf(["cluster"], {
      figures: [figure("quiet/others", 1), figure("million/load", 1)],
      quick: true,
    });
    expect(reachedOf(results, "writes to etcd")).toEqual([false, ["", 1]]);
    expect(reachedOf(results, "loaded from etcd")).toEqual([null]);
  });

  test("belong to a run that wanted them, and to no other", () => {
    const names = (measured: readonly ScenarioName[]): string =>
      reportedAims(resultsOf(measured))
        .map(({ name }) => name)
        .join("\n");
    expect(names(["cluster"])).toContain("KEEPALIVE on etcd");
    expect(names(["cluster"])).not.toContain("PEXPIRE");
    expect(names(["keepalive"])).toContain("PEXPIRE");
    expect(names(["keepalive"])).not.toContain("KEEPALIVE on etcd");
    expect(names(["keepalive", "cluster"])).toMatch(/PEXPIRE[^]*KEEPALIVE on etcd/);
  });

  test("are measured only when they are asked for", () => {
    expect(parseCommandLine([]).only).toEqual(SCENARIO_NAMES.filter((name) => name !== "cluster"));
    expect(parseCommandLine(["--only", "cluster"]).only).toEqual(["cluster"]);
  });
});

describe("README of several nodes", () => {
  let directory = "";
  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), "leasehold-bench-cluster-"));
  });
  afterEach(() => rmSync(directory, { recursive: true, force: true }));

  const ONE_NODE = "<!-- results: begin (written by --readme) -->\none node\n<!-- results: end -->\n";
  const SEVERAL = "<!-- cluster: begin (written by --readme) -->\nseveral nodes\n<!-- cluster: end -->\n";

  /** The README after a run of these scenarios. */
  function readmeAfter(measured: readonly ScenarioName[]): string {
    const path = join(directory, "README.md");
    writeFileSync(path, `before\n${ONE_NODE}between\n${SEVERAL}after\n`);
    includeInReadme(path, resultsOf(measured), "results/one");
    return readFileSync(path, "utf8");
  }

  test("a run of this scenario fills its own section and leaves the other as it was", () => {
    const readme = readmeAfter(["cluster"]);
    expect(readme.startsWith(`before\n${ONE_NODE}between\n<!-- cluster: begin`)).toBe(true);
    expect(readme.endsWith("<!-- cluster: end -->\nafter\n")).toBe(true);
    expect(readme).not.toContain("several nodes");
    expect(readme).not.toContain("Not measured, or in part");
    expect(readme).toMatch(/\| primary killed.*\| <= 7,000 ms \| keep-alive: 6,100 ms; grant: 7,100 ms \| MISSED \|/);
    expect(readme).toMatch(/\| grant, 1 connection, closed loop \| etcd: LeaseGrant, then Txn\(Put\) \| 10 \|/);
  });

  test("a run without it leaves its section as it was, and does not miss it", () => {
    const others = SCENARIO_NAMES.filter((name) => name !== "cluster");
    const readme = readmeAfter(others);
    expect(readme.endsWith(`between\n${SEVERAL}after\n`)).toBe(true);
    expect(readme).not.toContain("one node\n");
    expect(readme).not.toContain("Not measured, or in part");
  });

  test("this project's README has its place", () => {
    const readme = readFileSync(new URL("../../bench/README.md", import.meta.url), "utf8");
    expect(readme.split("<!-- cluster: begin (written by --readme) -->")).toHaveLength(2);
    expect(readme.split("<!-- cluster: end -->")).toHaveLength(2);
  });

  test("its plots show what was measured, and no share of nought", () => {
    writeReport(directory, resultsOf(["cluster"]));
    for (const name of ["aims", "cluster-grant", "cluster-grant-cpu", "cluster-keepalive"]) {
      expect(readFileSync(join(directory, `${name}.svg`), "utf8")).not.toMatch(/NaN|Infinity/);
    }
    expect(readFileSync(join(directory, "cluster-keepalive.svg"), "utf8")).toContain(">0.80x<");
    // Grants with a key only, on both sides.
    expect(readFileSync(join(directory, "cluster-grant.svg"), "utf8")).toContain(">5.00x<");
  });
});

// Load ------------------------------------------------------------------------------------------------------------------------

describeWith(["etcd"], "a client of Sentinels", () => {
  const servers = useServers();
  let etcd: EtcdCluster;
  beforeAll(async () => {
    etcd = await EtcdCluster.start();
  });
  afterAll(async () => etcd.stop());

  test("counts only what another node than the former primary acknowledges", async () => {
    const cluster = await Cluster.start(servers, etcd, 2);
    const former = await cluster.primary();
    const sentinelPorts = cluster.nodes.map((node) => node.sentinelPort);
    const client = new SentinelClient(cluster.name, sentinelPorts, "50 ms");
    try {
      const grant = ["LEASE.GRANT", "held", "PX", "600000"] as const;
      const keepAlive = ["LEASE.KEEPALIVE", "held"] as const;
      expect(await client.acknowledgedAtMs(grant, null, WAIT_MS_MAX)).toBeLessThanOrEqual(performance.now());
      await expect(client.acknowledgedAtMs(keepAlive, former.port, 200)).rejects.toThrow(
        "was not acknowledged within 200 ms",
      );
      await expect(client.acknowledgedAtMs(["LEASE.KEEPALIVE", "nobody"], null, 200)).rejects.toThrow("last answer");
      const endedMs = performance.now();
      former.server.signal("SIGTERM");
      expect(await client.acknowledgedAtMs(keepAlive, former.port, WAIT_MS_MAX)).toBeGreaterThan(endedMs);
      expect((await cluster.otherPrimary(former)).port).not.toBe(former.port);
    } finally {
      client.close();
    }
  });
});

const WAIT_MS_MAX = 40_000;

describeWith(["etcd"], "etcd used directly", () => {
  let etcd: EtcdCluster;
  beforeAll(async () => {
    etcd = await EtcdCluster.start();
  });
  afterAll(async () => etcd.stop());

  function grants(operation: "grant" | "grant-with-key", from: number, requestsMax: number): ClosedLoopJob {
    const port = etcd.members[0]?.clientPort ?? 0;
    const ids = { kind: "sequence", from } as const;
    const target = { kind: "etcd", port, operation, ids, ttlS: 600 } as const;
    return { kind: "closed", target, connections: 2, depth: 2, warmupMs: 0, durationMs: 30_000, requestsMax };
  }

  test("a grant with a key leaves a lease and a key that is bound to it, once", async () => {
    const port = etcd.members[0]?.clientPort ?? 0;
    const before = await countOf(port, "lock:");
    const run = await runClosedLoop(grants("grant-with-key", 100, 7));
    expect([run.answered, run.errors, run.firstError]).toEqual([7, 0, null]);
    const after = await countOf(port, "lock:");
    expect([...after.versions.keys()].toSorted()).toEqual(
      Array.from({ length: 7 }, (_, index) => `lock:${(100 + index).toString().padStart(12, "0")}`),
    );
    expect(putsBetween(before, after, (key) => key.startsWith("lock:"))).toBe(7);
    // Leases alone do not raise the revision.
    expect(after.revision - before.revision).toBe(7);
    // What is there already is refused, and that is seen.
    expect((await runClosedLoop(grants("grant-with-key", 100, 3))).errors).toBe(3);

    await revoke(port, 101);
    expect((await countOf(port, "lock:")).versions.has("lock:000000000100")).toBe(false);
  });

  test("a key that existed before the lease is refused by the transaction", async () => {
    const port = etcd.members[0]?.clientPort ?? 0;
    await put(port, `lock:${"500".padStart(12, "0")}`);
    const run = await runClosedLoop(grants("grant-with-key", 500, 1));
    expect(run.firstError).toBe("the key existed");
  });
});

async function revoke(port: number, lease: number): Promise<void> {
  await post(port, "/v3/lease/revoke", { ID: `${lease}` });
}

async function put(port: number, key: string): Promise<void> {
  await post(port, "/v3/kv/put", { key: Buffer.from(key).toString("base64"), value: "" });
}

async function post(port: number, path: string, body: Readonly<Record<string, string>>): Promise<void> {
  const response = await fetch(`http://127.0.0.1:${port}${path}`, { method: "POST", body: JSON.stringify(body) });
  expect(response.status).toBe(200);
}
