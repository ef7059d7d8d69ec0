import { connect, type Socket } from "node:net";
import type { Backend } from "#src/resp/backend.js";
import type { Command } from "#src/engine/command.js";
import type { NodeReport, Session } from "#src/ports.js";
import type { CommandLookup, CommandSpec, RunResult, ServerSettings } from "#src/resp/command.js";
import type { ClientConnection } from "#src/resp/command.js";
import { RespServer } from "#src/resp/server.js";
import type { ByteString, Reply } from "#src/engine/reply.js";
import { OK, StatusReply } from "#src/engine/reply.js";
import { generic } from "#src/engine/errors.js";
import { PARKED, SATURATED, type Clock, type Log, type Scheduler, type Timer } from "#src/ports.js";

/**
 * A RESP server over real sockets with a small backend and a handful of commands of its own, so that the wire can be tested
 * without the rest of the server.
 */

export class TestLog implements Log {
  readonly lines: string[] = [];
  write(_level: string, message: string, fields?: Readonly<Record<string, string | number | boolean>>): void {
    this.lines.push(`${message} ${JSON.stringify(fields ?? {})}`);
  }
}

export class RealClock implements Clock {
  monotonicMs(): number {
    return performance.now();
  }
  unixMs(): number {
    return Date.now();
  }
}

export class RealScheduler implements Scheduler {
  after(delayMs: number, callback: () => void): Timer {
    const handle = setTimeout(callback, delayMs);
    return { cancel: () => clearTimeout(handle) };
  }
  soon(callback: () => void): void {
    setImmediate(callback);
  }
}

type RunAnswer = Reply | typeof PARKED | typeof SATURATED;

interface Parked {
  readonly session: Session;
  readonly ticket: number;
  readonly reply: Reply;
}

/** Answers `key-get` at once with its key; parks `key-exists`, whose answer the test releases; is full when told so. */
export class TestBackend implements Backend {
  readonly parked: Parked[] = [];
  readonly forgotten: Session[] = [];
  /** How many writes fit before it says SATURATED. */
  room = Number.POSITIVE_INFINITY;
  #waiting: (() => void)[] = [];

  submit(command: { kind: string }, session: Session, ticket: number): RunAnswer {
    if (command.kind === "key-get") return (command as { key: ByteString } & typeof command).key;
    if (this.room <= 0) return SATURATED;
    this.room--;
    const [reply] = (command as { keys: readonly ByteString[] } & typeof command).keys;
    this.parked.push({ session, ticket, reply: reply as ByteString });
    return PARKED;
  }
  atomically(session: Session, ticket: number, work: (run: (command: Command) => Reply) => Reply): RunAnswer {
    if (this.room <= 0) return SATURATED;
    const reply = work((command) => this.submit(command, session, ticket) as Reply);
    this.parked.push({ session, ticket, reply });
    return PARKED;
  }
  revisionOf(): number {
    return 0;
  }
  unblock(): boolean {
    return false;
  }
  onRoom(callback: () => void): void {
    this.#waiting.push(callback);
  }
  get waitingForRoom(): number {
    return this.#waiting.length;
  }
  forgetRoom(): void {
    this.#waiting = [];
  }
  makeRoom(room: number): void {
    this.room = room;
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const callback of waiting) callback();
  }
  /** Answers the parked replies in the order given, or in their own. */
  release(order: readonly number[] = this.parked.map((_, index) => index)): void {
    const parked = this.parked.splice(0);
    for (const index of order) {
      const one = parked[index];
      if (one !== undefined) one.session.deliver(one.ticket, one.reply);
    }
  }
  forget(session: Session): void {
    this.forgotten.push(session);
  }
  report(): NodeReport {
    throw new Error("not needed");
  }
  stepDown(): void {}
  takeRole(): void {}
  shutdown(): void {}
}

type Run = (argv: readonly ByteString[], connection: ClientConnection) => RunResult;

const spec = (name: string, arity: number, rest: Partial<CommandSpec>): CommandSpec => ({
  name,
  arity,
  flags: [],
  counters: { calls: 0, rejected: 0, failed: 0, durationMs: 0 },
  ...rest,
});

/** PING, ECHO, BIG bytes, NOW key (answered at once), LATER key (parked), WAIT key (parked and blocking), QUIT, AUTH ... */
export function testCommands(
  extra: Readonly<Record<string, Run>> = {},
): CommandLookup & { specs: Map<string, CommandSpec> } {
  const specs = new Map<string, CommandSpec>();
  const add = (name: string, arity: number, rest: Partial<CommandSpec>): void => {
    specs.set(name, spec(name, arity, rest));
  };
  add("ping", -1, { run: (argv) => argv[1] ?? new StatusReply("PONG") });
  add("echo", 2, { run: (argv) => argv[1] as ByteString });
  add("args", -1, { run: (argv) => argv });
  add("big", 2, { run: (argv) => "b".repeat(Number(argv[1])) });
  add("now", 2, { parse: (argv) => ({ kind: "key-get", key: argv[1] as ByteString }) });
  add("later", 2, { write: true, parse: (argv) => ({ kind: "key-exists", keys: [argv[1] as ByteString] }) });
  add("wait", 2, {
    parse: (argv, connection) => {
      connection.blockUntilReply();
      return { kind: "key-exists", keys: [argv[1] as ByteString] };
    },
  });
  add("hello", 2, {
    run: (argv, connection) => {
      connection.protocol = argv[1] === "3" ? 3 : 2;
      return OK;
    },
  });
  add("auth", 2, {
    withoutPassword: true,
    run: (argv, connection) => {
      if (argv[1] !== connection.server.settings.password) return generic("wrong");
      connection.authenticated = true;
      return OK;
    },
  });
  add("quit", 1, {
    withoutPassword: true,
    run: (_argv, connection) => {
      connection.closeAfterReplies();
      return OK;
    },
  });
  for (const [name, run] of Object.entries(extra)) add(name, -1, { run });
  return { specs, find: (name) => specs.get(name) ?? specs.get(name.toLowerCase()) };
}

