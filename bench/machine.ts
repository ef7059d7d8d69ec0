import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { availableParallelism, cpus, release, totalmem } from "node:os";

import type { Machine } from "./report/results.js";
import { versionOf } from "./systems/launch.js";

/** What a reader has to know about the machine to judge the figures. */
export function describeMachine(dataDirectory: string): Machine {
  return {
    cpu: cpus()[0]?.model.trim() ?? "unknown",
    cores: availableParallelism(),
    memoryGiB: Math.round(totalmem() / 2 ** 30),
    kernel: release(),
    node: process.versions.node,
    redis: (versionOf("redis-server") ?? "none").split(" sha=")[0] ?? "",
    etcd: versionOf("etcd"),
    disk: fileSystemOf(dataDirectory),
  };
}

export function currentCommit(directory: string): string {
  const git = (...argv: string[]): string =>
    execFileSync("git", argv, { cwd: directory, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] }).trim();
  try {
    const isDirty = git("status", "--porcelain", "--untracked-files=no", "--", "src", "package-lock.json") !== "";
    return git("rev-parse", "--short", "HEAD") + (isDirty ? " with changes" : "");
  } catch {
    // Not a git checkout, or no git.
    return "unknown";
  }
}

/** File system type of a path, from the longest matching mount point. */
function fileSystemOf(path: string): string {
  let best = { point: "", type: "unknown" };
  for (const line of readFileSync("/proc/mounts", "utf8").split("\n")) {
    const [, point = "", type = ""] = line.split(" ");
    const holds = path === point || path.startsWith(point.endsWith("/") ? point : `${point}/`);
    if (point !== "" && holds && point.length >= best.point.length) best = { point, type };
  }
  return best.type;
}
