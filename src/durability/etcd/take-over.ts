import type { Clock, Ids, NodeAddress, Scheduler } from "../../ports.js";
import { BatchWriter, PageWriter } from "../batch.js";
import {
  decodeMeta,
  encodeFormat,
  encodeIdentity,
  encodeMeta,
  META_RANGE,
  type MetaRows,
  STORE_FORMAT_VERSION,
} from "../schema.js";
import type { RoleView } from "../shared-store.js";
import { StoreError, type StoreIdentity } from "../store.js";
import { foldBatch } from "./batch-plan.js";
import { EtcdError, type EtcdCalls } from "./etcd-client.js";
import { BatchJournal, type TxnLimits } from "./journal.js";
import type { RangeReply, RevisionGuard } from "./protocol.js";
import { pause, readPatiently } from "./reading.js";
import { decodeBeat, decodeFence, encodeBeat, encodeFence, type EtcdKeys, type StoredFence } from "./rows.js";
import { Tenure } from "./tenure.js";

/**
 * Taking the primary role over, in the order of trust:
 *
 *   the meta rows: another format version: refused before anything is written
 *   one transaction, if fence and beat are those of the view: the fence with the next epoch, and a first beat
 *        its revision is F; from here on no write of the former primary changes anything
 *   the journal: a batch that was decided is applied, another one is dropped
 *   the meta rows again: created, or the identity with the new epoch
 *
 * The revision of the last write is the one that a load reads: everything before it is there, everything after it is this tenure's.
 */

export interface TakeOverOptions {
  readonly client: EtcdCalls;
  readonly keys: EtcdKeys;
  readonly clock: Clock;
  readonly scheduler: Scheduler;
  readonly ids: Ids;
  readonly node: NodeAddress;
  readonly incarnation: string;
  /** How many take-overs this process tried before. */
  readonly tenure: number;
  readonly resolveMsMax: number;
  readonly limits: TxnLimits;
  onBump(): void;
  /** Between the take-over and what follows it. */
  onFenced(): void;
}

export interface TakenOver {
  readonly tenure: Tenure;
  readonly journal: BatchJournal;
  readonly identity: StoreIdentity;
}

const PAUSE_MS = 100;
const META_PAGE_BYTES = 4096;

/** Throws StoreError: `fenced` when somebody else has taken, or kept, the role; `format`, `damaged`, `unusable`, `write-failed`. */
export async function takeOver(options: TakeOverOptions, view: RoleView | null): Promise<TakenOver> {
  const { keys, resolveMsMax } = options;
  const patience = { ...options, patienceMs: resolveMsMax };
  const before = await readPatiently(patience, () => readRoleAndMeta(options));
  const from = view ?? before.view;
  const epoch = Math.max(from.fence?.epoch ?? 0, before.meta.epoch ?? 0) + 1;
  const guards: RevisionGuard[] = [{ key: keys.fence, modRevision: from.fence?.modRevision ?? 0 }];
  if (view !== null) guards.push({ key: keys.beat, modRevision: view.beat?.modRevision ?? 0 });
  const fenceRevision = await writeFence(options, guards, epoch);
  options.onFenced();
  const tenure = new Tenure(options, epoch, fenceRevision);
  const journal = new BatchJournal(tenure, patience);
  await readPatiently(patience, () => journal.recover());
  const { meta, hasRows } = await readPatiently(patience, () => readRoleAndMeta(options));
  if (meta.incarnation === null && hasRows) {
    throw new StoreError("damaged", "etcd has rows of leases, but not the row that says whose they are");
  }
  const identity: StoreIdentity = {
    incarnation: meta.incarnation ?? options.ids.incarnation(),
    revision: meta.revision ?? 0,
    epoch,
  };
  const writer = new BatchWriter();
  encodeFormat(writer);
  encodeIdentity(identity.incarnation, epoch, writer);
  encodeMeta(identity.revision, writer);
  await tenure.write(foldBatch(writer.packed(), keys.rowPrefix));
  return { tenure, journal, identity };
}

interface RoleAndMeta {
  readonly view: RoleView;
  readonly meta: MetaRows;
  /** There are rows beside the meta rows, or there may be. */
  readonly hasRows: boolean;
}

/** One read of everything that a take-over looks at. Throws `format` when it is not ours to touch. */
async function readRoleAndMeta({ client, keys }: TakeOverOptions): Promise<RoleAndMeta> {
  const [start, end] = META_RANGE;
  const { ranges } = await client.txn({
    guards: [],
    success: [
      { kind: "range", ...keys.roleRange },
      { kind: "range", key: keys.row(start), end: keys.row(end) },
    ],
    failure: [],
  });
  const [roleRows, metaRows] = ranges;
  const page = new PageWriter(META_PAGE_BYTES);
  for (const { key, value } of metaRows?.rows ?? []) page.append(key.subarray(keys.rowPrefix.length), value);
  const meta = decodeMeta(page.take());
  if (meta.formatVersion !== null && meta.formatVersion !== STORE_FORMAT_VERSION) {
    const text = `etcd holds format version ${meta.formatVersion}, this build reads version ${STORE_FORMAT_VERSION}`;
    throw new StoreError("format", text);
  }
  let hasRows = false;
  if (meta.incarnation === null) {
    const { rows } = await client.range({ key: keys.row(""), end: keys.row("\xff"), limit: 1 });
    hasRows = rows.length > 0;
  }
  return { view: viewOf(keys, roleRows), meta, hasRows };
}

function viewOf(keys: EtcdKeys, reply: RangeReply | undefined): { fence: StoredFence | null; beat: RoleView["beat"] } {
  const rows = reply?.rows ?? [];
  const fence = rows.find((row) => row.key.equals(keys.fence));
  const beat = rows.find((row) => row.key.equals(keys.beat));
  return {
    fence: fence === undefined ? null : decodeFence(fence),
    beat: beat === undefined ? null : decodeBeat(beat),
  };
}

/**
 * The take-over itself; returns F. Without an answer the same transaction is sent again: only one of them can be done, and a
 * refusal shows whether an earlier one was.
 */
async function writeFence(options: TakeOverOptions, guards: readonly RevisionGuard[], epoch: number): Promise<number> {
  const { client, keys, clock, scheduler, node, incarnation, tenure, resolveMsMax } = options;
  const giveUpAtMs = clock.monotonicMs() + resolveMsMax;
  for (;;) {
    try {
      const reply = await client.txn({
        guards,
        success: [
          { kind: "put", key: keys.fence, value: encodeFence({ epoch, node, incarnation, tenure }) },
          { kind: "put", key: keys.beat, value: encodeBeat(epoch, 0, "loading") },
        ],
        failure: [{ kind: "range", ...keys.roleRange }],
      });
      if (reply.succeeded) return reply.revision;
      const { fence } = viewOf(keys, reply.ranges[0]);
      if (fence !== null && fence.incarnation === incarnation && fence.tenure === tenure) return fence.modRevision;
      const who = fence === null ? "nobody" : `${fence.node.host}:${fence.node.port}`;
      throw new StoreError("fenced", `the role has changed meanwhile: ${who} has it, epoch ${fence?.epoch ?? 0}`);
    } catch (error) {
      if (!(error instanceof EtcdError)) throw error;
      const mayPass = error.kind === "unknown" || error.kind === "token";
      if (!mayPass || clock.monotonicMs() >= giveUpAtMs) {
        throw new StoreError("write-failed", `the role could not be taken: ${error.message}`);
      }
      await pause(scheduler, PAUSE_MS);
    }
  }
}
