import { spawn, type ChildProcess } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { until } from "../support/poll.js";
import { freePort } from "../support/ports.js";
import { RespConnection, show, type RespValue } from "../support/resp-client.js";
import { startNode, type TestNode } from "./commands-harness.js";

/**
 * The same requests to Debian's redis-server and to this server: the replies have to be the same. Where they differ on
 * purpose, the difference is written down beside the request.
 */

/** Arguments are split at blanks, those in quotes kept whole; `\\n` stands for a line feed, `\\"` for a quote. */
export const argvOf = (line: string): string[] =>
  [...line.matchAll(/"((?:[^"\\]|\\.)*)"|(\S+)/g)].map(([, quoted, plain]) =>
    (quoted ?? plain ?? "").replaceAll("\\n", "\n").replaceAll('\\"', '"'),
  );

export interface Exchange {
  readonly line: string;
  /** What this server answers instead, and why it may. */
  readonly instead?: string;
}

export type Conversations = Readonly<Record<string, readonly Exchange[]>>;

export const same = (...lines: string[]): Exchange[] => lines.map((line) => ({ line }));
export const differs = (line: string, instead: string): Exchange => ({ line, instead });

export interface BothServers {
  connect(protocol?: 2 | 3): Promise<{ readonly theirs: RespConnection; readonly ours: RespConnection }>;
}

/** A redis-server and a node of our own for the tests of the suite around. */
export function useBothServers(): BothServers {
  let redis: ChildProcess | null = null;
  let scratch = "";
  let redisPort = 0;
  let node: TestNode;
  beforeAll(async () => {
    scratch = mkdtempSync(join(tmpdir(), "leasehold-golden-"));
    redisPort = await freePort();
    const options = ["--port", String(redisPort), "--save", "", "--dir", scratch, "--bind", "127.0.0.1"];
    redis = spawn("redis-server", options, { stdio: "ignore" });
    await until("redis-server to answer", () => RespConnection.connect(redisPort).catch(() => null));
    node = await startNode();
  });
  afterAll(async () => {
    redis?.kill("SIGKILL");
    await node.stop();
    rmSync(scratch, { recursive: true, force: true });
  });
  return {
    connect: async (protocol = 2) => ({
      theirs: await RespConnection.connect(redisPort, { protocol }),
      ours: await node.connect({ protocol }),
    }),
  };
}

/** What differs from one server to the next and means nothing. */
const normalized = (value: RespValue): string =>
  show(value)
    .replaceAll(/"version",("[^"]*")/g, '"version","V"')
    .replaceAll(/"id",\d+/g, '"id",0')
    // ROLE: how much was written so far.
    .replace(/^\["master",\d+,/, '["master",0,');

/** Redis rounds to the nearest; here no answer promises more than is left. */
const isRoundedDown = (line: string, answered: string, wanted: string): boolean =>
  /^(TTL|P?EXPIRETIME) /i.test(line) && Number(answered) >= 0 && Number(answered) === Number(wanted) - 1;

/** One test for each conversation, each on a connection of its own, after FLUSHALL. */
export function testConversations(both: BothServers, conversations: Conversations, protocol: 2 | 3 = 2): void {
  for (const [name, exchanges] of Object.entries(conversations)) {
    test(name, async () => {
      const { theirs, ours } = await both.connect(protocol);
      await Promise.all([theirs.send("FLUSHALL"), ours.send("FLUSHALL")]);
      const wrong: string[] = [];
      for (const { line, instead } of exchanges) {
        const [expected, got] = await Promise.all([theirs.send(...argvOf(line)), ours.send(...argvOf(line))]);
        const wanted = instead ?? normalized(expected);
        const answered = instead === undefined ? normalized(got) : show(got);
        if (answered !== wanted && !isRoundedDown(line, answered, wanted))
          wrong.push(`${line} => ${answered}, not ${wanted}`);
      }
      expect(wrong).toEqual([]);
      theirs.destroy();
      ours.destroy();
    });
  }
}
