import { rmSync, statfsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { useExt4Images } from "../support/ext4-image.js";
import { nowMs } from "../support/poll.js";
import { ConnectionClosed } from "../support/resp-client.js";
import { useServers } from "../support/server.js";
import { describeWith } from "../support/tools.js";

/** The disk fills up under load, and is freed again. */

describeWith(["mkfs.ext4", "loop-mount"], "a full disk", () => {
  const image = useExt4Images();
  const servers = useServers();

  test("ends the process at the first error; freed and started again, all that was acknowledged is there", async () => {
    const disk = await image(64);
    const dir = join(disk.mountPoint, "data");
    const server = await servers.start({ dir });
    const { bavail, bsize } = statfsSync(disk.mountPoint);
    const filler = join(disk.mountPoint, "filler");
    writeFileSync(filler, Buffer.alloc(Math.max(0, bavail * bsize - 6 * 1_048_576)));

    const value = "x".repeat(20_000);
    const acknowledged: string[] = [];
    const sentAfterFirstClose: string[] = [];
    let firstCloseMs = Infinity;
    const clients = await Promise.all(Array.from({ length: 6 }, async () => server.connect()));
    await Promise.all(
      clients.map(async (client, index) => {
        for (let number = 0; number < 2000 && server.isRunning; number++) {
          const id = `full-${index}-${number}`;
          const sentMs = nowMs();
          try {
            const reply = await client.send("LEASE.GRANT", id, 3600, "KEY", `key-${id}`, value);
            expect(Array.isArray(reply), JSON.stringify(reply).slice(0, 200)).toBe(true);
            acknowledged.push(id);
            if (sentMs > firstCloseMs) sentAfterFirstClose.push(id);
          } catch (error) {
            if (!(error instanceof ConnectionClosed)) throw error;
            firstCloseMs = Math.min(firstCloseMs, nowMs());
            return;
          }
        }
      }),
    );
    const exit = await server.exit();
    expect(exit.signal).toBeNull();
    expect(exit.code).toBeGreaterThan(0);
    expect(server.stderr).toMatch(/space/i);
    expect(sentAfterFirstClose).toEqual([]);
    expect(acknowledged.length).toBeGreaterThan(10);

    const stillFull = servers.launch({ dir });
    const outcome = await stillFull.ready().then(
      () => "serves" as const,
      () => "refuses" as const,
    );
    if (outcome === "serves") await stillFull.stop();
    else expect((await stillFull.exit()).code).toBe(1);

    rmSync(filler);
    const next = await servers.start({ dir });
    const client = await next.connect();
    const left = await client.pipeline(acknowledged.map((id) => ["LEASE.PTTL", id]));
    const values = await client.pipeline(acknowledged.map((id) => ["GET", `key-${id}`]));
    expect(acknowledged.filter((_, index) => !(Number(left[index]) > 0) || values[index] !== value)).toEqual([]);
    expect(await client.call("LEASE.GRANT", "after", 60)).toEqual(["after", 60_000, expect.any(Number)]);
    await next.stop();
  });
});
