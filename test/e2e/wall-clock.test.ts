import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { nowMs, until } from "../support/poll.js";
import { type RespConnection } from "../support/resp-client.js";
import { useServers } from "../support/server.js";
import { describeWith, faketimeLibrary } from "../support/tools.js";

/** Jumps of the wall clock by a year, while the monotonic clock runs on as it does in reality. */

describeWith(["libfaketime"], "the wall clock jumps", () => {
  const servers = useServers();
  const YEAR_SECONDS = 365 * 24 * 3600;

  async function wallSeconds(client: RespConnection): Promise<number> {
    const reply = await client.call("TIME");
    return Number(Array.isArray(reply) ? reply[0] : NaN);
  }

  test.each([
    ["forward", "+365d", YEAR_SECONDS],
    ["back", "-365d", -YEAR_SECONDS],
  ])("a year %s changes no lease", async (_name, jump, jumpSeconds) => {
    const offsetFile = join(servers.directory(), "offset");
    writeFileSync(offsetFile, "+0\n");
    const server = await servers.start({
      env: {
        LD_PRELOAD: faketimeLibrary(),
        FAKETIME_TIMESTAMP_FILE: offsetFile,
        FAKETIME_NO_CACHE: "1",
        DONT_FAKE_MONOTONIC: "1",
        FAKETIME_DONT_FAKE_MONOTONIC: "1",
      },
    });
    const client = await server.connect();
    const longSentMs = nowMs();
    await client.call("LEASE.GRANT", "long", "PX", 60_000, "KEY", "k", "v");
    const shortSentMs = nowMs();
    await client.call("LEASE.GRANT", "short", "PX", 1500);
    const wallBefore = await wallSeconds(client);
    writeFileSync(offsetFile, `${jump}\n`);
    await until("the server's wall clock to jump", async () => {
      const jumped = (await wallSeconds(client)) - wallBefore;
      return Math.abs(jumped - jumpSeconds) < 3600;
    });
    const left = Number(await client.call("LEASE.PTTL", "long"));
    expect(left).toBeLessThanOrEqual(60_000);
    expect(left).toBeGreaterThanOrEqual(60_000 - Math.ceil(nowMs() - longSentMs));
    expect(await client.send("GET", "k")).toBe("v");
    expect(await client.send("LEASE.KEEPALIVE", "long")).toBe(60_000);
    await until("the short lease to end", async () => (await client.send("LEASE.PTTL", "short")) === -2);
    expect(nowMs() - shortSentMs).toBeGreaterThanOrEqual(1500);
    expect(await client.send("LEASE.PTTL", "long")).toBeGreaterThan(30_000);
  });

  test("a restart a year later or earlier gives the full TTL as any other", async () => {
    const at = (offset: string): Record<string, string> => ({
      LD_PRELOAD: faketimeLibrary(),
      FAKETIME: offset,
      DONT_FAKE_MONOTONIC: "1",
      FAKETIME_DONT_FAKE_MONOTONIC: "1",
    });
    const first = await servers.start({ env: at("+0") });
    await (await first.connect()).call("LEASE.GRANT", "a", "PX", 60_000);
    await first.stop();
    for (const offset of ["+365d", "-365d"]) {
      const server = await servers.start({ dir: first.dir, env: at(offset) });
      const left = Number(await (await server.connect()).call("LEASE.PTTL", "a"));
      expect(left).toBeGreaterThan(30_000);
      expect(left).toBeLessThanOrEqual(60_000);
      await server.stop();
    }
  });
});
