import type { Command } from "../engine/command.js";
import type { ByteString, ErrorReply, Reply } from "../engine/reply.js";
import type { PARKED, SATURATED, Session } from "../ports.js";

/**
 * The seam between the wire and the commands. `connection.ts` finds a command by name, checks arity, password and pause, and
 * runs it; what a command may know of the connection and the server that it runs on is written down here, and nothing more.
 *
 * Three kinds of command:
 *  - engine commands have `parse`: argv in, Command out; the connection submits it to the backend;
 *  - composed commands have `compose`: they run any number of engine commands as one step and make their answer of them;
 *  - connection and server commands have `run`: they answer here and now, or later through `connection.deliver(ticket, ...)`.
 *
 * EXEC and scripts run any of them within a step of theirs (`step.ts`), unless it `standsAlone`.
 *
 * Invariants:
 *  - argv holds byte strings, the name as the client wrote it at index 0; it belongs to the command and may be kept
 *  - `parse` and `run` never throw for anything a client sent; a throw is a programmer error and ends the process
 *  - the replies of one connection leave in the order of its commands, however late some of them are delivered
 */

/** What `run` answers when the command has no reply at all. */
export const NO_REPLY = Symbol("no-reply");

/** Several replies of one command in order, e.g. the confirmations of SUBSCRIBE a b c. Each stands alone on the wire. */
export class SeveralReplies {
  readonly items: readonly Reply[];
  constructor(items: readonly Reply[]) {
    this.items = items;
  }
}

export type RunResult = Reply | SeveralReplies | typeof PARKED | typeof NO_REPLY;

/**
 * How often a command was called, for INFO commandstats. Counted by the connection; CONFIG RESETSTAT may zero the fields.
 * `durationMs` is known for commands with `timed`; of the others it is their share of the turns that they ran in.
 */
export interface CommandCounters {
  calls: number;
  /** Refused before it ran: arity, password, gate. */
  rejected: number;
  /** Ran and answered with an error. */
  failed: number;
  durationMs: number;
}

/** What runs as one: no other command comes in between, time stands still, and all changes are one batch. */
export interface Step {
  /** Runs an engine command now. It sees the effects of those before it. */
  run(command: Command): Reply;
  /** Called once all changes of the step are durable, just before its answer leaves. Messages go out then. */
  whenDurable(effect: () => void): void;
  /** The wall clock when the step began, milliseconds. */
  readonly unixMs: number;
}

export interface CommandSpec {
  /** Canonical, lower case: `lease.grant`; of a subcommand with its container: `client|setname`. */
  readonly name: string;
  /** Redis's convention: the number of arguments, name (and subcommand) included; negative: at least so many. */
  readonly arity: number;
  /** Redis's flags, for COMMAND. The connection goes by the booleans below, which are cheaper. */
  readonly flags: readonly string[];
  /** May run before AUTH. */
  readonly withoutPassword?: boolean;
  /** Changes data: waits during CLIENT PAUSE WRITE. */
  readonly write?: boolean;
  /** Runs even during CLIENT PAUSE: UNPAUSE itself. */
  readonly ignoresPause?: boolean;
  /** Not shown to MONITOR: AUTH, HELLO and the like carry passwords. */
  readonly secret?: boolean;
  /** May take long: its duration is taken by the clock and told to `ServerHandle.observer`. */
  readonly timed?: boolean;
  /** Scripts may not call it. */
  readonly isNoScript?: boolean;
  /** Answers late, several times or never: no transaction takes it. */
  readonly standsAlone?: boolean;
  /** Runs at once inside MULTI instead of being queued. */
  readonly isNeverQueued?: boolean;
  /** A container (CLIENT, CONFIG): argv[1] names the subcommand, and `run` or `parse` of this one serve only its absence. */
  readonly subcommands?: CommandLookup;
  readonly counters: CommandCounters;

