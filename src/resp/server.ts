import { createServer, type AddressInfo, type Server, type Socket } from "node:net";
import { invariant } from "../engine/invariant.js";
import type { ByteString } from "../engine/reply.js";
import type { Clock, Log, Scheduler, Session, Timer } from "../ports.js";
import { acceptIntoSharedBuffer } from "./accept.js";
import type { Backend } from "./backend.js";
import type {
  ClientConnection,
  CommandLookup,
  CommandObserver,
  ServerHandle,
  ServerSettings,
  WireStatistics,
} from "./command.js";
import { Connection, HOLDS, isLoopbackAddress, type ConnectionHost } from "./connection.js";
import { RequestDecoder } from "./decoder.js";
import { Dispatcher } from "./dispatcher.js";
import { frameLimits, type FrameLimits } from "./frame-guard.js";
import { TurnLedger } from "./turn-ledger.js";
import {
  FRAME_BYTES_MAX,
  HOUSEKEEPING_MS,
  LINGER_MS,
  LINGER_UNSENT_MS,
  READ_BYTES_MAX,
  REFUSED_LINGERING_MAX,
  UNFINISHED_BYTES_TOTAL_MAX,
} from "./wire-limits.js";

/**
 * The listening side: accepts clients, keeps the register of them, gives held ones their turn again, closes idle ones, and stops
 * gracefully. It knows no command: those come in through a CommandLookup.
 *
 * Invariants:
 *  1. every accepted socket is in the register until its `close` event, and no longer
 *  2. turns and sends that were asked for run at the end of the loop turn, in the order of asking, once each
 *  3. after `stop` nothing is accepted and no new command runs
 */

export interface RespServerParts {
  readonly backend: Backend;
  readonly commands: CommandLookup;
  readonly settings: ServerSettings;
  readonly clock: Clock;
  readonly scheduler: Scheduler;
  readonly log: Log;
  /** Bytes of one request in all. */
  readonly frameBytesMax?: number;
  /** Bytes of unfinished requests of all connections together. */
  readonly unfinishedBytesMax?: number;
  /** False: use the sockets of net.Server as they are. For tests of that path. */
  readonly sharedReads?: boolean;
}

/** Why it cannot listen, fit for one line to the operator. */
export class ListenError extends Error {
  override readonly name = "ListenError";
  /** Of the operating system: `EADDRINUSE`, `EACCES`, `EADDRNOTAVAIL` ... */
  readonly code: string;
  constructor(code: string, message: string) {
    super(message);
    this.code = code;
  }
}

interface Listening {
  readonly host: string;
  readonly port: number;
}

const TOO_MANY_CLIENTS = "-ERR max number of clients reached\r\n";
const PROTECTED =
  "-DENIED Leasehold is running in protected mode: it has no password and serves this machine only. " +
  "Set a password (requirepass), connect over the loopback interface, or switch protected mode off (protected-mode no).\r\n";

export class RespServer implements ConnectionHost, ServerHandle {
  readonly settings: ServerSettings;
  readonly backend: Backend;
  readonly clock: Clock;
  readonly log: Log;
  readonly dispatcher: Dispatcher;
  readonly decoder: RequestDecoder;
  readonly limits: FrameLimits;
  readonly ledger: TurnLedger;
  readonly requests: (readonly ByteString[])[] = [];
  readonly statistics: WireStatistics = {
    connectionsReceived: 0,
    connectionsRejected: 0,
    commandsProcessed: 0,
    bytesRead: 0,
    bytesWritten: 0,
    protocolErrors: 0,
    outputLimitDisconnections: 0,
    errorReplies: new Map(),
  };
  observer: CommandObserver | null = null;
  pausedKind: "none" | "all" | "write" = "none";
  unfinishedBytes = 0;
  readonly unfinishedBytesMax: number;

  readonly #scheduler: Scheduler;
  readonly #sharedReads: boolean;
  readonly #readBuffer = Buffer.allocUnsafeSlow(READ_BYTES_MAX);
  readonly #servers: Server[] = [];
  readonly #listening: Listening[] = [];
  readonly #connections = new Map<number, Connection>();
  /** Connections that have sent their last reply, and since when. */
  readonly #lingering = new Map<Connection, number>();
  #newestId = 0;
  /** Sockets that were refused and have not closed yet. */
  #refusedCount = 0;

