/**
 * `npm run demo:cluster`: three etcd members and three Leasehold nodes on loopback, and a client that holds a lock while the primary
 * is killed every few seconds. A second client wants the same lock all the time and never gets it. Stops by itself; exit code 1
 * when anything is not as promised.
 *
 * The clients are plain ioredis in Sentinel mode: they know nothing of Leasehold.
 */
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { hrtime } from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { Redis } from "ioredis";

const ROUNDS = 3;
const ROLE_MS = 3000;
const TTL_SECONDS = 20;
const KEEP_ALIVE_MS = 1000;
const RECOVERY_MS_MAX = 30_000;
const MAIN = fileURLToPath(new URL("../dist/main.js", import.meta.url));

const nowMs = () => Number(hrtime.bigint()) / 1e6;
const startedAtMs = nowMs();
const directory = mkdtempSync(join(tmpdir(), "leasehold-demo-"));
const children = new Set();

function say(text) {
  console.log(`${((nowMs() - startedAtMs) / 1000).toFixed(1).padStart(6)} s  ${text}`);
}

function run(name, command, args) {
  const child = spawn(command, args, { stdio: ["ignore", "pipe", "pipe"] });
  child.output = "";
  for (const stream of [child.stdout, child.stderr]) {
    stream.on("data", (chunk) => {
      child.output = (child.output + chunk).slice(-20_000);
    });
  }
  child.on("error", (error) => {
    child.output += String(error);
  });
  child.on("exit", () => children.delete(child));
  child.label = name;
  children.add(child);
  return child;
}

async function freePorts(count) {
  const servers = await Promise.all(
    Array.from({ length: count }, async () => {
      const server = createServer();
      await new Promise((resolve) => {
        server.listen(0, "127.0.0.1", resolve);
      });
      return server;
    }),
  );
  const ports = servers.map((server) => server.address().port);
  await Promise.all(servers.map((server) => new Promise((resolve) => server.close(resolve))));
  return ports;
}

async function until(what, ask, withinMs = RECOVERY_MS_MAX) {
  const endMs = nowMs() + withinMs;
  for (;;) {
    const answer = await ask();
    if (answer) return answer;
    if (nowMs() > endMs) throw new Error(`waited ${withinMs} ms in vain for ${what}`);
    await sleep(50);
  }
}

// The cluster -------------------------------------------------------------------------------------------------------------

async function startEtcd() {
  const ports = await freePorts(6);
  const members = [0, 1, 2].map((index) => ({
    name: `e${index}`,
    client: `http://127.0.0.1:${ports[index]}`,
    peer: `http://127.0.0.1:${ports[index + 3]}`,
  }));
  const initial = members.map(({ name, peer }) => `${name}=${peer}`).join(",");
  for (const { name, client, peer } of members) {
    run(name, "etcd", [
      `--name=${name}`,
      `--data-dir=${join(directory, name)}`,
      `--listen-client-urls=${client}`,
      `--advertise-client-urls=${client}`,
      `--listen-peer-urls=${peer}`,
      `--initial-advertise-peer-urls=${peer}`,
      `--initial-cluster=${initial}`,
      "--auto-compaction-mode=revision",
      "--auto-compaction-retention=1000",
    ]);
  }
  await until("etcd", async () => {
    const answer = await fetch(`${members[0].client}/health`).catch(() => null);
    return answer !== null && (await answer.text()).includes("true");
  });
  return members.map(({ client }) => client.slice("http://".length)).join(",");
}

async function startNode(index, etcd, [port, sentinelPort]) {
  const child = run(`node ${index}`, process.execPath, [
    MAIN,
    "serve",
    `--store=etcd://${etcd}`,
    `--port=${port}`,
    `--sentinel-port=${sentinelPort}`,
    `--role-ms=${ROLE_MS}`,
    "--beat-ms=500",
    "--etcd-timeout-ms=600",
  ]);
  child.port = port;
  await until(`node ${index} to be ready`, () => {
    if (!children.has(child)) throw new Error(`node ${index} ended: ${child.output}`);
    return child.output.includes("leasehold ready");
  });
  return child;
}

async function primaryOf(nodes) {
  for (const node of nodes) {
    if (!children.has(node)) continue;
    const client = new Redis({
      port: node.port,
      lazyConnect: true,
      retryStrategy: () => null,
      enableReadyCheck: false,
    });
    client.on("error", () => {});
    try {
      await client.connect();
      const [role] = await client.call("ROLE");
      if (role === "master" && (await client.info()).includes("loading:0")) return node;
    } catch {
      // It is on its way down; another one is asked.
    } finally {
      client.disconnect();
    }
  }
  return null;
}

// The clients -------------------------------------------------------------------------------------------------------------

function sentinelClient(sentinelPorts) {
  const client = new Redis({
    name: "leasehold",
    sentinels: sentinelPorts.map((port) => ({ host: "127.0.0.1", port })),
    sentinelRetryStrategy: () => 100,
    retryStrategy: () => 100,
    maxRetriesPerRequest: null,
  });
  client.on("error", () => {});
  return client;
}

