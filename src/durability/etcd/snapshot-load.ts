import { invariant } from "../../engine/invariant.js";
import { PageWriter } from "../batch.js";
import { ALL_ROWS_RANGE } from "../schema.js";
import type { RowPage } from "../store.js";
import { EtcdError, type EtcdCalls } from "./etcd-client.js";
import type { KeyValue, RangeReply } from "./protocol.js";
import { type ReadPatience, readPatiently } from "./reading.js";
import type { EtcdKeys } from "./rows.js";
import type { Tenure } from "./tenure.js";

/**
 * All rows, as they are at one revision of this tenure, in key order.
 *
 * Two sizes of page: from etcd come a few megabytes at a time, because each range costs etcd a walk over the keys behind it; the consumer
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
      const last = reply.rows.at(-1);
      let ahead: Promise<RangeReply> | null = null;
      if (reply.more && last !== undefined) {
        this.#from = Buffer.concat([last.key, Buffer.from([0])]);
        ahead = this.#fetch();
        ahead.catch(() => undefined); // thrown below, when it is its turn
      }
      if (!(await this.#handOver(reply.rows))) return false;
      if (ahead === null) return true;
      reply = await ahead;
    }
  }

  /** The next range, with as many rows as make about `rangeBytes`. */
  async #fetch(): Promise<RangeReply> {
    for (;;) {
      try {
        const reply = await readPatiently(this.#options, () => this.#range(), ["compacted", "reply-too-large"]);
        this.#adapt(reply.rows);
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

  #range(): Promise<RangeReply> {
    return this.#options.client.range({
      key: this.#from,
      end: this.#end,
      limit: this.#rangeRows,
      revision: this.#revision,
    });
  }

  #adapt(rows: readonly KeyValue[]): void {
    if (rows.length === 0) return;
    let bytes = 0;
    for (const row of rows) bytes += row.key.length + row.value.length;
    const wanted = Math.ceil((this.#options.rangeBytes * rows.length) / Math.max(1, bytes));
    this.#rangeRows = Math.max(1, Math.min(wanted, this.#rangeRows * GROWTH_MAX, RANGE_ROWS_MAX));
  }

  /** Hands rows over in slices, each after the last was consumed. False when abandoned. */
  async #handOver(rows: readonly KeyValue[]): Promise<boolean> {
    const { keys, pageBytes, scheduler } = this.#options;
    const prefixBytes = keys.rowPrefix.length;
    for (let index = 0; index < rows.length;) {
      const page = new PageWriter(pageBytes);
      for (; index < rows.length && !page.full; index += 1) {
        const row = rows[index];
        if (row !== undefined) page.append(row.key.subarray(prefixBytes), row.value);
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
