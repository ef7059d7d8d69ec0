import { generic } from "../../engine/errors.js";
import { MapReply, type ByteString, type Reply } from "../../engine/reply.js";
import type { Clock, ClusterView, NodeAddress } from "../../ports.js";

/**
 * The cluster in the words of a Sentinel: the field lists of SENTINEL MASTERS, REPLICAS and SENTINELS, names, order and types as
 * Redis's (`test/resp/sentinel-golden.test.ts` compares them). What a field means here, where it is not plain:
 *
 *   runid                    a node's id: it serves as run id of its data port and of its Sentinel port
 *   flags                    of the master: `master`; `master,disconnected` when the link to it broke (`primary-link.ts`);
 *                            `s_down,o_down,master,disconnected` while none is known
 *   last-*ping-reply, info-refresh   since the newest sign of the primary, milliseconds; 0 for other nodes: whoever is listed is there
 *   down-after-milliseconds  how long the role outlives its newest sign
 *   config-epoch             the epoch of the role: rises with each take-over
 *   quorum                   1: the store decides who takes over, one node that asks it is enough
 *   failover-timeout         what Sentinels need it for does not exist here: the duration of the role again
 *
 * Invariants:
 *  1. without a known primary no field holds an address or id of one, old or new
 *  2. nothing is remembered of the view but when it last told of a take-over: every answer is made of what it says now
 */

/** What a Sentinel says in place of an address that it does not know. */
const NO_HOST = "";
const NO_PORT = 0;
const NO_PRIMARY = generic("No primary is known here, so it cannot be told which nodes are its replicas");

const QUORUM = 1;
const PRIORITY = 100;

type Fields = readonly (readonly [name: string, value: string | number])[];

export class ClusterState {
  readonly view: ClusterView;
  readonly #clock: Clock;
  readonly #roleDurationMs: number;
  readonly #startedAtMs: number;
  readonly #link: { readonly isBroken: boolean };
  /** When the role last changed hands, as far as this node saw. */
  #switchedAtMs: number;

  /** `roleDurationMs`: how long the role outlives its newest sign. `link`: to the primary of the view. */
  constructor(view: ClusterView, clock: Clock, roleDurationMs: number, link: { readonly isBroken: boolean }) {
    this.view = view;
    this.#clock = clock;
    this.#roleDurationMs = roleDurationMs;
    this.#link = link;
    this.#startedAtMs = clock.monotonicMs();
    this.#switchedAtMs = this.#startedAtMs;
  }

  noteSwitch(): void {
    this.#switchedAtMs = this.#clock.monotonicMs();
  }

  /** The nodes that stand by, this one among them, in the order of their ids; none while no primary is known. */
  replicas(): readonly NodeAddress[] {
    const primary = this.view.primary();
    if (primary === null) return [];
    return [this.view.self, ...this.view.others()].filter(({ id }) => id !== primary.id).sort(byId);
  }

  /** Other nodes that answer as a Sentinel. */
  sentinels(): readonly NodeAddress[] {
    return this.view.others().filter(({ sentinelPort }) => sentinelPort > 0);
  }

  /** Of INFO: `ok`, or that this node sees no primary. */
  get masterStatus(): "ok" | "odown" {
    return this.view.primary() === null ? "odown" : "ok";
  }

  masterReply(): Reply {
    const primary = this.view.primary();
    const seenMs = this.#seenAgoMs();
    return record([
      ["name", this.view.name],
      ["ip", primary?.host ?? NO_HOST],
      ["port", primary?.port ?? NO_PORT],
      ["runid", primary?.id ?? ""],
      ["flags", this.#masterFlags(primary)],
      ...linkFields(seenMs),
      ...this.#downFields(primary),
      ["down-after-milliseconds", this.#roleDurationMs],
      ["info-refresh", seenMs],
      ["role-reported", "master"],
      ["role-reported-time", this.#heldMs()],
      ["config-epoch", this.view.epoch],
      ["num-slaves", this.replicas().length],
      ["num-other-sentinels", this.sentinels().length],
      ["quorum", QUORUM],
      ["failover-timeout", this.#roleDurationMs],
      ["parallel-syncs", 1],
    ]);
  }

  /**
   * An error while no primary is known: any node may be it, so none can be called a replica. That error is also what makes
   * node-redis, which takes the first Sentinel that answers MASTER and REPLICAS whatever the flags say, ask the next one.
   */
  replicasReply(): Reply {
    const primary = this.view.primary();
    if (primary === null) return NO_PRIMARY;
    return this.replicas().map((node) =>
      record([
        ["name", hostAndPort(node)],
        ["ip", node.host],
        ["port", node.port],
        ["runid", node.id],
        ["flags", "slave"],
        ...linkFields(0),
        ["down-after-milliseconds", this.#roleDurationMs],
        ["info-refresh", 0],
        ["role-reported", "slave"],
        ["role-reported-time", this.#heldMs()],
        ["master-link-down-time", 0],
        ["master-link-status", "ok"],
        ["master-host", primary.host],
        ["master-port", primary.port],
        ["slave-priority", PRIORITY],
        // Nothing is copied from node to node.
        ["slave-repl-offset", 0],
        ["replica-announced", 1],
      ]),
    );
  }

  sentinelReplies(): Reply[] {
    return this.sentinels().map((node) =>
      record([
        ["name", node.id],
        ["ip", node.host],
        ["port", node.sentinelPort],
        ["runid", node.id],
        ["flags", "sentinel"],
        ...linkFields(0),
        ["down-after-milliseconds", this.#roleDurationMs],
        ["last-hello-message", 0],
        // These Sentinels do not vote.
        ["voted-leader", "?"],
        ["voted-leader-epoch", 0],
      ]),
    );
  }

  #masterFlags(primary: NodeAddress | null): ByteString {
    if (primary === null) return "s_down,o_down,master,disconnected";
    return this.#link.isBroken ? "master,disconnected" : "master";
  }

  #downFields(primary: NodeAddress | null): Fields {
    if (primary !== null) return [];
    const downMs = this.#downMs();
    return [
      ["s-down-time", downMs],
      ["o-down-time", downMs],
    ];
  }

  /** Since the newest sign of a primary; as long as there was none, since this node began to look. */
  #seenAgoMs(): number {
    const agoMs = this.view.primarySeenAgoMs();
    return wholeMs(Number.isFinite(agoMs) ? agoMs : this.#clock.monotonicMs() - this.#startedAtMs);
  }

  #downMs(): number {
    return Math.max(0, this.#seenAgoMs() - this.#roleDurationMs);
  }

  #heldMs(): number {
    return wholeMs(this.#clock.monotonicMs() - this.#switchedAtMs);
  }
}

const byId = (one: NodeAddress, other: NodeAddress): number => (one.id < other.id ? -1 : 1);

const wholeMs = (durationMs: number): number => Math.max(0, Math.floor(durationMs));

/** The connection to a node: never anything under way, and its newest answer `agoMs` old. */
const linkFields = (agoMs: number): Fields => [
  ["link-pending-commands", 0],
  ["link-refcount", 1],
  ["last-ping-sent", 0],
  ["last-ok-ping-reply", agoMs],
  ["last-ping-reply", agoMs],
];

/** Every value of a Sentinel's record is a string, numbers too. */
const record = (fields: Fields): MapReply =>
  new MapReply(fields.map(([name, value]) => [name, String(value)] as const));

/** `10.0.0.1:7379`, `[fd00::1]:7379`: what a Sentinel calls a replica. */
export const hostAndPort = ({ host, port }: NodeAddress): ByteString =>
  host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`;
