import { Mutex, RedlockMutex } from "redis-semaphore";
import { describe } from "vitest";
import { connectIoredis } from "./clients.js";
import { testLockLibrary } from "./lock-suite.js";

/** redis-semaphore's mutexes. Its semaphores keep sorted sets, which Leasehold does not have. */

const keyOf = (resource: string): string => `mutex:${resource}`;

/** `_refresh` is what its timer calls. */
interface Refreshing {
  readonly _acquireOptions: { lockTimeout: number };
  _refresh(): Promise<boolean>;
}

type AnyMutex = Mutex | RedlockMutex;

function testMutex(
  make: (client: ReturnType<typeof connectIoredis>, resource: string, options: object) => AnyMutex,
): void {
  testLockLibrary<AnyMutex>({
    keyOf,
    open: (port) => {
      const client = connectIoredis(port);
      const options = (lockTimeout: number): object => ({
        lockTimeout,
        acquireTimeout: 60_000,
        acquireAttemptsLimit: 1,
        refreshInterval: 0,
      });
      return {
        acquire: async (resource, ttlMs) => {
          const mutex = make(client, resource, options(ttlMs));
          return (await mutex.tryAcquire()) ? mutex : null;
        },
        // Its time is fixed when it is made, and lies in its options.
        extend: (mutex, ttlMs) => {
          const refreshing = mutex as unknown as Refreshing;
          refreshing._acquireOptions.lockTimeout = ttlMs;
          return refreshing._refresh();
        },
        release: async (mutex) => {
          await mutex.release();
          return null;
        },
        holdWhile: async (resource, ttlMs, work) => {
          const mutex = make(client, resource, {
            lockTimeout: ttlMs,
            refreshInterval: ttlMs / 4,
            onLockLost: () => {
              // unheard it would end the process; the suite sees the loss by itself
            },
          });
          await mutex.acquire();
          try {
            await work();
          } finally {
            await mutex.release();
          }
        },
        close: async () => {
          client.disconnect();
          return Promise.resolve();
        },
      };
    },
  });
}

describe("redis-semaphore 5.8.0: Mutex", () => {
  testMutex((client, resource, options) => new Mutex(client as never, resource, options));
});

describe("redis-semaphore 5.8.0: RedlockMutex", () => {
  testMutex((client, resource, options) => new RedlockMutex([client as never], resource, options));
});
