import type { Clock, ClusterView, NodeAddress } from "#src/ports.js";
import { Diagnostics } from "#src/resp/diagnostics.js";
import { newRunId, nodeProcessFigures } from "#src/resp/process-figures.js";
import { RuntimeSettings, type StartSettings } from "#src/resp/server-settings.js";
import { createSentinel } from "#src/resp/sentinel/sentinel.js";
import type { RespServer } from "#src/resp/server.js";
import { SystemClock, SystemScheduler } from "#src/system.js";
import { RespConnection } from "../support/resp-client.js";
import { KeptLog, START_SETTINGS } from "./commands-harness.js";

/** Sentinel ports over real sockets, driven by a view of a cluster that the test holds in its hand. */

/** Long enough that a real Sentinel on a crowded machine takes nobody for dead. */
export const ROLE_DURATION_MS = 3000;

/** What one node sees; a test changes it as the store would. */
export class HeldView implements ClusterView {
  readonly name: string;
  readonly self: NodeAddress;
  epoch = 0;
  nowMs = (): number => performance.now();
  #seenAtMs = -Infinity;
  #primary: NodeAddress | null = null;
  #others: readonly NodeAddress[];
  readonly #listeners: ((from: NodeAddress | null, to: NodeAddress) => void)[] = [];
  #newest: NodeAddress | null = null;

  constructor(self: NodeAddress, others: readonly NodeAddress[] = [], name = "leasehold") {
    this.name = name;
    this.self = self;
    this.#others = others;
  }

  primary(): NodeAddress | null {
    return this.#primary;
  }
  primarySeenAgoMs(): number {
    return this.nowMs() - this.#seenAtMs;
  }
  set seenAgoMs(agoMs: number) {
    this.#seenAtMs = this.nowMs() - agoMs;
  }
  others(): readonly NodeAddress[] {
    return this.#others;
  }
  onSwitch(listener: (from: NodeAddress | null, to: NodeAddress) => void): void {
    this.#listeners.push(listener);
  }

  setOthers(others: readonly NodeAddress[]): void {
    this.#others = others;
  }

  /** `to` is primary from now on, and this node has seen how it took over. */
  takeOver(to: NodeAddress): void {
    this.#primary = to;
    this.#see(to);
  }

  /** `to` is taking over; it is not to be named before `hearAgain`. */
  beginTakeOver(to: NodeAddress): void {
    this.#primary = null;
    this.#see(to);
  }

  #see(to: NodeAddress): void {
    const from = this.#newest;
    this.#newest = to;
    this.epoch += 1;
    this.seenAgoMs = 0;
    for (const listener of this.#listeners) listener(from, to);
  }

  /** Nothing was heard of the primary for `seenAgoMs`, which is too long. */
  goStale(seenAgoMs = 2 * ROLE_DURATION_MS): void {
    this.#primary = null;
    this.seenAgoMs = seenAgoMs;
  }

  /** The same primary is heard of again. */
  hearAgain(): void {
    this.#primary = this.#newest;
    this.seenAgoMs = 0;
  }
}

export function address(port: number, sentinelPort: number, host = "127.0.0.1", id = newRunId()): NodeAddress {
  return { id, host, port, sentinelPort };
}

export class HeldClock implements Clock {
  nowMs = 1_000_000;
  monotonicMs(): number {
    return this.nowMs;
  }
  unixMs(): number {
    return 1_700_000_000_000 + this.nowMs;
  }
}

export interface TestSentinel {
  readonly server: RespServer;
  readonly diagnostics: Diagnostics;
  readonly port: number;
  connect(protocol?: 2 | 3): Promise<RespConnection>;
  stop(): Promise<void>;
}

export interface SentinelOptions {
  readonly start?: Partial<StartSettings>;
  readonly clock?: Clock;
}

/** Listens on the view's own Sentinel port; 0: one that the kernel picks. */
export async function startSentinel(view: ClusterView, options: SentinelOptions = {}): Promise<TestSentinel> {
  const settings = new RuntimeSettings({ ...START_SETTINGS, ...options.start });
  const clock = options.clock ?? new SystemClock();
  const diagnostics = new Diagnostics(settings, clock);
  const identity = { version: "0.1.0", redisVersion: "7.2.4", runId: view.self.id, startedAtMs: clock.monotonicMs() };
  const server = createSentinel({
    view,
    roleDurationMs: ROLE_DURATION_MS,
    context: { settings, diagnostics, clock, log: new KeptLog(), figures: nodeProcessFigures(), identity },
    scheduler: new SystemScheduler(),
  });
  await server.listen(["127.0.0.1"], view.self.sentinelPort);
  const port = server.listening[0]?.port ?? 0;
  return {
    server,
    diagnostics,
    port,
    connect: (protocol = 2) => RespConnection.connect(port, { protocol }),
    stop: () => server.stop(1000),
  };
}
