/**
 * Bugs put into the real server on purpose, to see that the end-to-end suites notice: `npm run deliberate-bugs`.
 *
 * Loaded into the server process by `--import`, before its main module and in its worker threads too, with the bug's name in
 * DELIBERATE_BUG (a server refuses variables of its own that it does not know); replaces a method of a built class by one that is
 * wrong in one way. The server has no switch for this.
 */
import { appendFileSync } from "node:fs";
import { createRequire } from "node:module";
import { threadId } from "node:worker_threads";

/** A module of the built server. */
const built = (path) => import(new URL(`../../dist/${path}`, import.meta.url).href);

/** Replaces a method: `make` gets the old one and returns the new one. */
function replace(owner, name, make) {
  owner[name] = make(owner[name]);
}

/** name -> what is wrong, the tests of which at least one must fail, and how it is put in. */
export const BUGS = {
  "skip-sync": {
    wrong: "batches are written without a sync",
    files: ["test/e2e/sync-before-reply.test.ts", "test/faults/power-loss.test.ts"],
    install() {
      const { ChainedBatch } = createRequire(import.meta.url)("rocksdb/chained-batch");
      replace(ChainedBatch.prototype, "_writeSync", (write) => {
        return function unsynced(options) {
          return write.call(this, { ...options, sync: false });
        };
      });
    },
  },
  "release-early": {
    wrong: "replies do not wait for the sync of what they reveal",
    files: ["test/e2e/sync-before-reply.test.ts", "test/faults/sync-error.test.ts"],
    async install() {
      const { ReleaseQueue } = await built("durability/release-queue.js");
      replace(ReleaseQueue.prototype, "park", () => {
        return function atOnce(_revision, session, ticket, reply) {
          setImmediate(() => session.deliver(ticket, reply));
        };
      });
    },
  },
  "no-fail-stop": {
    wrong: "an error of the write is taken for success",
    files: ["test/faults/sync-error.test.ts", "test/faults/disk-full.test.ts"],
    async install() {
      const { RocksDatabase } = await built("durability/rocksdb/database.js");
      replace(RocksDatabase.prototype, "apply", (apply) => {
        return function deaf(packed) {
          try {
            apply.call(this, packed);
          } catch {
            // the bug: nobody hears of it
          }
        };
      });
    },
  },
  "revive-on-renew": {
    wrong: "a keep-alive renews a lease whose deadline has passed",
    files: ["test/e2e/dead-past-deadline.test.ts"],
    async install() {
      const { Engine } = await built("engine/engine.js");
      replace(Engine.prototype, "decide", (decide) => {
        return function reviving(command, turn, origin) {
          if (command.kind !== "lease-keepalive") return decide.call(this, command, turn, origin);
          return decide.call(this, command, { ...turn, nowMs: turn.nowMs - 60_000 }, origin);
        };
      });
    },
  },
  "expire-early": {
    wrong: "leases end 30 ms before their time",
    files: ["test/e2e/expiry-timing.test.ts"],
    async install() {
      const { Deadlines } = await built("engine/deadlines.js");
      replace(Deadlines.prototype, "start", (start) => {
        return function early(row, ttlMs, nowMs) {
          start.call(this, row, ttlMs, nowMs - 30);
        };
      });
    },
  },
  "expire-late": {
    wrong: "leases are looked at every 500 ms only",
    files: ["test/e2e/expiry-timing.test.ts"],
    async install() {
      const { Engine } = await built("engine/engine.js");
      replace(Engine.prototype, "nextDueMs", (nextDueMs) => {
        return function lazy() {
          const dueMs = nextDueMs.call(this);
          return dueMs === null ? null : Math.ceil(dueMs / 500) * 500;
        };
      });
    },
  },
  "keepalive-writes": {
    wrong: "each keep-alive leaves a byte on the disk",
    files: ["test/e2e/keepalive-zero-writes.test.ts"],
    async install() {
      const { Deadlines } = await built("engine/deadlines.js");
      const directory = process.argv[process.argv.indexOf("--dir") + 1];
      replace(Deadlines.prototype, "renew", (renew) => {
        return function noting(row, nowMs) {
          appendFileSync(`${directory}/renewals`, ".");
          renew.call(this, row, nowMs);
        };
      });
    },
  },
  "wall-clock": {
    wrong: "deadlines follow the wall clock",
    files: ["test/e2e/wall-clock.test.ts"],
    async install() {
      const { SystemClock } = await built("system.js");
      replace(SystemClock.prototype, "monotonicMs", () => () => Date.now());
    },
  },
  "forget-revision": {
    wrong: "the revision counter starts again after a restart",
    files: ["test/e2e/restart.test.ts", "test/e2e/role.test.ts"],
    async install() {
      const { Engine } = await built("engine/engine.js");
      replace(Engine.prototype, "recoverRevision", () => () => {});
    },
  },
  "no-spread": {
    wrong: "all inherited leases fall due at one moment",
    files: ["test/e2e/restart.test.ts"],
    async install() {
      const { Deadlines } = await built("engine/deadlines.js");
      replace(Deadlines.prototype, "rebuildSome", (rebuildSome) => {
        return function together(limit) {
          const { start } = this;
          const nowMs = performance.now();
          this.start = (row, ttlMs) => start.call(this, row, ttlMs, Math.ceil(nowMs / 100) * 100);
          const done = rebuildSome.call(this, limit);
          delete this.start;
          return done;
        };
      });
    },
  },
  "no-witness": {
    wrong: "the witness of the newest revision is not written",
    files: ["test/faults/wal-damage.test.ts"],
    async install() {
      const { WitnessFile } = await built("durability/rocksdb/witness.js");
      replace(WitnessFile.prototype, "write", () => () => {});
    },
  },
  "no-retry": {
    wrong: "the nonce of a retried grant is ignored",
    files: ["test/e2e/lifecycle.test.ts"],
    async install() {
      const { Engine } = await built("engine/engine.js");
      replace(Engine.prototype, "decide", (decide) => {
        return function forgetful(command, turn, origin) {
          const asked = command.kind === "lease-grant" ? { ...command, request: null } : command;
          return decide.call(this, asked, turn, origin);
        };
      });
    },
  },
  "lose-keys": {
    wrong: "keys of a lease are not restored from the store",
    files: ["test/e2e/restart.test.ts", "test/faults/kill-loop.test.ts"],
    async install() {
      const { Engine } = await built("engine/engine.js");
      replace(Engine.prototype, "recover", (recover) => {
        return function partly(op) {
          if (op.kind !== "key-put") recover.call(this, op);
        };
      });
    },
  },
  "release-ignores-token": {
    wrong: "a release under a stale token releases what the lease has now",
    files: ["test/e2e/locks-kill.test.ts"],
    async install() {
      const { Engine } = await built("engine/engine.js");
      replace(Engine.prototype, "decide", (decide) => {
        return function careless(command, turn, origin) {
          const asked = command.kind === "lock-release" ? { ...command, token: null } : command;
          return decide.call(this, asked, turn, origin);
        };
      });
    },
  },
  "lose-locks": {
    wrong: "locks that are shared are not restored from the store",
    files: ["test/e2e/locks-kill.test.ts", "test/faults/kill-loop.test.ts"],
    async install() {
      const { Engine } = await built("engine/engine.js");
      replace(Engine.prototype, "recover", (recover) => {
        return function partly(op) {
          if (op.kind !== "key-put" || op.mode.kind === "exclusive") recover.call(this, op);
        };
      });
    },
  },
  "revive-locks": {
    wrong: "the release of a lock is not written: a restart brings it back",
    files: ["test/e2e/locks-kill.test.ts"],
    async install() {
      const { Committer } = await built("durability/committer.js");
      replace(Committer.prototype, "append", (append) => {
        return function partly(ops, revision) {
          const written = ops.filter((op) => op.kind !== "key-end" || op.reason !== "released");
          append.call(this, written.length > 0 ? written : [{ kind: "script-end", sha: "0".repeat(40) }], revision);
        };
      });
    },
  },
  "role-without-end": {
    wrong: "a primary goes on when its time is over, until it hears of another one",
    files: ["test/cluster-e2e/pause.test.ts", "test/cluster-e2e/partition.test.ts"],
    async install() {
      const { RoleKeeper } = await built("cluster/role-keeper.js");
      const { Coordinator } = await built("coordinator.js");
      replace(RoleKeeper.prototype, "holds", () => () => true);
      replace(Coordinator.prototype, "lose", (lose) => {
        return function onlyWhenTold(reason) {
          if (!reason.startsWith("its time as primary")) lose.call(this, reason);
        };
      });
    },
  },
  "no-fence": {
    wrong: "rows are written to etcd whoever has the role",
    files: ["test/cluster-e2e/partition.test.ts"],
    async install() {
      const { EtcdClient } = await built("durability/etcd/etcd-client.js");
      replace(EtcdClient.prototype, "txn", (txn) => {
        return function unguarded(request) {
          const isOfRows = request.success.some(({ kind, key }) => kind !== "range" && key.includes("/r/"));
          return txn.call(this, isOfRows ? { ...request, guards: [] } : request);
        };
      });
    },
  },
  "acknowledge-unknown": {
    wrong: "a node that loses the role acknowledges what was never written",
    files: ["test/cluster-e2e/partition.test.ts"],
    async install() {
      const { ReleaseQueue } = await built("durability/release-queue.js");
      replace(ReleaseQueue.prototype, "discard", (discard) => {
        return function hopeful() {
          this.release(Number.MAX_SAFE_INTEGER);
          return discard.call(this);
        };
      });
    },
  },
};

const name = process.env.DELIBERATE_BUG;
if (name !== undefined) {
  await BUGS[name].install();
  if (threadId === 0) process.stderr.write(`deliberate bug: ${BUGS[name].wrong}\n`);
}
