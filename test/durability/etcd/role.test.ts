import { xxh3 } from "@node-rs/xxhash";
import { pack } from "msgpackr";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { EtcdClient } from "#src/durability/etcd/etcd-client.js";
import type { EtcdStore, EtcdStoreOptions } from "#src/durability/etcd/etcd-store.js";
import type { BeatRow, NodeSighting, RoleView, SharedStore } from "#src/durability/shared-store.js";
import type { RowPage, StoreError } from "#src/durability/store.js";
import type { NodeAddress } from "#src/ports.js";
import { EtcdCluster } from "../../support/etcd.js";
import { until } from "../../support/poll.js";
import { describeWith } from "../../support/tools.js";
import { decodeAll, leasePut } from "../ops.js";
import { acquire, close, commit, loadPages } from "../real.js";
import { CutProxy } from "./cut-proxy.js";
import { FlakyClient } from "./flaky-client.js";
import { etcdClient, etcdStore, freshCluster, KeptLog } from "./real-etcd.js";

const outcomeOf = (call: (done: (error: StoreError | null) => void) => void): Promise<string> =>
  new Promise((resolve) => {
    call((error) => resolve(error === null ? "done" : error.code));
  });

const beat = (store: SharedStore, state: BeatRow["state"] = "serving"): Promise<string> =>
  outcomeOf((done) => store.beat(state, done));

const poll = (store: SharedStore): Promise<string> => outcomeOf((done) => store.poll(done));

const announce = (store: SharedStore): Promise<string> => outcomeOf((done) => store.announce(done));

const node = (number: number): NodeAddress => ({
  id: String(number).repeat(40),
  host: "127.0.0.1",
  port: 7000 + number,
  sentinelPort: 27_000 + number,
});

/** The value of the row `m/format` as another version would write it. */
function formatRow(version: number): Buffer {
  const key = Buffer.from("m/format");
  const payload = Buffer.concat([Buffer.from([1]), pack([version, "leasehold"])]);
  const checksum = Buffer.alloc(8);
  checksum.writeBigUInt64LE(xxh3.xxh64(Buffer.concat([key, payload])));
  return Buffer.concat([payload, checksum]);
}

/** What a store shows its listener. */
class Observer {
  readonly views: RoleView[] = [];
  nodes: readonly NodeSighting[] = [];

  onView(view: RoleView): void {
    this.views.push(view);
  }

  onNodes(nodes: readonly NodeSighting[]): void {
    this.nodes = nodes;
  }

  get view(): RoleView {
    return this.views.at(-1) ?? { fence: null, beat: null };
  }

  /** Checks that nothing older was shown after something newer. */
  checkOrder(): void {
    for (const [index, { fence, beat: sign }] of this.views.entries()) {
      const before = this.views[index - 1];
      expect(fence?.modRevision ?? Infinity).toBeGreaterThanOrEqual(before?.fence?.modRevision ?? 0);
      expect(sign?.modRevision ?? Infinity).toBeGreaterThanOrEqual(before?.beat?.modRevision ?? 0);
    }
  }
}

