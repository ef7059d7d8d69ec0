import { Redlock as KitRedlock, type RedlockInstance } from "@redis-kit/lock";
import { createLock as createMicrofleetLock, type Lock as MicrofleetLock } from "@microfleet/ioredis-lock";
import { createLock as createIoredisLock, type Lock as IoredisLock } from "ioredis-lock";
import makeWarlock from "node-redis-warlock";
import { createLock as createRedisLock, type RedisLock } from "redislock";
import { tryLock, type ReleaseFunc } from "simple-redis-mutex";
import { describe } from "vitest";
import { connectIoredis, connectNodeRedis } from "./clients.js";
import { gotten, succeeds, testLockLibrary } from "./lock-suite.js";

/** The smaller lock libraries, each in the way its readme shows. */

const asItIs = (resource: string): string => resource;
const once = { retries: 0, delay: 1 };
const isLockError = (error: Error): boolean => /^Lock(Acquisition|Extend|Release)Error$/.test(error.name);

describe("@microfleet/ioredis-lock 6.0.1", () => {
  testLockLibrary<MicrofleetLock>({
    keyOf: asItIs,
    open: (port) => {
      const client = connectIoredis(port);
      return {
        acquire: (resource, ttlMs) =>
          gotten(createMicrofleetLock(client as never, { timeout: ttlMs, ...once }).acquire(resource), isLockError),
        extend: (lock, ttlMs) => succeeds(lock.extend(ttlMs), isLockError),
        release: (lock) => succeeds(lock.release(), isLockError),
        close: () => Promise.resolve(client.disconnect()),
      };
    },
  });
});

describe("ioredis-lock 4.0.0", () => {
  testLockLibrary<IoredisLock>({
    keyOf: asItIs,
    open: (port) => {
      const client = connectIoredis(port);
      return {
        acquire: async (resource, ttlMs) => {
          const lock = createIoredisLock(client, { timeout: ttlMs, ...once });
          return (await succeeds(lock.acquire(resource), isLockError)) ? lock : null;
        },
        extend: (lock, ttlMs) => succeeds(lock.extend(ttlMs), isLockError),
        release: (lock) => succeeds(lock.release(), isLockError),
        close: () => Promise.resolve(client.disconnect()),
      };
    },
  });
});

describe("redislock 1.3.0", () => {
  testLockLibrary<RedisLock>({
    keyOf: asItIs,
    open: (port) => {
      const client = connectIoredis(port);
      return {
        acquire: async (resource, ttlMs) => {
          const lock = createRedisLock(client, { timeout: ttlMs, ...once });
          return (await succeeds(lock.acquire(resource), isLockError)) ? lock : null;
        },
        extend: (lock, ttlMs) => succeeds(lock.extend(ttlMs), isLockError),
        release: (lock) => succeeds(lock.release(), isLockError),
        close: () => Promise.resolve(client.disconnect()),
      };
    },
  });
});

describe("node-redis-warlock 1.0.2", () => {
  interface Held {
    readonly resource: string;
    readonly id: string;
    readonly unlock: (done: (error: Error | null, count: number) => void) => void;
  }
  testLockLibrary<Held>({
    keyOf: (resource) => `${resource}:lock`,
    open: (port) => {
      const client = connectIoredis(port);
      const warlock = makeWarlock(client);
      return {
        acquire: (resource, ttlMs) =>
          new Promise((resolve, reject) => {
            warlock.lock(resource, ttlMs, (error, unlock, id) => {
              if (error !== null) reject(error);
              else resolve(unlock === false ? null : { resource, id, unlock });
            });
          }),
        extend: async ({ resource, id }, ttlMs) => Boolean(await warlock.touch(resource, id, ttlMs)),
        release: ({ unlock }) =>
          new Promise((resolve, reject) => {
            unlock((error, count) => (error === null ? resolve(count === 1) : reject(error)));
          }),
        close: () => Promise.resolve(client.disconnect()),
      };
    },
  });
});

describe("simple-redis-mutex 3.0.0", () => {
  testLockLibrary<ReleaseFunc>({
    keyOf: (resource) => `@simple-redis-mutex:lock-${resource}`,
    bearsRestart: false,
    open: async (port) => {
      const client = await connectNodeRedis(port);
      return {
        acquire: async (resource, ttlMs) => {
          const [isHeld, release] = await tryLock(client as never, resource, { timeout: ttlMs });
          return isHeld ? release : null;
        },
        // Refreshes to the time that it was made with, and tells nothing.
        extend: null,
        release: async (release) => {
          await release();
          return null;
        },
        close: () => Promise.resolve(client.destroy()),
      };
    },
  });
});

describe("@redis-kit/lock 0.1.0-3", () => {
  testLockLibrary<RedlockInstance>({
    keyOf: asItIs,
    open: async (port) => {
      const client = await connectNodeRedis(port);
      const redlock = new KitRedlock([client as never], { maxRetryAttempts: 0 });
      return {
        acquire: (resource, ttlMs) => redlock.acquire(resource, ttlMs),
        extend: (lock, ttlMs) => lock.extend(ttlMs),
        release: (lock) => lock.release(),
        holdWhile: (resource, ttlMs, work) =>
          redlock.withLock(resource, ttlMs, work, { extensionThresholdMs: ttlMs / 2 }),
        close: () => Promise.resolve(client.destroy()),
      };
    },
  });
});
