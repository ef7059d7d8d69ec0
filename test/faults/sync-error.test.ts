import { readdirSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { CrashRun } from "../support/crash-run.js";
import { useServers, type Server } from "../support/server.js";
import {
  SYNC_CALLS,
  Trace,
  WRITE_CALLS,
  isFile,
  isSocket,
  succeeded,
  target,
  type SystemCall,
} from "../support/strace.js";
import { describeWith } from "../support/tools.js";

/** EIO from the disk: the process ends, acknowledges nothing more, and never tries the same sync again. */

describeWith(["strace", "ptrace"], "EIO", () => {
  const servers = useServers();

  /** The path of the one file below a directory whose name matches. */
  function fileOf(server: Server, name: RegExp): string {
    const files = readdirSync(server.dir, { recursive: true, encoding: "utf8" });
    const found = files.find((file) => name.test(file));
    if (found === undefined) throw new Error(`no file ${String(name)} among ${files.join(", ")}`);
    return join(server.dir, found);
  }

  /** Lease ids in grants' replies (the only arrays of three that the workload gets) whose record no sync had covered. */
  function repliedUnsynced(seen: readonly SystemCall[]): string[] {
    const syncs = seen.filter((call) => SYNC_CALLS.includes(call.name) && succeeded(call));
    return seen
      .filter((call) => isSocket(call) && WRITE_CALLS.includes(call.name))
      .flatMap((reply) =>
        [...reply.args.matchAll(/\*3\\r\\n\$\d+\\r\\n(c\d+-\d+-\d+)\\r/g)].flatMap(([, id = ""]) => {
          const record = seen.find((call) => call.entry < reply.entry && isFile(call) && holdsId(call, id));
          // written before strace was attached: nothing to be said about it
          if (record === undefined) return [];
          const covered = syncs.some(
            (sync) => target(sync) === target(record) && sync.entry > record.entry && sync.exit < reply.entry,
          );
          return covered ? [] : [id];
        }),
      );
  }

  const holdsId = (call: SystemCall, id: string): boolean =>
    WRITE_CALLS.includes(call.name) && new RegExp(`own-${id}(?!\\d)`).test(call.args);

  async function failsStop(server: Server): Promise<void> {
    const exit = await server.exit();
    expect(exit.signal, server.describe(exit)).toBeNull();
    expect(exit.code, server.describe(exit)).toBeGreaterThan(0);
    expect(server.stderr).toMatch(/error/i);
    expect(server.stderr).not.toMatch(/^\s+at /m);
  }

  test.each([
    ["the first sync and all later ones", "1+"],
    ["the twentieth sync and all later ones", "20+"],
    ["one sync, after which the disk would work again", "5"],
  ])("from %s", async (_name, when) => {
    const run = new CrashRun(servers, servers.directory());
    const server = await run.start();
    await run.load(server, 100);
    const trace = await Trace.attach(server.pid, {
      calls: [...SYNC_CALLS, ...WRITE_CALLS],
      inject: [`fdatasync,fsync:error=EIO:when=${when}`],
    });
    await run.load(server, 100_000);
    await failsStop(server);
    const seen = await trace.detach();
    await run.gone(server);

    const failed = seen.find((call) => SYNC_CALLS.includes(call.name) && call.result.includes("EIO"));
    if (failed === undefined) expect.fail("no sync failed");
    const after = seen.filter((call) => call.entry > failed.exit);
    const syncedAgain = after.filter((call) => SYNC_CALLS.includes(call.name) && target(call) === target(failed));
    expect(syncedAgain.filter(succeeded), "the failed sync was tried again").toEqual([]);
    expect(repliedUnsynced(seen), "grants acknowledged although their record was not synced").toEqual([]);
    await run.judge();
  });

  test.each([
    ["the log", /\d+\.log$/, ["write", "pwrite64", "writev"]],
    ["the witness", /WITNESS$/, ["write", "pwrite64", "fdatasync", "fsync"]],
  ] as const)("from a write to %s", async (_name, file, calls) => {
    const run = new CrashRun(servers, servers.directory());
    const server = await run.start();
    await run.load(server, 100);
    const trace = await Trace.attach(server.pid, {
      calls,
      inject: [`${calls.join(",")}:error=EIO:when=3`],
      paths: [fileOf(server, file)],
    });
    await run.load(server, 100_000);
    await failsStop(server);
    const seen = await trace.detach();
    await run.gone(server);
    expect(seen.some((call) => isFile(call) && call.result.includes("EIO"))).toBe(true);
    await run.judge();
  });
});
