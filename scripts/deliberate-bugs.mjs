/**
 * Puts bugs into the server, one at a time, and expects the end-to-end suites to notice:
 *
 *     node scripts/deliberate-bugs.mjs                all bugs of test/faults/deliberate-bugs.mjs
 *     node scripts/deliberate-bugs.mjs skip-sync      one of them
 *
 * First each suite must pass as it is, or a failure would mean nothing. Build first.
 */
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { BUGS } from "../test/faults/deliberate-bugs.mjs";

const root = fileURLToPath(new URL("..", import.meta.url));
const asked = process.argv.slice(2);
const unknown = asked.filter((name) => !(name in BUGS));
if (unknown.length > 0) {
  console.log(`no such bug: ${unknown.join(", ")}; there are ${Object.keys(BUGS).join(", ")}`);
  process.exit(2);
}
const names = asked.length > 0 ? asked : Object.keys(BUGS);

function suitesPass(files, bug) {
  const env = { ...process.env, ...(bug === null ? {} : { LEASEHOLD_TEST_BUG: bug }) };
  const vitest = ["node_modules/vitest/vitest.mjs", "run", "--reporter=dot", "--bail=1", ...files];
  const run = spawnSync(process.execPath, vitest, { cwd: root, env, encoding: "utf8", maxBuffer: 1 << 28 });
  return { passed: run.status === 0, output: run.stdout + run.stderr };
}

const allFiles = [...new Set(names.flatMap((name) => BUGS[name].files))];
const asItIs = suitesPass(allFiles, null);
if (!asItIs.passed) {
  console.log(`${asItIs.output}\nthe suites fail without any bug`);
  process.exit(1);
}
const missed = [];
for (const name of names) {
  const { wrong, files } = BUGS[name];
  for (const file of files) {
    const { passed } = suitesPass([file], name);
    console.log(`${passed ? "MISSED" : "caught"}  ${name} (${wrong}) by ${file}`);
    if (passed) missed.push(`${name} by ${file}`);
  }
}
console.log(missed.length === 0 ? "all bugs were caught" : `missed: ${missed.join(", ")}`);
process.exitCode = missed.length === 0 ? 0 : 1;
