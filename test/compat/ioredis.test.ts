import { Redis as Redis6 } from "ioredis";
import { Redis as Redis5 } from "ioredis5";
import { describe, expect, test } from "vitest";
import { until } from "../support/poll.js";
import { infoNumber, useServers } from "../support/server.js";

/** ioredis 5 (RESP2) and 6 (RESP3, which opens with HELLO 3). */

const servers = useServers();
const EVERY_BYTE = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));

/** What both versions have and these tests use. */
interface Client {
  call(command: string, ...args: (string | number | Buffer)[]): Promise<unknown>;
  callBuffer(command: string, ...args: (string | number | Buffer)[]): Promise<unknown>;
  pipeline(commands: unknown[][]): { exec(): Promise<[Error | null, unknown][] | null> };
  subscribe(channel: string): Promise<unknown>;
  on(event: string, listener: (...args: never[]) => void): unknown;
  get(key: string): Promise<string | null>;
  quit(): Promise<unknown>;
  disconnect(): void;
}

type Options = Record<string, unknown>;

const VERSIONS: readonly [string, (options: Options) => Client][] = [
  ["ioredis 5", (options) => new Redis5(options)],
  ["ioredis 6", (options) => new Redis6(options)],
];

describe.each(VERSIONS)("%s", (_name, connect) => {
  test("grants, renews, looks, revokes", async () => {
    const { port } = await servers.start();
    const client = connect({ port, connectionName: "worker", db: 2 });
    expect(await client.call("LEASE.GRANT", "a", 10, "KEY", "k", "v")).toEqual(["a", 10_000, expect.any(Number)]);
    expect(await client.call("LEASE.KEEPALIVE", "a")).toBe(10_000);
    expect([9, 10]).toContain(await client.call("LEASE.TTL", "a"));
    expect(await client.get("k")).toBe("v");
    await expect(client.call("LEASE.KEEPALIVE", "none")).rejects.toThrow(/^NOLEASE /);
    expect(await client.call("LEASE.GRANT", "b", 10, "KEY", "k", "w")).toBeNull();
    expect(JSON.stringify(await client.call("LEASE.INFO", "a"))).toContain("worker");
    expect(await client.call("LEASE.REVOKE", "a")).toBe(1);
    expect(await client.get("k")).toBeNull();
    expect(await client.quit()).toBe("OK");
  });

  test("a pipeline keeps its order, errors in their places", async () => {
    const { port } = await servers.start();
    const client = connect({ port });
    const pipeline = client.pipeline([
      ["call", "LEASE.GRANT", "a", "60"],
      ["call", "LEASE.KEEPALIVE", "none"],
      ["call", "LEASE.KEEPALIVE", "a"],
      ["call", "LEASE.REVOKE", "a"],
    ]);
    const replies = await pipeline.exec();
    expect(replies?.map(([error, reply]) => error?.message.split(" ")[0] ?? reply)).toEqual([
      ["a", 60_000, expect.any(Number)],
      "NOLEASE",
      60_000,
      1,
    ]);
    client.disconnect();
  });

  test("ids, keys and values may be any bytes", async () => {
    const { port } = await servers.start();
    const client = connect({ port });
    const granted = await client.callBuffer("LEASE.GRANT", EVERY_BYTE, 60, "KEY", EVERY_BYTE, EVERY_BYTE);
    expect((granted as [Buffer])[0]).toEqual(EVERY_BYTE);
    expect(await client.callBuffer("GET", EVERY_BYTE)).toEqual(EVERY_BYTE);
    expect(await client.call("LEASE.REVOKE", EVERY_BYTE)).toBe(1);
    client.disconnect();
  });

  test("hears of the end of a lease", async () => {
    const { port } = await servers.start();
    const client = connect({ port });
    const listener = connect({ port });
    const heard: string[] = [];
    listener.on("message", (channel: string, message: string) => heard.push(`${channel} ${message}`));
    await listener.subscribe("lease:a");
    await client.call("LEASE.GRANT", "a", "PX", 100);
    await until("the event", () => heard.length > 0);
    expect(heard[0]).toMatch(/^lease:a expired late-ms=\d+$/);
    listener.disconnect();
    client.disconnect();
  });

  test("stays on one connection although told to reconnect on every error", async () => {
    const server = await servers.start();
    const watcher = await server.connect();
    const before = await infoNumber(watcher, "total_connections_received");
    const client = connect({ port: server.port, reconnectOnError: () => true, connectionName: "worker" });
    for (let round = 0; round < 50; round++) {
      await client.call("LEASE.GRANT", `a-${round}`, "PX", 60_000, "KEY", `k-${round}`, "v");
      expect(await client.call("LEASE.KEEPALIVE", `a-${round}`)).toBe(60_000);
      expect(await client.call("LEASE.PTTL", "none")).toBe(-2);
    }
    expect((await infoNumber(watcher, "total_connections_received")) - before).toBe(1);
    client.disconnect();
  });

  test("finds its leases again after the server was killed and started anew", async () => {
    const first = await servers.start();
    const client = connect({ port: first.port, retryStrategy: () => 20 });
    client.on("error", () => {
      // refused connections while the server is away
    });
    await client.call("LEASE.GRANT", "a", "PX", 60_000, "REQUEST", "nonce");
    await first.kill();
    const second = await servers.start({ dir: first.dir, args: ["--port", String(first.port)] });
    expect(second.port).toBe(first.port);
    expect(await client.call("LEASE.KEEPALIVE", "a")).toBe(60_000);
    client.disconnect();
  });
});
