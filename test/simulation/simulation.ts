import { BatchWriter } from "#src/durability/batch.js";
import { applyBatch } from "#src/durability/memory-store.js";
import { EXCLUSIVE } from "#src/engine/draft.js";
import { encodeOp } from "#src/durability/schema.js";
import type { KeyPutOp } from "#src/engine/op.js";
import { digest } from "#src/engine/engine.js";
import { TTL_MS_MAX } from "#src/engine/limits.js";
import { StatusReply, type Reply } from "#src/engine/reply.js";
import { Beliefs } from "./beliefs.js";
import { KeyHistories } from "./key-histories.js";
import { Oracle, orphanName } from "./oracle.js";
import { watchEngines, withSmallSteps } from "./probe.js";
import { SimClient } from "./sim-client.js";
import { SimNode } from "./sim-node.js";
import { CALM_DISK_TIMES, CORRECT_DISK, NO_DISK_FAULTS, SimDisk, SimStore, type DiskBugs } from "./sim-store.js";
import { Connection } from "./sim-wire.js";
import { World } from "./sim-world.js";
import { SimHost } from "./sim-host.js";
import { chooseSwarm, type Swarm } from "./swarm.js";
import { check, Violation } from "./violation.js";

/**
 * One run: a safety phase with everything that the seed switched on, then everything is healed and traffic stops, and time runs on until
 * nothing is left to do (the liveness phase). Invariants are checked at every event; the end checks that nothing stayed behind.
 *
 * `simulate(seed)` replays exactly: the same seed and the same code give the same trace, of which `traceHash` is the witness.
 */

export interface SimulationOptions {
  /** Keep the whole trace. */
  readonly verbose?: boolean;
  /** Changes what the seed chose; deliberate bugs use it. */
  readonly adjust?: (swarm: Swarm) => Swarm;
  readonly diskBugs?: Partial<DiskBugs>;
  /** A deliberate bug of the connections: see SessionOptions. */
  readonly sessionsKeepOldReadings?: boolean;
  /** False: leave out the engine's checks of itself, so that only what clients and the disk see counts. */
  readonly audit?: boolean;
}

export interface SimulationResult {
  readonly seed: number;
  readonly swarm: Swarm;
  /** What was broken; null when nothing was. */
  readonly failure: Error | null;
  readonly traceHash: string;
  readonly traceLines: readonly string[];
  readonly counts: SimulationCounts;
}

export interface SimulationCounts {
  events: number;
  decisions: number;
  answered: number;
  lost: number;
  incarnations: number;
  tenures: number;
  /** By fault point. */
  crashesAt: Record<string, number>;
  failures: number;
  refusedStarts: number;
  /** Keys that were handed to somebody who waited. */
  handedOn: number;
  /** Keys whose history was found to be linearizable, and those of which the search gave up. */
  keysJudged: number;
  keysGivenUp: number;
  virtualMs: number;
}

/** More events than any healthy run has; a run that reaches it does not come to rest. */
const EVENTS_MAX = 200_000;

/** What was under way when everything was healed is over by then. */
const CALM_AFTER_MS = 10_000;

/** How often everything is flushed at the end, at most: nobody waits for longer than two rounds. */
const FLUSHES_MAX = 5;

/** A tick, and the end of a batch or two. */
const LATE_MS_MAX = 30;

/** How often the engine's own invariants are checked: every so many events. */
const AUDIT_EVERY_EVENTS = 16;

export function simulate(seed: number, options: SimulationOptions = {}): SimulationResult {
  const simulation = new Simulation(seed, options);
  const failure = withSmallSteps(simulation.swarm.node.stepMax, () =>
    watchEngines(simulation.oracle, () => simulation.run()),
  );
  return {
    seed,
    swarm: simulation.swarm,
    failure,
    traceHash: simulation.world.traceHash(),
    traceLines: simulation.world.traceLines,
    counts: simulation.counts,
  };
}

