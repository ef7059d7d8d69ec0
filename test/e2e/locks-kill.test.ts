import { expect, test } from "vitest";
import { LockWorkload } from "../support/lock-workload.js";
import { until } from "../support/poll.js";
import { fields } from "../support/resp-client.js";
import { useServers } from "../support/server.js";
import type { Target } from "../support/workload.js";

/**
 * kill -9 in the middle of lock traffic, again and again: what clients were told of each key before and after, all of it together, can
 * be put into one order in which every answer is the right one. So an acknowledged lock is held after the restart by the same
 * lease under the same token, an acknowledged release stays released, and no key is held twice.
 */

const ROUNDS = 4;
/** How long a load may take on a crowded machine. */
const LOAD_MS_MAX = 90_000;

const servers = useServers();

test(`locks and plain keys over ${ROUNDS} times kill -9 are linearizable`, async () => {
  const target: Target = { port: null };
  const load = new LockWorkload(target);
  const dir = servers.directory();
  for (let round = 0; round < ROUNDS; round++) {
    const server = await servers.start({ dir });
    const before = load.history.answers;
    target.port = server.port;
    await until("lock traffic", () => load.history.answers >= before + 150, LOAD_MS_MAX);
    await server.kill();
    target.port = null;
    load.history.restart();
  }
  await load.stop();
  const last = await servers.start({ dir });
  expect(await load.judge(await last.connect())).toEqual([]);
  expect(load.history.answers).toBeGreaterThan(150 * ROUNDS);
});

test("who holds a lock holds it after kill -9, under the same token; who gave it back does not", async () => {
  const server = await servers.start();
  const client = await server.connect();
  await client.pipeline([
    ["LEASE.GRANT", "holder", 3600],
    ["LEASE.GRANT", "other", 3600],
  ]);
  const token = await client.call("LOCK.ACQUIRE", "kept", "holder");
  await client.call("LOCK.ACQUIRE", "given-back", "holder");
  // The next in the queue has it in the same breath.
  const waiting = (await server.connect()).call("LOCK.ACQUIRE", "given-back", "other", "BLOCK", 0);
  await until("a waiter", async () => {
    const waiters = fields(await client.call("LOCK.INFO", "given-back")).get("waiters");
    return Array.isArray(waiters) && waiters.length > 0;
  });
  expect(await client.call("LOCK.RELEASE", "given-back", "holder")).toBe(1);
  const nextToken = await waiting;
  await server.kill();

  const again = await servers.start({ dir: server.dir });
  const reader = await again.connect();
  expect(await reader.call("LOCK.CHECK", "kept", Number(token))).toBe(1);
  expect(await reader.call("LOCK.ACQUIRE", "kept", "holder")).toBe(token);
  expect(await reader.call("LOCK.ACQUIRE", "kept", "other")).toBe(null);
  expect(await reader.call("LOCK.CHECK", "given-back", Number(nextToken))).toBe(1);
  expect(await reader.call("LOCK.RELEASE", "given-back", "holder")).toBe(0);
  expect(await reader.call("LOCK.ACQUIRE", "given-back", "other")).toBe(nextToken);
});
