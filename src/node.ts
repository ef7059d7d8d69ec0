import { uptime } from "node:os";
import { resolve } from "node:path";
import { backendOf } from "./backend-of.js";
import { RoleKeeper } from "./cluster/role-keeper.js";
import type { ClusterConfig } from "./config-cluster.js";
import type { Config } from "./config.js";
import { Coordinator, type ClusterSeat } from "./coordinator.js";
import { RocksStore } from "./durability/rocksdb/rocksdb-store.js";
import type { SharedStore, SharedStoreReport } from "./durability/shared-store.js";
import type { Store } from "./durability/store.js";
import { withCode } from "./engine/errors.js";
import type { ErrorReply } from "./engine/reply.js";
import type { ScriptEngine } from "./lua/script-engine.js";
import type { Fault, Log, NodeAddress } from "./ports.js";
import { buildCommandTable } from "./resp/command-table.js";
import { newRunId, nodeProcessFigures } from "./resp/process-figures.js";
import { createSentinel } from "./resp/sentinel/sentinel.js";
import { ListenError, RespServer } from "./resp/server.js";
import { createServerContext, type ServerContext } from "./resp/server-context.js";
import type { RuntimeSettings } from "./resp/server-settings.js";
import type { SystemClock, SystemIds, SystemScheduler } from "./system.js";

/**
 * Wires the rooms together to one node: with rows of its own in RocksDB, or in a cluster with rows in etcd, a keeper of the role and
 * a Sentinel port.
 *
 * It listens first, so that a taken port is told before anything is touched; clients get LOADING, or READONLY from a standby,
 * until the node serves.
 */

/** How long clients that do not read their last replies may hold up a graceful stop. */
const STOP_GRACE_MS = 5_000;

/** From the data port to the Sentinel port, unless told otherwise. */
const SENTINEL_PORT_OFFSET = 20_000;
const PORT_MAX = 65_535;

/** From this part of the shared store's quota on nothing is added. */
const FULLNESS_MAX = 0.8;

/** What is made before the node is. */
export interface Foundations {
  readonly log: Log;
  readonly ids: SystemIds;
  readonly scripts: ScriptEngine;
  readonly fault: Fault;
  /** LEASEHOLD_FAULTS, for the store's own thread. */
  readonly faultScript: string;
  readonly clock: SystemClock;
  readonly scheduler: SystemScheduler;
  readonly version: string;
  /** Ends the process with one line and exit code 1. */
  readonly quit: (message: string) => never;
}

/** Rows that other nodes can reach as well. */
export interface SharedRows {
  readonly store: SharedStore;
  /** Of this process, as the store writes it into the fence. */
  readonly incarnation: string;
}

/**
 * Runs until the process ends: by a signal, SHUTDOWN, a store that failed, or because it could not start. `shared` is null for rows of
 * its own, in the data directory.
 */
export function serve(
  config: Config,
  settings: RuntimeSettings,
  foundations: Foundations,
  shared: SharedRows | null,
): void {
  const { quit } = foundations;
  const node = new Node(config, settings, foundations, shared);
  process.on("SIGTERM", () => node.stop("SIGTERM"));
  process.on("SIGINT", () => node.stop("SIGINT"));
  node.listen().then(
    () => node.start(),
    (error: unknown) => {
      if (error instanceof ListenError) quit(error.message);
      throw error;
    },
  );
}

class Node {
  readonly #config: Config;
  readonly #foundations: Foundations;
  readonly #shared: SharedRows | null;
  readonly #coordinator: Coordinator;
  readonly #context: ServerContext;
  readonly #server: RespServer;
  #sentinel: RespServer | null = null;
  #keeper: RoleKeeper | null = null;
  #isStopping = false;

