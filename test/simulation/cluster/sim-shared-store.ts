import {
  asBuffer,
  BatchReader,
  BatchWriter,
  CHANGE_CLEAR_RANGE,
  CHANGE_DELETE,
  CHANGE_PUT,
  PageWriter,
} from "#src/durability/batch.js";
import { decodeMeta, encodeFormat, encodeIdentity, encodeMeta, META_RANGE } from "#src/durability/schema.js";
import type {
  BeatRow,
  NodeSighting,
  RoleListener,
  RoleView,
  SharedStore,
  SharedStoreReport,
} from "#src/durability/shared-store.js";
import { StoreError, type CommitBatch, type Done, type RowPage, type StoreIdentity } from "#src/durability/store.js";
import type { ByteString } from "#src/engine/reply.js";
import type { NodeAddress } from "#src/ports.js";
import type { ClusterHost } from "./cluster-host.js";
import { decodeFenceValue, decodeJson, type FenceValue, type Layout } from "./role-rows.js";
import { demand } from "./rules.js";
import type { SimLink } from "./sim-link.js";
import {
  Compacted,
  type AppliedChange,
  type RowChange,
  type RowGuard,
  type SharedRow,
  type SimShared,
} from "./sim-shared.js";

/**
 * The store of one node over its link to the shared store. It keeps the invariants of `shared-store.ts`, by callbacks: each step
 * happens at an instant of its own, with everything else in between.
 *
 * `StoreBugs` breaks them one at a time: the simulation has to notice.
 */

export interface StoreBugs {
  /** Commits are not guarded by the fence. */
  readonly commitsWithoutFence: boolean;
  /** A commit without an answer is sent again under the same fence. */
  readonly repeatsWithoutNewFence: boolean;
  /** A take-over looks at the fence, and not at the beat. */
  readonly takesOverWithoutBeat: boolean;
}

export const CORRECT_STORE: StoreBugs = {
  commitsWithoutFence: false,
  repeatsWithoutNewFence: false,
  takesOverWithoutBeat: false,
};

const FENCE = "fence";
const BEAT = "beat";
const ROW_PREFIX = "r/";
const NODE_PREFIX = "n/";

export const SIMPLE_LAYOUT: Layout = { fence: FENCE, rowPrefix: ROW_PREFIX, journalPrefix: null };

const endOf = (prefix: string): string => `${prefix}\xff`;

type BeatValue = Pick<BeatRow, "epoch" | "number" | "state">;

const encode = (value: object): Uint8Array => Buffer.from(JSON.stringify(value));

interface Tenure {
  readonly number: number;
  epoch: number;
  /** F. */
  fenceRevision: number;
  /** The rows as they are at this revision, or at a later one, are what this tenure begins with. */
  loadRevision: number;
  beats: number;
  failure: StoreError | null;
}

export interface SimSharedStoreOptions {
  readonly shared: SimShared;
  readonly link: SimLink;
  readonly host: ClusterHost;
  readonly node: NodeAddress;
  readonly incarnation: string;
  readonly requestTimeoutMs: number;
  /** For how long an unknown outcome is worked on. */
  readonly resolveMsMax: number;
  /** Rows per page of a load. */
  readonly pageRows: number;
  readonly bugs: StoreBugs;
  /** A request has just been sent. */
  onSent(isTakeOver: boolean): void;
}

const RETRY_MS = 100;

/** An answer about a guarded transaction, with the fence as it is. */
interface TxnAnswer {
  readonly isDone: boolean;
  readonly revision: number;
  readonly fence: SharedRow | null;
}

export class SimSharedStore implements SharedStore {
  readonly name = "simulated";
  readonly #options: SimSharedStoreOptions;
  #tenures = 0;
  #tenure: Tenure | null = null;
  #candidate: RoleView | null = null;
  #listener: RoleListener | null = null;
  #shownRevision = 0;
  #isClosed = false;
  #fenceBumps = 0;

  constructor(options: SimSharedStoreOptions) {
    this.#options = options;
  }

  announceAs(): void {
    // The node is named at construction.
  }

  sharedReport(): SharedStoreReport {
    return {
      fenceBumps: this.#fenceBumps,
      fenceRevision: this.#tenure?.fenceRevision ?? 0,
      usedBytes: null,
      quotaBytes: null,
      endpoint: "simulated",
    };
  }

  // What is seen of the role ------------------------------------------------------------------------------------------

