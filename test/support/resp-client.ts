/**
 * A small RESP client for tests: exact bytes out, exact values back, RESP2 and RESP3. It shares no code with the server, so
 * that a mistake there cannot hide here, and unlike a real client it neither retries nor reconnects nor hides a closed
 * connection.
 *
 * Strings are "latin1": one character per byte.
 */
import { connect as connectSocket, type Socket } from "node:net";
import { within } from "./poll.js";

export class Status {
  readonly text: string;
  constructor(text: string) {
    this.text = text;
  }
}

export class RespError {
  readonly text: string;
  constructor(text: string) {
    this.text = text;
  }
  /** The first word: `NOLEASE`, `ERR`, ... */
  get code(): string {
    return this.text.split(" ", 1)[0] ?? "";
  }
}

export class Verbatim {
  readonly format: string;
  readonly text: string;
  constructor(format: string, text: string) {
    this.format = format;
    this.text = text;
  }
}

export class Push {
  readonly items: readonly RespValue[];
  constructor(items: readonly RespValue[]) {
    this.items = items;
  }
}

/** RESP2's `*-1`; the plain null is `$-1` and RESP3's `_`. */
export class NullArray {
  readonly length = -1;
}

export type RespValue =
  | string
  | number
  /** An integer beyond the safe ones. */
  | bigint
  | boolean
  | null
  | Status
  | RespError
  | Verbatim
  | Push
  | NullArray
  | RespValue[]
  | Map<RespValue, RespValue>
  | Set<RespValue>;

export const OK = new Status("OK");

export class ConnectionClosed extends Error {
  override readonly name = "ConnectionClosed";
}

export type Argument = string | number | Buffer;

/** The request as an array of bulk strings, the form that every client sends. */
export function encodeCommand(args: readonly Argument[]): Buffer {
  const parts: Buffer[] = [Buffer.from(`*${args.length}\r\n`)];
  for (const arg of args) {
    const bytes = typeof arg === "object" ? arg : Buffer.from(String(arg), "latin1");
    parts.push(Buffer.from(`$${bytes.length}\r\n`), bytes, Buffer.from("\r\n"));
  }
  return Buffer.concat(parts);
}

interface Parsed {
  readonly value: RespValue;
  readonly end: number;
}

interface ParsedMany {
  readonly values: RespValue[];
  readonly end: number;
}

/** Reads one value at `start`; null while its bytes are not all there. Throws on bytes that are not RESP. */
export function parseReply(bytes: Buffer, start: number): Parsed | null {
  const lineEnd = bytes.indexOf("\r\n", start, "latin1");
  if (lineEnd < 0) return null;
  const type = String.fromCharCode(bytes[start] ?? 0);
  const line = bytes.toString("latin1", start + 1, lineEnd);
  const afterLine = lineEnd + 2;
  switch (type) {
    case "+":
      return { value: new Status(line), end: afterLine };
    case "-":
      return { value: new RespError(line), end: afterLine };
    case ":":
      return { value: integerOf(line), end: afterLine };
    case "_":
      return { value: null, end: afterLine };
    case "#":
      return { value: line === "t", end: afterLine };
    case ",":
      return { value: Number(line), end: afterLine };
    case "$":
    case "=":
      return parseBulk(bytes, type, wholeNumber(line), afterLine);
    case "*":
      if (line === "-1") return { value: new NullArray(), end: afterLine };
      return wrap(parseMany(bytes, wholeNumber(line), afterLine), (values) => values);
    case "~":
      return wrap(parseMany(bytes, wholeNumber(line), afterLine), (values) => new Set(values));
    case ">":
      return wrap(parseMany(bytes, wholeNumber(line), afterLine), (values) => new Push(values));
    case "%":
      return wrap(parseMany(bytes, 2 * wholeNumber(line), afterLine), toMap);
    default:
      throw new Error(`not RESP: ${JSON.stringify(bytes.toString("latin1", start, start + 40))}`);
  }
}

