import type { LockMode } from "./command.js";
import { EXCLUSIVE, type Draft } from "./draft.js";
import { quoteForError } from "./errors.js";
import { NO_KEY } from "./key-table.js";
import type { LeaseRow } from "./lease-table.js";
import { DATABASE_COUNT, DEADLOCK_STEPS_MAX } from "./limits.js";
import type { ByteString } from "./reply.js";
import type { Queue, Waiter } from "./waiters.js";

/**
 * Would a lease that begins to wait close a cycle of leases that wait for each other? None of them could go on until one gave up.
 *
 * A lease that waits for a key waits for all who hold it, and for all before it in the queue. But readers do not wait for readers; and
 * nobody waits for one particular holder of a semaphore with several permits: any of them may free one. Such a wait closes no
 * cycle here, whatever it waits for in truth; it ends by its time.
 *
 * Cost. Most waits are let in by one look: a lease closes a cycle only if somebody waits for it, that is behind it in a queue or for a
 * key that it holds (its keys are gone through, or all queues, whichever are fewer). Otherwise leases are visited once each, and of every queue each place once, up to DEADLOCK_STEPS_MAX steps; a cycle that
 * is not found by then is let in.
 */

interface Step {
  readonly from: LeaseRow;
  readonly key: ByteString;
}

/** How far from its front a queue has been looked through already, for readers and for others. */
interface Seen {
  shared: number;
  others: number;
}

/** The cycle as text for people; null when there is none. `lease` is alive and about to wait for `key` in the selected database. */
export function findCycle(draft: Draft, lease: LeaseRow, key: ByteString, mode: LockMode): ByteString | null {
  if (!isWaitedFor(draft, lease)) return null;
  return new CycleSearch(draft, lease).run(key, mode);
}

/** Whether anybody waits for a key that the lease holds, or behind it; true as well when that would take too many looks to say. */
function isWaitedFor(draft: Draft, lease: LeaseRow): boolean {
  const { waiters, state } = draft;
  if (waiters.isFollowed(lease)) return true;
  const stepsEnd = waiters.steps + DEADLOCK_STEPS_MAX;
  for (let index = 0; index < DATABASE_COUNT; index += 1) {
    const queueCount = waiters.queueCount(index);
    if (queueCount === 0) continue;
    const keys = state.keys(index);
    const count = keys.countOf(lease);
    if (count > queueCount) {
      // Fewer queues than keys: look from there.
      for (const queue of waiters.queues(index)) {
        waiters.steps += 1;
        if (waiters.steps > stepsEnd) return true;
        const row = keys.find(queue.key);
        if (row !== NO_KEY && (keys.holder(row) === lease || keys.sharing(row)?.byLease.has(lease) === true))
          return true;
      }
      continue;
    }
    for (let left = count, row = keys.firstOf(lease); left > 0; left -= 1, row = keys.nextOf(row)) {
      waiters.steps += 1;
      if (waiters.steps > stepsEnd || waiters.queue(index, keys.name(row)) !== null) return true;
    }
  }
  return false;
}

class CycleSearch {
  readonly #draft: Draft;
  readonly #start: LeaseRow;
  /** How each lease was reached, itself visited or about to be. */
  readonly #reached = new Map<LeaseRow, Step>();
  readonly #toVisit: LeaseRow[] = [];
  readonly #seen = new Map<Queue, Seen>();
  readonly #holdersSeen = new Set<Queue>();
  #steps = 0;

  constructor(draft: Draft, start: LeaseRow) {
    this.#draft = draft;
    this.#start = start;
  }