/** Keeps its lease alive, and notes until when it may believe in it: counted from before it sent. */
class Holder {
  believesUntilMs = 0;
  keepAlives = 0;
  token = 0;
  #client;
  #isStopped = false;

  constructor(client) {
    this.#client = client;
  }

  async acquire() {
    const sentAtMs = nowMs();
    await this.#client.call("LEASE.GRANT", "holder", String(TTL_SECONDS));
    this.believesUntilMs = sentAtMs + TTL_SECONDS * 1000;
    this.token = Number(await this.#client.call("LOCK.ACQUIRE", "the-lock", "holder"));
  }

  async keepAlive() {
    while (!this.#isStopped) {
      const sentAtMs = nowMs();
      const remaining = await this.#client.call("LEASE.KEEPALIVE", "holder").catch((error) => error);
      if (typeof remaining === "number") {
        this.believesUntilMs = sentAtMs + remaining;
        this.keepAlives += 1;
      } else if (remaining instanceof Error && remaining.message.startsWith("NOLEASE")) {
        throw new Error("the holder lost its lease");
      }
      await sleep(KEEP_ALIVE_MS);
    }
  }

  stop() {
    this.#isStopped = true;
  }
}

/** Tries for the lock all the time. Returns how often it asked; an answer that is a token is a failure of what is shown. */
async function rival(client, holder, isOver) {
  let asked = 0;
  while (!isOver()) {
    await client.call("LEASE.GRANT", "rival", "5").catch(() => {});
    const answer = await client.call("LOCK.ACQUIRE", "the-lock", "rival").catch((error) => error);
    if (typeof answer === "number" && nowMs() < holder.believesUntilMs) {
      throw new Error(`the lock was held twice: token ${answer} while ${holder.token} was believed in`);
    }
    if (answer === null) asked += 1;
    await sleep(100);
  }
  return asked;
}

// The demonstration -------------------------------------------------------------------------------------------------------

async function demonstrate() {
  if (!existsSync(MAIN)) throw new Error("build first: npm run build");
  say("starting three etcd members and three nodes; all of it takes about half a minute, more on a busy machine");
  const etcd = await startEtcd();
  say(`three etcd members: ${etcd}`);
  const ports = await freePorts(6);
  const portsOf = (index) => [ports[index], ports[index + 3]];
  const nodes = await Promise.all([0, 1, 2].map((index) => startNode(index, etcd, portsOf(index))));
  const sentinelPorts = ports.slice(3);
  let primary = await until("a primary", () => primaryOf(nodes));
  say(`three nodes; ${primary.label} (port ${primary.port}) is primary`);

  const [holderClient, rivalClient] = [sentinelClient(sentinelPorts), sentinelClient(sentinelPorts)];
  const holder = new Holder(holderClient);
  await holder.acquire();
  say(`'holder' has 'the-lock', token ${holder.token}; 'rival' begins to ask for it`);
  let isOver = false;
  const rivalry = rival(rivalClient, holder, () => isOver);
  const keeping = holder.keepAlive();
  keeping.catch(() => {});
  rivalry.catch(() => {});

  for (let round = 1; round <= ROUNDS; round += 1) {
    await sleep(2000);
    const index = nodes.indexOf(primary);
    const killedAtMs = nowMs();
    primary.kill("SIGKILL");
    say(`kill -9 ${primary.label}`);
    primary = await until("another primary", () => primaryOf(nodes.filter((node) => node !== nodes[index])));
    const seconds = ((nowMs() - killedAtMs) / 1000).toFixed(1);
    const check = await until("an answer", async () => {
      const answer = await holderClient.call("LOCK.CHECK", "the-lock", String(holder.token)).catch(() => null);
      return answer === null ? null : { isValid: answer === 1 };
    });
    if (!check.isValid) throw new Error(`token ${holder.token} is not the lock's any more`);
    say(`${primary.label} is primary after ${seconds} s; token ${holder.token} is still the lock's`);
    nodes[index] = await startNode(index, etcd, portsOf(index));
    await Promise.race([keeping, rivalry, sleep(1)]);
  }
  isOver = true;
  holder.stop();
  const [asked] = await Promise.all([rivalry, keeping]);
  say(`${holder.keepAlives} keep-alives were acknowledged; the rival asked ${asked} times and was refused each time`);
  say("the lock was never held twice");
  holderClient.disconnect();
  rivalClient.disconnect();
}

const end = (code) => {
  for (const child of children) child.kill("SIGKILL");
  rmSync(directory, { recursive: true, force: true });
  process.exit(code);
};
process.on("SIGINT", () => end(130));
demonstrate().then(
  () => end(0),
  (error) => {
    console.error(`the demonstration failed: ${error.message}`);
    for (const child of children) console.error(`--- ${child.label}\n${child.output}`);
    end(1);
  },
);
