import { expect, test } from "vitest";
import { meanwhile, nowMs } from "../support/poll.js";
import { useServers } from "../support/server.js";
import { SYNC_CALLS, Trace } from "../support/strace.js";
import { describeWith } from "../support/tools.js";

/** Each sync takes five seconds. Leases of two seconds that are renewed live on; only those who write have to wait. */

describeWith(["strace", "ptrace"], "a slow disk", () => {
  const servers = useServers();

  test("renewals are answered in milliseconds and keep their leases alive, grants wait for the disk", async () => {
    const server = await servers.start();
    const client = await server.connect();
    const granter = await server.connect();
    const ids = Array.from({ length: 10 }, (_, index) => `short-${index}`);
    await client.pipeline(ids.map((id) => ["LEASE.GRANT", id, "PX", 2000, "KEY", `key-${id}`, "v"]));
    const trace = await Trace.attach(server.pid, {
      calls: SYNC_CALLS,
      inject: ["fdatasync,fsync:delay_enter=5000000"],
    });
    const sentMs = nowMs();
    const tookMs: number[] = [];
    await meanwhile(granter.call("LEASE.GRANT", "slow", 60), async () => {
      const roundMs = nowMs();
      expect(await client.pipeline(ids.map((id) => ["LEASE.KEEPALIVE", id]))).toEqual(ids.map(() => 2000));
      tookMs.push(nowMs() - roundMs);
      expect(await client.send("EXISTS", ...ids.map((id) => `key-${id}`))).toBe(ids.length);
    });
    expect(nowMs() - sentMs).toBeGreaterThanOrEqual(4900);
    expect(tookMs.length).toBeGreaterThan(100);
    expect(tookMs.sort((a, b) => a - b)[Math.floor(tookMs.length / 2)]).toBeLessThan(50);
    await trace.detach();
    expect(await client.send("LEASE.PTTL", "slow")).toBeGreaterThan(0);
  });
});
