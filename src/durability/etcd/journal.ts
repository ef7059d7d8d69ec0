import { invariant } from "../../engine/invariant.js";
import { asBuffer } from "../batch.js";
import { type CommitBatch, StoreError } from "../store.js";
import { cutIntoParts, foldBatch, operationBytes } from "./batch-plan.js";
import { EtcdError, type EtcdCalls } from "./etcd-client.js";
import type { PackedRows, TxnOperation } from "./protocol.js";
import { type ReadPatience, readPatiently } from "./reading.js";
import { decodeJournalHead, encodeJournalHead, type EtcdKeys } from "./rows.js";
import type { Tenure } from "./tenure.js";

/**
 * Batches to transactions, all of a batch or nothing.
 *
 * A batch that fits one transaction is one. A larger one is written to the journal first:
 *
 *   pieces j/0 ... j/n-1 ──► j/head, in the transaction of the last piece ──► its parts, several at a time ──► acknowledged
 *                              from here on the batch is decided
 *
 * A take-over that finds `j/head` applies the batch once more before anything is loaded; pieces without a head are rubbish. The head
 * stays until the next batch, whose first transaction deletes it together with its own writes: between the two nothing else was
 * written, so applying the batch once more, although it was complete, changes nothing.
 *
 * A range of very many rows (a FLUSHALL) is not deleted at once either: etcd does nothing else meanwhile, not even a beat. It is
 * deleted piece by piece, as a part of a batch in the journal.
 *
 * Invariants:
 *  1. while `j/head` is there, its pieces are whole, and no batch after it has changed a row
 *  2. what is in the journal fits into transactions: it was cut before it was written
 */

export interface TxnLimits {
  /** As etcd's --max-txn-ops. */
  readonly operationsMax: number;
  /** Keys and values of one transaction: below etcd's --max-request-bytes, which counts more than those. */
  readonly bytesMax: number;
  /** Rows that one transaction may delete by a range: some 100 ms of etcd's time. */
  readonly clearedRowsMax: number;
}

export interface BatchJournalOptions extends ReadPatience {
  readonly client: EtcdCalls;
  readonly keys: EtcdKeys;
  readonly limits: TxnLimits;
}

type RangeDelete = TxnOperation & { readonly kind: "delete"; readonly end: Uint8Array };

/** What a batch is made of. */
interface BatchPlan {
  readonly parts: readonly TxnOperation[][];
  /** Ranges of more rows than one transaction may delete. */
  readonly heavy: readonly RangeDelete[];
}

/** Transactions of one batch under way at a time: etcd syncs those together that come together. */
const PARTS_IN_FLIGHT_MAX = 8;

/** Writes the batches of one tenure, one at a time. */
export class BatchJournal {
  readonly #tenure: Tenure;
  readonly #options: BatchJournalOptions;
  readonly #keys: EtcdKeys;
  readonly #limits: TxnLimits;
  /** `j/head` is there, of a batch that is applied. */
  #headStands = false;

  constructor(tenure: Tenure, options: BatchJournalOptions) {
    this.#tenure = tenure;
    this.#options = options;
    this.#keys = options.keys;
    this.#limits = options.limits;
  }

  /** Returns when the batch is durable and applied. Throws StoreError. */
  async write(batch: CommitBatch): Promise<void> {
    const plan = await this.#plan(batch.bytes);
    const [only = []] = plan.parts;
    if (plan.parts.length > 1 || plan.heavy.length > 0) {
      await this.#writeJournal(batch);
      await this.#apply(plan);
      return;
    }
    await this.#tenure.write(this.#headStands ? [...only, this.#dropJournal()] : only);
    this.#headStands = false;
  }

