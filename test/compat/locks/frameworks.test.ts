import { AsyncLocalStorage } from "node:async_hooks";
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { compileFunction } from "node:vm";
import type { RedisLockingProvider } from "@medusajs/locking-redis/dist/services/redis-lock.js";
import { MurLockService } from "murlock";
import { AsyncStorageManager } from "murlock/dist/als/als-manager.js";
import { AsyncStorageService } from "murlock/dist/als/als.service.js";
import { describe } from "vitest";
import { connectIoredis } from "./clients.js";
import { gotten, succeeds, testLockLibrary } from "./lock-suite.js";

/**
 * Lock libraries that belong to a framework: their own service is run, made by hand where the framework would make it.
 */

/** A lock held by a function that has not ended yet. */
interface RunningSection {
  readonly finish: () => void;
  readonly ended: Promise<void>;
}

describe("murlock 4.4.0", () => {
  const isRefusal = (error: Error): boolean => error.name === "MurLockException";
  const silent = Object.fromEntries(["debug", "log", "warn", "error"].map((level) => [level, () => {}]));

  testLockLibrary<RunningSection>({
    keyOf: (resource) => resource,
    open: async (port) => {
      const storage = new AsyncStorageService(new AsyncStorageManager(new AsyncLocalStorage()));
      const options = {
        redisOptions: { socket: { host: "127.0.0.1", port } },
        wait: 1,
        maxAttempts: 1,
        logLevel: "error" as const,
        ignoreUnlockFail: false,
      };
      const service = new MurLockService(options, storage);
      // it would tell the terminal that the server is away
      Object.assign(service, { logger: silent });
      await service.onModuleInit();
      return {
        acquire: (resource, ttlMs) =>
          new Promise((resolve, reject) => {
            let finish = (): void => {};
            const section = new Promise<void>((done) => {
              finish = done;
            });
            const ended = service.runWithLock(resource, ttlMs, () => {
              resolve({ finish, ended });
              return section;
            });
            // refused before it was entered, or not its own any more when it ended: then release() tells
            gotten(ended, isRefusal).then(() => resolve(null), reject);
          }),
        // It has nothing of the kind.
        extend: null,
        release: ({ finish, ended }) => {
          finish();
          return succeeds(ended, isRefusal);
        },
        close: () => service.onApplicationShutdown(),
      };
    },
  });
});

class MedusaError extends Error {
  static readonly Types = { CONFLICT: "conflict" };
  constructor(type: string, message: string) {
    super(message);
    this.name = `MedusaError: ${type}`;
  }
}

/** The package's service, with the two things of Medusa's framework (600 packages) that it uses: an error, and all promises as one. */
function loadMedusaProvider(): typeof RedisLockingProvider {
  const file = createRequire(import.meta.url).resolve("@medusajs/locking-redis/dist/services/redis-lock.js");
  const requireThere = createRequire(file);
  const framework = { MedusaError, promiseAll: (promises: readonly unknown[]) => Promise.all(promises) };
  const requireOrFramework = (name: string): unknown =>
    name === "@medusajs/framework/utils" ? framework : requireThere(name);
  const exported: { RedisLockingProvider?: typeof RedisLockingProvider } = {};
  const define = compileFunction(readFileSync(file, "utf8"), ["exports", "require"], { filename: file });
  define(exported, requireOrFramework);
  if (exported.RedisLockingProvider === undefined) throw new Error("no RedisLockingProvider");
  return exported.RedisLockingProvider;
}

describe("@medusajs/locking-redis 2.21.2", () => {
  const Provider = loadMedusaProvider();
  const isRefusal = (error: Error): boolean => error instanceof MedusaError;
  /** Its times are whole seconds. */
  const secondsOf = (ttlMs: number): number => Math.ceil(ttlMs / 1000);
  const keyOf = (resource: string): string => `medusa_lock:${resource}`;

  testLockLibrary<{ readonly resource: string; readonly ownerId: string }>({
    keyOf,
    open: (port) => {
      const client = connectIoredis(port);
      const provider = new Provider({ redisClient: client as never }, {});
      // a command that the provider defines on its client, and sends when it extends by itself
      const commands = client as unknown as {
        extendLock(key: string, owner: string, seconds: number): Promise<number>;
      };
      return {
        acquire: async (resource, ttlMs) => {
          const ownerId = randomUUID();
          const acquired = provider.acquire(resource, { ownerId, expire: secondsOf(ttlMs) });
          return (await succeeds(acquired, isRefusal)) ? { resource, ownerId } : null;
        },
        extend: async ({ resource, ownerId }, ttlMs) =>
          (await commands.extendLock(keyOf(resource), ownerId, secondsOf(ttlMs))) === 1,
        release: ({ resource, ownerId }) => provider.release(resource, { ownerId }),
        holdWhile: (resource, ttlMs, work) => provider.execute(resource, work, { expire: secondsOf(ttlMs) }),
        close: () => Promise.resolve(client.disconnect()),
      };
    },
  });
});
