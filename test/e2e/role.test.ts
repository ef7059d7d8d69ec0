import { expect, test } from "vitest";
import { letPass, nowMs, until, within } from "../support/poll.js";
import { OK, RespError, type RespConnection, type RespValue } from "../support/resp-client.js";
import { info, useServers } from "../support/server.js";

/** Giving up the primary role and taking it again, in one process: FAILOVER and REPLICAOF NO ONE. */

const servers = useServers();

const isReadOnly = (reply: RespValue): boolean =>
  reply instanceof RespError && reply.text === "READONLY You can't write against a read only replica.";

async function roleOf(client: RespConnection): Promise<RespValue> {
  const reply = await client.call("ROLE");
  return Array.isArray(reply) ? (reply[0] ?? null) : null;
}

test("a node is primary after its start, a replica after FAILOVER, and primary again after REPLICAOF NO ONE", async () => {
  const server = await servers.start();
  const operator = await server.connect();
  expect(await roleOf(operator)).toBe("master");
  expect((await info(operator)).get("role")).toBe("master");
  expect((await info(operator)).get("loading")).toBe("0");
  expect(await operator.send("FAILOVER")).toStrictEqual(OK);
  expect(await roleOf(operator)).toBe("slave");
  expect((await info(operator)).get("role")).toBe("slave");
  expect(await operator.send("REPLICAOF", "NO", "ONE")).toStrictEqual(OK);
  expect(await roleOf(operator)).toBe("master");
  expect(await operator.send("REPLICAOF", "NO", "ONE")).toStrictEqual(OK);
});

test("a demoted node closes its other clients, renews nothing, and makes up no number", async () => {
  const server = await servers.start();
  const operator = await server.connect();
  const bystander = await server.connect();
  await operator.call("LEASE.GRANT", "a", 60, "KEY", "k", "v");
  expect(await operator.send("FAILOVER")).toStrictEqual(OK);
  await within("the other client's connection to be closed", bystander.closed);
  const late = await server.connect();
  for (const client of [operator, late]) {
    for (const command of [
      ["LEASE.KEEPALIVE", "a"],
      ["LEASE.KEEPALIVE", "a", "b"],
      ["LEASE.GRANT", "b", "60"],
      ["LEASE.REVOKE", "a"],
      ["LEASE.SETTTL", "a", "5"],
      ["LEASE.ATTACH", "a", "k2", "v"],
      ["LEASE.DETACH", "a", "k"],
      ["LEASE.TTL", "a"],
      ["LEASE.PTTL", "a"],
      ["LEASE.INFO", "a"],
      ["DEL", "k"],
      ["FLUSHALL"],
    ]) {
      const reply = await client.send(...command);
      expect(isReadOnly(reply), `${command.join(" ")} answered ${JSON.stringify(reply)}`).toBe(true);
    }
  }
  expect(await operator.send("PING")).toMatchObject({ text: "PONG" });
});

test("nothing expires on a demoted node, and after the take-over every lease has its full TTL", async () => {
  const server = await servers.start();
  const operator = await server.connect();
  await operator.call("LEASE.GRANT", "short", "PX", 1000, "KEY", "k", "v");
  await operator.call("LEASE.GRANT", "shortened", "PX", 60_000);
  await operator.call("LEASE.SETTTL", "shortened", "PX", 1000);
  await operator.call("FAILOVER");
  const listener = await server.connect();
  await listener.call("PSUBSCRIBE", "lease:*");
  await letPass(1500);
  expect(listener.takeMessages()).toEqual([]);

  const takenMs = nowMs();
  expect(await operator.send("REPLICAOF", "NO", "ONE")).toStrictEqual(OK);
  const left = Number(await operator.call("LEASE.PTTL", "short"));
  expect(left).toBeLessThanOrEqual(1000);
  expect(left).toBeGreaterThanOrEqual(1000 - Math.ceil(nowMs() - takenMs));
  expect(await operator.send("GET", "k")).toBe("v");
  expect(Number(await operator.call("LEASE.PTTL", "shortened"))).toBeGreaterThan(30_000);
  await until("the short lease to end at last", async () => (await operator.send("LEASE.PTTL", "short")) === -2);
  expect(nowMs() - takenMs).toBeGreaterThanOrEqual(1000);
  expect(await operator.send("EXISTS", "k")).toBe(0);
});

test("tokens go on rising and server-chosen ids stay new over role changes", async () => {
  const server = await servers.start();
  const operator = await server.connect();
  const tokens: number[] = [];
  const ids: string[] = [];
  for (let round = 0; round < 4; round++) {
    for (let index = 0; index < 5; index++) {
      const reply = await operator.call("LEASE.GRANT", "*", 60, "KEY", "k", "v");
      const [id, , token] = reply as [string, number, number];
      ids.push(id);
      tokens.push(token);
      expect(await operator.call("LEASE.REVOKE", id)).toBe(1);
    }
    await operator.call("FAILOVER");
    await operator.call("REPLICAOF", "NO", "ONE");
  }
  expect(tokens).toEqual(tokens.toSorted((a, b) => a - b));
  expect(new Set(tokens).size).toBe(tokens.length);
  expect(new Set(ids).size).toBe(ids.length);
});

test("a step-down under load loses nothing that was acknowledged, and answers nothing afterwards", async () => {
  const server = await servers.start();
  const operator = await server.connect();
  const clients = await Promise.all(Array.from({ length: 10 }, async () => server.connect()));
  const acknowledged: string[] = [];
  const load = clients.map(async (client, index) => {
    for (let number = 0; !client.isClosed; number++) {
      const id = `load-${index}-${number}`;
      // closed by the step-down: its outcome is unknown, and so not counted
      const reply = await client.send("LEASE.GRANT", id, 60).catch(() => null);
      if (Array.isArray(reply)) acknowledged.push(id);
      else if (reply !== null) expect(isReadOnly(reply), JSON.stringify(reply)).toBe(true);
    }
  });
  await until("some load", () => acknowledged.length > 200);
  await operator.call("FAILOVER");
  await Promise.all(load);
  await operator.call("REPLICAOF", "NO", "ONE");
  const left = await operator.pipeline(acknowledged.map((id) => ["LEASE.PTTL", id]));
  expect(left.filter((ms) => typeof ms !== "number" || ms <= 0)).toEqual([]);
});

test("what became durable by the step-down is answered before the connection ends", async () => {
  const server = await servers.start();
  const operator = await server.connect();
  for (let round = 0; round < 3; round++) {
    const clients = await Promise.all(Array.from({ length: 5 }, async () => server.connect()));
    const answered = new Set<string>();
    const load = clients.flatMap((client, index) =>
      [0, 1, 2].map(async (number) => {
        const id = `round-${round}-${index}-${number}`;
        // not taken any more, so not durable either: that is what is compared below
        const reply = await client.send("LEASE.GRANT", id, 60).catch(() => null);
        if (Array.isArray(reply)) answered.add(id);
      }),
    );
    await operator.call("FAILOVER");
    await Promise.all(load);
    await operator.call("REPLICAOF", "NO", "ONE");
    const [, durable] = (await operator.call(
      "LEASE.SCAN",
      0,
      "MATCH",
      `round-${round}-*`,
      "COUNT",
      100,
    )) as RespValue[];
    expect((durable as string[]).toSorted()).toEqual([...answered].toSorted());
  }
});
