import { Chain, type Link } from "./chain.js";
import { Float64Records, ReferenceColumn, RowAllocator } from "./columns.js";
import type { LockMode } from "./command.js";
import { invariant } from "./invariant.js";
import type { LeaseRow } from "./lease-table.js";
import { DATABASE_COUNT } from "./limits.js";
import type { ByteString, Reply } from "./reply.js";
import { TimerWheel } from "./timer-wheel.js";

/**
 * Who waits for which key, in which order: what only the primary knows. Never on disk, gone with the role.
 *
 * A queue belongs to a key. A place in it belongs to a lease, the waiter: a lease has at most one place in a queue, however many of
 * its connections ask for the key, so that a client which asks again over a new connection keeps its place. Each blocked command is an
 * ask; all asks of a place get the same answer, and each may run out of time on its own. A place without an ask is given up.
 *
 * A queue is looked at when something happened to it: its key changed, somebody left it, somebody came. It is ready then, and
 * `Engine.handOver` takes ready queues one after the other and lets the first of each have the key, if it fits. So nobody polls, and
 * nobody walks over a queue: every step costs the same with one waiter as with ten thousand.
 *
 * Invariants:
 *  - a waiter's lease is alive in the state; when it ends, its asks are answered with the same decision
 *  - a queue has a waiter, a waiter has an ask
 *  - whoever asks first is served first, within one key; a lease that joins its own place takes that place
 */

/** Names one blocked command, for as long as it waits. Never used again in this process. */
export type WaitId = number;

/** The answer of a blocked command. */
export interface Wake {
  readonly waitId: WaitId;
  readonly reply: Reply;
  /** Set when the answer is a grant. */
  readonly grant?: Grant;
}

/** A key that was handed to a waiter: enough to give it back when nobody hears of it. */
export interface Grant {
  readonly databaseIndex: number;
  readonly key: ByteString;
  readonly leaseId: ByteString;
  readonly token: number;
}

/** A command that begins to wait. */
export interface NewWait {
  readonly waitId: WaitId;
  readonly databaseIndex: number;
  readonly key: ByteString;
  readonly lease: LeaseRow;
  readonly mode: LockMode;
  /** null: the lease id. */
  readonly value: ByteString | null;
  /** Monotonic milliseconds; Infinity: no limit. */
  readonly deadlineMs: number;
}

class Ask {
  readonly id: WaitId;
  readonly waiter: Waiter;
  /** Row of its deadline. */
  readonly row: number;
  place: Link<Ask> | null = null;

  constructor(id: WaitId, waiter: Waiter, row: number) {
    this.id = id;
    this.waiter = waiter;
    this.row = row;
  }
}

export class Waiter {
  readonly queue: Queue;
  readonly lease: LeaseRow;
  readonly mode: LockMode;
  /** The value that the key is to get; null: the lease id. The newest ask decides. */
  value: ByteString | null;
  readonly sinceMs: number;
  /** Rises from place to place in a queue. */
  readonly order: number;
  readonly asks = new Chain<Ask>();
  placeInQueue: Link<Waiter> | null = null;
  placeOfLease: Link<Waiter> | null = null;

  constructor(queue: Queue, wait: NewWait, sinceMs: number, order: number) {
    this.queue = queue;
    this.lease = wait.lease;
    this.mode = wait.mode;
    this.value = wait.value;
    this.sinceMs = sinceMs;
    this.order = order;
  }
}

export class Queue {
  readonly databaseIndex: number;
  readonly key: ByteString;
  readonly places = new Chain<Waiter>();
  readonly byLease = new Map<LeaseRow, Waiter>();
  /** Commands that wait in it. */
  askCount = 0;
  /** Its link among the ready queues. */
  ready: Link<Queue> | null = null;

  constructor(databaseIndex: number, key: ByteString) {
    this.databaseIndex = databaseIndex;
    this.key = key;
  }
}

/** The places of one lease. */
class Places {
  readonly chain = new Chain<Waiter>();
  /** How many of them somebody waits behind. */
  followed = 0;
}

const NOBODY: readonly Waiter[] = [];
const DEADLINE = 0;

