import { expect, test } from "vitest";
import { checkHistory } from "../support/history-checker.js";
import { History, type Request } from "../support/history.js";
import { ConnectionClosed, type RespConnection } from "../support/resp-client.js";
import { useServers } from "../support/server.js";
import { perform } from "../support/workload.js";

/**
 * Many clients on the same leases: keep-alives against revokes and against expiry. What all of them were told, in real-time
 * order, must fit together: who has been told that a lease is gone is right for ever, and a positive answer meant that it was there.
 */

const servers = useServers();
const CLIENTS = 6;

/** Runs all requests of each client one after the other, all clients at once. */
async function runAll(history: History, clients: readonly RespConnection[], requests: Request[][]): Promise<void> {
  await Promise.all(
    clients.map(async (client, index) => {
      for (const request of requests[index] ?? []) await perform(history, client, request);
    }),
  );
}

test("keep-alives race a revoke", async () => {
  const server = await servers.start();
  const history = new History();
  const clients = await Promise.all(Array.from({ length: CLIENTS }, async () => server.connect()));
  for (let round = 0; round < 60; round++) {
    const lease = `revoked-${round}`;
    const key = `key-${round % 3}`;
    const [first] = clients;
    if (first === undefined) throw new ConnectionClosed("no client");
    await perform(history, first, { kind: "grant", lease, ttlMs: 60_000, keys: [key] });
    const looks: Request[] = Array.from({ length: 6 }, (_, index) =>
      index % 2 === 0 ? { kind: "keepalive", lease } : { kind: "read", key },
    );
    const revoking: Request[] = [...looks.slice(0, round % 5), { kind: "revoke", lease }, { kind: "observe", lease }];
    await runAll(
      history,
      clients,
      clients.map((_, index) => (index === 0 ? revoking : looks)),
    );
  }
  expect(checkHistory(history.events)).toEqual([]);
});

test("keep-alives race the deadline", async () => {
  const server = await servers.start();
  const history = new History();
  const clients = await Promise.all(Array.from({ length: CLIENTS }, async () => server.connect()));
  await Promise.all(
    clients.map(async (client, index) => {
      for (let round = 0; round < 12; round++) {
        const lease = `expiring-${index}-${round}`;
        const grant: Request = { kind: "grant", lease, ttlMs: 25 + 5 * round, keys: [`key-${round % 2}`] };
        const response = await perform(history, client, grant);
        if (response?.kind !== "token") continue;
        for (let alive = true; alive;) {
          const probe = await perform(history, client, { kind: "read", key: grant.keys[0] ?? "" });
          if (Math.random() < 0.05) await perform(history, client, { kind: "keepalive", lease });
          alive = probe?.kind === "value" && probe.lease === lease;
        }
        const last = await perform(history, client, { kind: "keepalive", lease });
        expect(last).toEqual({ kind: "absent" });
      }
    }),
  );
  expect(checkHistory(history.events)).toEqual([]);
  expect(history.answers).toBeGreaterThan(CLIENTS * 12);
});

test("many clients grant one key: exactly one holds it at a time", async () => {
  const server = await servers.start();
  const history = new History();
  const clients = await Promise.all(Array.from({ length: CLIENTS }, async () => server.connect()));
  await Promise.all(
    clients.map(async (client, index) => {
      for (let round = 0; round < 40; round++) {
        const lease = `holder-${index}-${round}`;
        const response = await perform(history, client, { kind: "grant", lease, ttlMs: 60_000, keys: ["lock"] });
        if (response?.kind === "token") await perform(history, client, { kind: "revoke", lease });
      }
    }),
  );
  expect(checkHistory(history.events)).toEqual([]);
});
