import { BatchWriter, PageWriter } from "#src/durability/batch.js";
import { applyBatch } from "#src/durability/memory-store.js";
import { decodeMeta, encodeFormat, encodeIdentity, encodeMeta, META_RANGE } from "#src/durability/schema.js";
import {
  type CommitBatch,
  type Done,
  type RowPage,
  type Store,
  StoreError,
  type StoreIdentity,
} from "#src/durability/store.js";
import type { ByteString } from "#src/engine/reply.js";
import type { Fault } from "#src/ports.js";
import type { SimHost } from "./sim-host.js";
import type { World } from "./sim-world.js";
import { check } from "./violation.js";

/**
 * A disk that forgets what was not synced, and the store port on it.
 *
 *   commit ──► written (in the page cache) ──► synced (survives) ──► done
 *
 * A crash keeps a prefix of what was written and not synced, as the seed has it: with a correct store that is one batch, whole or
 * not at all. Batches are copied when they are written, not when they are handed over: a caller that reuses its buffer too
 * early is found out.
 *
 * Invariants of a SimStore: those of the port (src/durability/store.ts); it asserts what callers owe it.
 */

interface WrittenBatch {
  readonly bytes: Uint8Array;
  readonly revision: number;
}

/** How the disk departs from what a store promises: the deliberate bugs. All off in a correct one. */
export interface DiskBugs {
  /** Says "durable" when the batch is written, before it is synced. */
  readonly acknowledgesBeforeSync: boolean;
  /** A crash may keep the first half of a batch. */
  readonly tearsBatches: boolean;
  /** A commit that failed is reported as durable. */
  readonly swallowsFailures: boolean;
}

export const CORRECT_DISK: DiskBugs = {
  acknowledgesBeforeSync: false,
  tearsBatches: false,
  swallowsFailures: false,
};

export interface DiskTimes {
  readonly writeMsMean: number;
  readonly syncMsMean: number;
  /** The chance that a commit hangs, and for how long at most. */
  readonly stallChance: number;
  readonly stallMsMax: number;
  readonly pageDelayMsMean: number;
}

export interface DiskFaults {
  /** The chance that a commit fails, with an unknown outcome. */
  readonly commitFailChance: number;
  /** The chance that a commit finds the disk full; it stays full for a while. */
  readonly fullChance: number;
  readonly fullMsMax: number;
  /** The chance that reading a page fails. */
  readonly loadFailChance: number;
  /** The chance that a page is read with one bit flipped; the row on disk is well. */
  readonly flipChance: number;
}

export const NO_DISK_FAULTS: DiskFaults = {
  commitFailChance: 0,
  fullChance: 0,
  fullMsMax: 0,
  loadFailChance: 0,
  flipChance: 0,
};

/** A disk in good health. */
export const CALM_DISK_TIMES: DiskTimes = {
  writeMsMean: 0.05,
  syncMsMean: 0.2,
  stallChance: 0,
  stallMsMax: 0,
  pageDelayMsMean: 0.1,
};

/** What outlives every process. */
export class SimDisk {
  /** Rows that survive anything. */
  readonly rows = new Map<ByteString, Uint8Array>();
  readonly world: World;
  readonly bugs: DiskBugs;
  times: DiskTimes;
  faults: DiskFaults;
  /** The newest revision that survives anything. */
  syncedRevision = 0;
  holder: SimStore | null = null;
  fullUntilMs = 0;
  #written: WrittenBatch[] = [];

  constructor(world: World, times: DiskTimes, faults: DiskFaults, bugs: DiskBugs) {
    this.world = world;
    this.times = times;
    this.faults = faults;
    this.bugs = bugs;
  }

  get isFull(): boolean {
    return this.world.nowMs < this.fullUntilMs;
  }

  write(batch: CommitBatch): void {
    this.#written.push({ bytes: Uint8Array.from(batch.bytes), revision: batch.revision });
  }

