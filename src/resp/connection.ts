import type { Socket } from "node:net";
import { protocolError } from "../engine/errors.js";
import { ErrorReply, type ByteString, type Reply } from "../engine/reply.js";
import { PARKED, SATURATED, type Clock, type Log } from "../ports.js";
import type { Backend } from "./backend.js";
import {
  NO_REPLY,
  SeveralReplies,
  type ClientConnection,
  type ClientSubscriptions,
  type CommandGate,
  type ClientTransaction,
  type CommandSpec,
  type PreparedMessage,
  type ProtocolVersion,
  type ReplyMode,
  type RunResult,
  type ServerHandle,
  type WatchedKey,
} from "./command.js";
import type { RequestDecoder } from "./decoder.js";
import type { Dispatcher } from "./dispatcher.js";
import { encodeReply } from "./encoder.js";
import { FrameGuard, UNAUTHENTICATED_LIMITS, type FrameLimits } from "./frame-guard.js";
import { ReplyQueue } from "./reply-queue.js";
import { runStep } from "./step.js";
import type { TurnLedger } from "./turn-ledger.js";
import {
  BLOCKED_INPUT_BYTES_MAX,
  COMMANDS_PER_CLOCK_READING,
  COMMANDS_PER_TURN_MAX,
  OUTPUT_BYTES_SOFT_MAX,
  PUSH_BYTES_MAX,
  REPLIES_PARKED_MAX,
  TIMED_ARGUMENTS_MIN,
  TURN_MS_MAX,
  WRITE_BYTES_TARGET,
} from "./wire-limits.js";

/**
 * One client: bytes in, commands run in order, replies out in order.
 *
 *   bytes ─► frame guard ─► decoder ─► dispatcher ─► command or backend ─► reply queue ─► socket
 *
 * A turn runs what has arrived: one clock reading, one write. It ends early when something holds the connection: a blocked
 * command, a full batch, CLIENT PAUSE, a client that does not take its replies, too many parked replies, or simply that it has
 * had its share of the loop. Nothing is dropped then: requests already taken apart stay in the backlog, bytes in the guard, the
 * rest in the kernel, because a held connection is not read.
 *
 * Invariants:
 *  1. commands run in the order of their bytes, one at a time, never from within another command or a `deliver`
 *  2. while a hold is set no command runs; when the last one goes, exactly one turn is asked for
 *  3. after `closeAfterReplies` no command runs; after `close` nothing is sent either
 *  4. requests of the client not yet answered are bounded: by a read buffer and a frame in bytes, by REPLIES_PARKED_MAX in number;
 *     what it has not taken of its answers by OUTPUT_BYTES_SOFT_MAX and one reply
 */

/** What a connection needs of the server around it. */
export interface ConnectionHost extends ServerHandle {
  readonly backend: Backend;
  readonly dispatcher: Dispatcher;
  readonly decoder: RequestDecoder;
  readonly limits: FrameLimits;
  readonly ledger: TurnLedger;
  readonly clock: Clock;
  readonly log: Log;
  /** Where a turn finds its requests; empty between turns. */
  readonly requests: (readonly ByteString[])[];
  /** Bytes that all frame guards hold together, and how many they may: the connection that goes beyond it is closed. */
  unfinishedBytes: number;
  readonly unfinishedBytesMax: number;

  /** Runs `connection.turn()` when the input that is ready now has been handled. */
  askForTurn(connection: Connection): void;
  /** Runs `connection.send()` then. */
  askForSend(connection: Connection): void;
  /** Calls `connection.release(HOLDS.saturated)` once the backend has room. */
  askForRoom(connection: Connection): void;
  /** Calls `connection.release(HOLDS.paused)` once CLIENT PAUSE is over. */
  askForEndOfPause(connection: Connection): void;
  /** All is sent and the write side is closed: ends the socket if the client does not. */
  linger(connection: Connection): void;
  /** The socket is gone. */
  forget(connection: Connection): void;
}

/** Why no command of a connection runs at the moment; bits. */
export const HOLDS = {
  /** A command with `blockUntilReply` waits for its answer. */
  blocked: 1,
  /** The open batch is full. */
  saturated: 2,
  /** CLIENT PAUSE. */
  paused: 4,
  /** The client does not take its replies. */
  output: 8,
  /** Too many replies wait for durability. */
  parked: 16,
  /** The turn is over, another one is asked for. */
  turn: 32,
} as const;

