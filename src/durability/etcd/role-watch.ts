import type { Log, Scheduler, Timer } from "../../ports.js";
import type { NodeSighting, RoleListener, RoleView } from "../shared-store.js";
import { StoreError } from "../store.js";
import { EtcdError, type EtcdCalls } from "./etcd-client.js";
import type { KeyValue, TxnReply, WatchEvent, WatchReply } from "./protocol.js";
import { decodeBeat, decodeFence, decodeNode, type EtcdKeys } from "./rows.js";

/**
 * What this node sees of the role rows and the announcements: from a watch, and from polls, because a watch may be silent without
 * being broken.
 *
 * Both tell the same story at different times. It is kept straight by revisions: what is known is as of one revision, a snapshot
 * counts when it is newer than that, an event when its own revision is.
 *
 * Whatever ends the watch (a broken stream, a member without a leader, a compaction, polls that know more three times in a row), it is
 * opened again after a pause, from a fresh snapshot on: so nothing has to be asked for that may be compacted away.
 *
 * Invariants:
 *  1. the listener is never shown anything older than what it was shown before
 *  2. one watch at a time, and none after `stop`
 */

export interface RoleWatchOptions {
  readonly client: EtcdCalls;
  readonly keys: EtcdKeys;
  readonly scheduler: Scheduler;
  readonly log: Log;
}

const REOPEN_MS_MIN = 100;
const REOPEN_MS_MAX = 2_000;

/** So many polls in a row that bring news, without an event between them: the watch is stuck. */
const POLLS_AHEAD_MAX = 3;

const NOBODY: RoleView = { fence: null, beat: null };

export class RoleWatch {
  readonly #options: RoleWatchOptions;
  #listener: RoleListener | null = null;
  #view: RoleView = NOBODY;
  /** By id. */
  #nodes = new Map<string, NodeSighting>();
  /** What is known is as of this revision; -1: nothing is known. */
  #viewRevision = -1;
  #nodesRevision = -1;
  #cancelWatch: (() => void) | null = null;
  #reopenTimer: Timer | null = null;
  #reopenMs = REOPEN_MS_MIN;
  #pollsAhead = 0;
  #stopped = false;

  constructor(options: RoleWatchOptions) {
    this.#options = options;
  }

