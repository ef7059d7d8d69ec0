import type { Revision } from "./op.js";

/**
 * Rows that ended and wait to be swept, oldest first: until the revision of the end is durable they answer for the absence that
 * they left behind. Numbers in two flat arrays; one entry per end.
 */
export class Graves {
  #revisions: Revision[] = [];
  #rows: number[] = [];
  #head = 0;

  get size(): number {
    return this.#rows.length - this.#head;
  }

  /** The revision of the oldest entry; Infinity when there is none. */
  get oldestRevision(): Revision {
    return this.#head < this.#revisions.length ? this.#revisions[this.#head]! : Infinity;
  }

  /** The row of the oldest entry. */
  get oldestRow(): number {
    return this.#rows[this.#head]!;
  }

  /** The rows of entries up to a revision, oldest first. Nothing is pushed or shifted meanwhile. */
  *upTo(revision: Revision): Iterable<number> {
    for (let at = this.#head; at < this.#rows.length && this.#revisions[at]! <= revision; at += 1)
      yield this.#rows[at]!;
  }

  /** Revisions never fall from one push to the next. */
  push(row: number, revision: Revision): void {
    this.#rows.push(row);
    this.#revisions.push(revision);
  }

  shift(): void {
    this.#head += 1;
    if (this.#head === this.#rows.length) {
      this.clear();
    } else if (this.#head >= 1024 && this.#head * 2 >= this.#rows.length) {
      this.#rows = this.#rows.slice(this.#head);
      this.#revisions = this.#revisions.slice(this.#head);
      this.#head = 0;
    }
  }

  clear(): void {
    this.#rows = [];
    this.#revisions = [];
    this.#head = 0;
  }
}