/** Holds that may last for ever: a client that ends its side under one of them is taken to have left. */
const LEFT_BY_CLIENT_HOLDS = HOLDS.blocked | HOLDS.paused;

type Hold = (typeof HOLDS)[keyof typeof HOLDS];
type Requests = readonly (readonly ByteString[])[];

const NO_REQUESTS: Requests = [];

export class Connection implements ClientConnection {
  readonly id: number;
  readonly server: ConnectionHost;
  readonly remoteAddress: string;
  readonly localAddress: string;
  readonly isLoopback: boolean;
  readonly createdAtMs: number;
  readonly origin = { databaseIndex: 0, owner: "" };

  libraryName: ByteString = "";
  libraryVersion: ByteString = "";
  protocol: ProtocolVersion = 2;
  authenticated: boolean;
  replyMode: ReplyMode = "on";
  noEvict = false;
  noTouch = false;
  isMonitor = false;
  subscriptions: ClientSubscriptions | null = null;
  gate: CommandGate | null = null;
  transaction: ClientTransaction | null = null;
  watchedKeys: readonly WatchedKey[] = [];

  nowMs: number;
  lastCommandAtMs: number;
  commandsRun = 0;
  bytesRead = 0;
  bytesWritten = 0;
  isClosing = false;
  isClosed = false;
  /** Set by the server: one turn, one send at a time is asked for. */
  isTurnAsked = false;
  isSendAsked = false;

  readonly #socket: Socket;
  readonly #guard = new FrameGuard();
  readonly #replies = new ReplyQueue();
  #name: ByteString = "";
  #backlog: Requests = NO_REQUESTS;
  #holds = 0;
  #isInTurn = false;
  #isReading = true;
  #isInputEnded = false;
  #isOutputEnded = false;
  #isGone = false;
  #blockRequested = false;
  #blockedTicket = 0;
  /** The command at the front of the backlog was refused for want of room: it is not new to MONITOR. */
  #isRetry = false;
  #newestSpec: CommandSpec | null = null;
  /** Bytes of messages since the client had last taken everything. */
  #pushedBytes = 0;
  #heldBytes = 0;

