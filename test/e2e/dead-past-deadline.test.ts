import { expect, test } from "vitest";
import { letPassUntil, nowMs } from "../support/poll.js";
import { NullArray, RespError, fields, type Argument, type RespValue } from "../support/resp-client.js";
import { useServers } from "../support/server.js";

/**
 * A lease is dead from its deadline on for every command. The server is frozen while the commands arrive, and goes on only
 * after the deadline: a keep-alive that was sent in time but is read too late must not revive anything.
 */

const servers = useServers();
const isNil = (value: RespValue): boolean => value === null || value instanceof NullArray;
const isNoLease = (value: RespValue): boolean => value instanceof RespError && value.code === "NOLEASE";
const TTL_MS = 1500;

interface Row {
  readonly name: string;
  readonly command: (id: string, key: string) => Argument[];
  readonly saysDead: (reply: RespValue, id: string) => boolean;
}

const ROWS: readonly Row[] = [
  { name: "LEASE.KEEPALIVE", command: (id) => ["LEASE.KEEPALIVE", id], saysDead: isNoLease },
  {
    name: "LEASE.KEEPALIVE of several",
    command: (id) => ["LEASE.KEEPALIVE", id, "none"],
    saysDead: (reply) => Array.isArray(reply) && reply[0] === -2,
  },
  { name: "LEASE.TTL", command: (id) => ["LEASE.TTL", id], saysDead: (reply) => reply === -2 },
  { name: "LEASE.PTTL", command: (id) => ["LEASE.PTTL", id], saysDead: (reply) => reply === -2 },
  { name: "LEASE.SETTTL", command: (id) => ["LEASE.SETTTL", id, 60], saysDead: isNoLease },
  { name: "LEASE.SETTTL shorter", command: (id) => ["LEASE.SETTTL", id, "PX", 1], saysDead: isNoLease },
  { name: "LEASE.ATTACH", command: (id) => ["LEASE.ATTACH", id, `${id}-new`, "v"], saysDead: isNoLease },
  { name: "LEASE.ATTACH again", command: (id, key) => ["LEASE.ATTACH", id, key, "v"], saysDead: isNoLease },
  {
    name: "LEASE.DETACH",
    command: (id, key) => ["LEASE.DETACH", id, key],
    saysDead: (reply) => reply === 0 || isNoLease(reply),
  },
  { name: "LEASE.REVOKE", command: (id) => ["LEASE.REVOKE", id], saysDead: (reply) => reply === 0 },
  {
    name: "LEASE.INFO",
    command: (id) => ["LEASE.INFO", id],
    saysDead: (reply) => isNil(reply) || fields(reply).get("reason") === "expired",
  },
  {
    name: "LEASE.GRANT of the same id",
    command: (id) => ["LEASE.GRANT", id, 60],
    saysDead: (reply, id) => Array.isArray(reply) && reply[0] === id,
  },
  {
    name: "LEASE.GRANT of its key",
    command: (id, key) => ["LEASE.GRANT", `${id}-next`, 60, "KEY", key, "v"],
    saysDead: (reply, id) => Array.isArray(reply) && reply[0] === `${id}-next`,
  },
  {
    name: "LEASE.SCAN",
    command: (id) => ["LEASE.SCAN", 0, "MATCH", id, "COUNT", 10_000],
    saysDead: (reply) => Array.isArray(reply) && Array.isArray(reply[1]) && reply[1].length === 0,
  },
  { name: "GET", command: (_id, key) => ["GET", key], saysDead: isNil },
  { name: "EXISTS", command: (_id, key) => ["EXISTS", key], saysDead: (reply) => reply === 0 },
  { name: "DEL", command: (_id, key) => ["DEL", key], saysDead: (reply) => reply === 0 },
  { name: "TTL", command: (_id, key) => ["TTL", key], saysDead: (reply) => reply === -2 },
  { name: "PTTL", command: (_id, key) => ["PTTL", key], saysDead: (reply) => reply === -2 },
  {
    name: "KEYS",
    command: (_id, key) => ["KEYS", key],
    saysDead: (reply) => Array.isArray(reply) && reply.length === 0,
  },
  {
    name: "SCAN",
    command: (_id, key) => ["SCAN", 0, "MATCH", key, "COUNT", 10_000],
    saysDead: (reply) => Array.isArray(reply) && Array.isArray(reply[1]) && reply[1].length === 0,
  },
];

test("a command that is read after the deadline finds the lease dead, whichever command it is", async () => {
  const server = await servers.start();
  const clients = await Promise.all(ROWS.map(async () => server.connect()));
  const grantedMs = nowMs();
  await Promise.all(
    ROWS.map(async (_row, index) =>
      clients[index]?.call("LEASE.GRANT", `dead-${index}`, "PX", TTL_MS, "KEY", `key-${index}`, "v"),
    ),
  );
  await server.freeze();
  const replies = ROWS.map(async (row, index) => clients[index]?.send(...row.command(`dead-${index}`, `key-${index}`)));
  expect(nowMs() - grantedMs, "the commands were sent while the leases were alive").toBeLessThan(TTL_MS);
  await letPassUntil(nowMs() + TTL_MS + 100);
  server.thaw();
  for (const [index, row] of ROWS.entries()) {
    const reply = (await replies[index]) ?? null;
    expect(row.saysDead(reply, `dead-${index}`), `${row.name} answered ${JSON.stringify(reply)}`).toBe(true);
  }
  expect(await clients[0]?.send("LEASE.KEEPALIVE", "dead-0")).toBeInstanceOf(RespError);
});

test("DBSIZE and RANDOMKEY do not count the keys of a dead lease", async () => {
  const server = await servers.start();
  const client = await server.connect();
  await client.call("LEASE.GRANT", "a", "PX", 300, "KEY", "k", "v");
  await server.freeze();
  const replies = client.pipeline([["DBSIZE"], ["RANDOMKEY"], ["LEASE.KEEPALIVE", "a"]]);
  await letPassUntil(nowMs() + 400);
  server.thaw();
  const [size, key, renewal] = await replies;
  expect(size).toBe(0);
  expect(key).toBeNull();
  expect(renewal).toBeInstanceOf(RespError);
});
