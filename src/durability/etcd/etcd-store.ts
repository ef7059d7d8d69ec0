import { invariant } from "../../engine/invariant.js";
import type { Clock, Fault, FaultPoint, Ids, Log, NodeAddress, Scheduler } from "../../ports.js";
import type { BeatRow, RoleListener, RoleView, SharedStore, SharedStoreReport } from "../shared-store.js";
import { type CommitBatch, type Done, type RowPage, StoreError, type StoreIdentity } from "../store.js";
import { Announcements } from "./announcements.js";
import { EtcdError, type EtcdCalls } from "./etcd-client.js";
import { type CompactionOptions, EtcdHealth } from "./health.js";
import { RoleWatch } from "./role-watch.js";
import { EtcdKeys } from "./rows.js";
import { SnapshotLoad } from "./snapshot-load.js";
import { takeOver, type TakenOver, type TakeOverOptions } from "./take-over.js";

/**
 * The store whose rows lie in an etcd cluster, shared by several nodes, one of which has the primary role.
 *
 *   take-over.ts      how the role is taken               tenure.ts        what guards every write, and unknown outcomes
 *   journal.ts        batches larger than a transaction   snapshot-load.ts all rows at one revision
 *   role-watch.ts     what is seen of the others          health.ts        quota, version, compaction
 *   rows.ts           what lies where                     etcd-client.ts   one call, one attempt
 *
 * This file ties them together and keeps the promises of the store port: callbacks come in a later turn of the loop, each once.
 *
 * Inside, what can be waited for is a promise; an error that is not a StoreError or EtcdError is a programmer's and ends the process.
 */

export interface EtcdStoreOptions {
  readonly client: EtcdCalls;
  /** Several clusters may share one etcd: see CLUSTER_NAME_PATTERN. */
  readonly cluster: string;
  readonly clock: Clock;
  readonly scheduler: Scheduler;
  readonly ids: Ids;
  readonly log: Log;
  readonly fault: Fault;
  /** Of this process: a restart is another one. */
  readonly incarnation: string;
  /** For how long an unknown outcome is worked on. About half of the role's duration. */
  readonly resolveMsMax?: number;
  /** As etcd's --max-txn-ops. */
  readonly txnOperationsMax?: number;
  /** Below etcd's --max-request-bytes. */
  readonly txnBytesMax?: number;
  /** Rows that one transaction may delete by a range. */
  readonly clearedRowsMax?: number;
  /** Rows are loaded in slices of about this size: one slice is one turn of the loop. */
  readonly pageBytes?: number;
  /** How much a load reads from etcd at a time. */
  readonly rangeBytes?: number;
  /** As etcd's --quota-backend-bytes: etcd tells it only since 3.6. */
  readonly quotaBytes?: number;
  /** null: etcd compacts itself. */
  readonly compaction?: CompactionOptions | null;
}

const RESOLVE_MS_MAX = 3_000;
const TXN_OPERATIONS_MAX = 128;
const TXN_BYTES_MAX = 1_400_000;
const CLEARED_ROWS_MAX = 20_000;
const PAGE_BYTES = 128 * 1024;
const RANGE_BYTES = 16 * 1024 * 1024;
const QUOTA_BYTES = 2 * 1024 * 1024 * 1024;

/** A store that nobody asked to announce itself, as in the contract suite. */
const UNANNOUNCED: NodeAddress = { id: "0".repeat(40), host: "0.0.0.0", port: 0, sentinelPort: 0 };

type Acquired = (error: StoreError | null, identity: StoreIdentity | null) => void;

export class EtcdStore implements SharedStore {
  readonly name = "etcd";
  readonly #options: EtcdStoreOptions;
  readonly #keys: EtcdKeys;
  readonly #watch: RoleWatch;
  readonly #health: EtcdHealth;
  readonly #announcements: Announcements;
  #node: NodeAddress = UNANNOUNCED;
  #announced = false;
  #view: RoleView | null = null;
  #tenures = 0;
  #taken: TakenOver | null = null;
  #acquiring = false;
  #committing = false;
  /** A take-over that waits for the end of the commit in flight. */
  #whenCommitted: (() => void) | null = null;
  #beating = false;
  #load: SnapshotLoad | null = null;
  #fenceBumps = 0;
  /** Closed, once nothing is under way that has to end first. */
  #closing: Done | null = null;
  #closed = false;

