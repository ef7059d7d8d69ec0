import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { freePort } from "../support/ports.js";
import { describeWith } from "../support/tools.js";
import { RawClient, request, startHarness, type Harness } from "./wire-harness.js";

/**
 * The same bytes to a real redis-server and to ours: the same answers, and the connection closed or not alike. What follows a
 * request is a PING, so that the answers show where each server takes the request to end.
 */

interface Answer {
  readonly received: string;
  readonly ended: boolean;
}

/**
 * What the server says to `bytes` and to an ECHO behind them, and whether it then closes. A server that closes with input
 * unread may take its last words back: so both go in one write, and nothing goes behind a request too long for one read.
 */
async function ask(port: number, bytes: string): Promise<Answer> {
  const client = await RawClient.open(port);
  client.send(bytes.length > 10_000 ? bytes : bytes + request("ECHO", "sentinel"));
  await client.until((one) => one.received.includes("sentinel") || one.ended || one.closed);
  const answer = { received: client.received, ended: client.ended || client.closed };
  client.close();
  return answer;
}

const KB = 1024;
const PING = request("PING");

/** Requests on which we do as Redis 7.0 does. Where we are stricter on purpose is in frame-guard.test.ts. */
const SAME: readonly string[] = [
  // Headers
  "*abc\r\n",
  "*\r\n",
  "*01\r\n",
  "*+1\r\n",
  "*-0\r\n",
  "*-1\r\n",
  "*0\r\n",
  "*-5\r\n",
  "*1 \r\n",
  "*99999999999\r\n",
  "*2147483648\r\n",
  "*99999999999999999999999\r\n",
  "*1\r\n$abc\r\n",
  "*1\r\n$\r\n",
  "*1\r\n$-1\r\n",
  "*1\r\n$04\r\nPING\r\n",
  "*1\r\n$600000000\r\n",
  "*1\r\nx4\r\nPING\r\n",
  "*1\r\n%4\r\nPING\r\n",
  "*1\r\n\n4\r\nPING\r\n",
  "*1\r\n\xff4\r\nPING\r\n",
  "*1\r\n\r\nPING\r\n",
  "*1\r\n*1\r\n$4\r\nPING\r\n",
  `*${"1".repeat(65 * KB)}`,
  `*1\r\n$${"1".repeat(65 * KB)}`,
  "A".repeat(65 * KB),
  `${PING}${PING}*1\r\n!4\r\n`,
  `PING\r\n${PING}\r\n\n \r\n\t\r\n${PING}`,
  // Requests that are well-formed and nobody sends
  "*1\r\n$0\r\n\r\n",
  "*2\r\n$4\r\nECHO\r\n$0\r\n\r\n",
  "-ERR x\r\n",
  "$4\r\nPING\r\n",
  // Inline commands
  "PING\n",
  "  PING  \r\n",
  'ECHO "a\\x41\\n\\r\\t\\b\\a\\\\\\"\\q"\r\n',
  'ECHO "\\x4\\xzz\\xFf"\r\n',
  "ECHO 'a\\'b\\n\"'\r\n",
  'ECHO a"b"\r\n',
  "ECHO a'b c'\r\n",
  'ECHO "a""b"\r\n',
  'ECHO "a"b\r\n',
  "ECHO 'a'\"b\"\r\n",
  'ECHO "a\r\n',
  "ECHO 'a\r\n",
  'ECHO "a\\"\r\n',
  "ECHO a\\x41\r\n",
  "ECHO \x0ba\x0bb\r\n",
  "ECHO \x0ca\x0c\r\n",
  'ECHO "a"\x0b\r\n',
  'ECHO ""\r\n',
  "ECHO ''\r\n",
  '""\r\n',
  "ECHO a\\\r\n",
  "ECHO \xff\xfe\r\n",
  "ECHO a b\r\n",
  "NOPE 'a\\'' \"b\"\r\n",
];

/** The same before AUTH, on servers with the password `secret`. */
const SAME_BEFORE_AUTH: readonly string[] = [
  "*11\r\n",
  "*1\r\n$16385\r\n",
  "*99999999999\r\n",
  `${PING}${request("NOPE")}${request("AUTH", "secret")}`,
  request("AUTH", "secret") + request("ECHO", "x".repeat(9000)),
  `AUTH secret\r\n${request("PING")}`,
  `${request("AUTH", "secret")}*1\r\n$abc\r\n`,
];

async function startRedis(
  directory: string,
  ...options: readonly string[]
): Promise<{ child: ChildProcess; port: number }> {
  const port = await freePort();
  const child = spawn(
    "redis-server",
    ["--port", String(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory, ...options],
    { stdio: "ignore" },
  );
  for (;;) {
    const client = await RawClient.open(port).catch(() => null);
    if (client !== null) {
      client.close();
      return { child, port };
    }
    await new Promise((resolve) => {
      setTimeout(resolve, 20);
    });
  }
}

const shown = (bytes: string): string => (bytes.length > 100 ? `${bytes.slice(0, 20)}...` : bytes);
const table = (requests: readonly string[]): (readonly [string, string])[] =>
  requests.map((bytes) => [shown(bytes), bytes]);

describeWith(["redis-server"], "a real redis-server", () => {
  let open: Harness;
  let locked: Harness;
  let redis: { child: ChildProcess; port: number };
  let lockedRedis: { child: ChildProcess; port: number };
  let directory: string;

  beforeAll(async () => {
    directory = mkdtempSync(join(tmpdir(), "leasehold-parity-"));
    open = await startHarness();
    locked = await startHarness({ password: "secret" });
    redis = await startRedis(directory);
    lockedRedis = await startRedis(directory, "--requirepass", "secret");
  });

  afterAll(async () => {
    for (const { child } of [redis, lockedRedis]) {
      child.kill("SIGKILL");
      await once(child, "exit");
    }
    rmSync(directory, { recursive: true, force: true });
    await open.stop();
    await locked.stop();
  });

  it.each(table(SAME))("answers %j the same", async (_shown, bytes) => {
    const [theirs, ours] = await Promise.all([ask(redis.port, bytes), ask(open.port, bytes)]);
    expect(ours).toEqual(theirs);
  });

  it.each(table(SAME_BEFORE_AUTH))("answers %j the same before AUTH", async (_shown, bytes) => {
    const [theirs, ours] = await Promise.all([ask(lockedRedis.port, bytes), ask(locked.port, bytes)]);
    expect(ours).toEqual(theirs);
  });
});
