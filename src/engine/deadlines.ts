import type { Float64Records } from "./columns.js";
import { invariant } from "./invariant.js";
import { CURRENT_TTL, DEADLINE, ON_GRACE, type LeaseRow, type LeaseTable } from "./lease-table.js";
import { SPREAD_MS_MAX, SPREAD_TTL_FRACTION } from "./limits.js";
import { TimerWheel, UNREACHABLE_MS } from "./timer-wheel.js";

/**
 * What only the primary knows: when each lease ends. Never on disk, never sent.
 *
 *   deadline = now + ttl + padding          padding = ttl * clockErrorPerMille / 1000, rounded up
 *
 * The padding is there because a client whose clock is slower than ours still believes in its lease when ours says that the TTL
 * is over; no answer shows it. Remaining times are rounded down, so an answer never promises more than is left.
 *
 * Invariants:
 *  - a lease without a deadline (Infinity: loaded, not yet rebuilt) does not end
 *  - a deadline is never moved back but by `start`: a shorter TTL that the client asked for
 *  - the TTL here is at most the durable one
 */

/** Deadlines are kept in steps of 1/1024 ms, rounded up: then sums and differences of them are exact, for 250 years. */
const STEPS_PER_MS = 1024;

export class Deadlines {
  readonly #leases: LeaseTable;
  /** The deadline, the TTL that a keep-alive renews by, and 1 while the lease lives on the grace of a take-over. */
  readonly #numbers: Float64Records;
  readonly #wheel: TimerWheel;
  readonly #clockErrorPerMille: number;
  #rebuiltRows = 0;
  #rebuildNowMs = 0;

