import { expect, test } from "vitest";
import { MemoryDisk } from "#src/durability/memory-store.js";
import type { Reply } from "#src/engine/reply.js";
import * as on from "../engine/manual-engine.js";
import { ManualNode } from "./manual-node.js";

/** Several commands as one step: EXEC and scripts. */

test("each command sees those before it; one batch, and the answer when it is durable", () => {
  const node = new ManualNode();
  const client = node.client();
  const ticket = client.step((run) => {
    run(on.set("a", "1"));
    run({ kind: "string-increment", key: "a", by: 1n });
    run(on.setNx("b", "x", 1_000));
    return [run(on.get("a")), run(on.setNx("b", "y", 1_000)), run(on.exists("a", "b"))];
  });
  expect(client.replies.size).toBe(0);
  node.settle();
  expect(client.replies.get(ticket)).toEqual(["2", null, 2]);
  expect(node.coordinator.report().batchesCommitted).toBe(1);
});

test("time stands still", () => {
  const node = new ManualNode();
  const client = node.client();
  client.ask(on.setPx("k", "v", 100));
  node.clock.nowMs += 99.9;
  const replies: Reply[] = [];
  client.step((run) => {
    replies.push(run(on.get("k")));
    node.clock.nowMs += 50;
    replies.push(run(on.get("k")), run(on.del("k")));
    return null;
  });
  expect(replies).toEqual(["v", "v", 1]);
});

test("a step that only reads what is durable is answered at once, one that saw more waits for that", () => {
  const node = new ManualNode();
  const client = node.client();
  client.ask(on.set("k", "v"));
  const reader = node.client();
  const read = reader.step((run) => run(on.get("k")));
  expect(reader.replies.get(read)).toBe("v");
  client.send(on.set("k", "w"));
  const dirty = reader.step((run) => {
    run(on.get("k"));
    return "said";
  });
  expect(reader.replies.has(dirty)).toBe(false);
  node.settle();
  expect(reader.replies.get(dirty)).toBe("said");
});

test("nobody comes in between: what a step frees is handed on when it is over", () => {
  const node = new ManualNode();
  const client = node.client();
  for (const id of ["a", "b"]) client.ask(on.grant(id, 1_000_000));
  client.ask(on.acquire("k", "a"));
  const waiter = node.client();
  const ticket = waiter.send(on.block("k", "b"));
  client.step((run) => {
    run(on.del("k"));
    run(on.set("k", "mine"));
    return null;
  });
  node.settle();
  expect(waiter.replies.size).toBe(0);
  expect(client.ask(on.get("k"))).toBe("mine");
  client.step((run) => run(on.del("k")));
  node.settle();
  expect(waiter.replies.get(ticket)).toEqual(expect.any(Number));
});

test("nothing waits within a step", () => {
  const node = new ManualNode();
  const client = node.client();
  for (const id of ["a", "b"]) client.ask(on.grant(id, 1_000_000));
  client.ask(on.acquire("k", "a"));
  const ticket = client.step((run) => run(on.block("k", "b")));
  expect(client.replies.get(ticket)).toBeNull();
  expect(node.coordinator.report().commandsBlocked).toBe(0);
});

test("a full batch, a lost role: the work is not called", () => {
  const node = new ManualNode(new MemoryDisk(), 1_000);
  const client = node.client();
  client.send(on.set("k", "x".repeat(2_000)));
  let calls = 0;
  const work = (): Reply => {
    calls += 1;
    return null;
  };
  expect(client.replies.get(client.step(work))).toBe("saturated");
  node.settle();
  node.coordinator.stepDown(client, () => undefined);
  expect(client.replies.get(client.step(work))).toMatch(/^READONLY /);
  expect(calls).toBe(0);
});

test("after a crash all of a step is there, or nothing", () => {
  for (const turns of [0, 1, 2, 3, 4, 5]) {
    const disk = new MemoryDisk();
    const node = new ManualNode(disk);
    node.client().step((run) => {
      for (let index = 0; index < 20; index += 1) run(on.set(`k${index}`, "v"));
      return null;
    });
    for (let turn = 0; turn < turns; turn += 1) node.scheduler.turn();
    disk.holder = null;
    const count = new ManualNode(disk).client().ask(on.COUNT);
    expect([0, 20]).toContain(count);
    if (turns === 0) expect(count).toBe(0);
    if (turns === 5) expect(count).toBe(20);
  }
});

test("plain keys, shared locks and scripts are there after a restart", () => {
  const disk = new MemoryDisk();
  const node = new ManualNode(disk);
  const client = node.client();
  client.ask(on.set("for-ever", "v"));
  client.ask(on.setPx("k", "v", 60_000));
  client.ask(on.pexpire("k", 5));
  for (const id of ["a", "b"]) client.ask(on.grant(id, 60_000));
  const tokens = ["b", "a"].map((id) => client.ask(on.acquire("s", id, { mode: on.SHARED })));
  const sha = "0123456789abcdef0123456789abcdef01234567";
  client.ask({ kind: "script-load", sha, body: "return 1", isPinned: true });
  disk.holder = null;
  const next = new ManualNode(disk).client();
  expect(next.ask(on.keyPttl("k"))).toBe(60_000);
  expect(next.ask(on.keyTtl("for-ever"))).toBe(-1);
  expect(next.ask(on.lockInfo("s"))).toMatchObject({
    mode: "shared",
    holders: [
      { id: "b", token: tokens[0] },
      { id: "a", token: tokens[1] },
    ],
  });
  expect(next.ask({ kind: "script-get", sha })).toBe("return 1");
  expect(next.ask({ kind: "string-digest", key: "k" })).toMatch(/^[0-9a-f]{16}$/);
});

test("DIGEST is XXH3-64", () => {
  const client = new ManualNode().client();
  for (const [value, digest] of [
    ["Hello world", "b6acb9d84a38ff74"],
    ["", "2d06800538d394c2"],
  ] as const) {
    client.ask(on.set("k", value));
    expect(client.ask({ kind: "string-digest", key: "k" })).toBe(digest);
  }
});

test("revisionOf for WATCH", () => {
  const node = new ManualNode();
  const client = node.client();
  const revision = (): number => node.coordinator.revisionOf(0, "k");
  expect(revision()).toBe(0);
  client.ask(on.setPx("k", "v", 100));
  const set = revision();
  expect(set).toBeGreaterThan(0);
  node.clock.nowMs += 100;
  expect(revision()).toBe(0);
});
