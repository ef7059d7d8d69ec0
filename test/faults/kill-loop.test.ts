import { expect, test } from "vitest";
import { CrashRun } from "../support/crash-run.js";
import { letPass, until } from "../support/poll.js";
import { useServers } from "../support/server.js";
import { DEFAULT_WORKLOAD } from "../support/workload.js";

/**
 * kill -9 under load, again and again over one directory: no acknowledged change is lost, none comes back, no lease ends
 * early, no key has two holders. An acknowledged lock is held on by the same lease under the same token, one that was given back stays
 * free, and what was told of each key has an order that explains it. LEASEHOLD_KILL_ROUNDS sets the number of rounds.
 */

const ROUNDS = Number(process.env["LEASEHOLD_KILL_ROUNDS"] ?? 12);
/** How long a load may take on a crowded machine. */
const LOAD_MS_MAX = 90_000;

const servers = useServers();

test(
  `${ROUNDS} times kill -9`,
  async () => {
    const run = new CrashRun(servers, servers.directory(), DEFAULT_WORKLOAD, true);
    for (let round = 0; round < ROUNDS; round++) {
      const server = await run.start();
      await run.load(server, 50);
      const locked = run.locks?.history.answers ?? 0;
      await until(
        "lock traffic",
        () => (run.locks?.history.answers ?? 0) >= locked + 10 || !server.isRunning,
        LOAD_MS_MAX,
      );
      await letPass(Math.random() * 150);
      await server.kill();
      await run.gone(server);
    }
    await run.judge();
    expect(run.history.answers).toBeGreaterThan(50 * ROUNDS);
    expect(run.locks?.history.answers).toBeGreaterThanOrEqual(10 * ROUNDS);
  },
  180_000 + ROUNDS * 5000,
);

test("kill -9 while starting, before and after it is ready", async () => {
  const run = new CrashRun(servers, servers.directory());
  const first = await run.start();
  await run.load(first, 300);
  await first.kill();
  await run.gone(first);
  for (let round = 0; round < 6; round++) {
    const server = servers.launch({ dir: run.dir });
    await letPass(60 + Math.random() * 250);
    await server.kill();
  }
  await run.judge();
});
