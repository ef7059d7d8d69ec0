import { expect, test } from "vitest";
import { checkHistory } from "../support/history-checker.js";
import { History } from "../support/history.js";
import { until, within } from "../support/poll.js";
import { useServers, type Server } from "../support/server.js";
import { Workload, observeAll, type Target } from "../support/workload.js";

/** A graceful end under load: exit code 0, and everything acknowledged is there at the next start. */

const servers = useServers();

const ENDINGS: readonly [string, (server: Server) => Promise<void>][] = [
  [
    "SIGTERM",
    async (server) => {
      server.signal("SIGTERM");
    },
  ],
  [
    "SIGINT",
    async (server) => {
      server.signal("SIGINT");
    },
  ],
  [
    "SHUTDOWN",
    async (server) => {
      const client = await server.connect();
      // it ends the connection instead of answering
      await client.send("SHUTDOWN").catch(() => null);
    },
  ],
];

test.each(ENDINGS)("%s under load", async (_name, end) => {
  const history = new History();
  const target: Target = { port: null };
  const server = await servers.start();
  target.port = server.port;
  const workload = new Workload(history, target);
  await until("some load", () => history.answers > 500);
  await end(server);
  expect(await server.exit()).toEqual({ code: 0, signal: null });
  target.port = null;
  history.restart();
  expect(server.stderr).not.toMatch(/^\s+at /m);

  const next = await servers.start({ dir: server.dir });
  target.port = next.port;
  const answersBefore = history.answers;
  await observeAll(history, await next.connect());
  await until("load on the new server", () => history.answers > answersBefore + 100);
  await workload.stop();
  expect(checkHistory(history.events)).toEqual([]);
});

test("an idle server with open connections ends at once, and they are closed", async () => {
  const server = await servers.start();
  const clients = await Promise.all(Array.from({ length: 20 }, async () => server.connect()));
  await clients[0]?.call("SUBSCRIBE", "lease:a");
  server.signal("SIGTERM");
  await within("the connections to close", Promise.all(clients.map(async (client) => client.closed)));
  expect(await server.exit()).toEqual({ code: 0, signal: null });
});

test("a client that reads nothing does not hold up the end", async () => {
  const server = await servers.start();
  const deaf = await server.connect();
  await deaf.call("LEASE.GRANT", "a", 60, "KEY", "k", "x".repeat(1_000_000));
  deaf.pauseReading();
  for (let index = 0; index < 30; index++) deaf.write("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
  await (await server.connect()).call("PING");
  server.signal("SIGTERM");
  expect(await server.exit()).toEqual({ code: 0, signal: null });
});

test("a second signal during the end does no harm", async () => {
  const server = await servers.start();
  await (await server.connect()).call("LEASE.GRANT", "a", 60);
  server.signal("SIGTERM");
  server.signal("SIGTERM");
  server.signal("SIGINT");
  expect(await server.exit()).toEqual({ code: 0, signal: null });
  const next = await servers.start({ dir: server.dir });
  expect(await (await next.connect()).send("LEASE.PTTL", "a")).toBeGreaterThan(0);
});