  watch(listener: RoleListener): void {
    this.#listener = listener;
    const { shared, link, host } = this.#options;
    const tell = (changes: readonly AppliedChange[], revision: number): void => {
      if (!changes.some(({ key }) => key === FENCE || key === BEAT)) return;
      const view = viewOf(shared);
      link.push(host, () => this.#show(view, revision));
    };
    const end = shared.watch((changes, revision) => {
      if (!host.alive || this.#isClosed) end();
      else tell(changes, revision);
    });
    this.poll(() => undefined);
  }

  poll(done: Done): void {
    const { shared } = this.#options;
    const read = (): { view: RoleView; nodes: readonly NodeSighting[]; revision: number } => ({
      view: viewOf(shared),
      nodes: shared.range(NODE_PREFIX, endOf(NODE_PREFIX)).map(({ value, modRevision }) => ({
        node: decodeJson(value) as NodeAddress,
        modRevision,
      })),
      revision: shared.revision,
    });
    this.#call(read, (answer) => {
      if (answer === null) {
        done(noAnswer("a look at the role"));
        return;
      }
      this.#show(answer.view, answer.revision);
      this.#listener?.onNodes(answer.nodes);
      done(null);
    });
  }

  #show(view: RoleView, revision: number): void {
    if (revision < this.#shownRevision || this.#isClosed) return;
    this.#shownRevision = revision;
    this.#listener?.onView(view);
  }

  announce(done: Done): void {
    const { node } = this.#options;
    const changes: RowChange[] = [{ kind: "put", key: NODE_PREFIX + node.id, value: encode(node) }];
    this.#transact([], changes, (answer) => done(answer === null ? noAnswer("an announcement") : null));
  }

  // Taking over -------------------------------------------------------------------------------------------------------

  candidateFrom(view: RoleView): void {
    this.#candidate = view;
  }

