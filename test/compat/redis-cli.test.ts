import { spawn } from "node:child_process";
import { expect, test } from "vitest";
import { until, within } from "../support/poll.js";
import { encodeCommand } from "../support/resp-client.js";
import { useServers, type Server } from "../support/server.js";
import { run, runOk } from "../support/subprocess.js";
import { describeWith } from "../support/tools.js";

/** redis-cli in its several modes. */

describeWith(["redis-cli"], "redis-cli", () => {
  const servers = useServers("suite");
  let shared: Promise<Server> | null = null;

  async function port(): Promise<number> {
    shared ??= servers.start();
    const server = await shared;
    await (await server.connect()).call("FLUSHALL");
    return server.port;
  }

  test.each([
    ["RESP2", []],
    ["RESP3", ["-3"]],
  ] as const)("one command per run, %s", async (_name, flags) => {
    const at = ["-p", String(await port()), ...flags];
    const cli = async (...args: string[]): Promise<string> => (await runOk("redis-cli", [...at, ...args])).trimEnd();
    expect(await cli("LEASE.GRANT", "a", "10", "KEY", "k", "v")).toMatch(/^a\n10000\n\d+$/);
    expect(await cli("LEASE.KEEPALIVE", "a")).toBe("10000");
    expect(await cli("GET", "k")).toBe("v");
    expect(["9", "10"]).toContain(await cli("LEASE.TTL", "a"));
    expect(await cli("--no-raw", "LEASE.INFO", "a")).toContain('"ttl"');
    expect(await cli("LEASE.KEEPALIVE", "none")).toMatch(/^NOLEASE /);
    expect(await cli("LEASE.REVOKE", "a")).toBe("1");
    expect(await cli("--no-raw", "GET", "k")).toBe("(nil)");
    expect(await cli("-n", "3", "DBSIZE")).toBe("0");
    expect(await cli("INFO", "server")).toMatch(/^redis_version:\d+\.\d+\.\d+\r?$/m);
  });

  test("commands from standard input", async () => {
    const input = "lease.grant a 60 key k 'two words'\nget k\nlease.revoke a\n";
    const out = await runOk("redis-cli", ["-p", String(await port())], { input });
    expect(out).toMatch(/^a\n60000\n\d+\n\n?two words\n1\n$/);
  });

  test("--pipe", async () => {
    const count = 5000;
    const grants = Array.from({ length: count }, (_, index) => encodeCommand(["LEASE.GRANT", `p-${index}`, 60]));
    const at = ["-p", String(await port())];
    const out = await runOk("redis-cli", [...at, "--pipe"], { input: Buffer.concat(grants) });
    expect(out).toContain(`errors: 0, replies: ${count}`);
    expect((await runOk("redis-cli", [...at, "LEASE.KEEPALIVE", "p-0", `p-${count - 1}`])).trimEnd()).toBe(
      "60000\n60000",
    );
  });

  test("--scan", async () => {
    const at = ["-p", String(await port())];
    const input = Array.from({ length: 300 }, (_, index) => `LEASE.GRANT s-${index} 60 KEY key:${index} v\n`).join("");
    await runOk("redis-cli", at, { input });
    const keys = (await runOk("redis-cli", [...at, "--scan", "--pattern", "key:*"])).trimEnd().split("\n");
    expect(new Set(keys).size).toBe(300);
  });

  test("--stat", async () => {
    const args = ["-p", String(await port()), "--stat", "-i", "0.1"];
    const child = spawn("redis-cli", args, { stdio: ["ignore", "pipe", "pipe"] });
    let out = "";
    child.stdout.on("data", (chunk: Buffer) => {
      out += chunk.toString();
    });
    const rows = (): string[] =>
      out.split("\n").filter((line) => /^\d+\s+\S+\s+\d+\s+\d+\s+\d+ \(\+\d+\)\s+\d+/.test(line));
    try {
      await until("five rows of figures", () => rows().length >= 5);
    } finally {
      child.kill("SIGKILL");
    }
    expect(out).toMatch(/keys\s+mem\s+clients\s+blocked\s+requests/);
  });

  test("--latency", async () => {
    const out = await runOk("redis-cli", ["-p", String(await port()), "--latency", "--raw", "-i", "1"]);
    expect(out).toMatch(/^\d+ \d+ [\d.]+ \d+/);
  });

  test("subscribed, in both protocols", async () => {
    const at = await port();
    for (const flags of [[], ["-3"]]) {
      const child = spawn("redis-cli", ["-p", String(at), ...flags, "SUBSCRIBE", "lease:told"], {
        stdio: ["ignore", "pipe", "pipe"],
      });
      let out = "";
      child.stdout.on("data", (chunk: Buffer) => {
        out += chunk.toString();
      });
      try {
        await until("the subscription", () => out.includes("subscribe"));
        await runOk("redis-cli", ["-p", String(at), "LEASE.GRANT", "told", "PX", "50"]);
        await until("the event", () => /expired late-ms=\d+/.test(out));
      } finally {
        child.kill("SIGKILL");
      }
    }
  });

  test("interactive, with hints from COMMAND DOCS", async () => {
    const at = await port();
    const command = `stty cols 160 rows 40; TERM=xterm HOME=/nonexistent exec redis-cli -p ${at}`;
    const child = spawn("script", ["-qfec", command, "/dev/null"], { stdio: ["pipe", "pipe", "inherit"] });
    let out = "";
    child.stdout.on("data", (chunk: Buffer) => {
      out += chunk.toString();
    });
    const exited = new Promise<number | null>((resolve) => {
      child.once("close", resolve);
    });
    // redis-cli throws away what was typed before it shows its prompt: a line may be typed when the prompt stands last.
    // oxlint-disable-next-line no-control-regex -- the escapes that a terminal gets are what has to be taken out
    const atPrompt = (): boolean => out.replaceAll(/\u001B\[[\d;]*[A-Za-z]|\r/gu, "").endsWith(`127.0.0.1:${at}> `);
    let seenBefore = 0;
    const type = async (line: string): Promise<void> => {
      await until("the prompt", () => out.length > seenBefore && atPrompt());
      seenBefore = out.length;
      child.stdin.write(line);
    };
    try {
      await type("lease.grant ");
      await until("the hint of LEASE.GRANT's arguments", () => /lease\.grant .*(ttl|seconds)/is.test(out));
      child.stdin.write("typed 60\r");
      await until("the reply", () => /2\) \(integer\) 60000/.test(out));
      await type("lease.keepal\t");
      await until("the completion", () => /lease\.keepalive/i.test(out));
      child.stdin.write(" typed\r");
      await until("the reply", () => /\n\(integer\) 60000/.test(out));
      await type("help lease.revoke\r");
      await until("the help", () => /summary:/.test(out));
      await type("help @leases\r");
      await type("quit\r");
      expect(await within("redis-cli to end", exited)).toBe(0);
    } finally {
      child.kill("SIGKILL");
    }
    expect(out).not.toMatch(/assert/i);
  });

  test("MONITOR shows what others send", async () => {
    const at = String(await port());
    const child = spawn("redis-cli", ["-p", at, "MONITOR"], { stdio: ["ignore", "pipe", "pipe"] });
    let out = "";
    child.stdout.on("data", (chunk: Buffer) => {
      out += chunk.toString();
    });
    try {
      await until("MONITOR to begin", () => out.includes("OK"));
      await run("redis-cli", ["-p", at, "LEASE.PTTL", "watched"]);
      await until("the command", () => /^\d+\.\d{6} \[0 127\.0\.0\.1:\d+\] "LEASE.PTTL" "watched"$/m.test(out));
    } finally {
      child.kill("SIGKILL");
    }
  });
});