  /** Engine commands. Checks form and limits of the arguments; an ErrorReply is sent as it is. */
  readonly parse?: (argv: readonly ByteString[], connection: ClientConnection) => Command | ErrorReply;
  /**
   * Composed commands. With `run` beside it, `run` is for the command that comes alone and this for the one within a step.
   */
  readonly compose?: (argv: readonly ByteString[], connection: ClientConnection, step: Step) => Reply;
  /**
   * Connection and server commands. After PARKED the answer comes through `connection.deliver` under the number that
   * `connection.ticket` had during this call. After SATURATED the connection calls again once there is room.
   */
  readonly run?: (argv: readonly ByteString[], connection: ClientConnection) => RunResult | typeof SATURATED;
}

export interface CommandLookup {
  /** Any letter case. Allocates nothing when `name` is all lower or all upper case. */
  find(name: ByteString): CommandSpec | undefined;
}

/**
 * A message for many connections: encoded at most once per RESP version, however many subscribers get it. A PushReply is an
 * array in RESP2; MONITOR's lines are StatusReplies.
 */
export interface PreparedMessage {
  encoded(protocol: ProtocolVersion): ByteString;
}

export type ProtocolVersion = 2 | 3;

/** CLIENT REPLY. `skip-next`: set by SKIP, the command after it goes without an answer and the mode falls back to `on`. */
export type ReplyMode = "on" | "off" | "skip-next";

/** What pub/sub keeps for one connection. */
export interface ClientSubscriptions {
  readonly channelCount: number;
  readonly patternCount: number;
  /** The connection is gone or RESET: leave all channels without a message. */
  dropAll(): void;
}

/**
 * May answer in place of a command: the refusal of ordinary commands in RESP2 subscriber mode. Comes after lookup, arity and
 * password, and before a transaction. `undefined`: let it run.
 */
export type CommandGate = (
  spec: CommandSpec,
  argv: readonly ByteString[],
  connection: ClientConnection,
) => RunResult | undefined;

/** Between MULTI and EXEC. */
export interface ClientTransaction {
  /** Commands queued. */
  readonly size: number;
  /** Keeps the command for EXEC and answers QUEUED, or refuses it; `undefined`: it runs now. */
  take(spec: CommandSpec, argv: readonly ByteString[]): Reply | undefined;
  /** A command was refused before it could be queued: nothing will run, EXEC says so. */
  abort(): void;
}

/** WATCH: a key, and how new it was then (`Backend.revisionOf`). */
export interface WatchedKey {
  readonly databaseIndex: number;
  readonly key: ByteString;
  readonly revision: number;
}

/** One client connection as commands see it. Every field may be read at any time, also of another connection (CLIENT LIST). */
export interface ClientConnection extends Session {
  /** 1, 2, 3 ... never used twice in a process. */
  readonly id: number;
  readonly server: ServerHandle;
  /** `127.0.0.1:50123`; of IPv6 `[::1]:50123`. */
  readonly remoteAddress: string;
  readonly localAddress: string;
  /** True when the peer is on this machine (loopback address). */
  readonly isLoopback: boolean;

  /** CLIENT SETNAME. Setting it also renews `origin.owner`. */
  name: ByteString;
  libraryName: ByteString;
  libraryVersion: ByteString;
  /** Replies of commands from now on, the running one included, are encoded in this version. */
  protocol: ProtocolVersion;
  /** SELECT. The same number as `origin.databaseIndex`. */
  databaseIndex: number;
  authenticated: boolean;
  replyMode: ReplyMode;
  noEvict: boolean;
  noTouch: boolean;
  isMonitor: boolean;
  subscriptions: ClientSubscriptions | null;
  gate: CommandGate | null;
  transaction: ClientTransaction | null;
  watchedKeys: readonly WatchedKey[];

