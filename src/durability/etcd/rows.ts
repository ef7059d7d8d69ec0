import { invariant } from "../../engine/invariant.js";
import type { NodeAddress } from "../../ports.js";
import type { BeatRow, FenceRow, NodeSighting } from "../shared-store.js";
import { StoreError } from "../store.js";
import type { KeyValue } from "./protocol.js";

/**
 * What lies where in etcd, under `/leasehold/<cluster>/`:
 *
 *   fence         {epoch, node, incarnation, tenure}      who has the primary role; guards every write
 *   beat          {epoch, number, state}          its sign of life
 *   j/head        {parts, bytes, revision}              a batch too large for one transaction is decided, and may be only half applied
 *   j/<n>         the nth piece of that batch, packed as the committer packed it
 *   nodes/<id>    {host, port, sentinelPort}      who is there
 *   r/<row key>   the rows, as in RocksDB
 *
 * Everything but rows is JSON, for people with etcdctl.
 */

/** A cluster's name is one segment of a path: no cluster's rows may lie inside another's. */
export const CLUSTER_NAME_PATTERN = /^[A-Za-z0-9._-]{1,100}$/u;

export class EtcdKeys {
  readonly fence: Buffer;
  readonly beat: Buffer;
  /** The two role rows are neighbours: one range, one watch, one order of events. */
  readonly roleRange: { readonly key: Buffer; readonly end: Buffer };
  readonly nodesRange: { readonly key: Buffer; readonly end: Buffer };
  readonly journalRange: { readonly key: Buffer; readonly end: Buffer };
  readonly journalHead: Buffer;
  readonly rowPrefix: Buffer;
  readonly #prefix: string;

  constructor(cluster: string) {
    invariant(CLUSTER_NAME_PATTERN.test(cluster), "a cluster's name is letters, digits, dots, dashes, underscores");
    this.#prefix = `/leasehold/${cluster}/`;
    this.fence = this.#key("fence");
    this.beat = this.#key("beat");
    this.roleRange = { key: this.beat, end: this.#key("fence\0") };
    this.nodesRange = { key: this.#key("nodes/"), end: this.#key("nodes0") };
    this.journalRange = { key: this.#key("j/"), end: this.#key("j0") };
    this.journalHead = this.#key("j/head");
    this.rowPrefix = this.#key("r/");
  }

  node(id: string): Buffer {
    return this.#key(`nodes/${id}`);
  }

  journalPart(index: number): Buffer {
    return this.#key(`j/${index}`);
  }

  /** The key of a row, or the end of a range of rows. */
  row(key: string | Uint8Array): Buffer {
    return Buffer.concat([this.rowPrefix, typeof key === "string" ? Buffer.from(key, "latin1") : key]);
  }

  #key(name: string): Buffer {
    return Buffer.from(this.#prefix + name, "utf8");
  }
}

/** The fence as it lies in etcd: who has the role, and which of that process's tenures it is. */
export interface StoredFence extends FenceRow {
  /** Counts the take-overs that the process tried: tells a fence that it moved from one of another take-over of its own. */
  readonly tenure: number;
}

export function encodeFence(fence: Omit<StoredFence, "modRevision">): Buffer {
  const { epoch, node, incarnation, tenure } = fence;
  return json({ epoch, node, incarnation, tenure });
}

export function encodeBeat(epoch: number, number: number, state: BeatRow["state"]): Buffer {
  return json({ epoch, number, state });
}

export function encodeNode(node: NodeAddress): Buffer {
  return json(node);
}

/** Throws StoreError `damaged`, as the other decoders here do. */
export function decodeFence(row: KeyValue): StoredFence {
  const { epoch, node, incarnation, tenure } = parse(row);
  if (!isCount(epoch) || !isNodeAddress(node) || typeof incarnation !== "string" || !isCount(tenure)) {
    throw damaged(row);
  }
  return { epoch, node, incarnation, tenure, modRevision: row.modRevision };
}

export function decodeBeat(row: KeyValue): BeatRow {
  const { epoch, number, state } = parse(row);
  if (!isCount(epoch) || !isCount(number) || !isBeatState(state)) throw damaged(row);
  return { epoch, number, state, modRevision: row.modRevision };
}

const isBeatState = (state: unknown): state is BeatRow["state"] =>
  state === "loading" || state === "serving" || state === "released";

export function decodeNode(row: KeyValue): NodeSighting {
  const node = parse(row);
  if (!isNodeAddress(node)) throw damaged(row);
  return { node, modRevision: row.modRevision };
}

/** How many pieces of a batch there are, how long they are together, and the batch's revision. */
export interface JournalHead {
  readonly parts: number;
  readonly bytes: number;
  readonly revision: number;
}

export function encodeJournalHead(head: JournalHead): Buffer {
  return json(head);
}

export function decodeJournalHead(row: KeyValue): JournalHead {
  const { parts, bytes, revision } = parse(row);
  if (!isCount(parts) || !isCount(bytes) || !isCount(revision)) throw damaged(row);
  return { parts, bytes, revision };
}

function json(value: unknown): Buffer {
  return Buffer.from(JSON.stringify(value), "utf8");
}

function parse(row: KeyValue): Readonly<Record<string, unknown>> {
  let value: unknown;
  try {
    value = JSON.parse(row.value.toString("utf8"));
  } catch {
    value = null; // named below
  }
  if (typeof value !== "object" || value === null) throw damaged(row);
  return value as Readonly<Record<string, unknown>>;
}

function isNodeAddress(value: unknown): value is NodeAddress {
  if (typeof value !== "object" || value === null) return false;
  const { id, host, port, sentinelPort } = value as Readonly<Record<string, unknown>>;
  return typeof id === "string" && typeof host === "string" && isCount(port) && isCount(sentinelPort);
}

function isCount(value: unknown): value is number {
  return typeof value === "number" && Number.isSafeInteger(value) && value >= 0;
}

function damaged(row: KeyValue): StoreError {
  return new StoreError("damaged", `${row.key.toString("utf8")} in etcd is not what Leasehold writes there`);
}
