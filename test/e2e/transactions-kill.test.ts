import { expect, test } from "vitest";
import { useServers } from "../support/server.js";
import type { RespConnection } from "../support/resp-client.js";

/** kill -9 in the middle of transactions and scripts: each left all of its changes or none, and none that was acknowledged is gone. */

const servers = useServers();

const KEYS = ["x", "y", "z"];

/** Writes the same number into three keys, again and again, until the server is gone. The last number that was acknowledged. */
async function writeUntilKilled(
  connection: RespConnection,
  round: (number: number) => Promise<unknown>,
): Promise<number> {
  let acknowledged = 0;
  try {
    for (let number = 1; ; number++) {
      await round(number);
      acknowledged = number;
    }
  } catch {
    // the connection broke: the server was killed
  }
  connection.destroy();
  return acknowledged;
}

const rounds: Record<string, (connection: RespConnection) => (number: number) => Promise<unknown>> = {
  transactions: (connection) => async (number) => {
    const replies = await connection.pipeline([
      ["MULTI"],
      ...KEYS.map((key) => ["SET", key, String(number)]),
      ["EXEC"],
    ]);
    return replies;
  },
  scripts: (connection) => (number) =>
    connection.call(
      "EVAL",
      "for _, k in ipairs(KEYS) do redis.call('set', k, ARGV[1]) end return 1",
      3,
      ...KEYS,
      number,
    ),
};

for (const [name, make] of Object.entries(rounds)) {
  test(`${name}: all or nothing`, async () => {
    let dir: string | null = null;
    for (let kill = 0; kill < 3; kill++) {
      const server = await servers.start(dir === null ? {} : { dir });
      dir = server.dir;
      const connection = await server.connect();
      await connection.call("FLUSHALL");
      const writing = writeUntilKilled(connection, make(connection));
      await new Promise((resolve) => {
        setTimeout(resolve, 150 + 37 * kill);
      });
      await server.kill();
      const acknowledged = await writing;
      expect(acknowledged).toBeGreaterThan(0);
      const again = await servers.start({ dir });
      const reader = await again.connect();
      const [x, y, z] = (await reader.call("MGET", ...KEYS)) as string[];
      expect([y, z]).toEqual([x, x]);
      expect(Number(x)).toBeGreaterThanOrEqual(acknowledged);
      await again.kill();
    }
  });
}