  constructor(options: EtcdStoreOptions) {
    this.#options = options;
    const { client, clock, scheduler, log } = options;
    this.#keys = new EtcdKeys(options.cluster);
    const isPrimary = (): boolean => this.#taken !== null && this.#taken.tenure.failure === null;
    this.#watch = new RoleWatch({ client, keys: this.#keys, scheduler, log });
    this.#health = new EtcdHealth({
      client,
      scheduler,
      log,
      quotaBytes: options.quotaBytes ?? QUOTA_BYTES,
      compaction: options.compaction ?? null,
      isPrimary,
    });
    const nodes = (): RoleWatch["nodes"] => this.#watch.nodes;
    this.#announcements = new Announcements({ client, keys: this.#keys, clock, nodes, isPrimary });
  }

  // The store port --------------------------------------------------------------------------------------------------------

  /**
   * Beyond the port's promise it may be called with a commit in flight, as when the role was lost by the clock while etcd was silent: that
   * commit is not tried any more, and the take-over begins when it has ended.
   */
  acquire(done: Acquired): void {
    invariant(!this.#acquiring && this.#closing === null && !this.#closed, "one acquire at a time, none after close");
    this.#acquiring = true;
    const view = this.#view;
    this.#view = null;
    this.#abandonLoad();
    this.#health.start();
    const take = (): void => {
      this.#settle(this.#takeOver(view), (error, taken) => {
        this.#acquiring = false;
        if (taken !== null) this.#taken = taken;
        done(error, taken === null ? null : taken.identity);
        this.#closeWhenQuiet();
      });
    };
    if (!this.#committing) {
      take();
      return;
    }
    this.#whenCommitted = take;
    this.#taken?.tenure.fail(new StoreError("fenced", "this node takes the role anew"));
  }

  #takeOver(view: RoleView | null): Promise<TakenOver> {
    const { client, clock, scheduler, ids, incarnation } = this.#options;
    this.#tenures += 1;
    const options: TakeOverOptions = {
      client,
      keys: this.#keys,
      clock,
      scheduler,
      ids,
      node: this.#node,
      incarnation,
      tenure: this.#tenures,
      resolveMsMax: this.#options.resolveMsMax ?? RESOLVE_MS_MAX,
      limits: {
        operationsMax: this.#options.txnOperationsMax ?? TXN_OPERATIONS_MAX,
        bytesMax: this.#options.txnBytesMax ?? TXN_BYTES_MAX,
        clearedRowsMax: this.#options.clearedRowsMax ?? CLEARED_ROWS_MAX,
      },
      onBump: () => {
        this.#fenceBumps += 1;
      },
      onFenced: () => this.#pass("open:after-lock"),
    };
    return takeOver(options, view);
  }

  load(onPage: (page: RowPage, next: () => void) => void, done: Done): void {
    invariant(!this.#committing, "load needs a store without a commit in flight");
    const { client, clock, scheduler } = this.#options;
    this.#abandonLoad();
    const load = new SnapshotLoad(
      {
        client,
        keys: this.#keys,
        clock,
        scheduler,
        tenure: this.#acquired("load").tenure,
        patienceMs: this.#options.resolveMsMax ?? RESOLVE_MS_MAX,
        pageBytes: this.#options.pageBytes ?? PAGE_BYTES,
        rangeBytes: this.#options.rangeBytes ?? RANGE_BYTES,
      },
      onPage,
    );
    this.#load = load;
    this.#settle(load.run(), (error) => {
      if (this.#load !== load) return;
      this.#load = null;
      done(error);
    });
  }

  commit(batch: CommitBatch, done: Done): void {
    invariant(this.#closing === null && !this.#closed, "no commit after close");
    invariant(!this.#committing, "one commit at a time");
    const taken = this.#acquired("commit");
    this.#committing = true;
    this.#settle(this.#commit(taken, batch), (error) => {
      this.#committing = false;
      done(error === null ? null : taken.tenure.fail(error));
      const next = this.#whenCommitted;
      this.#whenCommitted = null;
      if (this.#closing === null) next?.();
      else if (next !== null) this.#acquiring = false;
      this.#closeWhenQuiet();
    });
  }

  async #commit({ tenure, journal }: TakenOver, batch: CommitBatch): Promise<void> {
    if (tenure.failure !== null) throw tenure.failure;
    this.#pass("commit:before-write");
    await journal.write(batch);
    this.#pass("commit:after-write");
  }

  close(done: Done): void {
    invariant(this.#closing === null && !this.#closed, "close is called once");
    this.#closing = done;
    this.#abandonLoad();
    this.#watch.stop();
    this.#health.stop();
    this.#closeWhenQuiet();
  }

  // The role --------------------------------------------------------------------------------------------------------------

  announceAs(node: NodeAddress): void {
    this.#node = node;
  }

  watch(listener: RoleListener): void {
    this.#watch.start(listener);
    this.#health.start();
  }

  poll(done: Done): void {
    this.#settle(this.#watch.poll(), done);
  }

  candidateFrom(view: RoleView): void {
    this.#view = view;
  }

  beat(state: BeatRow["state"], done: Done): void {
    invariant(!this.#beating, "one beat at a time");
    const taken = this.#taken;
    this.#beating = true;
    const beat =
      taken === null
        ? Promise.reject(new StoreError("fenced", "this node has not taken the role"))
        : taken.tenure.beat(state);
    this.#settle(beat, (error) => {
      this.#beating = false;
      done(error);
      this.#closeWhenQuiet();
    });
  }

  announce(done: Done): void {
    this.#announced = true;
    this.#settle(this.#announcements.announce(this.#node), done);
  }

  sharedReport(): SharedStoreReport {
    return {
      fenceBumps: this.#fenceBumps,
      fenceRevision: this.#taken?.tenure.fenceRevision ?? 0,
      usedBytes: this.#health.usedBytes,
      quotaBytes: this.#health.quotaBytes,
      endpoint: this.#options.client.endpoint,
    };
  }

  // Inside ----------------------------------------------------------------------------------------------------------------

  #acquired(what: string): TakenOver {
    invariant(this.#taken !== null, `${what} needs an acquired store`);
    return this.#taken;
  }

  #abandonLoad(): void {
    this.#load?.abandon();
    this.#load = null;
  }

  /** A fault point; what it throws is a failed write. */
  #pass(point: FaultPoint): void {
    try {
      this.#options.fault.point(point);
    } catch (cause) {
      throw new StoreError("write-failed", cause instanceof Error ? cause.message : String(cause));
    }
  }

  /** Calls back in a turn of the loop of its own, where an error that the callback throws is nobody else's. */
  #settle<T>(work: Promise<T>, done: (error: StoreError | null, value: T | null) => void): void {
    const { scheduler } = this.#options;
    work.then(
      (value) => scheduler.soon(() => done(null, value)),
      (error: unknown) =>
        scheduler.soon(() => {
          if (error instanceof StoreError) done(error, null);
          else if (error instanceof EtcdError) done(new StoreError("write-failed", `etcd: ${error.message}`), null);
          else throw error;
        }),
    );
  }

  #closeWhenQuiet(): void {
    const done = this.#closing;
    if (done === null || this.#acquiring || this.#committing || this.#beating) return;
    this.#closing = null;
    this.#closed = true;
    this.#settle(this.#sayGoodbye(), () => {
      this.#options.client.close();
      const failure = this.#taken?.tenure.failure ?? null;
      done(failure?.code === "fenced" ? null : failure);
    });
  }

  /** Gives the role up, so that nobody waits for its end, and takes the announcement back. Both are favours: no promise depends on them. */
  async #sayGoodbye(): Promise<void> {
    const { log } = this.#options;
    const tenure = this.#taken?.tenure ?? null;
    try {
      if (tenure !== null && tenure.failure === null && !tenure.released) await tenure.beat("released");
      if (this.#announced) await this.#announcements.withdraw(this.#node);
    } catch (error) {
      if (!(error instanceof StoreError) && !(error instanceof EtcdError)) throw error;
      log.write("warn", `etcd was not told that this node leaves: ${error.message}`);
    }
  }
}
