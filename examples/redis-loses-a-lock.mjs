/**
 * What becomes of a lock when the server under it is killed and started again?
 *
 *     npm ci && npm run build && node examples/redis-loses-a-lock.mjs
 *
 * Alice takes a lock for ten minutes, in the way that every lock library of Redis does: SET key value NX PX. The server gets kill -9 and is
 * started again at once. Then Bob asks for the lock. This is done with Redis without persistence, with Redis as it is
 * by default (snapshots now and then), and with Leasehold; each on a free port of this machine, in a directory that is
 * removed afterwards. Needs redis-server in the PATH.
 *
 * Exit code: 0 when both Redis gave the lock to Bob too and Leasehold refused him; 1 when that is not what happened.
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Redis } from "ioredis";

const LOCK = "invoices";
const LOCK_MS = 600_000;
const leasehold = fileURLToPath(new URL("../dist/main.js", import.meta.url));

const subjects = [
  {
    name: "Redis without persistence",
    keepsTheLock: false,
    commandLine: (port, dir) => ["redis-server", "--port", port, "--dir", dir, "--save", "", "--appendonly", "no"],
  },
  {
    name: "Redis as it is by default (RDB)",
    keepsTheLock: false,
    commandLine: (port, dir) => ["redis-server", "--port", port, "--dir", dir],
  },
  {
    name: "Leasehold",
    keepsTheLock: true,
    commandLine: (port, dir) => [process.execPath, leasehold, "serve", "--port", port, "--dir", join(dir, "data")],
  },
];

async function freePort() {
  const probe = createServer().listen(0, "127.0.0.1");
  await once(probe, "listening");
  const { port } = probe.address();
  probe.close();
  await once(probe, "close");
  return String(port);
}

/** A server process. `died` rejects when it ends without having been killed by `kill`. */
function start([command, ...args]) {
  const child = spawn(command, args, { stdio: "ignore" });
  let isWanted = true;
  const ended = new Promise((resolve, reject) => {
    child.once("error", (error) => reject(new Error(`cannot run ${command}: ${error.message}`)));
    child.once("exit", (code, signal) => {
      if (isWanted) reject(new Error(`${command} ended by itself (${code ?? signal})`));
      else resolve();
    });
  });
  ended.catch(() => {}); // told to whoever waits for something meanwhile
  return {
    unlessItDies: (promise) => Promise.race([promise, ended.then(() => promise)]),
    kill: () => {
      isWanted = false;
      child.kill("SIGKILL");
      return ended;
    },
  };
}

/** Connects, waiting until the server is up, and asks for the lock. True: this owner has it now. */
async function askForLock(server, port, owner) {
  const redis = new Redis({ port: Number(port), retryStrategy: () => 50, maxRetriesPerRequest: null });
  redis.on("error", () => {}); // refused until the server listens
  try {
    return (await server.unlessItDies(redis.set(LOCK, owner, "PX", LOCK_MS, "NX"))) === "OK";
  } finally {
    redis.disconnect();
  }
}

async function aliceThenKillThenBob({ commandLine }) {
  const dir = await mkdtemp(join(tmpdir(), "redis-loses-a-lock-"));
  const port = await freePort();
  let server = start(commandLine(port, dir));
  try {
    const alice = await askForLock(server, port, "alice");
    await server.kill();
    server = start(commandLine(port, dir));
    const bob = await askForLock(server, port, "bob");
    return { alice, bob };
  } finally {
    await server.kill().catch(() => {}); // it may have failed to start: that is told already
    await rm(dir, { recursive: true, force: true });
  }
}

console.log(`alice locks "${LOCK}" for ${LOCK_MS / 60_000} minutes; kill -9; restart; bob asks for the same lock\n`);
for (const subject of subjects) {
  const { alice, bob } = await aliceThenKillThenBob(subject);
  const outcome = bob ? "bob gets it: two holders" : "bob is refused: alice holds it";
  console.log(`${subject.name.padEnd(34)}${alice ? outcome : "alice did not get it"}`);
  if (!alice || bob === subject.keepsTheLock) {
    console.log(`${"".padEnd(34)}^ not what was expected`);
    process.exitCode = 1;
  }
}
