import { expect, test } from "vitest";
import { useServers } from "../support/server.js";

const servers = useServers();

test("LATENCY remembers a commit that the disk held up, as an event of its own", async () => {
  const server = await servers.start({ env: { LEASEHOLD_FAULTS: "commit:before-write=stall:300@1" } });
  const client = await server.connect();
  await client.call("CONFIG", "SET", "latency-monitor-threshold", "250");
  await client.call("LEASE.GRANT", "a", "60");
  const latest = (await client.call("LATENCY", "LATEST")) as [string, number, number, number][];
  const commit = latest.find(([name]) => name === "commit");
  expect(commit?.[2]).toBeGreaterThanOrEqual(300);
});