  /** Monotonic milliseconds. */
  readonly createdAtMs: number;
  readonly lastCommandAtMs: number;
  /** Canonical name of the newest command; empty before the first. */
  readonly lastCommandName: string;
  readonly commandsRun: number;
  readonly bytesRead: number;
  readonly bytesWritten: number;
  /** Bytes received and not yet run. */
  readonly queryBufferBytes: number;
  /** Bytes of replies not yet taken by the client: collected here or in the kernel's way. */
  readonly outputBufferBytes: number;
  /** Commands whose replies have not been sent yet because one is parked. */
  readonly repliesWaiting: number;
  /** A command with `blockUntilReply` waits for its answer. */
  readonly isBlocked: boolean;
  /** `closeAfterReplies` was called. */
  readonly isClosing: boolean;
  readonly isClosed: boolean;

  /** The number of the command that runs now; `deliver(ticket, ...)` answers it later. */
  readonly ticket: number;
  /** The one clock reading of this turn, monotonic milliseconds. */
  readonly nowMs: number;

  /**
   * Called while a command is parsed or run: later commands of this connection wait until this one is answered
   * (LOCK.ACQUIRE BLOCK, FAILOVER). Without it they run and only their replies queue up.
   */
  blockUntilReply(): void;

  /**
   * A message from outside of the command sequence: pub/sub, MONITOR. Never between the halves of a reply, never before
   * the confirmation of the SUBSCRIBE that asked for it. Ignored when the connection is closing. A subscriber that does not read its messages is
   * closed at `pushBufferBytesMax`.
   */
  push(message: PreparedMessage): void;

  /** Nothing that the client sent after this command runs; the connection closes once all replies so far are sent. */
  closeAfterReplies(): void;
}

/** What commands may know of the server around the connections. */
export interface ServerHandle {
  readonly settings: ServerSettings;
  readonly statistics: WireStatistics;
  readonly connectionCount: number;
  /** Where it listens; the first one's port is `tcp_port` of INFO. */
  readonly listening: readonly { readonly host: string; readonly port: number }[];
  /** In order of connection. Safe against connections that close while it is walked. */
  connections(): Iterable<ClientConnection>;
  connection(id: number): ClientConnection | undefined;
  /** CLIENT PAUSE: from now until `durationMs` later no command (`all`) or no writing command (`write`) runs. */
  pause(kind: "all" | "write", durationMs: number): void;
  unpause(): void;
  readonly pausedKind: "none" | "all" | "write";
  /** MONITOR, SLOWLOG: null when nobody looks. */
  observer: CommandObserver | null;
}

export interface CommandObserver {
  /** Wants `beforeCommand` for each command. */
  readonly watchesAll: boolean;
  /** Every command is treated as `timed`: SLOWLOG or LATENCY was asked for durations below a millisecond. */
  readonly timesAll: boolean;
  /** `isInScript`: a script on that connection runs it. */
  beforeCommand(
    spec: CommandSpec,
    argv: readonly ByteString[],
    connection: ClientConnection,
    isInScript?: boolean,
  ): void;
  /** After a command with `timed`, or one with many arguments, or any when `timesAll`. */
  afterTimedCommand(
    spec: CommandSpec,
    argv: readonly ByteString[],
    connection: ClientConnection,
    durationMs: number,
  ): void;
}

/** What CONFIG SET may change while the server runs. Read at each use. */
export interface ServerSettings {
  /** null: no password is asked for. */
  password: ByteString | null;
  protectedMode: boolean;
  connectionsMax: number;
  /** Idle connections are closed after so long; 0: never. Subscribers and blocked ones stay. */
  idleTimeoutMs: number;
  /** TCP keep-alive probes start after so long without traffic; 0: none. */
  tcpKeepAliveMs: number;
}

/** Counters since start; CONFIG RESETSTAT may zero them. */
export interface WireStatistics {
  connectionsReceived: number;
  connectionsRejected: number;
  commandsProcessed: number;
  bytesRead: number;
  bytesWritten: number;
  protocolErrors: number;
  /** Closed because it did not read what it was sent. */
  outputLimitDisconnections: number;
  /** Error replies by code, for INFO errorstats. */
  errorReplies: Map<string, number>;
}