  /** The oldest written batches up to `revision` are synced now. */
  sync(revision: number): void {
    while (this.#written[0] !== undefined && this.#written[0].revision <= revision) this.#syncOldest();
  }

  /** The process that held the disk is gone, and with it what the seed wants of the batches that were not synced. */
  crash(): void {
    const { random } = this.world;
    while (this.#written.length > 0) {
      if (random.chance(0.5)) {
        this.#syncOldest();
        continue;
      }
      const torn = this.#written[0];
      this.#written = [];
      if (this.bugs.tearsBatches && torn !== undefined) applyBatch(this.rows, firstHalf(torn.bytes));
    }
    this.holder = null;
  }

  #syncOldest(): void {
    const batch = this.#written.shift();
    if (batch === undefined) return;
    applyBatch(this.rows, batch.bytes);
    this.syncedRevision = batch.revision;
  }
}

/** Whole changes that make up at most half of a packed batch. */
function firstHalf(bytes: Uint8Array): Uint8Array {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let end = 0;
  for (;;) {
    const next = end + 9 + view.getUint32(end + 1, true) + view.getUint32(end + 5, true);
    if (next > bytes.byteLength / 2) return bytes.subarray(0, end);
    end = next;
  }
}

export class SimStore implements Store {
  readonly name = "simulated";
  /** True once a commit of this store was answered with an error, or this store refused to go on. */
  failed = false;
  /** Hears of each load when it begins. */
  onLoad: () => void = () => undefined;
  /** Hears of each batch when it is handed over. */
  onHandOver: (revision: number) => void = () => undefined;
  readonly #disk: SimDisk;
  readonly #host: SimHost;
  readonly #incarnation: ByteString;
  readonly #fault: Fault;
  #inFlight = false;
  #closed = false;

  /** `incarnation`: the name that a new disk gets. */
  constructor(disk: SimDisk, host: SimHost, incarnation: ByteString, fault: Fault) {
    this.#disk = disk;
    this.#host = host;
    this.#fault = fault;
    this.#incarnation = incarnation;
  }

  acquire(done: (error: StoreError | null, identity: StoreIdentity | null) => void): void {
    const disk = this.#disk;
    const { world } = disk;
    const answer = (error: StoreError | null, identity: StoreIdentity | null): void =>
      this.#host.enterAt(world.nowMs + world.random.exponential(0.5), () => done(error, identity));
    world.after(world.random.exponential(1), () => {
      if (!this.#host.alive) return;
      if (disk.holder !== null && disk.holder !== this) {
        answer(new StoreError("in-use", "another process holds the disk"), null);
        return;
      }
      if (disk.isFull) {
        answer(new StoreError("unusable", "no space left on the disk"), null);
        return;
      }
      this.#host.enter(() => {
        if (this.#closed) return;
        disk.holder = this;
        this.#fault.point("open:after-lock");
        answer(null, this.#takeIdentity());
      });
    });
  }

  /** Raises the epoch on disk; synced at once. */
  #takeIdentity(): StoreIdentity {
    const disk = this.#disk;
    const page = new PageWriter(1024);
    for (const [key, value] of disk.rows) {
      if (key >= META_RANGE[0] && key < META_RANGE[1]) page.append(Buffer.from(key, "latin1"), value);
    }
    const meta = decodeMeta(page.take());
    const identity: StoreIdentity = {
      incarnation: meta.incarnation ?? this.#incarnation,
      revision: meta.revision ?? 0,
      epoch: (meta.epoch ?? 0) + 1,
    };
    const writer = new BatchWriter();
    encodeFormat(writer);
    encodeIdentity(identity.incarnation, identity.epoch, writer);
    encodeMeta(identity.revision, writer);
    applyBatch(disk.rows, writer.batch(identity.revision).bytes);
    return identity;
  }

