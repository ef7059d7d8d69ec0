import type { Command, LockMode } from "./command.js";
import { findCycle } from "./deadlock.js";
import { EXCLUSIVE, type Draft } from "./draft.js";
import { deadlock, limitReached, noLease, wrongMode } from "./errors.js";
import { NO_KEY, type KeyRow, type Sharing } from "./key-table.js";
import { NO_LEASE, type LeaseRow } from "./lease-table.js";
import { hold, refuseHold } from "./lease.js";
import { EXPIRIES_PER_TURN_MAX, LOCK_INFO_LISTED_MAX } from "./limits.js";
import { MapReply, type ByteString, type ErrorReply, type Reply } from "./reply.js";
import type { Queue, Waiter } from "./waiters.js";

/**
 * The rules of locks. A lock is a key that leases hold, the same key that GRANT, ATTACH and the string commands see. Like `lease.ts`,
 * each function answers one command and changes nothing.
 *
 * Modes. Exclusive (also what GRANT and ATTACH give) and SHARED go together as a lock for writers and readers: either waits for
 * the other. LIMIT n is a semaphore; a key is either that, always with the same n, or a lock for readers and writers: to ask for it the other
 * way while it is held is WRONGMODE, as is asking in another mode for what the same lease holds or waits for: nothing is upgraded. A
 * plain key has no mode: whoever asks waits until it is gone.
 *
 * Order. Who comes first is first: while somebody waits, nobody who comes later is let past, readers not past a waiting writer
 * either. Only SET, GRANT and ATTACH ask for no order: they get a key that is free, and never wait.
 *
 * The same lease again. It has the key: the same token at once. It waits for it: the new command joins it in its place, and all of them get the
 * same answer, so that a client that lost its connection does not lose its turn. A try without BLOCK is answered nil meanwhile.
 *
 * A lease that dies leaves every queue at once, its commands get NOLEASE. Whoever is passed a key gets it with the next revision
 * after the one that set it free, in the same batch: after a crash both have happened or neither.
 */

type CommandOf<K extends Command["kind"]> = Extract<Command, { kind: K }>;

// Acquire -----------------------------------------------------------------------------------------------------------

export function acquireLock(draft: Draft, command: CommandOf<"lock-acquire">): Reply {
  const { key, id, mode, value } = command;
  const lease = draft.findLease(id);
  if (lease === NO_LEASE) return noLease(id);
  const own = draft.findHolding(key, lease);
  if (own !== NO_KEY) return holdAgain(draft, own, command);

  const queue = draft.waiters.queue(draft.databaseIndex, key);
  const place = queue?.byLease.get(lease) ?? null;
  if (place !== null && !isSameMode(place.mode, mode)) return wrongMode(key, modeText(place.mode));
  const fit = fitOf(draft, key, mode);
  if (fit === "other-mode") return wrongMode(key, modeText(heldMode(draft, key)));
  if (fit === "fits") {
    const first = queue === null ? null : firstAlive(draft, queue);
    if (first === null || first === place) {
      return refuseHold(draft, lease, true) ?? hold(draft, id, key, value ?? id, mode);
    }
  }
  return command.blockMs === null ? null : wait(draft, lease, place, command);
}

/** The lease has the key already: the same token, and the value that it names now. */
function holdAgain(draft: Draft, own: KeyRow, { key, mode, value }: CommandOf<"lock-acquire">): Reply {
  const { keys } = draft;
  const held = draft.modeOf(own);
  if (!isSameMode(held, mode)) return wrongMode(key, modeText(held));
  if (value !== null && value !== keys.value(own)) draft.changeValue(own, value, "set");
  return keys.token.get(own);
}

/** The command waits; its reply here means nothing. Or the error that it is refused with. */
function wait(
  draft: Draft,
  lease: LeaseRow,
  place: Waiter | null,
  { key, mode, value, blockMs }: CommandOf<"lock-acquire">,
): ErrorReply | null {
  const { waiters, databaseIndex } = draft;
  const { waitersMax, waitersPerKeyMax } = draft.limits;
  if (waiters.count >= waitersMax) return limitReached("waiting commands", waitersMax);
  const inQueue = waiters.queue(databaseIndex, key)?.askCount ?? 0;
  if (inQueue >= waitersPerKeyMax) return limitReached("commands waiting for one key", waitersPerKeyMax);
  if (place === null) {
    const cycle = findCycle(draft, lease, key, mode);
    if (cycle !== null) return deadlock(cycle);
  }
  const deadlineMs = blockMs === null || blockMs === 0 ? Infinity : draft.nowMs + blockMs;
  draft.wait({ waitId: waiters.nextWaitId, databaseIndex, key, lease, mode, value, deadlineMs });
  return null;
}

