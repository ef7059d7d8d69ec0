import { join } from "node:path";
import { expect, test } from "vitest";
import { useExt4Images } from "../support/ext4-image.js";
import { LockWorkload } from "../support/lock-workload.js";
import { until } from "../support/poll.js";
import { ConnectionClosed } from "../support/resp-client.js";
import { useServers, type Server, type ServerOptions } from "../support/server.js";
import { describeWith } from "../support/tools.js";

/**
 * Power loss, for real: the file system that holds the data directory forgets everything that was not synced. The same under
 * eatmydata, which makes every sync do nothing, must lose something, or this test would prove nothing.
 */

/** How long a load may take on a crowded machine. */
const LOAD_MS_MAX = 90_000;

describeWith(["mkfs.ext4", "loop-mount"], "power loss", () => {
  const image = useExt4Images();
  const servers = useServers();

  interface Loss {
    readonly dir: string;
    readonly acknowledged: string[];
    readonly locks: LockWorkload;
  }

  /** Runs a server on a fresh image, cuts the power under load, and returns what was acknowledged and the directory after it. */
  async function cutPower(options: ServerOptions, grants: number): Promise<Loss> {
    const disk = await image(96);
    const dir = join(disk.mountPoint, "data");
    // the store exists and is synced before the run that counts
    expect(await (await servers.start({ dir })).stop()).toEqual({ code: 0, signal: null });
    const server = await servers.start({ ...options, dir });
    const acknowledged: string[] = [];
    const load = grantUntilClosed(server, acknowledged);
    const locks = new LockWorkload({ port: server.port });
    await until("grants", () => acknowledged.length >= grants);
    await until("lock traffic", () => locks.history.answers >= Math.min(grants, 100), LOAD_MS_MAX);
    await disk.losePower();
    const countAtLoss = acknowledged.length;
    await server.kill();
    locks.history.restart();
    await Promise.all([load, locks.stop()]);
    await disk.unmount();
    await disk.mount();
    expect(countAtLoss).toBeGreaterThanOrEqual(grants);
    return { dir, acknowledged, locks };
  }

  /** Several clients grant until their connection closes. */
  async function grantUntilClosed(server: Server, acknowledged: string[]): Promise<void> {
    const clients = await Promise.all(Array.from({ length: 5 }, async () => server.connect()));
    await Promise.all(
      clients.map(async (client, index) => {
        for (let number = 0; ; number++) {
          const id = `power-${index}-${number}`;
          try {
            const reply = await client.send("LEASE.GRANT", id, 3600, "KEY", `key-${id}`, id);
            if (Array.isArray(reply)) acknowledged.push(id);
          } catch (error) {
            if (!(error instanceof ConnectionClosed)) throw error;
            return;
          }
        }
      }),
    );
  }

  /** The acknowledged leases that a server over the directory does not have with their keys; all of them when it refuses. */
  async function lost(dir: string, acknowledged: readonly string[]): Promise<string[]> {
    const server = servers.launch({ dir });
    const ready = await server.ready().catch(() => null);
    if (ready === null) return [...acknowledged];
    const client = await ready.connect();
    const left = await client.pipeline(acknowledged.map((id) => ["LEASE.PTTL", id]));
    const values = await client.pipeline(acknowledged.map((id) => ["GET", `key-${id}`]));
    await ready.kill();
    return acknowledged.filter((id, index) => !(Number(left[index]) > 0) || values[index] !== id);
  }

  /** What is wrong with the locks that a server over the directory has; null when it refuses to start. */
  async function judge(dir: string, locks: LockWorkload): Promise<string[] | null> {
    const ready = await servers
      .launch({ dir })
      .ready()
      .catch(() => null);
    return ready === null ? null : locks.judge(await ready.connect());
  }

  test("every acknowledged grant survives, and every lock is as it was told", async () => {
    for (const grants of [1, 400]) {
      const { dir, acknowledged, locks } = await cutPower({}, grants);
      expect(await lost(dir, acknowledged)).toEqual([]);
      expect(await judge(dir, locks)).toEqual([]);
    }
  });

  describeWith(["eatmydata"], "with syncs that do nothing", () => {
    test("acknowledged grants and locks are lost", async () => {
      const { dir, acknowledged, locks } = await cutPower({ wrap: ["eatmydata"] }, 400);
      expect((await lost(dir, acknowledged)).length).toBeGreaterThan(0);
      // Lost like the grants, or the server does not start over it.
      expect(await judge(dir, locks)).not.toEqual([]);
    });
  });
});
