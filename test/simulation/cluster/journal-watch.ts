import { asBuffer, BatchReader, CHANGE_DELETE, CHANGE_PUT } from "#src/durability/batch.js";
import type { ByteString } from "#src/engine/reply.js";
import { decodeJson } from "./role-rows.js";
import { demand } from "./rules.js";
import type { AppliedChange } from "./sim-shared.js";

/**
 * A batch too large for one transaction is decided by one, which writes the head of the journal, and applied by others. Here it is what
 * it means: the whole batch, at the instant at which it is decided.
 */

export interface Meaning {
  /** What changes, in order: keys without the prefix of rows. */
  readonly rows: readonly AppliedChange[];
  /** The journal is given up: the batch in it has to be applied by now. */
  readonly isDropped: boolean;
}

interface Head {
  readonly parts: number;
  readonly bytes: number;
}

export class JournalWatch {
  readonly #prefix: ByteString;
  readonly #headKey: ByteString;
  readonly #pieces = new Map<ByteString, Uint8Array>();
  #headStands = false;
  /** Batches that went this way. */
  batches = 0;

  /** `prefix`: of the journal's keys. */
  constructor(prefix: ByteString) {
    this.#prefix = prefix;
    this.#headKey = `${prefix}head`;
  }

  /** `rows`: those among the changes of one transaction. */
  meaningOf(changes: readonly AppliedChange[], rows: readonly AppliedChange[]): Meaning {
    let head: AppliedChange | null = null;
    for (const change of changes) {
      const { key, value } = change;
      if (!key.startsWith(this.#prefix)) continue;
      if (key === this.#headKey) head = change;
      if (value === null) this.#pieces.delete(key);
      else this.#pieces.set(key, value);
    }
    if (head === null) return { rows: this.#headStands ? [] : rows, isDropped: false };
    this.#headStands = head.value !== null;
    if (head.value === null) return { rows, isDropped: true };
    this.batches += 1;
    return { rows: this.#batch(decodeJson(head.value) as Head), isDropped: false };
  }

  #batch({ parts, bytes }: Head): AppliedChange[] {
    const pieces: Uint8Array[] = [];
    for (let index = 0; index < parts; index += 1) {
      const piece = this.#pieces.get(`${this.#prefix}${index}`);
      if (piece !== undefined) pieces.push(piece);
    }
    const packed = asBuffer(Buffer.concat(pieces));
    const text = (): string => `the head of the journal speaks of ${bytes} bytes, there are ${packed.length}`;
    demand(packed.length === bytes, "S2-one-history", text);
    const reader = new BatchReader(packed);
    const rows: AppliedChange[] = [];
    while (reader.next()) {
      const key = packed.toString("latin1", reader.keyStart, reader.keyEnd);
      const isKnown = reader.kind === CHANGE_PUT || reader.kind === CHANGE_DELETE;
      demand(isKnown, "ports", () => "no client of the simulation asks for a range to be cleared");
      rows.push({ key, value: reader.kind === CHANGE_PUT ? Uint8Array.from(reader.value()) : null });
    }
    return rows;
  }
}
