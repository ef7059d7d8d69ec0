import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";

/**
 * Prints the hottest functions of V8 CPU profiles: `node dist-dev/bench/profile.js FILE|DIRECTORY [HOW_MANY]`. Self time as a share
 * of the time in which the thread was not idle.
 */

interface CpuProfile {
  readonly nodes: readonly {
    readonly id: number;
    readonly callFrame: { readonly functionName: string; readonly url: string; readonly lineNumber: number };
  }[];
  readonly samples: readonly number[];
  /** Microseconds, one per sample. */
  readonly timeDeltas: readonly number[];
}

function hottest(profile: CpuProfile, howMany: number): string[] {
  const names = new Map(
    profile.nodes.map(({ id, callFrame }) => {
      const file = callFrame.url.split("/").slice(-2).join("/");
      return [
        id,
        `${callFrame.functionName || "(anonymous)"} ${file}${file === "" ? "" : `:${callFrame.lineNumber + 1}`}`,
      ];
    }),
  );
  const selfUs = new Map<string, number>();
  for (const [index, id] of profile.samples.entries()) {
    const name = names.get(id) ?? "?";
    selfUs.set(name, (selfUs.get(name) ?? 0) + (profile.timeDeltas[index] ?? 0));
  }
  const idleUs = selfUs.get("(idle) ") ?? 0;
  selfUs.delete("(idle) ");
  const busyUs = [...selfUs.values()].reduce((sum, us) => sum + us, 0);
  return [
    `busy ${(busyUs / 1e6).toFixed(2)} s, idle ${(idleUs / 1e6).toFixed(2)} s`,
    ...[...selfUs]
      .sort(([, a], [, b]) => b - a)
      .slice(0, howMany)
      .map(([name, us]) => `${((100 * us) / busyUs).toFixed(1).padStart(6)} %  ${name}`),
  ];
}

const [path, howMany = "30"] = process.argv.slice(2);
if (path === undefined) {
  process.stderr.write("usage: node dist-dev/bench/profile.js FILE|DIRECTORY [HOW_MANY]\n");
  process.exit(2);
}
const files = statSync(path).isDirectory()
  ? readdirSync(path)
      .filter((name) => name.endsWith(".cpuprofile"))
      .map((name) => join(path, name))
  : [path];
for (const file of files) {
  const profile = JSON.parse(readFileSync(file, "utf8")) as CpuProfile;
  process.stdout.write(`${file}\n${hottest(profile, Number(howMany)).join("\n")}\n\n`);
}
