import { describe, expect, test } from "vitest";
import { until } from "../support/poll.js";
import {
  NullArray,
  OK,
  RespError,
  Status,
  fields,
  type RespConnection,
  type RespValue,
} from "../support/resp-client.js";
import { useServers, type Server } from "../support/server.js";

/** Every LEASE command and the key commands, spoken to a real server, in both protocols. */

const servers = useServers("suite");
let shared: Promise<Server> | null = null;

/** A connection to the one server of this file, in a database emptied of keys and leases. */
async function fresh(protocol: 2 | 3): Promise<RespConnection> {
  shared ??= servers.start();
  const connection = await (await shared).connect({ protocol });
  expect(await connection.call("FLUSHALL")).toStrictEqual(OK);
  return connection;
}

function errorOf(value: RespValue): string {
  if (!(value instanceof RespError)) expect.fail(`not an error reply: ${JSON.stringify(value)}`);
  return value.text;
}

const isNil = (value: RespValue): boolean => value === null || value instanceof NullArray;

/** `[id, ttl ms, token]` of a grant that must have succeeded. */
function granted(reply: RespValue): { id: string; ttlMs: number; token: number } {
  const [id, ttlMs, token] = Array.isArray(reply) ? reply : [];
  if (typeof id !== "string" || typeof ttlMs !== "number" || typeof token !== "number") {
    expect.fail(`not a grant: ${JSON.stringify(reply)}`);
  }
  return { id, ttlMs, token };
}