  acquire(done: (error: StoreError | null, identity: StoreIdentity | null) => void): void {
    const view = this.#candidate;
    demand(view !== null, "ports", () => "a node of a cluster takes over without a view");
    this.#candidate = null;
    // Whatever an earlier tenure of this process still waits for is over.
    if (this.#tenure !== null) this.#tenure.failure ??= new StoreError("fenced", "this node takes over anew");
    this.#tenures += 1;
    const number = this.#tenures;
    const giveUpAtMs = this.#nowMs + this.#options.resolveMsMax;
    const attempt = (): void => {
      this.#call(
        () => this.#takeAtStore(view, number),
        (answer) => {
          if (answer === null && this.#nowMs < giveUpAtMs) this.#options.host.scheduler.after(RETRY_MS, attempt);
          else if (answer === null) done(noAnswer("the take-over"), null);
          else if (answer.identity === null) done(fenced(answer.fence), null);
          else {
            const { epoch } = answer.identity;
            const { fenceRevision, loadRevision } = answer;
            this.#tenure = { number, epoch, fenceRevision, loadRevision, beats: 0, failure: null };
            done(null, answer.identity);
          }
        },
        true,
      );
    };
    attempt();
  }

  /** At the store, all at one instant: a former try of the same take-over counts. */
  #takeAtStore(
    view: RoleView,
    number: number,
  ): { identity: StoreIdentity | null; fence: SharedRow | null; fenceRevision: number; loadRevision: number } {
    const { shared, node, incarnation, bugs } = this.#options;
    const guards: RowGuard[] = [{ key: FENCE, modRevision: view.fence?.modRevision ?? 0 }];
    if (!bugs.takesOverWithoutBeat) guards.push({ key: BEAT, modRevision: view.beat?.modRevision ?? 0 });
    const epoch = (view.fence?.epoch ?? 0) + 1;
    const identity = { ...identityAt(shared, incarnation), epoch };
    const writer = new BatchWriter();
    encodeFormat(writer);
    encodeIdentity(identity.incarnation, epoch, writer);
    encodeMeta(identity.revision, writer);
    const fence: FenceValue = { epoch, node, incarnation, tenure: number };
    const beat: BeatValue = { epoch, number: 0, state: "loading" };
    const isDone = shared.transact(guards, [
      { kind: "put", key: FENCE, value: encode(fence) },
      { kind: "put", key: BEAT, value: encode(beat) },
      ...changesOf(writer.packed()),
    ]);
    const present = shared.get(FENCE);
    const isOwn = isDone || (present !== null && this.#isOf(present, number));
    const fenceRevision = present?.modRevision ?? 0;
    return { identity: isOwn ? identity : null, fence: present, fenceRevision, loadRevision: shared.revision };
  }

  load(onPage: (page: RowPage, next: () => void) => void, done: Done): void {
    const { shared, pageRows } = this.#options;
    const tenure = this.#tenure;
    demand(tenure !== null, "ports", () => "a load without a take-over");
    let from = ROW_PREFIX;
    const giveUpAtMs = this.#nowMs + 10 * this.#options.resolveMsMax;
    const page = (): void => {
      const { loadRevision } = tenure;
      const read = (): { rows: readonly SharedRow[] | null } => {
        try {
          return { rows: shared.range(from, endOf(ROW_PREFIX), pageRows, loadRevision) };
        } catch (error) {
          if (error instanceof Compacted) return { rows: null };
          throw error;
        }
      };
      this.#call(read, (answer) => {
        if (tenure.failure !== null) done(tenure.failure);
        else if (answer === null && this.#nowMs < giveUpAtMs) this.#options.host.scheduler.after(RETRY_MS, page);
        else if (answer === null) done(noAnswer("the load"));
        else if (answer.rows === null) newRevision();
        else handOver(answer.rows);
      });
    };
    // A later revision at which the role is still this tenure's is as exact.
    const newRevision = (): void => {
      const guards = [{ key: FENCE, modRevision: tenure.fenceRevision }];
      this.#transact(guards, [], (answer) => {
        if (answer !== null && !answer.isDone) done(fenced(answer.fence));
        else {
          tenure.loadRevision = answer?.revision ?? tenure.loadRevision;
          page();
        }
      });
    };
    const handOver = (rows: readonly SharedRow[]): void => {
      const last = rows.at(-1);
      if (last === undefined) {
        done(null);
        return;
      }
      from = `${last.key}\0`;
      const writer = new PageWriter(1024);
      for (const { key, value } of rows) writer.append(Buffer.from(key.slice(ROW_PREFIX.length), "latin1"), value);
      onPage(writer.take(), page);
    };
    page();
  }

  // Writing -----------------------------------------------------------------------------------------------------------

  commit(batch: CommitBatch, done: Done): void {
    const tenure = this.#tenure;
    demand(tenure !== null, "ports", () => "a commit without a take-over");
    const changes = changesOf(batch.bytes);
    let giveUpAtMs = Infinity;
    const attempt = (): void => {
      if (tenure.failure !== null) {
        done(tenure.failure);
        return;
      }
      const { fenceRevision } = tenure;
      this.#transact(this.#guardsOf(tenure), changes, (answer) => {
        if (tenure.failure !== null) done(tenure.failure);
        else if (answer?.isDone === true) done(null);
        else if (answer !== null) this.#refused(tenure, answer, attempt, done);
        else {
          giveUpAtMs = Math.min(giveUpAtMs, this.#nowMs + this.#options.resolveMsMax);
          if (this.#options.bugs.repeatsWithoutNewFence) attempt();
          else this.#moveFence(tenure, fenceRevision, giveUpAtMs, attempt, done);
        }
      });
    };
    attempt();
  }

  #guardsOf({ fenceRevision }: Tenure): RowGuard[] {
    return this.#options.bugs.commitsWithoutFence ? [] : [{ key: FENCE, modRevision: fenceRevision }];
  }

  /** The outcome of what was sent under this F is unknown: it is to be refused from now on, or is there already. */
  #moveFence(tenure: Tenure, fenceRevision: number, giveUpAtMs: number, next: () => void, done: Done): void {
    const { node, incarnation, host } = this.#options;
    const fence: FenceValue = { epoch: tenure.epoch + 1, node, incarnation, tenure: tenure.number };
    const guards = [{ key: FENCE, modRevision: fenceRevision }];
    this.#transact(guards, [{ kind: "put", key: FENCE, value: encode(fence) }], (answer) => {
      if (tenure.failure !== null) done(tenure.failure);
      else if (answer !== null) this.#refused(tenure, answer, next, done);
      else if (this.#nowMs >= giveUpAtMs) {
        tenure.failure = noAnswer("a batch");
        done(tenure.failure);
      } else {
        host.scheduler.after(RETRY_MS, () => this.#moveFence(tenure, fenceRevision, giveUpAtMs, next, done));
      }
    });
  }

  /** Goes on under the fence as it is, if that is this tenure's. */
  #refused(tenure: Tenure, { fence }: TxnAnswer, next: () => void, done: Done): void {
    if (fence === null || !this.#isOf(fence, tenure.number)) {
      tenure.failure = fenced(fence);
      done(tenure.failure);
      return;
    }
    if (fence.modRevision > tenure.fenceRevision) this.#fenceBumps += 1;
    tenure.fenceRevision = Math.max(tenure.fenceRevision, fence.modRevision);
    tenure.epoch = Math.max(tenure.epoch, decodeFenceValue(fence.value).epoch);
    next();
  }

  beat(state: BeatRow["state"], done: Done): void {
    const tenure = this.#tenure;
    if (tenure === null || tenure.failure !== null) {
      const error = tenure?.failure ?? new StoreError("fenced", "this node has never had the role");
      this.#options.host.scheduler.soon(() => done(error));
      return;
    }
    tenure.beats += 1;
    const beat: BeatValue = { epoch: tenure.epoch, number: tenure.beats, state };
    const guards = [{ key: FENCE, modRevision: tenure.fenceRevision }];
    this.#transact(guards, [{ kind: "put", key: BEAT, value: encode(beat) }], (answer) => {
      if (answer === null) done(noAnswer("a beat"));
      else if (answer.isDone) done(null);
      else this.#refused(tenure, answer, () => done(noAnswer("a beat under a moved fence")), done);
    });
  }

  /** Gives the role up, if this node has it, so that nobody waits for its end. */
  close(done: Done): void {
    const tenure = this.#tenure;
    const end = (): void => {
      this.#isClosed = true;
      if (tenure !== null) tenure.failure ??= new StoreError("fenced", "closed");
      done(null);
    };
    if (tenure === null || tenure.failure !== null) this.#options.host.scheduler.soon(end);
    else this.beat("released", end);
  }

  // The way to the store ------------------------------------------------------------------------------------------------

  get #nowMs(): number {
    return this.#options.host.clock.monotonicMs();
  }

  #isOf(fence: SharedRow, tenure: number): boolean {
    const value = decodeFenceValue(fence.value);
    return value.incarnation === this.#options.incarnation && value.tenure === tenure;
  }

  #transact(
    guards: readonly RowGuard[],
    changes: readonly RowChange[],
    done: (answer: TxnAnswer | null) => void,
  ): void {
    const { shared } = this.#options;
    this.#call(
      () => ({ isDone: shared.transact(guards, changes), revision: shared.revision, fence: shared.get(FENCE) }),
      done,
    );
  }

  #call<Answer extends object>(atStore: () => Answer, done: (answer: Answer | null) => void, isTakeOver = false): void {
    const { link, host, requestTimeoutMs } = this.#options;
    link.call(host, requestTimeoutMs, atStore, done);
    this.#options.onSent(isTakeOver);
  }
}