  #turnsAsked: Connection[] = [];
  #sendsAsked: Connection[] = [];
  #isRoundAsked = false;
  #roomAsked = new Set<Connection>();
  #isRoomAsked = false;
  #pauseAsked = new Set<Connection>();
  #pauseEnd: Timer | null = null;
  #pausedUntilMs = 0;
  #housekeeping: Timer | null = null;
  #isStopping = false;
  #onAllGone: (() => void) | null = null;

  constructor(parts: RespServerParts) {
    this.settings = parts.settings;
    this.backend = parts.backend;
    this.clock = parts.clock;
    this.log = parts.log;
    this.#scheduler = parts.scheduler;
    this.#sharedReads = parts.sharedReads ?? true;
    this.limits = frameLimits(parts.frameBytesMax ?? FRAME_BYTES_MAX);
    this.unfinishedBytesMax = parts.unfinishedBytesMax ?? UNFINISHED_BYTES_TOTAL_MAX;
    this.dispatcher = new Dispatcher(parts.commands);
    this.decoder = new RequestDecoder(this.#readBuffer);
    this.ledger = new TurnLedger(parts.clock);
  }

  // Listening -----------------------------------------------------------------------------------------------------

  /**
   * Listens on `port` of every host. Port 0: the system picks one for the first host, the others use the same.
   * Rejects with a ListenError; then it listens nowhere.
   */
  async listen(hosts: readonly string[], port: number): Promise<void> {
    invariant(this.#servers.length === 0 && !this.#isStopping, "a server listens once");
    let boundPort = port;
    try {
      for (const host of hosts) {
        boundPort = (await this.#listenOn(host, boundPort)).port;
      }
    } catch (error) {
      this.#closeListeners();
      throw listenError(error as NodeJS.ErrnoException, hosts, boundPort);
    }
    this.#armHousekeeping();
  }

  get listening(): readonly Listening[] {
    return this.#listening;
  }

  #listenOn(host: string, port: number): Promise<Listening> {
    const server = createServer({ allowHalfOpen: true, noDelay: true }, (socket) => this.#acceptPlain(socket));
    this.#servers.push(server);
    return new Promise((resolve, reject) => {
      server.once("error", reject);
      server.listen({ host, port, backlog: 511 }, () => {
        server.removeListener("error", reject);
        server.on("error", (error: NodeJS.ErrnoException) => {
          this.log.write("warn", "cannot accept a connection", { error: error.code ?? error.message });
        });
        if (
          this.#sharedReads &&
          !acceptIntoSharedBuffer(server, this.#readBuffer, (socket) => this.#acceptShared(socket))
        ) {
          this.log.write(
            "info",
            "this Node does not let accepted sockets share a read buffer; reads cost a little more",
          );
        }
        const listening = { host, port: (server.address() as AddressInfo).port };
        this.#listening.push(listening);
        resolve(listening);
      });
    });
  }

  #closeListeners(): void {
    for (const server of this.#servers) server.close();
    this.#servers.length = 0;
    this.#listening.length = 0;
  }

  // Accepting -----------------------------------------------------------------------------------------------------

  #acceptShared(socket: Socket): (length: number, buffer: Buffer) => void {
    socket.setNoDelay(true);
    const connection = this.#accept(socket);
    if (connection === null) return () => {};
    return (length, buffer) => connection.receive(buffer, length);
  }

  #acceptPlain(socket: Socket): void {
    const connection = this.#accept(socket);
    if (connection === null) socket.resume();
    else socket.on("data", (bytes: Buffer) => connection.receive(bytes, bytes.length));
  }

  /** null: the socket was refused with an error line, and nobody is interested in what it sends. */
  #accept(socket: Socket): Connection | null {
    this.statistics.connectionsReceived++;
    const refusal = this.#refusalOf(socket);
    if (refusal !== null) {
      this.statistics.connectionsRejected++;
      this.#refuse(socket, refusal);
      return null;
    }
    const { tcpKeepAliveMs } = this.settings;
    if (tcpKeepAliveMs > 0) socket.setKeepAlive(true, tcpKeepAliveMs);
    const connection = new Connection(this, socket, ++this.#newestId);
    this.#connections.set(connection.id, connection);
    return connection;
  }

  /** Says why and closes; a little later, because closing with unread input would take the answer back. */
  #refuse(socket: Socket, refusal: string): void {
    socket.on("error", ignoreError);
    socket.on("end", () => socket.destroySoon());
    socket.end(refusal, "latin1");
    if (this.#refusedCount >= REFUSED_LINGERING_MAX) {
      socket.destroySoon();
      return;
    }
    this.#refusedCount++;
    const lingerEnd = this.#scheduler.after(LINGER_MS, () => socket.destroy());
    socket.on("close", () => {
      this.#refusedCount--;
      lingerEnd.cancel();
    });
  }

  #refusalOf(socket: Socket): string | null {
    const { settings } = this;
    if (this.#isStopping) return "";
    if (this.#connections.size >= settings.connectionsMax) return TOO_MANY_CLIENTS;
    const isOpen = settings.password !== null || !settings.protectedMode;
    return isOpen || isLoopbackAddress(socket.remoteAddress) ? null : PROTECTED;
  }

  // The register --------------------------------------------------------------------------------------------------

  get connectionCount(): number {
    return this.#connections.size;
  }

  *connections(): Iterable<ClientConnection> {
    // A Map may lose entries while it is walked.
    for (const connection of this.#connections.values()) {
      if (!connection.isClosed) yield connection;
    }
  }

  connection(id: number): ClientConnection | undefined {
    const connection = this.#connections.get(id);
    return connection?.isClosed === true ? undefined : connection;
  }

  /** Ends every connection but `except`, behind what is answered already: this node has given up the role. */
  dismissAll(except: Session | null, reason: string): void {
    for (const connection of this.#connections.values()) {
      if (connection !== except) connection.dismiss(reason);
    }
    this.#askForRoomAgain();
  }

  forget(connection: Connection): void {
    this.#connections.delete(connection.id);
    this.#lingering.delete(connection);
    this.#roomAsked.delete(connection);
    this.#pauseAsked.delete(connection);
    if (this.#connections.size === 0) this.#onAllGone?.();
  }

  // Turns and sends -----------------------------------------------------------------------------------------------

  askForTurn(connection: Connection): void {
    if (connection.isTurnAsked) return;
    connection.isTurnAsked = true;
    this.#turnsAsked.push(connection);
    this.#askForRound();
  }

  askForSend(connection: Connection): void {
    if (connection.isSendAsked) return;
    connection.isSendAsked = true;
    this.#sendsAsked.push(connection);
    this.#askForRound();
  }

  #askForRound(): void {
    if (this.#isRoundAsked) return;
    this.#isRoundAsked = true;
    this.#scheduler.soon(this.#round);
  }

  readonly #round = (): void => {
    this.#isRoundAsked = false;
    // Sends first: they are answers that somebody waits for already. What is asked for meanwhile is the next round.
    const sends = this.#sendsAsked;
    this.#sendsAsked = [];
    for (const connection of sends) {
      connection.isSendAsked = false;
      connection.send();
    }
    const turns = this.#turnsAsked;
    this.#turnsAsked = [];
    for (const connection of turns) {
      connection.isTurnAsked = false;
      connection.turn();
    }
  };

  askForRoom(connection: Connection): void {
    this.#roomAsked.add(connection);
    if (this.#isRoomAsked) return;
    this.#isRoomAsked = true;
    this.backend.onRoom(() => {
      this.#isRoomAsked = false;
      const waiting = this.#roomAsked;
      this.#roomAsked = new Set();
      for (const waiter of waiting) waiter.release(HOLDS.saturated);
    });
  }

  /** A role that is given up takes its promise to call back with it: who is left asks the next one. */
  #askForRoomAgain(): void {
    const waiting = this.#roomAsked;
    this.#roomAsked = new Set();
    this.#isRoomAsked = false;
    for (const waiter of waiting) {
      if (!waiter.isClosed && !waiter.isClosing) this.askForRoom(waiter);
    }
  }

  // CLIENT PAUSE --------------------------------------------------------------------------------------------------

  /** As in Redis, a pause is never made shorter or weaker by another one; only `unpause` ends it early. */
  pause(kind: "all" | "write", durationMs: number): void {
    const nowMs = this.clock.monotonicMs();
    if (this.pausedKind === "none") this.#pausedUntilMs = nowMs + durationMs;
    else this.#pausedUntilMs = Math.max(this.#pausedUntilMs, nowMs + durationMs);
    if (this.pausedKind !== "all") this.pausedKind = kind;
    this.#pauseEnd?.cancel();
    this.#pauseEnd = this.#scheduler.after(this.#pausedUntilMs - nowMs, () => this.unpause());
  }

  unpause(): void {
    this.#pauseEnd?.cancel();
    this.#pauseEnd = null;
    this.pausedKind = "none";
    const waiting = this.#pauseAsked;
    this.#pauseAsked = new Set();
    for (const connection of waiting) connection.release(HOLDS.paused);
  }

  askForEndOfPause(connection: Connection): void {
    this.#pauseAsked.add(connection);
  }

  // Housekeeping --------------------------------------------------------------------------------------------------

  linger(connection: Connection): void {
    this.#lingering.set(connection, this.clock.monotonicMs());
  }

  #armHousekeeping(): void {
    this.#housekeeping = this.#scheduler.after(HOUSEKEEPING_MS, () => {
      this.#sweep(this.clock.monotonicMs());
      this.#armHousekeeping();
    });
  }

  #sweep(nowMs: number): void {
    for (const [connection, sinceMs] of this.#lingering) {
      const lingeredMs = nowMs - sinceMs;
      if (lingeredMs >= LINGER_UNSENT_MS || (lingeredMs >= LINGER_MS && connection.isFlushed)) {
        connection.close("the client did not close its side");
      }
    }
    const { idleTimeoutMs } = this.settings;
    if (idleTimeoutMs === 0) return;
    for (const connection of this.#connections.values()) {
      if (connection.mayBeIdle && nowMs - connection.lastActiveAtMs >= idleTimeoutMs) connection.close("idle");
    }
  }

  // Stopping ------------------------------------------------------------------------------------------------------

  /**
   * Stops accepting at once; connections run nothing more, get the replies that they still wait for, and are closed. Blocked
   * ones are closed at once, and after `graceMs` all that are left. Resolves when the last one is gone.
   */
  stop(graceMs: number): Promise<void> {
    this.#isStopping = true;
    this.#closeListeners();
    this.#pauseEnd?.cancel();
    this.#pauseEnd = null;
    for (const connection of this.#connections.values()) {
      if (connection.isBlocked) connection.close("the server stops");
      else connection.closeAfterReplies();
    }
    return new Promise((resolve) => {
      const graceEnd = this.#scheduler.after(graceMs, () => {
        for (const connection of this.#connections.values()) connection.close("the server stops");
      });
      this.#onAllGone = () => {
        this.#onAllGone = null;
        graceEnd.cancel();
        this.#housekeeping?.cancel();
        this.#housekeeping = null;
        resolve();
      };
      if (this.#connections.size === 0) this.#onAllGone();
    });
  }
}

/** A refused client may hang up before it has read why. */
const ignoreError = (): void => {};

function listenError(error: NodeJS.ErrnoException, hosts: readonly string[], port: number): ListenError {
  const code = error.code ?? "unknown";
  const where = hosts.map((host) => (host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`)).join(", ");
  return new ListenError(code, `cannot listen on ${where}: ${REASONS[code] ?? error.message}`);
}

const REASONS: Readonly<Record<string, string>> = {
  EADDRINUSE: "the port is taken by another process",
  EACCES: "no permission to use this port",
  EADDRNOTAVAIL: "this machine has no such address",
  ENOTFOUND: "no such host",
};
