import { describe, expect, test } from "vitest";
import type { Command } from "#src/engine/command.js";
import { HAND_OVERS_PER_TURN_MAX, LOCK_INFO_LISTED_MAX } from "#src/engine/limits.js";
import * as on from "./manual-engine.js";
import { ManualEngine } from "./manual-engine.js";

/** Leases a, b, c, ... with long TTLs. */
function withLeases(...ids: string[]): ManualEngine {
  const server = new ManualEngine();
  for (const id of ids) server.run(on.grant(id, 1_000_000));
  return server;
}

const tokenOf = (server: ManualEngine): number => server.engine.state.revision;
const wrongMode = (key: string, mode: string): string => `WRONGMODE key '${key}' is held or waited for in mode ${mode}`;

interface Info {
  readonly mode: string;
  readonly limit: number | null;
  readonly holders: readonly { readonly id: string; readonly token: number; readonly value: string }[];
  readonly waiters: readonly { readonly id: string; readonly position: number }[];
}

const holders = (server: ManualEngine, key = "k"): string[] =>
  ((server.answer(on.lockInfo(key)) as Info | null)?.holders ?? []).map(({ id }) => id);
const waiters = (server: ManualEngine, key = "k"): string[] =>
  ((server.answer(on.lockInfo(key)) as Info | null)?.waiters ?? []).map(({ id }) => id);

describe("acquire and release", () => {
  test("one holder; a token that rises with every holder; the value is the lease id unless one is named", () => {
    const server = withLeases("a", "b");
    const first = server.answer(on.acquire("k", "a")) as number;
    expect(first).toBe(tokenOf(server));
    expect(server.answer(on.get("k"))).toBe("a");
    expect(server.answer(on.acquire("k", "b"))).toBeNull();
    expect(server.answer(on.release("k", "b"))).toBe(0);
    expect(server.answer(on.release("k", "a"))).toBe(1);
    expect(server.answer(on.get("k"))).toBeNull();
    const second = server.answer(on.acquire("k", "b", { value: "me" })) as number;
    expect(second).toBeGreaterThan(first);
    expect(server.answer(on.get("k"))).toBe("me");
    server.engine.checkInvariants();
  });

  test("again by the same lease: the same token at once, and nothing to write", () => {
    const server = withLeases("a");
    const token = server.answer(on.acquire("k", "a", { value: "v" }));
    expect(server.run(on.acquire("k", "a", { value: "v" }))).toMatchObject({ reply: token, ops: [] });
    expect(server.run(on.block("k", "a"))).toMatchObject({ reply: token, ops: [], waits: null });
    expect(server.run(on.acquire("k", "a", { value: "w" }))).toMatchObject({
      reply: token,
      ops: [{ valueOnly: true }],
    });
    expect(server.answer(on.get("k"))).toBe("w");
    // The other ways to the same key.
    expect(server.answer(on.attach("a", "k", "w"))).toBe(token);
    expect(server.answer(on.acquire("attached", "a"))).toBe(tokenOf(server));
  });

  test("a stale token releases nothing, also when the same lease has the key again", () => {
    const server = withLeases("a");
    const first = server.answer(on.acquire("k", "a")) as number;
    expect(server.answer(on.release("k", "a", first))).toBe(1);
    expect(server.answer(on.release("k", "a", first))).toBe(0);
    const second = server.answer(on.acquire("k", "a")) as number;
    expect(server.answer(on.release("k", "a", first))).toBe(0);
    expect(server.answer(on.check("k", second))).toBe(1);
    expect(server.answer(on.release("k", "a", second))).toBe(1);
  });

  test("no lease, no lock; a dead lease's lock is free at its deadline", () => {
    const server = withLeases("a");
    server.run(on.grant("short", 100));
    expect(server.answer(on.acquire("k", "nobody"))).toBe(on.noLease("nobody"));
    expect(server.answer(on.block("k", "nobody"))).toBe(on.noLease("nobody"));
    const token = server.answer(on.acquire("k", "short")) as number;
    server.advance(100);
    expect(server.answer(on.check("k", token))).toBe(0);
    expect(server.answer(on.acquire("k", "a"))).toBeGreaterThan(token);
    expect(server.answer(on.release("k", "short", token))).toBe(0);
    expect(server.answer(on.check("k", token))).toBe(0);
    expect(server.answer(on.check("none", token))).toBe(0);
    server.engine.checkInvariants();
  });

  test("names that begin alike have nothing to do with each other", () => {
    const server = withLeases("a", "b");
    server.run(on.acquire("test", "a"));
    expect(server.answer(on.acquire("testa", "b"))).toBe(tokenOf(server));
    const wait = server.wait(on.block("test", "b"));
    server.run(on.release("testa", "b"));
    expect(server.takeWoken()).toEqual([]);
    server.run(on.release("test", "a"));
    expect(server.takeWoken()).toEqual([[wait, tokenOf(server)]]);
  });

  test("after a restart the holder holds on under its token", () => {
    const server = withLeases("a", "b", "c");
    const token = server.answer(on.acquire("k", "a")) as number;
    const shared = ["b", "a", "c"].map((id) => server.answer(on.acquire("s", id, { mode: on.SHARED })) as number);
    server.run(on.acquire("n", "c", { mode: on.limit(2) }));
    server.restart(0);
    server.engine.checkInvariants();
    expect(server.answer(on.check("k", token))).toBe(1);
    expect(server.answer(on.acquire("k", "a"))).toBe(token);
    expect(holders(server, "s")).toEqual(["b", "a", "c"]);
    for (const one of shared) expect(server.answer(on.check("s", one))).toBe(1);
    expect(server.answer(on.lockInfo("n"))).toMatchObject({ mode: "limit", limit: 2, "holders-total": 1 });
    expect(server.answer(on.release("k", "a", token))).toBe(1);
    expect(server.answer(on.acquire("k", "b"))).toBeGreaterThan(token);
  });
});

