import { createSafeRedisLeader, type Leader } from "safe-redis-leader";
import { expect, test } from "vitest";
import { until } from "../../support/poll.js";
import { useServers } from "../../support/server.js";
import { connectIoredis } from "./clients.js";

/** safe-redis-leader 0.0.6: a lock that is held for good, and passed on when its holder stops. */

/** It renews after half of it: the other half is how long this machine may stand still. */
const TTL_MS = 10_000;

const servers = useServers();

test("one leader at a time, through kill -9 of the server; the next one when it stops", async () => {
  let server = await servers.start();
  const clients = [connectIoredis(server.port), connectIoredis(server.port)];
  const log: string[] = [];
  const make = async (name: string, client: (typeof clients)[number]): Promise<Leader> => {
    const leader = await createSafeRedisLeader({ asyncRedis: client, ttl: TTL_MS, wait: 100, key: "the-leader" });
    leader.on("elected", () => log.push(`${name} elected`));
    leader.on("demoted", () => log.push(`${name} demoted`));
    leader.on("error", (error) => log.push(`${name} ${String(error)}`));
    return leader;
  };
  const [client, otherClient] = clients as [(typeof clients)[number], (typeof clients)[number]];
  const one = await make("one", client);
  const two = await make("two", otherClient);
  await one.elect();
  await two.elect();
  expect([await one.isLeader(), await two.isLeader()]).toEqual([true, false]);
  await server.kill();
  server = await servers.start({ dir: server.dir, args: ["--port", String(server.port)] });
  const witness = await server.connect();
  const [key] = (await witness.call("KEYS", "*")) as string[];
  const leftMs = async (): Promise<number> => Number(await witness.call("PTTL", key ?? ""));
  await until("a third of its time to pass", async () => (await leftMs()) < (TTL_MS * 2) / 3);
  await until("its holder to renew it", async () => (await leftMs()) > (TTL_MS * 3) / 4);
  expect([await one.isLeader(), await two.isLeader()]).toEqual([true, false]);
  expect(log).toEqual(["one elected"]);
  await one.shutdown();
  await until("the other to lead", () => two.isLeader());
  expect(log).toEqual(["one elected", "one demoted", "two elected"]);
  await two.shutdown();
  for (const each of clients) each.disconnect();
});
