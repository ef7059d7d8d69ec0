import type { Revision, ScriptPutOp } from "./op.js";
import type { ByteString } from "./reply.js";

/** A script that a client loaded: its source, by its SHA-1. */
export interface StoredScript {
  readonly body: ByteString;
  /** Loaded by SCRIPT LOAD: never dropped for a newer one. */
  readonly isPinned: boolean;
  /** The revision at which it was stored. */
  readonly changedAt: Revision;
}

/** The scripts that EVALSHA finds, also after a restart. Only `state.ts` and `replay.ts` write here. */
export class ScriptTable {
  /** In the order in which they were loaded. */
  readonly #scripts = new Map<ByteString, StoredScript>();
  /** Bytes of all sources. */
  bytes = 0;
  /** The newest end of any script: a SHA that is not there may have vanished then. */
  removedAt: Revision = 0;

  get count(): number {
    return this.#scripts.size;
  }

  find(sha: ByteString): StoredScript | null {
    return this.#scripts.get(sha) ?? null;
  }

  entries(): IterableIterator<[ByteString, StoredScript]> {
    return this.#scripts.entries();
  }

  put({ sha, body, isPinned }: ScriptPutOp, revision: Revision): void {
    this.bytes += body.length - (this.#scripts.get(sha)?.body.length ?? 0);
    this.#scripts.set(sha, { body, isPinned, changedAt: revision });
  }

  end(sha: ByteString, revision: Revision): void {
    const script = this.#scripts.get(sha);
    if (script === undefined) return;
    this.bytes -= script.body.length;
    this.#scripts.delete(sha);
    this.removedAt = revision;
  }

  clear(revision: Revision): void {
    this.#scripts.clear();
    this.bytes = 0;
    this.removedAt = revision;
  }
}