describe("readers and writers", () => {
  test("readers together, each with its own token; writers alone", () => {
    const server = withLeases("r1", "r2", "w");
    const first = server.answer(on.acquire("k", "r1", { mode: on.SHARED })) as number;
    const second = server.answer(on.acquire("k", "r2", { mode: on.SHARED })) as number;
    expect(second).toBeGreaterThan(first);
    expect(server.answer(on.acquire("k", "w"))).toBeNull();
    expect(server.answer(on.check("k", first))).toBe(1);
    expect(server.answer(on.check("k", second))).toBe(1);
    expect(server.answer(on.get("k"))).toBe("r1");
    expect(server.answer(on.release("k", "r1", second))).toBe(0);
    expect(server.answer(on.release("k", "r1"))).toBe(1);
    expect(server.answer(on.get("k"))).toBe("r2");
    expect(server.answer(on.COUNT)).toBe(1);
    expect(server.answer(on.list())).toEqual(["k"]);
    expect(server.answer(on.scan(0))).toEqual(["0", ["k"]]);
    server.run(on.release("k", "r2"));
    expect(server.answer(on.COUNT)).toBe(0);
    expect(server.answer(on.acquire("k", "w"))).toBe(tokenOf(server));
    expect(server.answer(on.acquire("k", "r1", { mode: on.SHARED }))).toBeNull();
    server.engine.checkInvariants();
  });

  test("a waiting writer is not starved: readers that come later wait behind it", () => {
    const server = withLeases("r1", "r2", "r3", "w");
    server.run(on.acquire("k", "r1", { mode: on.SHARED }));
    const writer = server.wait(on.block("k", "w"));
    expect(server.answer(on.acquire("k", "r2", { mode: on.SHARED }))).toBeNull();
    const reader2 = server.wait(on.block("k", "r2", { mode: on.SHARED }));
    const reader3 = server.wait(on.block("k", "r3", { mode: on.SHARED }));
    server.run(on.release("k", "r1"));
    const token = tokenOf(server);
    expect(server.takeWoken()).toEqual([[writer, token]]);
    server.run(on.release("k", "w"));
    expect(server.takeWoken()).toEqual([
      [reader2, token + 2],
      [reader3, token + 3],
    ]);
    server.engine.checkInvariants();
  });

  test("a writer that gives up lets the readers behind it in", () => {
    const server = withLeases("r1", "r2", "w");
    server.run(on.acquire("k", "r1", { mode: on.SHARED }));
    const writer = server.wait(on.block("k", "w", { blockMs: 50 }));
    const reader = server.wait(on.block("k", "r2", { mode: on.SHARED }));
    server.advance(50);
    server.tick();
    expect(server.takeWoken()).toEqual([
      [writer, null],
      [reader, tokenOf(server)],
    ]);
    expect(holders(server)).toEqual(["r1", "r2"]);
  });

  test("nothing is upgraded: another mode by the same lease is refused", () => {
    const server = withLeases("a", "b");
    server.run(on.acquire("k", "a", { mode: on.SHARED }));
    expect(server.answer(on.acquire("k", "a"))).toBe(wrongMode("k", "shared"));
    server.run(on.acquire("x", "a"));
    expect(server.answer(on.acquire("x", "a", { mode: on.SHARED }))).toBe(wrongMode("x", "exclusive"));
    server.wait(on.block("k", "b"));
    expect(server.answer(on.block("k", "b", { mode: on.SHARED }))).toBe(wrongMode("k", "exclusive"));
  });

  test("ATTACH and GRANT see a shared key as held by another; FORCE takes it from all", () => {
    const server = withLeases("a", "b", "c");
    server.run(on.acquire("k", "a", { mode: on.SHARED }));
    server.run(on.acquire("k", "b", { mode: on.SHARED }));
    expect(server.answer(on.attach("a", "k"))).toBeNull();
    expect(server.answer(on.grant("d", 100, { keys: { k: "" } }))).toBeNull();
    const { reply, ops } = server.run(on.attach("b", "k", "mine", true));
    expect(ops.map((op) => op.kind)).toEqual(["key-end", "key-end", "key-put"]);
    expect(reply).toBe(tokenOf(server));
    expect(server.answer(on.lockInfo("k"))).toMatchObject({ mode: "exclusive", holders: [{ id: "b", value: "mine" }] });
    server.engine.checkInvariants();
  });

  test("DEL and SET take a shared key from all of its holders, DETACH one's own share", () => {
    const server = withLeases("a", "b");
    for (const command of [on.del("k"), on.set("k", "v")]) {
      server.run(on.acquire("k", "a", { mode: on.SHARED }));
      server.run(on.acquire("k", "b", { mode: on.SHARED }));
      const { ops } = server.run(command);
      expect(ops.filter((op) => op.kind === "key-end").map((op) => op.leaseId)).toEqual(["a", "b"]);
      expect(server.answer(on.info("a"))).toMatchObject({ keys: [], "keys-total": 0 });
      server.run(on.del("k"));
    }
    server.run(on.acquire("k", "a", { mode: on.SHARED }));
    server.run(on.acquire("k", "b", { mode: on.SHARED }));
    expect(server.answer(on.detach("b", "k"))).toBe(1);
    expect(holders(server)).toEqual(["a"]);
    server.engine.checkInvariants();
  });

  test("DBSIZE, GET and TTL of a shared key whose holders die one by one", () => {
    const server = withLeases("long");
    server.run(on.grant("x", 100));
    server.run(on.grant("y", 200));
    for (const id of ["x", "y", "long"]) server.run(on.acquire("k", id, { mode: on.SHARED }));
    server.run(on.acquire("only-x", "x", { mode: on.SHARED }));
    server.advance(100);
    expect(server.answer(on.COUNT)).toBe(1);
    expect(server.answer(on.get("k"))).toBe("y");
    expect(server.answer(on.keyPttl("k"))).toBe(100);
    server.advance(100);
    expect(server.answer(on.keyPttl("k"))).toBe(1_000_000 - 200);
    expect(server.tick()).toEqual([]);
    server.run(on.revoke("long"));
    expect(server.answer(on.COUNT)).toBe(0);
    server.durable();
    server.engine.checkInvariants();
    expect(server.engine.state.keys(0).rows.rowsUsed).toBe(0);
  });
});