  /** `socket` is connected and handed over: its events are listened to here, its reads come through `receive`. */
  constructor(server: ConnectionHost, socket: Socket, id: number) {
    this.id = id;
    this.server = server;
    this.#socket = socket;
    this.remoteAddress = formatAddress(socket.remoteAddress, socket.remotePort);
    this.localAddress = formatAddress(socket.localAddress, socket.localPort);
    this.isLoopback = isLoopbackAddress(socket.remoteAddress);
    this.origin.owner = this.remoteAddress;
    this.authenticated = server.settings.password === null;
    this.createdAtMs = server.clock.monotonicMs();
    this.nowMs = this.createdAtMs;
    this.lastCommandAtMs = this.createdAtMs;
    socket.on("drain", () => this.release(HOLDS.output));
    socket.on("end", () => this.#onInputEnd());
    socket.on("error", (error: NodeJS.ErrnoException) => this.#onError(error));
    socket.on("close", () => this.#onClose());
  }

  // What commands see ---------------------------------------------------------------------------------------------

  get name(): ByteString {
    return this.#name;
  }
  set name(name: ByteString) {
    this.#name = name;
    this.origin.owner = name === "" ? this.remoteAddress : `${name} ${this.remoteAddress}`;
  }
  get databaseIndex(): number {
    return this.origin.databaseIndex;
  }
  set databaseIndex(index: number) {
    this.origin.databaseIndex = index;
  }
  get lastCommandName(): string {
    return this.#newestSpec?.name ?? "";
  }
  get queryBufferBytes(): number {
    let bytes = this.#guard.pendingBytes;
    for (const argv of this.#backlog) for (const argument of argv) bytes += argument.length;
    return bytes;
  }
  get outputBufferBytes(): number {
    return this.#replies.readyBytes + this.#replies.waitingBytes + this.#socket.writableLength;
  }
  get repliesWaiting(): number {
    return this.#replies.parkedCount;
  }
  get isBlocked(): boolean {
    return (this.#holds & HOLDS.blocked) !== 0;
  }
  get ticket(): number {
    return this.#replies.nextTicket;
  }

  blockUntilReply(): void {
    this.#blockRequested = true;
  }

  closeAfterReplies(): void {
    if (this.isClosing || this.isClosed) return;
    this.isClosing = true;
    if (!this.#isInTurn) this.server.askForSend(this);
  }

  close(reason: string): void {
    if (this.isClosed) return;
    this.isClosed = true;
    this.server.log.write("debug", "connection closed", { client: this.id, address: this.remoteAddress, reason });
    this.#socket.destroy();
  }

  /**
   * The node has lost its role. What is answered already reaches the client, and so do messages already published: their changes
   * are durable, and nobody tells of them again. A client that still waits for an answer will not get it, and has to ask elsewhere.
   */
  dismiss(reason: string): void {
    if (this.#replies.parkedCount === 0) {
      this.closeAfterReplies();
    } else {
      this.#flush();
      this.close(reason);
    }
  }

  push(message: PreparedMessage): void {
    if (this.isClosed || this.isClosing) return;
    const text = message.encoded(this.protocol);
    if (this.outputBufferBytes === 0) this.#pushedBytes = 0;
    this.#pushedBytes += text.length;
    if (this.isBlocked && this.protocol === 3) this.#replies.appendBeforeLast(text);
    else this.#replies.append(text);
    if (this.#pushedBytes > PUSH_BYTES_MAX && this.outputBufferBytes > PUSH_BYTES_MAX) {
      this.server.statistics.outputLimitDisconnections++;
      this.server.log.write("warn", "subscriber closed: it does not read its messages", {
        client: this.id,
        address: this.remoteAddress,
        outputBytes: this.outputBufferBytes,
      });
      this.close("output limit");
      return;
    }
    if (!this.#isInTurn) this.server.askForSend(this);
  }

  deliver(ticket: number, reply: Reply): void {
    if (this.isClosed) return;
    if (reply instanceof ErrorReply) this.#countError(reply);
    this.#replies.answer(ticket, reply);
    if (ticket === this.#blockedTicket) {
      this.#blockedTicket = 0;
      this.release(HOLDS.blocked);
    }
    if ((this.#holds & HOLDS.parked) !== 0 && this.#hasRoomForParked(0.5)) this.release(HOLDS.parked);
    if (!this.#isInTurn && this.#replies.readyBytes > 0) this.server.askForSend(this);
  }

  // Input ---------------------------------------------------------------------------------------------------------

  /** Takes `bytes[0, length)` from the socket. The buffer may be written to again when this returns. */
  receive(bytes: Buffer, length: number): void {
    this.bytesRead += length;
    this.server.statistics.bytesRead += length;
    // A closing connection is read only so that the kernel need not reset it before the client has its last reply.
    if (this.isClosing || this.isClosed) return;
    this.#guard.attach(bytes, length);
    if (this.#holds === 0) this.turn();
    else this.#afterInput();
  }

  /**
   * Runs what has arrived, within one connection's share of the loop. Its replies go out at the end of the loop turn, with those of
   * all other connections: a write wakes its reader up, and a client with many connections that is awake already reads the
   * others for a fraction of the price (CPU per keep-alive with pipelines of 100: 0.7 us instead of 0.9).
   */
  turn(): void {
    if (this.isClosed) return;
    this.#holds &= ~HOLDS.turn;
    if (this.#holds === 0 && !this.isClosing) {
      this.#isInTurn = true;
      this.nowMs = this.server.clock.monotonicMs();
      this.#runRequests();
      this.server.ledger.settle(this.nowMs);
      this.#isInTurn = false;
      if (this.#isInputEnded && this.#holds === 0) this.isClosing = true;
    }
    this.#afterInput();
    this.server.askForSend(this);
  }

  /** Hands what is ready to the socket, and ends it when that was the last. */
  send(): void {
    if (this.isClosed) return;
    this.#flush();
    if (this.isClosing) this.#endWhenSent();
    this.#updateReading();
  }

  /** A hold is gone; with the last one the connection asks for a turn. */
  release(hold: Hold): void {
    if ((this.#holds & hold) === 0) return;
    this.#holds &= ~hold;
    if (this.#holds !== 0 || this.isClosed) return;
    this.#holds = HOLDS.turn;
    this.server.askForTurn(this);
  }

  #runRequests(): void {
    let requests: Requests = this.#backlog;
    this.#backlog = NO_REQUESTS;
    let ran = 0;
    for (;;) {
      let index = 0;
      while (index < requests.length && this.#mayRun(ran)) {
        if (!this.#execute(requests[index] as readonly ByteString[])) break;
        index++;
        ran++;
      }
      if (index < requests.length) this.#backlog = requests.slice(index);
      if (this.#holds !== 0 || this.isClosing || this.isClosed) break;
      requests = this.#nextRequests();
      if (requests.length === 0) break;
    }
    this.server.requests.length = 0;
    this.server.statistics.commandsProcessed += ran;
    this.commandsRun += ran;
    if (ran > 0) this.lastCommandAtMs = this.nowMs;
  }

  /** False when the turn must end before the next command; `ran`: how many it has run. */
  #mayRun(ran: number): boolean {
    if (this.#holds !== 0 || this.isClosing || this.isClosed) return false;
    if (ran === 0 || ran % COMMANDS_PER_CLOCK_READING !== 0) return true;
    if (ran < COMMANDS_PER_TURN_MAX && this.server.clock.monotonicMs() - this.nowMs < TURN_MS_MAX) return true;
    this.#yield();
    return false;
  }

  #yield(): void {
    this.#holds |= HOLDS.turn;
    this.server.askForTurn(this);
  }

  /** Whole requests out of the bytes received; none when there is no whole one, or none that may be read. */
  #nextRequests(): Requests {
    const guard = this.#guard;
    const requests = this.server.requests;
    requests.length = 0;
    if (guard.pendingBytes === 0) return requests;
    // One at a time before AUTH: it decides the limits of the requests behind it.
    const found = this.authenticated
      ? guard.next(this.server.limits, COMMANDS_PER_TURN_MAX)
      : guard.next(UNAUTHENTICATED_LIMITS, 1);
    switch (found) {
      case "frames":
        this.server.decoder.decode(guard.bytes, guard.framesStart, guard.framesEnd, guard.framesCount, requests);
        return requests;
      case "inline":
        requests.push(guard.inlineArguments);
        return requests;
      case "more":
        return requests;
      case "broken":
        this.#refuse(guard.errorText);
        return requests;
    }
  }

  #refuse(what: string): void {
    this.server.statistics.protocolErrors++;
    this.server.log.write("debug", "protocol error", { client: this.id, address: this.remoteAddress, what });
    this.#answer(protocolError(what));
    this.isClosing = true;
  }

  /** No answer: the next lines are headers and a body that somebody else wrote. */
  #leaveToHttp(): void {
    this.server.log.write("warn", "connection closed: it speaks HTTP, perhaps a browser made to talk to this port", {
      client: this.id,
      address: this.remoteAddress,
    });
    this.close("HTTP");
  }

  // One command ---------------------------------------------------------------------------------------------------

  /** Runs one request. False: it could not be taken and stays the next one; a hold says why. */
  #execute(argv: readonly ByteString[]): boolean {
    const server = this.server;
    const spec = server.dispatcher.admit(argv, this);
    if (spec instanceof ErrorReply) {
      this.transaction?.abort();
      if (isHttp(argv[0] as ByteString)) this.#leaveToHttp();
      else this.#answerInMode(spec);
      return true;
    }
    if (server.pausedKind !== "none" && spec.ignoresPause !== true) {
      if (server.pausedKind === "all" || spec.write === true) {
        this.#holds |= HOLDS.paused;
        server.askForEndOfPause(this);
        return false;
      }
    }
    const observer = server.observer;
    if (observer !== null && observer.watchesAll && !this.#isRetry) observer.beforeCommand(spec, argv, this);
    this.#isRetry = false;

    const isTimed =
      spec.timed === true || argv.length >= TIMED_ARGUMENTS_MIN || (observer !== null && observer.timesAll);
    const result = isTimed ? this.#runTimed(spec, argv) : this.#run(spec, argv);
    if (result === SATURATED) {
      this.#blockRequested = false;
      this.#isRetry = true;
      this.#holds |= HOLDS.saturated;
      server.askForRoom(this);
      return false;
    }
    this.#newestSpec = spec;
    spec.counters.calls++;
    if (!isTimed) server.ledger.count(spec);
    if (result instanceof ErrorReply) spec.counters.failed++;
    this.#settleResult(result);
    return true;
  }

  #run(spec: CommandSpec, argv: readonly ByteString[]): RunResult | typeof SATURATED {
    if (this.gate !== null || this.transaction !== null) {
      const instead = this.#heldBack(spec, argv);
      if (instead !== undefined) return instead;
    }
    if (spec.parse !== undefined) {
      const command = spec.parse(argv, this);
      if (command instanceof ErrorReply) return command;
      if (command.kind === "lock-acquire" && command.blockMs !== null) this.blockUntilReply();
      return this.server.backend.submit(command, this, this.#replies.nextTicket);
    }
    if (spec.run !== undefined) return spec.run(argv, this);
    const { compose } = spec;
    // A container without a subcommand has none of these; its arity has refused such a request already.
    if (compose === undefined) return NO_REPLY;
    const { backend, clock } = this.server;
    return runStep(backend, this, clock.unixMs(), (step) => compose(argv, this, step));
  }

  /** What subscriber mode or a transaction answers in place of the command. */
  #heldBack(spec: CommandSpec, argv: readonly ByteString[]): RunResult | undefined {
    const refusal = this.gate?.(spec, argv, this);
    if (refusal === undefined) return this.transaction?.take(spec, argv);
    this.transaction?.abort();
    return refusal;
  }

  #runTimed(spec: CommandSpec, argv: readonly ByteString[]): RunResult | typeof SATURATED {
    const { clock, observer } = this.server;
    const startedAtMs = clock.monotonicMs();
    const result = this.#run(spec, argv);
    const durationMs = clock.monotonicMs() - startedAtMs;
    if (result === SATURATED) return result;
    spec.counters.durationMs += durationMs;
    observer?.afterTimedCommand(spec, argv, this, durationMs);
    if (durationMs >= TURN_MS_MAX && this.#holds === 0) this.#yield();
    return result;
  }

  /** Puts the result of a command where it belongs. */
  #settleResult(result: RunResult): void {
    // The usual case first: a keep-alive answers with a number.
    if (typeof result === "number" && this.replyMode === "on") {
      this.#append(encodeReply(result, this.protocol));
    } else if (result === PARKED) {
      const ticket = this.#replies.park(this.protocol, this.#leavesSilently());
      if (this.#blockRequested) {
        this.#blockedTicket = ticket;
        this.#holds |= HOLDS.blocked;
      }
      if (!this.#hasRoomForParked(1)) this.#holds |= HOLDS.parked;
    } else if (result === NO_REPLY) {
      // CLIENT REPLY SKIP answers so, and means the command after it.
    } else if (result instanceof SeveralReplies) {
      // Confirmations of subscriptions are messages: they come in every mode, and use up a SKIP all the same.
      this.#leavesSilently();
      for (const reply of result.items) this.#append(encodeReply(reply, this.protocol));
    } else {
      this.#answerInMode(result);
    }
    this.#blockRequested = false;
  }

  #answerInMode(reply: Reply): void {
    if (reply instanceof ErrorReply) this.#countError(reply);
    if (!this.#leavesSilently()) this.#append(encodeReply(reply, this.protocol));
  }

  #answer(error: ErrorReply): void {
    this.#countError(error);
    this.#append(encodeReply(error, this.protocol));
  }

  /** CLIENT REPLY OFF, and the one command after SKIP. */
  #leavesSilently(): boolean {
    if (this.replyMode === "on") return false;
    if (this.replyMode === "skip-next") this.replyMode = "on";
    return true;
  }

  #append(text: ByteString): void {
    const replies = this.#replies;
    replies.append(text);
    if (replies.readyBytes >= WRITE_BYTES_TARGET) this.#flush();
    else if (replies.waitingBytes > OUTPUT_BYTES_SOFT_MAX) this.#holds |= HOLDS.parked;
  }

  #countError(reply: ErrorReply): void {
    const code = reply.text.slice(0, Math.max(0, reply.text.indexOf(" ")) || reply.text.length);
    const counts = this.server.statistics.errorReplies;
    counts.set(code, (counts.get(code) ?? 0) + 1);
  }

  /** `share` of the limits: a hold set at 1 goes at a half, so that it does not flicker. */
  #hasRoomForParked(share: number): boolean {
    const replies = this.#replies;
    return replies.parkedCount < REPLIES_PARKED_MAX * share && replies.waitingBytes <= OUTPUT_BYTES_SOFT_MAX * share;
  }

  // The socket ----------------------------------------------------------------------------------------------------

  #flush(): void {
    const text = this.#replies.take();
    if (text === "" || this.#isOutputEnded || this.isClosed) return;
    this.bytesWritten += text.length;
    this.server.statistics.bytesWritten += text.length;
    this.#socket.write(text, "latin1");
    if (this.#socket.writableLength > OUTPUT_BYTES_SOFT_MAX) this.#holds |= HOLDS.output;
  }

  #endWhenSent(): void {
    this.#guard.clear();
    this.#backlog = NO_REQUESTS;
    if (this.#isOutputEnded || !this.#replies.isEmpty) return;
    this.#isOutputEnded = true;
    if (this.#isInputEnded) {
      this.#socket.destroySoon();
    } else {
      this.#socket.end();
      this.server.linger(this);
    }
  }

  /** After bytes were taken or requests run: the read buffer is given back, what is kept is accounted for. */
  #afterInput(): void {
    this.#guard.settle();
    const heldBytes = this.#guard.heldBytes;
    if (heldBytes !== this.#heldBytes) {
      this.server.unfinishedBytes += heldBytes - this.#heldBytes;
      const grows = heldBytes > this.#heldBytes;
      this.#heldBytes = heldBytes;
      if (grows && this.server.unfinishedBytes > this.server.unfinishedBytesMax) {
        this.server.log.write("warn", "connection closed: too many bytes of unfinished requests", {
          client: this.id,
          address: this.remoteAddress,
          heldBytes,
        });
        this.close("unfinished requests");
      }
    }
    this.#updateReading();
  }

  #updateReading(): void {
    const wanted = !this.isClosed && (this.isClosing || this.#holds === 0 || this.#readsWhileHeld());
    if (wanted === this.#isReading) return;
    this.#isReading = wanted;
    if (wanted) this.#socket.resume();
    else this.#socket.pause();
  }

  /**
   * A client that is blocked or paused is read on, within bounds: only so is it noticed that it has gone. Otherwise clients that
   * give up and connect again during a long pause would fill the server, and what they had asked for would run when it ends.
   */
  #readsWhileHeld(): boolean {
    return (this.#holds & ~LEFT_BY_CLIENT_HOLDS) === 0 && this.#guard.pendingBytes < BLOCKED_INPUT_BYTES_MAX;
  }

  /**
   * The client sends nothing more. It may still read (`printf ... | nc`): what it has sent whole is run and answered first. Only
   * one that waits in a queue leaves it at once, or for the end of a CLIENT PAUSE: most likely it is gone, and a lock must not be
   * granted to it.
   */
  #onInputEnd(): void {
    this.#isInputEnded = true;
    if (this.#isOutputEnded) this.#socket.destroySoon();
    else if ((this.#holds & LEFT_BY_CLIENT_HOLDS) !== 0) this.close("the client left while it was held up");
    else if (this.#holds === 0) {
      this.isClosing = true;
      this.send();
    }
  }

  #onError(error: NodeJS.ErrnoException): void {
    this.server.log.write("debug", "connection failed", {
      client: this.id,
      address: this.remoteAddress,
      error: error.code ?? error.message,
    });
  }

  #onClose(): void {
    if (this.#isGone) return;
    this.#isGone = true;
    this.isClosed = true;
    this.#guard.clear();
    this.server.unfinishedBytes -= this.#heldBytes;
    this.#heldBytes = 0;
    this.#backlog = NO_REQUESTS;
    this.#replies.clear();
    this.subscriptions?.dropAll();
    this.transaction = null;
    this.server.backend.forget(this);
    this.server.forget(this);
  }

  // For the server ------------------------------------------------------------------------------------------------

  /** Monotonic milliseconds of the newest turn. */
  get lastActiveAtMs(): number {
    return this.nowMs;
  }

  /** Subscribers, monitors and blocked clients are silent by nature. */
  get mayBeIdle(): boolean {
    const { subscriptions } = this;
    const subscribed = subscriptions !== null && subscriptions.channelCount + subscriptions.patternCount > 0;
    return !subscribed && !this.isBlocked && !this.isMonitor && this.#replies.parkedCount === 0;
  }

  /** Everything sent has reached the kernel. */
  get isFlushed(): boolean {
    return this.#socket.writableFinished;
  }
}

/**
 * A web page can make a browser POST to a port of its user's machine, with inline commands in the body. As in Redis, the first
 * line of such a request, or its Host header, ends the connection before the body is read.
 */
function isHttp(name: ByteString): boolean {
  const lower = name.length <= "host:".length ? name.toLowerCase() : "";
  return lower === "post" || lower === "host:";
}

/** `127.0.0.1:50123`, `[::1]:50123`. An IPv4 address that came in through an IPv6 socket is shown as IPv4. */
export function formatAddress(address: string | undefined, port: number | undefined): string {
  if (address === undefined) return "?:0";
  const plain = address.startsWith("::ffff:") && address.includes(".") ? address.slice("::ffff:".length) : address;
  return plain.includes(":") ? `[${plain}]:${port ?? 0}` : `${plain}:${port ?? 0}`;
}

export function isLoopbackAddress(address: string | undefined): boolean {
  return address !== undefined && (address === "::1" || /^(?:::ffff:)?127\./.test(address));
}
