/**
 * `npm test`: puts the tools in place that the tests drive (redis-cli, strace, ...), runs vitest over the built code and
 * ends with one plain line, `N passed, N failed`, counted from vitest's own results. Arguments go to vitest:
 * `npm test -- test/engine`.
 *
 * As root on Debian, missing tools are installed, but for optional ones, which take more than half a minute. Elsewhere the suites that need them are skipped, each with a line that
 * says so (`test/support/tools.ts`); with CI=true they fail, and lint, format and a short run on every supported version of Node count as further checks.
 */
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));
const inCi = process.env.CI === "true";
const vitestArgs = process.argv.slice(2);

/** The tools of test-tools.json whose probe fails, as `{ name, package }`. */
function missingTools() {
  const tools = JSON.parse(readFileSync(join(root, "scripts/test-tools.json"), "utf8"));
  return tools.filter((tool) => spawnSync("sh", ["-c", tool.probe], { stdio: "ignore" }).status !== 0);
}

function installMissingTools() {
  const missing = missingTools().filter((tool) => tool.isOptional !== true);
  if (missing.length === 0) return;
  const packages = [...new Set(missing.map((tool) => tool.package))];
  if (process.getuid?.() === 0 && spawnSync("apt-get", ["--version"], { stdio: "ignore" }).status === 0) {
    console.log(`installing test tools: ${packages.join(" ")}`);
    spawnSync(join(root, "scripts/install-test-tools.sh"), packages, { stdio: "inherit" });
  }
  for (const tool of missingTools()) {
    const consequence =
      inCi && tool.isOptional !== true ? "suites that need it will fail" : "suites that need it are skipped";
    console.log(`missing test tool ${tool.name} (Debian package ${tool.package}): ${consequence}`);
  }
}

/** What CI runs besides the tests: npm scripts with their arguments. */
const CI_CHECKS = [["lint"], ["runtimes", "--", "--smoke"]];

function runChecks() {
  const checks = inCi && vitestArgs.length === 0 ? CI_CHECKS : [];
  return checks.map((script) => {
    const { status } = spawnSync("npm", ["run", "--silent", ...script], { cwd: root, stdio: "inherit" });
    return { name: script.join(" "), passed: status === 0 };
  });
}

/** Runs vitest. Returns its counts; a file that fails to load, or a run that ends without a verdict, is a failure. */
function runVitest() {
  const scratch = mkdtempSync(join(tmpdir(), "leasehold-test-"));
  const resultsFile = join(scratch, "results.json");
  try {
    const vitest = join(root, "node_modules/vitest/vitest.mjs");
    const reporters = ["--reporter=default", "--reporter=json", `--outputFile.json=${resultsFile}`];
    const run = spawnSync(process.execPath, [vitest, "run", ...reporters, ...vitestArgs], {
      cwd: root,
      stdio: "inherit",
      env: { ...process.env, NODE_ENV: "test" },
    });
    return countResults(resultsFile, run.status);
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

function countResults(resultsFile, exitStatus) {
  let results;
  try {
    results = JSON.parse(readFileSync(resultsFile, "utf8"));
  } catch {
    console.log("vitest wrote no results");
    return { passed: 0, failed: 1, skipped: 0 };
  }
  const filesNotLoaded = results.testResults.filter(
    (file) => file.status === "failed" && !file.assertionResults.some((test) => test.status === "failed"),
  );
  for (const file of filesNotLoaded) console.log(`failed outside of its tests: ${file.name}`);
  const counts = {
    passed: results.numPassedTests,
    failed: results.numFailedTests + filesNotLoaded.length,
    skipped: results.numPendingTests + results.numTodoTests,
  };
  if (exitStatus !== 0 && counts.failed === 0) {
    console.log(`vitest ended with status ${exitStatus} although no test failed`);
    counts.failed = 1;
  }
  return counts;
}

installMissingTools();
const checks = runChecks();
const counts = runVitest();
const checksFailed = checks.filter((check) => !check.passed);
for (const check of checksFailed) console.log(`failed check: npm run ${check.name}`);
const passed = counts.passed + checks.length - checksFailed.length;
const failed = counts.failed + checksFailed.length;
console.log(`${passed} passed, ${failed} failed${counts.skipped > 0 ? `, ${counts.skipped} skipped` : ""}`);
process.exitCode = failed > 0 || passed === 0 ? 1 : 0;
