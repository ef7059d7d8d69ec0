import { Coordinator } from "#src/coordinator.js";
import type { StoreError } from "#src/durability/store.js";
import type { Engine } from "#src/engine/engine.js";
import type { EngineLimits } from "#src/engine/limits.js";
import { OK, type Reply } from "#src/engine/reply.js";
import type { Fault, FaultPoint, Log, Session } from "#src/ports.js";
import type { Oracle } from "./oracle.js";
import { SimHost, SimulatedCrash, type HostOptions } from "./sim-host.js";
import { SimSession, type SessionEnd } from "./sim-session.js";
import { SimStore, type SimDisk } from "./sim-store.js";
import type { Connection } from "./sim-wire.js";
import type { World } from "./sim-world.js";
import { check } from "./violation.js";

/**
 * One incarnation of the server: a process with the real Coordinator in it, from its start to its end. The end is final: what
 * comes after is another SimNode on the same disk.
 */

export interface PointFaults {
  /** The chance that the process dies at a fault point. */
  readonly crashChance: number;
  /** The chance that a fault point around a commit throws, as a store that fails would. */
  readonly errorChance: number;
}

export interface NodeOptions {
  readonly number: number;
  readonly host: Omit<HostOptions, "onCrash">;
  readonly engineLimits: EngineLimits;
  readonly batchBytesMax: number;
  readonly points: PointFaults;
  /** A deliberate bug: see SessionOptions. */
  readonly sessionsKeepOldReadings: boolean;
  hasListeners(): boolean;
  /** The engine's digest of its durable state. */
  digest(engine: Engine): string;
  /** It has the disk and begins to load. */
  onLoads(): void;
  /** It has taken the role. */
  onServes(): void;
  /** The process has ended; nothing of it runs any more. */
  onEnd(node: SimNode, reason: string): void;
}

/** Points at which production code hands an Error on as a failure of the store; elsewhere it would be a crash anyway. */
const ERROR_POINTS: ReadonlySet<FaultPoint> = new Set<FaultPoint>([
  "commit:before-write",
  "commit:after-write",
  "commit:before-release",
]);

/** Points that a node passes once in its life; at the chance of the others few seeds would ever crash there. */
const RARE_POINTS: ReadonlySet<FaultPoint> = new Set<FaultPoint>(["open:after-lock", "close:before-sync"]);
const RARE_POINT_FACTOR = 10;

/** A slow command: the turn that it is part of grows as old as the next one is. */
const COMMAND_MS_MAX = 5;

/** How long a process that has to end goes on running, at most. */
const DYING_MS_MAX = 5;

export class SimNode {
  readonly host: SimHost;
  readonly coordinator: Coordinator;
  readonly store: SimStore;
  readonly #world: World;
  readonly #disk: SimDisk;
  readonly #oracle: Oracle;
  readonly #options: NodeOptions;
  readonly #sessions = new Set<SimSession>();
  readonly connections = new Set<Connection>();
  #ended = false;
  #failures = 0;
  /** True while the oracle knows this node's engine as the one that serves. */
  #isServing = false;
  #isStopping = false;
  points: PointFaults;

