import { PageWriter } from "#src/durability/batch.js";
import { decodePage, type RowOp } from "#src/durability/schema.js";
import type { KeyPutOp } from "#src/engine/op.js";
import type { ByteString } from "#src/engine/reply.js";
import type { World } from "../sim-world.js";
import { demand } from "./rules.js";
import type { AppliedChange, SharedObserver } from "./sim-shared.js";
import { JournalWatch } from "./journal-watch.js";
import { decodeFenceValue, type Layout } from "./role-rows.js";

/**
 * Sees everything at true times: each transaction of the shared store when it takes effect, each answer when it leaves a node, each
 * answer when it reaches a client. Compares them, at that instant.
 *
 * A client believes in a lease until its TTL is over by its own clock, counted from before it sent what was answered; in a key
 * of it from the answer that gave it until it sends the word that gives it back.
 */

/** What one client believes of one of its leases. Ids are used once. */
export interface LeaseBelief {
  readonly id: ByteString;
  readonly clientName: string;
  /** The client's clock, now. */
  clientNowMs(): number;
  /** By the client's clock. */
  untilMs: number;
  /** The client has sent the word that ends the lease. */
  isGivenUp: boolean;
  /** A grant of this id was sent more than once: one of them may take effect late. */
  wasRepeated: boolean;
  /** Tokens of the keys that the client has and did not give back. */
  readonly keys: Map<ByteString, number>;
}

interface Actor {
  readonly name: string;
  readonly incarnation: string;
}

const META_PREFIX = "m/";
const REVISION_ROW = "m/revision";
const IDENTITY_ROW = "m/identity";

export interface JudgeCounts {
  transactions: number;
  takeOvers: number;
  fenceMoves: number;
  repeatedBatches: number;
  acknowledged: number;
  grants: number;
  keepAlives: number;
  acquisitions: number;
  unknownOutcomes: number;
  journaledBatches: number;
}

export class Judge implements SharedObserver {
  readonly #world: World;
  readonly #layout: Layout;
  /** The keys of all rows in the shared store. */
  readonly #rowsNow: () => readonly ByteString[];
  readonly #journal: JournalWatch | null;
  /** Who had the fence from when on, by transactions of the store. */
  readonly #fences: { readonly atMs: number; readonly incarnation: string; readonly epoch: number }[] = [];
  readonly #epochOwners = new Map<number, string>();
  /** Durable leases, and keys by their rows. */
  readonly leases = new Set<ByteString>();
  readonly #keyRows = new Map<ByteString, KeyPutOp>();
  readonly #holders = new Map<ByteString, Set<ByteString>>();
  readonly #tokensMax = new Map<ByteString, number>();
  readonly #tokensKnown = new Map<ByteString, number>();
  readonly #beliefs = new Map<ByteString, LeaseBelief>();
  /** Leases that were acknowledged as ended, or refused. */
  readonly #ended = new Map<ByteString, string>();
  #batchRevision = 0;
  #batchText = "";
  /** Rules that are not asked, so that others are on trial. */
  readonly #off: ReadonlySet<string>;
  readonly counts: JudgeCounts = {
    transactions: 0,
    takeOvers: 0,
    fenceMoves: 0,
    repeatedBatches: 0,
    acknowledged: 0,
    grants: 0,
    keepAlives: 0,
    acquisitions: 0,
    unknownOutcomes: 0,
    journaledBatches: 0,
  };

  constructor(world: World, layout: Layout, rowsNow: () => readonly ByteString[], rulesOff: readonly string[]) {
    this.#world = world;
    this.#layout = layout;
    this.#rowsNow = rowsNow;
    this.#journal = layout.journalPrefix === null ? null : new JournalWatch(layout.journalPrefix);
    this.#off = new Set(rulesOff);
  }

  // The store -----------------------------------------------------------------------------------------------------------

