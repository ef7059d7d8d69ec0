/**
 * A TCP proxy on loopback that can hold back what goes through it, in either direction, and deliver it later: a network that loses
 * nothing and is late. Held back, a connection looks as behind a firewall that drops packets: nothing comes, not even its end.
 *
 * Invariant: bytes of one direction of one connection are delivered in order, whole, and before its end.
 */
import { once } from "node:events";
import { connect, createServer, type Server, type Socket } from "node:net";
import { nowMs } from "./poll.js";

/** From clients to the target, and back. */
export type Direction = "requests" | "answers";

/** One direction of one connection. */
class Pipe {
  readonly #to: Socket;
  #held: { readonly atMs: number; readonly chunk: Buffer }[] = [];
  #isHeld: boolean;
  #heldSinceMs = nowMs();
  #hasEnded = false;

  constructor(from: Socket, to: Socket, isHeld: boolean) {
    this.#to = to;
    this.#isHeld = isHeld;
    from.on("data", (chunk: Buffer) => {
      if (this.#isHeld) this.#held.push({ atMs: nowMs(), chunk });
      else if (!to.destroyed) to.write(chunk);
    });
    from.on("error", () => {
      // "close" follows
    });
    from.once("close", () => {
      this.#hasEnded = true;
      this.#pass();
    });
  }

  hold(): void {
    if (!this.#isHeld) this.#heldSinceMs = nowMs();
    this.#isHeld = true;
  }

  passFirst(periodMs: number): void {
    const first = this.#held.filter(({ atMs }) => atMs <= this.#heldSinceMs + periodMs);
    this.#held = this.#held.slice(first.length);
    this.#write(first);
  }

  release(): void {
    this.#isHeld = false;
    this.#pass();
  }

  #pass(): void {
    if (this.#isHeld) return;
    this.#write(this.#held);
    this.#held = [];
    if (this.#hasEnded) this.#to.end();
  }

  #write(held: readonly { readonly chunk: Buffer }[]): void {
    const bytes = Buffer.concat(held.map(({ chunk }) => chunk));
    if (bytes.length > 0 && !this.#to.destroyed) this.#to.write(bytes);
  }
}

export class TcpProxy {
  /** Bytes that came from clients so far, held back or not. */
  requestBytes = 0;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  readonly #pipes: Record<Direction, Set<Pipe>> = { requests: new Set(), answers: new Set() };
  readonly #isHeld: Record<Direction, boolean> = { requests: false, answers: false };

  private constructor(targetPort: number) {
    this.#server = createServer((client) => {
      const target = connect(targetPort, "127.0.0.1");
      for (const socket of [client, target]) {
        socket.setNoDelay(true);
        this.#sockets.add(socket);
        socket.once("close", () => this.#sockets.delete(socket));
      }
      client.on("data", (chunk: Buffer) => {
        this.requestBytes += chunk.length;
      });
      this.#pipes.requests.add(new Pipe(client, target, this.#isHeld.requests));
      this.#pipes.answers.add(new Pipe(target, client, this.#isHeld.answers));
    });
  }

  static async start(targetPort: number): Promise<TcpProxy> {
    const proxy = new TcpProxy(targetPort);
    proxy.#server.listen(0, "127.0.0.1");
    await once(proxy.#server, "listening");
    return proxy;
  }

  get endpoint(): string {
    const address = this.#server.address();
    if (address === null || typeof address === "string") throw new Error("the proxy does not listen");
    return `127.0.0.1:${address.port}`;
  }

  /** From now on nothing passes in these directions, on new connections neither. */
  hold(...directions: readonly Direction[]): void {
    for (const direction of directions) {
      this.#isHeld[direction] = true;
      for (const pipe of this.#pipes[direction]) pipe.hold();
    }
  }

  /** Delivers what came in the first milliseconds of holding back, and goes on to hold back what came later. */
  passFirst(periodMs: number): void {
    for (const direction of ["requests", "answers"] as const) {
      for (const pipe of this.#pipes[direction]) pipe.passFirst(periodMs);
    }
  }

  /** Delivers all that was held back, and holds nothing any more. */
  release(): void {
    for (const direction of ["requests", "answers"] as const) {
      this.#isHeld[direction] = false;
      for (const pipe of this.#pipes[direction]) pipe.release();
    }
  }

  async stop(): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    this.#server.close();
    await once(this.#server, "close");
  }
}