describe("semaphores", () => {
  test("as many holders as permits, each with its own token", () => {
    const server = withLeases("a", "b", "c", "d");
    const limit3 = { mode: on.limit(3) };
    const tokens = ["a", "b", "c"].map((id) => server.answer(on.acquire("k", id, limit3)) as number);
    expect(new Set(tokens).size).toBe(3);
    expect(server.answer(on.acquire("k", "d", limit3))).toBeNull();
    expect(server.answer(on.acquire("k", "b", limit3))).toBe(tokens[1]);
    const wait = server.wait(on.block("k", "d", limit3));
    server.run(on.release("k", "b"));
    expect(server.takeWoken()).toEqual([[wait, tokenOf(server)]]);
    expect(holders(server)).toEqual(["a", "c", "d"]);
    server.engine.checkInvariants();
  });

  test("another number of permits, or another kind of lock, does not go together", () => {
    const server = withLeases("a", "b");
    server.run(on.acquire("k", "a", { mode: on.limit(3) }));
    expect(server.answer(on.acquire("k", "b", { mode: on.limit(2) }))).toBe(wrongMode("k", "limit 3"));
    expect(server.answer(on.acquire("k", "b"))).toBe(wrongMode("k", "limit 3"));
    expect(server.answer(on.block("k", "b", { mode: on.SHARED }))).toBe(wrongMode("k", "limit 3"));
    expect(server.answer(on.acquire("k", "a", { mode: on.limit(4) }))).toBe(wrongMode("k", "limit 3"));
    server.run(on.acquire("x", "a"));
    expect(server.answer(on.acquire("x", "b", { mode: on.limit(1) }))).toBe(wrongMode("x", "exclusive"));
    server.run(on.release("k", "a"));
    expect(server.answer(on.acquire("k", "b", { mode: on.limit(2) }))).toBe(tokenOf(server));
  });

  test("the permit of a holder past its deadline is free, whoever was first", () => {
    const server = withLeases("a", "b", "c");
    server.run(on.grant("short", 100));
    const limit2 = { mode: on.limit(2) };
    server.run(on.acquire("k", "a", limit2));
    server.run(on.acquire("k", "short", limit2));
    expect(server.answer(on.acquire("k", "b", limit2))).toBeNull();
    server.advance(100);
    expect(server.answer(on.acquire("k", "b", limit2))).toBe(tokenOf(server));
    expect(server.answer(on.acquire("k", "c", limit2))).toBeNull();
    server.engine.checkInvariants();
  });
});

