import { connect, type Socket } from "node:net";
import type { Clock, ClusterView, NodeAddress, Scheduler, Timer } from "../../ports.js";

/**
 * A connection to the primary on which nothing is said. It breaks in the moment in which the primary's process ends, or gives the
 * role up (then it closes all its connections): long before the view finds the primary too old. A Sentinel has such a
 * connection too, and says so with the flag `disconnected`; node-redis 5, sent to a primary that has just died, never comes back.
 *
 * Invariants:
 *  1. the link is a hint, and the view is the truth: a sign of the primary that is newer than the break makes it void
 *  2. a primary that could never be reached from here (other networks, other addresses) never counts as broken
 *  3. nothing decides by it who is primary
 */

/** How often is looked whether somebody else is primary now. */
const TEND_MS = 200;
/** From one attempt to connect to the next. */
const RETRY_MS = 1000;

interface LinkParts {
  readonly view: ClusterView;
  readonly clock: Clock;
  readonly scheduler: Scheduler;
}

export class PrimaryLink {
  readonly #view: ClusterView;
  readonly #clock: Clock;
  readonly #scheduler: Scheduler;
  /** Whom the fields below are about. */
  #nodeId: string | null = null;
  #socket: Socket | null = null;
  /** This node was connected with it at some time. */
  #wasUp = false;
  #brokeAtMs: number | null = null;
  #triedAtMs = -Infinity;
  #timer: Timer | null = null;

  constructor({ view, clock, scheduler }: LinkParts) {
    this.#view = view;
    this.#clock = clock;
    this.#scheduler = scheduler;
  }

  start(): void {
    this.#tend();
  }

  stop(): void {
    this.#timer?.cancel();
    this.#timer = null;
    this.#turnTo(null);
  }

  /** The link to the primary broke, and nothing was heard of it since. */
  get isBroken(): boolean {
    if (this.#brokeAtMs === null || this.#view.primary()?.id !== this.#nodeId) return false;
    return this.#clock.monotonicMs() - this.#view.primarySeenAgoMs() <= this.#brokeAtMs;
  }

  #tend(): void {
    const primary = this.#view.primary();
    const peer = primary === null || primary.id === this.#view.self.id ? null : primary;
    if (peer?.id !== this.#nodeId) this.#turnTo(peer);
    const nowMs = this.#clock.monotonicMs();
    if (peer !== null && this.#socket === null && nowMs >= this.#triedAtMs + RETRY_MS) this.#connect(peer, nowMs);
    this.#timer = this.#scheduler.after(TEND_MS, () => this.#tend());
  }

  #turnTo(peer: NodeAddress | null): void {
    this.#socket?.destroy();
    this.#socket = null;
    this.#nodeId = peer?.id ?? null;
    this.#wasUp = false;
    this.#brokeAtMs = null;
    this.#triedAtMs = -Infinity;
  }

  #connect({ host, port }: NodeAddress, nowMs: number): void {
    this.#triedAtMs = nowMs;
    const socket = connect({ host, port });
    this.#socket = socket;
    socket.on("connect", () => {
      if (this.#socket === socket) this.#wasUp = true;
    });
    // Only a server that turns a client away (protected mode, too many clients) speaks unasked: it was never up.
    socket.on("data", () => {
      if (this.#socket === socket) this.#wasUp = false;
    });
    socket.on("error", () => {
      // `close` follows
    });
    socket.on("close", () => {
      if (this.#socket !== socket) return;
      this.#socket = null;
      if (this.#wasUp) this.#brokeAtMs = this.#clock.monotonicMs();
    });
  }
}
