import redisLock from "redis-lock";
import { createClient } from "redis4";
import { expect, test } from "vitest";
import { until } from "../../support/poll.js";
import { textOf } from "../../support/resp-client.js";
import { useServers } from "../../support/server.js";

/**
 * redis-lock 1.0.0 over node-redis 4. It only knows waiting: what asks for a lock asks until it has it. It extends nothing, and judges
 * by its own clock whether a lock is still its own to release.
 */

const LONG_MS = 120_000;
const RETRY_MS = 20;

const servers = useServers();

async function connect(port: number): Promise<{ lock: ReturnType<typeof redisLock>; close: () => Promise<void> }> {
  const client = createClient({ socket: { host: "127.0.0.1", port, reconnectStrategy: () => RETRY_MS } });
  client.on("error", () => {
    // the server is away for a while: its commands wait
  });
  await client.connect();
  return { lock: redisLock(client, RETRY_MS), close: () => client.disconnect() };
}

test("one holder at a time; who waits gets it when it is released, through kill -9 of the server too", async () => {
  let server = await servers.start();
  const [first, second] = [await connect(server.port), await connect(server.port)];
  const release = await first.lock("a", LONG_MS);
  const before = await server.connect();
  const value = await before.call("GET", "lock.a");
  expect(Number(await before.call("PTTL", "lock.a"))).toBeGreaterThan(LONG_MS / 2);

  const log: string[] = [];
  const waiting = second.lock("a", LONG_MS).then((releaseSecond) => {
    log.push("second has it");
    return releaseSecond;
  });
  await server.kill();
  server = await servers.start({ dir: server.dir, args: ["--port", String(server.port)] });
  const witness = await server.connect();
  // the contender is back, and has been refused
  await until("both to be connected again", async () =>
    /(name=.*\n.*){3}/.test(textOf(await witness.call("CLIENT", "LIST"))),
  );
  expect(await witness.call("GET", "lock.a")).toBe(value);
  expect(log).toEqual([]);

  log.push("first releases");
  await release();
  const releaseSecond = await waiting;
  expect(log).toEqual(["first releases", "second has it"]);
  await releaseSecond();
  expect(await witness.call("EXISTS", "lock.a")).toBe(0);
  await Promise.all([first.close(), second.close()]);
});

test("one that expired is not released when another has it", async () => {
  const server = await servers.start();
  const [first, second] = [await connect(server.port), await connect(server.port)];
  const observer = await server.connect();
  const releaseExpired = await first.lock("a", 150);
  const release = await second.lock("a", LONG_MS);
  const value = await observer.call("GET", "lock.a");
  // it has the end by its own clock, which may be a little later than the server's
  await until("the first to believe so too", () => Date.now() > Number(value) - LONG_MS + 200);
  await releaseExpired();
  expect(await observer.call("GET", "lock.a")).toBe(value);
  await release();
  await Promise.all([first.close(), second.close()]);
});