/** The first in a queue whose lease is alive; those before it are ended by this look. */
function firstAlive(draft: Draft, queue: Queue): Waiter | null {
  for (let link = queue.places.first; link !== null; link = link.next) {
    draft.waiters.steps += 1;
    if (draft.isAlive(link.item.lease)) return link.item;
  }
  return null;
}

type Fit = "fits" | "held" | "other-mode";

/** Whether a key of the selected database could be held once more in this mode, were there no queue. */
function fitOf(draft: Draft, key: ByteString, mode: LockMode): Fit {
  const held = draft.findKey(key);
  if (held === NO_KEY) return "fits";
  if (draft.isPlain(held)) return "held";
  const present = draft.modeOf(held);
  if (present.kind !== "limit" && mode.kind !== "limit") {
    return present.kind === "shared" && mode.kind === "shared" ? "fits" : "held";
  }
  if (!isSameMode(present, mode) || mode.kind !== "limit") return "other-mode";
  const sharing = draft.keys.sharing(draft.keys.find(key))!;
  return sharing.byLease.size < mode.permits || hasDeadHolder(draft, sharing) ? "fits" : "held";
}

/** Whether a holder of the selected database's key is past its deadline, without a look at the others. Ends it, and its like. */
function hasDeadHolder(draft: Draft, { byLease }: Sharing): boolean {
  const due: LeaseRow[] = [];
  draft.deadlines.peekDue(draft.nowMs, EXPIRIES_PER_TURN_MAX, due);
  let isAnyDead = false;
  for (const row of due) {
    if (byLease.has(row) && !draft.isAlive(row)) isAnyDead = true;
  }
  return isAnyDead;
}

function heldMode(draft: Draft, key: ByteString): LockMode {
  const held = draft.findKey(key);
  return held === NO_KEY ? EXCLUSIVE : draft.modeOf(held);
}

function isSameMode(a: LockMode, b: LockMode): boolean {
  return a.kind === b.kind && (a.kind !== "limit" || b.kind !== "limit" || a.permits === b.permits);
}

function modeText(mode: LockMode): string {
  return mode.kind === "limit" ? `limit ${mode.permits}` : mode.kind;
}

// Hand-over ---------------------------------------------------------------------------------------------------------

/**
 * Looks at a queue that something happened to: its first waiter gets the key, if that fits, or is told why not. One at a time, so that
 * every holder has a token of its own. Returns false when it has to go on waiting.
 */
export function handOver(draft: Draft, queue: Queue): boolean {
  const { leases } = draft.state;
  const waiter = queue.places.first!.item;
  const { lease, mode } = waiter;
  draft.waiters.steps += 1;
  if (!draft.isAlive(lease)) return true;
  const own = draft.findHolding(queue.key, lease);
  if (own !== NO_KEY) {
    // By another way: GRANT, ATTACH, or a second try that met the key free. Whoever asked that way has the answer: it is no grant that
    // could go to the next should these waiters be gone.
    const held = draft.modeOf(own);
    const reply = isSameMode(held, mode) ? draft.keys.token.get(own) : wrongMode(queue.key, modeText(held));
    draft.wakeAll(waiter, reply);
    return true;
  }
  if (fitOf(draft, queue.key, mode) !== "fits") return false;
  const refusal = refuseHold(draft, lease, true);
  if (refusal !== null) {
    draft.wakeAll(waiter, refusal);
    return true;
  }
  const id = leases.id(lease);
  grantTo(draft, waiter, hold(draft, id, queue.key, waiter.value ?? id, mode));
  return true;
}

function grantTo(draft: Draft, { asks, queue, lease }: Waiter, token: number): void {
  const { databaseIndex, key } = queue;
  const grant = { databaseIndex, key, leaseId: draft.state.leases.id(lease), token };
  for (const ask of asks) draft.wake({ waitId: ask.id, reply: token, grant });
}