describe("waiting", () => {
  test("first come, first served; release and next grant in one turn, tokens rising", () => {
    const ids = ["a", "b", "c", "d"];
    const server = withLeases(...ids);
    server.run(on.acquire("k", "a"));
    const waits = ids.slice(1).map((id) => server.wait(on.block("k", id)));
    expect(waiters(server)).toEqual(["b", "c", "d"]);
    let newest = tokenOf(server);
    for (const [index, wait] of waits.entries()) {
      server.run(on.release("k", ids[index]!));
      const woken = server.takeWoken();
      expect(woken).toEqual([[wait, tokenOf(server)]]);
      expect(tokenOf(server)).toBeGreaterThan(newest);
      newest = tokenOf(server);
    }
    expect(server.answer(on.get("k"))).toBe("d");
    expect(server.engine.waiters.count).toBe(0);
    server.engine.checkInvariants();
  });

  test("a free key is had at once, whatever BLOCK says", () => {
    const server = withLeases("a");
    expect(server.run(on.block("k", "a"))).toMatchObject({ reply: tokenOf(server), waits: null });
  });

  test("time: nil at the end of it, never before; 0 is for ever", () => {
    const server = withLeases("a", "b", "c");
    server.run(on.acquire("k", "a"));
    const timed = server.wait(on.block("k", "b", { blockMs: 1_000 }));
    const patient = server.wait(on.block("k", "c"));
    server.advance(999);
    server.tick();
    expect(server.takeWoken()).toEqual([]);
    server.advance(1 + 10);
    server.tick();
    expect(server.takeWoken()).toEqual([[timed, null]]);
    server.advance(500_000);
    server.tick();
    expect(server.takeWoken()).toEqual([]);
    server.run(on.release("k", "a"));
    expect(server.takeWoken()).toEqual([[patient, tokenOf(server)]]);
  });

  test("that it waited in vain reveals the holder: the answer waits for the holder's grant", () => {
    const server = withLeases("a", "b");
    server.run(on.acquire("k", "a"));
    const held = server.engine.state.revision;
    server.wait(on.block("k", "b", { blockMs: 10 }));
    server.run(on.acquire("other", "a"));
    server.advance(20);
    server.tick();
    expect(server.woken).toMatchObject([{ reply: null, revision: held }]);
  });

  test.each<[string, (server: ManualEngine) => void]>([
    ["revoked", (server) => server.run(on.revoke("b"))],
    ["expired, met by the tick", (server) => server.advance(1_000)],
    ["FLUSHALL", (server) => server.run(on.FLUSH_ALL)],
  ])("a waiter whose lease dies is told at once, whatever the holder does: %s", (_, end) => {
    const server = withLeases("a");
    server.run(on.grant("b", 1_000));
    server.run(on.acquire("k", "a"));
    const wait = server.wait(on.block("k", "b"));
    end(server);
    server.tick();
    expect(server.takeWoken()).toEqual([[wait, on.noLease("b")]]);
    expect(server.engine.waiters.count).toBe(0);
    server.engine.checkInvariants();
  });

  test("a waiter past its deadline is passed over at a hand-over, and told", () => {
    const server = withLeases("a", "c");
    server.run(on.grant("b", 1_000));
    server.run(on.acquire("k", "a"));
    const dead = server.wait(on.block("k", "b"));
    const alive = server.wait(on.block("k", "c"));
    server.advance(1_000);
    server.run(on.release("k", "a"));
    expect(server.takeWoken()).toEqual([
      [dead, on.noLease("b")],
      [alive, tokenOf(server)],
    ]);
  });

  test("a dead waiter at the front holds nobody back", () => {
    const server = withLeases("r1", "r2");
    server.run(on.grant("w", 1_000));
    server.run(on.acquire("k", "r1", { mode: on.SHARED }));
    const writer = server.wait(on.block("k", "w"));
    server.advance(1_000);
    expect(server.answer(on.acquire("k", "r2", { mode: on.SHARED }))).toBe(tokenOf(server));
    expect(server.takeWoken()).toEqual([[writer, on.noLease("w")]]);
  });

  test("a waiter whose connection closed is gone, and the next moves up", () => {
    const server = withLeases("a", "b", "c");
    server.run(on.acquire("k", "a"));
    const gone = server.wait(on.block("k", "b"));
    const next = server.wait(on.block("k", "c"));
    server.run(on.endWait(gone));
    server.takeWoken();
    expect(waiters(server)).toEqual(["c"]);
    server.run(on.endWait(gone));
    server.run(on.release("k", "a"));
    expect(server.takeWoken()).toEqual([[next, tokenOf(server)]]);
    server.engine.checkInvariants();
  });

  test("the same lease over another connection joins its own place, and all hear the same", () => {
    const server = withLeases("a", "b", "c");
    server.run(on.acquire("k", "a"));
    const first = server.wait(on.block("k", "b", { value: "old" }));
    const other = server.wait(on.block("k", "c"));
    const again = server.wait(on.block("k", "b", { value: "new" }));
    const short = server.wait(on.block("k", "b", { blockMs: 10 }));
    expect(server.answer(on.acquire("k", "b"))).toBeNull();
    expect(waiters(server)).toEqual(["b", "c"]);
    server.advance(20);
    server.tick();
    expect(server.takeWoken()).toEqual([[short, null]]);
    server.run(on.endWait(first));
    server.takeWoken();
    server.run(on.release("k", "a"));
    expect(server.takeWoken()).toEqual([[again, tokenOf(server)]]);
    server.run(on.release("k", "b"));
    expect(server.takeWoken()).toEqual([[other, tokenOf(server)]]);
    server.engine.checkInvariants();
  });

  test.each<[string, Command]>([
    ["DEL", on.del("k")],
    ["DETACH", on.detach("a", "k")],
    ["REVOKE", on.revoke("a")],
    ["FLUSHDB", on.FLUSH_DATABASE],
    ["a past SET", on.set("k", "v", { expiry: on.atMs(1) })],
  ])("the end of the hold by %s passes the key on", (_, command) => {
    const server = withLeases("a", "b");
    server.run(on.acquire("k", "a"));
    const wait = server.wait(on.block("k", "b"));
    server.run(command);
    expect(server.takeWoken()).toEqual([[wait, tokenOf(server)]]);
    expect(server.answer(on.get("k"))).toBe("b");
    server.engine.checkInvariants();
  });

  test("a key that SET or ATTACH FORCE takes stays taken; the queue waits for its end", () => {
    const server = withLeases("a", "b", "c");
    server.run(on.acquire("k", "a"));
    const wait = server.wait(on.block("k", "b"));
    server.run(on.setPx("k", "plain", 1_000));
    server.run(on.attach("c", "k", "v", true));
    server.run(on.setPx("k", "plain", 1_000));
    expect(server.takeWoken()).toEqual([]);
    server.advance(1_000);
    server.tick();
    expect(server.takeWoken()).toEqual([[wait, tokenOf(server)]]);
    server.engine.checkInvariants();
  });

  test("a waiter that gets the key by another way is answered with it", () => {
    const server = withLeases("a", "b");
    server.run(on.acquire("k", "a"));
    const wait = server.wait(on.block("k", "b"));
    const token = server.answer(on.attach("b", "k", "v", true));
    expect(server.takeWoken()).toEqual([[wait, token]]);
    expect(server.answer(on.get("k"))).toBe("v");
  });

  test("a waiter whose lease may hold no more keys is refused, and the next served", () => {
    const server = new ManualEngine({ keysPerLeaseMax: 1 });
    for (const id of ["a", "b", "c"]) server.run(on.grant(id, 1_000_000));
    server.run(on.acquire("k", "a"));
    const full = server.wait(on.block("k", "b"));
    const next = server.wait(on.block("k", "c"));
    server.run(on.attach("b", "own"));
    server.run(on.release("k", "a"));
    expect(server.takeWoken()).toEqual([
      [full, "OOM the limit of 1 keys per lease is reached"],
      [next, tokenOf(server)],
    ]);
  });

  test("limits: waiters for one key, and in all", () => {
    const server = new ManualEngine({ waitersPerKeyMax: 2, waitersMax: 3 });
    for (const id of ["a", "b", "c", "d"]) server.run(on.grant(id, 1_000_000));
    server.run(on.acquire("k", "a"));
    server.run(on.acquire("l", "a"));
    server.wait(on.block("k", "b"));
    server.wait(on.block("k", "c"));
    expect(server.answer(on.block("k", "d"))).toBe("OOM the limit of 2 commands waiting for one key is reached");
    server.wait(on.block("l", "d"));
    expect(server.answer(on.block("l", "c"))).toBe("OOM the limit of 3 waiting commands is reached");
    expect(server.answer(on.acquire("k", "d"))).toBeNull();
  });

  test("queues of other databases are others", () => {
    const server = withLeases("a", "b");
    server.run(on.acquire("k", "a"));
    server.run(on.acquire("k", "a"), on.inDatabase(1));
    const wait = server.wait(on.block("k", "b"), on.inDatabase(1));
    server.run(on.release("k", "a"));
    expect(server.takeWoken()).toEqual([]);
    server.run(on.release("k", "a"), on.inDatabase(1));
    expect(server.takeWoken()).toEqual([[wait, tokenOf(server)]]);
    expect(server.answer(on.get("k"), on.inDatabase(1))).toBe("b");
    expect(server.answer(on.get("k"))).toBeNull();
  });

  test("a lease with many contended keys hands all of them on when it ends", () => {
    const server = withLeases("a", "b");
    const keys = Array.from({ length: HAND_OVERS_PER_TURN_MAX + 10 }, (_, index) => `k${index}`);
    for (const key of keys) server.run(on.acquire(key, "a"));
    const waits = keys.map((key) => server.wait(on.block(key, "b")));
    server.run(on.revoke("a"));
    const woken = server.takeWoken();
    expect(woken.map(([wait]) => wait)).toEqual(waits);
    expect(new Set(woken.map(([, token]) => token)).size).toBe(keys.length);
  });

  test("waiters do not survive a restart, and the holder does", () => {
    const server = withLeases("a", "b");
    const token = server.answer(on.acquire("k", "a"));
    server.wait(on.block("k", "b"));
    server.restart(0);
    expect(server.engine.waiters.count).toBe(0);
    expect(server.answer(on.acquire("k", "a"))).toBe(token);
    expect(server.answer(on.acquire("k", "b"))).toBeNull();
  });
});

