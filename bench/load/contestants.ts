import { Redis } from "ioredis5";
import { Mutex } from "redis-semaphore";
import Redlock, { ExecutionError, type Lock } from "redlock5";

/**
 * Clients that want a lock, in the ways that are compared: Leasehold's own command, which waits in the server's queue, and lock
 * libraries that ask again and again, with the pauses that are their defaults (redis-semaphore 10 ms, redlock 200 ms give or take
 * 100). All of them over the same client, ioredis, with a connection each.
 */

export type ContestantKind = "LOCK.ACQUIRE BLOCK" | "redis-semaphore" | "redlock";

export interface Contestant {
  /** true: held. false: the library gave up; whoever still wants the lock asks again. */
  acquire(): Promise<boolean>;
  release(): Promise<void>;
  close(): void;
}

/** Nothing falls due during a run. */
const TTL_MS = 3_600_000;
const BLOCK_MS = 60_000;

/** `lock`: its name; redis-semaphore puts `mutex:` before it. */
export async function openContestant(kind: ContestantKind, port: number, lock: string): Promise<Contestant> {
  const client = new Redis({ host: "127.0.0.1", port, lazyConnect: true, retryStrategy: () => null });
  // What goes wrong fails the command under way; the event tells it a second time.
  client.on("error", () => undefined);
  await client.connect();
  const close = (): void => client.disconnect();
  switch (kind) {
    case "LOCK.ACQUIRE BLOCK":
      return { ...(await leaseholdClient(client, lock)), close };
    case "redis-semaphore":
      return { ...semaphoreClient(client, lock), close };
    case "redlock":
      return { ...redlockClient(client, lock), close };
  }
}

type WithoutClose = Omit<Contestant, "close">;

async function leaseholdClient(client: Redis, lock: string): Promise<WithoutClose> {
  const granted = (await client.call("LEASE.GRANT", "*", "PX", `${TTL_MS}`)) as readonly string[];
  const lease = String(granted[0]);
  return {
    acquire: async () => (await client.call("LOCK.ACQUIRE", lock, lease, "BLOCK", `${BLOCK_MS}`)) !== null,
    release: async () => {
      const released = await client.call("LOCK.RELEASE", lock, lease);
      if (released !== 1) throw new Error(`LOCK.RELEASE of a lock that is held said ${String(released)}`);
    },
  };
}

function semaphoreClient(client: Redis, lock: string): WithoutClose {
  // Its types are those of another version of ioredis.
  const mutex = new Mutex(client as never, lock);
  return { acquire: () => mutex.tryAcquire(), release: () => mutex.release() };
}

function redlockClient(client: Redis, lock: string): WithoutClose {
  const redlock = new Redlock([client]);
  let held: Lock | null = null;
  return {
    acquire: async () => {
      try {
        held = await redlock.acquire([lock], TTL_MS);
        return true;
      } catch (error) {
        if (error instanceof ExecutionError) return false;
        throw error;
      }
    },
    release: async () => {
      await held?.release();
      held = null;
    },
  };
}
