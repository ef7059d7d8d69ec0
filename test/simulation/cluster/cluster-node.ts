import { RoleKeeper, type RoleKeeperOptions } from "#src/cluster/role-keeper.js";
import type { RoleTimes } from "#src/cluster/role-times.js";
import { Coordinator } from "#src/coordinator.js";
import type { SharedStore } from "#src/durability/shared-store.js";
import { DEFAULT_ENGINE_LIMITS } from "#src/engine/limits.js";
import type { Log, NodeAddress, Session } from "#src/ports.js";
import type { World } from "../sim-world.js";
import { ClusterHost, type ClusterHostOptions, type StandStill } from "./cluster-host.js";
import { ClusterSession } from "./cluster-session.js";
import type { Wire } from "./cluster-wire.js";
import type { Judge } from "./judge.js";

/**
 * One incarnation of a node of the cluster: the real keeper of the role and the real coordinator over a simulated store, host and
 * wire.
 */

/** What a node's store is made on. */
export interface StoreFoundations {
  readonly host: ClusterHost;
  readonly address: NodeAddress;
  readonly incarnation: string;
  /** A request has just been sent. */
  onSent(isTakeOver: boolean): void;
}

export interface ClusterNodeOptions {
  readonly index: number;
  readonly incarnation: string;
  readonly host: ClusterHostOptions;
  readonly judge: Judge;
  readonly times: RoleTimes;
  readonly isCandidate: boolean;
  makeStore(foundations: StoreFoundations): SharedStore;
  readonly Keeper: new (options: RoleKeeperOptions) => RoleKeeper;
  /** Whether, and how, the machine stands still at a moment at which that may do harm; null: it does not. */
  standsStill(moment: Moment): { readonly ms: number; readonly kind: StandStill } | null;
  /** See EngineLimits. */
  readonly clockErrorPerMille: number;
  onEnd(node: ClusterNode, reason: string): void;
}

/**
 * `turn`: between a connection's clock reading and its work. `sent`: a request is on its way to the store; `take-over`: one that takes
 * the role. `hand-over`: the role is being given up.
 */
export type Moment = "turn" | "sent" | "take-over" | "hand-over";

/** How long a graceful stop may take before the process is killed. */
const STOP_MS_MAX = 3_000;

export class ClusterNode {
  readonly index: number;
  readonly name: string;
  readonly incarnation: string;
  readonly host: ClusterHost;
  readonly keeper: RoleKeeper;
  readonly coordinator: Coordinator;
  readonly wires = new Set<Wire>();
  readonly #world: World;
  readonly #options: ClusterNodeOptions;
  readonly #sessions = new Set<ClusterSession>();
  /** Of the newest take-over that succeeded. */
  #epoch = 0;
  #hasEnded = false;
  #isStopping = false;

  constructor(world: World, options: ClusterNodeOptions) {
    this.#world = world;
    this.#options = options;
    this.index = options.index;
    this.incarnation = options.incarnation;
    this.name = `node-${options.index}`;
    const { incarnation, judge } = options;
    this.host = new ClusterHost(world, options.host);
    const { host } = this;
    const log: Log = { write: (level, message) => this.trace(`${level} ${message}`) };
    const address: NodeAddress = { id: incarnation, host: "127.0.0.1", port: options.index + 1, sentinelPort: 0 };
    const store = options.makeStore({
      host,
      address,
      incarnation,
      onSent: (isTakeOver) => this.standsStill(isTakeOver ? "take-over" : "sent"),
    });
    this.#noteEpochs(store);
    const coordinatorOf = (): Coordinator => this.coordinator;
    this.keeper = new options.Keeper({
      name: "sim",
      self: address,
      store,
      holder: {
        get roleName() {
          return coordinatorOf().roleName;
        },
        takeOver: (onTaken, done) => coordinatorOf().takeOver(onTaken, done),
        lose: (reason) => coordinatorOf().lose(reason),
      },
      clock: host.clock,
      boottimeMs: () => host.boottimeMs(),
      scheduler: host.scheduler,
      fraction: () => world.random.fraction(),
      log,
      times: options.times,
      isCandidate: options.isCandidate,
      incarnation,
    });
    const { keeper } = this;
    this.coordinator = new Coordinator({
      store,
      engineLimits: { ...DEFAULT_ENGINE_LIMITS, clockErrorPerMille: options.clockErrorPerMille },
      batchBytesMax: 64 * 1024,
      clock: host.clock,
      scheduler: host.scheduler,
      ids: { incarnation: () => incarnation, fraction: () => world.random.fraction() },
      log,
      fault: { point: () => undefined },
      events: { hasListeners: false, publish: () => undefined },
      closeSessions: (except) => this.#closeSessions(except),
      onFailure: (error) => this.#end(`failed: ${error.message}`),
      cluster: {
        term: {
          holds: (nowMs) => {
            const holds = keeper.holds(nowMs);
            if (holds) judge.acts(this, host.trueTimeOf(nowMs));
            return holds;
          },
        },
        handedOver: () => keeper.handedOver(),
        fullness: () => null,
        report: () => keeper.report(),
      },
    });
  }

  #noteEpochs(store: SharedStore): void {
    const acquire = store.acquire.bind(store);
    store.acquire = (done) => {
      acquire((error, identity) => {
        this.#epoch = identity?.epoch ?? this.#epoch;
        done(error, identity);
      });
    };
  }

  get hasEnded(): boolean {
    return this.#hasEnded;
  }

  get isStopping(): boolean {
    return this.#isStopping;
  }

  get isPrimary(): boolean {
    return this.coordinator.roleName === "primary";
  }

  trace(line: string): void {
    this.#world.trace(`${this.incarnation}: ${line}`);
  }

  start(): void {
    this.host.enter(() => this.keeper.start());
  }

  accept(owner: string, wire: Wire): ClusterSession {
    const session = new ClusterSession(this, owner, wire);
    this.#sessions.add(session);
    return session;
  }

  sessionLost(session: ClusterSession): void {
    if (!this.#sessions.delete(session)) return;
    session.lost();
  }

  acknowledges(): void {
    this.#options.judge.acknowledges(this, this.#epoch);
  }

  standsStill(moment: Moment): boolean {
    const pause = this.#options.standsStill(moment);
    if (pause === null) return false;
    this.trace(`fault: ${pause.kind} at ${moment} for ${pause.ms.toFixed(0)} ms`);
    this.host.standStill(pause.ms, pause.kind);
    return true;
  }

  /** FAILOVER: the role is given up, the process goes on. */
  failover(): void {
    this.host.enter(() => {
      if (this.#isStopping) return;
      this.coordinator.stepDown(null, () => {
        this.trace("has handed over");
        this.standsStill("hand-over");
      });
    });
  }

  /** SIGTERM: what was taken becomes durable and is answered, the role is given up, the process ends. */
  stop(): void {
    if (this.#isStopping) return;
    this.#isStopping = true;
    this.trace("asked to stop");
    this.#world.after(STOP_MS_MAX, () => this.crash());
    this.host.enter(() => {
      this.keeper.stop();
      this.coordinator.stop(() => this.#end("stopped"));
    });
  }

  /** The process is killed, or the power goes. */
  crash(): void {
    this.#end("killed");
  }

  #end(reason: string): void {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    this.trace(`ended: ${reason}`);
    this.host.kill();
    for (const wire of this.wires) wire.closedByServer();
    this.wires.clear();
    this.#options.onEnd(this, reason);
  }

  #closeSessions(except: Session | null): void {
    for (const session of this.#sessions) if (session !== except) session.close();
  }
}