  constructor(config: Config, settings: RuntimeSettings, foundations: Foundations, shared: SharedRows | null) {
    this.#config = config;
    this.#foundations = foundations;
    const { log, ids, scripts, fault, version, clock, scheduler } = foundations;
    this.#shared = shared;
    const store: Store = shared?.store ?? this.#rocksStore();
    const hasListeners = (): boolean => this.#context.pubsub.hasListeners;
    this.#coordinator = new Coordinator({
      store,
      engineLimits: config.engineLimits,
      batchBytesMax: config.batchBytesMax,
      revisionMin: config.tokenMin,
      clock,
      scheduler,
      ids,
      log,
      fault,
      events: {
        get hasListeners() {
          return hasListeners();
        },
        publish: (event) => this.#context.pubsub.publishEvent(event),
      },
      closeSessions: (except, reason) => this.#server.dismissAll(except, reason),
      onCommit: (durationMs) => this.#context.diagnostics.latency("commit", durationMs),
      onFailure: () => process.exit(1),
      ...(shared === null ? {} : { cluster: this.#seat() }),
    });
    this.#context = createServerContext({
      backend: backendOf(this.#coordinator, () => this.stop("SHUTDOWN")),
      settings,
      scripts,
      clock,
      ids,
      log,
      figures: nodeProcessFigures(),
      version,
      runId: newRunId(),
    });
    this.#server = new RespServer({
      backend: this.#context.backend,
      commands: buildCommandTable(this.#context),
      settings,
      clock,
      scheduler,
      log,
      frameBytesMax: config.frameBytesMax,
    });
    this.#server.observer = this.#context.diagnostics;
  }

  /** Rejects with a ListenError. */
  async listen(): Promise<void> {
    const { bind, port, cluster } = this.#config;
    await this.#server.listen(bind, port);
    if (cluster !== null && this.#shared !== null) await this.#joinCluster(cluster, this.#shared);
  }

  /** Takes the role, or begins to wait for it. */
  start(): void {
    if (this.#keeper !== null) {
      this.#keeper.start();
      this.#tellReady();
      return;
    }
    this.#coordinator.start((error) => {
      if (error !== null) this.#foundations.quit(error.message);
      if (!this.#isStopping) this.#tellReady();
    });
  }

  /** Stops once, whoever asks: what is in flight becomes durable and is answered, then the store is closed. */
  stop(reason: string): void {
    if (this.#isStopping) return;
    this.#isStopping = true;
    const { log, quit } = this.#foundations;
    log.write("info", "stopping", { reason });
    this.#keeper?.stop();
    const stopStore = (): void => {
      this.#coordinator.stop((error) => {
        if (error !== null) quit(error.message);
        log.write("info", "stopped");
        process.exit(0);
      });
    };
    this.#stopServers().then(stopStore, (error: unknown) => {
      throw error;
    });
  }

  async #stopServers(): Promise<void> {
    await Promise.all([this.#server.stop(STOP_GRACE_MS), this.#sentinel?.stop(STOP_GRACE_MS)]);
  }

  #tellReady(): void {
    const { log } = this.#foundations;
    const addresses = this.#server.listening.map(nameOf);
    log.write("info", "ready", { addresses: addresses.join(","), pid: process.pid });
    const sentinel = this.#sentinel === null ? "" : `, sentinel on ${this.#sentinel.listening.map(nameOf).join(" ")}`;
    process.stdout.write(`leasehold ready on ${addresses.join(" ")}${sentinel}\n`);
  }

  // The embedded store ------------------------------------------------------------------------------------------------------

  #rocksStore(): RocksStore {
    const { log, ids, faultScript, clock, scheduler } = this.#foundations;
    return new RocksStore({
      directory: resolve(this.#config.directory),
      log,
      clock,
      ids,
      scheduler,
      acceptLoss: this.#config.acceptLoss,
      onFailure: (error) => this.#coordinator.storeFailed(error),
      workerFault:
        faultScript === "" ? null : { moduleUrl: new URL("./system.js", import.meta.url).href, spec: faultScript },
    });
  }

  // A cluster ---------------------------------------------------------------------------------------------------------------

  /** The coordinator is made before the ports are known that the keeper tells others: until then nobody keeps the role. */
  #seat(): ClusterSeat {
    return {
      term: { holds: (nowMs) => this.#keeper?.holds(nowMs) ?? false },
      handedOver: () => this.#keeper?.handedOver(),
      fullness: () => (this.#shared === null ? null : fullness(this.#shared.store.sharedReport())),
      report: () => this.#keeper?.report() ?? null,
    };
  }

  async #joinCluster(cluster: ClusterConfig, { store, incarnation }: SharedRows): Promise<void> {
    const { log, ids, quit, clock, scheduler } = this.#foundations;
    const listening = this.#server.listening[0] ?? quit("no address is listened on");
    const { host, port } = cluster.announce ?? listening;
    const self: NodeAddress & { sentinelPort: number } = {
      id: this.#context.identity.runId,
      host,
      port,
      sentinelPort: 0,
    };
    const keeper = new RoleKeeper({
      name: cluster.name,
      self,
      store,
      holder: this.#coordinator,
      clock,
      boottimeMs: () => uptime() * 1000,
      scheduler,
      fraction: () => ids.fraction(),
      log,
      times: cluster.times,
      isCandidate: cluster.isCandidate,
      incarnation,
    });
    this.#keeper = keeper;
    if (cluster.sentinelPort !== null) {
      const sentinelPort =
        cluster.sentinelPort === "auto" ? listening.port + SENTINEL_PORT_OFFSET : cluster.sentinelPort;
      if (sentinelPort > PORT_MAX) quit(`--sentinel-port: ${sentinelPort} is no port; name one, or no`);
      this.#sentinel = createSentinel({
        view: keeper,
        roleDurationMs: cluster.times.roleMs,
        context: this.#context,
        scheduler,
      });
      await this.#sentinel.listen(this.#config.bind, sentinelPort);
      self.sentinelPort = this.#sentinel.listening[0]?.port ?? 0;
    }
    store.announceAs(self);
  }
}

/**
 * A shared store that runs full stops taking any write, beats as well: so this node stops adding to it before. The figure is some seconds
 * old; what is added in between fits into the rest many times.
 */
function fullness({ usedBytes, quotaBytes }: SharedStoreReport): ErrorReply | null {
  if (usedBytes === null || quotaBytes === null || usedBytes < quotaBytes * FULLNESS_MAX) return null;
  const percent = Math.floor((100 * usedBytes) / quotaBytes);
  return withCode(
    "OOM",
    `the shared store uses ${usedBytes} of ${quotaBytes} bytes (${percent} %), from ${FULLNESS_MAX * 100} % on nothing is added: ` +
      "compact and defragment it, or raise its quota",
  );
}

const nameOf = ({ host, port }: { readonly host: string; readonly port: number }): string =>
  `${host.includes(":") ? `[${host}]` : host}:${port}`;
