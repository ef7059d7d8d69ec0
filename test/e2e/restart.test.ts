import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { nowMs, until } from "../support/poll.js";
import { fields, type RespConnection } from "../support/resp-client.js";
import { useServers, type Server } from "../support/server.js";
import { describeWith } from "../support/tools.js";

/** What a process inherits from the one before it: every lease with its full durable TTL, by its own clock. */

const servers = useServers();

const ENDINGS: readonly [string, (server: Server) => Promise<unknown>][] = [
  ["a graceful stop", async (server) => server.stop()],
  ["kill -9", async (server) => server.kill()],
];

/** PTTL of a lease that must be alive. */
async function leftMs(client: RespConnection, id: string): Promise<number> {
  const left = await client.call("LEASE.PTTL", id);
  if (typeof left !== "number") expect.fail(`PTTL answered ${JSON.stringify(left)}`);
  return left;
}

describe.each(ENDINGS)("after %s", (_name, end) => {
  test("every lease has its full TTL again, with its keys, and never more than that", async () => {
    const first = await servers.start();
    const before = await first.connect();
    await before.call("LEASE.GRANT", "a", "PX", 60_000, "KEY", "k", "v", "LABEL", "kept");
    await before.call("LEASE.GRANT", "longer", "PX", 1000);
    await before.call("LEASE.SETTTL", "longer", "PX", 80_000);
    await before.call("LEASE.GRANT", "shorter", "PX", 90_000);
    await before.call("LEASE.SETTTL", "shorter", "PX", 30_000);
    await before.call("LEASE.GRANT", "revoked", 60, "KEY", "gone", "v");
    await before.call("LEASE.REVOKE", "revoked");
    await until("some of the TTL to pass", async () => (await leftMs(before, "a")) < 59_500);
    await end(first);

    const launchedMs = nowMs();
    const second = await servers.start({ dir: first.dir });
    const after = await second.connect();
    for (const [id, ttlMs] of [["a", 60_000] as const, ["longer", 80_000] as const, ["shorter", 90_000] as const]) {
      const left = await leftMs(after, id);
      expect(left, id).toBeLessThanOrEqual(ttlMs);
      expect(left, id).toBeGreaterThanOrEqual(ttlMs - Math.ceil(nowMs() - launchedMs));
    }
    expect(await after.send("GET", "k")).toBe("v");
    expect(fields(await after.send("LEASE.INFO", "a")).get("label")).toBe("kept");
    expect(await after.send("LEASE.PTTL", "revoked")).toBe(-2);
    expect(await after.send("EXISTS", "gone")).toBe(0);
    expect(await after.send("LEASE.KEEPALIVE", "a")).toBe(60_000);
  });

  test("ids and tokens are never given a second time", async () => {
    const dir = servers.directory();
    const tokens: number[] = [];
    const ids: string[] = [];
    for (let round = 0; round < 3; round++) {
      const server = await servers.start({ dir });
      const client = await server.connect();
      for (let index = 0; index < 20; index++) {
        const reply = await client.call("LEASE.GRANT", "*", 60, "KEY", `k-${round}-${index}`, "v");
        const [id, , token] = reply as [string, number, number];
        ids.push(id);
        tokens.push(token);
        if (index % 2 === 0) await client.call("LEASE.REVOKE", id);
      }
      await end(server);
    }
    expect(new Set(ids).size).toBe(60);
    expect(tokens).toEqual(tokens.toSorted((a, b) => a - b));
    expect(new Set(tokens).size).toBe(60);
  });

  test("a retried request still gets its first reply", async () => {
    const first = await servers.start();
    const reply = await (await first.connect()).call("LEASE.GRANT", "*", 60, "KEY", "k", "v", "REQUEST", "nonce");
    await end(first);
    const second = await servers.start({ dir: first.dir });
    expect(await (await second.connect()).call("LEASE.GRANT", "*", 60, "KEY", "k", "v", "REQUEST", "nonce")).toEqual(
      reply,
    );
  });

  test("an inherited lease that nobody renews ends, one TTL after the start and no sooner", async () => {
    const first = await servers.start();
    await (await first.connect()).call("LEASE.GRANT", "a", "PX", 1500, "KEY", "k", "v");
    await end(first);
    const launchedMs = nowMs();
    const second = await servers.start({ dir: first.dir });
    const client = await second.connect();
    expect(await client.send("GET", "k")).toBe("v");
    await until("the inherited lease to end", async () => (await client.send("EXISTS", "k")) === 0);
    expect(nowMs() - launchedMs).toBeGreaterThanOrEqual(1500);
    expect(await client.send("LEASE.PTTL", "a")).toBe(-2);
  });
});

