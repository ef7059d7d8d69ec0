import { createServer, type Server as NetServer, type Socket } from "node:net";

import RedisParser from "redis-parser";
import { afterEach, describe, expect, test } from "vitest";

import { runClosedLoop } from "../../bench/load/closed-loop.js";
import { runContention, type ContentionJob } from "../../bench/load/contention.js";
import type { TargetSpec } from "../../bench/load/target.js";
import { useServers } from "../support/server.js";

/** The generators for locks, against servers that answer as told, and against a real one. */

type Answer = (argv: readonly string[]) => string | null;

/** Answers each command as told; null: not yet, nor anything after it on that connection. */
class ScriptedServer {
  readonly #server: NetServer;
  readonly #sockets = new Set<Socket>();
  /** All commands, as they came. */
  readonly commands: (readonly string[])[] = [];

  constructor(answer: Answer) {
    this.#server = createServer((socket) => {
      this.#sockets.add(socket);
      socket.on("error", () => undefined);
      const parser = new RedisParser({
        returnReply: (argv: unknown) => {
          this.commands.push(argv as readonly string[]);
          const reply = answer(argv as readonly string[]);
          if (reply !== null) socket.write(reply);
        },
        returnError: (error: Error) => socket.destroy(error),
        returnFatalError: (error: Error) => socket.destroy(error),
      });
      socket.on("data", (bytes: Buffer) => parser.execute(bytes));
    });
  }

  async listen(): Promise<number> {
    await new Promise<void>((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
    const address = this.#server.address();
    if (address === null || typeof address === "string") throw new Error("no port");
    return address.port;
  }

  async close(): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

let scripted: ScriptedServer | null = null;
afterEach(async () => {
  await scripted?.close();
  scripted = null;
});

async function start(answer: Answer): Promise<number> {
  scripted = new ScriptedServer(answer);
  return scripted.listen();
}

describe("cycles", () => {
  const STEPS = [
    { argv: ["TAKE", "lock:{id}", "by:{connection}"], expect: "positive" },
    { argv: ["GIVE", "lock:{id}", "by:{connection}"], expect: "one" },
  ] as const;

  const target = (port: number): TargetSpec => ({
    kind: "resp-cycle",
    port,
    steps: STEPS,
    ids: { kind: "sequence", from: 7 },
  });

  test("each step is sent when the one before it was answered, with the id and the connection of its cycle", async () => {
    const port = await start(([name]) => (name === "TAKE" ? ":42\r\n" : ":1\r\n"));
    const load = {
      kind: "closed",
      connections: 3,
      depth: 4,
      warmupMs: 0,
      durationMs: 30_000,
      requestsMax: 200,
    } as const;
    const result = await runClosedLoop({ ...load, target: target(port) });
    expect(result).toMatchObject({ answered: 200, errors: 0 });
    const commands = scripted?.commands ?? [];
    expect(commands).toHaveLength(400);
    const takenBy = new Map<string, string>();
    for (const [name, lock = "", by = ""] of commands) {
      if (name === "TAKE") {
        expect(takenBy.has(lock)).toBe(false);
        takenBy.set(lock, by);
      } else {
        expect(takenBy.get(lock)).toBe(by);
      }
    }
    expect(takenBy.size).toBe(200);
    expect(takenBy.has("lock:000000000007")).toBe(true);
    expect(takenBy.has("lock:000000000206")).toBe(true);
    expect(new Set(takenBy.values())).toEqual(new Set(["by:000000000000", "by:000000000001", "by:000000000002"]));
  });

  test("a wrong reply ends the cycle and is counted once, with the command that got it", async () => {
    const port = await start(([name]) => (name === "TAKE" ? "$-1\r\n" : ":1\r\n"));
    const load = { kind: "closed", connections: 1, depth: 1, warmupMs: 0, durationMs: 30_000, requestsMax: 5 } as const;
    const result = await runClosedLoop({ ...load, target: target(port) });
    expect(result).toMatchObject({ answered: 5, errors: 5 });
    expect(result.firstError).toContain("TAKE: unexpected reply null");
    expect(scripted?.commands.every(([name]) => name === "TAKE")).toBe(true);
  });
});

function job(port: number, part: Partial<ContentionJob>): ContentionJob {
  return {
    kind: "contention",
    port,
    contestants: "LOCK.ACQUIRE BLOCK",
    clients: 5,
    lock: "one",
    warmupMs: 100,
    durationMs: 400,
    ...part,
  };
}

/** What ioredis asks before it counts as connected. */
function greeting([name = ""]: readonly string[]): string | null {
  if (/^info$/i.test(name)) return "$9\r\nloading:0\r\n";
  if (/^lease\.grant$/i.test(name)) return "*3\r\n$1\r\na\r\n:1000\r\n:1\r\n";
  return "+OK\r\n";
}

describe("contention", () => {
  test("fails when a server gives the lock to two at once", async () => {
    const port = await start((argv) => (/^lock\./i.test(argv[0] ?? "") ? ":1\r\n" : greeting(argv)));
    await expect(runContention(job(port, {}))).rejects.toThrow("held the lock at once");
  });

  test("fails when nobody gets the lock", async () => {
    const port = await start((argv) => (/^lock\./i.test(argv[0] ?? "") ? null : greeting(argv)));
    await expect(runContention(job(port, {}))).rejects.toThrow("nobody got the lock");
  });

  test("fails with what a command failed with", async () => {
    const port = await start((argv) => (/^lock\./i.test(argv[0] ?? "") ? "-NOLEASE gone\r\n" : greeting(argv)));
    await expect(runContention(job(port, {}))).rejects.toThrow("NOLEASE gone");
  });

  test("a client that gets its own lock back is no hand-over", async () => {
    const port = await start((argv) => (/^lock\./i.test(argv[0] ?? "") ? ":1\r\n" : greeting(argv)));
    const result = await runContention(job(port, { clients: 1 }));
    expect(result.sent).toBeGreaterThan(0);
    expect(result.answered).toBe(0);
  });
});

const servers = useServers();

describe("contention against a real server", () => {
  test("Leasehold's queue hands the lock to another client each time", async () => {
    const server = await servers.start();
    const result = await runContention(job(server.port, { warmupMs: 500, durationMs: 1000 }));
    expect(result.errors).toBe(0);
    expect(result.answered).toBeGreaterThan(0);
    expect(result.answered).toBe(result.sent);
    // Those who were waiting at the end are counted too: all but the holder, if there was one in that moment.
    expect(result.latency.count - result.answered).toBeGreaterThanOrEqual(3);
  });

  test.each(["redlock", "redis-semaphore"] as const)("%s takes and gives back", async (contestants) => {
    const server = await servers.start();
    const result = await runContention(job(server.port, { contestants, clients: 2, warmupMs: 500, durationMs: 1000 }));
    expect(result.errors).toBe(0);
    expect(result.sent).toBeGreaterThan(0);
    expect(result.sent).toBeGreaterThanOrEqual(result.answered);
  });
});
