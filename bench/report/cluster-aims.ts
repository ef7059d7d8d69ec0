import { aim, aimsOf, reachedBy } from "./aims.js";
import type { Aim, Cell, Results } from "./results.js";

/** What several nodes on etcd aim at: see aims.ts. */

/** What is a grant here, and what is one in etcd: as the cells of the scenario name it. */
export const WAYS_OF_GRANT = {
  withKey: { ours: "GRANT with one key", theirs: "LeaseGrant, then Txn(Put)" },
  withoutKey: { ours: "GRANT without a key", theirs: "LeaseGrant alone" },
} as const;

type Reached = Aim["reached"][number];

/** How long a primary may be silent before it is replaced: the default, with which the nodes ran. */
const ROLE_MS = 6000;

const GRANT_CONNECTIONS = 50;

export function hasCluster({ scenarios }: Pick<Results, "scenarios">): boolean {
  return scenarios.some(({ name, state }) => name === "cluster" && state !== "left out");
}

/** Whether the run wanted anything beside `cluster`. */
export function hasOneNode({ scenarios }: Pick<Results, "scenarios">): boolean {
  return scenarios.some(({ name, state }) => name !== "cluster" && state !== "left out");
}

/** The aims of what the run wanted to measure. */
export function reportedAims(results: Results): Aim[] {
  const several = hasCluster(results) ? clusterAimsOf(results) : [];
  return hasOneNode(results) ? [...aimsOf(results), ...several] : several;
}

export function clusterAimsOf(results: Pick<Results, "cells" | "figures" | "quick" | "scenarios">): Aim[] {
  const complete = results.scenarios.some(({ name, state }) => name === "cluster" && state === "measured");
  const cells = results.cells.filter(({ scenario }) => scenario === "cluster");
  const grants = cells.filter(({ operation }) => operation === "grant");
  const keepAlives = cells.filter(({ operation }) => operation === "keep-alive");
  const figures = (names: readonly (readonly [string, string])[]): Reached[] =>
    names.flatMap(([name, label]) =>
      results.figures
        .filter((each) => each.scenario === "cluster" && each.name === name)
        .map(({ value }) => ({ label, value, range: null })),
    );
  const outage = (ending: string): Reached[] =>
    figures([
      [`${ending}/keep-alive/50 ms`, "keep-alive"],
      [`${ending}/grant/50 ms`, "grant"],
    ]);
  // A quick run has a fiftieth of them.
  const million = (name: string): Reached[] => (results.quick ? [] : figures([[`million/${name}`, ""]]));
  const aims = [
    ...againstEtcd(grants),
    aim("KEEPALIVE on etcd : on RocksDB, 50 connections, throughput", ">=", 0.95, "x", againstRocksDb(keepAlives)),
    aim("primary killed: until its successor serves a client", "<=", ROLE_MS + 1000, "ms", outage("kill")),
    aim("primary ended by SIGTERM: until its successor serves a client", "<", 500, "ms", outage("hand-over")),
    aim("a million leases: loaded from etcd by a new primary", "<=", 15, "s", million("load")),
    aim(
      "writes to etcd over 10,000 keep-alives, beats and announcements aside",
      "<=",
      0,
      "",
      figures([["quiet/others", ""]]),
    ),
  ];
  return aims.map((each) => ({ ...each, complete }));
}

/** Each way of granting by itself. What is measured with more or fewer connections is for information. */
function againstEtcd(grants: readonly Cell[]): Aim[] {
  return Object.values(WAYS_OF_GRANT).map(({ ours, theirs }) => {
    const of = (way: string): Cell | undefined =>
      grants.find((cell) => cell.connections === GRANT_CONNECTIONS && cell.way === way);
    const [own, other] = [of(ours), of(theirs)];
    const reached = own === undefined || other === undefined ? [] : [reachedBy(own, other, "opsPerSecond", "")];
    return aim(`${ours} on etcd : etcd's ${theirs}, 50 connections, throughput`, ">=", 3, "x", reached);
  });
}

function againstRocksDb(keepAlives: readonly Cell[]): Reached[] {
  const of = (system: Cell["system"]): Cell[] => keepAlives.filter((cell) => cell.system === system);
  return of("leasehold-etcd").flatMap((ours) => {
    const theirs = of("leasehold").find(({ pipeline }) => pipeline === ours.pipeline);
    return theirs === undefined ? [] : [reachedBy(ours, theirs, "opsPerSecond", `P=${ours.pipeline}`)];
  });
}
