import { invariant } from "../../engine/invariant.js";
import { PageWriter } from "../batch.js";
import { ALL_ROWS_RANGE } from "../schema.js";
import type { RowPage } from "../store.js";
import { EtcdError, type EtcdCalls } from "./etcd-client.js";
import { PackedRowReader, type PackedRows } from "./protocol.js";
import { type ReadPatience, readPatiently } from "./reading.js";
import type { EtcdKeys } from "./rows.js";
import type { Tenure } from "./tenure.js";

/**
 * All rows, as they are at one revision of this tenure, in key order.
 *
 * Two sizes of page: from etcd come many megabytes at a time, because for each range etcd walks over all keys behind it; the consumer
 * gets slices that it decodes without holding up its loop. While one range is being consumed the next is under way, so at most two are
 * in memory.
 *
 * When etcd compacts the revision away, a later one at which the role was still this tenure's has the same rows: no batch is in flight
 * during a load.
 */

export interface SnapshotLoadOptions extends ReadPatience {
  readonly client: EtcdCalls;
  readonly keys: EtcdKeys;
  readonly tenure: Tenure;
  /** Slices for the consumer are about so large. */
  readonly pageBytes: number;
  /** Ranges from etcd are about so large. */
  readonly rangeBytes: number;
}

/** The first range: nothing is known of the rows' sizes yet. */
const FIRST_RANGE_ROWS = 1_000;
const RANGE_ROWS_MAX = 100_000;

/** The next range may have so many times the rows of the last: sizes may change along the keys. */
const GROWTH_MAX = 8;

export class SnapshotLoad {
  readonly #options: SnapshotLoadOptions;
  readonly #onPage: (page: RowPage, next: () => void) => void;
  #revision: number;
  #from: Buffer;
  readonly #end: Buffer;
  #rangeRows = FIRST_RANGE_ROWS;
  #abandoned = false;

  constructor(options: SnapshotLoadOptions, onPage: (page: RowPage, next: () => void) => void) {
    this.#options = options;
    this.#onPage = onPage;
    this.#revision = options.tenure.ownRevision;
    const [start, end] = ALL_ROWS_RANGE;
    this.#from = options.keys.row(start);
    this.#end = options.keys.row(end);
  }

  /** Nothing is handed over any more. */
  abandon(): void {
    this.#abandoned = true;
  }

  /** Resolves when all rows were handed over; false when the load was abandoned. Throws StoreError. */
  async run(): Promise<boolean> {
    let reply = await this.#fetch();
    for (;;) {
      let ahead: Promise<PackedRows> | null = null;
      if (reply.more && reply.lastKey !== null) {
        this.#from = Buffer.concat([reply.lastKey, Buffer.from([0])]);
        ahead = this.#fetch();
        ahead.catch(() => undefined); // thrown below, when it is its turn
      }
      if (!(await this.#handOver(reply))) return false;
      if (ahead === null) return true;
      reply = await ahead;
    }
  }

  /** The next range, with as many rows as make about `rangeBytes`. */
  async #fetch(): Promise<PackedRows> {
    for (;;) {
      try {
        const reply = await readPatiently(this.#options, () => this.#range(), ["compacted", "reply-too-large"]);
        this.#adapt(reply);
        return reply;
      } catch (error) {
        if (!(error instanceof EtcdError)) throw error;
        if (error.kind === "compacted") {
          this.#revision = await this.#options.tenure.confirm();
        } else {
          invariant(this.#rangeRows > 1, "one row is never too large to be read");
          this.#rangeRows = Math.ceil(this.#rangeRows / GROWTH_MAX);
        }
      }
    }
  }

  #range(): Promise<PackedRows> {
    return this.#options.client.rangePacked({
      key: this.#from,
      end: this.#end,
      limit: this.#rangeRows,
      revision: this.#revision,
    });
  }

  #adapt({ bytes, rowCount }: PackedRows): void {
    if (rowCount === 0) return;
    const wanted = Math.ceil((this.#options.rangeBytes * rowCount) / bytes.length);
    this.#rangeRows = Math.max(1, Math.min(wanted, this.#rangeRows * GROWTH_MAX, RANGE_ROWS_MAX));
  }

  /** Hands rows over in slices, each after the last was consumed. False when abandoned. */
  async #handOver(rows: PackedRows): Promise<boolean> {
    const { keys, pageBytes, scheduler } = this.#options;
    const prefixBytes = keys.rowPrefix.length;
    const reader = new PackedRowReader(rows);
    for (let left = rows.rowCount; left > 0;) {
      const page = new PageWriter(pageBytes);
      for (; left > 0 && !page.full && reader.next(); left -= 1) {
        page.appendFrom(reader.bytes, reader.keyStart + prefixBytes, reader.keyEnd, reader.valueStart, reader.valueEnd);
      }
      await new Promise<void>((resolve) => {
        scheduler.soon(() => {
          if (this.#abandoned) {
            resolve();
            return;
          }
          let answered = false;
          this.#onPage(page.take(), () => {
            invariant(!answered, "next is called once per page");
            answered = true;
            resolve();
          });
        });
      });
      if (this.#abandoned) return false;
    }
    return !this.#abandoned;
  }
}
