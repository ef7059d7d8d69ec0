import { Buffer } from "node:buffer";
import { EtcdError, type EtcdCalls, type WatchedRange } from "#src/durability/etcd/etcd-client.js";
import {
  decodePackedRows,
  type KeyValue,
  type PackedRows,
  type RangeReply,
  type RangeRequest,
  type StatusReply,
  type TxnOperation,
  type TxnReply,
  type TxnRequest,
  type WatchEvent,
  type WatchReply,
} from "#src/durability/etcd/protocol.js";
import { asBuffer } from "#src/durability/batch.js";
import type { ByteString } from "#src/engine/reply.js";
import type { World } from "../sim-world.js";
import type { ClusterHost } from "./cluster-host.js";
import { demand } from "./rules.js";
import type { SimLink } from "./sim-link.js";
import { Compacted, type RowChange, type SharedRow, type SimShared } from "./sim-shared.js";

/**
 * The shared store as etcd's client library shows it, so that the real etcd store can run in the simulation: calls that return
 * promises, each one attempt over the link, and a watch whose events come in order, late, or not at all.
 */

export interface SimEtcdOptions {
  readonly shared: SimShared;
  readonly link: SimLink;
  readonly host: ClusterHost;
  readonly requestTimeoutMs: number;
  /** A request has just been sent; of a take-over: one that is guarded by the beat. */
  onSent(isTakeOver: boolean): void;
}

/** How long it takes until a broken stream is noticed. */
const NOTICE_MS_MAX = 5_000;

const textOf = (key: Uint8Array): ByteString => asBuffer(key).toString("latin1");
const endOf = (key: ByteString): ByteString => `${key}\0`;

export class SimEtcd implements EtcdCalls {
  readonly endpoint = "etcd:2379";
  readonly endpoints = [this.endpoint];
  readonly #world: World;
  readonly #options: SimEtcdOptions;
  #isClosed = false;

  constructor(world: World, options: SimEtcdOptions) {
    this.#world = world;
    this.#options = options;
  }

  range(request: RangeRequest): Promise<RangeReply> {
    return this.#call(() => this.#rangeAtStore(request));
  }

