import { readFileSync, readdirSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { describe, expect, test } from "vitest";
import { untilSettled } from "../support/poll.js";
import { info, useServers } from "../support/server.js";
import { READ_CALLS, SYNC_CALLS, Trace, WRITE_CALLS, isFile } from "../support/strace.js";
import { describeWith } from "../support/tools.js";
import type { RespConnection } from "../support/resp-client.js";

/** A keep-alive never touches the disk, seen from five sides. */

const servers = useServers();
const KEEP_ALIVES = 10_000;
const TTL_MS = 600_000;

/** Ten thousand successive keep-alives, in pipelines of a hundred, all of which must succeed. */
async function keepAlive(client: RespConnection): Promise<void> {
  for (let sent = 0; sent < KEEP_ALIVES; sent += 100) {
    const replies = await client.pipeline(Array.from({ length: 100 }, () => ["LEASE.KEEPALIVE", "a"]));
    expect(replies).toEqual(Array.from({ length: 100 }, () => TTL_MS));
  }
}

/** Name, size and time of the last change of each file below a directory. */
function filesOf(dir: string): string[] {
  return readdirSync(dir, { recursive: true, encoding: "utf8" })
    .map((name) => {
      const { size, mtimeNs } = statSync(join(dir, name), { bigint: true });
      return `${name} ${size} ${mtimeNs}`;
    })
    .sort();
}

/** Bytes that a process has caused to be written to storage. */
const storageBytes = (pid: number): number =>
  Number(/^write_bytes: (\d+)$/m.exec(readFileSync(`/proc/${pid}/io`, "latin1"))?.[1]);

describe("ten thousand keep-alives", () => {
  test("commit no batch, change no file and write no byte to storage", async () => {
    const server = await servers.start();
    const client = await server.connect();
    await client.call("LEASE.GRANT", "a", "PX", TTL_MS, "KEY", "k", "v");
    // the witness file follows the grant within a second or so
    const filesBefore = await untilSettled("the data directory", () => filesOf(server.dir), 2500);
    const figures = ["revision", "durable_revision", "batches_committed", "bytes_committed"];
    const before = await info(client);
    const bytesBefore = storageBytes(server.pid);
    await keepAlive(client);
    const after = await info(client);
    for (const figure of figures) {
      expect(before.get(figure), `INFO's ${figure}`).toMatch(/^\d+$/);
      expect(after.get(figure), `INFO's ${figure}`).toBe(before.get(figure));
    }
    expect(storageBytes(server.pid)).toBe(bytesBefore);
    expect(filesOf(server.dir)).toEqual(filesBefore);
    expect(await client.send("LEASE.GRANT", "b", 60)).not.toBeNull();
    expect(Number((await info(client)).get("batches_committed"))).toBeGreaterThan(
      Number(before.get("batches_committed")),
    );
  });

  test("leave RocksDB's sequence number where a run without them leaves it", async () => {
    const first = await servers.start();
    await (await first.connect()).call("LEASE.GRANT", "a", "PX", TTL_MS);
    await first.stop();
    const steps: number[] = [];
    for (const renew of [false, true, false]) {
      const sequenceBefore = await latestSequence(first.dir);
      const server = await servers.start({ dir: first.dir });
      const client = await server.connect();
      expect(await client.call("LEASE.PTTL", "a")).toBeGreaterThan(0);
      if (renew) await keepAlive(client);
      await server.stop();
      steps.push((await latestSequence(first.dir)) - sequenceBefore);
    }
    expect(steps[1]).toBe(steps[0]);
    expect(steps[2]).toBe(steps[0]);
  });
});

interface Database {
  readonly sequence: number;
  open(): Promise<void>;
  close(): Promise<void>;
}

/** The binding as the server loads it; it brings no types. */
const { RocksLevel } = createRequire(import.meta.url)("rocksdb") as {
  RocksLevel: new (path: string, options: { createIfMissing: boolean }) => Database;
};

/** The sequence number of the newest write in the RocksDB database somewhere below a directory that no server uses. */
async function latestSequence(dir: string): Promise<number> {
  const current = readdirSync(dir, { recursive: true, encoding: "utf8" }).find((name) => /(^|\/)CURRENT$/.test(name));
  if (current === undefined) throw new Error(`no RocksDB database below ${dir}`);
  const database = new RocksLevel(dirname(join(dir, current)), { createIfMissing: false });
  await database.open();
  const { sequence } = database;
  await database.close();
  return sequence;
}

describeWith(["strace", "ptrace"], "under strace", () => {
  test("ten thousand keep-alives sync nothing and write to no file", async () => {
    const server = await servers.start();
    const client = await server.connect();
    await client.call("LEASE.GRANT", "a", "PX", TTL_MS);
    await untilSettled("the data directory", () => filesOf(server.dir), 2500);
    const trace = await Trace.attach(server.pid, { calls: [...SYNC_CALLS, ...WRITE_CALLS, ...READ_CALLS] });
    await keepAlive(client);
    await client.call("LEASE.GRANT", "after", 60);
    const calls = await trace.detach();
    const granted = calls.findIndex((call) => READ_CALLS.includes(call.name) && call.args.includes("after"));
    expect(granted, "strace saw the grant that ends the test").toBeGreaterThan(0);
    const during = calls.slice(0, granted);
    expect(during.length, "strace saw the keep-alives come in and be answered").toBeGreaterThan(100);
    const offending = during.filter(
      (call) => SYNC_CALLS.includes(call.name) || (WRITE_CALLS.includes(call.name) && isFile(call)),
    );
    expect(offending).toEqual([]);
    const syncsOfGrant = calls.slice(granted).filter((call) => SYNC_CALLS.includes(call.name));
    expect(syncsOfGrant.length, "strace would have seen a sync").toBeGreaterThan(0);
  });
});