/** Commands leave their queues: their time is over, or nobody waits for their answer any more. */
export function endWaits(draft: Draft, { waitIds, reply }: CommandOf<"wait-end">): Reply {
  const { waiters } = draft;
  for (const waitId of waitIds) {
    const waiter = waiters.waiterOf(waitId);
    if (waiter === null) continue;
    const { databaseIndex, key } = waiter.queue;
    // That it waited in vain reveals who has the key.
    const table = draft.state.keys(databaseIndex);
    const row = table.find(key);
    draft.see(row === NO_KEY ? table.flushedAt : table.changedAt.get(row));
    draft.wake({ waitId, reply });
  }
  return null;
}

// Release -----------------------------------------------------------------------------------------------------------

/** With a token only what was got under that token, so that a late release does no harm when the lease has the key again. */
export function releaseLock(draft: Draft, { key, id, token }: CommandOf<"lock-release">): Reply {
  const lease = draft.findLease(id);
  if (lease === NO_LEASE) return 0;
  const own = draft.findHolding(key, lease);
  if (own === NO_KEY || (token !== null && draft.keys.token.get(own) !== token)) return 0;
  draft.endKey(own, "released");
  return 1;
}

// Information -------------------------------------------------------------------------------------------------------

export function checkLock(draft: Draft, { key, token }: CommandOf<"lock-check">): Reply {
  const { keys } = draft;
  const row = keys.find(key);
  if (row === NO_KEY) {
    draft.see(keys.flushedAt);
    return 0;
  }
  draft.see(keys.changedAt.get(row));
  const sharing = keys.sharing(row);
  const held = sharing === null ? row : (sharing.byToken.get(token) ?? NO_KEY);
  return held !== NO_KEY && draft.isHolding(held) && keys.token.get(held) === token ? 1 : 0;
}

/** Who holds a key and who waits for it; the lists are cut, the totals are not. nil when there is neither. */
export function lockInfo(draft: Draft, key: ByteString): Reply {
  const held = draft.findKey(key);
  const queue = draft.waiters.queue(draft.databaseIndex, key);
  const waiters = queue === null ? [] : listWaiters(draft, queue);
  if (held === NO_KEY && waiters.length === 0) return null;
  const mode = held === NO_KEY ? null : draft.modeOf(held);
  const { holders, total } = listHolders(draft, key, held);
  return new MapReply([
    ["mode", held !== NO_KEY && draft.isPlain(held) ? "string" : (mode?.kind ?? "free")],
    ["limit", mode?.kind === "limit" ? mode.permits : null],
    ["holders", holders],
    ["holders-total", total],
    ["waiters", waiters],
    ["waiters-total", queue?.places.count ?? 0],
  ]);
}

function listHolders(draft: Draft, key: ByteString, first: KeyRow): { holders: readonly Reply[]; total: number } {
  const { keys } = draft;
  if (first === NO_KEY) return { holders: [], total: 0 };
  if (!keys.isMember(first)) return { holders: [holderReply(draft, first)], total: 1 };
  const sharing = keys.sharing(keys.find(key))!;
  const holders: Reply[] = [];
  let dead = 0;
  for (const member of sharing.byLease.values()) {
    if (holders.length === LOCK_INFO_LISTED_MAX) break;
    if (draft.isHolding(member)) holders.push(holderReply(draft, member));
    else dead += 1;
  }
  return { holders, total: sharing.byLease.size - dead };
}

function holderReply(draft: Draft, row: KeyRow): Reply {
  const { keys } = draft;
  const { leases } = draft.state;
  const lease = keys.holder(row);
  const sinceUnixMs = keys.sinceUnixMs(row);
  return new MapReply([
    ["id", draft.isPlain(row) ? null : leases.id(lease)],
    ["token", keys.token.get(row)],
    ["value", keys.value(row)],
    ["remaining", lease === leases.forever ? -1 : draft.deadlines.remainingMs(lease, draft.nowMs)],
    ["since", sinceUnixMs === 0 ? null : sinceUnixMs],
  ]);
}

function listWaiters(draft: Draft, queue: Queue): readonly Reply[] {
  const listed: Reply[] = [];
  for (let link = queue.places.first; link !== null && listed.length < LOCK_INFO_LISTED_MAX; link = link.next) {
    const { lease, mode, sinceMs } = link.item;
    if (!draft.isAlive(lease)) continue;
    listed.push(
      new MapReply([
        ["id", draft.state.leases.id(lease)],
        ["mode", mode.kind],
        ["waiting", Math.max(0, Math.floor(draft.nowMs - sinceMs))],
        ["position", listed.length + 1],
      ]),
    );
  }
  return listed;
}
