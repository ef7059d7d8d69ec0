import { beforeAll, expect, test } from "vitest";
import { letPass, nowMs, until } from "../../support/poll.js";
import type { RespConnection } from "../../support/resp-client.js";
import { useServers, type Server } from "../../support/server.js";

/**
 * What every lock library has to be able to do against a real server, whatever its interface looks like: acquire, contend, extend,
 * not revive, not release what is another's, and go on after the server was killed. The driver of each library is a few lines
 * around the real package; it changes nothing in it.
 */

interface LockDriver<Handle> {
  /** One try, without waiting. null: another has the lock. */
  acquire(resource: string, ttlMs: number): Promise<Handle | null>;
  /** False: the lock is not this handle's any more. */
  readonly extend: ((handle: Handle, ttlMs: number) => Promise<boolean>) | null;
  /** Whether it was still this handle's; null when the library does not tell. */
  release(handle: Handle): Promise<boolean | null>;
  /** Runs `work` under a lock that the library itself extends all the time; absent: it has nothing of the kind. */
  readonly holdWhile?: (resource: string, ttlMs: number, work: () => Promise<void>) => Promise<void>;
  close(): Promise<void>;
}

export interface LockLibrary<Handle> {
  /** The key that stands for a resource. */
  readonly keyOf: (resource: string) => string;
  /** False: a connection of its own, which nobody can reach, does not bear the loss of its server. */
  readonly bearsRestart?: boolean;
  readonly open: (port: number) => LockDriver<Handle> | Promise<LockDriver<Handle>>;
}

/** Long enough for any test here, however slow the machine. */
const LONG_MS = 120_000;
const SHORT_MS = 150;
/** The longest TTL that is tried for a lock that its library extends. */
const TTL_MS_MAX = 8000;
const TICK_MS = 20;

interface Scene<Handle> {
  readonly observer: RespConnection;
  readonly first: LockDriver<Handle>;
  readonly second: LockDriver<Handle>;
}

export function testLockLibrary<Handle>({ keyOf, open, bearsRestart = true }: LockLibrary<Handle>): void {
  const servers = useServers("suite");
  let server: Server;
  beforeAll(async () => {
    server = await servers.start();
  });

  const onServer = async (play: (scene: Scene<Handle>) => Promise<void>): Promise<void> => {
    const observer = await server.connect();
    await observer.call("FLUSHALL");
    const [first, second] = [await open(server.port), await open(server.port)];
    try {
      await play({ observer, first, second });
    } finally {
      await Promise.allSettled([first.close(), second.close()]);
    }
  };

  const mustAcquire = async (driver: LockDriver<Handle>, resource: string, ttlMs: number): Promise<Handle> => {
    const handle = await driver.acquire(resource, ttlMs);
    if (handle === null) throw new Error(`${resource} is free, and was not acquired`);
    return handle;
  };

  /** A slow machine may take longer to hear of the lock than the lock lasts: then the library says that it was not acquired. */
  const acquireShortly = (driver: LockDriver<Handle>, resource: string): Promise<Handle> =>
    until("a short lock", () => driver.acquire(resource, SHORT_MS));

  const gone = (observer: RespConnection, resource: string): Promise<unknown> =>
    until("the lock to expire", async () => (await observer.call("EXISTS", keyOf(resource))) === 0);

  test("one holder at a time; released, it is free for the next", () =>
    onServer(async ({ observer, first, second }) => {
      const held = await mustAcquire(first, "a", LONG_MS);
      const leftMs = Number(await observer.call("PTTL", keyOf("a")));
      expect(leftMs).toBeGreaterThan(LONG_MS / 2);
      expect(leftMs).toBeLessThanOrEqual(LONG_MS);
      expect(await second.acquire("a", LONG_MS)).toBeNull();
      const other = await mustAcquire(second, "b", LONG_MS);
      expect(await first.release(held)).not.toBe(false);
      expect(await observer.call("EXISTS", keyOf("a"), keyOf("b"))).toBe(1);
      const next = await mustAcquire(second, "a", LONG_MS);
      expect(await second.release(next)).not.toBe(false);
      expect(await second.release(other)).not.toBe(false);
    }));

  test("one that expired is another's: its first holder releases nothing", () =>
    onServer(async ({ observer, first, second }) => {
      const expired = await acquireShortly(first, "a");
      await gone(observer, "a");
      const held = await mustAcquire(second, "a", LONG_MS);
      const value = await observer.call("GET", keyOf("a"));
      expect(await first.release(expired)).not.toBe(true);
      expect(await observer.call("GET", keyOf("a"))).toBe(value);
      expect(await second.release(held)).not.toBe(false);
    }));

  test("extended, it has the new time; after its end it is not revived", () =>
    onServer(async ({ observer, first, second }) => {
      if (first.extend === null) return;
      const held = await mustAcquire(first, "a", 30_000);
      expect(await first.extend(held, LONG_MS)).toBe(true);
      expect(Number(await observer.call("PTTL", keyOf("a")))).toBeGreaterThan(30_000);
      const expired = await acquireShortly(first, "b");
      await gone(observer, "b");
      expect(await first.extend(expired, LONG_MS)).toBe(false);
      expect(await observer.call("EXISTS", keyOf("b"))).toBe(0);
      const taken = await mustAcquire(second, "b", LONG_MS);
      const value = await observer.call("GET", keyOf("b"));
      expect(await first.extend(expired, 2 * LONG_MS)).toBe(false);
      expect(await observer.call("GET", keyOf("b"))).toBe(value);
      expect(Number(await observer.call("PTTL", keyOf("b")))).toBeLessThanOrEqual(LONG_MS);
      expect(await second.release(taken)).not.toBe(false);
    }));

  test("held by its own extension over five TTLs", () =>
    onServer(async (scene) => {
      if (scene.first.holdWhile === undefined) return;
      for (let ttlMs = 1000; ; ttlMs *= 2) {
        await scene.observer.call("FLUSHALL");
        const { refusals, loss, stallMs } = await holdOver(scene.first.holdWhile, scene, keyOf("a"), 5 * ttlMs, ttlMs);
        if (loss === null) {
          expect(refusals).toBeGreaterThan(5);
          break;
        }
        // a machine that stood still while it should have been extended: with a TTL that outlasts that, it has to be held
        if (stallMs < ttlMs / 20 || ttlMs >= TTL_MS_MAX) throw loss;
      }
      await until("the lock to be free", async () => (await scene.observer.call("EXISTS", keyOf("a"))) === 0);
    }));

  test.runIf(bearsRestart)("held through kill -9 of the server, by its holder alone", () =>
    onServer(async ({ observer, first, second }) => {
      const held = await mustAcquire(first, "a", LONG_MS);
      const released = await mustAcquire(first, "b", LONG_MS);
      expect(await first.release(released)).not.toBe(false);
      const value = await observer.call("GET", keyOf("a"));
      await server.kill();
      server = await servers.start({ dir: server.dir, args: ["--port", String(server.port)] });
      const witness = await server.connect();
      expect(await witness.call("GET", keyOf("a"))).toBe(value);
      expect(await witness.call("EXISTS", keyOf("b"))).toBe(0);
      expect(await second.acquire("a", LONG_MS)).toBeNull();
      if (first.extend !== null) expect(await first.extend(held, 2 * LONG_MS)).toBe(true);
      expect(await first.release(held)).not.toBe(false);
      const next = await mustAcquire(second, "a", LONG_MS);
      expect(await second.release(next)).not.toBe(false);
    }),
  );
}