function wholeNumber(text: string): number {
  const number = Number(text);
  if (!/^-?\d+$/.test(text) || !Number.isSafeInteger(number)) throw new Error(`not a RESP integer: ${text}`);
  return number;
}

function integerOf(text: string): number | bigint {
  return /^-?\d{16,19}$/.test(text) && !Number.isSafeInteger(Number(text)) ? BigInt(text) : wholeNumber(text);
}

function parseBulk(bytes: Buffer, type: "$" | "=", length: number, start: number): Parsed | null {
  if (length === -1) return { value: null, end: start };
  const end = start + length;
  if (bytes.length < end + 2) return null;
  if (bytes[end] !== 13 || bytes[end + 1] !== 10) throw new Error("a bulk string does not end in CRLF");
  const text = bytes.toString("latin1", start, end);
  return { value: type === "$" ? text : new Verbatim(text.slice(0, 3), text.slice(4)), end: end + 2 };
}

function parseMany(bytes: Buffer, count: number, start: number): ParsedMany | null {
  const values: RespValue[] = [];
  let end = start;
  for (let index = 0; index < count; index++) {
    const parsed = parseReply(bytes, end);
    if (parsed === null) return null;
    values.push(parsed.value);
    end = parsed.end;
  }
  return { values, end };
}

const wrap = (many: ParsedMany | null, make: (values: RespValue[]) => RespValue): Parsed | null =>
  many === null ? null : { value: make(many.values), end: many.end };

function toMap(values: RespValue[]): Map<RespValue, RespValue> {
  const map = new Map<RespValue, RespValue>();
  for (let index = 0; index < values.length; index += 2) map.set(values[index] ?? null, values[index + 1] ?? null);
  return map;
}

/** A map reply of either protocol (a flat array in RESP2) by field name. */
export function fields(value: RespValue): Map<string, RespValue> {
  if (value instanceof Map) return new Map([...value].map(([name, field]) => [textOf(name), field]));
  if (!Array.isArray(value)) throw new Error(`not a map: ${show(value)}`);
  return new Map([...toMap(value)].map(([name, field]) => [textOf(name), field]));
}

/** A reply that must be text: a bulk string, a status or a verbatim string. */
export function textOf(value: RespValue | undefined): string {
  if (typeof value === "string") return value;
  if (value instanceof Status || value instanceof Verbatim) return value.text;
  throw new Error(`not text: ${show(value ?? null)}`);
}

/** For messages of failed assertions. */
export function show(value: RespValue): string {
  if (value instanceof Status) return `+${value.text}`;
  if (value instanceof RespError) return `-${value.text}`;
  if (typeof value === "bigint") return String(value);
  return JSON.stringify(value instanceof Map ? [...value] : value);
}

interface Waiting {
  readonly resolve: (value: RespValue) => void;
  readonly reject: (error: Error) => void;
}

export interface ConnectOptions {
  readonly host?: string;
  /** 3 sends HELLO 3 first. */
  readonly protocol?: 2 | 3;
}

export class RespConnection {
  /** Bytes received so far, when `keepBytes` is set. */
  received = Buffer.alloc(0);
  keepBytes = false;
  /** Resolves when the connection has closed, whoever closed it. */
  readonly closed: Promise<void>;
  isClosed = false;
  private readonly socket: Socket;
  private unparsed = Buffer.alloc(0);
  private readonly waiting: Waiting[] = [];
  private readonly messages: string[][] = [];
  private readonly messageWaiters: ((message: string[]) => void)[] = [];

  private constructor(socket: Socket) {
    this.socket = socket;
    socket.setNoDelay(true);
    socket.on("data", (chunk: Buffer) => {
      this.onData(chunk);
    });
    socket.on("error", () => {
      // "close" follows and says all there is to say: tests look at what was answered before it
    });
    this.closed = new Promise((resolve) => {
      socket.once("close", () => {
        this.isClosed = true;
        for (const { reject } of this.waiting.splice(0)) reject(new ConnectionClosed("closed before the reply"));
        resolve();
      });
    });
  }