describe("deadlock", () => {
  test("the wait that would close the cycle is refused, with the cycle", () => {
    const server = withLeases("a", "b", "c");
    for (const id of ["a", "b", "c"]) server.run(on.acquire(`k${id}`, id));
    server.wait(on.block("kb", "a"));
    server.wait(on.block("kc", "b"));
    expect(server.answer(on.block("ka", "c"))).toBe(
      "DEADLOCK waiting would close a cycle: " +
        "'c' waits for 'ka' of 'a', 'a' waits for 'kb' of 'b', 'b' waits for 'kc' of 'c'",
    );
    expect(server.answer(on.acquire("ka", "c"))).toBeNull();
    expect(server.engine.waiters.count).toBe(2);
    server.run(on.release("kc", "c"));
    expect(server.answer(on.get("kc"))).toBe("b");
  });

  test("through any holder of a shared key", () => {
    const server = withLeases("r1", "r2", "w");
    server.run(on.acquire("k", "r1", { mode: on.SHARED }));
    server.run(on.acquire("k", "r2", { mode: on.SHARED }));
    server.run(on.acquire("kw", "w"));
    server.wait(on.block("kw", "r2"));
    expect(server.answer(on.block("k", "w"))).toMatch(
      /^DEADLOCK .*'w' waits for 'k' of 'r2', 'r2' waits for 'kw' of 'w'$/,
    );
  });

  test("through those who wait before it in the queue", () => {
    const server = withLeases("r", "w", "x");
    server.run(on.acquire("k", "r", { mode: on.SHARED }));
    server.run(on.acquire("kx", "x"));
    server.wait(on.block("k", "w"));
    server.wait(on.block("kx", "r"));
    // x would read together with r, but waits behind w, which waits for r, which waits for x.
    expect(server.answer(on.block("k", "x", { mode: on.SHARED }))).toMatch(/^DEADLOCK /);
  });

  test("no cycle: readers among themselves, semaphores, plain keys, the dead", () => {
    const server = withLeases("a", "b");
    server.run(on.acquire("k", "a", { mode: on.limit(2) }));
    server.run(on.acquire("k", "b", { mode: on.limit(2) }));
    server.run(on.grant("c", 1_000_000));
    server.run(on.acquire("kc", "c"));
    server.wait(on.block("kc", "a"));
    server.wait(on.block("k", "c", { mode: on.limit(2) }));
    server.run(on.grant("dying", 100));
    server.run(on.acquire("kd", "dying"));
    server.run(on.acquire("kb", "b"));
    server.wait(on.block("kb", "dying"));
    server.advance(100);
    server.run(on.block("kd", "b"));
    expect(server.answer(on.get("kd"))).toBe("b");
    server.run(on.set("plain", "v"));
    server.wait(on.block("plain", "b"));
  });

  test("a semaphore of one permit is a lock", () => {
    const server = withLeases("a", "b");
    server.run(on.acquire("ka", "a", { mode: on.limit(1) }));
    server.run(on.acquire("kb", "b", { mode: on.limit(1) }));
    server.wait(on.block("kb", "a", { mode: on.limit(1) }));
    expect(server.answer(on.block("ka", "b", { mode: on.limit(1) }))).toMatch(/^DEADLOCK /);
  });

  test("long cycles and long names are cut", () => {
    const ids = Array.from({ length: 12 }, (_, index) => `${index}${"x".repeat(100)}`);
    const server = withLeases(...ids);
    for (const id of ids) server.run(on.acquire(`k${id}`, id));
    for (const [index, id] of ids.slice(0, -1).entries()) server.wait(on.block(`k${ids[index + 1]!}`, id));
    const text = String(server.answer(on.block(`k${ids[0]!}`, ids.at(-1)!)));
    expect(text).toMatch(/^DEADLOCK .*, and 4 more$/);
    expect(text.length).toBeLessThan(1_500);
  });
});

