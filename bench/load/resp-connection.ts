import { createConnection, type Socket } from "node:net";

import RedisParser from "redis-parser";

/**
 * One RESP connection as the load generators need it: bytes out, replies in, in order. Nothing is sent before `flush`, so
 * that the commands of one turn leave in one write.
 */

/** What redis-parser gives for RESP2; errors are `Error` objects inside. */
export type RespReply = number | string | null | Error | readonly RespReply[];

export class RespConnection {
  readonly #socket: Socket;
  #pending = "";

  private constructor(socket: Socket) {
    this.#socket = socket;
  }

  /** Connects within 10 seconds. `onLost` is called once when the connection ends, whoever ended it. */
  static async open(
    port: number,
    onReply: (reply: RespReply) => void,
    onLost: (reason: string) => void,
  ): Promise<RespConnection> {
    const socket = createConnection({ port, host: "127.0.0.1", noDelay: true });
    await new Promise<void>((resolve, reject) => {
      const deadline = setTimeout(() => socket.destroy(new Error(`no connection to port ${port} in 10 s`)), 10_000);
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
    let reason = "closed by the server";
    const parser = new RedisParser({
      returnReply: (reply: unknown) => onReply(reply as RespReply),
      returnError: (error: Error) => onReply(error),
      returnFatalError: (error: Error) => socket.destroy(error),
    });
    socket.on("data", (bytes: Buffer) => parser.execute(bytes));
    socket.on("error", (error) => {
      reason = error.message;
    });
    socket.on("close", () => onLost(reason));
    return new RespConnection(socket);
  }

  /** `request`: a whole encoded command, one character per byte. */
  append(request: string): void {
    this.#pending += request;
  }

  flush(): void {
    if (this.#pending === "") return;
    this.#socket.write(this.#pending, "latin1");
    this.#pending = "";
  }

  close(): void {
    this.#socket.destroy();
  }
}

/** Encodes a command; every character of the arguments is one byte. */
export function encodeRequest(argv: readonly string[]): string {
  let request = `*${argv.length}\r\n`;
  for (const argument of argv) request += `$${argument.length}\r\n${argument}\r\n`;
  return request;
}

interface Waiting {
  readonly resolve: (reply: RespReply) => void;
  readonly reject: (error: Error) => void;
}

/** A connection for a few commands outside of any measurement: to set up, to look, to tear down. */
export class RespClient {
  readonly #connection: RespConnection;
  readonly #waiting: Waiting[];
  #lost: string | null = null;

  private constructor(connection: RespConnection, waiting: Waiting[]) {
    this.#connection = connection;
    this.#waiting = waiting;
  }

  static async open(port: number): Promise<RespClient> {
    const waiting: Waiting[] = [];
    let client: RespClient | null = null;
    const connection = await RespConnection.open(
      port,
      (reply) => {
        const first = waiting.shift();
        if (first === undefined) return;
        if (reply instanceof Error) first.reject(reply);
        else first.resolve(reply);
      },
      (reason) => {
        if (client !== null) client.#lost = reason;
        for (const each of waiting.splice(0)) each.reject(new Error(`connection lost: ${reason}`));
      },
    );
    client = new RespClient(connection, waiting);
    return client;
  }

  /** Rejects with the server's error reply, or when the connection ends. */
  async call(...argv: readonly string[]): Promise<RespReply> {
    if (this.#lost !== null) throw new Error(`connection lost: ${this.#lost}`);
    return new Promise((resolve, reject) => {
      this.#waiting.push({ resolve, reject });
      this.#connection.append(encodeRequest(argv));
      this.#connection.flush();
    });
  }

  close(): void {
    this.#connection.close();
  }
}

/** Opens a client, hands it to `use`, closes it again. */
export async function withClient<T>(port: number, use: (client: RespClient) => Promise<T>): Promise<T> {
  const client = await RespClient.open(port);
  try {
    return await use(client);
  } finally {
    client.close();
  }
}
