import { createLock, IoredisAdapter, NodeRedisAdapter, type LockHandle, type RedisAdapter } from "redlock-universal";
import { describe } from "vitest";
import { connectIoredis, connectNodeRedis } from "./clients.js";
import { gotten, succeeds, testLockLibrary } from "./lock-suite.js";

/** redlock-universal over both of the clients that it knows. Its package asks for Node 22; what is used here runs on 20 too. */

function testUniversal(connect: (port: number) => Promise<{ adapter: RedisAdapter; close: () => void }>): void {
  type Held = { readonly lock: ReturnType<typeof createLock>; readonly handle: LockHandle };
  const isRefusal = (error: Error): boolean =>
    ["LockAcquisitionError", "LockExtensionError", "LockReleaseError"].includes(error.name);
  testLockLibrary<Held>({
    keyOf: (resource) => resource,
    open: async (port) => {
      const { adapter, close } = await connect(port);
      const make = (key: string, ttl: number): ReturnType<typeof createLock> =>
        createLock({ adapter, key, ttl, retryAttempts: 0, circuitBreaker: false });
      return {
        acquire: async (resource, ttlMs) => {
          const lock = make(resource, ttlMs);
          const handle = await gotten(lock.acquire(), isRefusal);
          return handle === null ? null : { lock, handle };
        },
        extend: async ({ lock, handle }, ttlMs) => (await gotten(lock.extend(handle, ttlMs), isRefusal)) ?? false,
        release: async ({ lock, handle }) => (await gotten(lock.release(handle), isRefusal)) ?? false,
        holdWhile: async (resource, ttlMs, work) => {
          await succeeds(
            make(resource, ttlMs).using(async () => work()),
            () => false,
          );
        },
        close: () => {
          close();
          return Promise.resolve();
        },
      };
    },
  });
}

describe("redlock-universal 0.8.5 over ioredis", () => {
  testUniversal((port) => {
    const client = connectIoredis(port);
    return Promise.resolve({ adapter: new IoredisAdapter(client as never), close: () => client.disconnect() });
  });
});

describe("redlock-universal 0.8.5 over node-redis", () => {
  testUniversal(async (port) => {
    const client = await connectNodeRedis(port);
    return { adapter: new NodeRedisAdapter(client), close: () => client.destroy() };
  });
});
