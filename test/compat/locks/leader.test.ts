import { createSafeRedisLeader, type Leader } from "safe-redis-leader";
import { expect, test } from "vitest";
import { letPass, until } from "../../support/poll.js";
import { useServers } from "../../support/server.js";
import { connectIoredis } from "./clients.js";

/** safe-redis-leader 0.0.6: a lock that is held for good, and passed on when its holder stops. */

const servers = useServers();

test("one leader at a time, through kill -9 of the server; the next one when it stops", async () => {
  let server = await servers.start();
  const clients = [connectIoredis(server.port), connectIoredis(server.port)];
  const log: string[] = [];
  const make = async (name: string, client: (typeof clients)[number]): Promise<Leader> => {
    const leader = await createSafeRedisLeader({ asyncRedis: client, ttl: 3000, wait: 100, key: "the-leader" });
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
  await letPass(4000);
  expect([await one.isLeader(), await two.isLeader()]).toEqual([true, false]);
  expect(log).toEqual(["one elected"]);
  await one.shutdown();
  await until("the other to lead", () => two.isLeader());
  expect(log).toEqual(["one elected", "one demoted", "two elected"]);
  await two.shutdown();
  for (const each of clients) each.disconnect();
});
