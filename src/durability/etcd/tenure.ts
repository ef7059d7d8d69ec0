import type { Clock, NodeAddress, Scheduler } from "../../ports.js";
import type { BeatRow } from "../shared-store.js";
import { StoreError } from "../store.js";
import { EtcdError, type EtcdCalls } from "./etcd-client.js";
import type { TxnOperation, TxnReply } from "./protocol.js";
import { decodeFence, encodeBeat, encodeFence, type EtcdKeys } from "./rows.js";

/**
 * One tenure of the primary role, as the store sees it: everything written in it is guarded by its fence.
 *
 *   write ──► Txn, if mod(fence) = F ──┬── done ──────────────────────────────► its revision
 *                                      ├── refused ── fence is this tenure's, moved: again, under the new F
 *                                      │           └─ fence is somebody else's: `fenced`, for good
 *                                      └── no answer: move the fence, if mod(fence) = F
 *                                             ├── done: what was in flight is refused from now on, or already there.
 *                                             │         Write it again: the same rows
 *                                             ├── refused: as above (an earlier move may have been done after all)
 *                                             └── no answer: the same move again, until the time for it is over: `write-failed`
 *
 * Why a second move of the same fence is safe: it has the same guard and writes the same row, so only one of them is done. Why
 * writing again is safe: nobody else writes rows of this tenure, and operations of writes that are under way together touch
 * different rows.
 *
 * Invariants:
 *  1. after `failure` is set nothing is written any more
 *  2. F changes by a move of this tenure only, and only upwards
 */

export interface TenureOptions {
  readonly client: EtcdCalls;
  readonly keys: EtcdKeys;
  readonly clock: Clock;
  readonly scheduler: Scheduler;
  readonly node: NodeAddress;
  /** The process's. */
  readonly incarnation: string;
  readonly tenure: number;
  /** For how long an unknown outcome is worked on, counted from when it became unknown. */
  readonly resolveMsMax: number;
  /** The fence was moved. */
  onBump(): void;
}

/** Before a move of the fence is tried again. */
const RESOLVE_PAUSE_MS = 100;

/** A beat that met a fence moved meanwhile is sent again; more often than this nothing moves it. */
const BEAT_TRIES_MAX = 5;

export class Tenure {
  readonly #options: TenureOptions;
  #epoch: number;
  #fenceRevision: number;
  #ownRevision: number;
  #failure: StoreError | null = null;
  #resolving: Promise<void> | null = null;
  #beats = 0;
  #released = false;

  /** A tenure begins with the fence that its take-over wrote. */
  constructor(options: TenureOptions, epoch: number, fenceRevision: number) {
    this.#options = options;
    this.#epoch = epoch;
    this.#fenceRevision = fenceRevision;
    this.#ownRevision = fenceRevision;
  }

  get epoch(): number {
    return this.#epoch;
  }

  /** F. */
  get fenceRevision(): number {
    return this.#fenceRevision;
  }

  /** The newest revision of the store at which this tenure is known to have had the role. */
  get ownRevision(): number {
    return this.#ownRevision;
  }

  get failure(): StoreError | null {
    return this.#failure;
  }

  /** The last beat gave the role up. */
  get released(): boolean {
    return this.#released;
  }

  /** Sets the tenure's failure, if it has none yet, and returns the one it has. */
  fail(error: StoreError): StoreError {
    this.#failure ??= error;
    return this.#failure;
  }

