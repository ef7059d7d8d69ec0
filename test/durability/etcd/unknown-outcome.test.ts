import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import type { EtcdStore } from "#src/durability/etcd/etcd-store.js";
import type { Op } from "#src/engine/op.js";
import { EtcdCluster } from "../../support/etcd.js";
import { until } from "../../support/poll.js";
import { describeWith } from "../../support/tools.js";
import { decodeAll, keyPut, leasePut } from "../ops.js";
import { acquire, close, commit, loadPages } from "../real.js";
import { CutProxy } from "./cut-proxy.js";
import { type Fate, FlakyClient } from "./flaky-client.js";
import { etcdClient, etcdStore, freshCluster } from "./real-etcd.js";

/** Long enough for a busy machine, short enough to wait for. */
const REQUEST_TIMEOUT_MS = 1_000;
const RESOLVE_MS_MAX = 15_000;

describeWith(["etcd"], "a commit whose outcome is unknown", () => {
  let etcd: EtcdCluster;
  let proxy: CutProxy;
  let cluster: string;

  beforeAll(async () => {
    etcd = await EtcdCluster.start();
  });

  afterAll(() => etcd.stop());

  beforeEach(async () => {
    proxy = await CutProxy.start(etcd.members[0]?.clientPort ?? 0);
    cluster = freshCluster();
  });

  afterEach(() => proxy.stop());

  const direct = (): EtcdStore => etcdStore(etcdClient(etcd.endpoints), cluster);

  const proxied = (more: readonly string[] = [], resolveMsMax = RESOLVE_MS_MAX): EtcdStore => {
    const client = etcdClient([proxy.endpoint, ...more], { requestTimeoutMs: REQUEST_TIMEOUT_MS });
    return etcdStore(client, cluster, { resolveMsMax });
  };

  const rowsNow = async (): Promise<unknown> => {
    const store = direct();
    await acquire(store);
    const loaded = decodeAll(await loadPages(store));
    await close(store);
    return loaded;
  };

  /** Asks etcd itself, past the proxy. */
  const revisionNow = async (): Promise<number> => {
    const client = etcdClient(etcd.endpoints);
    const { revision } = await client.range({ key: Buffer.from("x") });
    client.close();
    return revision;
  };

  test("because it never arrived: the fence is moved, the batch is written", async () => {
    const store = proxied();
    await acquire(store);
    proxy.requests = "hold";
    const committed = commit(store, [leasePut("a")], 1);
    await until("the transaction to be held", () => proxy.requestBytesHeld > 0);
    proxy.requests = "pass";
    proxy.cut();
    await committed;
    expect(store.sharedReport().fenceBumps).toBeGreaterThanOrEqual(1);
    await close(store);
    expect(await rowsNow()).toEqual({ ops: [leasePut("a")], revision: 1 });
  });

  test("because the answer was lost: the fence is moved, the same rows are written again", async () => {
    const store = proxied();
    await acquire(store);
    const before = await revisionNow();
    proxy.replies = "drop";
    const committed = commit(store, [leasePut("a")], 1);
    await until("etcd to have done it", async () => (await revisionNow()) > before);
    proxy.replies = "pass";
    proxy.cut();
    await committed;
    expect(store.sharedReport().fenceBumps).toBeGreaterThanOrEqual(1);
    await commit(store, [leasePut("b")], 2);
    await close(store);
    expect(await rowsNow()).toEqual({ ops: [leasePut("a"), leasePut("b")], revision: 2 });
  });

  test("and whose move of the fence is unknown too: what the fence has become decides", async () => {
    const store = proxied();
    await acquire(store);
    const { fenceRevision } = store.sharedReport();
    const before = await revisionNow();
    proxy.replies = "drop";
    const committed = commit(store, [leasePut("a")], 1);
    // The commit, and then the move, which is done but not heard of.
    await until("etcd to have done both", async () => (await revisionNow()) >= before + 2);
    proxy.replies = "pass";
    proxy.cut();
    await committed;
    expect(store.sharedReport().fenceRevision).toBeGreaterThan(fenceRevision);
    await close(store);
    expect(await rowsNow()).toEqual({ ops: [leasePut("a")], revision: 1 });
  });

  /** A write that etcd gets only after the writer has long gone on. Returns the rows that are left. */
  async function lateDelivery(isGuarded: boolean): Promise<unknown> {
    const client = new FlakyClient(
      etcdClient([proxy.endpoint, ...etcd.endpoints], { requestTimeoutMs: REQUEST_TIMEOUT_MS }),
    );
    const store = etcdStore(client, cluster, { resolveMsMax: RESOLVE_MS_MAX });
    await acquire(store);
    if (!isGuarded) client.alter = (request) => ({ ...request, guards: [] });
    proxy.requests = "hold";
    const committed = commit(store, [leasePut("a", { ttlMs: 1 })], 1);
    // All of it: its last field is the read of the fence that a refusal would answer with.
    await until("the transaction to be held", () => /m\/revision[^]*fence/.test(proxy.heldText));
    const deliver = proxy.takeHeld();
    await committed;
    await commit(store, [leasePut("a", { ttlMs: 2 })], 2);
    const replyBytes = proxy.replyBytes;
    deliver();
    await until("etcd to have answered the late transaction", () => proxy.replyBytes > replyBytes + 50);
    proxy.requests = "pass";
    await commit(store, [leasePut("b")], 3);
    await close(store);
    return rowsNow();
  }

  test("and which arrives late, when the same row was written again: it is refused", async () => {
    expect(await lateDelivery(true)).toEqual({ ops: [leasePut("a", { ttlMs: 2 }), leasePut("b")], revision: 3 });
  });

  test("(control: without its guard the late one overwrites the newer row)", async () => {
    expect(await lateDelivery(false)).toEqual({ ops: [leasePut("a", { ttlMs: 1 }), leasePut("b")], revision: 3 });
  });

  test("while another node takes over: it is fenced, and so is everything after it", async () => {
    const store = proxied();
    await acquire(store);
    proxy.requests = "hold";
    const committed = commit(store, [leasePut("a")], 1);
    committed.catch(() => undefined);
    await until("the transaction to be held", () => proxy.requestBytesHeld > 0);
    const other = direct();
    await acquire(other);
    proxy.requests = "pass";
    proxy.cut();
    await expect(committed).rejects.toMatchObject({ code: "fenced" });
    await expect(commit(store, [leasePut("b")], 2)).rejects.toMatchObject({ code: "fenced" });
    await commit(other, [leasePut("c")], 1);
    await close(store);
    await close(other);
    expect(await rowsNow()).toEqual({ ops: [leasePut("c")], revision: 1 });
  });

  test("ends when the role is taken anew, which waits for that", async () => {
    const store = proxied(etcd.endpoints);
    await acquire(store);
    proxy.requests = "hold";
    const committed = commit(store, [leasePut("a")], 1);
    committed.catch(() => undefined);
    await until("the transaction to be held", () => proxy.requestBytesHeld > 0);
    const { epoch } = await acquire(store);
    expect(epoch).toBe(2);
    await expect(committed).rejects.toMatchObject({ code: "fenced" });
    await commit(store, [leasePut("b")], 2);
    await close(store);
    expect(await rowsNow()).toEqual({ ops: [leasePut("b")], revision: 2 });
  });

  test("for longer than it may be worked on: a failed write, until the role is taken again", async () => {
    const store = proxied([], 200);
    await acquire(store);
    await commit(store, [leasePut("before")], 1);
    proxy.requests = "hold";
    await expect(commit(store, [leasePut("a")], 2)).rejects.toMatchObject({ code: "write-failed" });
    proxy.requests = "pass";
    proxy.cut();
    await expect(commit(store, [leasePut("b")], 3)).rejects.toMatchObject({ code: "write-failed" });
    await until("the role to be taken again", () =>
      acquire(store).then(
        () => true,
        () => false,
      ),
    );
    await commit(store, [leasePut("after")], 4);
    await close(store);
    expect(await rowsNow()).toEqual({ ops: [leasePut("after"), leasePut("before")], revision: 4 });
  });
});

