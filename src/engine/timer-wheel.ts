import { PriorityQueue } from "@datastructures-js/priority-queue";
import { type Column, type Float64Records, Int32Column } from "./columns.js";
import { invariant } from "./invariant.js";
import type { LeaseRow } from "./lease-table.js";

/**
 * Which leases are due? Leases lie in slots by tick; the slots that are not empty sit in a priority queue ordered by tick, so
 * that the clock jumps to the next of them and an idle server does nothing.
 *
 * A tick is 10 ms. A lease that is due within 640 ms lies in the slot of the first tick at or after its deadline, so it is offered
 * at most 10 ms late. One that is due later lies in a coarser slot: ticks are rounded down to a power of two that is at most 1/32 of
 * the time that is left, so that slots are few however many leases there are. A coarse slot comes up early, and its leases
 * move on to a finer one.
 *
 * The caller owns the true deadlines, one number per lease. A keep-alive only moves that number: when the slot of the lease comes
 * up, a lease whose deadline lies later is put into the slot of that deadline. However often it is renewed, it moves once per TTL
 * or so. Only a deadline that moved EARLIER has to be armed again.
 *
 * Example, a 10 s lease granted at 0 (its deadline with its padding is 10,020 ms):
 *
 *     time     slot comes up      left      grain        lease goes to
 *         0                     10,020 ms   16 ticks     slot of 9,920 ms
 *     9,920    9,920               100 ms    1 tick      slot of 10,020 ms
 *    10,020    10,020               0 ms                 offered
 *
 *   and if it was kept alive at 7,000 (true deadline now 17,020 ms):
 *
 *     9,920    9,920             7,100 ms    8 ticks     slot of 16,960 ms
 *
 * A slot is a ring of rows through two integer columns, so a lease lies in one slot or in none. Costs: arm and disarm O(1), no
 * allocation, plus a queue insertion when the slot is new (slots number in the hundreds, not with the leases); keep-alive
 * nothing; a lease that comes up O(1), at most four times per TTL. A slot with a million leases is taken apart piece by piece
 * where it lies. Leases that end are taken out at once: there are no stale entries to bound. Slots that were emptied so stay
 * until they come up; their number is bounded by the number of grains (32 to 64 slots per doubling of the distance).
 *
 * A lease that was offered stays in the `offered` ring until it ends, is armed anew, or comes up again with the next call. So none
 * is ever lost, whatever happened to the offer.
 *
 * Invariants:
 *  - a lease is offered only at or after its deadline
 *  - a lease that is armed lies in a slot that comes up no later than one tick after its deadline, whatever the deadline was
 *    moved to later
 */

/** Milliseconds per tick. */
export const TICK_MS = 10;

/** A lease nearer than this many ticks lies in the slot of its own tick. */
const FINE_TICKS = 64;

/** Deadlines at and beyond this are never armed: 2,200 years of uptime. */
export const UNREACHABLE_MS = 2 ** 46;

/** Leases looked at per lease that may be returned: moving one on is much cheaper than ending it. */
const EXAMINED_PER_OFFER = 8;

/** The link of a row that lies in no slot. Slots appear in links as -1 - index. */
const UNARMED = -0x8000_0000;

const OFFERED_INDEX = 0;

/** The tick of the slot for a deadline: see the head of this file. */
export function slotTick(deadlineMs: number, nowMs: number): number {
  const leftTicks = (deadlineMs - nowMs) / TICK_MS;
  if (leftTicks < FINE_TICKS) return Math.ceil(deadlineMs / TICK_MS);
  const grain = 2 ** Math.floor(Math.log2(leftTicks / (FINE_TICKS / 2)));
  return Math.floor(deadlineMs / TICK_MS / grain) * grain;
}

class Slot {
  readonly index: number;
  tick = 0;
  /** First and last row of the ring, or -1 - index of the slot itself when it is empty. */
  first: number;
  last: number;

  constructor(index: number) {
    this.index = index;
    this.first = -1 - index;
    this.last = -1 - index;
  }

  get isEmpty(): boolean {
    return this.first < 0;
  }
}

export class TimerWheel {
  readonly #numbers: Float64Records;
  readonly #deadlineField: number;
  readonly #next = new Int32Column(UNARMED);
  readonly #previous = new Int32Column(UNARMED);
  readonly #offered = new Slot(OFFERED_INDEX);
  readonly #slots: Slot[] = [this.#offered];
  readonly #spare: Slot[] = [];
  readonly #byTick = new Map<number, Slot>();
  readonly #queue = new PriorityQueue<Slot>((a, b) => a.tick - b.tick);

  /** `numbers` holds the true deadline of each row in its field `deadlineField`, in monotonic milliseconds. */
  constructor(numbers: Float64Records, deadlineField: number) {
    this.#numbers = numbers;
    this.#deadlineField = deadlineField;
  }