  rangePacked(request: RangeRequest): Promise<PackedRows> {
    return this.#call(() => {
      // A member that lags does not know the revision yet.
      const { random } = this.#world;
      if (random.chance(this.#options.link.times.slowChance)) throw new EtcdError("behind", "a future revision");
      return pack(this.#rangeAtStore(request));
    });
  }

  txn({ guards, success, failure }: TxnRequest): Promise<TxnReply> {
    const { shared } = this.#options;
    const read = (operations: readonly TxnOperation[]): RangeReply[] =>
      operations.flatMap((operation) => (operation.kind === "range" ? [this.#rangeAtStore(operation)] : []));
    demand(
      failure.every(({ kind }) => kind === "range"),
      "ports",
      () => "a refused transaction changes something",
    );
    const changes = success.flatMap((operation) => changeOf(operation));
    const conditions = guards.map(({ key, modRevision }) => ({ key: textOf(key), modRevision }));
    return this.#call(() => {
      const succeeded = shared.transact(conditions, changes);
      return { revision: shared.revision, succeeded, ranges: read(succeeded ? success : failure) };
    }, guards.length > 1);
  }

  async compact(): Promise<void> {
    // The simulation compacts by itself.
  }

  status(): Promise<StatusReply> {
    const { shared } = this.#options;
    return this.#call(() => ({ revision: shared.revision, version: "3.5.17", databaseBytes: 0, quotaBytes: 0 }));
  }

  leave(): void {
    // There is one endpoint.
  }

  close(): void {
    this.#isClosed = true;
  }

  watch(
    ranges: readonly WatchedRange[],
    onReply: (reply: WatchReply) => void,
    onEnd: (reason: string) => void,
  ): () => void {
    const stream = new WatchStream(this.#world, this.#options, ranges, onReply, onEnd);
    return () => stream.cancel();
  }

  #rangeAtStore({ key, end, limit, revision }: RangeRequest): RangeReply {
    const { shared } = this.#options;
    const start = textOf(key);
    const limited = limit === undefined || limit === 0 ? Infinity : limit;
    const atRevision = revision === undefined || revision === 0 ? shared.revision : revision;
    const all = shared.range(start, end === undefined ? endOf(start) : textOf(end), Infinity, atRevision);
    const rows = all.slice(0, limited).map(keyValueOf);
    return { revision: shared.revision, rows, count: all.length, more: all.length > rows.length };
  }

  #call<Answer>(atStore: () => Answer, isTakeOver = false): Promise<Answer> {
    const { link, host, requestTimeoutMs } = this.#options;
    return new Promise((resolve, reject) => {
      // A dead process asks for nothing, and hears nothing.
      if (!host.alive) return;
      const attempt = (): { readonly answer: Answer } | { readonly error: EtcdError } => {
        try {
          return { answer: atStore() };
        } catch (error) {
          if (error instanceof EtcdError) return { error };
          if (error instanceof Compacted) return { error: new EtcdError("compacted", error.message) };
          throw error;
        }
      };
      link.call(host, requestTimeoutMs, attempt, (outcome) => {
        if (outcome === null || this.#isClosed) reject(new EtcdError("unknown", "no answer in time"));
        else if ("error" in outcome) reject(outcome.error);
        else resolve(outcome.answer);
      });
      this.#options.onSent(isTakeOver);
    });
  }
}

/** One stream of events: in order, each once, until it breaks. */
class WatchStream {
  readonly #world: World;
  readonly #options: SimEtcdOptions;
  readonly #ranges: readonly { readonly start: ByteString; readonly end: ByteString }[];
  readonly #onReply: (reply: WatchReply) => void;
  readonly #onEnd: (reason: string) => void;
  #isOver = false;
  #lastMs = 0;
  #stop: () => void = () => undefined;
  readonly #queue: WatchReply[] = [];

  constructor(
    world: World,
    options: SimEtcdOptions,
    ranges: readonly WatchedRange[],
    onReply: (reply: WatchReply) => void,
    onEnd: (reason: string) => void,
  ) {
    this.#world = world;
    this.#options = options;
    this.#ranges = ranges.map(({ key, end }) => ({ start: textOf(key), end: textOf(end) }));
    this.#onReply = onReply;
    this.#onEnd = onEnd;
    const { link, host } = options;
    const fromRevision = Math.min(...ranges.map((range) => range.fromRevision));
    link.call(
      host,
      NOTICE_MS_MAX,
      () => this.#openAtStore(fromRevision),
      (answer) => {
        if (answer === null) this.#break("the watch was not opened in time");
      },
    );
  }

  cancel(): void {
    this.#isOver = true;
    this.#stop();
  }

  #openAtStore(fromRevision: number): object {
    const { shared, host } = this.#options;
    if (this.#isOver) return {};
    if (fromRevision <= shared.compactedRevision) {
      this.#send({ canceled: true, compactRevision: shared.compactedRevision, events: [] });
      return {};
    }
    const missed = shared.changesSince(fromRevision).filter(({ key }) => this.#isWatched(key));
    if (missed.length > 0) this.#send({ events: missed.map(eventOf) });
    this.#stop = shared.watch((changes, revision) => {
      if (!host.alive || this.#isOver) this.#stop();
      const events = changes.filter(({ key }) => this.#isWatched(key));
      if (events.length > 0)
        this.#send({ events: events.map(({ key, value }) => eventOf({ key, value, modRevision: revision })) });
    });
    return {};
  }

  #isWatched(key: ByteString): boolean {
    return this.#ranges.some(({ start, end }) => key >= start && key < end);
  }

  /** From the store: what meets a way that is cut comes late, or breaks the stream. */
  #send(reply: Partial<WatchReply>): void {
    const { random, nowMs } = this.#world;
    const { link, host, shared } = this.#options;
    const cutUntilMs = Math.max(link.downCutUntilMs, shared.outUntilMs);
    if (nowMs < cutUntilMs && random.chance(0.5)) {
      this.#world.after(random.between(0, NOTICE_MS_MAX), () => host.enter(() => this.#break("the stream broke")));
      this.#stop();
      return;
    }
    const freeAtMs = Math.max(nowMs, cutUntilMs, link.watchStuckUntilMs);
    this.#lastMs = Math.max(this.#lastMs, freeAtMs + link.delayMs());
    const whole: WatchReply = {
      revision: shared.revision,
      canceled: false,
      cancelReason: "",
      compactRevision: 0,
      events: [],
      ...reply,
    };
    this.#queue.push(whole);
    this.#world.at(this.#lastMs, () => host.enter(() => this.#hear()));
  }

  /** Each arrival takes the oldest reply, so that none passes another. */
  #hear(): void {
    const reply = this.#queue.shift();
    if (reply !== undefined && !this.#isOver) this.#onReply(reply);
  }

  #break(reason: string): void {
    if (this.#isOver) return;
    this.cancel();
    this.#onEnd(reason);
  }
}

const keyValueOf = ({ key, value, modRevision }: SharedRow): KeyValue => ({
  key: Buffer.from(key, "latin1"),
  value: asBuffer(value),
  modRevision,
});

function eventOf({
  key,
  value,
  modRevision,
}: {
  key: ByteString;
  value: Uint8Array | null;
  modRevision: number;
}): WatchEvent {
  const row = { key: Buffer.from(key, "latin1"), value: asBuffer(value ?? new Uint8Array()), modRevision };
  return { kind: value === null ? "delete" : "put", row };
}

function changeOf(operation: TxnOperation): RowChange[] {
  if (operation.kind === "range") return [];
  const key = textOf(operation.key);
  // The bytes belong to whoever asked, and may change once it goes on.
  if (operation.kind === "put") return [{ kind: "put", key, value: Uint8Array.from(operation.value) }];
  return [operation.end === undefined ? { kind: "delete", key } : { kind: "delete", key, end: textOf(operation.end) }];
}

// The bytes of a range reply, as etcd's protocol has them: field 2 each row (1 its key, 5 its value), field 3 whether there is more.

function varint(value: number): number[] {
  const bytes: number[] = [];
  let rest = value;
  for (; rest >= 128; rest = Math.floor(rest / 128)) bytes.push((rest % 128) + 128);
  return [...bytes, rest];
}

function bytesField(field: number, bytes: Uint8Array): Buffer {
  return Buffer.concat([Buffer.from([field * 8 + 2, ...varint(bytes.length)]), bytes]);
}

function pack({ rows, more }: RangeReply): PackedRows {
  const parts = rows.map(({ key, value }) => bytesField(2, Buffer.concat([bytesField(1, key), bytesField(5, value)])));
  if (more) parts.push(Buffer.from([3 * 8, 1]));
  return decodePackedRows(Buffer.concat(parts));
}
