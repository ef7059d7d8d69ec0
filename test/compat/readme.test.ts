import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { beforeEach, describe, expect, test } from "vitest";
import { until } from "../support/poll.js";
import { infoNumber, useServers, type Server } from "../support/server.js";
import { run, runOk } from "../support/subprocess.js";
import { describeWith } from "../support/tools.js";

/**
 * What the README shows is what happens: its dialogues with redis-cli are held with redis-cli, its programs are run as they stand
 * there (with another port, the names that packages have here, and a last line that tells what came of it), and its demonstration is
 * carried out.
 */

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const README = readFileSync(`${ROOT}/README.md`, "utf8");

/** The fenced blocks in a language, in their order. */
const blocks = (language: string): string[] =>
  [...README.matchAll(/^```(\w*)\n([^]*?)^```$/gm)]
    .filter(([, name]) => name === language)
    .map(([, , text]) => text ?? "");

/** The one block that has `mark` in it. */
function blockWith(language: string, mark: string): string {
  const found = blocks(language).filter((text) => text.includes(mark));
  if (found.length !== 1) throw new Error(`README.md has ${found.length} blocks '${language}' with ${mark}`);
  return found[0] ?? "";
}

const servers = useServers();
let server: Server;
beforeEach(async () => {
  server = await servers.start();
});

/** Dialogues: lines `prompt> command  # remark`, each with what the terminal shows below it. */

interface Step {
  readonly prompt: string;
  /** Empty: the terminal shows what it was still waiting for. */
  readonly command: string;
  readonly shown: readonly string[];
}

function stepsOf(dialogue: string): Step[] {
  const steps: { prompt: string; command: string; shown: string[] }[] = [];
  for (const line of dialogue.trimEnd().split("\n")) {
    const withoutRemark = line.replace(/\s{2,}# .*$/, "").trimEnd();
    const asked = /^([\w.:]+)>(?: (.*))?$/.exec(withoutRemark);
    if (asked !== null) steps.push({ prompt: asked[1] ?? "", command: asked[2] ?? "", shown: [] });
    else steps.at(-1)?.shown.push(withoutRemark);
  }
  return steps;
}

const INTEGER = /\(integer\) (-?\d+)/g;

/** Numbers up to 1 are verdicts and have to be the same; larger ones are times and tokens, which have to be numbers of that kind. */
const shapeOf = (lines: readonly string[]): string[] =>
  lines
    .filter((line) => line.trim() !== "")
    .map((line) => line.trimEnd().replace(INTEGER, (text, digits) => (Number(digits) > 1 ? "(integer) many" : text)));

async function hold(dialogue: string, flags: readonly string[]): Promise<number> {
  const watch = await server.connect();
  const waiting = new Map<string, Promise<string>>();
  const steps = stepsOf(dialogue);
  for (const { prompt, command, shown } of steps) {
    const answer =
      command === ""
        ? waiting.get(prompt)
        : runOk("redis-cli", ["-p", String(server.port), "--no-raw", ...flags, ...command.split(" ")]);
    if (answer === undefined) throw new Error(`${prompt} waits for nothing`);
    if (shown.length === 0) {
      waiting.set(prompt, answer);
      await until("the command to wait", async () => (await infoNumber(watch, "blocked_clients")) === 1);
    } else {
      expect(shapeOf((await answer).split("\n")), `${prompt}> ${command}`).toEqual(shapeOf(shown));
    }
  }
  return steps.length;
}

describeWith(["redis-cli"], "README: dialogues", () => {
  test("leases", async () => {
    expect(await hold(blockWith("", "LEASE.KEEPALIVE worker-1"), [])).toBe(7);
  });

  test("locks", async () => {
    // the dialogue is one of a server that has been in use
    await (await server.connect()).call("LEASE.GRANT", "earlier", 60);
    expect(await hold(blockWith("", "LOCK.ACQUIRE invoices"), ["-3"])).toBe(8);
  });
});

/** Runs a JavaScript block as a module; `lastLine` prints what came of it, as JSON. */
async function runModule(text: string, lastLine: string): Promise<unknown> {
  const here = text
    .replaceAll("new Redis(7379)", `new Redis(${server.port})`)
    .replace('from "redlock"', 'from "redlock5"');
  expect(here).toContain(String(server.port));
  const program = `${here}\n${lastLine}\nprocess.exit();`;
  // packages are found from the working directory, which is the repository's for every test
  return JSON.parse(await runOk(process.execPath, ["--input-type=module", "-e", program]));
}

/** A line in the place of an example's own work. */
const SAY_HELD = 'console.log(JSON.stringify(await new Redis(PORT).exists("KEY")));';
const sayHeld = (key: string): string => SAY_HELD.replace("PORT", String(server.port)).replace("KEY", key);

describe("README: programs", () => {
  test("a lease with ioredis", async () => {
    const text = blockWith("js", "LEASE.GRANT");
    const leading = text.replace(/^\/\/ \.\.\. lead.*$/m, 'const leader = await redis.get("leader");');
    const tell = 'console.log(JSON.stringify([ttlMs, typeof token, leader, await redis.get("leader")]));';
    expect(await runModule(leading, tell)).toEqual([30_000, "number", "worker-1", null]);
  });

  test("redlock", async () => {
    const text = blockWith("js", "redlock.using").replace(/^ *\/\/ \.\.\. alone.*$/m, sayHeld("invoices"));
    expect(await runModule(text, "")).toBe(1);
    expect(await (await server.connect()).call("EXISTS", "invoices")).toBe(0);
  });

  test("redis-semaphore", async () => {
    const text = blockWith("js", "new Mutex").replace(/^ *\/\/ \.\.\.$/m, sayHeld("mutex:invoices"));
    expect(await runModule(text, "")).toBe(1);
    expect(await (await server.connect()).call("EXISTS", "mutex:invoices")).toBe(0);
  });
});

describeWith(["python3-redis"], "README: redis-py", () => {
  test("its lock", async () => {
    const text = blockWith("python", ".lock(").replace("port=7379", `port=${server.port}`);
    const program = text.replace("    ...", `    print(redis.Redis(port=${server.port}).exists("invoices"))`);
    expect((await runOk("/usr/bin/python3", ["-c", program])).trim()).toBe("1");
    expect(await (await server.connect()).call("EXISTS", "invoices")).toBe(0);
  });
});

const EXAMPLE = `${ROOT}/examples/redis-loses-a-lock.mjs`;

describeWith(["redis-server"], "README: why not plain Redis", () => {
  test("Redis loses the lock, Leasehold keeps it", async () => {
    const said = await runOk(process.execPath, [EXAMPLE], { withinMs: 120_000 });
    for (const line of blockWith("", "two holders").trimEnd().split("\n")) expect(said.split("\n")).toContain(line);
  });

  test("where Redis would keep it, the demonstration says so and fails", async () => {
    const bin = servers.directory();
    // what is started as redis-server is another Leasehold
    const main = `${ROOT}/dist/main.js`;
    const pretender = `#!/bin/sh\nexec "${process.execPath}" "${main}" serve --port "$2" --dir "$4/data"\n`;
    writeFileSync(`${bin}/redis-server`, pretender, { mode: 0o755 });
    const env = { ...process.env, PATH: `${bin}:${process.env["PATH"] ?? ""}` };
    const { code, stdout } = await run(process.execPath, [EXAMPLE], { env, withinMs: 120_000 });
    expect(stdout.match(/not what was expected/g)).toHaveLength(2);
    expect(code).toBe(1);
  });
});
