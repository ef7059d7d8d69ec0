import type { NodeAddress } from "../ports.js";
import type { Done, Store } from "./store.js";

/**
 * A store whose rows several nodes can reach, one of which has the primary role: the store port, and what the role protocol needs
 * beside it. `etcd/etcd-store.ts` is the real form; the simulation has one of its own. The protocol and its safety argument are in
 * `docs/CLUSTER.md`; who decides when to try is `src/cluster/`.
 *
 * Two rows carry the role. `fence` names the node that has it and is written only by a take-over; its modification revision F guards
 * every later write of that node, in the same transaction as the write. `beat` is the sign of life of the node that has it.
 *
 * Invariants, beyond those of a store:
 *  1. `acquire` takes the role over from exactly the view that `candidateFrom` named, else it fails with `fenced` and changes
 *     nothing. Without such a view it takes over from whatever is there (as a single node and the contract suite do).
 *  2. After somebody else's take-over no write of this store's earlier tenure changes anything: `commit` and `beat` fail with `fenced`.
 *  3. A commit whose outcome is unknown is resolved before `done` is called: the store moves its own fence, so that what is in flight
 *     is refused or already there, and writes the batch again, which is the same rows. `done` gets an error only when that cannot be
 *     done: `fenced`, or `write-failed` when the shared store could not be reached in time.
 *  4. An error latches this tenure, not the store: `acquire` may be called again, also while a commit of a tenure that was lost is in
 *     flight; it waits for the end of that.
 */

export interface FenceRow {
  /** Rises with every take-over, also with one's own. */
  readonly epoch: number;
  /** The node that has the role. */
  readonly node: NodeAddress;
  /** Of the process: a restart is another one. */
  readonly incarnation: string;
  /** The store's revision at which the row was written. */
  readonly modRevision: number;
}

export interface BeatRow {
  readonly epoch: number;
  /** Counts the beats of one tenure. */
  readonly number: number;
  /**
   * `loading`: it has the role and does not serve yet; so a take-over writes it. `released`: the node has given the role up, nobody needs to
   * wait for its time to run out.
   */
  readonly state: "loading" | "serving" | "released";
  readonly modRevision: number;
}

/** What is known of the role: null for a row that is not there. */
export interface RoleView {
  readonly fence: FenceRow | null;
  readonly beat: BeatRow | null;
}

export interface RoleListener {
  /**
   * The role rows as they are, from a watch or a poll. Called for every change seen, and may be called again without one; never with
   * a view older than one shown before.
   */
  onView(view: RoleView): void;
  /** The nodes that have announced themselves: all of them, after each change. Includes this one. */
  onNodes(nodes: readonly NodeSighting[]): void;
}

/** A node's sign of presence; it says nothing about the role. */
export interface NodeSighting {
  readonly node: NodeAddress;
  /** Rises with each of its announcements: who stops rising is gone. */
  readonly modRevision: number;
}

export interface SharedStore extends Store {
  /** The address under which this node announces itself. Fixed before the first call; its port may be known only after listening. */
  announceAs(node: NodeAddress): void;

  /** Begins to watch the role rows and the announcements, for good; a broken watch is opened again. */
  watch(listener: RoleListener): void;

  /**
   * Reads them once: a stuck watch costs time, not safety. The listener is called before `done`. Deadline: the request timeout.
   */
  poll(done: Done): void;

  /** The next `acquire` takes over from exactly this view. */
  candidateFrom(view: RoleView): void;

  /**
   * Writes the beat, guarded by the fence. One in flight at a time. Errors: `fenced`: somebody else has the role; `write-failed`: no
   * answer in time, or the store is out of reach, and nothing is known; the tenure goes on.
   */
  beat(state: BeatRow["state"], done: Done): void;

  /** Writes this node's announcement. An error is `write-failed`. */
  announce(done: Done): void;

  /** What the shared store is and does, for INFO and the logs. */
  sharedReport(): SharedStoreReport;
}

export interface SharedStoreReport {
  /** Fences of its own that this node moved to resolve an unknown outcome, since start. */
  readonly fenceBumps: number;
  /** The newest modification revision of the fence that is this node's own; 0 before the first tenure. */
  readonly fenceRevision: number;
  /** Bytes that the shared store uses and may use at most, when it said so; null before. */
  readonly usedBytes: number | null;
  readonly quotaBytes: number | null;
  /** The endpoint in use, `host:port`. */
  readonly endpoint: string;
}
