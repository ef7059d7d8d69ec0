import { describe, expect, test } from "vitest";
import { OK } from "../support/resp-client.js";
import { useServers, type Server } from "../support/server.js";

/** What any client can hear by SUBSCRIBE. */

const servers = useServers("suite");
let shared: Promise<Server> | null = null;
const server = async (): Promise<Server> => (shared ??= servers.start());

describe.each([2, 3] as const)("events over RESP%i", (protocol) => {
  test("an expiry, a revoke and a FLUSHALL are told on the lease's channel, each once", async () => {
    const client = await (await server()).connect({ protocol });
    const listener = await (await server()).connect({ protocol });
    const ids = ["expiring", "revoked", "flushed"].map((name) => `${name}-${protocol}`);
    for (const id of ids) await listener.call("SUBSCRIBE", `lease:${id}`);
    await client.call("CLIENT", "SETNAME", `worker-${protocol}`);
    await client.call("LEASE.GRANT", ids[1] ?? "", 60);
    await client.call("LEASE.GRANT", ids[2] ?? "", 60, "KEY", `flushed-${protocol}`, "v");

    await client.call("LEASE.REVOKE", ids[1] ?? "");
    const revoked = await listener.nextMessage();
    expect(revoked.slice(0, 2)).toEqual(["message", `lease:${ids[1] ?? ""}`]);
    expect(revoked[2]).toMatch(new RegExp(`^revoked by=.*worker-${protocol}`));
    await client.call("LEASE.GRANT", ids[0] ?? "", "PX", 150);
    const expired = await listener.nextMessage();
    expect(expired.slice(0, 2)).toEqual(["message", `lease:${ids[0] ?? ""}`]);
    expect(expired[2]).toMatch(/^expired late-ms=\d+$/);
    await listener.call("SUBSCRIBE", `lock:flushed-${protocol}`);
    await client.call("FLUSHALL");
    expect(await listener.nextMessage()).toEqual(["message", `lease:${ids[2] ?? ""}`, "forced"]);
    const released = await listener.nextMessage();
    expect(released.slice(0, 2)).toEqual(["message", `lock:flushed-${protocol}`]);
    expect(released[2]).toMatch(/^released flushed-\d \d+$/);

    await client.call("PUBLISH", `lease:${ids[0] ?? ""}`, "the end of the test");
    expect(await listener.nextMessage()).toEqual(["message", `lease:${ids[0] ?? ""}`, "the end of the test"]);
  });

  test("a key's way from holder to holder is told on the lock's channel", async () => {
    const client = await (await server()).connect({ protocol });
    const listener = await (await server()).connect({ protocol });
    const key = `lock-${protocol}`;
    await listener.call("PSUBSCRIBE", `lock:${key}*`);
    const [, , first] = (await client.call("LEASE.GRANT", "a", 60, "KEY", key, "v")) as [string, number, number];
    expect((await listener.nextMessage()).slice(2)).toEqual([`lock:${key}`, `acquired a ${first}`]);
    await client.call("LEASE.REVOKE", "a");
    expect((await listener.nextMessage()).slice(2)).toEqual([`lock:${key}`, `released a ${first}`]);
    const [, , second] = (await client.call("LEASE.GRANT", "b", 60, "KEY", key, "v")) as [string, number, number];
    expect((await listener.nextMessage()).slice(2)).toEqual([`lock:${key}`, `acquired b ${second}`]);
    await client.call("LEASE.REVOKE", "b");
  });

  test("an event comes after its change is visible to every client", async () => {
    const client = await (await server()).connect({ protocol });
    const listener = await (await server()).connect({ protocol });
    const reader = await (await server()).connect({ protocol });
    for (let round = 0; round < 50; round++) {
      const id = `visible-${protocol}-${round}`;
      await listener.call("SUBSCRIBE", `lease:${id}`);
      await client.call("LEASE.GRANT", id, 60, "KEY", "visible", "v");
      const revoked = client.call("LEASE.REVOKE", id);
      await listener.nextMessage();
      expect(await reader.send("EXISTS", "visible")).toBe(0);
      expect(await reader.send("LEASE.PTTL", id)).toBe(-2);
      expect(await revoked).toBe(1);
    }
  });

  test("keyspace notifications come when they are switched on", async () => {
    const client = await (await server()).connect({ protocol });
    const listener = await (await server()).connect({ protocol });
    expect(await client.call("CONFIG", "SET", "notify-keyspace-events", "KEA")).toStrictEqual(OK);
    const key = `noted-${protocol}`;
    await listener.call("SUBSCRIBE", `__keyspace@0__:${key}`);
    await listener.call("PSUBSCRIBE", "__keyevent@0__:*");
    await client.call("LEASE.GRANT", "noted", "PX", 100, "KEY", key, "v");
    const heard: string[] = [];
    while (heard.length < 4) heard.push((await listener.nextMessage()).map(String).join(" "));
    expect(heard).toContain(`message __keyspace@0__:${key} set`);
    expect(heard).toContain(`pmessage __keyevent@0__:* __keyevent@0__:set ${key}`);
    expect(heard).toContain(`message __keyspace@0__:${key} expired`);
    expect(heard).toContain(`pmessage __keyevent@0__:* __keyevent@0__:expired ${key}`);
    await client.call("CONFIG", "SET", "notify-keyspace-events", "");
  });
});