  run(key: ByteString, mode: LockMode): ByteString | null {
    const { waiters, databaseIndex } = this.#draft;
    const queue = waiters.queue(databaseIndex, key);
    const found =
      (queue !== null && this.#followQueue(queue, this.#start, mode, queue.places.last?.item ?? null)) ||
      this.#followHolders(databaseIndex, key, this.#start, mode) ||
      this.#search();
    waiters.steps += this.#steps;
    return found ? this.#cycleText() : null;
  }

  #search(): boolean {
    for (let lease = this.#toVisit.pop(); lease !== undefined; lease = this.#toVisit.pop()) {
      if (this.#steps > DEADLOCK_STEPS_MAX) return false;
      for (const waiter of this.#draft.waiters.ofLease(lease)) {
        const { queue, mode } = waiter;
        if (this.#followQueue(queue, lease, mode, waiter.placeInQueue!.previous?.item ?? null)) return true;
        if (this.#holdersSeen.has(queue) && mode.kind !== "shared") continue;
        if (this.#followHolders(queue.databaseIndex, queue.key, lease, mode)) return true;
        if (mode.kind !== "shared") this.#holdersSeen.add(queue);
      }
    }
    return false;
  }

  /** From the place `last` on towards the front. */
  #followQueue(queue: Queue, from: LeaseRow, mode: LockMode, last: Waiter | null): boolean {
    let seen = this.#seen.get(queue);
    if (seen === undefined) {
      seen = { shared: 0, others: 0 };
      this.#seen.set(queue, seen);
    }
    const side = mode.kind === "shared" ? "shared" : "others";
    const seenTo = seen[side];
    if (last !== null) seen[side] = Math.max(seenTo, last.order);
    for (let link = last?.placeInQueue ?? null; link !== null && link.item.order > seenTo; link = link.previous) {
      this.#steps += 1;
      if (this.#steps > DEADLOCK_STEPS_MAX) return false;
      if (waitsFor(mode, link.item.mode) && this.#reach(link.item.lease, from, queue.key)) return true;
    }
    return false;
  }

  #followHolders(databaseIndex: number, key: ByteString, from: LeaseRow, mode: LockMode): boolean {
    const { state } = this.#draft;
    const keys = state.keys(databaseIndex);
    const row = keys.find(key);
    if (row === NO_KEY) return false;
    const sharing = keys.sharing(row);
    if (!waitsFor(mode, sharing?.mode ?? EXCLUSIVE)) return false;
    if (sharing === null) {
      const holder = keys.holder(row);
      return holder >= 0 && !state.leases.isHidden(holder) && this.#reach(holder, from, key);
    }
    for (const holder of sharing.byLease.keys()) {
      this.#steps += 1;
      if (this.#steps > DEADLOCK_STEPS_MAX) return false;
      if (this.#reach(holder, from, key)) return true;
    }
    return false;
  }

  /** True when the way has come back to where it began. */
  #reach(lease: LeaseRow, from: LeaseRow, key: ByteString): boolean {
    const { state, deadlines, nowMs } = this.#draft;
    if (!state.leases.isLive(lease) || deadlines.isPast(lease, nowMs) || this.#reached.has(lease)) return false;
    this.#reached.set(lease, { from, key });
    if (lease === this.#start) return true;
    this.#toVisit.push(lease);
    return false;
  }

  #cycleText(): ByteString {
    const { leases } = this.#draft.state;
    const name = (lease: LeaseRow): string => `'${quoteForError(leases.id(lease), NAME_CHARACTERS_MAX)}'`;
    const steps: string[] = [];
    let lease = this.#start;
    do {
      const step: Step = this.#reached.get(lease)!;
      steps.push(`${name(step.from)} waits for '${quoteForError(step.key, NAME_CHARACTERS_MAX)}' of ${name(lease)}`);
      lease = step.from;
    } while (lease !== this.#start);
    steps.reverse();
    if (steps.length <= CYCLE_SHOWN_MAX) return steps.join(", ");
    return `${steps.slice(0, CYCLE_SHOWN_MAX).join(", ")}, and ${steps.length - CYCLE_SHOWN_MAX} more`;
  }
}

const NAME_CHARACTERS_MAX = 40;
const CYCLE_SHOWN_MAX = 8;

/** Whether one who asks in a mode has to wait until another, who has or gets the key before, lets it go. */
function waitsFor(mode: LockMode, before: LockMode): boolean {
  if (before.kind === "shared") return mode.kind !== "shared";
  return before.kind !== "limit" || before.permits === 1;
}