  /**
   * After a take-over: finishes the batch that the journal holds, if it is decided, and empties the journal. Returns true when rows may
   * have changed.
   */
  async recover(): Promise<boolean> {
    const { client } = this.#options;
    const { rows, more } = await client.range({ ...this.#keys.journalRange, limit: 1 });
    if (rows.length === 0 && !more) return false;
    const head = (await client.range({ key: this.#keys.journalHead })).rows[0];
    if (head !== undefined) {
      const { parts, bytes } = decodeJournalHead(head);
      const pieces: Buffer[] = [];
      for (let index = 0; index < parts; index += 1) {
        const piece = (await client.range({ key: this.#keys.journalPart(index) })).rows[0];
        if (piece !== undefined) pieces.push(piece.value);
      }
      const batch = Buffer.concat(pieces);
      if (pieces.length !== parts || batch.length !== bytes) {
        throw new StoreError("damaged", `the journal in etcd has ${batch.length} bytes, its head says ${bytes}`);
      }
      await this.#apply(await this.#plan(batch));
    }
    await this.#tenure.write([this.#dropJournal()]);
    this.#headStands = false;
    return head !== undefined;
  }

  /** Cuts a batch into transactions, with room for one more operation in each. Throws StoreError when a row fits none. */
  async #plan(packed: Uint8Array): Promise<BatchPlan> {
    const { operationsMax, bytesMax } = this.#limits;
    const light: TxnOperation[] = [];
    const heavy: RangeDelete[] = [];
    for (const operation of foldBatch(packed, this.#keys.rowPrefix)) {
      const bytes = operationBytes(operation);
      if (bytes > bytesMax) {
        throw new StoreError("write-failed", `a row of ${bytes} bytes is more than etcd takes (${bytesMax})`);
      }
      if (isRangeDelete(operation) && (await this.#isHeavy(operation))) heavy.push(operation);
      else light.push(operation);
    }
    return { parts: cutIntoParts(light, operationsMax - 1, bytesMax), heavy };
  }

  async #isHeavy({ key, end }: RangeDelete): Promise<boolean> {
    const { client } = this.#options;
    const { count } = await readPatiently(this.#options, () => client.range({ key, end, countOnly: true }));
    return count > this.#limits.clearedRowsMax;
  }

  async #writeJournal(batch: CommitBatch): Promise<void> {
    const bytes = asBuffer(batch.bytes);
    const { bytesMax } = this.#limits;
    const parts = Math.ceil(bytes.length / bytesMax);
    invariant(parts > 0, "a batch has bytes");
    for (let index = 0; index < parts; index += 1) {
      const piece = bytes.subarray(index * bytesMax, (index + 1) * bytesMax);
      const operations: TxnOperation[] = [{ kind: "put", key: this.#keys.journalPart(index), value: piece }];
      if (index === parts - 1) {
        const value = encodeJournalHead({ parts, bytes: bytes.length, revision: batch.revision });
        operations.push({ kind: "put", key: this.#keys.journalHead, value });
      } else if (this.#headStands) {
        // The pieces of the batch before are overwritten from here on.
        operations.push({ kind: "delete", key: this.#keys.journalHead });
        this.#headStands = false;
      }
      await this.#tenure.write(operations);
    }
    this.#headStands = true;
  }

  /** Writes all parts. When one fails, those under way are waited for: nothing of a batch is sent once its outcome is told. */
  async #apply({ parts, heavy }: BatchPlan): Promise<void> {
    for (const range of heavy) await this.#clear(range);
    let next = 0;
    const lane = async (): Promise<void> => {
      for (;;) {
        const part = parts[next];
        next += 1;
        if (part === undefined) return;
        await this.#tenure.write(part);
      }
    };
    const lanes = Array.from({ length: Math.min(PARTS_IN_FLIGHT_MAX, parts.length) }, lane);
    for (const outcome of await Promise.allSettled(lanes)) if (outcome.status === "rejected") throw outcome.reason;
  }

  /** Deletes a range a piece at a time. Nobody else writes rows, so what was read is what is there. */
  async #clear({ key, end }: RangeDelete): Promise<void> {
    let limit = this.#limits.clearedRowsMax;
    for (let from = key; ;) {
      const found = await this.#keysFrom(from, end, limit);
      if (found === null) {
        limit = Math.ceil(limit / 10);
        continue;
      }
      const { more, lastKey } = found;
      if (!more || lastKey === null) {
        await this.#tenure.write([{ kind: "delete", key: from, end }]);
        return;
      }
      const next = Buffer.concat([lastKey, Buffer.from([0])]);
      await this.#tenure.write([{ kind: "delete", key: from, end: next }]);
      from = next;
    }
  }

  /** So many keys of a range; null when they are too long for one reply. */
  async #keysFrom(key: Uint8Array, end: Uint8Array, limit: number): Promise<PackedRows | null> {
    const { client } = this.#options;
    const range = { key, end, limit, keysOnly: true };
    try {
      return await readPatiently(this.#options, () => client.rangePacked(range), ["reply-too-large"]);
    } catch (error) {
      if (error instanceof EtcdError && limit > 1) return null;
      throw error;
    }
  }

  #dropJournal(): TxnOperation {
    return { kind: "delete", ...this.#keys.journalRange };
  }
}

function isRangeDelete(operation: TxnOperation): operation is RangeDelete {
  return operation.kind === "delete" && operation.end !== undefined;
}