  constructor(leases: LeaseTable, clockErrorPerMille: number) {
    this.#leases = leases;
    this.#numbers = leases.numbers;
    this.#clockErrorPerMille = clockErrorPerMille;
    this.#wheel = new TimerWheel(leases.numbers, DEADLINE);
    for (const column of this.#wheel.columns) leases.rows.follow(column);
  }

  /** The TTL that a keep-alive renews by, in milliseconds. */
  ttlMs(row: LeaseRow): number {
    return this.#numbers.get(row, CURRENT_TTL);
  }

  isOnGrace(row: LeaseRow): boolean {
    return this.#numbers.get(row, ON_GRACE) !== 0;
  }

  /** True from the deadline on: the lease is dead, whether or not the tick has come. */
  isPast(row: LeaseRow, nowMs: number): boolean {
    return this.#numbers.get(row, DEADLINE) <= nowMs;
  }

  /** How long ago the deadline was, in whole milliseconds. */
  lateMs(row: LeaseRow, nowMs: number): number {
    return Math.max(0, Math.floor(nowMs - this.#numbers.get(row, DEADLINE)));
  }

  /** What a client may be told is left, in whole milliseconds: without the padding, rounded down, never negative. */
  remainingMs(row: LeaseRow, nowMs: number): number {
    const ttlMs = this.#numbers.get(row, CURRENT_TTL);
    const leftMs = this.#numbers.get(row, DEADLINE) - this.#paddingMs(ttlMs) - nowMs;
    return Math.max(0, Math.floor(Math.min(ttlMs, leftMs)));
  }

  /** A lease begins, or begins anew with another TTL, from now. The only way to an earlier deadline. */
  start(row: LeaseRow, ttlMs: number, nowMs: number): void {
    this.#numbers.set(row, CURRENT_TTL, ttlMs);
    this.#numbers.set(row, DEADLINE, this.#deadlineFor(ttlMs, nowMs));
    this.#numbers.set(row, ON_GRACE, 0);
    this.#wheel.arm(row, nowMs);
  }

  /** The keep-alive: the full TTL from now. A few loads and a store in one place. */
  renew(row: LeaseRow, nowMs: number): void {
    this.#renewFor(row, this.#numbers.get(row, CURRENT_TTL), nowMs);
  }

  /** As `renew`, and at least `lifeMs` from now, which is at most the durable TTL. */
  renewAtLeast(row: LeaseRow, lifeMs: number, nowMs: number): void {
    this.#renewFor(row, Math.max(lifeMs, this.#numbers.get(row, CURRENT_TTL)), nowMs);
  }

  /** The lease has ended. */
  cancel(row: LeaseRow): void {
    this.#wheel.disarm(row);
    this.#numbers.set(row, DEADLINE, Infinity);
  }

  /** All leases end at once; to be called before the table of leases is cleared. */
  clear(): void {
    this.#wheel.clear();
  }

  /** When `due` is to be called next, monotonic milliseconds; Infinity when nothing is armed. May lie in the past. */
  nextDueMs(): number {
    return this.#wheel.nextDueMs();
  }

  /** Leases past their deadline; see `TimerWheel.due`. */
  due(nowMs: number, limit: number, rows: LeaseRow[]): void {
    this.#wheel.due(nowMs, limit, rows);
  }

  /** Leases past their deadline, looked up without a change; see `TimerWheel.peek`. */
  peekDue(nowMs: number, limit: number, rows: LeaseRow[]): void {
    this.#wheel.peek(nowMs, limit, rows);
  }

  /** The role was taken: every lease of the table is to get its full TTL from `nowMs` on. */
  beginRebuild(nowMs: number): void {
    this.#rebuiltRows = 0;
    this.#rebuildNowMs = nowMs;
  }

  /**
   * Gives up to `limit` leases their deadline: the full TTL by this node's own clock, whatever was left of it elsewhere, and a
   * little more, so that leases granted at one moment do not all fall due at one moment. Only ever later, never earlier.
   * Returns true when all have one.
   */
  rebuildSome(limit: number): boolean {
    const end = Math.min(this.#leases.rows.rowsEnd, this.#rebuiltRows + limit);
    for (let row = this.#rebuiltRows; row < end; row += 1) {
      if (!this.#leases.isLive(row)) continue;
      const ttlMs = this.#leases.ttlMs(row);
      this.start(row, ttlMs, this.#rebuildNowMs + spreadMs(row, ttlMs));
      this.#numbers.set(row, ON_GRACE, 1);
    }
    this.#rebuiltRows = end;
    return end === this.#leases.rows.rowsEnd;
  }

  /** Throws InvariantError unless the wheel holds exactly the live leases that can end. For tests. */
  checkInvariants(): void {
    const armed = this.#wheel.checkInvariants();
    for (const row of armed) invariant(this.#leases.isLive(row), "the wheel holds live leases only");
    for (let row = 0; row < this.#leases.rows.rowsEnd; row += 1) {
      if (!this.#leases.isLive(row)) continue;
      invariant(
        this.#numbers.get(row, CURRENT_TTL) <= this.#leases.ttlMs(row),
        "no TTL is promised beyond the durable one",
      );
      if (this.#numbers.get(row, DEADLINE) < UNREACHABLE_MS) {
        invariant(armed.has(row), "a live lease that can end is in the wheel");
      }
    }
  }

  /** A deadline that lies later already stays: somebody may have been promised it, and the wheel looks for it there. */
  #renewFor(row: LeaseRow, lifeMs: number, nowMs: number): void {
    const deadlineMs = this.#deadlineFor(lifeMs, nowMs);
    if (deadlineMs > this.#numbers.get(row, DEADLINE)) this.#numbers.set(row, DEADLINE, deadlineMs);
    if (this.#numbers.get(row, ON_GRACE) !== 0) this.#numbers.set(row, ON_GRACE, 0);
  }

  #deadlineFor(lifeMs: number, nowMs: number): number {
    return Math.ceil(nowMs * STEPS_PER_MS) / STEPS_PER_MS + lifeMs + this.#paddingMs(lifeMs);
  }

  #paddingMs(ttlMs: number): number {
    return Math.ceil((ttlMs * this.#clockErrorPerMille) / 1000);
  }
}

/** Multiples of the golden ratio, modulo one, fill the interval evenly however many there are. */
const GOLDEN_FRACTION = 0.618_033_988_749_894_9;

/** The delay of one lease within the spread that its TTL allows, in milliseconds. */
function spreadMs(row: LeaseRow, ttlMs: number): number {
  return ((row * GOLDEN_FRACTION) % 1) * Math.min(ttlMs * SPREAD_TTL_FRACTION, SPREAD_MS_MAX);
}