  onTransaction(changes: readonly AppliedChange[]): void {
    const { fence: fenceKey, rowPrefix } = this.#layout;
    this.counts.transactions += 1;
    const fence = changes.find(({ key }) => key === fenceKey);
    if (fence !== undefined && fence.value !== null) this.#fenceWritten(fence.value);
    const written = changes.flatMap(({ key, value }) =>
      key.startsWith(rowPrefix) ? [{ key: key.slice(rowPrefix.length), value }] : [],
    );
    const meaning = this.#journal?.meaningOf(changes, written) ?? { rows: written, isDropped: false };
    this.#takeEffect(meaning.rows);
    if (meaning.isDropped) this.#checkRows();
    this.counts.journaledBatches = this.#journal?.batches ?? 0;
  }

  #takeEffect(rows: readonly AppliedChange[]): void {
    // What a take-over writes about itself is no batch.
    if (rows.length === 0 || rows.some(({ key }) => key === IDENTITY_ROW)) return;
    const isRepeated = this.#isRepeatedBatch(rows);
    const touched = new Set<ByteString>();
    for (const change of rows) {
      if (change.value === null) this.#rowGone(change.key, touched);
      else if (!change.key.startsWith(META_PREFIX)) this.#rowPut(change.key, decode(change), isRepeated, touched);
    }
    for (const key of touched) this.#checkHolders(key);
    this.#checkBeliefs(rows);
  }

  /** The rows that are there are those that there ought to be. */
  #checkRows(): void {
    const { rowPrefix } = this.#layout;
    const there = this.#rowsNow().map((key) => key.slice(rowPrefix.length));
    const found = there.filter((name) => name.startsWith("l/") || name.startsWith("n/")).sort();
    const expected = [...[...this.leases].map((id) => `l/${id}`), ...this.#keyRows.keys()].sort();
    const isWhole = found.length === expected.length && found.every((name, index) => name === expected[index]);
    const text = (): string =>
      `the journal is dropped before its batch is applied: ${found.join(" ")} for ${expected.join(" ")}`;
    demand(isWhole, "S2-one-history", text);
  }

  #fenceWritten(value: Uint8Array): void {
    const { epoch, incarnation } = decodeFenceValue(value);
    const before = this.#fences.at(-1);
    const text = (): string => `${incarnation} writes epoch ${epoch} after ${before?.epoch}`;
    demand(before === undefined || epoch > before.epoch, "S1-epochs", text);
    if (before?.incarnation === incarnation) this.counts.fenceMoves += 1;
    else this.counts.takeOvers += 1;
    this.#fences.push({ atMs: this.#world.nowMs, incarnation, epoch });
    this.#world.trace(`store: fence ${epoch} ${incarnation}`);
  }

  #isRepeatedBatch(rows: readonly AppliedChange[]): boolean {
    const mark = rows.find(({ key }) => key === REVISION_ROW);
    if (mark === undefined || mark.value === null) return false;
    let revision = 0;
    decodePage(pageOf([mark]), {
      op: () => undefined,
      revision: (number) => {
        revision = number;
      },
    });
    const text = rows
      .map(({ key, value }) => `${key}=${value === null ? "" : Buffer.from(value).toString("latin1")}`)
      .join("\n");
    const isRepeated = revision === this.#batchRevision;
    this.#world.trace(`store: batch ${revision}${isRepeated ? " again" : ""}`);
    if (isRepeated) this.counts.repeatedBatches += 1;
    if (!this.#off.has("S2-one-history")) {
      const order = (): string => `batch ${revision} takes effect after batch ${this.#batchRevision}`;
      demand(revision >= this.#batchRevision, "S2-one-history", order);
      // What a repetition deletes is gone already.
      const isSame = !isRepeated || isSubset(text, this.#batchText);
      demand(isSame, "S2-one-history", () => `two batches are called ${revision}`);
    }
    if (!isRepeated) this.#batchText = text;
    this.#batchRevision = revision;
    return isRepeated;
  }

  #rowPut(row: ByteString, op: RowOp | null, isRepeated: boolean, touched: Set<ByteString>): void {
    if (op === null) return;
    if (op.kind === "lease-put") {
      const why = this.#ended.get(op.id);
      demand(why === undefined, "S2-ended", () => `lease ${op.id} is written, ${why}`);
      this.leases.add(op.id);
    } else if (op.kind === "key-put") {
      const { key, token, leaseId } = op;
      const before = this.#keyRows.get(row);
      this.#keyRows.set(row, op);
      const holders = this.#holders.get(key) ?? new Set();
      holders.add(row);
      this.#holders.set(key, holders);
      touched.add(key);
      const newest = this.#tokensMax.get(key) ?? 0;
      const isSameHold = before?.token === token;
      const text = (): string => `${leaseId} gets ${key} under token ${token} after ${newest} was given`;
      if (!isRepeated) demand(token > newest || isSameHold, "S4-tokens", text);
      this.#tokensMax.set(key, Math.max(newest, token));
    }
  }

  #rowGone(row: ByteString, touched: Set<ByteString>): void {
    if (row.startsWith("l/")) this.leases.delete(row.slice(2));
    const op = this.#keyRows.get(row);
    if (op === undefined) return;
    this.#keyRows.delete(row);
    this.#holders.get(op.key)?.delete(row);
    touched.add(op.key);
  }

  #checkHolders(key: ByteString): void {
    const holders = [...(this.#holders.get(key) ?? [])].map((row) => this.#keyRows.get(row));
    const text = (): string =>
      `${key} is held by ${holders.map((op) => `${op?.leaseId} (${op?.token})`).join(" and ")}`;
    demand(holders.length <= 1, "S4-exclusion", text);
  }

  /** Nothing that a client believes in is taken away. */
  #checkBeliefs(rows: readonly AppliedChange[]): void {
    if (!rows.some(({ value }) => value === null)) return;
    for (const belief of this.#beliefs.values()) {
      if (this.#isBelieved(belief)) this.#checkBelief(belief);
      else this.#beliefs.delete(belief.id);
    }
  }

  #isBelieved(belief: LeaseBelief): boolean {
    return !belief.isGivenUp && belief.clientNowMs() < belief.untilMs;
  }

  /** Called when something happened that may make it wrong. */
  #checkBelief(belief: LeaseBelief): void {
    const { id, clientName, keys } = belief;
    const leftMs = (): number => Math.round(belief.untilMs - belief.clientNowMs());
    demand(
      this.leases.has(id),
      "S3-early-end",
      () => `${clientName} believes in ${id} for ${leftMs()} ms more, it is gone`,
    );
    for (const [key, token] of keys) {
      const held = [...(this.#holders.get(key) ?? [])].map((row) => this.#keyRows.get(row));
      const isHeld = held.some((op) => op?.leaseId === id && op.token === token);
      const by = (): string => held.map((op) => `${op?.leaseId} (${op?.token})`).join(" and ");
      demand(
        isHeld,
        "S3-early-end",
        () => `${clientName} believes that ${id} has ${key} (${token}); it is with: ${by()}`,
      );
    }
  }

  // The nodes -----------------------------------------------------------------------------------------------------------

  /** A node has decided that it may act as primary, at a clock reading that was made at this true time. */
  acts(node: Actor, atMs: number): void {
    if (this.#off.has("S1-one-primary")) return;
    const fence = this.#fences.findLast((candidate) => candidate.atMs <= atMs);
    const text = (): string =>
      `${node.name} acts at ${atMs.toFixed(3)}, ${fence?.incarnation} has the fence since ${fence?.atMs.toFixed(3)}`;
    demand(fence?.incarnation === node.incarnation, "S1-one-primary", text);
  }

  /** A node has taken the role under this epoch. */
  acknowledges(node: Actor, epoch: number): void {
    this.counts.acknowledged += 1;
    const owner = this.#epochOwners.get(epoch);
    const text = (): string => `${owner} and ${node.incarnation} both acknowledge under epoch ${epoch}`;
    demand(owner === undefined || owner === node.incarnation, "S1-epochs", text);
    this.#epochOwners.set(epoch, node.incarnation);
  }

  // The clients -----------------------------------------------------------------------------------------------------------

  forgets(belief: LeaseBelief): void {
    this.#beliefs.delete(belief.id);
  }

  /** The largest token of this key that any client has been told. */
  tokenKnown(key: ByteString): number {
    return this.#tokensKnown.get(key) ?? 0;
  }

  /** The grant was answered with a lease, or the lease was renewed: until when it is believed in is set. */
  renewed(belief: LeaseBelief, isGrant: boolean): void {
    if (isGrant) this.counts.grants += 1;
    else this.counts.keepAlives += 1;
    if (!this.#isBelieved(belief)) return;
    this.#beliefs.set(belief.id, belief);
    const text = (): string => `${belief.clientName} is granted ${belief.id}, it is not there`;
    if (isGrant) demand(this.leases.has(belief.id), "S2-kept", text);
    this.#checkBelief(belief);
  }

  /** The client is told that its lease is dead. */
  deadByWord(belief: LeaseBelief, what: string): void {
    const leftMs = Math.round(belief.untilMs - belief.clientNowMs());
    const text = (): string =>
      `${belief.clientName} believes in ${belief.id} for ${leftMs} ms more, and is told ${what}`;
    demand(!this.#isBelieved(belief), "S3-early-end", text);
  }

  /** The client is told that it has a key. `known`: the largest token known when it asked. */
  acquired(belief: LeaseBelief, key: ByteString, token: number, known: number): void {
    this.counts.acquisitions += 1;
    const isNews = belief.keys.get(key) !== token;
    const text = (): string => `${belief.id} gets ${key} under token ${token}, ${known} was known when it asked`;
    // A key that the lease had been given without the client's knowing has the token of then.
    demand(!isNews || token > known || this.#hasToken(belief.id, key, token), "S4-tokens", text);
    this.#tokensKnown.set(key, Math.max(token, this.tokenKnown(key)));
    belief.keys.set(key, token);
    if (!this.#isBelieved(belief)) return;
    const others = [...this.#beliefs.values()].filter(
      (other) => other !== belief && other.keys.has(key) && this.#isBelieved(other),
    );
    const who = (): string =>
      others.map((other) => `${other.clientName} with ${other.id} (${other.keys.get(key)})`).join(" and ");
    demand(
      others.length === 0,
      "S4-exclusion",
      () =>
        `${belief.clientName} with ${belief.id} (${token}) is told that it has ${key}, which is believed held by ${who()}`,
    );
    this.#checkBelief(belief);
  }

  #hasToken(id: ByteString, key: ByteString, token: number): boolean {
    return [...(this.#holders.get(key) ?? [])].some((row) => {
      const op = this.#keyRows.get(row);
      return op?.leaseId === id && op.token === token;
    });
  }

  /** The client is told that the lease has ended by its word, or that it was refused: it may never be there again. */
  ended(belief: LeaseBelief, why: string): void {
    if (belief.wasRepeated) return;
    demand(!this.leases.has(belief.id), "S2-ended", () => `${belief.id} is there, ${why}`);
    this.#ended.set(belief.id, why);
  }

  /** A key was given back and acknowledged. */
  released(belief: LeaseBelief, key: ByteString, token: number): void {
    demand(
      !this.#hasToken(belief.id, key, token),
      "S2-ended",
      () => `${belief.id} has ${key} (${token}), which it released`,
    );
  }

  unknownOutcome(): void {
    this.counts.unknownOutcomes += 1;
  }
}

function pageOf(rows: readonly AppliedChange[]): ReturnType<PageWriter["take"]> {
  const writer = new PageWriter(1024);
  for (const { key, value } of rows) {
    if (value !== null) writer.append(Buffer.from(key, "latin1"), value);
  }
  return writer.take();
}

function decode(row: AppliedChange): RowOp | null {
  let decoded: RowOp | null = null;
  decodePage(pageOf([row]), {
    op: (op) => {
      decoded = op;
    },
    revision: () => undefined,
  });
  return decoded;
}

/** Whether each line of a text is one of another. */
function isSubset(text: string, of: string): boolean {
  const lines = new Set(of.split("\n"));
  return text.split("\n").every((line) => lines.has(line));
}