describe.each([2, 3] as const)("leases over RESP%i", (protocol) => {
  test("a lease is granted, renewed, looked at, revoked, and its keys go with it", async () => {
    const client = await fresh(protocol);
    const grant = granted(await client.send("LEASE.GRANT", "a", 10, "KEY", "k1", "v1", "KEY", "k2", "v2"));
    expect(grant).toMatchObject({ id: "a", ttlMs: 10_000 });
    expect(grant.token).toBeGreaterThan(0);
    expect(await client.send("GET", "k1")).toBe("v1");
    expect(await client.send("LEASE.KEEPALIVE", "a")).toBe(10_000);
    const leftMs = await client.send("LEASE.PTTL", "a");
    expect(leftMs).toBeGreaterThan(0);
    expect(leftMs).toBeLessThanOrEqual(10_000);
    expect([9, 10]).toContain(await client.send("LEASE.TTL", "a"));
    expect(await client.send("LEASE.REVOKE", "a")).toBe(1);
    expect(await client.send("EXISTS", "k1", "k2")).toBe(0);
    expect(await client.send("LEASE.REVOKE", "a")).toBe(0);
    expect(await client.send("LEASE.TTL", "a")).toBe(-2);
    expect(await client.send("LEASE.PTTL", "a")).toBe(-2);
    expect(errorOf(await client.send("LEASE.KEEPALIVE", "a"))).toMatch(/^NOLEASE /);
  });

  test("command names are case-insensitive, ids are not", async () => {
    const client = await fresh(protocol);
    granted(await client.send("lease.Grant", "Id", "px", 60_000, "key", "k", "v"));
    expect(await client.send("LEASE.PTTL", "id")).toBe(-2);
    expect(await client.send("lEASE.kEEPALIVE", "Id")).toBe(60_000);
  });

  test("seconds, EX and PX name the TTL exactly", async () => {
    const client = await fresh(protocol);
    expect(granted(await client.send("LEASE.GRANT", "a", 7)).ttlMs).toBe(7000);
    expect(granted(await client.send("LEASE.GRANT", "b", "EX", 7)).ttlMs).toBe(7000);
    expect(granted(await client.send("LEASE.GRANT", "c", "PX", 7001)).ttlMs).toBe(7001);
    const longest = Number.MAX_SAFE_INTEGER;
    expect(granted(await client.send("LEASE.GRANT", "d", "PX", longest)).ttlMs).toBe(longest);
    expect(await client.send("LEASE.KEEPALIVE", "d")).toBe(longest);
  });

  const noTtls = ["0", "-1", "1.5", "10s", "", " 1", "0x10", "1e3", "9007199254740992", "99999999999999999999", "abc"];
  test.each(noTtls)("a TTL of '%s' is refused with its unit, and nothing changes", async (ttl) => {
    const client = await fresh(protocol);
    expect(errorOf(await client.send("LEASE.GRANT", "a", "PX", ttl, "KEY", "k", "v"))).toMatch(/^ERR .*milliseconds/);
    expect(errorOf(await client.send("LEASE.GRANT", "a", "EX", ttl))).toMatch(/^ERR .*seconds/);
    expect(errorOf(await client.send("LEASE.GRANT", "a", ttl))).toMatch(/^ERR .*seconds/);
    granted(await client.send("LEASE.GRANT", "live", "PX", 60_000));
    expect(errorOf(await client.send("LEASE.SETTTL", "live", "PX", ttl))).toMatch(/^ERR /);
    expect(await client.send("LEASE.KEEPALIVE", "live")).toBe(60_000);
    expect(await client.send("LEASE.PTTL", "a")).toBe(-2);
    expect(await client.send("EXISTS", "k")).toBe(0);
  });

  test("an id of the server's choice is new each time", async () => {
    const client = await fresh(protocol);
    const replies = await client.pipeline(Array.from({ length: 200 }, () => ["LEASE.GRANT", "*", 60]));
    const ids = new Set(replies.map((reply) => granted(reply).id));
    expect(ids.size).toBe(200);
  });

  test("a key that another lease holds refuses the whole grant", async () => {
    const client = await fresh(protocol);
    const first = granted(await client.send("LEASE.GRANT", "a", 60, "KEY", "k", "1"));
    const refused = await client.send("LEASE.GRANT", "b", 60, "KEY", "free", "2", "KEY", "k", "2");
    expect(isNil(refused)).toBe(true);
    expect(await client.send("LEASE.PTTL", "b")).toBe(-2);
    expect(await client.send("EXISTS", "free")).toBe(0);
    expect(await client.send("LEASE.REVOKE", "a")).toBe(1);
    const second = granted(await client.send("LEASE.GRANT", "b", 60, "KEY", "k", "2"));
    expect(second.token).toBeGreaterThan(first.token);
  });

  test("an id that is alive is refused, but the same request gets the first reply again", async () => {
    const client = await fresh(protocol);
    const first = granted(await client.send("LEASE.GRANT", "a", 60, "KEY", "k", "v", "REQUEST", "nonce-1"));
    expect(granted(await client.send("LEASE.GRANT", "a", 60, "KEY", "k", "v", "REQUEST", "nonce-1"))).toEqual(first);
    expect(errorOf(await client.send("LEASE.GRANT", "a", 60, "REQUEST", "nonce-2"))).toMatch(/^LEASEEXISTS /);
    expect(errorOf(await client.send("LEASE.GRANT", "a", 60))).toMatch(/^LEASEEXISTS /);
    const chosen = granted(await client.send("LEASE.GRANT", "*", 60, "REQUEST", "nonce-3"));
    expect(granted(await client.send("LEASE.GRANT", "*", 60, "REQUEST", "nonce-3"))).toEqual(chosen);
  });

  test("one dead lease does not disturb the others in one keep-alive", async () => {
    const client = await fresh(protocol);
    await client.call("LEASE.GRANT", "a", "PX", 50_000);
    await client.call("LEASE.GRANT", "b", "PX", 60_000);
    expect(await client.send("LEASE.KEEPALIVE", "a", "none", "b")).toEqual([50_000, -2, 60_000]);
    expect(await client.send("LEASE.REVOKE", "a", "none", "b")).toBe(2);
  });

  test("the TTL can be made longer and shorter", async () => {
    const client = await fresh(protocol);
    await client.call("LEASE.GRANT", "a", "PX", 10_000);
    expect(await client.send("LEASE.SETTTL", "a", "PX", 90_000)).toBe(90_000);
    expect(await client.send("LEASE.KEEPALIVE", "a")).toBe(90_000);
    expect(await client.send("LEASE.SETTTL", "a", "PX", 5000)).toBe(5000);
    expect(await client.send("LEASE.KEEPALIVE", "a")).toBe(5000);
    expect(errorOf(await client.send("LEASE.SETTTL", "none", 5))).toMatch(/^NOLEASE /);
  });

  test("keys are attached, updated, taken by force and detached", async () => {
    const client = await fresh(protocol);
    await client.pipeline([
      ["LEASE.GRANT", "a", 60],
      ["LEASE.GRANT", "b", 60],
    ]);
    const token = await client.call("LEASE.ATTACH", "a", "k", "1");
    expect(token).toBeGreaterThan(0);
    expect(await client.send("LEASE.ATTACH", "a", "k", "1")).toBe(token);
    expect(await client.send("LEASE.ATTACH", "a", "k", "2")).toBe(token);
    expect(await client.send("GET", "k")).toBe("2");
    expect(isNil(await client.send("LEASE.ATTACH", "b", "k", "3"))).toBe(true);
    expect(await client.send("LEASE.DETACH", "b", "k")).toBe(0);
    expect(await client.send("GET", "k")).toBe("2");
    expect(await client.call("LEASE.ATTACH", "b", "k", "4", "FORCE")).toBeGreaterThan(Number(token));
    expect(await client.send("GET", "k")).toBe("4");
    expect(await client.send("LEASE.DETACH", "b", "k", "absent")).toBe(1);
    expect(isNil(await client.send("GET", "k"))).toBe(true);
    expect(errorOf(await client.send("LEASE.ATTACH", "none", "k", "1"))).toMatch(/^NOLEASE /);
  });

  test("a lease can be described, also for a while after its end", async () => {
    const client = await fresh(protocol);
    const grant = granted(await client.send("LEASE.GRANT", "a", 60, "KEY", "k", "v", "LABEL", "nightly job"));
    const alive = fields(await client.send("LEASE.INFO", "a"));
    expect(alive.get("id")).toBe("a");
    expect(alive.get("ttl")).toBe(60_000);
    expect(alive.get("remaining")).toBeLessThanOrEqual(60_000);
    expect(alive.get("token")).toBe(grant.token);
    expect(alive.get("label")).toBe("nightly job");
    expect(JSON.stringify(alive.get("keys"))).toContain("k");
    await client.call("LEASE.REVOKE", "a");
    const ended = fields(await client.send("LEASE.INFO", "a"));
    expect(ended.get("state")).toBe("ended");
    expect(ended.get("reason")).toBe("revoked");
    expect(isNil(await client.send("LEASE.INFO", "never"))).toBe(true);
  });

  test("a scan finds every lease that is there from start to end", async () => {
    const client = await fresh(protocol);
    await client.pipeline(Array.from({ length: 500 }, (_, index) => ["LEASE.GRANT", `job-${index}`, 60]));
    await client.call("LEASE.GRANT", "other", 60);
    expect(await scanAll(client, ["LEASE.SCAN"], [])).toHaveLength(501);
    const jobs = await scanAll(client, ["LEASE.SCAN"], ["MATCH", "job-*", "COUNT", 7]);
    expect(new Set(jobs).size).toBe(500);
    expect(jobs).not.toContain("other");
  });

  test("ids, keys and values are bytes", async () => {
    const client = await fresh(protocol);
    const everyByte = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));
    const text = everyByte.toString("latin1");
    expect(granted(await client.send("LEASE.GRANT", everyByte, 60, "KEY", everyByte, everyByte)).id).toBe(text);
    expect(await client.send("LEASE.KEEPALIVE", everyByte)).toBe(60_000);
    expect(await client.send("GET", everyByte)).toBe(text);
    expect(await scanAll(client, ["LEASE.SCAN"], [])).toEqual([text]);
    expect(await client.send("LEASE.REVOKE", everyByte)).toBe(1);
    expect(errorOf(await client.send("LEASE.KEEPALIVE", Buffer.from("\r\n-OK\r\n")))).not.toMatch(/[\r\n]/);
  });

  test("an id of 256 bytes is taken, one of 257 and an empty one are not", async () => {
    const client = await fresh(protocol);
    granted(await client.send("LEASE.GRANT", "x".repeat(256), 60));
    expect(errorOf(await client.send("LEASE.GRANT", "x".repeat(257), 60))).toMatch(/^ERR .*256/);
    expect(errorOf(await client.send("LEASE.GRANT", "", 60))).toMatch(/^ERR /);
  });
});

