import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { meanwhile, nowMs, until } from "../support/poll.js";
import { OK, RespError, type RespConnection } from "../support/resp-client.js";
import { info, infoNumber, useServers } from "../support/server.js";

/** What users of other lease services ran into, each pinned by the behaviour that is right. */

const servers = useServers();

/** Resident memory of a process in bytes. */
const residentBytes = (pid: number): number =>
  1024 * Number(/^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "latin1"))?.[1]);

describe("a grant that was answered", () => {
  test("is found by whatever follows in the same pipeline", async () => {
    const client = await (await servers.start()).connect();
    for (let round = 0; round < 100; round++) {
      const id = `lease-${round}`;
      const [granted, renewed, left, value] = await client.pipeline([
        ["LEASE.GRANT", id, "PX", 60_000, "KEY", `key-${round}`, "v"],
        ["LEASE.KEEPALIVE", id],
        ["LEASE.PTTL", id],
        ["GET", `key-${round}`],
      ]);
      expect(granted).toEqual([id, 60_000, expect.any(Number)]);
      expect(renewed).toBe(60_000);
      expect(left).toBeGreaterThan(0);
      expect(value).toBe("v");
    }
  });

  test("is found from every other connection at once", async () => {
    const server = await servers.start();
    const granter = await server.connect();
    const others = await Promise.all(Array.from({ length: 4 }, async () => server.connect()));
    for (let round = 0; round < 100; round++) {
      const id = `lease-${round}`;
      await granter.call("LEASE.GRANT", id, "PX", 60_000);
      expect(await Promise.all(others.map(async (other) => other.send("LEASE.KEEPALIVE", id)))).toEqual(
        others.map(() => 60_000),
      );
    }
  });

  test("shows nothing to others before it is answered, unless it is durable", async () => {
    const server = await servers.start();
    const granter = await server.connect();
    const reader = await server.connect();
    for (let round = 0; round < 100; round++) {
      const granted = granter.call("LEASE.GRANT", `lease-${round}`, 60, "KEY", `key-${round}`, "v");
      const seen = await reader.call("GET", `key-${round}`);
      expect([null, "v"]).toContain(seen);
      await granted;
      expect(await reader.call("GET", `key-${round}`)).toBe("v");
    }
  });
});

describe("floods", () => {
  test("early renewals of one lease leave nothing behind", async () => {
    const server = await servers.start();
    const client = await server.connect();
    await client.call("LEASE.GRANT", "a", "PX", 600_000);
    const flood = Array.from({ length: 10_000 }, () => ["LEASE.KEEPALIVE", "a"]);
    const renew = async (rounds: number): Promise<void> => {
      for (let round = 0; round < rounds; round++) await client.pipeline(flood);
    };
    await renew(20);
    const warmBytes = residentBytes(server.pid);
    await renew(60);
    expect(residentBytes(server.pid) - warmBytes).toBeLessThan(60 * 1_048_576);
    expect(await client.send("LEASE.KEEPALIVE", "a")).toBe(600_000);
  });

  test("leases granted and revoked before their time leave nothing behind", async () => {
    const server = await servers.start();
    const client = await server.connect();
    const churn = async (rounds: number): Promise<void> => {
      for (let round = 0; round < rounds; round++) {
        const ids = Array.from({ length: 1000 }, (_, index) => `churn-${round}-${index}`);
        await client.pipeline(ids.map((id) => ["LEASE.GRANT", id, 3600, "KEY", `key-${id}`, "v"]));
        const replies = await client.pipeline(ids.map((id) => ["LEASE.REVOKE", id]));
        expect(replies.every((reply) => reply === 1)).toBe(true);
      }
    };
    await churn(25);
    const warmBytes = residentBytes(server.pid);
    await churn(50);
    expect(residentBytes(server.pid) - warmBytes).toBeLessThan(120 * 1_048_576);
    expect(await infoNumber(client, "leases")).toBe(0);
    expect(await client.send("DBSIZE")).toBe(0);
  });

  test("thousands of expiries leave room for the commands of others", async () => {
    const server = await servers.start();
    const client = await server.connect();
    const other = await server.connect();
    await other.call("LEASE.GRANT", "other", "PX", 60_000);
    const count = 30_000;
    await client.pipeline(
      Array.from({ length: count }, (_, index) => [
        "LEASE.GRANT",
        `storm-${index}`,
        "PX",
        2000,
        "KEY",
        `k-${index}`,
        "v",
      ]),
    );
    let slowestMs = 0;
    await until("the storm to pass", async () => {
      const sentMs = nowMs();
      expect(await other.send("LEASE.KEEPALIVE", "other")).toBe(60_000);
      slowestMs = Math.max(slowestMs, nowMs() - sentMs);
      return (await other.send("DBSIZE")) === 0;
    });
    // generous: one turn that ends all of them at once would take longer
    expect(slowestMs).toBeLessThan(1000);
  });
});

