import type { ByteString } from "#src/engine/reply.js";
import type { World } from "../sim-world.js";

/**
 * The shared store itself: what an etcd cluster is to its clients when it answers. Rows with the revision of their last change, guarded
 * transactions, reads at a revision, compaction. Linearizable by construction: everything happens at the instant at which it
 * arrives. What makes it a distributed thing lies in the links to it (`sim-link.ts`).
 */

export interface SharedRow {
  readonly key: ByteString;
  readonly value: Uint8Array;
  readonly modRevision: number;
}

/** The row has this modification revision; 0: it is not there. */
export interface RowGuard {
  readonly key: ByteString;
  readonly modRevision: number;
}

export type RowChange =
  | { readonly kind: "put"; readonly key: ByteString; readonly value: Uint8Array }
  /** Up to before `end`; without it that key alone. */
  | { readonly kind: "delete"; readonly key: ByteString; readonly end?: ByteString };

/** What watches the store from outside of the simulated world. */
export interface SharedObserver {
  /** The changes of one transaction, in order, each of one row. `value` null: deleted. */
  onTransaction(changes: readonly AppliedChange[], revision: number): void;
}

export interface AppliedChange {
  readonly key: ByteString;
  readonly value: Uint8Array | null;
}

interface Version {
  readonly modRevision: number;
  /** null: deleted. */
  readonly value: Uint8Array | null;
}

export class Compacted extends Error {}

export class SimShared {
  readonly #world: World;
  /** Versions of each row, oldest first. */
  readonly #rows = new Map<ByteString, Version[]>();
  #revision = 1;
  #compactedRevision = 0;
  readonly #watchers = new Set<(changes: readonly AppliedChange[], revision: number) => void>();
  observer: SharedObserver | null = null;
  /** No quorum until then: nothing is done, nothing is answered. */
  outUntilMs = 0;

  constructor(world: World) {
    this.#world = world;
  }

  get revision(): number {
    return this.#revision;
  }

  get isOut(): boolean {
    return this.#world.nowMs < this.outUntilMs;
  }

  /** Carries the changes out when every guard holds. */
  transact(guards: readonly RowGuard[], changes: readonly RowChange[]): boolean {
    for (const { key, modRevision } of guards) {
      if ((this.get(key)?.modRevision ?? 0) !== modRevision) return false;
    }
    if (changes.length === 0) return true;
    this.#revision += 1;
    const applied: AppliedChange[] = [];
    for (const change of changes) {
      if (change.kind === "put") {
        this.#write(change.key, change.value);
        applied.push(change);
        continue;
      }
      for (const key of this.#keysIn(change.key, change.end)) {
        this.#write(key, null);
        applied.push({ key, value: null });
      }
    }
    this.observer?.onTransaction(applied, this.#revision);
    for (const watcher of this.#watchers) watcher(applied, this.#revision);
    return true;
  }

  get(key: ByteString): SharedRow | null {
    const newest = this.#rows.get(key)?.at(-1);
    return newest === undefined || newest.value === null
      ? null
      : { key, value: newest.value, modRevision: newest.modRevision };
  }

  /** Rows from `start` to before `end`, in key order, at most `limit`, as they were at a revision. Throws Compacted. */
  range(start: ByteString, end: ByteString, limit = Infinity, atRevision = this.#revision): SharedRow[] {
    if (atRevision < this.#compactedRevision) throw new Compacted("the revision has been compacted");
    const found: SharedRow[] = [];
    for (const key of [...this.#rows.keys()].filter((name) => name >= start && name < end).sort()) {
      if (found.length >= limit) break;
      const version = this.#rows.get(key)?.findLast(({ modRevision }) => modRevision <= atRevision);
      if (version === undefined || version.value === null) continue;
      found.push({ key, value: version.value, modRevision: version.modRevision });
    }
    return found;
  }

  /** Older versions are forgotten; reads at older revisions fail. */
  compact(): void {
    this.#compactedRevision = this.#revision;
    for (const [key, versions] of this.#rows) {
      const newest = versions.at(-1);
      if (newest === undefined || newest.value === null) this.#rows.delete(key);
      else if (versions.length > 1) this.#rows.set(key, [newest]);
    }
  }

  /** Up to here the history is forgotten. */
  get compactedRevision(): number {
    return this.#compactedRevision;
  }

  /** All changes from this revision on, oldest first; those of a compacted revision are not among them. */
  changesSince(revision: number): readonly { key: ByteString; value: Uint8Array | null; modRevision: number }[] {
    const found: { key: ByteString; value: Uint8Array | null; modRevision: number }[] = [];
    for (const [key, versions] of this.#rows) {
      for (const version of versions) if (version.modRevision >= revision) found.push({ key, ...version });
    }
    return found.sort((a, b) => a.modRevision - b.modRevision);
  }

  /** Calls back within each transaction. Returns what ends it. */
  watch(watcher: (changes: readonly AppliedChange[], revision: number) => void): () => void {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  }

  #keysIn(start: ByteString, end: ByteString | undefined): ByteString[] {
    if (end === undefined) return this.get(start) === null ? [] : [start];
    return [...this.#rows.keys()].filter((key) => key >= start && key < end && this.get(key) !== null);
  }

  #write(key: ByteString, value: Uint8Array | null): void {
    const version: Version = { modRevision: this.#revision, value };
    const versions = this.#rows.get(key);
    if (versions === undefined) this.#rows.set(key, [version]);
    else if (versions.at(-1)?.modRevision === this.#revision) versions[versions.length - 1] = version;
    else versions.push(version);
  }
}