  /** The columns that have to grow with the table of leases. */
  get columns(): readonly Column[] {
    return [this.#next, this.#previous];
  }

  /** Slots in the queue, empty ones included. */
  get slotCount(): number {
    return this.#byTick.size;
  }

  isArmed(row: LeaseRow): boolean {
    return this.#next.get(row) !== UNARMED;
  }

  /** Puts a lease into the slot of its true deadline, wherever it lay. */
  arm(row: LeaseRow, nowMs: number): void {
    this.disarm(row);
    const deadlineMs = this.#deadlineMs(row);
    if (deadlineMs < UNREACHABLE_MS) this.#append(this.#slotAt(slotTick(deadlineMs, nowMs)), row);
  }

  /** Takes a lease out of the wheel; nothing when it is not in it. */
  disarm(row: LeaseRow): void {
    const next = this.#next.get(row);
    if (next === UNARMED) return;
    const previous = this.#previous.get(row);
    if (next >= 0) this.#previous.set(next, previous);
    else this.#slots[-1 - next]!.last = previous;
    if (previous >= 0) this.#next.set(previous, next);
    else this.#slots[-1 - previous]!.first = next;
    this.#next.set(row, UNARMED);
  }

  /** When `due` is to be called next; Infinity when the wheel is empty. May lie in the past. */
  nextDueMs(): number {
    if (!this.#offered.isEmpty) return -Infinity;
    for (;;) {
      const slot = this.#queue.front();
      if (slot === null) return Infinity;
      if (!slot.isEmpty) return slot.tick * TICK_MS;
      this.#retire();
    }
  }

  /**
   * Adds up to `limit` leases to `rows` whose deadline is at or before `nowMs`. Bounded work: it may return fewer, even none, while
   * more are due; `nextDueMs` tells.
   */
  due(nowMs: number, limit: number, rows: LeaseRow[]): void {
    let budget = limit * EXAMINED_PER_OFFER;
    // Offered before, and neither ended nor armed anew since: renewed meanwhile, or the offer came to nothing.
    for (let row = this.#offered.first; row >= 0 && rows.length < limit && budget > 0; budget -= 1) {
      const next = this.#next.get(row);
      if (this.#deadlineMs(row) <= nowMs) rows.push(row);
      else this.arm(row, nowMs);
      row = next;
    }
    while (budget > 0 && rows.length < limit) {
      const slot = this.#queue.front();
      if (slot === null || slot.tick * TICK_MS > nowMs) return;
      for (; !slot.isEmpty && rows.length < limit && budget > 0; budget -= 1) {
        const row = slot.first;
        this.disarm(row);
        if (this.#deadlineMs(row) <= nowMs) {
          this.#append(this.#offered, row);
          rows.push(row);
        } else {
          this.arm(row, nowMs);
        }
      }
      if (slot.isEmpty) this.#retire();
    }
  }

  /**
   * Adds up to `limit` leases to `rows` whose deadline is at or before `nowMs`, and changes nothing. Looks at the slots that are
   * up and at the one that comes up with the next tick: a deadline lies up to one tick before its slot.
   */
  peek(nowMs: number, limit: number, rows: LeaseRow[]): void {
    if (this.nextDueMs() >= nowMs + TICK_MS) return;
    let budget = limit * EXAMINED_PER_OFFER;
    for (const slot of [this.#offered, ...this.#byTick.values()]) {
      if (slot !== this.#offered && slot.tick * TICK_MS >= nowMs + TICK_MS) continue;
      for (let row = slot.first; row >= 0 && rows.length < limit && budget > 0; row = this.#next.get(row)) {
        if (this.#deadlineMs(row) <= nowMs) rows.push(row);
        budget -= 1;
      }
    }
  }

  /** The rows of all slots, each once. Throws InvariantError when links, slots or times do not fit together. For tests. */
  checkInvariants(): ReadonlySet<LeaseRow> {
    const rows = new Set<LeaseRow>();
    for (const slot of [this.#offered, ...this.#byTick.values()]) {
      let previous = -1 - slot.index;
      for (let row = slot.first; row >= 0; row = this.#next.get(row)) {
        invariant(!rows.has(row), "a row lies in one slot");
        rows.add(row);
        invariant(this.#previous.get(row) === previous, "links agree in both directions");
        invariant(
          slot === this.#offered || slot.tick * TICK_MS < this.#deadlineMs(row) + TICK_MS,
          "a slot comes up no later than one tick after the deadlines of its rows",
        );
        previous = row;
      }
      invariant(slot.last === previous, "a slot knows its last row");
    }
    invariant(this.#queue.size() === this.#byTick.size, "every slot is in the queue");
    return rows;
  }

  /** Empties the wheel. The columns of its rows are gone or will be written before they are read. */
  clear(): void {
    for (const slot of this.#byTick.values()) this.#release(slot);
    this.#byTick.clear();
    this.#queue.clear();
    this.#offered.first = this.#offered.last = -1 - OFFERED_INDEX;
  }

  #deadlineMs(row: LeaseRow): number {
    return this.#numbers.get(row, this.#deadlineField);
  }

  #slotAt(tick: number): Slot {
    let slot = this.#byTick.get(tick);
    if (slot === undefined) {
      slot = this.#spare.pop();
      if (slot === undefined) {
        slot = new Slot(this.#slots.length);
        this.#slots.push(slot);
      }
      slot.tick = tick;
      this.#byTick.set(tick, slot);
      this.#queue.enqueue(slot);
    }
    return slot;
  }

  #append(slot: Slot, row: LeaseRow): void {
    const self = -1 - slot.index;
    const last = slot.last;
    this.#next.set(row, self);
    this.#previous.set(row, last);
    if (last >= 0) this.#next.set(last, row);
    else slot.first = row;
    slot.last = row;
  }

  /** Removes the front slot, which is empty, from the queue. */
  #retire(): void {
    const slot = this.#queue.dequeue();
    if (slot === null) return;
    this.#byTick.delete(slot.tick);
    this.#release(slot);
  }

  #release(slot: Slot): void {
    slot.first = slot.last = -1 - slot.index;
    this.#spare.push(slot);
  }
}