describe("fat leases", () => {
  const KEYS = 100_000;

  async function attachMany(client: RespConnection, lease: string, count: number): Promise<void> {
    for (let from = 0; from < count; from += 5000) {
      const replies = await client.pipeline(
        Array.from({ length: 5000 }, (_, index) => ["LEASE.ATTACH", lease, `fat-${from + index}`, "v"]),
      );
      expect(replies.every((token) => typeof token === "number")).toBe(true);
    }
  }

  test("the revoke of a lease with 100,000 keys does not hold up the others", async () => {
    const server = await servers.start();
    const client = await server.connect();
    const other = await server.connect();
    await client.call("LEASE.GRANT", "fat", 3600);
    await other.call("LEASE.GRANT", "other", "PX", 60_000);
    await attachMany(client, "fat", KEYS);
    expect(await client.send("DBSIZE")).toBe(KEYS);
    let slowestMs = 0;
    const revoked = await meanwhile(client.call("LEASE.REVOKE", "fat"), async () => {
      const sentMs = nowMs();
      expect(await other.send("LEASE.KEEPALIVE", "other")).toBe(60_000);
      slowestMs = Math.max(slowestMs, nowMs() - sentMs);
    });
    expect(revoked).toBe(1);
    expect(slowestMs).toBeLessThan(2000);
    expect(await client.send("DBSIZE")).toBe(0);
  });

  test("reads go on while keys come and go", async () => {
    const server = await servers.start();
    const writer = await server.connect();
    const reader = await server.connect();
    await writer.call("LEASE.GRANT", "a", 3600);
    const storm = async (): Promise<void> => {
      for (let round = 0; round < 20; round++) {
        const keys = Array.from({ length: 200 }, (_, index) => `k-${index}`);
        await writer.pipeline(keys.map((key) => ["LEASE.ATTACH", "a", key, "v"]));
        await writer.pipeline(keys.map((key) => ["LEASE.DETACH", "a", key]));
      }
    };
    await meanwhile(storm(), async () => {
      const [, keys, size] = await reader.pipeline([["LEASE.INFO", "a"], ["KEYS", "*"], ["DBSIZE"]]);
      expect(Array.isArray(keys)).toBe(true);
      expect(size).toBeLessThanOrEqual(200);
    });
    expect(await reader.send("DBSIZE")).toBe(0);
  });
});

describe("what belongs to whom", () => {
  test("the end of a lease takes only what is still its own", async () => {
    const client = await (await servers.start()).connect();
    await client.call("LEASE.GRANT", "a", 60, "KEY", "k1", "a", "KEY", "k2", "a", "KEY", "k3", "a");
    await client.call("LEASE.GRANT", "b", 60);
    await client.call("LEASE.ATTACH", "b", "k1", "b", "FORCE");
    expect(await client.send("DEL", "k2")).toBe(1);
    await client.call("LEASE.ATTACH", "b", "k2", "b");
    expect(await client.send("LEASE.DETACH", "a", "k3")).toBe(1);
    await client.call("LEASE.ATTACH", "b", "k3", "b");
    expect(await client.send("LEASE.REVOKE", "a")).toBe(1);
    expect(
      await client.pipeline([
        ["GET", "k1"],
        ["GET", "k2"],
        ["GET", "k3"],
      ]),
    ).toEqual(["b", "b", "b"]);
    expect(await client.send("LEASE.REVOKE", "b")).toBe(1);
    expect(await client.send("DBSIZE")).toBe(0);
  });

  test("the same after a restart", async () => {
    const first = await servers.start();
    const before = await first.connect();
    await before.call("LEASE.GRANT", "a", 60, "KEY", "k1", "a", "KEY", "k2", "a");
    await before.call("LEASE.GRANT", "b", 60);
    await before.call("LEASE.ATTACH", "b", "k1", "b", "FORCE");
    await first.kill();
    const second = await servers.start({ dir: first.dir });
    const after = await second.connect();
    expect(await after.send("LEASE.REVOKE", "a")).toBe(1);
    expect(await after.send("GET", "k1")).toBe("b");
    expect(await after.send("EXISTS", "k2")).toBe(0);
  });
});