describeWith(["etcd"], "the primary role in etcd", () => {
  let etcd: EtcdCluster;
  let admin: EtcdClient;

  beforeAll(async () => {
    etcd = await EtcdCluster.start();
    admin = etcdClient(etcd.endpoints);
  });

  afterAll(async () => {
    admin.close();
    await etcd.stop();
  });

  const open = (cluster: string, number: number, change: Partial<EtcdStoreOptions> = {}): EtcdStore => {
    const store = etcdStore(etcdClient(etcd.endpoints), cluster, change);
    store.announceAs(node(number));
    return store;
  };

  const seenBy = async (store: SharedStore): Promise<Observer> => {
    const observer = new Observer();
    store.watch(observer);
    await until("the first view", () => observer.views.length > 0);
    return observer;
  };

  test("is refused to whoever has lost it: commits, beats, and not only once", async () => {
    const cluster = freshCluster();
    const [first, second] = [open(cluster, 1), open(cluster, 2)];
    const before = await acquire(first);
    expect(await beat(first)).toBe("done");
    await commit(first, [leasePut("kept")], 1);
    const after = await acquire(second);
    expect(after.epoch).toBe(before.epoch + 1);
    expect(await beat(first)).toBe("fenced");
    await expect(commit(first, [leasePut("lost")], 2)).rejects.toMatchObject({ code: "fenced" });
    expect(await beat(first)).toBe("fenced");
    expect(await beat(second)).toBe("done");
    await commit(second, [leasePut("new")], 2);
    expect(decodeAll(await loadPages(second)).ops).toEqual([leasePut("kept"), leasePut("new")]);
    // And back: an error ends a tenure, not the store.
    expect((await acquire(first)).epoch).toBe(after.epoch + 1);
    expect(await beat(second)).toBe("fenced");
    await commit(first, [leasePut("again")], 3);
    expect(await close(first)).toBeNull();
    expect(await close(second)).toBeNull();
  });

  test("is shown to watchers: fence, beats, release, the next epoch", async () => {
    const cluster = freshCluster();
    const [primary, standby] = [open(cluster, 1), open(cluster, 2)];
    const observer = await seenBy(standby);
    expect(observer.view).toEqual({ fence: null, beat: null });
    const { epoch } = await acquire(primary);
    await until("the take-over to be seen", () => observer.view.fence?.epoch === epoch);
    expect(observer.view.fence).toMatchObject({ node: node(1), epoch });
    // Both rows are written by one transaction, and shown together.
    expect(observer.view.beat).toMatchObject({ epoch, number: 0, modRevision: observer.view.fence?.modRevision });
    for (let number = 1; number <= 5; number += 1) expect(await beat(primary)).toBe("done");
    await until("the beats to be seen", () => observer.view.beat?.number === 5);
    await commit(primary, [leasePut("a")], 1);
    expect(await close(primary)).toBeNull();
    await until("the release to be seen", () => observer.view.beat?.state === "released");
    expect((await acquire(standby)).epoch).toBe(epoch + 1);
    await until("its own take-over to be seen", () => observer.view.fence?.epoch === epoch + 1);
    observer.checkOrder();
    await close(standby);
  });

  test("goes to exactly one of several candidates with the same view", async () => {
    const cluster = freshCluster();
    const primary = open(cluster, 9);
    await acquire(primary);
    for (let round = 0; round < 5; round += 1) {
      const candidates = [1, 2, 3, 4].map((number) => open(cluster, number));
      const observers = await Promise.all(candidates.map(seenBy));
      const view = observers[0]?.view ?? { fence: null, beat: null };
      const outcomes = await Promise.all(
        candidates.map((candidate) => {
          candidate.candidateFrom(view);
          return acquire(candidate).then(
            () => "taken",
            (error: StoreError) => error.code,
          );
        }),
      );
      expect(outcomes.sort()).toEqual(["fenced", "fenced", "fenced", "taken"]);
      for (const candidate of candidates) await close(candidate);
    }
    expect(await beat(primary)).toBe("fenced");
    await close(primary);
  });

  test("is not taken from a view that a beat has made old", async () => {
    const cluster = freshCluster();
    const [primary, standby] = [open(cluster, 1), open(cluster, 2)];
    await acquire(primary);
    const observer = await seenBy(standby);
    const old = observer.view;
    expect(await beat(primary)).toBe("done");
    standby.candidateFrom(old);
    await expect(acquire(standby)).rejects.toMatchObject({ code: "fenced" });
    expect(await beat(primary)).toBe("done");
    expect(await poll(standby)).toBe("done");
    standby.candidateFrom(observer.view);
    await acquire(standby);
    expect(await beat(primary)).toBe("fenced");
    await close(primary);
    await close(standby);
  });

  test("is taken once although the answer to the take-over gets lost, or its request", async () => {
    for (const fate of ["lose-reply", "lose-request"] as const) {
      const cluster = freshCluster();
      const client = new FlakyClient(etcdClient(etcd.endpoints));
      client.fate = (index) => (index === 0 ? fate : "pass");
      const store = etcdStore(client, cluster);
      expect((await acquire(store)).epoch).toBe(1);
      await commit(store, [leasePut("a")], 1);
      expect(await beat(store)).toBe("done");
      await close(store);
    }
  });

  test("keeps beating while a commit is in flight, and over a fence that was moved meanwhile", async () => {
    const cluster = freshCluster();
    const client = new FlakyClient(etcdClient(etcd.endpoints));
    const store = etcdStore(client, cluster);
    await acquire(store);
    let answer = (): void => undefined;
    const wait = new Promise<void>((resolve) => {
      answer = resolve;
    });
    let commits = 0;
    client.fate = (_index, { success }) => {
      const isCommit = success.some((operation) => Buffer.from(operation.key).includes("/r/"));
      return isCommit && (commits += 1) === 1 ? "lose-reply" : "pass";
    };
    const committed = commit(store, [leasePut("a")], 1).finally(answer);
    const beats: string[] = [];
    while (beats.length < 3) beats.push(await beat(store));
    await Promise.all([committed, wait]);
    expect(await beat(store)).toBe("done");
    expect(beats).toEqual(["done", "done", "done"]);
    expect(store.sharedReport().fenceBumps).toBe(1);
    await close(store);
  });

  test("is not given up by a beat of a former tenure of the same process", async () => {
    const cluster = freshCluster();
    const client = etcdClient(etcd.endpoints);
    const slow = new FlakyClient(client);
    const store = etcdStore(slow, cluster);
    await acquire(store);
    let isHeld = false;
    let letGo = (): void => undefined;
    const mayGo = new Promise<void>((resolve) => {
      letGo = resolve;
    });
    slow.txn = async (request) => {
      if (!isHeld) {
        isHeld = true;
        await mayGo;
      }
      return client.txn(request);
    };
    const released = beat(store, "released");
    await until("the beat to be held", () => isHeld);
    const { epoch } = await acquire(store);
    letGo();
    expect(await released).toBe("fenced");
    const observer = await seenBy(store);
    expect(observer.view.beat).toMatchObject({ epoch, number: 0 });
    expect(observer.view.beat?.state).not.toBe("released");
    expect(await beat(store)).toBe("done");
    await commit(store, [leasePut("a")], 1);
    await close(store);
  });

  test("announcements: every node sees every node, newer signs rise, who leaves in order is gone", async () => {
    const cluster = freshCluster();
    const [first, second] = [open(cluster, 1), open(cluster, 2)];
    const observer = await seenBy(first);
    expect(await announce(first)).toBe("done");
    expect(await announce(second)).toBe("done");
    const byId = (): readonly NodeAddress[] => observer.nodes.map((sighting) => sighting.node);
    await until("both to be seen", () => observer.nodes.length === 2);
    expect(byId()).toEqual([node(1), node(2)]);
    const revision = observer.nodes[1]?.modRevision ?? 0;
    expect(await announce(second)).toBe("done");
    await until("the newer sign", () => (observer.nodes[1]?.modRevision ?? 0) > revision);
    await close(second);
    await until("the second to be gone", () => observer.nodes.length === 1);
    await close(first);
  });

  test("a watch goes on after its connection broke, and after etcd compacted what it missed", async () => {
    const cluster = freshCluster();
    const proxy = await CutProxy.start(etcd.members[0]?.clientPort ?? 0);
    const primary = open(cluster, 1);
    const log = new KeptLog();
    const standby = etcdStore(etcdClient([proxy.endpoint], { requestTimeoutMs: 1_000 }), cluster, { log });
    await acquire(primary);
    const observer = await seenBy(standby);
    for (let round = 1; round <= 3; round += 1) {
      proxy.requests = "hold";
      proxy.replies = "drop";
      proxy.cut();
      for (let count = 0; count < 5; count += 1) expect(await beat(primary)).toBe("done");
      const { revision } = await admin.range({ key: Buffer.from("x") });
      await admin.compact(revision);
      proxy.requests = "pass";
      proxy.replies = "pass";
      proxy.cut();
      await until("the newest beat to be seen", () => observer.view.beat?.number === 5 * round);
    }
    observer.checkOrder();
    await close(standby);
    await close(primary);
    await proxy.stop();
  });

  test("a silent watch is found out by polls, and opened again", async () => {
    const cluster = freshCluster();
    const client = etcdClient(etcd.endpoints);
    const deaf = new FlakyClient(client);
    let watches = 0;
    deaf.watch = (ranges, onReply, onEnd) => {
      watches += 1;
      const isDeaf = watches === 1;
      return client.watch(ranges, (reply) => isDeaf || onReply(reply), onEnd);
    };
    const primary = open(cluster, 1);
    const standby = etcdStore(deaf, cluster);
    await acquire(primary);
    const observer = await seenBy(standby);
    for (let round = 1; round <= 3; round += 1) {
      expect(await beat(primary)).toBe("done");
      expect(await poll(standby)).toBe("done");
      expect(observer.view.beat?.number).toBe(round);
    }
    await until("another watch", () => watches === 2);
    expect(await beat(primary)).toBe("done");
    await until("the beat by the watch", () => observer.view.beat?.number === 4);
    observer.checkOrder();
    await close(standby);
    await close(primary);
  });

  test("polls that answer late, and events that come late, show nothing old", async () => {
    const cluster = freshCluster();
    const client = etcdClient(etcd.endpoints);
    const slow = new FlakyClient(client);
    const heldReplies: (() => void)[] = [];
    let heldEvents = 0;
    let holdsEvents = false;
    slow.watch = (ranges, onReply, onEnd) => {
      const hear: typeof onReply = (reply) => {
        if (!holdsEvents) {
          onReply(reply);
          return;
        }
        heldReplies.push(() => onReply(reply));
        heldEvents += reply.events.length;
      };
      return client.watch(ranges, hear, onEnd);
    };
    const primary = open(cluster, 1);
    const standby = etcdStore(slow, cluster);
    await acquire(primary);
    const observer = await seenBy(standby);
    expect(await beat(primary)).toBe("done");
    await until("the watch", () => observer.view.beat?.number === 1);

    let isRead = false;
    let letPollEnd = (): void => undefined;
    const pollMayEnd = new Promise<void>((resolve) => {
      letPollEnd = resolve;
    });
    slow.txn = async (request) => {
      const reply = await client.txn(request);
      isRead = true;
      await pollMayEnd;
      return reply;
    };
    const polled = poll(standby);
    await until("the poll to be read", () => isRead);
    expect(await beat(primary)).toBe("done");
    await until("a newer beat by the watch", () => observer.view.beat?.number === 2);
    letPollEnd();
    expect(await polled).toBe("done");
    expect(observer.view.beat?.number).toBe(2);

    holdsEvents = true;
    expect(await beat(primary)).toBe("done");
    expect(await beat(primary)).toBe("done");
    expect(await poll(standby)).toBe("done");
    expect(observer.view.beat?.number).toBe(4);
    await until("both events to be held", () => heldEvents >= 2);
    for (const show of heldReplies) show();
    expect(observer.view.beat?.number).toBe(4);
    observer.checkOrder();
    await close(standby);
    await close(primary);
  });

  test("a store of another format is refused by its name, and left alone", async () => {
    const cluster = freshCluster();
    const store = open(cluster, 1);
    await acquire(store);
    const key = Buffer.from(`/leasehold/${cluster}/r/m/format`);
    const { rows } = await admin.range({ key });
    expect(rows.length).toBe(1);
    const value = formatRow(99);
    await admin.txn({ guards: [], success: [{ kind: "put", key, value }], failure: [] });
    const other = open(cluster, 2);
    await expect(acquire(other)).rejects.toMatchObject({
      code: "format",
      message: expect.stringMatching(/version 99.*version 1/) as string,
    });
    // The primary still has the role: nothing was written.
    expect(await beat(store)).toBe("done");
    await close(other);
    await close(store);
  });

  /** Loads, and does something while the third page is being looked at. */
  const loadDisturbed = (store: EtcdStore, disturb: () => Promise<void>): Promise<RowPage[]> =>
    new Promise((resolve, reject) => {
      const pages: RowPage[] = [];
      store.load(
        (page, next) => {
          pages.push(page);
          if (pages.length === 3) disturb().then(next, reject);
          else next();
        },
        (error) => (error === null ? resolve(pages) : reject(error)),
      );
    });

  const SMALL_PAGES = { rangeBytes: 4_096, pageBytes: 4_096 };
  const many = Array.from({ length: 3_000 }, (_, index) => leasePut(`lease-${String(index).padStart(5, "0")}`));

  const compactAll = async (): Promise<void> => {
    const { revision } = await admin.range({ key: Buffer.from("x") });
    await admin.compact(revision);
  };

  test("a load goes on over a compaction of the revision that it began with", async () => {
    const store = open(freshCluster(), 1, SMALL_PAGES);
    await acquire(store);
    await commit(store, many, 1);
    const pages = await loadDisturbed(store, async () => {
      expect(await beat(store)).toBe("done");
      await compactAll();
    });
    expect(pages.length).toBeGreaterThan(10);
    expect(decodeAll(pages).ops).toEqual(many);
    await close(store);
  });

  test("a load is of one moment of its own tenure, whoever writes meanwhile", async () => {
    const cluster = freshCluster();
    const [first, second] = [open(cluster, 1, SMALL_PAGES), open(cluster, 2)];
    await acquire(first);
    await commit(first, many, 1);
    const pages = await loadDisturbed(first, async () => {
      await acquire(second);
      await commit(second, [{ kind: "flush-all", by: "the second" }, leasePut("lease-zzz")], 2);
    });
    expect(decodeAll(pages)).toEqual({ ops: many, revision: 1 });
    await close(first);
    await close(second);
  });

  test("a load whose moment was compacted away after another node took over fails, rather than mix the two", async () => {
    const cluster = freshCluster();
    const [first, second] = [open(cluster, 1, SMALL_PAGES), open(cluster, 2)];
    await acquire(first);
    await commit(first, many, 1);
    const loaded = loadDisturbed(first, async () => {
      await acquire(second);
      await commit(second, [leasePut("lease-zzz")], 2);
      await compactAll();
    });
    await expect(loaded).rejects.toMatchObject({ code: "fenced" });
    await close(first);
    await close(second);
  });
});
