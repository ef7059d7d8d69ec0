import { describe, expect, test } from "vitest";
import { useServers } from "../support/server.js";
import {
  READ_CALLS,
  SYNC_CALLS,
  Trace,
  WRITE_CALLS,
  isFile,
  isSocket,
  parseTrace,
  succeeded,
  target,
  type SystemCall,
} from "../support/strace.js";
import { describeWith } from "../support/tools.js";

/**
 * The order of one durable write, read off the system calls: the record goes into a file, a sync of that file returns, and
 * only then the reply's bytes leave.
 */

const servers = useServers();

/**
 * The requests whose reply left too early. `requests` are the words by which a request, its record and its reply are known:
 * unique lease ids. `isReply` picks the reply among the writes to sockets.
 */
function repliedTooEarly(calls: readonly SystemCall[], ids: readonly string[], replies: Replies): string[] {
  return ids.filter((id) => {
    const request = calls.find((call) => READ_CALLS.includes(call.name) && isSocket(call) && holds(call, id));
    const record = calls.find(
      (call) => WRITE_CALLS.includes(call.name) && isFile(call) && holds(call, id) && call.entry > (request?.exit ?? 0),
    );
    const reply = replies(calls, id, request);
    if (request === undefined || record === undefined || reply === undefined) return true;
    return !calls.some(
      (call) =>
        SYNC_CALLS.includes(call.name) &&
        target(call) === target(record) &&
        succeeded(call) &&
        call.entry > record.entry &&
        call.exit < reply.entry,
    );
  });
}

type Replies = (calls: readonly SystemCall[], id: string, request: SystemCall | undefined) => SystemCall | undefined;

/** Ids in these tests end in `.`, so that none is the beginning of another. */
const holds = (call: SystemCall, id: string): boolean => call.args.includes(id);

const isReplyWrite = (call: SystemCall): boolean => WRITE_CALLS.includes(call.name) && isSocket(call);

/** The first write to a socket that shows the id. */
const byContent: Replies = (calls, id) => calls.find((call) => isReplyWrite(call) && holds(call, id));

/** The next write to the socket on which the request came, for replies that do not show the id. */
const byOrder: Replies = (calls, _id, request) =>
  calls.find(
    (call) => isReplyWrite(call) && call.entry > (request?.exit ?? 0) && target(call) === target(request ?? call),
  );

const SYSTEM_CALLS = [...READ_CALLS, ...WRITE_CALLS, ...SYNC_CALLS];

describeWith(["strace", "ptrace"], "sync before reply", () => {
  test("grants one at a time", async () => {
    const server = await servers.start();
    const client = await server.connect();
    const trace = await Trace.attach(server.pid, { calls: SYSTEM_CALLS });
    const ids = Array.from({ length: 30 }, (_, index) => `one-${index}.`);
    for (const id of ids) await client.call("LEASE.GRANT", id, 60, "KEY", `key-${id}`, "v");
    expect(repliedTooEarly(await trace.detach(), ids, byContent)).toEqual([]);
  });

  test("grants of many clients that share batches", async () => {
    const server = await servers.start();
    const clients = await Promise.all(Array.from({ length: 20 }, async () => server.connect()));
    const trace = await Trace.attach(server.pid, { calls: SYSTEM_CALLS });
    const ids = clients.flatMap((_, index) => Array.from({ length: 10 }, (__, number) => `many-${index}-${number}.`));
    await Promise.all(
      clients.map(async (client, index) => {
        for (let number = 0; number < 10; number++) await client.call("LEASE.GRANT", `many-${index}-${number}.`, 60);
      }),
    );
    expect(repliedTooEarly(await trace.detach(), ids, byContent)).toEqual([]);
  });

  test("revokes, attaches, detaches and longer TTLs", async () => {
    const server = await servers.start();
    const client = await server.connect();
    for (const id of ["revoke.", "attach.", "detach.", "longer."]) {
      await client.call("LEASE.GRANT", id, 60, "KEY", `old-${id}`, "v");
    }
    const trace = await Trace.attach(server.pid, { calls: SYSTEM_CALLS });
    expect(await client.send("LEASE.REVOKE", "revoke.")).toBe(1);
    expect(await client.send("LEASE.ATTACH", "attach.", "new", "v")).toBeGreaterThan(0);
    expect(await client.send("LEASE.DETACH", "detach.", "old-detach.")).toBe(1);
    expect(await client.send("LEASE.SETTTL", "longer.", 600)).toBe(600_000);
    const ids = ["revoke.", "attach.", "detach.", "longer."];
    expect(repliedTooEarly(await trace.detach(), ids, byOrder)).toEqual([]);
  });

  test("the next holder hears of its key only after the expiry of the last one is synced", async () => {
    const server = await servers.start();
    const client = await server.connect();
    const trace = await Trace.attach(server.pid, { calls: SYSTEM_CALLS });
    await client.call("LEASE.GRANT", "expiring.", "PX", 300, "KEY", "k", "v");
    let reply = null;
    for (let round = 0; reply === null; round++) {
      reply = await client.call("LEASE.GRANT", `next-${round}.`, 60, "KEY", "k", "v");
    }
    const [holder] = reply as [string];
    const calls = await trace.detach();
    expect(repliedTooEarly(calls, [holder], byContent)).toEqual([]);
    const records = calls.filter((call) => WRITE_CALLS.includes(call.name) && isFile(call) && holds(call, "expiring."));
    // the first is the grant's, the second the removal's
    expect(records[1]?.entry).toBeLessThan(byContent(calls, holder, undefined)?.entry ?? 0);
  });
});

describe("the audit itself", () => {
  const RECORD = '11 write(20</d/1.log>, "..x-1...", 40) = 40';
  const SYNC = "11 fdatasync(20</d/1.log>) = 0";
  const REQUEST = '10 read(19<TCP:[1:1->1:2]>, "LEASE.GRANT x-1.", 65536) = 30';
  const REPLY = '10 write(19<TCP:[1:1->1:2]>, "*3 x-1.", 20) = 20';
  const audit = (...lines: string[]): string[] => repliedTooEarly(parseTrace(lines.join("\n")), ["x-1."], byContent);

  test("accepts a reply after the sync", () => {
    expect(audit(REQUEST, RECORD, SYNC, REPLY)).toEqual([]);
    const begun = "11 fdatasync(20</d/1.log> <unfinished ...>";
    const ended = "11 <... fdatasync resumed>) = 0";
    expect(audit(REQUEST, RECORD, begun, ended, REPLY)).toEqual([]);
  });

  test.each([
    ["a reply without a sync", [REQUEST, RECORD, REPLY]],
    ["a reply before the sync", [REQUEST, RECORD, REPLY, SYNC]],
    ["a sync before the record", [REQUEST, SYNC, RECORD, REPLY]],
    ["a sync of another file", [REQUEST, RECORD, "11 fdatasync(21</d/2.log>) = 0", REPLY]],
    ["a sync that failed", [REQUEST, RECORD, "11 fdatasync(20</d/1.log>) = -1 EIO (Input/output error)", REPLY]],
    [
      "a reply while the sync is going on",
      [REQUEST, RECORD, "11 fdatasync(20</d/1.log> <unfinished ...>", REPLY, "11 <... fdatasync resumed>) = 0"],
    ],
    ["a reply without a record", [REQUEST, SYNC, REPLY]],
  ])("catches %s", (_name, lines) => {
    expect(audit(...lines)).toEqual(["x-1."]);
  });
});
