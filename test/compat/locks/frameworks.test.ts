import { AsyncLocalStorage } from "node:async_hooks";
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { compileFunction } from "node:vm";
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
      const service = new MurLockService(options, storage as never);
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

/** As much of the provider, and of the commands that it defines on its client, as is used here. */
interface MedusaProvider {
  acquire(resource: string, options: { readonly ownerId: string; readonly expire: number }): Promise<void>;
  release(resource: string, options: { readonly ownerId: string }): Promise<boolean>;
  execute(resource: string, job: () => Promise<void>, options: { readonly expire: number }): Promise<void>;
}
interface MedusaCommands {
  extendLock(key: string, ownerId: string, ttlSeconds: number): Promise<number>;
}
type MedusaProviderClass = new (parts: { readonly redisClient: unknown }) => MedusaProvider;

class MedusaError extends Error {
  static readonly Types = { CONFLICT: "conflict" };
  constructor(type: string, message: string) {
    super(message);
    this.name = `MedusaError: ${type}`;
  }
}

/** The package's service, with the two things of Medusa's framework (600 packages) that it uses: an error, and all promises as one. */
function loadMedusaProvider(): MedusaProviderClass {
  const file = createRequire(import.meta.url).resolve("@medusajs/locking-redis/dist/services/redis-lock.js");
  const requireThere = createRequire(file);
  const framework = { MedusaError, promiseAll: (promises: readonly unknown[]) => Promise.all(promises) };
  const requireOrFramework = (name: string): unknown =>
    name === "@medusajs/framework/utils" ? framework : requireThere(name);
  const exported: { RedisLockingProvider?: MedusaProviderClass } = {};
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
      const provider = new Provider({ redisClient: client });
      const { extendLock } = client as unknown as MedusaCommands;
      return {
        acquire: async (resource, ttlMs) => {
          const ownerId = randomUUID();
          const acquired = provider.acquire(resource, { ownerId, expire: secondsOf(ttlMs) });
          return (await succeeds(acquired, isRefusal)) ? { resource, ownerId } : null;
        },
        extend: async ({ resource, ownerId }, ttlMs) =>
          (await extendLock.call(client, keyOf(resource), ownerId, secondsOf(ttlMs))) === 1,
        release: ({ resource, ownerId }) => provider.release(resource, { ownerId }),
        holdWhile: (resource, ttlMs, work) => provider.execute(resource, work, { expire: secondsOf(ttlMs) }),
        close: () => Promise.resolve(client.disconnect()),
      };
    },
  });
});
