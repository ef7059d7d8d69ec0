import { Redis } from "ioredis5";
import Redlock4, { type Lock as Lock4 } from "redlock4";
import Redlock5, { ExecutionError, type Lock as Lock5 } from "redlock5";
import {
  Redlock as SesameRedlock,
  ExecutionError as SesameError,
  type Lock as SesameLock,
} from "@sesamecare-oss/redlock";
import { describe } from "vitest";
import { connectIoredis } from "./clients.js";
import { gotten, succeeds, testLockLibrary } from "./lock-suite.js";

/** redlock in the versions that are in use, and the fork that calls itself its successor. One node: quorum of one. */

const asItIs = (resource: string): string => resource;

describe("redlock 4.2.0", () => {
  const isRefusal = (error: Error): boolean => error.name === "LockError";
  testLockLibrary<Lock4>({
    keyOf: asItIs,
    open: (port) => {
      const client = connectIoredis(port);
      const redlock = new Redlock4([client], { retryCount: 0 });
      return {
        acquire: (resource, ttlMs) => gotten(redlock.lock(resource, ttlMs), isRefusal),
        extend: (lock, ttlMs) => succeeds(lock.extend(ttlMs), isRefusal),
        release: (lock) => succeeds(lock.unlock(), isRefusal),
        close: async () => {
          client.disconnect();
          return Promise.resolve();
        },
      };
    },
  });
});

interface RedlockOfFive<Lock> {
  acquire(resources: string[], ttlMs: number): Promise<Lock>;
  using(resources: string[], ttlMs: number, settings: object, routine: () => Promise<void>): Promise<void>;
}

interface LockOfFive {
  extend(ttlMs: number): Promise<unknown>;
  release(): Promise<unknown>;
}

/** An extended lock is a new object, but the old one goes on standing for it where the value is concerned. */
function testRedlockOfFive<Lock extends LockOfFive>(
  make: (client: Redis) => RedlockOfFive<Lock>,
  isRefusal: (error: Error) => boolean,
): void {
  testLockLibrary<Lock>({
    keyOf: asItIs,
    open: (port) => {
      const client = connectIoredis(port);
      const redlock = make(client);
      return {
        acquire: (resource, ttlMs) => gotten(redlock.acquire([resource], ttlMs), isRefusal),
        extend: (lock, ttlMs) => succeeds(lock.extend(ttlMs), isRefusal),
        release: (lock) => succeeds(lock.release(), isRefusal),
        holdWhile: (resource, ttlMs, work) =>
          redlock.using([resource], ttlMs, { automaticExtensionThreshold: ttlMs / 2 }, work),
        close: async () => {
          client.disconnect();
          return Promise.resolve();
        },
      };
    },
  });
}

const settings = { retryCount: 0 };

describe("redlock 5.0.0-beta.2", () => {
  testRedlockOfFive<Lock5>(
    (client) => new Redlock5([client], settings),
    (error) => error instanceof ExecutionError,
  );
});

describe("@sesamecare-oss/redlock 1.4.0", () => {
  testRedlockOfFive<SesameLock>(
    (client) => new SesameRedlock([client as never], settings),
    (error) => error instanceof SesameError,
  );
});
