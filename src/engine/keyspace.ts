import type { Command } from "./command.js";
import type { Draft } from "./draft.js";
import { noLease } from "./errors.js";
import { compileGlob } from "./glob.js";
import { NO_KEY, type KeyRow, type KeyTable } from "./key-table.js";
import type { LeaseRow } from "./lease-table.js";
import { EXPIRIES_PER_TURN_MAX } from "./limits.js";
import { OK, StatusReply, type ByteString, type Reply } from "./reply.js";
import { scanRows } from "./scan.js";

/**
 * The rules of keys: Redis's commands on names, whoever holds the keys. Like `lease.ts`, each function answers one command and changes
 * nothing. What is about values and times is in `strings.ts`.
 */

type CommandOf<K extends Command["kind"]> = Extract<Command, { kind: K }>;

const TYPE_STRING = new StatusReply("string");
const TYPE_NONE = new StatusReply("none");

export function getKey(draft: Draft, key: ByteString): Reply {
  const row = draft.readKey(key);
  return row === NO_KEY ? null : draft.keys.value(row);
}

/** A key named twice counts twice, as in Redis. */
export function countExisting(draft: Draft, keys: readonly ByteString[]): Reply {
  let count = 0;
  for (const key of keys) {
    if (draft.readKey(key) !== NO_KEY) count += 1;
  }
  return count;
}

export function deleteKeys(draft: Draft, keys: readonly ByteString[]): Reply {
  let count = 0;
  for (const key of keys) {
    const row = draft.findKey(key);
    if (row === NO_KEY) continue;
    draft.takeKey(row, "deleted");
    count += 1;
  }
  return count;
}

export function keyType(draft: Draft, key: ByteString): Reply {
  return draft.readKey(key) === NO_KEY ? TYPE_NONE : TYPE_STRING;
}

// The whole database ------------------------------------------------------------------------------------------------

export function listKeys(draft: Draft, pattern: ByteString): Reply {
  const { keys } = draft;
  seeAllKeys(draft);
  const matches = pattern === "*" ? null : compileGlob(pattern);
  const names: ByteString[] = [];
  for (let end = keys.rows.skipUnused(keys.rows.rowsEnd); end > 0; end = keys.rows.skipUnused(end - 1)) {
    const row = end - 1;
    if (!isKey(keys, row) || !draft.isListed(row)) continue;
    const name = keys.name(row);
    if (matches === null || matches(name)) names.push(name);
  }
  return names;
}

export function scanKeys(draft: Draft, command: CommandOf<"key-scan">): Reply {
  const { keys } = draft;
  seeAllKeys(draft);
  const matches = command.match === null ? null : compileGlob(command.match);
  const isWanted = command.type === null || command.type.toLowerCase() === TYPE_STRING.text;
  const names: ByteString[] = [];
  const cursor = scanRows(keys.rows, command.cursor, command.count, (row) => {
    if (!isKey(keys, row) || !draft.isHeld(row)) return false;
    const name = keys.name(row);
    if (isWanted && (matches === null || matches(name))) names.push(name);
    return true;
  });
  return [String(cursor), names];
}

/** Exact but in an expiry storm: leases past their deadline beyond what one turn may end are still counted. */
export function countKeys(draft: Draft): Reply {
  seeAllKeys(draft);
  const due: LeaseRow[] = [];
  draft.deadlines.peekDue(draft.nowMs, EXPIRIES_PER_TURN_MAX, due);
  let count = draft.keys.liveCount;
  const left = new Set<KeyRow>();
  for (const row of due) {
    if (!draft.isAlive(row)) count -= exclusiveCount(draft, row, left);
  }
  // What a dead lease shares goes only if nobody else holds it.
  for (const row of left) if (!draft.isHeld(row)) count -= 1;
  return count;
}

/** Keys that a lease holds alone; those that it shares are added to `shared`. */
function exclusiveCount({ keys }: Draft, lease: LeaseRow, shared: Set<KeyRow>): number {
  const count = keys.countOf(lease);
  if (keys.memberCount === 0) return count;
  let members = 0;
  for (let left = count, row = keys.firstOf(lease); left > 0; left -= 1, row = keys.nextOf(row)) {
    if (!keys.isMember(row)) continue;
    members += 1;
    shared.add(keys.find(keys.name(row)));
  }
  return count - members;
}

/** Whether a row stands for a key, held or ended. */
function isKey(keys: KeyTable, row: KeyRow): boolean {
  return !keys.isFree(row) && !keys.isMember(row);
}

/** Any key: from a row drawn at random, or else the nearest before it, then from the end. */
export function randomKey(draft: Draft, fraction: number): Reply {
  const { rows } = draft.keys;
  seeAllKeys(draft);
  const start = Math.min(Math.floor(fraction * rows.rowsEnd) + 1, rows.rowsEnd);
  return lastKeyBelow(draft, start, 0) ?? lastKeyBelow(draft, rows.rowsEnd, start);
}

/** The key in the last row of [start, end) that is one. */
function lastKeyBelow(draft: Draft, end: number, start: number): ByteString | null {
  const { keys } = draft;
  for (let next = keys.rows.skipUnused(end); next > start; next = keys.rows.skipUnused(next - 1)) {
    const row = next - 1;
    if (isKey(keys, row) && draft.isListed(row)) return keys.name(row);
  }
  return null;
}

/** Who waits for a key of this database gets it, as after any other end; who waits by a lease that ends is told. */
export function flushDatabase(draft: Draft): Reply {
  draft.add({ kind: "flush-database", databaseIndex: draft.databaseIndex });
  return OK;
}

export function flushAll(draft: Draft): Reply {
  draft.add({ kind: "flush-all", by: draft.owner });
  const { leases } = draft.state;
  for (const id of draft.waiters.ids()) {
    const waiter = draft.waiters.waiterOf(id);
    if (waiter !== null) draft.wake({ waitId: id, reply: noLease(leases.id(waiter.lease)) });
  }
  return OK;
}

/** What is listed or counted reveals the newest change of any key here. */
function seeAllKeys(draft: Draft): void {
  draft.see(draft.keys.anyChangedAt);
}