  constructor(world: World, disk: SimDisk, oracle: Oracle, options: NodeOptions) {
    this.#world = world;
    this.#disk = disk;
    this.#oracle = oracle;
    this.#options = options;
    this.points = options.points;
    this.host = new SimHost(world, { ...options.host, onCrash: (crash) => this.#end(`crash at ${crash.where}`) });
    const log: Log = { write: (level, message) => this.trace(`${level} ${message}`) };
    const fault: Fault = { point: (name) => this.#atPoint(name) };
    this.store = new SimStore(disk, this.host, `sim${options.number}`, fault);
    this.coordinator = new Coordinator({
      store: this.store,
      engineLimits: options.engineLimits,
      batchBytesMax: options.batchBytesMax,
      clock: this.host.clock,
      scheduler: this.host.scheduler,
      ids: { incarnation: () => `ids${options.number}`, fraction: () => world.random.fraction() },
      log,
      fault,
      events: {
        get hasListeners() {
          return options.hasListeners();
        },
        publish: (event) => this.#oracle.published(event),
      },
      closeSessions: (except, reason) => this.#closeSessions(except, reason),
      onFailure: (error) => this.#failed(error),
    });
    this.store.onLoad = () => options.onLoads();
    this.store.onHandOver = (revision) => this.#handedOver(revision);
  }

  get hasEnded(): boolean {
    return this.#ended;
  }

  /** A graceful stop is under way. */
  get isStopping(): boolean {
    return this.#isStopping;
  }

  get isServing(): boolean {
    return this.#isServing;
  }

  get role(): string {
    return this.coordinator.report().role;
  }

  trace(line: string): void {
    this.#world.trace(`node ${this.#options.number}: ${line}`);
  }

  start(): void {
    this.host.enter(() =>
      this.coordinator.start((error) => {
        // Somebody who asked for the role meanwhile was answered first.
        if (error === null && !this.#isServing) this.#serves();
        if (error !== null) this.#exit(`cannot start: ${error.code}`);
      }),
    );
  }

  accept(owner: string, end: SessionEnd): SimSession {
    const { random } = this.#world;
    const session = new SimSession(
      {
        coordinator: this.coordinator,
        oracle: this.#oracle,
        clock: this.host.clock,
        scheduler: this.host.scheduler,
        batchChance: 0.5,
        spend: () =>
          this.#world.spend(random.chance(0.05) ? random.between(0, COMMAND_MS_MAX) : random.between(0, 0.02)),
        keepsOldReading: this.#options.sessionsKeepOldReadings,
      },
      owner,
      end,
    );
    session.silenced = this.#failures > 0;
    this.#sessions.add(session);
    return session;
  }

  sessionLost(session: SimSession): void {
    this.#sessions.delete(session);
    session.lost();
  }

  // Roles and ends ----------------------------------------------------------------------------------------------------

  /** `keepOne`: a client's connection asked for it and stays open, as that of FAILOVER does; one that waits asks for nothing. */
  stepDown(keepOne: boolean, done: (reply: Reply) => void): void {
    this.host.enter(() => {
      const open = [...this.#sessions].filter((session) => !session.isClosed && !session.isBlocked);
      const kept = keepOne && open.length > 0 ? this.#world.random.pick(open) : null;
      this.coordinator.stepDown(kept, (reply) => {
        // Anything else is the answer to a second request while the first is under way.
        if (reply === OK) this.#servesNoMore();
        done(reply);
      });
    });
  }

  takeRole(done: (reply: Reply) => void): void {
    this.host.enter(() => {
      this.coordinator.takeRole((reply) => {
        if (!this.#isServing && this.role === "primary") this.#serves();
        done(reply);
      });
    });
  }

  /** A graceful stop. */
  stop(): void {
    this.#isStopping = true;
    this.host.enter(() => {
      const wasPrimary = this.role === "primary";
      this.coordinator.stop((error) => {
        check(error === null, "ports", () => `a simulated store closes with an error: ${error?.message}`);
        if (wasPrimary) this.#servesNoMore();
        this.#end("stopped");
      });
    });
  }

  /** The process is killed, or the power goes. */
  crash(): void {
    if (!this.#ended) this.#end("killed");
  }

  #serves(): void {
    const { engine } = this.coordinator;
    check(engine !== null && this.role === "primary", "ports", () => "a node says that it serves and has no engine");
    this.#isServing = true;
    this.#options.onServes();
    this.trace(`serves from revision ${engine.state.revision}`);
    const { epoch } = this.coordinator.report();
    this.#oracle.recovered(engine, this.#options.digest(engine), epoch, this.host.peekMonotonicMs());
  }

  #servesNoMore(): void {
    check(this.coordinator.report().repliesParked === 0, "I8-replies", () => "replies are parked after a clean end");
    this.#isServing = false;
    this.#oracle.engineGone(true);
  }

  #failed(error: StoreError): void {
    this.#failures += 1;
    check(this.#failures === 1, "fail-stop", () => "the failure of the store was told twice");
    for (const session of this.#sessions) session.silenced = true;
    this.#exit(`failed: ${error.code}`);
  }

  /** The process is about to end by itself. */
  #exit(reason: string): void {
    this.trace(`${reason}, about to end`);
    this.#world.after(this.#world.random.between(0, DYING_MS_MAX), () => {
      if (!this.#ended) this.#end(reason);
    });
  }

  #end(reason: string): void {
    this.#ended = true;
    this.trace(`ended: ${reason}`);
    this.host.kill();
    if (this.#disk.holder === this.store) this.#disk.crash();
    if (this.#isServing) this.#oracle.engineGone(false);
    this.#isServing = false;
    for (const connection of this.connections) connection.cutByCrash();
    this.connections.clear();
    this.#options.onEnd(this, reason);
  }

  #closeSessions(except: Session | null, reason: string): void {
    this.trace(`closes sessions: ${reason}`);
    for (const session of this.#sessions) if (session !== except) session.close();
    // Connections without a session yet are closed as well.
    for (const connection of this.connections) {
      if (except !== null && connection.isOf(except)) continue;
      connection.closedByServer();
      this.connections.delete(connection);
    }
  }

  #handedOver(revision: number): void {
    const { engine } = this.coordinator;
    const current = engine?.state.revision;
    check(
      engine !== null && current === revision,
      "ops",
      () => `batch ${revision} leaves while the engine is at ${current}`,
    );
    this.#oracle.handedOver(revision, this.#options.digest(engine));
  }

  #atPoint(name: FaultPoint): void {
    const { random } = this.#world;
    const crashChance = this.points.crashChance * (RARE_POINTS.has(name) ? RARE_POINT_FACTOR : 1);
    if (random.chance(crashChance)) throw new SimulatedCrash(name);
    if (ERROR_POINTS.has(name) && random.chance(this.points.errorChance)) throw new Error(`simulated error at ${name}`);
  }
}
