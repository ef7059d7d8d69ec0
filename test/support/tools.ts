/**
 * What a suite needs beyond npm: programs (scripts/test-tools.json) and rights (mounting, time namespaces). A suite names
 * its needs; where one is missing it is skipped with a line that says so, and under CI=true it fails instead (but for tools that are
 * optional), so that a machine that lost a tool cannot pass by testing less.
 */
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { describe, test } from "vitest";

interface Tool {
  readonly name: string;
  readonly package: string;
  readonly probe: string;
  /** Not installed by `npm test`; without it its suite is skipped with CI=true too. */
  readonly isOptional?: boolean;
}

const TOOLS = JSON.parse(readFileSync(new URL("../../scripts/test-tools.json", import.meta.url), "utf8")) as Tool[];

/** Rights, each with the command that shows them. */
const RIGHTS: Readonly<Record<string, string>> = {
  "loop-mount": 'test "$(id -u)" = 0 && test -e /dev/loop-control && test -e /proc/self/mountinfo',
  "time-namespace": "unshare --time --monotonic 1000 true",
  ptrace: "strace -o /dev/null true",
};

const known = new Map<string, boolean>();

function probe(name: string, command: string): boolean {
  let present = known.get(name);
  if (present === undefined) {
    present = spawnSync("sh", ["-c", command], { stdio: "ignore" }).status === 0;
    known.set(name, present);
  }
  return present;
}

/** The names among `needs` that this machine does not have. */
export function missing(needs: readonly string[]): string[] {
  return needs.filter((name) => {
    const command = TOOLS.find((tool) => tool.name === name)?.probe ?? RIGHTS[name];
    if (command === undefined) throw new Error(`neither a tool of test-tools.json nor a right: ${name}`);
    return !probe(name, command);
  });
}

/** `describe` for a suite that needs tools or rights. Skipped without them; with CI=true a failure. */
export function describeWith(needs: readonly string[], name: string, suite: () => void): void {
  const absent = missing(needs);
  if (absent.length === 0) {
    describe(name, suite);
    return;
  }
  const why = `needs ${absent.join(", ")}`;
  const isOptional = absent.every((need) => TOOLS.some((tool) => tool.name === need && tool.isOptional === true));
  if (process.env["CI"] === "true" && !isOptional) {
    describe(name, () => {
      test(why, () => {
        throw new Error(`${name}: ${why}, and CI=true allows no skipped suite`);
      });
    });
    return;
  }
  process.stderr.write(`skipped: ${name} (${why})\n`);
  describe.skip(`${name} (${why})`, suite);
}

/** Path of the preload library of Debian's package libfaketime. */
export function faketimeLibrary(): string {
  const found = spawnSync("sh", ["-c", "ls /usr/lib/*/faketime/libfaketime.so.1"], { encoding: "utf8" });
  return found.stdout.trim().split("\n")[0] ?? "";
}