interface Hold {
  readonly refusals: number;
  /** Why it counts as lost; null: held all the time. */
  readonly loss: Error | null;
  /** The longest time for which this process, or an answer of the server, was overdue meanwhile. */
  readonly stallMs: number;
}

/** Holds resource "a" for a time under the library's own extension, with another asking for it again and again. */
async function holdOver<Handle>(
  holdWhile: NonNullable<LockDriver<Handle>["holdWhile"]>,
  { observer, second }: Scene<Handle>,
  key: string,
  durationMs: number,
  ttlMs: number,
): Promise<Hold> {
  let refusals = 0;
  let stallMs = 0;
  let lastTickMs = nowMs();
  const tick = (): void => {
    stallMs = Math.max(stallMs, nowMs() - lastTickMs - TICK_MS);
    lastTickMs = nowMs();
  };
  const ticker = setInterval(tick, TICK_MS);
  const timed = async <T>(answer: Promise<T>): Promise<T> => {
    const sentMs = nowMs();
    const value = await answer;
    stallMs = Math.max(stallMs, nowMs() - sentMs);
    return value;
  };
  const contend = async (): Promise<void> => {
    const value = await timed(observer.call("GET", key));
    if (value === null) throw new Error("not there when the work began");
    for (const endMs = nowMs() + durationMs; nowMs() < endMs; await letPass(50)) {
      if ((await timed(second.acquire("a", ttlMs))) !== null) throw new Error("another got it");
      if ((await timed(observer.call("GET", key))) !== value)
        throw new Error("it does not stand under its value any more");
      refusals += 1;
    }
  };
  try {
    await holdWhile("a", ttlMs, contend);
    return { refusals, loss: null, stallMs };
  } catch (error) {
    tick();
    return { refusals, loss: error instanceof Error ? error : new Error(String(error)), stallMs };
  } finally {
    clearInterval(ticker);
  }
}

/** What `attempt` resolves with; null when it rejects with an error that `isRefusal` knows. Others are passed on. */
export async function gotten<T>(attempt: PromiseLike<T>, isRefusal: (error: Error) => boolean): Promise<T | null> {
  try {
    return await attempt;
  } catch (error) {
    if (error instanceof Error && isRefusal(error)) return null;
    throw error;
  }
}

/** Whether `attempt` is not refused so. */
export const succeeds = async (attempt: PromiseLike<unknown>, isRefusal: (error: Error) => boolean): Promise<boolean> =>
  (await gotten(
    attempt.then(() => true),
    isRefusal,
  )) ?? false;