describe("LOCK.INFO", () => {
  test("who holds, who waits; nil for nobody", () => {
    const server = withLeases("a", "b", "c");
    expect(server.answer(on.lockInfo("k"))).toBeNull();
    const token = server.answer(on.acquire("k", "a", { value: "v" }));
    const since = server.unixMs;
    server.wait(on.block("k", "b"));
    server.advance(10);
    server.wait(on.block("k", "c", { mode: on.SHARED }));
    expect(server.answer(on.lockInfo("k"))).toEqual({
      mode: "exclusive",
      limit: null,
      holders: [{ id: "a", token, value: "v", remaining: 1_000_000 - 10, since }],
      "holders-total": 1,
      waiters: [
        { id: "b", mode: "exclusive", waiting: 10, position: 1 },
        { id: "c", mode: "shared", waiting: 0, position: 2 },
      ],
      "waiters-total": 2,
    });
    server.run(on.set("plain", "v"));
    expect(server.answer(on.lockInfo("plain"))).toMatchObject({
      mode: "string",
      holders: [{ id: null, remaining: -1 }],
    });
  });

  test("the lists are cut, the totals are not", () => {
    const count = LOCK_INFO_LISTED_MAX + 20;
    const ids = Array.from({ length: 2 * count }, (_, index) => `id${index}`);
    const server = withLeases(...ids);
    for (const id of ids.slice(0, count)) server.run(on.acquire("k", id, { mode: on.limit(count) }));
    for (const id of ids.slice(count)) server.wait(on.block("k", id, { mode: on.limit(count) }));
    const info = server.answer(on.lockInfo("k")) as Info;
    expect(info).toMatchObject({ mode: "limit", limit: count, "holders-total": count, "waiters-total": count });
    expect(info.holders).toHaveLength(LOCK_INFO_LISTED_MAX);
    expect(info.waiters).toHaveLength(LOCK_INFO_LISTED_MAX);
  });
});