async function scanAll(client: RespConnection, command: string[], options: (string | number)[]): Promise<string[]> {
  const found: string[] = [];
  let cursor = "0";
  do {
    const reply = await client.call(...command, cursor, ...options);
    const [next, page] = Array.isArray(reply) ? reply : [];
    if (typeof next !== "string" || !Array.isArray(page)) expect.fail(`not a scan: ${JSON.stringify(reply)}`);
    found.push(...page.map(String));
    cursor = next;
  } while (cursor !== "0");
  return found;
}

describe.each([2, 3] as const)("keys over RESP%i", (protocol) => {
  test("keys answer as Redis's do", async () => {
    const client = await fresh(protocol);
    await client.call("LEASE.GRANT", "a", 60, "KEY", "k1", "v1", "KEY", "k2", "v2");
    expect(await client.send("EXISTS", "k1", "k1", "none")).toBe(2);
    expect(await client.send("TYPE", "k1")).toStrictEqual(new Status("string"));
    expect(await client.send("TYPE", "none")).toStrictEqual(new Status("none"));
    expect([59, 60]).toContain(await client.send("TTL", "k1"));
    expect(await client.send("PTTL", "k1")).toBeLessThanOrEqual(60_000);
    expect(await client.send("TTL", "none")).toBe(-2);
    expect(await client.send("DBSIZE")).toBe(2);
    expect(new Set((await client.send("KEYS", "k*")) as string[])).toEqual(new Set(["k1", "k2"]));
    expect(new Set(await scanAll(client, ["SCAN"], ["MATCH", "*1"]))).toEqual(new Set(["k1"]));
    expect(["k1", "k2"]).toContain(await client.send("RANDOMKEY"));
    expect(await client.send("DEL", "k1", "none")).toBe(1);
    expect(await client.send("LEASE.PTTL", "a")).toBeGreaterThan(0);
    expect(isNil(await client.send("GET", "k1"))).toBe(true);
  });

  test("keys belong to a database, lease ids to the whole server", async () => {
    const client = await fresh(protocol);
    await client.call("LEASE.GRANT", "a", 60, "KEY", "k", "zero");
    await client.call("SELECT", 3);
    expect(await client.send("LEASE.PTTL", "a")).toBeGreaterThan(0);
    expect(await client.send("EXISTS", "k")).toBe(0);
    await client.call("LEASE.ATTACH", "a", "k", "three");
    expect(await client.send("GET", "k")).toBe("three");
    expect(errorOf(await client.send("SELECT", 16))).toMatch(/^ERR DB index is out of range/);
    await client.call("FLUSHDB");
    expect(await client.send("DBSIZE")).toBe(0);
    await client.call("SELECT", 0);
    expect(await client.send("GET", "k")).toBe("zero");
    expect(await client.send("LEASE.KEEPALIVE", "a")).toBe(60_000);
    await client.call("FLUSHALL");
    expect(await client.send("LEASE.PTTL", "a")).toBe(-2);
    expect(await client.send("EXISTS", "k")).toBe(0);
  });

  test("tokens go on counting over FLUSHALL", async () => {
    const client = await fresh(protocol);
    const before = granted(await client.send("LEASE.GRANT", "a", 60, "KEY", "k", "v"));
    await client.call("FLUSHALL");
    expect(granted(await client.send("LEASE.GRANT", "a", 60, "KEY", "k", "v")).token).toBeGreaterThan(before.token);
  });
});

test("without keep-alives the lease and its keys go, with them it stays", async () => {
  const client = await fresh(2);
  await client.call("LEASE.GRANT", "renewed", "PX", 1000, "KEY", "k1", "v");
  await client.call("LEASE.GRANT", "left", "PX", 1000, "KEY", "k2", "v");
  let renewals = 0;
  await until("the lease that is not renewed to end", async () => {
    expect(await client.send("LEASE.KEEPALIVE", "renewed")).toBe(1000);
    renewals++;
    return (await client.send("LEASE.PTTL", "left")) === -2;
  });
  expect(renewals).toBeGreaterThan(1);
  expect(await client.send("EXISTS", "k1", "k2")).toBe(1);
  expect(await client.send("GET", "k1")).toBe("v");
});
