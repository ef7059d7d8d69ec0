import { type ChildProcess, spawn } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, statSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { acquire, close, loadPages, refusalOf, rocksStore, temporaryDirectory } from "../real.js";
import { decodeAll } from "../ops.js";

/**
 * Processes that end without a word: nothing acknowledged is lost, nothing that is lost goes unnoticed. What a killed process has
 * written outlives it on any file system, so these run where syncs cost nothing.
 */

const writerPath = fileURLToPath(new URL("crash-writer.mjs", import.meta.url));

let directory: ReturnType<typeof temporaryDirectory>;
let running: ChildProcess[] = [];

beforeEach(() => {
  directory = temporaryDirectory("memory");
});

afterEach(() => {
  for (const child of running) child.kill("SIGKILL");
  running = [];
  directory.remove();
});

interface Writer {
  readonly child: ChildProcess;
  readonly lines: string[];
  /** Resolves with true once a line matches; with false when the process ends before. */
  until(pattern: RegExp): Promise<boolean>;
  readonly ended: Promise<void>;
}

function startWriter(path: string, batches: number, fault?: string): Writer {
  const child = spawn(process.execPath, [writerPath, path, String(batches), ...(fault === undefined ? [] : [fault])], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  running.push(child);
  const lines: string[] = [];
  let check: () => void = () => undefined;
  createInterface({ input: child.stdout }).on("line", (line) => {
    lines.push(line);
    check();
  });
  let over = false;
  const ended = new Promise<void>((resolve) => {
    child.on("close", () => {
      over = true;
      check();
      resolve();
    });
  });
  const until = (pattern: RegExp): Promise<boolean> =>
    new Promise((resolve) => {
      check = () => {
        const met = lines.some((line) => pattern.test(line));
        if (met || over) resolve(met);
      };
      check();
    });
  return { child, lines, until, ended };
}

const newestOf = (lines: readonly string[], word: string): number =>
  Number(lines.findLast((line) => line.startsWith(word))?.split(" ")[1] ?? 0);

/** Every acknowledged batch is there; at most one more, whose acknowledgement was under way. */
async function expectAllOf(path: string, acknowledged: number): Promise<void> {
  const store = rocksStore(path);
  const { revision } = await acquire(store);
  expect(revision).toBeGreaterThanOrEqual(acknowledged);
  expect(revision).toBeLessThanOrEqual(acknowledged + 1);
  const loaded = decodeAll(await loadPages(store));
  await close(store);
  expect(loaded.ops.map((op) => ("token" in op ? op.token : 0)).sort((a, b) => a - b)).toEqual(
    Array.from({ length: revision }, (_, index) => index + 1),
  );
}

describe("kill -9", () => {
  test("in the middle of commits, again and again: every acknowledged batch is there", async () => {
    for (let round = 1; round <= 4; round += 1) {
      const writer = startWriter(directory.path, 100_000);
      await writer.until(/^opened/);
      await writer.until(new RegExp(`^acknowledged ${newestOf(writer.lines, "opened") + 40 * round}$`));
      writer.child.kill("SIGKILL");
      await writer.ended;
      await expectAllOf(directory.path, newestOf(writer.lines, "acknowledged"));
    }
  });

  test("then damage to the very last record of the log: refused, although no sync of the witness ever covered it", async () => {
    const writer = startWriter(directory.path, 30);
    await writer.until(/^idle$/);
    writer.child.kill("SIGKILL");
    await writer.ended;
    const logs = readdirSync(join(directory.path, "rocksdb")).filter((name) => name.endsWith(".log"));
    const log = join(directory.path, "rocksdb", logs.sort().at(-1) ?? "");
    truncateSync(log, statSync(log).size - 1);
    const refusal = await refusalOf(rocksStore(directory.path));
    expect(refusal.message).toContain("ends at revision 29, but revision 30 was acknowledged");
  });

  test.each(["open:after-lock", "witness:before-rename", "witness:after-rename"])(
    "at %s while the store is created: the next start creates it or opens it",
    async (point) => {
      const writer = startWriter(directory.path, 10, `${point} exit`);
      await writer.ended;
      expect(writer.lines).toEqual([]);
      const store = rocksStore(directory.path);
      expect((await acquire(store)).revision).toBe(0);
      await close(store);
    },
  );

  test.each([
    "open:after-lock",
    "witness:before-rename",
    "witness:after-rename",
    "commit:before-write",
    "commit:after-write",
  ])("at %s on a store that holds something: nothing acknowledged is lost", async (point) => {
    const first = startWriter(directory.path, 10);
    await first.until(/^idle$/);
    first.child.kill("SIGKILL");
    await first.ended;
    const second = startWriter(directory.path, 10, `${point} exit`);
    await second.ended;
    await expectAllOf(directory.path, Math.max(10, newestOf(second.lines, "acknowledged")));
  });
});

describe("two processes", () => {
  test("the second is refused with the pid of the first, and opens once that is dead, whatever its PID file says", async () => {
    const writer = startWriter(directory.path, 5);
    await writer.until(/^idle$/);
    const refusal = await refusalOf(rocksStore(directory.path));
    expect(refusal.code).toBe("in-use");
    expect(refusal.message).toBe(`${directory.path} is in use by process ${writer.child.pid}`);
    writer.child.kill("SIGKILL");
    await writer.ended;
    expect(readFileSync(join(directory.path, "PID"), "latin1")).toBe(`${writer.child.pid}\n`);
    await expectAllOf(directory.path, 5);
  });

  test("within one process the message says so", async () => {
    const first = rocksStore(directory.path);
    await acquire(first);
    expect((await refusalOf(rocksStore(directory.path))).message).toBe(`${directory.path} is in use by this process`);
    await close(first);
    expect(readdirSync(directory.path)).not.toContain("PID");
  });

  test("two that start on the same empty directory at once: one gets it", async () => {
    const writers = [startWriter(directory.path, 3), startWriter(directory.path, 3)];
    await Promise.all(writers.map((writer) => writer.until(/^(?:idle|refused)/)));
    const outcomes = writers.map((writer) => writer.lines[0] ?? "").sort();
    expect(outcomes[0]).toBe("opened 0");
    expect(outcomes[1]).toMatch(/^refused in-use /);
    for (const writer of writers) {
      writer.child.kill("SIGKILL");
      await writer.ended;
    }
    await expectAllOf(directory.path, 3);
  });
});

describe("directories that are not for us", () => {
  test("with other files in it: refused, and nothing is written", async () => {
    writeFileSync(join(directory.path, "thesis.txt"), "important");
    const refusal = await refusalOf(rocksStore(directory.path));
    expect(refusal.code).toBe("format");
    expect(refusal.message).toContain("thesis.txt");
    expect(readdirSync(directory.path)).toEqual(["thesis.txt"]);
  });

  test("a fresh file system's lost+found is not somebody's file", async () => {
    mkdirSync(join(directory.path, "lost+found"));
    const store = rocksStore(directory.path);
    await acquire(store);
    await close(store);
  });

  test("of a newer format: refused with both versions, and nothing is written", async () => {
    const text = "leasehold store\nformat 7\nincarnation abc\nstate complete\nsomething new\ncheck 0\n";
    writeFileSync(join(directory.path, "FORMAT"), text);
    const refusal = await refusalOf(rocksStore(directory.path));
    expect(refusal.code).toBe("format");
    expect(refusal.message).toMatch(/format 7.* reads format 1/);
    expect(readdirSync(directory.path)).toEqual(["FORMAT"]);
  });

  test("that cannot be made, or are files: refused with what the system says", async () => {
    writeFileSync(join(directory.path, "file"), "");
    for (const path of ["file", "file/below"]) {
      const refusal = await refusalOf(rocksStore(join(directory.path, path)));
      expect(refusal.code).toBe("unusable");
      expect(refusal.message).toMatch(/ENOTDIR|EEXIST|not a directory/);
    }
  });

  test("that do not exist are made, for the owner alone", async () => {
    const path = join(directory.path, "a", "b");
    const store = rocksStore(path);
    await acquire(store);
    await close(store);
    expect(statSync(path).mode & 0o777).toBe(0o700);
  });
});
