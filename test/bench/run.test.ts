import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import { expect, test } from "vitest";

import { readResults } from "../../bench/report/write.js";
import { run } from "../support/subprocess.js";
import { useServers } from "../support/server.js";
import { describeWith } from "../support/tools.js";

/** The command itself, in runs that end early: what they had found by then must not be lost. */

const MAIN = fileURLToPath(new URL("../../dist-dev/bench/main.js", import.meta.url));
const directories = useServers();

describeWith(["redis-server", "redis-benchmark"], "npm run bench", () => {
  test("at its time limit writes what it has, says what is missing, and fails", async () => {
    const directory = directories.directory();
    const out = join(directory, "report");
    const scenarios = ["--quick", "--only", "disk,latency,tmpfs", "--minutes-max", "0.03"];
    const places = ["--dir", join(directory, "data"), "--out", out];
    const { code, stdout } = await run(process.execPath, [MAIN, ...scenarios, ...places], { withinMs: 120_000 });
    expect(code).toBe(1);
    const results = readResults(join(out, "results.json"));
    const stateOf = (name: string): string | undefined =>
      results.scenarios.find((scenario) => scenario.name === name)?.state;
    expect(stateOf("disk")).toBe("measured");
    expect(stateOf("latency")).toBe("cut off");
    expect(stateOf("tmpfs")).toBe("not reached");
    expect(stateOf("million")).toBe("left out");
    expect(results.figures.some(({ name }) => name === "fdatasync/p50")).toBe(true);
    expect(results.notes.join()).toContain("the limit of 0.03 minutes");
    expect(readFileSync(join(out, "results.md"), "utf8")).toContain("`tmpfs` (not reached)");
    expect(stdout).toContain("results.md");
    // Nothing is left of the servers' data.
    expect(readdirSync(join(directory, "data"))).toEqual([]);
  });

  test("goes on after a scenario that fails, keeps the others, and fails at the end", async () => {
    const directory = directories.directory();
    const out = join(directory, "report");
    const scenarios = ["--quick", "--only", "tmpfs,disk", "--server", join(directory, "no-server.mjs")];
    const places = ["--dir", join(directory, "data"), "--out", out];
    writeFileSync(join(directory, "no-server.mjs"), 'process.stderr.write("not today\\n"); process.exit(3);\n');
    const { code } = await run(process.execPath, [MAIN, ...scenarios, ...places], { withinMs: 120_000 });
    expect(code).toBe(1);
    const results = readResults(join(out, "results.json"));
    const failed = results.scenarios.find(({ name }) => name === "tmpfs");
    expect(failed?.state).toBe("failed");
    expect(failed?.reason).toContain("not today");
    expect(results.scenarios.find(({ name }) => name === "disk")?.state).toBe("measured");
  });
});