  static async connect(port: number, options: ConnectOptions = {}): Promise<RespConnection> {
    const socket = connectSocket(port, options.host ?? "127.0.0.1");
    await new Promise<void>((resolve, reject) => {
      socket.once("connect", resolve);
      socket.once("error", reject);
    });
    const connection = new RespConnection(socket);
    if (options.protocol === 3) await connection.call("HELLO", 3);
    return connection;
  }

  /** Sends one command and returns whatever is answered. Rejects with ConnectionClosed when nothing is. */
  async send(...args: Argument[]): Promise<RespValue> {
    return this.expectReply(encodeCommand(args));
  }

  /** Like `send`, but an error reply is thrown. */
  async call(...args: Argument[]): Promise<RespValue> {
    const reply = await this.send(...args);
    if (reply instanceof RespError) throw new Error(`${args.join(" ")} answered: ${reply.text}`);
    return reply;
  }

  /** Sends all commands in one write and returns their replies in order. */
  async pipeline(commands: readonly (readonly Argument[])[]): Promise<RespValue[]> {
    const replies = commands.map(async () => this.nextReply());
    this.write(Buffer.concat(commands.map((args) => encodeCommand(args))));
    return Promise.all(replies);
  }

  /** Sends bytes as they are and returns the next reply. */
  async expectReply(bytes: Buffer | string): Promise<RespValue> {
    const reply = this.nextReply();
    this.write(bytes);
    return reply;
  }

  write(bytes: Buffer | string): void {
    if (!this.isClosed) this.socket.write(bytes, "latin1");
  }

  /** The reply after those already asked for. */
  async nextReply(): Promise<RespValue> {
    if (this.isClosed) throw new ConnectionClosed("closed before the request");
    return new Promise<RespValue>((resolve, reject) => {
      this.waiting.push({ resolve, reject });
    });
  }

  /** The next pub/sub message, e.g. `["message", "lease:a", "expired late-ms=0"]`. */
  async nextMessage(withinMs = 20_000): Promise<string[]> {
    const message = this.messages.shift();
    if (message !== undefined) return message;
    return within(
      "a pub/sub message",
      new Promise<string[]>((resolve) => {
        this.messageWaiters.push(resolve);
      }),
      withinMs,
    );
  }

  /** Messages that came and were not taken yet. */
  takeMessages(): string[][] {
    return this.messages.splice(0);
  }

  /** Stops reading from the socket: a client that does not take its replies. */
  pauseReading(): void {
    this.socket.pause();
  }

  resumeReading(): void {
    this.socket.resume();
  }

  /** Bytes written here that the server has not taken yet. */
  get unsentBytes(): number {
    return this.socket.writableLength;
  }

  end(): void {
    this.socket.end();
  }

  destroy(): void {
    this.socket.destroy();
  }

  private onData(chunk: Buffer): void {
    if (this.keepBytes) this.received = Buffer.concat([this.received, chunk]);
    this.unparsed = this.unparsed.length === 0 ? Buffer.from(chunk) : Buffer.concat([this.unparsed, chunk]);
    let start = 0;
    for (let parsed = this.parse(start); parsed !== null; parsed = this.parse(start)) {
      start = parsed.end;
      this.take(parsed.value);
    }
    this.unparsed = this.unparsed.subarray(start);
  }

  private parse(start: number): Parsed | null {
    return start < this.unparsed.length ? parseReply(this.unparsed, start) : null;
  }

  private take(value: RespValue): void {
    const items = value instanceof Push ? value.items : value;
    if (Array.isArray(items) && (items[0] === "message" || items[0] === "pmessage")) {
      const message = items.map((item) => textOf(item));
      const waiter = this.messageWaiters.shift();
      if (waiter === undefined) this.messages.push(message);
      else waiter(message);
      return;
    }
    const waiting = this.waiting.shift();
    if (waiting === undefined) throw new Error(`a reply that nobody asked for: ${show(value)}`);
    waiting.resolve(value);
  }
}
