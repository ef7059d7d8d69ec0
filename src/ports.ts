import type { Origin } from "./engine/command.js";
import type { ByteString, Reply } from "./engine/reply.js";

/**
 * What the loop may ask of the world. The real forms are in `system.ts`; tests and the simulation bring their own. Nothing
 * in the server reads a clock, sets a timer, draws a random number or logs but through one of these.
 */

export interface Clock {
  /**
   * Monotonic milliseconds, fractions allowed; the origin means nothing and differs between processes. Never steps back.
   * This is CLOCK_MONOTONIC: it does not count time in which the machine was suspended.
   */
  monotonicMs(): number;
  /** Wall clock in milliseconds since 1970: for people to read only, no rule may compare it with anything. */
  unixMs(): number;
}

export interface Timer {
  cancel(): void;
}

export interface Scheduler {
  /** Runs `callback` once, `delayMs` from now at the earliest. Any delay is legal; long ones are cut and armed again. */
  after(delayMs: number, callback: () => void): Timer;
  /** Runs `callback` once when the input that is ready now has been handled: the end of a loop turn (`setImmediate`). */
  soon(callback: () => void): void;
}

export interface Ids {
  /** A name never used before: 96 random bits as text (lower-case letters and digits). */
  incarnation(): ByteString;
  /** 0 <= fraction < 1. */
  fraction(): number;
}

export type LogLevel = "debug" | "info" | "warn" | "error";

export interface Log {
  /** One line. `fields` are appended as `name=value`; units last in names. */
  write(level: LogLevel, message: string, fields?: Readonly<Record<string, string | number | boolean>>): void;
}

/**
 * Named places before and after each durability step that can be made to fail: by the simulation from a seed, in end-to-end
 * tests by LEASEHOLD_FAULTS in the environment. Nothing in production.
 */
export interface Fault {
  /** May end the process, block, or throw, as the test asked; does nothing otherwise. */
  point(name: FaultPoint): void;
}

export type FaultPoint =
  | "commit:before-write"
  | "commit:after-write"
  | "commit:before-release"
  | "release:after-reply"
  | "witness:before-rename"
  | "witness:after-rename"
  | "load:page"
  | "open:after-lock"
  | "close:before-sync";

/**
 * One client connection as the loop sees it. The loop hands later answers back through it; it never touches the socket.
 */
export interface Session {
  /** Where this session's commands come from; the same object for the session's whole life. */
  readonly origin: Origin;
  /**
   * Monotonic milliseconds, read once per turn, after everything that the turn runs had arrived and before the first of it
   * ran. So no deadline counted from it begins before its client sent the command.
   */
  readonly nowMs: number;
  /**
   * The answer of a submit that had to wait. `ticket` is the number that the submit named. Tickets may be answered in any
   * order; the session keeps its replies in the order of its requests.
   */
  deliver(ticket: number, reply: Reply): void;
  /** Ends the connection without an answer: its outcome is unknown, or this node lost the role. */
  close(reason: string): void;
}

/** What a submit answers when the reply comes later through `Session.deliver`, under the ticket of the submit. */
export const PARKED = Symbol("parked");

/** What a submit answers when the open batch is full: nothing was done; submit again when `onRoom` calls. */
export const SATURATED = Symbol("saturated");

/** What INFO, ROLE and the logs tell about this node. All counters since start. */
export interface NodeReport {
  readonly role: RoleName;
  /** Rises with every take-over of the primary role. */
  readonly epoch: number;
  /** Rows read by the load that this tenure began with: moves while `role` is `loading`. */
  readonly rowsLoaded: number;
  readonly revision: number;
  readonly durableRevision: number;
  readonly leases: number;
  /** Keys per database, by index. */
  readonly keysByDatabase: readonly number[];
  /** Those of them that never expire by themselves, by index. */
  readonly lastingKeysByDatabase: readonly number[];
  /** Plain keys whose time was over. */
  readonly keysExpired: number;
  /** Look-ups of keys by commands that read: those that found one, and the others. */
  readonly keyspaceHits: number;
  readonly keyspaceMisses: number;
  /** Commands that wait for a key. */
  readonly commandsBlocked: number;
  readonly leasesExpired: number;
  readonly leasesRevoked: number;
  readonly leasesGranted: number;
  readonly keepAlives: number;
  /** The largest lateness of an expiry so far, in milliseconds. */
  readonly expiryLateMsMax: number;
  readonly batchesCommitted: number;
  readonly bytesCommitted: number;
  /** The duration of the newest batch from hand-over to durable, in milliseconds. */
  readonly lastCommitMs: number;
  readonly batchOpenBytes: number;
  readonly repliesParked: number;
  readonly storeName: string;
  /** Null for a node of its own. */
  readonly cluster: ClusterReport | null;
}

export type RoleName = "standby" | "loading" | "primary" | "fenced" | "stopped";

/** Where a node of a cluster can be reached. */
export interface NodeAddress {
  /** 40 hexadecimal digits, the same for the life of the process: what Sentinel calls a run id. */
  readonly id: string;
  /** An IP address: clients do not look names up that a Sentinel tells them. */
  readonly host: string;
  readonly port: number;
  /** The port that answers as a Sentinel; 0: none. */
  readonly sentinelPort: number;
}

/** The cluster as this node sees it: for the Sentinel port, ROLE and INFO. */
export interface ClusterView {
  /** What clients ask a Sentinel for. */
  readonly name: string;
  readonly self: NodeAddress;
  /** Of the newest take-over that this node has seen; 0 before. */
  readonly epoch: number;
  /** Who has the primary role; null when nobody has, or when this node has not heard of it for the role's duration. */
  primary(): NodeAddress | null;
  /** How long ago the newest sign of the primary was seen, in milliseconds; Infinity when never. */
  primarySeenAgoMs(): number;
  /** The other nodes that announced themselves lately, in the order of their ids. */
  others(): readonly NodeAddress[];
  /** Calls back after each take-over that this node sees; `from` is null when there was none before. */
  onSwitch(listener: (from: NodeAddress | null, to: NodeAddress) => void): void;
}

/** Whether this node may still act as primary; a node of its own always may. */
export interface RoleTerm {
  /** At this monotonic reading, which is also the one that the promise at hand is counted from. */
  holds(nowMs: number): boolean;
}

/** What INFO and the logs tell about the cluster. All counters since start. */
export interface ClusterReport {
  readonly name: string;
  readonly epoch: number;
  readonly primary: NodeAddress | null;
  readonly primarySeenAgoMs: number;
  /** Other nodes that are there. */
  readonly others: number;
  /** Of this node. */
  readonly takeOvers: number;
  readonly beatsFailed: number;
  /** Infinity when there was none. */
  readonly lastBeatAgoMs: number;
  readonly lastBeatLatencyMs: number;
  readonly beatLatencyMsMax: number;
  /** Time left as primary, without another beat; 0 for a standby. */
  readonly roleLeftMs: number;
  /** For how long, in all, this node saw no primary. */
  readonly withoutPrimaryMs: number;
}