  load(onPage: (page: RowPage, next: () => void) => void, done: Done): void {
    const disk = this.#disk;
    const { world, faults } = disk;
    const { random } = world;
    check(disk.holder === this && !this.#closed, "ports", () => "load without the disk");
    check(!this.#inFlight, "ports", () => "load with a commit in flight");
    this.onLoad();
    const keys = [...disk.rows.keys()].sort();
    let index = 0;
    const later = (run: () => void): void =>
      this.#host.enterAt(world.nowMs + random.exponential(disk.times.pageDelayMsMean), run);
    const step = (): void => {
      if (random.chance(faults.loadFailChance)) {
        done(new StoreError("unusable", "the disk could not be read"));
        return;
      }
      if (index === keys.length) {
        done(null);
        return;
      }
      const writer = new PageWriter(random.pick([1, 100, 1000, 10_000]));
      while (index < keys.length && !writer.full) {
        const key = keys[index] ?? "";
        writer.append(Buffer.from(key, "latin1"), disk.rows.get(key) ?? new Uint8Array());
        index += 1;
      }
      const page = writer.take();
      if (random.chance(faults.flipChance)) flipOneBit(page, random.fraction());
      let answered = false;
      onPage(page, () => {
        check(!answered, "ports", () => "next was called twice for one page");
        answered = true;
        later(step);
      });
    };
    later(step);
  }

  commit(batch: CommitBatch, done: Done): void {
    const disk = this.#disk;
    const { world, times, faults, bugs } = disk;
    const { random } = world;
    check(disk.holder === this && !this.#closed, "ports", () => "commit without the disk");
    check(!this.#inFlight, "ports", () => "two commits at a time");
    check(batch.changeCount > 0 && batch.bytes.length > 0, "ports", () => "an empty batch");
    this.#inFlight = true;
    this.onHandOver(batch.revision);
    const stallMs = random.chance(times.stallChance) ? random.between(0, times.stallMsMax) : 0;
    const writtenAtMs = world.nowMs + random.exponential(times.writeMsMean) + stallMs;
    const syncedAtMs = writtenAtMs + random.exponential(times.syncMsMean);
    if (random.chance(faults.fullChance)) disk.fullUntilMs = world.nowMs + random.between(0, faults.fullMsMax);
    if (this.failed || disk.isFull || random.chance(faults.commitFailChance)) {
      this.#failCommit(batch, syncedAtMs, done);
      return;
    }
    world.at(writtenAtMs, () => {
      if (this.#host.alive) disk.write(batch);
    });
    world.at(syncedAtMs, () => {
      if (this.#host.alive) disk.sync(batch.revision);
    });
    const doneAtMs = bugs.acknowledgesBeforeSync ? writtenAtMs : syncedAtMs;
    this.#host.enterAt(doneAtMs + random.exponential(0.05), () => {
      this.#inFlight = false;
      done(null);
    });
  }

  /** The commit fails at a time; as the seed has it, its batch is durable all the same. */
  #failCommit(batch: CommitBatch, atMs: number, done: Done): void {
    const disk = this.#disk;
    const { random } = disk.world;
    const isDurableAllTheSame = !this.failed && !disk.isFull && random.chance(0.5);
    const { swallowsFailures } = disk.bugs;
    if (!swallowsFailures) this.failed = true;
    disk.world.at(atMs, () => {
      if (!isDurableAllTheSame || !this.#host.alive) return;
      disk.write(batch);
      disk.sync(batch.revision);
    });
    this.#host.enterAt(atMs + random.exponential(0.05), () => {
      this.#inFlight = false;
      done(swallowsFailures ? null : new StoreError("write-failed", "simulated failure of a commit"));
    });
  }

  close(done: Done): void {
    check(!this.#closed, "ports", () => "close was called twice");
    this.#closed = true;
    const disk = this.#disk;
    const finish = (): void => {
      if (this.#inFlight) {
        this.#host.enterAt(disk.world.nowMs + 1, finish);
        return;
      }
      this.#fault.point("close:before-sync");
      if (disk.holder === this) disk.holder = null;
      done(null);
    };
    this.#host.enterAt(disk.world.nowMs + disk.world.random.exponential(1), finish);
  }
}

/** Flips one bit of the key or value of some row: not of the lengths, which are the page's own and never on disk. */
function flipOneBit(page: RowPage, fraction: number): void {
  const bytes = Buffer.from(page.bytes.buffer, page.bytes.byteOffset, page.bytes.byteLength);
  const targets: number[] = [];
  for (let start = 0; start < bytes.length;) {
    const end = start + 8 + bytes.readUInt32LE(start) + bytes.readUInt32LE(start + 4);
    for (let index = start + 8; index < end; index += 1) targets.push(index);
    start = end;
  }
  const scaled = fraction * targets.length;
  const target = targets[Math.floor(scaled)];
  if (target === undefined) return;
  bytes[target] = (bytes[target] ?? 0) ^ (1 << Math.floor((scaled % 1) * 8));
}