describe("cost, in steps", () => {
  const COUNT = 10_000;
  const ids = Array.from({ length: COUNT }, (_, index) => `id${index}`);

  test("ten thousand waiters on one key: each comes, gives up, and is served in a few steps", () => {
    const server = withLeases("holder", ...ids);
    server.run(on.acquire("k", "holder"));
    const { waiters: queue } = server.engine;
    let most = 0;
    const counted = <T>(work: () => T): T => {
      const before = queue.steps;
      const result = work();
      most = Math.max(most, queue.steps - before);
      return result;
    };
    const waits = ids.map((id) => counted(() => server.wait(on.block("k", id))));
    // Every other one gives up, from the middle of the queue.
    for (const [index, wait] of waits.entries()) if (index % 2 === 1) counted(() => server.run(on.endWait(wait)));
    server.takeWoken();
    server.engine.checkInvariants();
    const served: number[] = [];
    let holder = "holder";
    for (let next = 0; next < COUNT; next += 2) {
      counted(() => server.run(on.release("k", holder)));
      served.push(...server.takeWoken().map(([wait]) => wait));
      holder = ids[next]!;
    }
    expect(served).toEqual(waits.filter((_, index) => index % 2 === 0));
    expect(most).toBeLessThan(5);
    expect(queue.count).toBe(0);
  });

  test("ten thousand keys with waiters", () => {
    const server = withLeases("holder", ...ids);
    for (const id of ids) server.run(on.acquire(`k${id}`, "holder"));
    const { waiters: queue } = server.engine;
    const before = queue.steps;
    for (const id of ids) server.wait(on.block(`k${id}`, id));
    for (const id of ids) server.run(on.release(`k${id}`, "holder"));
    expect(server.takeWoken()).toHaveLength(COUNT);
    expect(queue.steps - before).toBeLessThan(5 * COUNT);
    server.engine.checkInvariants();
  });

  test("the search for a cycle visits every place of a long queue once", () => {
    const server = withLeases("holder", "late", ...ids);
    server.run(on.acquire("k", "holder"));
    server.run(on.acquire("own", "late"));
    for (const id of ids) server.wait(on.block("k", id));
    server.run(on.grant("other", 1_000_000));
    server.wait(on.block("own", "other"));
    const { waiters: queue } = server.engine;
    const before = queue.steps;
    server.wait(on.block("k", "late"));
    expect(queue.steps - before).toBeLessThan(2 * COUNT);
  });
});
