import { once } from "node:events";
import { connect, createServer, type Server, type Socket } from "node:net";

/** Between a client and an etcd member: passes bytes on, or keeps them, in each direction. */
export class CutProxy {
  readonly #server: Server;
  readonly #connections = new Set<{ client: Socket; etcd: Socket }>();
  /** What happens to what clients send. Held bytes may be delivered later. */
  requests: "pass" | "hold" = "pass";
  /** What happens to what etcd sends. */
  replies: "pass" | "drop" = "pass";
  #held: { etcd: Socket; bytes: Buffer }[] = [];
  requestBytesHeld = 0;
  replyBytes = 0;

  private constructor(server: Server) {
    this.#server = server;
  }

  static async start(etcdPort: number): Promise<CutProxy> {
    const server = createServer();
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    const proxy = new CutProxy(server);
    server.on("connection", (client) => proxy.#pair(client, connect(etcdPort, "127.0.0.1")));
    return proxy;
  }

  get endpoint(): string {
    const address = this.#server.address();
    if (address === null || typeof address === "string") throw new Error("a server without a port");
    return `127.0.0.1:${address.port}`;
  }

  /** What is held by now, as text with one character per byte. */
  get heldText(): string {
    return Buffer.concat(this.#held.map(({ bytes }) => bytes)).toString("latin1");
  }

  /** Breaks all connections, both ways. What is held is lost. */
  cut(): void {
    this.#held = [];
    for (const { client, etcd } of this.#connections) {
      client.destroy();
      etcd.destroy();
    }
  }

  /** What is held by now, to be delivered whenever the test likes: what is held later stays so. */
  takeHeld(): () => void {
    const held = this.#held;
    this.#held = [];
    return () => {
      for (const { etcd, bytes } of held) etcd.write(bytes);
    };
  }

  async stop(): Promise<void> {
    this.cut();
    this.#server.close();
    await once(this.#server, "close");
  }

  #pair(client: Socket, etcd: Socket): void {
    const connection = { client, etcd };
    this.#connections.add(connection);
    const end = (): void => {
      this.#connections.delete(connection);
      client.destroy();
      etcd.destroy();
    };
    for (const socket of [client, etcd]) {
      socket.on("error", end);
      socket.on("close", end);
    }
    client.on("data", (bytes: Buffer) => {
      if (this.requests === "pass") {
        etcd.write(bytes);
        return;
      }
      this.#held.push({ etcd, bytes });
      this.requestBytesHeld += bytes.length;
    });
    etcd.on("data", (bytes: Buffer) => {
      this.replyBytes += bytes.length;
      if (this.replies === "pass") client.write(bytes);
    });
  }
}