export interface Harness {
  readonly server: RespServer;
  readonly backend: TestBackend;
  readonly log: TestLog;
  readonly port: number;
  readonly settings: ServerSettings;
  stop(): Promise<void>;
}

export interface HarnessOptions {
  readonly password?: string;
  readonly connectionsMax?: number;
  readonly frameBytesMax?: number;
  readonly unfinishedBytesMax?: number;
  readonly sharedReads?: boolean;
  readonly commands?: CommandLookup;
  readonly scheduler?: Scheduler;
  readonly clock?: Clock;
}

export async function startHarness(options: HarnessOptions = {}): Promise<Harness> {
  const settings: ServerSettings = {
    password: options.password ?? null,
    protectedMode: true,
    connectionsMax: options.connectionsMax ?? 20_000,
    idleTimeoutMs: 0,
    tcpKeepAliveMs: 300_000,
  };
  const backend = new TestBackend();
  const log = new TestLog();
  const server = new RespServer({
    backend,
    commands: options.commands ?? testCommands(),
    settings,
    clock: options.clock ?? new RealClock(),
    scheduler: options.scheduler ?? new RealScheduler(),
    log,
    ...(options.frameBytesMax === undefined ? {} : { frameBytesMax: options.frameBytesMax }),
    ...(options.unfinishedBytesMax === undefined ? {} : { unfinishedBytesMax: options.unfinishedBytesMax }),
    ...(options.sharedReads === undefined ? {} : { sharedReads: options.sharedReads }),
  });
  await server.listen(["127.0.0.1"], 0);
  const port = server.listening[0]?.port ?? 0;
  return { server, backend, log, port, settings, stop: () => server.stop(100) };
}

/** A raw client: sends bytes, collects bytes. */
export class RawClient {
  readonly socket: Socket;
  /** Everything received and not yet taken, as a byte string. */
  received = "";
  ended = false;
  closed = false;
  #wake: (() => void)[] = [];

  private constructor(socket: Socket) {
    this.socket = socket;
    socket.on("data", (bytes: Buffer) => {
      this.received += bytes.toString("latin1");
      this.#wakeAll();
    });
    socket.on("end", () => {
      this.ended = true;
      this.#wakeAll();
    });
    socket.on("close", () => {
      this.closed = true;
      this.#wakeAll();
    });
    socket.on("error", () => {});
  }

  static open(port: number, host = "127.0.0.1"): Promise<RawClient> {
    return new Promise((resolve, reject) => {
      const socket = connect({ port, host, allowHalfOpen: true, noDelay: true });
      socket.once("error", reject);
      socket.once("connect", () => resolve(new RawClient(socket)));
    });
  }

  send(bytes: ByteString): void {
    this.socket.write(bytes, "latin1");
  }

  /** Waits until `condition` holds; looks whenever something arrives. */
  async until(condition: (client: this) => boolean): Promise<void> {
    while (!condition(this)) {
      await new Promise<void>((resolve) => {
        this.#wake.push(resolve);
      });
    }
  }

  /** Waits for exactly `text` at the front, and takes it. Throws when something else arrives, or the end. */
  async expect(text: ByteString): Promise<void> {
    await this.until(
      (client) =>
        client.received.length >= text.length || !text.startsWith(client.received) || client.ended || client.closed,
    );
    const got = this.received.slice(0, text.length);
    if (got !== text)
      throw new Error(`expected ${JSON.stringify(text.slice(0, 300))}, got ${JSON.stringify(got.slice(0, 300))}`);
    this.received = this.received.slice(text.length);
  }

  close(): void {
    this.socket.destroy();
  }

  #wakeAll(): void {
    const wake = this.#wake;
    this.#wake = [];
    for (const resolve of wake) resolve();
  }
}

/** The request as clients send it. */
export const request = (...argv: readonly ByteString[]): ByteString => frame(argv);
export const frame = (argv: readonly ByteString[]): ByteString =>
  `*${argv.length}\r\n${argv.map((argument) => `$${argument.length}\r\n${argument}\r\n`).join("")}`;

/** Waits until `condition` holds, looking at the end of every loop turn. */
export async function eventually(condition: () => boolean, what: string, timeoutMs = 10_000): Promise<void> {
  const deadlineMs = performance.now() + timeoutMs;
  while (!condition()) {
    if (performance.now() > deadlineMs) throw new Error(`not within ${timeoutMs} ms: ${what}`);
    await new Promise((resolve) => {
      setTimeout(resolve, 2);
    });
  }
}