function viewOf(shared: SimShared): RoleView {
  const fence = shared.get(FENCE);
  const beat = shared.get(BEAT);
  return {
    fence: fence === null ? null : { ...decodeFenceValue(fence.value), modRevision: fence.modRevision },
    beat: beat === null ? null : { ...(decodeJson(beat.value) as BeatValue), modRevision: beat.modRevision },
  };
}

function identityAt(shared: SimShared, incarnation: string): Omit<StoreIdentity, "epoch"> {
  const page = new PageWriter(1024);
  for (const { key, value } of shared.range(ROW_PREFIX + META_RANGE[0], ROW_PREFIX + META_RANGE[1])) {
    page.append(Buffer.from(key.slice(ROW_PREFIX.length), "latin1"), value);
  }
  const meta = decodeMeta(page.take());
  return { incarnation: meta.incarnation ?? `store-${incarnation}`, revision: meta.revision ?? 0 };
}

/** The changes of a packed batch, in bytes of their own. */
function changesOf(packed: Uint8Array): RowChange[] {
  const bytes = asBuffer(packed);
  const reader = new BatchReader(bytes);
  const changes: RowChange[] = [];
  while (reader.next()) {
    const key: ByteString = ROW_PREFIX + bytes.toString("latin1", reader.keyStart, reader.keyEnd);
    if (reader.kind === CHANGE_PUT) {
      changes.push({
        kind: "put",
        key,
        value: Uint8Array.prototype.slice.call(bytes, reader.valueStart, reader.valueEnd),
      });
    } else if (reader.kind === CHANGE_DELETE) {
      changes.push({ kind: "delete", key });
    } else {
      demand(reader.kind === CHANGE_CLEAR_RANGE, "ports", () => `a change of kind ${reader.kind}`);
      changes.push({
        kind: "delete",
        key,
        end: ROW_PREFIX + bytes.toString("latin1", reader.valueStart, reader.valueEnd),
      });
    }
  }
  return changes;
}

const noAnswer = (what: string): StoreError => new StoreError("write-failed", `no answer to ${what} in time`);

function fenced(fence: SharedRow | null): StoreError {
  const who = fence === null ? "nobody" : decodeFenceValue(fence.value).incarnation;
  return new StoreError("fenced", `${who} has the role`);
}