describe("limits", () => {
  test("when grants are refused, keep-alive, revoke, release and expiry go on", async () => {
    const server = await servers.start({ args: ["--leases-max", "3", "--keys-max", "3"] });
    const client = await server.connect();
    for (const [index, ttlMs] of [600, 60_000, 60_000].entries()) {
      await client.call("LEASE.GRANT", `a-${index}`, "PX", ttlMs, "KEY", `k-${index}`, "v");
    }
    expect(await client.send("LEASE.GRANT", "one-more", 60)).toMatchObject({ code: "OOM" });
    expect(await client.send("LEASE.ATTACH", "a-1", "one-more", "v")).toMatchObject({ code: "OOM" });
    expect(await client.send("LEASE.KEEPALIVE", "a-1")).toBe(60_000);
    expect(await client.send("LEASE.DETACH", "a-2", "k-2")).toBe(1);
    expect(await client.send("LEASE.REVOKE", "a-1")).toBe(1);
    await until("the short lease to end", async () => (await client.send("LEASE.PTTL", "a-0")) === -2);
    expect(await client.send("LEASE.GRANT", "one-more", 60, "KEY", "k", "v")).toEqual([
      "one-more",
      60_000,
      expect.any(Number),
    ]);
  });

  test("a lease takes no more keys than allowed", async () => {
    const server = await servers.start({ args: ["--keys-per-lease-max", "2"] });
    const client = await server.connect();
    await client.call("LEASE.GRANT", "a", 60, "KEY", "k1", "v", "KEY", "k2", "v");
    expect(await client.send("LEASE.ATTACH", "a", "k3", "v")).toBeInstanceOf(RespError);
    expect(await client.send("LEASE.ATTACH", "a", "k1", "new")).toBeGreaterThan(0);
    const tooMany = ["LEASE.GRANT", "b", "60", ...["x", "y", "z"].flatMap((key) => ["KEY", key, "v"])];
    expect(await client.send(...tooMany)).toBeInstanceOf(RespError);
    expect(await client.send("LEASE.PTTL", "b")).toBe(-2);
  });
});

describe("clocks that stand still", () => {
  test("uptime and TIME move", async () => {
    const client = await (await servers.start()).connect();
    const time = async (): Promise<number> => {
      const [seconds, microseconds] = (await client.call("TIME")) as [string, string];
      return Number(seconds) * 1e6 + Number(microseconds);
    };
    const firstTime = await time();
    expect(Math.abs(firstTime / 1000 - Date.now())).toBeLessThan(60_000);
    const uptime = Number((await info(client)).get("uptime_in_seconds"));
    await until("the clock to move", async () => (await time()) > firstTime);
    await until("the uptime to move", async () => Number((await info(client)).get("uptime_in_seconds")) > uptime);
  });
});

describe("one client's trouble", () => {
  test("an error in a pipeline leaves the rest of it alone", async () => {
    const client = await (await servers.start()).connect();
    const replies = await client.pipeline([
      ["LEASE.GRANT", "a", 60],
      ["LEASE.GRANT", "a", 60],
      ["LEASE.FROB", "a"],
      ["LEASE.GRANT"],
      ["LEASE.KEEPALIVE", "a"],
      ["PING"],
    ]);
    expect(replies.slice(1, 4).map((reply) => (reply instanceof RespError ? reply.code : reply))).toEqual([
      "LEASEEXISTS",
      "ERR",
      "ERR",
    ]);
    expect((replies[2] as RespError).text).toMatch(/^ERR unknown command 'LEASE.FROB', with args beginning with: 'a' /);
    expect((replies[3] as RespError).text).toBe("ERR wrong number of arguments for 'lease.grant' command");
    expect(replies[4]).toBe(60_000);
  });

  test("a client that goes away takes nothing with it", async () => {
    const server = await servers.start();
    const client = await server.connect();
    await client.call("LEASE.GRANT", "a", 60, "KEY", "k", "v");
    client.destroy();
    const other = await server.connect();
    expect(await other.send("LEASE.KEEPALIVE", "a")).toBe(60_000);
    expect(await other.send("FLUSHALL")).toStrictEqual(OK);
  });
});
