import { closeSync, cpSync, openSync, readSync, readdirSync, rmSync, statSync, truncateSync, writeSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { useServers, type Server } from "../support/server.js";

/**
 * Files of a stopped server are damaged. The next start either refuses, saying what is missing, or has every acknowledged
 * lease: there is no third way.
 */

const servers = useServers();
const LEASES = 400;
const leaseName = (index: number): string => `lease-${index}`;

/** A directory with leases whose grants were all acknowledged; the server is gone. */
async function filled(end: (server: Server) => Promise<unknown>): Promise<string> {
  const server = await servers.start();
  const client = await server.connect();
  for (let from = 0; from < LEASES; from += 20) {
    const grants = Array.from({ length: 20 }, (_, index) => {
      const id = leaseName(from + index);
      return ["LEASE.GRANT", id, 3600, "KEY", `key-${id}`, `value-${id}`];
    });
    const replies = await client.pipeline(grants);
    expect(replies.every((reply) => Array.isArray(reply))).toBe(true);
  }
  await end(server);
  return server.dir;
}

/** Files below a directory whose names match, largest first. */
function files(dir: string, name: RegExp): string[] {
  return readdirSync(dir, { recursive: true, encoding: "utf8" })
    .filter((file) => name.test(file))
    .map((file) => join(dir, file))
    .sort((a, b) => statSync(b).size - statSync(a).size);
}

/** Bytes of a log that hold records: RocksDB preallocates the rest. */
function usedBytes(file: string): number {
  const { size } = statSync(file);
  const bytes = Buffer.alloc(size);
  const fd = openSync(file, "r");
  readSync(fd, bytes, 0, size, 0);
  closeSync(fd);
  let used = size;
  while (used > 0 && bytes[used - 1] === 0) used--;
  return used;
}

function flipBit(file: string, offset: number): void {
  const fd = openSync(file, "r+");
  const byte = Buffer.alloc(1);
  readSync(fd, byte, 0, 1, offset);
  byte[0] = (byte[0] ?? 0) ^ 0x10;
  writeSync(fd, byte, 0, 1, offset);
  closeSync(fd);
}

type Outcome = "refused" | "complete";

/** Starts over a copy of the directory. "Complete" only if every acknowledged lease is there with its key. */
async function startOver(dir: string, args: readonly string[] = []): Promise<Outcome> {
  const server = servers.launch({ dir, args });
  const ready = await server.ready().catch(() => null);
  if (ready === null) {
    const exit = await server.exit();
    expect(exit.code, server.stderr).toBe(1);
    expect(server.stderr).not.toMatch(/^\s+at /m);
    expect(server.stderr.trim()).not.toBe("");
    return "refused";
  }
  const client = await ready.connect();
  const ids = Array.from({ length: LEASES }, (_, index) => leaseName(index));
  const left = await client.pipeline(ids.map((id) => ["LEASE.PTTL", id]));
  const values = await client.pipeline(ids.map((id) => ["GET", `key-${id}`]));
  const lost = ids.filter((id, index) => !(Number(left[index]) > 0) || values[index] !== `value-${id}`);
  expect(lost, "acknowledged leases that are silently gone").toEqual([]);
  await ready.stop();
  return "complete";
}

const ENDINGS: readonly [string, (server: Server) => Promise<unknown>][] = [
  ["a graceful stop", async (server) => server.stop()],
  ["kill -9", async (server) => server.kill()],
];

describe.each(ENDINGS)("damage after %s", (_name, end) => {
  test("one flipped bit anywhere in the log", async () => {
    const dir = await filled(end);
    const outcomes: Outcome[] = [];
    for (const share of [0.01, 0.3, 0.6, 0.95]) {
      const copy = join(servers.directory(), "copy");
      cpSync(dir, copy, { recursive: true });
      const [log] = files(copy, /\d+\.log$/);
      if (log === undefined) expect.fail("there is no log");
      flipBit(log, Math.floor(usedBytes(log) * share));
      outcomes.push(await startOver(copy));
    }
    expect(outcomes).toContain("refused");
  });

  test("a log that is cut off", async () => {
    const dir = await filled(end);
    const outcomes: Outcome[] = [];
    for (const share of [0, 0.5, 0.97]) {
      const copy = join(servers.directory(), "copy");
      cpSync(dir, copy, { recursive: true });
      const [log] = files(copy, /\d+\.log$/);
      if (log === undefined) expect.fail("there is no log");
      truncateSync(log, Math.floor(usedBytes(log) * share));
      outcomes.push(await startOver(copy));
    }
    expect(outcomes).toContain("refused");
  });

  test("a log that is deleted", async () => {
    const dir = await filled(end);
    for (const log of files(dir, /\d+\.log$/)) rmSync(log);
    expect(await startOver(dir)).toBe("refused");
  });

  test("undamaged it starts, and rubbish after the last record is harmless", async () => {
    const dir = await filled(end);
    expect(await startOver(dir)).toBe("complete");
  });
});

test("a refused start leaves the directory as it was, and the loss can be accepted by name", async () => {
  const dir = await filled(async (server) => server.kill());
  const [log] = files(dir, /\d+\.log$/);
  if (log === undefined) expect.fail("there is no log");
  truncateSync(log, Math.floor(usedBytes(log) / 2));
  expect(await startOver(dir)).toBe("refused");
  expect(await startOver(dir)).toBe("refused");
  const server = await servers.start({ dir, args: ["--accept-loss"] });
  const client = await server.connect();
  const left = await client.pipeline(Array.from({ length: LEASES }, (_, index) => ["LEASE.PTTL", leaseName(index)]));
  const kept = left.filter((ms) => Number(ms) > 0).length;
  expect(kept).toBeGreaterThan(0);
  expect(kept).toBeLessThan(LEASES);
  await server.stop();
  const next = await servers.start({ dir });
  expect(await (await next.connect()).call("LEASE.PTTL", leaseName(0))).toBeGreaterThan(0);
});

describe("a missing file", () => {
  test("of sorted rows is noticed", async () => {
    const dir = await filled(async (server) => server.stop());
    // a second start moves the log's rows into a table file
    const server = await servers.start({ dir });
    await server.stop();
    const tables = files(dir, /\.sst$/);
    const [table] = tables;
    if (table === undefined) expect.fail("there is no table file");
    rmSync(table);
    expect(await startOver(dir)).toBe("refused");
  });

  test("CURRENT or MANIFEST never turns into a new, empty store", async () => {
    for (const name of [/(^|\/)CURRENT$/, /(^|\/)MANIFEST-\d+$/]) {
      const dir = await filled(async (server) => server.stop());
      for (const file of files(dir, name)) rmSync(file);
      expect(await startOver(dir)).toBe("refused");
    }
  });
});
