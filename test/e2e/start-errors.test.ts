import { readFileSync, writeFileSync } from "node:fs";
import { createServer, type AddressInfo } from "node:net";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { OK, RespError } from "../support/resp-client.js";
import { MAIN, NODE, useServers } from "../support/server.js";
import { run, type Finished } from "../support/subprocess.js";

/** The command line: what it refuses, how it says so, and what it takes. */

const servers = useServers();
const leasehold = async (args: readonly string[], env: Record<string, string> = {}): Promise<Finished> =>
  run(NODE, [MAIN, ...args], { env: { PATH: process.env["PATH"], ...env }, withinMs: 40_000 });

/** One line on standard error, no stack trace. Returns it. */
function oneLine(finished: Finished): string {
  const lines = finished.stderr.trimEnd().split("\n");
  expect(lines, `standard error: ${finished.stderr}`).toHaveLength(1);
  expect(finished.stderr).not.toMatch(/^\s+at /m);
  expect(finished.stdout).toBe("");
  return lines[0] ?? "";
}

describe("what cannot be understood ends with exit code 2 and one line", () => {
  test.each([
    ["a port that is no number", ["serve", "--port", "many"], {}, /port/],
    ["a port out of range", ["serve", "--port", "65536"], {}, /port/],
    ["a negative number", ["serve", "--maxclients", "-5"], {}, /maxclients/],
    ["a fraction", ["serve", "--maxclients", "1.5"], {}, /maxclients/],
    ["an unknown flag", ["serve", "--prot", "7379"], {}, /--prot/],
    ["a flag without its value", ["serve", "--port"], {}, /port/],
    ["an unknown verb", ["sevre"], {}, /sevre/],
    ["an argument too many", ["serve", "now"], {}, /now/],
    ["a bad value in the environment", ["serve"], { LEASEHOLD_PORT: "many" }, /LEASEHOLD_PORT|port/],
    ["a password that AUTH could not carry", ["serve", "--requirepass", "x".repeat(513)], {}, /513.*512 bytes/],
    ["a bad choice", ["serve", "--protected-mode", "maybe"], {}, /protected-mode/],
  ] as const)("%s", async (_name, args, env, mentions) => {
    const dir = servers.directory();
    const finished = await leasehold([...args], { LEASEHOLD_DIR: join(dir, "data"), ...env });
    expect(finished.code).toBe(2);
    expect(oneLine(finished)).toMatch(mentions);
  });
});

describe("what cannot be done ends with exit code 1 and one line", () => {
  test("a directory that is a file", async () => {
    const file = join(servers.directory(), "file");
    writeFileSync(file, "not a directory");
    const finished = await leasehold(["serve", "--port", "0", "--dir", file]);
    expect(finished.code).toBe(1);
    expect(oneLine(finished)).toContain(file);
    expect(readFileSync(file, "utf8")).toBe("not a directory");
  });

  test("a directory that cannot be made", async () => {
    const file = join(servers.directory(), "file");
    writeFileSync(file, "");
    const finished = await leasehold(["serve", "--port", "0", "--dir", join(file, "below", "data")]);
    expect(finished.code).toBe(1);
    expect(oneLine(finished)).toContain(join(file, "below"));
  });

  test.skipIf(process.platform !== "linux")("a directory where the system makes none", async () => {
    const finished = await leasehold(["serve", "--port", "0", "--dir", "/proc/leasehold/data"]);
    expect(finished.code).toBe(1);
    expect(oneLine(finished)).toContain("/proc/leasehold");
  });

  test("a port that is taken", async () => {
    const other = createServer();
    await new Promise<void>((resolve) => {
      other.listen(0, "127.0.0.1", resolve);
    });
    const { port } = other.address() as AddressInfo;
    const dir = join(servers.directory(), "data");
    const finished = await leasehold(["serve", "--port", String(port), "--dir", dir]);
    other.close();
    expect(finished.code).toBe(1);
    expect(oneLine(finished)).toContain(String(port));
  });

  test("an address that this machine does not have", async () => {
    const dir = join(servers.directory(), "data");
    const args = ["serve", "--port", "0", "--bind", "192.0.2.1", "--requirepass", "secret", "--dir", dir];
    const finished = await leasehold(args);
    expect(finished.code).toBe(1);
    expect(oneLine(finished)).toContain("192.0.2.1");
    expect(finished.stderr).not.toContain("secret");
  });

  test("a directory that another server uses, with the other's pid; the other serves on", async () => {
    const first = await servers.start();
    const client = await first.connect();
    await client.call("LEASE.GRANT", "a", 60);
    const finished = await leasehold(["serve", "--port", "0", "--dir", first.dir]);
    expect(finished.code).toBe(1);
    expect(oneLine(finished)).toContain(String(first.pid));
    expect(await client.call("LEASE.GRANT", "b", 60)).toEqual(["b", 60_000, expect.any(Number)]);
    await first.kill();
    const next = await servers.start({ dir: first.dir });
    expect(await (await next.connect()).send("LEASE.PTTL", "b")).toBeGreaterThan(0);
  });
});