export class Waiters {
  readonly #queues: Map<ByteString, Queue>[] = Array.from(
    { length: DATABASE_COUNT },
    () => new Map<ByteString, Queue>(),
  );
  readonly #byLease = new Map<LeaseRow, Places>();
  readonly #asks = new Map<WaitId, Ask>();
  readonly #ready = new Chain<Queue>();
  readonly #deadlines = new Float64Records([Infinity]);
  readonly #asksByRow = new ReferenceColumn<Ask>();
  readonly #wheel = new TimerWheel(this.#deadlines, DEADLINE);
  readonly #rows = new RowAllocator([this.#deadlines, this.#asksByRow, ...this.#wheel.columns]);
  #waiterCount = 0;
  #newestOrder = 0;
  /** The name of the next command that waits. */
  nextWaitId: WaitId = 1;
  /** Places, keys and leases looked at so far, by whoever decides about a wait: what tests count instead of time. */
  steps = 0;

  /** Blocked commands. */
  get count(): number {
    return this.#asks.size;
  }

  /** Places in all queues. */
  get waiterCount(): number {
    return this.#waiterCount;
  }

  /** Keys that somebody waits for, in one database. */
  queueCount(databaseIndex: number): number {
    return this.#queues[databaseIndex]!.size;
  }

  queue(databaseIndex: number, key: ByteString): Queue | null {
    return this.#queues[databaseIndex]!.get(key) ?? null;
  }

  /** All queues of one database. */
  queues(databaseIndex: number): Iterable<Queue> {
    return this.#queues[databaseIndex]!.values();
  }

  /** The places that a lease has. */
  ofLease(lease: LeaseRow): Iterable<Waiter> {
    return this.#byLease.get(lease)?.chain ?? NOBODY;
  }

  /** Whether anybody waits behind the lease in some queue. */
  isFollowed(lease: LeaseRow): boolean {
    return (this.#byLease.get(lease)?.followed ?? 0) > 0;
  }

  /** The place of a blocked command; null when it does not wait any more. */
  waiterOf(id: WaitId): Waiter | null {
    return this.#asks.get(id)?.waiter ?? null;
  }

  /** Every blocked command. */
  ids(): Iterable<WaitId> {
    return this.#asks.keys();
  }

  /** A queue that something happened to; null when there is none. */
  get firstReady(): Queue | null {
    return this.#ready.first?.item ?? null;
  }

  // Changes: for engine.ts only -------------------------------------------------------------------------------------

  add(wait: NewWait, nowMs: number): void {
    const { databaseIndex, key, lease } = wait;
    invariant(wait.waitId === this.nextWaitId, "waits are numbered in their order");
    this.nextWaitId += 1;
    let queue = this.queue(databaseIndex, key);
    if (queue === null) {
      queue = new Queue(databaseIndex, key);
      this.#queues[databaseIndex]!.set(key, queue);
    }
    let waiter = queue.byLease.get(lease);
    if (waiter === undefined) waiter = this.#newWaiter(queue, wait, nowMs);
    else waiter.value = wait.value;
    const row = this.#rows.take();
    const ask = new Ask(wait.waitId, waiter, row);
    ask.place = waiter.asks.append(ask);
    queue.askCount += 1;
    this.#asks.set(ask.id, ask);
    this.#asksByRow.set(row, ask);
    this.#deadlines.set(row, DEADLINE, wait.deadlineMs);
    this.#wheel.arm(row, nowMs);
    if (queue.places.first?.item === waiter) this.#makeReady(queue);
  }

  #newWaiter(queue: Queue, wait: NewWait, nowMs: number): Waiter {
    this.#newestOrder += 1;
    const waiter = new Waiter(queue, wait, nowMs, this.#newestOrder);
    const before = queue.places.last;
    if (before !== null) this.#byLease.get(before.item.lease)!.followed += 1;
    waiter.placeInQueue = queue.places.append(waiter);
    queue.byLease.set(wait.lease, waiter);
    let places = this.#byLease.get(wait.lease);
    if (places === undefined) {
      places = new Places();
      this.#byLease.set(wait.lease, places);
    }
    waiter.placeOfLease = places.chain.append(waiter);
    this.#waiterCount += 1;
    return waiter;
  }

  /** A command does not wait any more. Its place goes with its last ask, and those behind it move up. Nothing when it is not there. */
  remove(id: WaitId): void {
    const ask = this.#asks.get(id);
    if (ask === undefined) return;
    const { waiter, row } = ask;
    this.#asks.delete(id);
    this.#wheel.disarm(row);
    this.#asksByRow.set(row, null);
    this.#rows.free(row);
    waiter.asks.remove(ask.place!);
    waiter.queue.askCount -= 1;
    if (waiter.asks.count === 0) this.#leave(waiter);
  }

  #leave(waiter: Waiter): void {
    const { queue, lease } = waiter;
    const wasFirst = queue.places.first?.item === waiter;
    const places = this.#byLease.get(lease)!;
    const { next, previous } = waiter.placeInQueue!;
    if (next !== null) places.followed -= 1;
    else if (previous !== null) this.#byLease.get(previous.item.lease)!.followed -= 1;
    queue.places.remove(waiter.placeInQueue!);
    queue.byLease.delete(lease);
    places.chain.remove(waiter.placeOfLease!);
    if (places.chain.count === 0) this.#byLease.delete(lease);
    this.#waiterCount -= 1;
    if (queue.places.count === 0) {
      this.settle(queue);
      this.#queues[queue.databaseIndex]!.delete(queue.key);
    } else if (wasFirst) {
      this.#makeReady(queue);
    }
  }

  /** Something happened to a key: whoever waits for it may get it now. */
  touch(databaseIndex: number, key: ByteString): void {
    const queue = this.queue(databaseIndex, key);
    if (queue !== null) this.#makeReady(queue);
  }

  /** All keys of a database went. */
  touchAll(databaseIndex: number): void {
    for (const queue of this.queues(databaseIndex)) this.#makeReady(queue);
  }

  #makeReady(queue: Queue): void {
    if (queue.ready === null) queue.ready = this.#ready.append(queue);
  }

  /** The queue was looked at: its first waiter has to go on waiting. */
  settle(queue: Queue): void {
    if (queue.ready === null) return;
    this.#ready.remove(queue.ready);
    queue.ready = null;
  }

  // Time ------------------------------------------------------------------------------------------------------------

  /** When `due` is to be called next, monotonic milliseconds; Infinity when no wait ends by time. May lie in the past. */
  nextDueMs(): number {
    return this.#wheel.nextDueMs();
  }

  /** Up to `limit` commands whose time is over; bounded work, see `TimerWheel.due`. They wait on until they are removed. */
  due(nowMs: number, limit: number): readonly WaitId[] {
    const rows: number[] = [];
    this.#wheel.due(nowMs, limit, rows);
    return rows.map((row) => this.#asksByRow.get(row)!.id);
  }

  /** True from the deadline of a blocked command on. */
  isPast(id: WaitId, nowMs: number): boolean {
    const ask = this.#asks.get(id);
    return ask !== undefined && this.#deadlines.get(ask.row, DEADLINE) <= nowMs;
  }

  /** Throws InvariantError when something in here does not fit together. For tests. */
  checkInvariants(isAlive: (lease: LeaseRow) => boolean): void {
    let waiters = 0;
    let asks = 0;
    for (const queues of this.#queues) {
      for (const [key, queue] of queues) {
        invariant(queue.key === key && queue.places.count > 0, "a queue has a waiter");
        invariant(queue.byLease.size === queue.places.count, "a lease has one place in a queue");
        let order = 0;
        for (const waiter of queue.places) {
          invariant(waiter.order > order, "places are in the order of their coming");
          order = waiter.order;
          invariant(queue.byLease.get(waiter.lease) === waiter, "a place is found by its lease");
          invariant(isAlive(waiter.lease), "a waiter's lease is alive");
          invariant(waiter.asks.count > 0, "a waiter has an ask");
          waiters += 1;
          asks += waiter.asks.count;
        }
      }
    }
    let places = 0;
    for (const { chain, followed } of this.#byLease.values()) {
      places += chain.count;
      const counted = [...chain].filter((waiter) => waiter.placeInQueue?.next !== null).length;
      invariant(counted === followed, "a lease knows how often somebody waits behind it");
    }
    invariant(waiters === this.#waiterCount && places === waiters, "waiters are counted");
    invariant(asks === this.#asks.size && asks === this.#rows.rowsUsed, "asks are counted");
    this.#wheel.checkInvariants();
  }
}
