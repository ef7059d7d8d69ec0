import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { createServer, type AddressInfo } from "node:net";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { describeWith } from "../support/tools.js";
import { RawClient, request, startHarness, type Harness } from "./wire-harness.js";

/**
 * The same bytes to a real redis-server and to ours: the same answers, and the connection closed or not alike. What follows a
 * request is a PING, so that the answers show where each server takes the request to end.
 */

async function freePort(): Promise<number> {
  const probe = createServer();
  probe.listen(0, "127.0.0.1");
  await once(probe, "listening");
  const { port } = probe.address() as AddressInfo;
  probe.close();
  await once(probe, "close");
  return port;
}

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

describeWith(["redis-server"], "a real redis-server", () => {
  let harness: Harness;
  let redis: ChildProcess;
  let redisPort: number;
  let directory: string;

  beforeAll(async () => {
    harness = await startHarness();
    redisPort = await freePort();
    directory = mkdtempSync(join(tmpdir(), "leasehold-parity-"));
    redis = spawn(
      "redis-server",
      ["--port", String(redisPort), "--bind", "127.0.0.1", "--save", "", "--dir", directory],
      { stdio: "ignore" },
    );
    for (;;) {
      const client = await RawClient.open(redisPort).catch(() => null);
      if (client !== null) {
        client.close();
        break;
      }
      await new Promise((resolve) => {
        setTimeout(resolve, 20);
      });
    }
  });

  afterAll(async () => {
    redis.kill("SIGKILL");
    await once(redis, "exit");
    rmSync(directory, { recursive: true, force: true });
    await harness.stop();
  });

  it.each(SAME.map((bytes) => [bytes.length > 100 ? `${bytes.slice(0, 20)}...` : bytes, bytes] as const))(
    "answers %j the same",
    async (_shown, bytes) => {
      const [theirs, ours] = await Promise.all([ask(redisPort, bytes), ask(harness.port, bytes)]);
      expect(ours).toEqual(theirs);
    },
  );
});