describe("protected mode", () => {
  test("without a password it does not listen beyond loopback", async () => {
    const dir = join(servers.directory(), "data");
    const finished = await leasehold(["serve", "--port", "0", "--bind", "0.0.0.0", "--dir", dir]);
    expect([1, 2]).toContain(finished.code);
    expect(oneLine(finished)).toMatch(/requirepass/);
  });

  test("with a password, or when told so, it does", async () => {
    const open = await servers.start({ args: ["--bind", "0.0.0.0", "--protected-mode", "no"] });
    expect(await (await open.connect()).send("PING")).toMatchObject({ text: "PONG" });
    const closed = await servers.start({ args: ["--bind", "0.0.0.0"], env: { LEASEHOLD_REQUIREPASS: "secret" } });
    const client = await closed.connect();
    expect(await client.send("LEASE.PTTL", "a")).toMatchObject({ text: "NOAUTH Authentication required." });
    expect(await client.send("AUTH", "wrong")).toMatchObject({ code: "WRONGPASS" });
    expect(await client.send("LEASE.PTTL", "a")).toBeInstanceOf(RespError);
    expect(await client.send("AUTH", "secret")).toStrictEqual(OK);
    expect(await client.send("LEASE.PTTL", "a")).toBe(-2);
    const other = await closed.connect();
    expect(await other.send("HELLO", 3)).toBeInstanceOf(RespError);
    expect(await other.send("HELLO", 3, "AUTH", "default", "secret")).toBeInstanceOf(Map);
    expect(await other.send("LEASE.PTTL", "a")).toBe(-2);
  });
});

describe("what it says about itself", () => {
  test("--help names every flag, and the environment", async () => {
    for (const args of [["--help"], ["serve", "--help"]]) {
      const finished = await leasehold(args);
      expect(finished).toMatchObject({ code: 0, stderr: "" });
      for (const word of ["--port", "--bind", "--dir", "--requirepass", "--protected-mode", "LEASEHOLD_"]) {
        expect(finished.stdout).toContain(word);
      }
    }
  });

  test("--version is the package's", async () => {
    const manifest = readFileSync(new URL("../../package.json", import.meta.url), "utf8");
    const { version } = JSON.parse(manifest) as { version: string };
    const finished = await leasehold(["--version"]);
    expect(finished).toMatchObject({ code: 0, stderr: "" });
    expect(finished.stdout).toContain(version);
  });

  test("a flag wins over the environment", async () => {
    const dir = join(servers.directory(), "data");
    const server = await servers.start({ dir, env: { LEASEHOLD_PORT: "1", LEASEHOLD_DIR: "/proc/nowhere" } });
    expect(await (await server.connect()).send("PING")).toMatchObject({ text: "PONG" });
    expect(server.port).not.toBe(1);
  });
});
