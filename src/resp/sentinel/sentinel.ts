import { invariant } from "../../engine/invariant.js";
import type { ClusterView, NodeAddress, Scheduler } from "../../ports.js";
import type { Backend } from "../backend.js";
import { PubSub } from "../pubsub.js";
import { RespServer, type RespServerParts } from "../server.js";
import { ClusterState } from "./cluster-state.js";
import { PrimaryLink } from "./primary-link.js";
import { sentinelCommandTable, type SentinelContext } from "./sentinel-commands.js";
import { switchEvents } from "./switch-events.js";

/**
 * The Sentinel port: a second RESP server of a node, which answers clients as a Redis Sentinel would, so that each Redis client finds
 * the primary and follows it without knowing what it talks to. It asks the store nothing and decides nothing: it tells what the
 * ClusterView says, and whether its own link to the primary has broken.
 *
 * Invariants:
 *  1. a primary that the view does not name is not named here: no reply holds an address that may be out of date
 *  2. whoever is told of a switch finds the new primary in the next answer: nothing is told before the view names it
 */

/** How often a node looks whether it may name a new primary. A node that has just taken over does so a few round trips later. */
const NAMED_POLL_MS = 10;

interface SentinelParts {
  readonly view: ClusterView;
  /** How long the role outlives its newest sign, milliseconds: the `down-after-milliseconds` of this Sentinel. */
  readonly roleDurationMs: number;
  /** The node's own: password, protected mode and limits are those of the data port. */
  readonly context: SentinelContext;
  readonly scheduler: Scheduler;
}

/** Ready to listen. It has to be made before the view tells of its first take-over, or it will not tell of it. */
export function createSentinel({ view, roleDurationMs, context, scheduler }: SentinelParts): RespServer {
  const { settings, clock, log } = context;
  const pubsub = new PubSub(settings);
  const link = new PrimaryLink({ view, clock, scheduler });
  const state = new ClusterState(view, clock, roleDurationMs, link);
  const commands = sentinelCommandTable(context, pubsub, state);
  const server = new SentinelServer({ backend: NO_ENGINE, commands, settings, clock, scheduler, log }, link);
  const teller = new SwitchTeller(view, scheduler, (from, to) => {
    state.noteSwitch();
    for (const { channel, message } of switchEvents(view.name, from, to)) pubsub.publish(channel, message);
  });
  view.onSwitch((from, to) => teller.note(from, to, server));
  return server;
}

/** Holds the link to the primary as long as it listens. */
class SentinelServer extends RespServer {
  readonly #link: PrimaryLink;

  constructor(parts: RespServerParts, link: PrimaryLink) {
    super(parts);
    this.#link = link;
  }

  override async listen(hosts: readonly string[], port: number): Promise<void> {
    await super.listen(hosts, port);
    this.#link.start();
  }

  override stop(graceMs: number): Promise<void> {
    this.#link.stop();
    return super.stop(graceMs);
  }
}

/** Keeps the news of a switch until the view names the new primary, so that a client that is woken by it does not ask in vain. */
class SwitchTeller {
  readonly #view: ClusterView;
  readonly #scheduler: Scheduler;
  readonly #tell: (from: NodeAddress | null, to: NodeAddress) => void;
  /** Seen and not told yet; `from` is what clients were told before. */
  #kept: { readonly from: NodeAddress | null; readonly to: NodeAddress } | null = null;

  constructor(view: ClusterView, scheduler: Scheduler, tell: (from: NodeAddress | null, to: NodeAddress) => void) {
    this.#view = view;
    this.#scheduler = scheduler;
    this.#tell = tell;
  }

  note(from: NodeAddress | null, to: NodeAddress, server: RespServer): void {
    const isWaiting = this.#kept !== null;
    this.#kept = { from: this.#kept === null ? from : this.#kept.from, to };
    if (!isWaiting) this.#tellOrWait(server);
  }

  #tellOrWait(server: RespServer): void {
    if (this.#kept === null) return;
    const { from, to } = this.#kept;
    // A server that has stopped, or does not listen yet, has nobody to keep waiting.
    if (this.#view.primary()?.id === to.id || server.listening.length === 0) {
      this.#kept = null;
      this.#tell(from, to);
    } else {
      this.#scheduler.after(NAMED_POLL_MS, () => this.#tellOrWait(server));
    }
  }
}

/** There are no commands here that the engine runs. */
const NO_ENGINE: Backend = {
  submit: outOfPlace,
  atomically: outOfPlace,
  revisionOf: outOfPlace,
  unblock: () => false,
  onRoom: outOfPlace,
  forget: () => {},
  report: outOfPlace,
  stepDown: outOfPlace,
  takeRole: outOfPlace,
  shutdown: outOfPlace,
};

function outOfPlace(): never {
  invariant(false, "no command of a Sentinel reaches the engine");
}