test("leases that were granted together do not fall due together after a restart", async () => {
  const TTL_MS = 20_000;
  const first = await servers.start();
  const ids = Array.from({ length: 2000 }, (_, index) => `herd-${index}`);
  const before = await first.connect();
  await before.pipeline(ids.map((id) => ["LEASE.GRANT", id, "PX", TTL_MS]));
  await before.pipeline(ids.map((id) => ["LEASE.KEEPALIVE", id]));
  await first.stop();
  const client = await (await servers.start({ dir: first.dir })).connect();
  // an answer never shows more than the TTL: what a lease got on top of it must have passed before the answers differ
  const left = await until("the time on top of the TTL to pass", async () => {
    const replies = await client.pipeline(ids.map((id) => ["LEASE.PTTL", id]));
    return replies.every((ms) => Number(ms) < TTL_MS) && replies;
  });
  const times = left.map(Number);
  expect(Math.min(...times)).toBeGreaterThan(0);
  // neighbours in a pipeline are answered within microseconds: what differs by more was given differently
  const apart = times.filter((ms, index) => Math.abs(ms - (times[index + 1] ?? ms)) > 100);
  expect(apart.length).toBeGreaterThan(ids.length / 2);
});

describeWith(["time-namespace"], "a clock that starts elsewhere", () => {
  const HOUR_SECONDS = 3600;
  const inNamespace = (offsetSeconds: number): string[] => [
    "unshare",
    "--time",
    "--monotonic",
    String(offsetSeconds),
    "--boottime",
    String(offsetSeconds),
  ];

  test.each([
    ["ahead", 0, 1000 * HOUR_SECONDS],
    ["behind", 1000 * HOUR_SECONDS, 0],
    ["far behind", 100_000 * HOUR_SECONDS, HOUR_SECONDS],
  ])("the next process's monotonic clock is %s of the last one's", async (_name, firstSeconds, secondSeconds) => {
    const first = await servers.start({ wrap: inNamespace(firstSeconds) });
    const before = await first.connect();
    await before.call("LEASE.GRANT", "long", "PX", 60_000, "KEY", "k", "v");
    await before.call("LEASE.GRANT", "short", "PX", 1000);
    await first.kill();
    const launchedMs = nowMs();
    const second = await servers.start({ dir: first.dir, wrap: inNamespace(secondSeconds) });
    const client = await second.connect();
    const left = await leftMs(client, "long");
    expect(left).toBeLessThanOrEqual(60_000);
    expect(left).toBeGreaterThanOrEqual(60_000 - Math.ceil(nowMs() - launchedMs));
    await until("the short lease to end", async () => (await client.send("LEASE.PTTL", "short")) === -2);
    expect(nowMs() - launchedMs).toBeGreaterThanOrEqual(1000);
    expect(await client.send("LEASE.KEEPALIVE", "long")).toBe(60_000);
  });
});

test("after a restore from a backup no token is given again: --token-min, once", async () => {
  const dir = join(servers.directory(), "data");
  const first = await servers.start({ dir });
  const before = await first.connect();
  await before.call("LEASE.GRANT", "a", 600);
  expect(await before.call("LOCK.ACQUIRE", "k", "a")).toBeLessThan(5000);
  await first.stop();
  const restored = await servers.start({ dir, args: ["--token-min", "5000"] });
  const client = await restored.connect();
  expect(await client.call("LEASE.GRANT", "b", 600)).toStrictEqual(["b", 600_000, 5001]);
  expect(await client.call("LOCK.ACQUIRE", "k2", "b")).toBe(5002);
  await restored.kill();
  const later = await servers.start({ dir });
  expect(await (await later.connect()).call("LOCK.ACQUIRE", "k3", "b")).toBe(5003);
});
