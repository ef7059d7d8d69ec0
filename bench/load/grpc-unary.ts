import { createConnection, type Socket } from "node:net";

/**
 * gRPC calls of one small message each way, over one HTTP/2 connection, for less CPU time than a server needs to answer them: Node's
 * own HTTP/2, and the gRPC client on top of it, use more than etcd does, so that a throughput measured with them is theirs.
 *
 * That is possible because little of HTTP/2 is needed (RFC 9113). The head of a request is the same bytes each time. Of a reply only its
 * message is read, never its head: so no header compression is undone here, and a refusal is known (a reply that ends without a
 * message) but not its text. Flow control is arranged once, in both directions:
 *
 *   - to us: windows so large that no run fills them
 *   - from us: requests under way stay so small together that they fit into the window that every server opens
 */

const FRAME_HEAD_BYTES = 9;
const DATA = 0;
const HEADERS = 1;
const RST_STREAM = 3;
const SETTINGS = 4;
const PING = 6;
const GOAWAY = 7;
const WINDOW_UPDATE = 8;

const END_STREAM = 1;
const ACK = 1;
const END_HEADERS = 4;
const PADDED = 8;

const PREFACE = Buffer.from("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "latin1");
const WINDOW_MAX = 2 ** 31 - 1;
/** What a connection's window is before anybody changes it. A server opens it again when a quarter is used, so half may be under way. */
const WINDOW_AT_FIRST = 65_535;
const MESSAGE_BYTES_MAX = 120;
const CALLS_MAX = Math.floor(WINDOW_AT_FIRST / 2 / (MESSAGE_BYTES_MAX + 5));
const CONNECT_MS_MAX = 10_000;

/** `reply`: the message, when there was no error. */
export type OnAnswer = (error: string | null, reply: Buffer) => void;

interface Call {
  readonly done: OnAnswer;
  reply: Buffer;
}

const NOTHING = Buffer.alloc(0);

export class UnaryConnection {
  readonly #socket: Socket;
  readonly #authority: string;
  readonly #underWay = new Map<number, Call>();
  /** Whole HEADERS frames, by path, but for the stream's number. */
  readonly #heads = new Map<string, Buffer>();
  #nextStream = 1;
  #pending: Buffer[] = [];
  /** The beginning of a frame whose rest has not come yet. */
  #unread: Buffer = NOTHING;

  private constructor(socket: Socket, port: number) {
    this.#socket = socket;
    this.#authority = `127.0.0.1:${port}`;
  }

  /** Connects within 10 seconds. `onLost` is called once when the connection ends, whoever ended it. */
  static async open(port: number, onLost: (reason: string) => void): Promise<UnaryConnection> {
    const socket = createConnection({ port, host: "127.0.0.1", noDelay: true });
    await new Promise<void>((resolve, reject) => {
      const deadline = setTimeout(
        () => socket.destroy(new Error(`no connection to port ${port} in 10 s`)),
        CONNECT_MS_MAX,
      );
      socket.once("connect", () => {
        clearTimeout(deadline);
        socket.removeListener("error", reject);
        resolve();
      });
      socket.once("error", (error) => {
        clearTimeout(deadline);
        reject(error);
      });
    });
    const connection = new UnaryConnection(socket, port);
    let reason = "closed by the server";
    socket.on("data", (bytes: Buffer) => connection.#read(bytes));
    socket.on("error", (error) => {
      reason = error.message;
    });
    socket.on("close", () => onLost(reason));
    connection.#greet();
    return connection;
  }

  /** The request leaves at the end of this turn, together with the others of it. Throws RangeError at more than this is made for. */
  call(path: string, message: Buffer, done: OnAnswer): void {
    if (message.length > MESSAGE_BYTES_MAX) throw new RangeError(`a message of ${message.length} bytes`);
    if (this.#underWay.size >= CALLS_MAX) throw new RangeError(`more than ${CALLS_MAX} calls at once`);
    const head = Buffer.from(this.#headOf(path));
    const stream = this.#nextStream;
    this.#nextStream += 2;
    this.#underWay.set(stream, { done, reply: NOTHING });
    head.writeUInt32BE(stream, 5);
    const body = Buffer.allocUnsafe(FRAME_HEAD_BYTES + 5 + message.length);
    writeFrameHead(body, 5 + message.length, DATA, END_STREAM, stream);
    // Not compressed, and so long.
    body[FRAME_HEAD_BYTES] = 0;
    body.writeUInt32BE(message.length, FRAME_HEAD_BYTES + 1);
    message.copy(body, FRAME_HEAD_BYTES + 5);
    this.#send(head, body);
  }

  close(): void {
    this.#socket.destroy();
  }

  // Out ---------------------------------------------------------------------------------------------------------------------

  #greet(): void {
    const settings = Buffer.alloc(18);
    for (const [index, [name, value]] of [
      [1, 0], // no table for header compression
      [2, 0], // no pushes
      [4, WINDOW_MAX],
    ].entries()) {
      settings.writeUInt16BE(name ?? 0, index * 6);
      settings.writeUInt32BE(value ?? 0, index * 6 + 2);
    }
    const window = Buffer.alloc(4);
    window.writeUInt32BE(WINDOW_MAX - WINDOW_AT_FIRST);
    this.#send(PREFACE, frame(SETTINGS, 0, 0, settings), frame(WINDOW_UPDATE, 0, 0, window));
  }

  #headOf(path: string): Buffer {
    const known = this.#heads.get(path);
    if (known !== undefined) return known;
    const block = Buffer.concat([
      // From the static table: `:method: POST`, `:scheme: http`.
      Buffer.from([0x83, 0x86]),
      // A name of that table and a value of our own: `:path`, `:authority`, `content-type`.
      Buffer.from([0x04]),
      text(path),
      Buffer.from([0x01]),
      text(this.#authority),
      Buffer.from([0x0f, 31 - 15]),
      text("application/grpc"),
      Buffer.from([0x00]),
      text("te"),
      text("trailers"),
    ]);
    const head = frame(HEADERS, END_HEADERS, 0, block);
    this.#heads.set(path, head);
    return head;
  }

  #send(...frames: readonly Buffer[]): void {
    if (this.#pending.length === 0) process.nextTick(() => this.#flush());
    this.#pending.push(...frames);
  }

  #flush(): void {
    const bytes = Buffer.concat(this.#pending);
    this.#pending = [];
    if (!this.#socket.destroyed) this.#socket.write(bytes);
  }

  // In ----------------------------------------------------------------------------------------------------------------------

  #read(bytes: Buffer): void {
    const all = this.#unread.length === 0 ? bytes : Buffer.concat([this.#unread, bytes]);
    let at = 0;
    while (all.length - at >= FRAME_HEAD_BYTES) {
      const length = all.readUIntBE(at, 3);
      const end = at + FRAME_HEAD_BYTES + length;
      if (end > all.length) break;
      this.#onFrame(
        all[at + 3] ?? 0,
        all[at + 4] ?? 0,
        all.readUInt32BE(at + 5) & WINDOW_MAX,
        all.subarray(at + FRAME_HEAD_BYTES, end),
      );
      at = end;
    }
    this.#unread = all.subarray(at);
  }

  #onFrame(type: number, flags: number, stream: number, payload: Buffer): void {
    switch (type) {
      case DATA: {
        const call = this.#underWay.get(stream);
        if ((flags & PADDED) !== 0) this.#socket.destroy(new Error("a padded frame, which is not read here"));
        else if (call !== undefined) {
          call.reply = call.reply.length === 0 ? payload : Buffer.concat([call.reply, payload]);
          if ((flags & END_STREAM) !== 0) this.#settle(stream, null);
        }
        break;
      }
      case HEADERS:
        if ((flags & END_STREAM) !== 0) this.#settle(stream, null);
        break;
      case RST_STREAM:
        this.#settle(stream, `the call was reset (HTTP/2 error ${payload.readUInt32BE(0)})`);
        break;
      case SETTINGS:
        if ((flags & ACK) === 0) this.#send(frame(SETTINGS, ACK, 0, NOTHING));
        break;
      case PING:
        if ((flags & ACK) === 0) this.#send(frame(PING, ACK, 0, payload));
        break;
      case GOAWAY:
        this.#socket.destroy(new Error(`the server wants no more (HTTP/2 error ${payload.readUInt32BE(4)})`));
        break;
    }
  }

  #settle(stream: number, error: string | null): void {
    const call = this.#underWay.get(stream);
    if (call === undefined) return;
    this.#underWay.delete(stream);
    const { done, reply } = call;
    if (error !== null) done(error, NOTHING);
    else if (reply.length < 5 || reply.readUInt32BE(1) !== reply.length - 5)
      done("refused: no message in the reply", NOTHING);
    else done(null, reply.subarray(5));
  }
}

function frame(type: number, flags: number, stream: number, payload: Buffer): Buffer {
  const head = Buffer.allocUnsafe(FRAME_HEAD_BYTES);
  writeFrameHead(head, payload.length, type, flags, stream);
  return Buffer.concat([head, payload]);
}

function writeFrameHead(into: Buffer, length: number, type: number, flags: number, stream: number): void {
  into.writeUIntBE(length, 0, 3);
  into[3] = type;
  into[4] = flags;
  into.writeUInt32BE(stream, 5);
}

/** A text of a header, as it is: up to 126 bytes. */
function text(value: string): Buffer {
  if (value.length > 126) throw new RangeError(`a header of ${value.length} bytes`);
  return Buffer.concat([Buffer.from([value.length]), Buffer.from(value, "latin1")]);
}
