import { setImmediate } from "node:timers/promises";
import { RoleKeeper, type RoleKeeperOptions } from "#src/cluster/role-keeper.js";
import { World } from "../sim-world.js";
import { ClusterClient } from "./cluster-client.js";
import type { StandStill } from "./cluster-host.js";
import { ClusterNode, type Moment, type StoreFoundations } from "./cluster-node.js";
import { chooseClusterSwarm, type ClusterSwarm } from "./cluster-swarm.js";
import { Judge, type JudgeCounts } from "./judge.js";
import type { Layout } from "./role-rows.js";
import { demand, type ClusterRule } from "./rules.js";
import { CALM_LINK, SimLink } from "./sim-link.js";
import { SimShared } from "./sim-shared.js";
import { EtcdStore, type EtcdStoreOptions } from "#src/durability/etcd/etcd-store.js";
import { EtcdKeys } from "#src/durability/etcd/rows.js";
import type { SharedStore } from "#src/durability/shared-store.js";
import { SimEtcd } from "./sim-etcd.js";
import { CORRECT_STORE, SIMPLE_LAYOUT, SimSharedStore, type StoreBugs } from "./sim-shared-store.js";

/**
 * One run of several nodes: a safety phase with every fault that the seed switched on, then everything is healed, somebody has to serve
 * within a bound, every client has to get on; at last clients rest, and everything has to end. All other rules hold at all
 * times (`judge.ts`).
 *
 * `simulateCluster(seed)` replays exactly.
 */

export interface ClusterSimulationOptions {
  /** Keep the whole trace. */
  readonly verbose?: boolean;
  readonly adjust?: (swarm: ClusterSwarm) => ClusterSwarm;
  readonly storeBugs?: Partial<StoreBugs>;
  readonly Keeper?: new (options: RoleKeeperOptions) => RoleKeeper;
  /** Of the real etcd store. */
  readonly Store?: new (options: EtcdStoreOptions) => EtcdStore;
  /** Rules that are not asked, so that others are on trial. */
  readonly rulesOff?: readonly ClusterRule[];
  /** Somebody who does things at times of his own. */
  readonly operator?: (control: ClusterControl) => void;
}

/** What an operator may lay hands on. */
export interface ClusterControl {
  readonly world: World;
  readonly shared: SimShared;
  /** By machine. */
  readonly links: readonly SimLink[];
  /** The processes that run now. */
  readonly nodes: () => readonly ClusterNode[];
  /** Who serves now. */
  readonly primary: () => ClusterNode | null;
}

export interface ClusterSimulationResult {
  readonly seed: number;
  /** With the real etcd store. */
  readonly isOnEtcd: boolean;
  readonly swarm: ClusterSwarm;
  readonly failure: Error | null;
  readonly traceHash: string;
  readonly traceLines: readonly string[];
  readonly counts: ClusterCounts;
}

export interface ClusterCounts extends JudgeCounts {
  events: number;
  virtualMs: number;
  crashes: number;
  stops: number;
  pauses: number;
  suspends: number;
  freezes: number;
  partitions: number;
  outages: number;
  compactions: number;
  /** From the moment at which all was healed to the first primary; 0 when there was one. */
  healedMs: number;
}

/** How much more often than at a usual request a machine stands still at a moment of a kind. */
const MOMENT_FACTORS: Readonly<Record<Moment, number>> = { turn: 1, sent: 1, "take-over": 100, "hand-over": 100 };

const CLUSTER_NAME = "sim";
const EVENTS_MAX = 400_000;
/** Beside the role's duration: back-off of a candidate, the load, ticks. */
const SLACK_MS = 3_500;
/** For clients to find the primary and be answered. */
const PROGRESS_MS = 3_000;
/** What a lease may live beyond its TTL: padding, the spread after a take-over, batches. */
const LEASE_SLACK = 1.15;
const LEASE_SLACK_MS = 1_000;

export function simulateCluster(seed: number, options: ClusterSimulationOptions = {}): ClusterSimulationResult {
  const simulation = new ClusterSimulation(seed, options, SIMPLE_LAYOUT);
  return simulation.result(simulation.run());
}

/** The same with the real etcd store over a simulated etcd. */
export async function simulateOnEtcd(
  seed: number,
  options: Omit<ClusterSimulationOptions, "storeBugs"> = {},
): Promise<ClusterSimulationResult> {
  const keys = new EtcdKeys(CLUSTER_NAME);
  const layout: Layout = {
    fence: keys.fence.toString("latin1"),
    rowPrefix: keys.rowPrefix.toString("latin1"),
    journalPrefix: keys.journalRange.key.toString("latin1"),
  };
  const simulation = new ClusterSimulation(seed, options, layout);
  return simulation.result(await simulation.runWithPromises());
}