  /** The announcements as they are known. */
  get nodes(): readonly NodeSighting[] {
    return [...this.#nodes.values()];
  }

  start(listener: RoleListener): void {
    this.#listener = listener;
    this.#options.scheduler.soon(() => void this.#open());
  }

  stop(): void {
    this.#stopped = true;
    this.#reopenTimer?.cancel();
    this.#cancelWatch?.();
    this.#cancelWatch = null;
  }

  /** Reads everything once and tells the listener. Rejects with EtcdError, or StoreError `damaged`. */
  async poll(): Promise<void> {
    const reply = await this.#read();
    const known = this.#view;
    this.#takeSnapshot(reply);
    const isNews =
      known.fence?.modRevision !== this.#view.fence?.modRevision ||
      known.beat?.modRevision !== this.#view.beat?.modRevision;
    if (!isNews || this.#cancelWatch === null) return;
    this.#pollsAhead += 1;
    if (this.#pollsAhead >= POLLS_AHEAD_MAX) this.#reopen("polls know more than the watch");
  }

  #read(): Promise<TxnReply> {
    const { client, keys } = this.#options;
    const success = [
      { kind: "range", ...keys.roleRange },
      { kind: "range", ...keys.nodesRange },
    ] as const;
    return client.txn({ guards: [], success, failure: [] });
  }

  #takeSnapshot(reply: TxnReply): void {
    if (this.#stopped) return;
    const [roleRows, nodeRows] = reply.ranges;
    if (reply.revision > this.#viewRevision) {
      let view = NOBODY;
      for (const row of roleRows?.rows ?? []) view = this.#withRow(view, row, row);
      this.#view = view;
      this.#viewRevision = reply.revision;
    }
    this.#listener?.onView(this.#view);
    if (reply.revision > this.#nodesRevision) {
      this.#nodes = new Map((nodeRows?.rows ?? []).map((row) => [row.key.toString("utf8"), decodeNode(row)]));
      this.#nodesRevision = reply.revision;
      this.#listener?.onNodes(this.nodes);
    }
  }

  // The watch -------------------------------------------------------------------------------------------------------------

  async #open(): Promise<void> {
    if (this.#stopped) return;
    const { client, keys } = this.#options;
    try {
      const snapshot = await this.#read();
      if (this.#stopped) return;
      this.#takeSnapshot(snapshot);
      const fromRevision = snapshot.revision + 1;
      const ranges = [
        { ...keys.roleRange, fromRevision },
        { ...keys.nodesRange, fromRevision },
      ];
      this.#pollsAhead = 0;
      const cancel = client.watch(
        ranges,
        (reply) => {
          if (this.#cancelWatch === cancel) this.#hear(reply);
        },
        (reason) => {
          if (this.#cancelWatch === cancel) this.#reopen(reason);
        },
      );
      this.#cancelWatch = cancel;
    } catch (error) {
      if (!(error instanceof EtcdError) && !(error instanceof StoreError)) throw error;
      this.#reopen(error.message);
    }
  }

  #reopen(reason: string): void {
    this.#cancelWatch?.();
    this.#cancelWatch = null;
    if (this.#stopped) return;
    const { scheduler, log } = this.#options;
    log.write("debug", "the watch of the role is opened again", { reason, "pause-ms": this.#reopenMs });
    this.#reopenTimer?.cancel();
    this.#reopenTimer = scheduler.after(this.#reopenMs, () => void this.#open());
    this.#reopenMs = Math.min(this.#reopenMs * 2, REOPEN_MS_MAX);
  }

  #hear(reply: WatchReply): void {
    if (reply.canceled) {
      const why = reply.compactRevision > 0 ? "compacted" : reply.cancelReason;
      this.#reopen(`etcd ended the watch: ${why}`);
      return;
    }
    this.#reopenMs = REOPEN_MS_MIN;
    if (reply.events.length === 0) return;
    this.#pollsAhead = 0;
    try {
      this.#takeEvents(reply.events);
    } catch (error) {
      if (!(error instanceof StoreError)) throw error;
      this.#options.log.write("warn", `a row of the cluster cannot be read: ${error.message}`);
    }
  }

  /** Events of one reply: those of one revision are never divided. */
  #takeEvents(events: readonly WatchEvent[]): void {
    const { keys } = this.#options;
    const nodesStart = keys.nodesRange.key;
    const viewRevision = this.#viewRevision;
    const nodesRevision = this.#nodesRevision;
    let view = this.#view;
    let nodesChanged = false;
    for (const { kind, row } of events) {
      const isNode = row.key.subarray(0, nodesStart.length).equals(nodesStart);
      if (row.modRevision <= (isNode ? nodesRevision : viewRevision)) continue;
      const value = kind === "put" ? row : null;
      if (isNode) {
        this.#nodesRevision = Math.max(this.#nodesRevision, row.modRevision);
        const id = row.key.toString("utf8");
        if (value === null) this.#nodes.delete(id);
        else this.#nodes.set(id, decodeNode(value));
        nodesChanged = true;
      } else {
        this.#viewRevision = Math.max(this.#viewRevision, row.modRevision);
        view = this.#withRow(view, row, value);
      }
    }
    if (view !== this.#view) {
      this.#view = view;
      this.#listener?.onView(view);
    }
    if (nodesChanged) this.#listener?.onNodes(this.nodes);
  }

  /** The view with one row as it is now; null: it is deleted. */
  #withRow(view: RoleView, { key }: KeyValue, value: KeyValue | null): RoleView {
    const { keys } = this.#options;
    if (key.equals(keys.fence)) return { ...view, fence: value === null ? null : decodeFence(value) };
    if (key.equals(keys.beat)) return { ...view, beat: value === null ? null : decodeBeat(value) };
    return view;
  }
}
