import { cpSync, readFileSync, renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { useServers, type Server } from "../support/server.js";

/** The data directory of a running server is removed, moved away or replaced: the server notices and ends. */

const servers = useServers();

/** How the server ended, and what it said last. */
async function ending(server: Server): Promise<{ code: number | null; line: string }> {
  const { code } = await server.exit();
  const lines = server.stderr.trimEnd().split("\n");
  const failures = lines.filter((line) => line.includes("the store failed"));
  expect(failures, server.stderr).toHaveLength(1);
  expect(server.stderr).not.toMatch(/^\s+at /m);
  return { code, line: failures[0] ?? "" };
}

test("removed while nobody writes: keep-alives are not answered for ever", async () => {
  const server = await servers.start();
  const client = await server.connect();
  expect(await client.call("LEASE.GRANT", "a", "60")).toEqual(["a", 60_000, 1]);
  rmSync(server.dir, { recursive: true });
  const { code, line } = await ending(server);
  expect(code).toBe(1);
  expect(line).toContain(`${server.dir} was removed or replaced while the server ran`);
  await expect(client.call("LEASE.KEEPALIVE", "a")).rejects.toThrow();
});

test("removed under a steady stream of grants: none is acknowledged after it was noticed", async () => {
  const server = await servers.start();
  const client = await server.connect();
  let answered = 0;
  const grants = async (): Promise<void> => {
    for (;;) {
      await client.call("LEASE.GRANT", "*", "60");
      answered += 1;
    }
  };
  const stream = grants().catch((error: unknown) => error);
  await expect.poll(() => answered).toBeGreaterThan(10);
  rmSync(server.dir, { recursive: true });
  expect((await ending(server)).code).toBe(1);
  expect(await stream).toBeInstanceOf(Error);
  const before = answered;
  await expect(client.call("PING")).rejects.toThrow();
  expect(answered).toBe(before);
});

test("moved away, a copy in its place: that one is left alone, and a server starts on either", async () => {
  const server = await servers.start();
  const client = await server.connect();
  await client.call("LEASE.GRANT", "a", "60");
  const moved = join(servers.directory(), "moved");
  renameSync(server.dir, moved);
  cpSync(moved, server.dir, { recursive: true });
  expect((await ending(server)).code).toBe(1);
  expect(readFileSync(join(server.dir, "PID"), "latin1")).toBe(readFileSync(join(moved, "PID"), "latin1"));
  const next = await servers.start({ dir: moved });
  expect(await (await next.connect()).call("LEASE.TTL", "a")).toBeGreaterThan(0);
  await next.stop();
});