class Simulation {
  readonly world: World;
  readonly swarm: Swarm;
  readonly oracle: Oracle;
  readonly #disk: SimDisk;
  readonly #withAudit: boolean;
  readonly #sessionsKeepOldReadings: boolean;
  readonly #beliefs: Beliefs;
  readonly #histories = new KeyHistories();
  readonly #clients: SimClient[] = [];
  #node: SimNode | null = null;
  #incarnations = 0;
  #requests = 0;
  #wallOffsetMs = 0;
  #isHealed = false;
  #hasListeners: boolean;
  /** Rows without a lease that were planted, by `orphanName`. */
  readonly #orphans = new Set<string>();
  readonly counts: SimulationCounts = {
    events: 0,
    decisions: 0,
    answered: 0,
    lost: 0,
    incarnations: 0,
    tenures: 0,
    crashesAt: {},
    failures: 0,
    refusedStarts: 0,
    handedOn: 0,
    keysJudged: 0,
    keysGivenUp: 0,
    virtualMs: 0,
  };

  constructor(seed: number, options: SimulationOptions) {
    this.world = new World(seed, options.verbose);
    const chosen = chooseSwarm(this.world.random);
    this.swarm = options.adjust === undefined ? chosen : options.adjust(chosen);
    const { swarm, world } = this;
    this.#disk = new SimDisk(world, swarm.diskTimes, swarm.diskFaults, { ...CORRECT_DISK, ...options.diskBugs });
    this.#sessionsKeepOldReadings = options.sessionsKeepOldReadings ?? false;
    this.#withAudit = options.audit ?? true;
    this.#beliefs = new Beliefs(world);
    this.#hasListeners = swarm.node.hasListeners;
    const { limits } = swarm.node;
    this.oracle = new Oracle(world, this.#disk, this.#beliefs, {
      ...limits,
      hasListeners: () => this.#hasListeners,
      onEnded: (op) => this.#histories.ended(world.nowMs, op),
    });
  }

  /** Returns what was broken, or null. */
  run(): Error | null {
    try {
      this.#begin();
      this.#runUntil(() => this.#clients.every((client) => client.isDone));
      this.#heal();
      this.#runUntil(() => false);
      this.#checkRest();
      this.#histories.check();
      return null;
    } catch (error) {
      if (error instanceof Error) return error;
      throw error;
    } finally {
      this.#count();
    }
  }

  #begin(): void {
    const { world, swarm } = this;
    this.#boot();
    for (let index = 0; index < swarm.workload.clients; index += 1) {
      const client = new SimClient(world, this.#beliefs, this.oracle, {
        index,
        workload: swarm.workload,
        clockRate: this.#clockRate(),
        clockOriginMs: world.random.between(0, 1e6),
        histories: this.#histories,
        connect: (asking) => this.#connect(asking),
        nextRequestNumber: () => (this.#requests += 1),
      });
      this.#clients.push(client);
    }
    const { operator } = swarm;
    this.#repeat(operator.crashMs, () => this.#node?.crash());
    this.#repeat(operator.stopMs, () => this.#stopNode());
    this.#repeat(operator.stepDownMs, () => this.#handOver());
    this.#repeat(operator.rivalMs, () => this.#startRival());
    this.#repeat(operator.holdMs, () => {
      this.#node?.host.hold(world.random.between(0, operator.holdMsMax), world.random.chance(0.3));
    });
    this.#repeat(operator.listenMs, () => {
      this.#hasListeners = !this.#hasListeners;
    });
    this.#repeat(operator.wallJumpMs, () => {
      this.#wallOffsetMs = world.random.between(-1, 1) * 31_536_000_000;
    });
  }

  #runUntil(isOver: () => boolean): void {
    while (!isOver()) {
      if (!this.world.step()) return;
      const { eventsRun } = this.world;
      check(eventsRun < EVENTS_MAX, "liveness", () => `not at rest after ${EVENTS_MAX} events`);
      this.#checkReport();
      if (eventsRun % AUDIT_EVERY_EVENTS === 0) this.#audit();
    }
  }

  // The server ----------------------------------------------------------------------------------------------------------

  #boot(): void {
    const { world, swarm } = this;
    this.#incarnations += 1;
    if (!this.#isHealed && world.random.chance(swarm.orphanChance)) this.#plantOrphans();
    const node = new SimNode(world, this.#disk, this.oracle, {
      number: this.#incarnations,
      host: {
        clockRate: this.#clockRate(),
        clockOriginMs: world.random.pick([0, 1, 1e3, 1e6, 1e9]) * world.random.fraction(),
        timerEarlyMsMax: swarm.node.timerEarlyMsMax,
        timerLateMsMean: swarm.node.timerLateMsMean,
        pauseChance: swarm.node.pauseChance,
        pauseMsMax: swarm.node.pauseMsMax,
        wallOffsetMs: () => this.#wallOffsetMs,
      },
      engineLimits: swarm.node.limits,
      batchBytesMax: swarm.node.batchBytesMax,
      points: this.#isHealed ? { crashChance: 0, errorChance: 0 } : swarm.points,
      sessionsKeepOldReadings: this.#sessionsKeepOldReadings,
      hasListeners: () => this.#hasListeners,
      digest: (engine) => digest(engine.state),
      onLoads: () => this.#countOrphans(),
      onServes: () => this.#nodeServes(),
      onEnd: (ended, reason) => this.#nodeEnded(ended, reason),
    });
    node.host.calm = this.#isHealed;
    this.#node = node;
    node.start();
  }

  /** Rows that no server of ours wrote: a key of a lease that is not there, and an older claim on a key that is held. */
  #plantOrphans(): void {
    const { random } = this.world;
    const { rows, syncedRevision } = this.#disk;
    if (syncedRevision < 2 || this.#disk.holder !== null || this.#orphans.size > 0) return;
    const state = this.oracle.durableNow();
    const orphan = { kind: "key-put", value: "orphan", mode: EXCLUSIVE, sinceUnixMs: 0 } as const;
    const claims: KeyPutOp[] = [{ ...orphan, databaseIndex: 0, key: "key-0", leaseId: "ghost", token: syncedRevision }];
    const held = state
      .allHolds()
      .find((key) => key.token > 1 && key.plainTtlMs === null && key.mode.kind === "exclusive");
    const other = [...state.leases.keys()].find((id) => id !== held?.leaseId);
    if (held !== undefined && other !== undefined && random.chance(0.5)) {
      const { databaseIndex, key } = held;
      claims.push({ ...orphan, databaseIndex, key, leaseId: other, token: held.token - 1 });
    }
    for (const claim of claims) {
      const writer = new BatchWriter();
      encodeOp(claim, writer);
      applyBatch(rows, writer.batch(syncedRevision).bytes);
      this.#orphans.add(orphanName(claim.databaseIndex, claim.key, claim.leaseId));
    }
    this.oracle.orphansRemovedAt = null;
  }

  /** Planted rows are on the disk until the revision that removes them is. */
  #countOrphans(): void {
    const { orphansRemovedAt } = this.oracle;
    if (orphansRemovedAt !== null && orphansRemovedAt <= this.#disk.syncedRevision) this.#orphans.clear();
    this.oracle.orphans = this.#orphans;
  }

  #nodeServes(): void {
    this.counts.tenures += 1;
    if (this.#isHealed) this.#expectPunctuality();
  }

  #nodeEnded(node: SimNode, reason: string): void {
    if (reason.startsWith("crash at ")) {
      const point = reason.slice("crash at ".length);
      this.counts.crashesAt[point] = (this.counts.crashesAt[point] ?? 0) + 1;
    }
    if (reason.startsWith("failed")) this.counts.failures += 1;
    if (reason.startsWith("cannot start")) this.counts.refusedStarts += 1;
    if (this.#node !== node) return;
    this.#node = null;
    // As a supervisor does: slower when it would not start.
    const delayMsMean = this.swarm.operator.downMsMean * (reason.startsWith("cannot start") ? 20 : 1);
    this.world.after(this.world.random.exponential(delayMsMean), () => {
      if (this.#node === null) this.#boot();
    });
  }

  #connect(client: SimClient): Connection | null {
    const node = this.#node;
    if (node === null) return null;
    const connection = new Connection(this.world, this.swarm.wire, client, node);
    node.connections.add(connection);
    return connection;
  }

  // The operator --------------------------------------------------------------------------------------------------------

  /** Does something again and again until everything is healed. */
  #repeat(everyMsMean: number, act: () => void): void {
    if (everyMsMean === Infinity) return;
    this.world.after(this.world.random.exponential(everyMsMean), () => {
      if (this.#isHealed) return;
      act();
      this.#repeat(everyMsMean, act);
    });
  }

  #stopNode(): void {
    const node = this.#node;
    if (node === null || node.isStopping) return;
    node.trace("asked to stop");
    node.stop();
  }

  /** FAILOVER, and after a while the role again. */
  #handOver(): void {
    const { world } = this;
    const node = this.#node;
    if (node === null || node.isStopping) return;
    node.trace("asked to step down");
    node.stepDown(world.random.chance(0.5), (reply) => node.trace(`FAILOVER is answered ${describeRole(reply)}`));
    const delayMs = world.random.exponential(this.swarm.operator.downMsMean);
    world.after(delayMs, () => this.#takeRole(node, 1));
  }

  #takeRole(node: SimNode, patienceMs: number): void {
    if (node.hasEnded || node.isStopping) return;
    node.takeRole((reply) => {
      node.trace(`REPLICAOF NO ONE is answered ${describeRole(reply)}`);
      // Still stepping down: an operator tries again.
      if (!(reply instanceof StatusReply)) this.world.after(patienceMs, () => this.#takeRole(node, 2 * patienceMs));
    });
  }

  /** A second process on the same disk has to be refused. */
  #startRival(): void {
    const { world } = this;
    if (this.#disk.holder === null) return;
    const host = new SimHost(world, {
      clockRate: 1,
      clockOriginMs: 0,
      timerEarlyMsMax: 0,
      timerLateMsMean: 0,
      pauseChance: 0,
      pauseMsMax: 0,
      wallOffsetMs: () => 0,
      onCrash: () => undefined,
    });
    const { holder } = this.#disk;
    const rival = new SimStore(this.#disk, host, "rival", { point: () => undefined });
    rival.acquire((error) => {
      check(error?.code === "in-use" || this.#disk.holder !== holder, "ports", () => "two processes hold one disk");
      // The first one may have died just then: its successor is to have the disk.
      if (error === null) rival.close(() => host.kill());
    });
  }

  #clockRate(): number {
    const { clockErrorMax } = this.swarm.node;
    // The extremes are where a missing margin shows.
    return 1 + this.world.random.pick([-1, 1, this.world.random.between(-1, 1)]) * clockErrorMax;
  }

  // Phases and checks ---------------------------------------------------------------------------------------------------

  /** No more faults, no more traffic: what is under way is finished, and every lease ends. */
  #heal(): void {
    this.world.trace("healed");
    this.#isHealed = true;
    this.#disk.faults = NO_DISK_FAULTS;
    this.#disk.times = CALM_DISK_TIMES;
    this.#disk.fullUntilMs = 0;
    const node = this.#node;
    if (node !== null) {
      node.points = { crashChance: 0, errorChance: 0 };
      node.host.calm = true;
    }
    for (const client of this.#clients) client.rest();
    this.#expectPunctuality();
    this.world.after(CALM_AFTER_MS, () => this.#endWhatLasts(FLUSHES_MAX));
  }

  /** Leases and keys without an end in sight are ended by hand; once more when everybody has lost patience who still waits. */
  #endWhatLasts(timesLeft: number): void {
    const { live } = this.oracle;
    const lasts = [...live.leases.values(), ...live.allHolds()].some(
      (item) => ("ttlMs" in item ? item.ttlMs : (item.plainTtlMs ?? 0)) >= TTL_MS_MAX,
    );
    const isAnyWaiting = this.#clients.some((client) => client.isWaiting);
    const { patienceMs } = this.swarm.workload;
    if (lasts) this.#clients[0]?.insist({ kind: "flush-all" }, 10 * patienceMs);
    if ((lasts || isAnyWaiting) && timesLeft > 1) {
      this.world.after(CALM_AFTER_MS + 20 * patienceMs, () => this.#endWhatLasts(timesLeft - 1));
    }
  }

  /** From soon on, nothing keeps the server from ending leases in time. */
  #expectPunctuality(): void {
    const node = this.#node;
    if (node === null) return;
    this.oracle.calmFromMs = node.host.peekMonotonicMs() + CALM_AFTER_MS;
    this.oracle.lateMsMax = LATE_MS_MAX + 25 * this.swarm.node.timerLateMsMean;
  }

  #checkReport(): void {
    const node = this.#node;
    if (node === null || node.hasEnded) return;
    const report = node.coordinator.report();
    const { syncedRevision } = this.#disk;
    const isDurable = report.durableRevision <= syncedRevision;
    check(isDurable, "release", () => `durable at ${report.durableRevision}, the disk has ${syncedRevision}`);
    check(report.durableRevision <= report.revision, "release", () => "durable before it happened");
    if (report.role !== "primary" || !node.isServing) return;
    check(report.leases === this.oracle.live.leases.size, "ops", () => `${report.leases} leases in the report`);
    const keys = report.keysByDatabase.reduce((sum, count) => sum + count, 0);
    check(keys === this.oracle.live.keyCount, "ops", () => `${keys} keys in the report`);
    const waiting = this.oracle.queues.asks.length;
    check(report.commandsBlocked <= waiting, "I7-order", () => `${report.commandsBlocked} of ${waiting} commands wait`);
    this.oracle.checkQueues(node.host.peekMonotonicMs());
    check(report.repliesParked <= this.#requests, "liveness", () => "more replies parked than requests were sent");
  }

  #audit(): void {
    const engine = this.#node?.coordinator.engine ?? null;
    if (this.#withAudit && engine !== null && this.#node?.isServing === true) engine.checkInvariants();
  }

  /** Nothing runs any more: nothing may be left. */
  #checkRest(): void {
    const node = this.#node;
    check(
      node !== null && node.role === "primary",
      "liveness",
      () => `the server is ${node?.role ?? "down"} at the end`,
    );
    for (const client of this.#clients) {
      check(!client.isWaiting, "liveness", () => `${client.name} waits for ever`);
    }
    const report = node.coordinator.report();
    const keys = report.keysByDatabase.reduce((sum, count) => sum + count, 0);
    check(
      report.leases === 0 && keys === 0,
      "liveness",
      () => `${report.leases} leases and ${keys} keys live for ever`,
    );
    check(this.oracle.live.leases.size === 0, "liveness", () => "the model has leases left");
    check(report.repliesParked === 0, "liveness", () => `${report.repliesParked} replies stay parked`);
    check(report.commandsBlocked === 0, "liveness", () => `${report.commandsBlocked} commands wait for ever`);
    check(report.batchOpenBytes === 0, "liveness", () => `${report.batchOpenBytes} bytes never reach the disk`);
    check(report.revision === this.#disk.syncedRevision, "liveness", () => "the newest revision is not on disk");
    check(node.host.timersArmed === 0, "liveness", () => `${node.host.timersArmed} timers stay armed`);
    const rows = [...this.#disk.rows.keys()].filter((row) => !row.startsWith("m/"));
    check(rows.length === 0, "liveness", () => `rows stay on disk: ${rows.join(" ")}`);
    const { engine } = node.coordinator;
    check(engine !== null && engine.nextDueMs() === null, "liveness", () => "the wheel is not empty");
    this.#audit();
    check(engine.sweepSome(1), "liveness", () => "ended rows stay behind");
  }

  #count(): void {
    this.counts.events = this.world.eventsRun;
    this.counts.virtualMs = Math.round(this.world.nowMs);
    this.counts.handedOn = this.oracle.handedOnCount;
    this.counts.keysJudged = this.#histories.judged;
    this.counts.keysGivenUp = this.#histories.givenUp;
    this.counts.decisions = this.oracle.decisions;
    this.counts.incarnations = this.#incarnations;
    for (const client of this.#clients) {
      this.counts.answered += client.answered;
      this.counts.lost += client.lostRequests;
    }
  }
}

const describeRole = (reply: Reply): string => (reply instanceof StatusReply ? reply.text : "an error");

/** Everything that a reader of a failure needs, the seed first. */
export function reportOf(result: SimulationResult, linesMax = 40): string {
  const { seed, failure, traceLines } = result;
  const stack = failure instanceof Violation ? failure.message : (failure?.stack ?? "");
  return [
    `seed ${seed}: ${stack}`,
    `replay: npm run sim -- --seed ${seed} --verbose`,
    ...traceLines.slice(-linesMax).map((line) => `  ${line}`),
  ].join("\n");
}
