import { Redis } from "ioredis";

/**
 * A client that asks Sentinels for the primary: ioredis, which knows nothing of Leasehold. Times how long a change of the primary
 * keeps it from being served.
 */

/** How long ioredis pauses before it tries again. */
export type Pauses = "50 ms" | "its defaults";

const PAUSE_MS = 50;
/** From an answer that does not count to the next command: so fine a time is told. */
const BETWEEN_MS = 5;

export class SentinelClient {
  readonly #redis: Redis;

  /** `cluster`: the name that Sentinels know the primary by. */
  constructor(cluster: string, sentinelPorts: readonly number[], pauses: Pauses) {
    const own = { retryStrategy: () => PAUSE_MS, sentinelRetryStrategy: () => PAUSE_MS };
    this.#redis = new Redis({
      name: cluster,
      sentinels: sentinelPorts.map((port) => ({ host: "127.0.0.1", port })),
      // A request waits for the connection, however long that takes.
      maxRetriesPerRequest: null,
      ...(pauses === "50 ms" ? own : {}),
    });
    // What goes wrong fails the command under way; the event tells it a second time.
    this.#redis.on("error", () => undefined);
  }

  /**
   * Sends a command again and again until a node other than the one at `notPort` acknowledges it. Returns when that was, on the
   * clock of `performance.now()`. Rejects after `msMax`.
   */
  async acknowledgedAtMs(
    command: readonly [string, ...string[]],
    notPort: number | null,
    msMax: number,
  ): Promise<number> {
    const endMs = performance.now() + msMax;
    let last = "no reply";
    while (performance.now() < endMs) {
      try {
        const reply = await withDeadline(this.#redis.call(...command), endMs - performance.now());
        if (isAcknowledgement(reply) && this.#redis.stream.remotePort !== notPort) return performance.now();
        last = JSON.stringify(reply);
      } catch (error) {
        last = error instanceof Error ? error.message : String(error);
      }
      await new Promise((resolve) => setTimeout(resolve, BETWEEN_MS));
    }
    throw new Error(`${command[0]} was not acknowledged within ${msMax} ms; the last answer: ${last}`);
  }

  close(): void {
    this.#redis.disconnect();
  }
}

/** A keep-alive is answered with the milliseconds left, a grant with an array. */
function isAcknowledgement(reply: unknown): boolean {
  return Array.isArray(reply) || (typeof reply === "number" && reply > 0);
}

async function withDeadline<T>(promise: Promise<T>, ms: number): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error("no reply")), ms);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}
