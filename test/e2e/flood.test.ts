import { readdirSync, readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { until, within } from "../support/poll.js";
import { RespConnection, encodeCommand, show, textOf } from "../support/resp-client.js";
import { useServers } from "../support/server.js";

/** Clients that send too much, take too little, or come and go. */

const servers = useServers();
const openDescriptors = (pid: number): number => readdirSync(`/proc/${pid}/fd`).length;
const residentBytes = (pid: number): number =>
  1024 * Number(/^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "latin1"))?.[1]);

test("a pipeline of 50 MB is answered in full", async () => {
  const server = await servers.start();
  const client = await server.connect();
  await client.call("LEASE.GRANT", "a", "PX", 600_000);
  const padding = "x".repeat(2000);
  const commands = Array.from({ length: 25_000 }, (_, index) =>
    index % 100 === 0 ? ["LEASE.KEEPALIVE", "a"] : ["ECHO", `${padding}${index}`],
  );
  const replies = await within("all replies", client.pipeline(commands), 50_000);
  for (const [index, reply] of replies.entries()) {
    if (reply !== (index % 100 === 0 ? 600_000 : `${padding}${index}`)) expect.fail(`reply ${index}: ${show(reply)}`);
  }
});

test("a client that reads nothing is held up, and nobody else is", async () => {
  const server = await servers.start();
  const deaf = await server.connect();
  const other = await server.connect();
  const value = "x".repeat(1_000_000);
  await other.call("LEASE.GRANT", "a", "PX", 600_000, "KEY", "k", value);
  deaf.pauseReading();
  const before = residentBytes(server.pid);
  const count = 2000;
  const replies = Array.from({ length: count }, async () => deaf.nextReply());
  deaf.write(Buffer.concat(Array.from({ length: count }, () => encodeCommand(["GET", "k"]))));
  for (let round = 0; round < 200; round++) expect(await other.send("LEASE.KEEPALIVE", "a")).toBe(600_000);
  expect(residentBytes(server.pid) - before, "replies that wait for it").toBeLessThan(400 * 1_048_576);
  deaf.destroy();
  await Promise.allSettled(replies);
  expect(await other.send("GET", "k")).toBe(value);
});

test("a client that floods grants is held up by the disk, not dropped", async () => {
  const server = await servers.start({ args: ["--batch-bytes-max", "65536"] });
  const client = await server.connect();
  const other = await server.connect();
  await other.call("LEASE.GRANT", "other", "PX", 600_000);
  const value = "x".repeat(4000);
  const count = 3000;
  const flood = client.pipeline(
    Array.from({ length: count }, (_, index) => ["LEASE.GRANT", `flood-${index}`, 600, "KEY", `k-${index}`, value]),
  );
  for (let round = 0; round < 50; round++) expect(await other.send("LEASE.KEEPALIVE", "other")).toBe(600_000);
  const replies = await within("the flood's replies", flood, 50_000);
  expect(replies.every((reply, index) => Array.isArray(reply) && reply[0] === `flood-${index}`)).toBe(true);
  expect(await other.send("DBSIZE")).toBe(count);
});

test("ten thousand connections opened and closed leave nothing behind", async () => {
  const server = await servers.start();
  const watcher = await server.connect();
  await watcher.call("LEASE.GRANT", "a", "PX", 600_000);
  const comeAndGo = async (rounds: number): Promise<void> => {
    for (let round = 0; round < rounds; round++) {
      await Promise.all(
        Array.from({ length: 100 }, async (_, index) => {
          const client = await RespConnection.connect(server.port);
          if (index % 4 === 0) await client.call("SUBSCRIBE", `lease:${round}`);
          if (index % 4 === 1) client.write("*2\r\n$4\r\nPI");
          if (index % 4 === 2) await client.call("LEASE.KEEPALIVE", "a");
          if (index % 2 === 0) client.end();
          else client.destroy();
          await client.closed;
        }),
      );
    }
  };
  await comeAndGo(20);
  await until("connections to close", () => openDescriptors(server.pid) < 150);
  const warmBytes = residentBytes(server.pid);
  await comeAndGo(80);
  const base = openDescriptors((await servers.start()).pid);
  await until("connections to close", () => openDescriptors(server.pid) <= base + 3);
  expect(residentBytes(server.pid) - warmBytes).toBeLessThan(100 * 1_048_576);
  const connected = /^connected_clients:(\d+)\r$/m.exec(textOf(await watcher.call("INFO", "clients")))?.[1];
  expect(connected).toBe("1");
  expect(await watcher.call("PUBSUB", "CHANNELS")).toEqual([]);
});

test("connections beyond the limit are told so", async () => {
  const server = await servers.start({ args: ["--maxclients", "5"] });
  const clients = await Promise.all(Array.from({ length: 5 }, async () => server.connect()));
  for (const client of clients) expect(await client.send("PING")).toMatchObject({ text: "PONG" });
  const refused = await server.connect();
  expect(await refused.nextReply()).toMatchObject({ text: "ERR max number of clients reached" });
  await within("the refused connection to close", refused.closed);
  clients[0]?.destroy();
  await until("a place to be free", async () => {
    const next = await server.connect();
    // refused ones get an error first, or are closed before they can ask
    const reply = await next.send("PING").catch(() => null);
    return reply !== null && typeof reply === "object" && "text" in reply && reply.text === "PONG";
  });
});
