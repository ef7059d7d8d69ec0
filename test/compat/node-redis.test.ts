import { createClient as createClient6, RESP_TYPES as TYPES6 } from "redis";
import { createClient as createClient5, RESP_TYPES as TYPES5 } from "redis5";
import { describe, expect, test } from "vitest";
import { until } from "../support/poll.js";
import { useServers } from "../support/server.js";

/** node-redis 5 and 6 (which opens with HELLO 3), the former with both protocols. */

const servers = useServers();
const EVERY_BYTE = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));

/** What both versions have and these tests use. */
interface Client {
  connect(): Promise<unknown>;
  sendCommand(args: (string | Buffer)[], options?: { typeMapping: Record<number, unknown> }): Promise<unknown>;
  get(key: string): Promise<unknown>;
  subscribe(channel: string, listener: (message: string, channel: string) => void): Promise<void>;
  on(event: "error", listener: (error: Error) => void): unknown;
  destroy(): void;
  close(): Promise<void>;
}

type Connect = (port: number) => Client;

const VERSIONS: readonly [string, Connect, number][] = [
  ["node-redis 5", (port) => createClient5({ socket: { port }, name: "worker" }), TYPES5.BLOB_STRING],
  [
    "node-redis 5 with RESP3",
    (port) => createClient5({ socket: { port }, name: "worker", RESP: 3 }),
    TYPES5.BLOB_STRING,
  ],
  ["node-redis 6", (port) => createClient6({ socket: { port }, name: "worker" }), TYPES6.BLOB_STRING],
];

describe.each(VERSIONS)("%s", (_name, make, blobString) => {
  /** A connected client; an error event, which node-redis reports connection trouble by, fails the test through `errors`. */
  async function connected(port: number): Promise<{ client: Client; errors: Error[] }> {
    const client = make(port);
    const errors: Error[] = [];
    client.on("error", (error) => errors.push(error));
    await client.connect();
    return { client, errors };
  }

  test("grants, renews, looks, revokes", async () => {
    const { client, errors } = await connected((await servers.start()).port);
    const granted = await client.sendCommand(["LEASE.GRANT", "a", "10", "KEY", "k", "v"]);
    expect(granted).toEqual(["a", 10_000, expect.any(Number)]);
    expect(await client.sendCommand(["LEASE.KEEPALIVE", "a"])).toBe(10_000);
    expect(await client.get("k")).toBe("v");
    await expect(client.sendCommand(["LEASE.KEEPALIVE", "none"])).rejects.toThrow(/^NOLEASE /);
    expect(await client.sendCommand(["LEASE.GRANT", "b", "10", "KEY", "k", "w"])).toBeNull();
    expect(await client.sendCommand(["LEASE.REVOKE", "a"])).toBe(1);
    expect(await client.get("k")).toBeNull();
    await client.close();
    expect(errors).toEqual([]);
  });

  test("many commands at once keep their order", async () => {
    const { client, errors } = await connected((await servers.start()).port);
    const replies = await Promise.all(
      Array.from({ length: 300 }, async (_, index) =>
        index % 3 === 0
          ? client.sendCommand(["LEASE.GRANT", `a-${index}`, "PX", String(60_000 + index)])
          : client.sendCommand(["LEASE.KEEPALIVE", `a-${index - (index % 3)}`]),
      ),
    );
    for (const [index, reply] of replies.entries()) {
      const ttlMs = 60_000 + index - (index % 3);
      expect(reply).toEqual(index % 3 === 0 ? [`a-${index}`, ttlMs, expect.any(Number)] : ttlMs);
    }
    client.destroy();
    expect(errors).toEqual([]);
  });

  test("ids, keys and values may be any bytes", async () => {
    const { client } = await connected((await servers.start()).port);
    const asBytes = { typeMapping: { [blobString]: Buffer } };
    const grant = ["LEASE.GRANT", EVERY_BYTE, "60", "KEY", EVERY_BYTE, EVERY_BYTE];
    expect(((await client.sendCommand(grant, asBytes)) as [Buffer])[0]).toEqual(EVERY_BYTE);
    expect(await client.sendCommand(["GET", EVERY_BYTE], asBytes)).toEqual(EVERY_BYTE);
    client.destroy();
  });

  test("hears of the end of a lease", async () => {
    const { port } = await servers.start();
    const { client } = await connected(port);
    const { client: listener } = await connected(port);
    const heard: string[] = [];
    await listener.subscribe("lease:a", (message, channel) => heard.push(`${channel} ${message}`));
    await client.sendCommand(["LEASE.GRANT", "a", "PX", "100"]);
    await until("the event", () => heard.length > 0);
    expect(heard[0]).toMatch(/^lease:a expired late-ms=\d+$/);
    listener.destroy();
    client.destroy();
  });
});
