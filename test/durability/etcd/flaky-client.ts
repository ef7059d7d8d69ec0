import { type EtcdCalls, EtcdError, type WatchedRange } from "#src/durability/etcd/etcd-client.js";
import type {
  PackedRows,
  RangeReply,
  RangeRequest,
  StatusReply,
  TxnReply,
  TxnRequest,
  WatchReply,
} from "#src/durability/etcd/protocol.js";

/** What becomes of a transaction, and of everything after it. */
export type Fate =
  | "pass"
  /** It never reaches etcd; the caller hears that its outcome is unknown. */
  | "lose-request"
  /** Etcd does it; the caller hears that its outcome is unknown. */
  | "lose-reply"
  /** The process ends before it sends this, or after etcd did it: nothing is heard or sent from then on. */
  | "die-before"
  | "die-after";

/** A client of a real etcd whose writing transactions meet with what a test decides, by their number from 0. */
export class FlakyClient implements EtcdCalls {
  readonly #client: EtcdCalls;
  /** Decides what becomes of the nth transaction that writes. */
  fate: (index: number, request: TxnRequest) => Fate = () => "pass";
  /** Changes a request on its way. */
  alter: (request: TxnRequest) => TxnRequest = (request) => request;
  writes = 0;
  #dead = false;

  constructor(client: EtcdCalls) {
    this.#client = client;
  }

  get endpoint(): string {
    return this.#client.endpoint;
  }

  get endpoints(): readonly string[] {
    return this.#client.endpoints;
  }

  range(request: RangeRequest): Promise<RangeReply> {
    return this.#alive(() => this.#client.range(request));
  }

  rangePacked(request: RangeRequest): Promise<PackedRows> {
    return this.#alive(() => this.#client.rangePacked(request));
  }

  async txn(request: TxnRequest): Promise<TxnReply> {
    return this.#alive(async () => {
      if (request.success.every((operation) => operation.kind === "range")) return this.#client.txn(request);
      const fate = this.fate(this.writes, request);
      this.writes += 1;
      this.#dead = fate === "die-before" || fate === "die-after";
      const isSent = fate !== "lose-request" && fate !== "die-before";
      const reply = isSent ? await this.#client.txn(this.alter(request)) : null;
      if (reply === null || fate !== "pass") throw new EtcdError("unknown", `the test decided: ${fate}`);
      return reply;
    });
  }

  compact(revision: number): Promise<void> {
    return this.#alive(() => this.#client.compact(revision));
  }

  status(endpoint: string): Promise<StatusReply> {
    return this.#alive(() => this.#client.status(endpoint));
  }

  leave(endpoint: string): void {
    this.#client.leave(endpoint);
  }

  watch(
    ranges: readonly WatchedRange[],
    onReply: (reply: WatchReply) => void,
    onEnd: (reason: string) => void,
  ): () => void {
    return this.#client.watch(ranges, onReply, onEnd);
  }

  close(): void {
    this.#client.close();
  }

  async #alive<T>(call: () => Promise<T>): Promise<T> {
    if (this.#dead) throw new EtcdError("unknown", "the process has ended");
    return call();
  }
}