  /** Writes the operations in one transaction, whatever it takes. Throws the tenure's failure. */
  async write(operations: readonly TxnOperation[]): Promise<void> {
    const { clock, resolveMsMax } = this.#options;
    let giveUpAtMs = Infinity;
    for (;;) {
      if (this.#failure !== null) throw this.#failure;
      const fenceRevision = this.#fenceRevision;
      try {
        if (await this.#attempt(operations, fenceRevision)) return;
      } catch (error) {
        const unknown = this.#unknownOutcome(error);
        if (giveUpAtMs === Infinity) giveUpAtMs = clock.monotonicMs() + resolveMsMax;
        if (clock.monotonicMs() >= giveUpAtMs) throw this.#tooLate(unknown);
        await this.#resolve(fenceRevision, giveUpAtMs);
      }
    }
  }

  /** Makes sure that the role is still this tenure's, and returns a revision of the store at which it was. Throws as `write`. */
  async confirm(): Promise<number> {
    await this.write([]);
    return this.#ownRevision;
  }

  /** Writes the beat. Throws `fenced`, which ends the tenure, or `write-failed`, after which nothing is known. */
  async beat(state: BeatRow["state"]): Promise<void> {
    const { keys } = this.#options;
    this.#beats += 1;
    this.#released = state === "released";
    const number = this.#beats;
    for (let tries = 0; tries < BEAT_TRIES_MAX; tries += 1) {
      if (this.#failure !== null) throw this.#failure;
      const value = encodeBeat(this.#epoch, number, state);
      try {
        if (await this.#attempt([{ kind: "put", key: keys.beat, value }], this.#fenceRevision)) return;
      } catch (error) {
        if (!(error instanceof EtcdError)) throw error;
        throw new StoreError("write-failed", `etcd: ${error.message}`);
      }
    }
    throw new StoreError("write-failed", "the fence moves faster than beats are written");
  }

  // Transactions ----------------------------------------------------------------------------------------------------------

  /** One guarded transaction. False: the fence has moved, and is this tenure's still. Throws EtcdError, or `fenced`. */
  async #attempt(operations: readonly TxnOperation[], fenceRevision: number): Promise<boolean> {
    const { client, keys } = this.#options;
    const reply = await client.txn({
      guards: [{ key: keys.fence, modRevision: fenceRevision }],
      success: operations,
      failure: [{ kind: "range", key: keys.fence }],
    });
    if (reply.succeeded) {
      this.#ownRevision = Math.max(this.#ownRevision, reply.revision);
      return true;
    }
    this.#hearOfFence(reply);
    return false;
  }

  /** A refused transaction tells what the fence is. */
  #hearOfFence(reply: TxnReply): void {
    const { incarnation, tenure } = this.#options;
    const row = reply.ranges[0]?.rows[0];
    if (row === undefined) throw this.fail(new StoreError("fenced", "the fence is gone from etcd"));
    const fence = decodeFence(row);
    if (fence.incarnation !== incarnation || fence.tenure !== tenure) {
      const { host, port } = fence.node;
      throw this.fail(new StoreError("fenced", `${host}:${port} has taken the role, epoch ${fence.epoch}`));
    }
    this.#moved(fence.epoch, fence.modRevision);
  }

  /** May be heard of twice: from the move itself, and from a transaction that met the fence it left. */
  #moved(epoch: number, fenceRevision: number): void {
    if (fenceRevision <= this.#fenceRevision) return;
    this.#epoch = epoch;
    this.#fenceRevision = fenceRevision;
    this.#ownRevision = Math.max(this.#ownRevision, fenceRevision);
    this.#options.onBump();
  }

  // Unknown outcomes --------------------------------------------------------------------------------------------------------

  /** The error, when it leaves the outcome open; else throws what ends the tenure. */
  #unknownOutcome(error: unknown): EtcdError {
    if (!(error instanceof EtcdError)) throw error;
    // A call whose token was refused has done nothing; it is treated alike, because that needs no rule of its own.
    if (error.kind === "unknown" || error.kind === "token") return error;
    throw this.fail(new StoreError("write-failed", `etcd refused a write: ${error.message}`));
  }

  #tooLate(error: EtcdError): StoreError {
    const text = `the outcome of a write to etcd could not be found out in time: ${error.message}`;
    return this.fail(new StoreError("write-failed", text));
  }

  /** Returns when nothing that was sent under this F can happen any more. One move at a time: who comes later waits for it. */
  async #resolve(fenceRevision: number, giveUpAtMs: number): Promise<void> {
    if (this.#fenceRevision !== fenceRevision) return;
    this.#resolving ??= this.#move(fenceRevision, giveUpAtMs).finally(() => {
      this.#resolving = null;
    });
    await this.#resolving;
  }

  async #move(fenceRevision: number, giveUpAtMs: number): Promise<void> {
    const { client, keys, clock, node, incarnation, tenure } = this.#options;
    const epoch = this.#epoch + 1;
    const value = encodeFence({ epoch, node, incarnation, tenure });
    while (this.#fenceRevision === fenceRevision) {
      if (this.#failure !== null) throw this.#failure;
      try {
        const reply = await client.txn({
          guards: [{ key: keys.fence, modRevision: fenceRevision }],
          success: [{ kind: "put", key: keys.fence, value }],
          failure: [{ kind: "range", key: keys.fence }],
        });
        if (reply.succeeded) this.#moved(epoch, reply.revision);
        else this.#hearOfFence(reply);
      } catch (error) {
        const unknown = this.#unknownOutcome(error);
        if (clock.monotonicMs() >= giveUpAtMs) throw this.#tooLate(unknown);
        await this.#pause();
      }
    }
  }

  #pause(): Promise<void> {
    return new Promise((resolve) => {
      this.#options.scheduler.after(RESOLVE_PAUSE_MS, resolve);
    });
  }
}
