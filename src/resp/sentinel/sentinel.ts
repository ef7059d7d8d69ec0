import { invariant } from "../../engine/invariant.js";
import type { ClusterView, Scheduler } from "../../ports.js";
import type { Backend } from "../backend.js";
import { PubSub } from "../pubsub.js";
import { RespServer } from "../server.js";
import { ClusterState } from "./cluster-state.js";
import { sentinelCommandTable, type SentinelContext } from "./sentinel-commands.js";
import { switchEvents } from "./switch-events.js";

/**
 * The Sentinel port: a second RESP server of a node, which answers clients as a Redis Sentinel would, so that each Redis client finds
 * the primary and follows it without knowing what it talks to. It asks the store nothing and decides nothing: it tells what the
 * ClusterView says.
 *
 * Invariants:
 *  1. a primary that the view does not name is not named here: no reply holds an address that may be out of date
 *  2. whoever is told of a switch finds the new primary in every answer from then on
 */

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
  const state = new ClusterState(view, clock, roleDurationMs);
  view.onSwitch((from, to) => {
    state.noteSwitch();
    for (const { channel, message } of switchEvents(view.name, from, to)) pubsub.publish(channel, message);
  });
  const commands = sentinelCommandTable(context, pubsub, state);
  return new RespServer({ backend: NO_ENGINE, commands, settings, clock, scheduler, log });
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