/** What a phase of a run waits for, and until when. */
interface Phase {
  readonly untilMs: number;
  readonly isOver: () => boolean;
}

const never = (): boolean => false;

class ClusterSimulation {
  readonly world: World;
  readonly swarm: ClusterSwarm;
  readonly counts: ClusterCounts;
  readonly #options: ClusterSimulationOptions;
  readonly #judge: Judge;
  readonly #shared: SimShared;
  readonly #links: SimLink[] = [];
  /** By index; null while the machine has no process. */
  readonly #nodes: (ClusterNode | null)[] = [];
  readonly #clients: ClusterClient[] = [];
  readonly #wallOffsetsMs: number[] = [];
  /** No freeze before: what no clock counts adds up within one duration of the role. */
  readonly #freezeFromMs: number[] = [];
  #incarnations = 0;
  #isHealed = false;

  readonly #seed: number;
  readonly #layout: Layout;

  constructor(seed: number, options: ClusterSimulationOptions, layout: Layout) {
    this.#seed = seed;
    this.#layout = layout;
    this.#options = options;
    this.world = new World(seed, options.verbose);
    const chosen = chooseClusterSwarm(this.world.random);
    this.swarm = options.adjust?.(chosen) ?? chosen;
    this.#shared = new SimShared(this.world);
    const rowsNow = (): string[] => {
      const { rowPrefix } = layout;
      return this.#shared.range(rowPrefix, `${rowPrefix}\xff`).map(({ key }) => key);
    };
    this.#judge = new Judge(this.world, layout, rowsNow, options.rulesOff ?? []);
    this.#shared.observer = this.#judge;
    this.counts = {
      ...this.#judge.counts,
      events: 0,
      virtualMs: 0,
      crashes: 0,
      stops: 0,
      pauses: 0,
      suspends: 0,
      freezes: 0,
      partitions: 0,
      outages: 0,
      compactions: 0,
      healedMs: 0,
    };
  }

  result(failure: Error | null): ClusterSimulationResult {
    const { world, swarm, counts } = this;
    Object.assign(counts, this.#judge.counts, { events: world.eventsRun, virtualMs: world.nowMs });
    const { traceLines } = world;
    return {
      seed: this.#seed,
      isOnEtcd: this.#layout !== SIMPLE_LAYOUT,
      swarm,
      failure,
      traceHash: world.traceHash(),
      traceLines,
      counts,
    };
  }

  /** Returns what was broken, or null. */
  run(): Error | null {
    try {
      for (const phase of this.#phases()) {
        while (!this.#isOver(phase)) if (!this.world.step()) break;
      }
      return null;
    } catch (error) {
      if (error instanceof Error) return error;
      throw error;
    }
  }

  /** The same where parts of a node work with promises: all that can go on within an event does, before the next one. */
  async runWithPromises(): Promise<Error | null> {
    try {
      for (const phase of this.#phases()) {
        while (!this.#isOver(phase)) {
          if (!this.world.step()) break;
          await setImmediate();
        }
      }
      return null;
    } catch (error) {
      if (error instanceof Error) return error;
      throw error;
    }
  }

  *#phases(): Generator<Phase> {
    this.#begin();
    yield this.#phase(this.swarm.safetyMs);
    this.#heal();
    yield* this.#awaitPrimary();
    yield* this.#awaitProgress();
    yield* this.#awaitRest();
  }

  #phase(durationMs: number, isOver: () => boolean = never): Phase {
    const untilMs = this.world.nowMs + durationMs;
    // So that time goes on also when nothing else happens.
    this.world.at(untilMs, () => undefined);
    return { untilMs, isOver };
  }

