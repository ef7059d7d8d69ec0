import { expect, test } from "vitest";
import { infoNumber, useServers } from "../support/server.js";
import { runOk } from "../support/subprocess.js";
import { describeWith } from "../support/tools.js";

/** redis-benchmark, which ends with an error at the first error reply. */

describeWith(["redis-benchmark"], "redis-benchmark", () => {
  const servers = useServers();
  const bench = async (port: number, ...args: string[]): Promise<string> =>
    runOk("redis-benchmark", ["-p", String(port), "-q", "-c", "20", ...args]);

  test("its ping tests, inline and bulk, with and without pipeline", async () => {
    const server = await servers.start();
    for (const flags of [[], ["-P", "16"], ["-3"], ["--dbnum", "3"], ["-k", "0", "-c", "5"]]) {
      const out = await bench(server.port, "-t", "ping_inline,ping_mbulk", "-n", "2000", ...flags);
      expect(out).toMatch(/PING_INLINE: [\d.]+ requests per second/);
      expect(out).toMatch(/PING_(MBULK|BULK): [\d.]+ requests per second/);
    }
  });

  test("grants of random ids and of the server's choice", async () => {
    const server = await servers.start();
    // two of 200 random ids out of two thousand million are the same once in 100,000 runs, and would end the benchmark
    await bench(server.port, "-n", "200", "-r", "2000000000", "LEASE.GRANT", "lease:__rand_int__", "PX", "600000");
    const grant = ["LEASE.GRANT", "*", "PX", "600000", "KEY", "k:__rand_int__", "v"];
    await bench(server.port, "-n", "3000", "-P", "8", "-r", "100000", ...grant);
    await bench(server.port, "-n", "2000", "LEASE.GRANT", "*", "600");
    const client = await server.connect();
    expect(await infoNumber(client, "leases")).toBeGreaterThan(4000);
  });

  test("keep-alives with pipeline over random leases", async () => {
    const server = await servers.start();
    const client = await server.connect();
    const ids = Array.from({ length: 100 }, (_, index) => `lease:${String(index).padStart(12, "0")}`);
    await client.pipeline(ids.map((id) => ["LEASE.GRANT", id, 600]));
    for (const depth of ["1", "16", "100"]) {
      await bench(server.port, "-n", "5000", "-P", depth, "-r", "100", "LEASE.KEEPALIVE", "lease:__rand_int__");
    }
    expect(await infoNumber(client, "leases")).toBe(100);
  });
});