describeWith(["etcd"], "a batch of several transactions", () => {
  let etcd: EtcdCluster;

  beforeAll(async () => {
    etcd = await EtcdCluster.start();
  });

  afterAll(() => etcd.stop());

  const BEFORE: Op[] = [
    leasePut("old"),
    keyPut("old", "k1"),
    ...Array.from({ length: 5 }, (_, index) => keyPut("old", `k2-${index}`, { databaseIndex: 1 })),
  ];
  /** A flush of more rows than are deleted at once, two pieces of journal, then several parts; rows of before are changed, deleted and flushed. */
  const BATCH: Op[] = [
    { kind: "flush-database", databaseIndex: 1 },
    ...Array.from({ length: 9 }, (_, index) => leasePut(`new${index}`, { label: "x".repeat(40) })),
    keyPut("new1", "flushed", { databaseIndex: 1 }),
    { kind: "flush-database", databaseIndex: 1 },
    keyPut("new1", "kept", { databaseIndex: 1 }),
    leasePut("old", { ttlMs: 5 }),
    { kind: "key-end", databaseIndex: 0, key: "k1", leaseId: "old", token: 1, reason: "detached" },
  ];
  const AFTER = [
    ...Array.from({ length: 9 }, (_, index) => leasePut(`new${index}`, { label: "x".repeat(40) })),
    leasePut("old", { ttlMs: 5 }),
    keyPut("new1", "kept", { databaseIndex: 1 }),
  ];
  const SMALL = { txnOperationsMax: 5, txnBytesMax: 1_200, clearedRowsMax: 2 };

  /** Commits BEFORE and then BATCH, of which the nth transaction meets its fate. */
  async function commitWith(fate: (index: number) => Fate, resolveMsMax: number) {
    const cluster = freshCluster();
    const client = new FlakyClient(etcdClient(etcd.endpoints));
    const store = etcdStore(client, cluster, { ...SMALL, resolveMsMax });
    await acquire(store);
    await commit(store, BEFORE, 1);
    const writesBefore = client.writes;
    client.fate = (index) => fate(index - writesBefore);
    const outcome = await commit(store, BATCH, 2).then(
      () => "committed" as const,
      () => "failed" as const,
    );
    client.fate = () => "pass";
    return { cluster, client, store, outcome, writes: client.writes - writesBefore };
  }

  async function loadAfterTakeOver(cluster: string) {
    const store = etcdStore(etcdClient(etcd.endpoints), cluster, SMALL);
    const { revision } = await acquire(store);
    const loaded = decodeAll(await loadPages(store));
    expect(loaded.revision).toBe(revision);
    // The journal must not come back either.
    await commit(store, [{ kind: "flush-all", by: "test" }], 3);
    await acquire(store);
    expect(decodeAll(await loadPages(store))).toEqual({ ops: [], revision: 3 });
    await close(store);
    return loaded;
  }

  test("needs several: journal pieces, the head, parts", async () => {
    const { cluster, store, outcome, writes } = await commitWith(() => "pass", 5_000);
    expect(outcome).toBe("committed");
    expect(writes).toBeGreaterThanOrEqual(6);
    await close(store);
    expect(await loadAfterTakeOver(cluster)).toEqual({ ops: AFTER, revision: 2 });
  });

  test("is whole or absent after a take-over, wherever its process died, and whole once it was acknowledged", async () => {
    const { writes, store } = await commitWith(() => "pass", 5_000);
    await close(store);
    const seen = new Set<string>();
    for (const fate of ["die-before", "die-after"] as const) {
      for (let at = 0; at < writes; at += 1) {
        const { cluster, outcome } = await commitWith((index) => (index === at ? fate : "pass"), 0);
        expect(outcome).toBe("failed");
        const loaded = await loadAfterTakeOver(cluster);
        if (loaded.revision === 2) expect(loaded.ops).toEqual(AFTER);
        else expect(loaded).toEqual({ ops: BEFORE, revision: 1 });
        seen.add(`${fate} ${loaded.revision}`);
      }
    }
    // Both outcomes occur on both sides of the commit point: the test has torn what it says.
    expect([...seen].sort()).toEqual(["die-after 1", "die-after 2", "die-before 1", "die-before 2"]);
  });

  test("is committed although any one of its requests or answers gets lost", async () => {
    const { writes, store: first } = await commitWith(() => "pass", 5_000);
    await close(first);
    for (const fate of ["lose-request", "lose-reply"] as const) {
      for (let at = 0; at < writes; at += 1) {
        const { cluster, store, outcome } = await commitWith((index) => (index === at ? fate : "pass"), 20_000);
        expect(outcome).toBe("committed");
        expect(store.sharedReport().fenceBumps).toBe(1);
        await close(store);
        expect(await loadAfterTakeOver(cluster)).toEqual({ ops: AFTER, revision: 2 });
      }
    }
  });

  test("may be followed by another one, over its journal", async () => {
    const { cluster, store } = await commitWith(() => "pass", 5_000);
    const longer = Array.from({ length: 30 }, (_, index) => leasePut(`more${index}`, { label: "y".repeat(100) }));
    await commit(store, [{ kind: "flush-all", by: "test" }, ...longer], 3);
    await commit(store, [{ kind: "flush-all", by: "test" }, ...longer.slice(0, 12)], 4);
    await commit(store, [leasePut("last")], 5);
    await close(store);
    const again = etcdStore(etcdClient(etcd.endpoints), cluster, SMALL);
    await acquire(again);
    const { ops, revision } = decodeAll(await loadPages(again));
    await close(again);
    expect(revision).toBe(5);
    expect(ops.map((op) => (op.kind === "lease-put" ? op.id : op.kind)).sort()).toEqual(
      ["last", ...longer.slice(0, 12).map((lease) => lease.id)].sort(),
    );
  });

  test("with a row that no transaction can hold fails before anything is written", async () => {
    const cluster = freshCluster();
    const store = etcdStore(etcdClient(etcd.endpoints), cluster, SMALL);
    await acquire(store);
    const tooLarge = leasePut("large", { label: "x".repeat(2_000) });
    await expect(commit(store, [leasePut("a"), tooLarge], 1)).rejects.toMatchObject({ code: "write-failed" });
    await close(store);
    expect(await loadAfterTakeOver(cluster)).toEqual({ ops: [], revision: 0 });
  });
});