  #isOver({ untilMs, isOver }: Phase): boolean {
    const { world } = this;
    demand(world.eventsRun < EVENTS_MAX, "liveness", () => `not at rest after ${EVENTS_MAX} events`);
    return world.nowMs >= untilMs || isOver();
  }

  #begin(): void {
    const { world, swarm } = this;
    for (let index = 0; index < swarm.nodes; index += 1) {
      this.#links.push(new SimLink(world, this.#shared, swarm.link));
      this.#wallOffsetsMs.push(0);
      this.#freezeFromMs.push(0);
      this.#boot(index);
    }
    for (let index = 0; index < swarm.workload.clients; index += 1) {
      const client = new ClusterClient(world, {
        index,
        workload: swarm.workload,
        clockRate: this.#clockRate(swarm.clientClockErrorMax),
        clockOriginMs: world.random.between(0, 1e6),
        judge: this.#judge,
        nodes: () => this.#alive(),
      });
      this.#clients.push(client);
      client.start();
    }
    this.#switchFaultsOn();
    this.#options.operator?.({
      world,
      shared: this.#shared,
      links: this.#links,
      nodes: () => this.#alive(),
      primary: () => this.#serving()[0] ?? null,
    });
  }

  #serving(): ClusterNode[] {
    return this.#alive().filter((node) => node.isPrimary && node.keeper.hasTerm && !node.host.isHeld);
  }

  /** Clocks at the ends of what is allowed are met more often than others. */
  #clockRate(errorMax: number): number {
    const { random } = this.world;
    return 1 + errorMax * random.pick([-1, 1, random.between(-1, 1)]);
  }

  #alive(): ClusterNode[] {
    return this.#nodes.filter((node) => node !== null);
  }

  // The nodes -----------------------------------------------------------------------------------------------------------

  #boot(index: number): void {
    const { world, swarm } = this;
    const link = this.#links[index];
    demand(link !== undefined, "ports", () => `no machine ${index}`);
    this.#incarnations += 1;
    const node = new ClusterNode(world, {
      index,
      incarnation: `n${index}.${this.#incarnations}`,
      host: {
        clockRate: this.#clockRate(swarm.nodeClockErrorMax),
        clockOriginMs: world.random.pick([0, 1, 1e3, 1e6, 1e9]) * world.random.fraction(),
        wallOffsetMs: () => this.#wallOffsetsMs[index] ?? 0,
      },
      judge: this.#judge,
      times: swarm.times,
      isCandidate: index < swarm.candidates,
      makeStore: (foundations) => this.#makeStore(foundations, link),
      Keeper: this.#options.Keeper ?? RoleKeeper,
      standsStill: (moment) => this.#standStillAt(moment),
      clockErrorPerMille: swarm.clockErrorPerMille,
      onEnd: (ended) => this.#nodeEnded(ended),
    });
    this.#nodes[index] = node;
    node.start();
  }

  #makeStore(foundations: StoreFoundations, link: SimLink): SharedStore {
    const { world, swarm } = this;
    const { host, address, incarnation } = foundations;
    const onSent = (isTakeOver: boolean): void => foundations.onSent(isTakeOver);
    const { roleMs, marginMs, requestTimeoutMs } = swarm.times;
    const shared = this.#shared;
    if (this.#layout === SIMPLE_LAYOUT) {
      return new SimSharedStore({
        shared,
        link,
        host,
        node: address,
        incarnation,
        requestTimeoutMs,
        resolveMsMax: roleMs - marginMs,
        pageRows: swarm.pageRows,
        bugs: { ...CORRECT_STORE, ...this.#options.storeBugs },
        onSent,
      });
    }
    const Store = this.#options.Store ?? EtcdStore;
    const store = new Store({
      client: new SimEtcd(world, { shared, link, host, requestTimeoutMs, onSent }),
      cluster: CLUSTER_NAME,
      clock: host.clock,
      scheduler: host.scheduler,
      ids: { incarnation: () => `store-${incarnation}`, fraction: () => world.random.fraction() },
      log: { write: (level, message) => world.trace(`${incarnation}: ${level} ${message}`) },
      fault: { point: () => undefined },
      incarnation,
      resolveMsMax: roleMs / 2,
      rangeBytes: swarm.pageRows * 100,
      txnOperationsMax: swarm.txnOperationsMax,
      txnBytesMax: swarm.txnBytesMax,
      compaction: null,
    });
    store.announceAs(address);
    return store;
  }

  #standStillAt(moment: Moment): { readonly ms: number; readonly kind: StandStill } | null {
    const { random } = this.world;
    const { faults } = this.swarm;
    const chance = MOMENT_FACTORS[moment] * faults.momentChance;
    if (this.#isHealed || chance === 0 || !random.chance(chance)) return null;
    const kind = faults.suspendMs < Infinity && moment !== "turn" && random.chance(0.5) ? "suspend" : "stop";
    return { ms: random.between(0, kind === "stop" ? faults.pauseMsMax : faults.suspendMsMax), kind };
  }

  #nodeEnded(node: ClusterNode): void {
    if (this.#nodes[node.index] !== node) return;
    this.#nodes[node.index] = null;
    const delayMs = this.world.random.exponential(this.swarm.faults.downMsMean);
    this.world.after(delayMs, () => {
      if (this.#nodes[node.index] === null) this.#boot(node.index);
    });
  }

  // Faults ----------------------------------------------------------------------------------------------------------------

  #switchFaultsOn(): void {
    const { world, swarm, counts } = this;
    const { faults, times } = swarm;
    const { random } = world;
    this.#repeat(faults.crashMs, () => this.#withNode((node) => this.#count("crashes", () => node.crash())));
    this.#repeat(faults.stopMs, () => this.#withNode((node) => this.#count("stops", () => node.stop())));
    this.#repeat(faults.failoverMs, () => this.#withNode((node) => node.failover()));
    this.#repeat(faults.pauseMs, () => this.#standStill("pauses", "stop", faults.pauseMsMax));
    this.#repeat(faults.suspendMs, () => this.#standStill("suspends", "suspend", faults.suspendMsMax));
    this.#repeat(faults.freezeMs, () => this.#freeze());
    this.#repeat(faults.partitionMs, () => this.#partition());
    this.#repeat(faults.outageMs, () => {
      counts.outages += 1;
      this.#shared.outUntilMs = world.nowMs + random.between(0, faults.outageMsMax);
      world.trace(`fault: the store is out until ${this.#shared.outUntilMs.toFixed(0)}`);
    });
    this.#repeat(faults.slowMs, () => {
      const link = random.pick(this.#links);
      link.slowFactor = random.between(2, 50);
      link.slowUntilMs = world.nowMs + random.between(0, times.roleMs);
    });
    this.#repeat(faults.watchStuckMs, () => {
      random.pick(this.#links).watchStuckUntilMs = world.nowMs + random.between(0, 3 * times.roleMs);
    });
    this.#repeat(faults.compactMs, () => this.#count("compactions", () => this.#shared.compact()));
    this.#repeat(faults.wallJumpMs, () => {
      this.#wallOffsetsMs[random.integer(0, swarm.nodes - 1)] = random.between(-1, 1) * random.pick([100, 3_600_000]);
    });
    this.#repeat(faults.breakMs, () => random.pick(this.#clients).breakConnection());
  }

  /** Does something again and again until everything is healed. */
  #repeat(everyMsMean: number, act: () => void): void {
    if (everyMsMean === Infinity) return;
    this.world.after(this.world.random.exponential(everyMsMean), () => {
      if (this.#isHealed) return;
      act();
      this.#repeat(everyMsMean, act);
    });
  }

  #count(name: "crashes" | "stops" | "compactions", act: () => void): void {
    this.counts[name] += 1;
    act();
  }

  /** Faults find the primary more often than others. */
  #withNode(act: (node: ClusterNode) => void): void {
    const { random } = this.world;
    const alive = this.#alive();
    const primary = alive.find((node) => node.isPrimary);
    if (primary !== undefined && random.chance(0.6)) act(primary);
    else if (alive.length > 0) act(random.pick(alive));
  }

  #standStill(name: "pauses" | "suspends", kind: StandStill, msMax: number): void {
    this.#withNode((node) => {
      const ms = this.world.random.between(0, msMax);
      this.counts[name] += 1;
      node.trace(`fault: ${kind} for ${ms.toFixed(0)} ms`);
      node.host.standStill(ms, kind);
    });
  }

  #freeze(): void {
    this.#withNode((node) => {
      const { world, swarm } = this;
      if (world.nowMs < (this.#freezeFromMs[node.index] ?? 0) || node.host.isHeld) return;
      const ms = swarm.faults.freezeMsMax * world.random.pick([1, world.random.fraction()]);
      this.counts.freezes += 1;
      node.trace(`fault: freeze for ${ms.toFixed(0)} ms`);
      node.host.standStill(ms, "freeze");
      this.#freezeFromMs[node.index] = world.nowMs + ms + 1.1 * swarm.times.roleMs;
    });
  }

  /** A way to the store is cut; often its answers have been slow for a while before. */
  #partition(): void {
    this.#withNode((node) => {
      const { random, nowMs } = this.world;
      const link = this.#links[node.index];
      if (link === undefined) return;
      this.counts.partitions += 1;
      const { roleMs, requestTimeoutMs } = this.swarm.times;
      const fadingMs = random.chance(0.5) ? random.between(0, roleMs / 2) : 0;
      link.answersSlowUntilMs = nowMs + fadingMs;
      link.answerDelayMsMax = 1.2 * requestTimeoutMs;
      this.world.after(fadingMs, () => this.#cut(link, node));
    });
  }

  #cut(link: SimLink, node: ClusterNode): void {
    const { random, nowMs } = this.world;
    if (this.#isHealed) return;
    const untilMs = nowMs + random.between(0, this.swarm.faults.partitionMsMax);
    const way = random.pick(["both", "up", "down"]);
    node.trace(`fault: cut off from the store (${way}) until ${untilMs.toFixed(0)}`);
    if (way !== "down") link.upCutUntilMs = untilMs;
    if (way !== "up") link.downCutUntilMs = untilMs;
  }

  // Liveness ----------------------------------------------------------------------------------------------------------------

  #heal(): void {
    const { world } = this;
    world.trace("all is healed");
    this.#isHealed = true;
    this.#shared.outUntilMs = 0;
    for (const link of this.#links) {
      link.heal();
      link.times = CALM_LINK;
    }
  }

  /** Processes that stand still, or are down, are back first: that is not the protocol's time. */
  *#awaitPrimary(): Generator<Phase> {
    const { world, swarm } = this;
    const { roleMs } = swarm.times;
    const isBack = (): boolean => this.#nodes.every((node) => node !== null && !node.host.isHeld && !node.isStopping);
    yield this.#phase(20 * roleMs, isBack);
    demand(isBack(), "liveness", () => "the processes do not come back");
    const fromMs = world.nowMs;
    // A node that gave the role up lets others go first for twice the role's duration; with one candidate there are no others.
    const boundMs = (swarm.candidates > 1 ? 1 : 2) * roleMs + SLACK_MS;
    const isServed = (): boolean => this.#serving().length > 0;
    yield this.#phase(boundMs, isServed);
    const roles = (): string =>
      this.#alive()
        .map((node) => `${node.incarnation} ${node.coordinator.roleName}`)
        .join(", ");
    demand(isServed(), "liveness", () => `nobody serves ${boundMs} ms after all was healed: ${roles()}`);
    this.counts.healedMs = world.nowMs - fromMs;
  }

  *#awaitProgress(): Generator<Phase> {
    const { world, swarm } = this;
    const fromMs = world.nowMs;
    const { blockMsMax, patienceMs, thinkMsMean } = swarm.workload;
    const boundMs =
      PROGRESS_MS + blockMsMax + 2 * patienceMs + 20 * thinkMsMean + 2 * Math.max(...swarm.workload.ttlsMs);
    const areServed = (): boolean => this.#clients.every((client) => client.servedAtMs > fromMs);
    yield this.#phase(boundMs, areServed);
    const left = (): string =>
      this.#clients
        .filter((client) => client.servedAtMs <= fromMs)
        .map(({ name }) => name)
        .join(", ");
    demand(areServed(), "liveness", () => `not served ${boundMs} ms after somebody could: ${left()}`);
    // Who served when all was healed may have been at the end of its time.
    yield this.#phase(2 * swarm.times.roleMs + SLACK_MS, () => this.#serving().length === 1);
    const primaries = this.#serving().length;
    demand(primaries === 1, "liveness", () => `${primaries} nodes are primary while all is well`);
  }

  /** Clients end; what they leave ends by itself. */
  *#awaitRest(): Generator<Phase> {
    const { swarm } = this;
    for (const client of this.#clients) client.rest();
    const ttlMs = Math.max(...swarm.workload.ttlsMs);
    const boundMs = 20_000 + swarm.workload.blockMsMax + ttlMs * LEASE_SLACK + LEASE_SLACK_MS;
    yield this.#phase(boundMs, () => this.#judge.leases.size === 0);
    const left = (): string => [...this.#judge.leases].join(", ");
    demand(this.#judge.leases.size === 0, "liveness", () => `leases do not end: ${left()}`);
  }
}

/** A failure for people: the seed, how to run it again, what the seed switched on, and how it came to it. */
export function reportOfCluster(
  { seed, isOnEtcd, swarm, failure, traceLines }: ClusterSimulationResult,
  traceLinesMax = 40,
): string {
  const lines = [
    `seed ${seed}: ${failure?.stack ?? "no failure"}`,
    `replay: npm run sim:cluster -- --seed ${seed} --verbose${isOnEtcd ? " --etcd" : ""}`,
    `swarm: ${JSON.stringify(swarm)}`,
    ...traceLines.slice(-traceLinesMax),
  ];
  return lines.join("\n");
}
