import type { Command, KeyValue, LockMode } from "./command.js";
import { EXCLUSIVE, Repetition, Shortening, type Draft } from "./draft.js";
import type { EndedLeases } from "./ended-leases.js";
import { duplicateKey, leaseExists, limitReached, noLease } from "./errors.js";
import { compileGlob } from "./glob.js";
import { NO_KEY } from "./key-table.js";
import { NO_LEASE, type LeaseRow } from "./lease-table.js";
import type { LeaseRequest, Token } from "./op.js";
import { MapReply, type ByteString, type ErrorReply, type Reply } from "./reply.js";
import { scanRows } from "./scan.js";

/**
 * The rules of leases. Each function answers one command: it reads through the draft, notes what is to be done there and
 * returns the reply. Nothing changes.
 */

type CommandOf<K extends Command["kind"]> = Extract<Command, { kind: K }>;

/** What LEASE.TTL and friends answer for what is not there. */
const ABSENT = -2;

// Grant -------------------------------------------------------------------------------------------------------------

export function grantLease(draft: Draft, command: CommandOf<"lease-grant">): Reply {
  const { keys, ttlMs, request } = command;
  const twice = findDuplicate(keys);
  if (twice !== null) return duplicateKey(twice);

  const alive = command.id !== null ? draft.findLease(command.id) : findByNonce(draft, request);
  if (alive !== NO_LEASE) return repeatGrant(draft, alive, request);

  let isHeld = false;
  for (const { key } of keys) {
    if (draft.findKey(key) !== NO_KEY) isHeld = true;
  }
  if (isHeld) return null;

  const refusal = refuseGrant(draft, keys.length);
  if (refusal !== null) return refusal;

  const id = command.id ?? chooseId(draft);
  const token = draft.revision;
  draft.add({
    kind: "lease-put",
    id,
    ttlMs,
    token,
    label: command.label,
    request: request === null ? null : { nonce: request, idChosenByServer: command.id === null, ttlMs },
    grantedAtUnixMs: draft.unixMs,
    owner: draft.owner,
  });
  for (const { key, value } of keys) {
    hold(draft, id, key, value, EXCLUSIVE);
  }
  return [id, ttlMs, token];
}

/** With `*` the nonce alone finds the lease that an earlier try of the same request made. */
function findByNonce(draft: Draft, nonce: ByteString | null): LeaseRow {
  if (nonce === null) return NO_LEASE;
  const row = draft.state.leases.findByNonce(nonce);
  return row === NO_LEASE ? NO_LEASE : draft.findLease(draft.state.leases.id(row));
}

/**
 * The lease is alive already. The same request gets its first reply again, and a deadline that makes it true once more: the
 * client counts from before it sent this try.
 */
function repeatGrant(draft: Draft, row: LeaseRow, nonce: ByteString | null): Reply {
  const { leases } = draft.state;
  const first: LeaseRequest | null = leases.request(row);
  if (nonce === null || first === null || first.nonce !== nonce) return leaseExists(leases.id(row));
  draft.renew(new Repetition(row, first.ttlMs));
  return [leases.id(row), first.ttlMs, leases.token(row)];
}

function refuseGrant(draft: Draft, keyCount: number): ErrorReply | null {
  const { leasesMax, keysPerLeaseMax, keysMax } = draft.limits;
  if (draft.leaseCount >= leasesMax || draft.keyCount + keyCount > keysMax) draft.makeRoom();
  if (draft.leaseCount >= leasesMax) return limitReached("leases", leasesMax);
  if (keyCount > keysPerLeaseMax) return limitReached("keys per lease", keysPerLeaseMax);
  if (keyCount > 0 && draft.keyCount + keyCount > keysMax) return limitReached("keys", keysMax);
  return null;
}

/**
 * A name that was never given and never will be: no two commands share a revision, no two stores an incarnation. A client may
 * have taken the name for itself; then a longer one.
 */
function chooseId(draft: Draft): ByteString {
  const base = `${draft.incarnation}-${draft.revision.toString(36)}`;
  let id = base;
  for (let suffix = 1; draft.findLease(id) !== NO_LEASE; suffix += 1) id = `${base}-${suffix}`;
  return id;
}

function findDuplicate(keys: readonly KeyValue[]): ByteString | null {
  if (keys.length < 2) return null;
  const names = new Set<ByteString>();
  for (const { key } of keys) {
    if (names.has(key)) return key;
    names.add(key);
  }
  return null;
}

// Keep-alive, TTL ---------------------------------------------------------------------------------------------------

export function keepAlive(draft: Draft, id: ByteString): Reply {
  const row = draft.findLease(id);
  if (row === NO_LEASE) return noLease(id);
  draft.renew(row);
  return draft.deadlines.ttlMs(row);
}

export function keepAliveMany(draft: Draft, ids: readonly ByteString[]): Reply {
  const rows: LeaseRow[] = [];
  const remaining: number[] = [];
  for (const id of ids) {
    const row = draft.findLease(id);
    if (row === NO_LEASE) {
      remaining.push(ABSENT);
    } else {
      rows.push(row);
      remaining.push(draft.deadlines.ttlMs(row));
    }
  }
  if (rows.length > 0) draft.renew(rows);
  return remaining;
}

/** What is left of a lease, in whole units, rounded down. */
export function leaseTtl(draft: Draft, command: CommandOf<"lease-ttl">): Reply {
  const row = draft.findLease(command.id);
  return row === NO_LEASE ? ABSENT : remainingIn(draft, row, command.unit);
}

export function remainingIn(draft: Draft, row: LeaseRow, unit: "s" | "ms"): number {
  const remainingMs = draft.deadlines.remainingMs(row, draft.nowMs);
  return unit === "ms" ? remainingMs : Math.floor(remainingMs / 1000);
}

/**
 * A TTL beyond the durable one raises the promise, so it is written and synced first. One at or below it is not written: the disk
 * then holds more than was promised, which breaks nothing.
 */
export function setTtl(draft: Draft, command: CommandOf<"lease-setttl">): Reply {
  const { id, ttlMs } = command;
  const row = draft.findLease(id);
  if (row === NO_LEASE) return noLease(id);
  const { leases } = draft.state;
  if (ttlMs > leases.ttlMs(row)) {
    draft.add({
      kind: "lease-put",
      id,
      ttlMs,
      token: leases.token(row),
      label: leases.label(row),
      request: leases.request(row),
      grantedAtUnixMs: leases.grantedAtUnixMs(row),
      owner: leases.owner(row),
    });
  } else {
    draft.renew(new Shortening(row, ttlMs));
  }
  return ttlMs;
}

// Ends --------------------------------------------------------------------------------------------------------------

export function revokeLeases(draft: Draft, ids: readonly ByteString[]): Reply {
  let count = 0;
  for (const id of ids) {
    const row = draft.findLease(id);
    if (row === NO_LEASE) continue;
    draft.endLease(row, "revoked");
    count += 1;
  }
  return count;
}

/** From the tick. A lease that is alive again, or gone, is left alone: looking it up ends those past their deadline. */
export function expireLeases(draft: Draft, { ids, keys }: CommandOf<"lease-expire">): Reply {
  for (const id of ids) draft.findLease(id);
  for (const { databaseIndex, key } of keys) draft.meetKey(databaseIndex, key);
  return draft.endedCount;
}

// Keys of a lease ---------------------------------------------------------------------------------------------------

export function attachKey(draft: Draft, command: CommandOf<"lease-attach">): Reply {
  const { id, key, value } = command;
  const lease = draft.findLease(id);
  if (lease === NO_LEASE) return noLease(id);
  const { keys } = draft;
  const held = draft.findKey(key);
  // One that it shares with others, or might, is as held by another: ATTACH promises the key to this lease alone.
  if (held !== NO_KEY && keys.holder(held) === lease && !keys.isMember(held)) {
    if (keys.value(held) !== value) draft.changeValue(held, value, "set");
    return keys.token.get(held);
  }
  if (held !== NO_KEY && !command.force) return null;

  const refusal = refuseHold(draft, lease, held === NO_KEY);
  if (refusal !== null) return refusal;
  if (held !== NO_KEY) draft.takeKey(held, "taken");
  return hold(draft, id, key, value, EXCLUSIVE);
}

/** The lease gets the key. Returns the token. */
export function hold(draft: Draft, leaseId: ByteString, key: ByteString, value: ByteString, mode: LockMode): Token {
  const { databaseIndex, revision: token } = draft;
  const op = { kind: "key-put", databaseIndex, key, leaseId, value, token, mode, sinceUnixMs: draft.unixMs } as const;
  draft.add(mode.kind !== "exclusive" && draft.findKey(key) !== NO_KEY ? { ...op, event: null } : op);
  return token;
}

/** `isNewKey`: nobody held it, or it is held once more. */
export function refuseHold(draft: Draft, lease: LeaseRow, isNewKey: boolean): ErrorReply | null {
  const { keysPerLeaseMax, keysMax } = draft.limits;
  if (draft.state.keyCountOf(lease) >= keysPerLeaseMax) return limitReached("keys per lease", keysPerLeaseMax);
  if (isNewKey && draft.keyCount >= keysMax) draft.makeRoom();
  if (isNewKey && draft.keyCount >= keysMax) return limitReached("keys", keysMax);
  return null;
}

export function detachKeys(draft: Draft, command: CommandOf<"lease-detach">): Reply {
  const lease = draft.findLease(command.id);
  if (lease === NO_LEASE) return noLease(command.id);
  let count = 0;
  for (const key of command.keys) {
    const row = draft.findHolding(key, lease);
    if (row === NO_KEY) continue;
    draft.endKey(row, "detached");
    count += 1;
  }
  return count;
}

// Information -------------------------------------------------------------------------------------------------------

/**
 * Everything about one lease. `keys` are those in the database of this connection, by the names that it would use;
 * `keys-total` counts those of all databases.
 */
export function leaseInfo(draft: Draft, id: ByteString, ended: EndedLeases): Reply {
  const row = draft.findLease(id);
  if (row === NO_LEASE) return endedLeaseInfo(draft, id, ended);
  const { leases } = draft.state;
  draft.see(leases.keysChangedAt(row));
  draft.see(draft.state.flushedAt);
  return new MapReply([
    ["id", id],
    ["state", "live"],
    ["ttl", draft.deadlines.ttlMs(row)],
    ["remaining", draft.deadlines.remainingMs(row, draft.nowMs)],
    ["token", leases.token(row)],
    ["label", leases.label(row)],
    ["granted-at", leases.grantedAtUnixMs(row)],
    ["owner", leases.owner(row)],
    ["grace", draft.deadlines.isOnGrace(row) ? 1 : 0],
    ["keys", keyNamesOf(draft, row)],
    ["keys-total", draft.state.keyCountOf(row)],
  ]);
}

function endedLeaseInfo(draft: Draft, id: ByteString, ended: EndedLeases): Reply {
  const expiry = draft.expiryOf(id);
  if (expiry !== null) return endedReply(id, "expired", draft.unixMs, expiry.lateMs, "");
  const end = ended.find(id);
  return end === null ? null : endedReply(id, end.reason, end.endedAtUnixMs, end.lateMs, end.by);
}

function endedReply(id: ByteString, reason: string, endedAtUnixMs: number, lateMs: number, by: ByteString): Reply {
  return new MapReply([
    ["id", id],
    ["state", "ended"],
    ["reason", reason],
    ["ended-at", endedAtUnixMs],
    ["late-ms", lateMs],
    ["by", by],
  ]);
}

function keyNamesOf(draft: Draft, lease: LeaseRow): readonly ByteString[] {
  const { keys } = draft;
  const names: ByteString[] = [];
  for (let left = keys.countOf(lease), row = keys.firstOf(lease); left > 0; left -= 1, row = keys.nextOf(row)) {
    names.push(keys.name(row));
  }
  return names;
}

export function scanLeases(draft: Draft, command: CommandOf<"lease-scan">): Reply {
  const { leases } = draft.state;
  draft.see(leases.anyChangedAt);
  const matches = command.match === null ? null : compileGlob(command.match);
  const ids: ByteString[] = [];
  const cursor = scanRows(leases.rows, command.cursor, command.count, (row) => {
    if (!leases.isLive(row) || leases.isHidden(row) || !draft.isAlive(row)) return false;
    const id = leases.id(row);
    if (matches === null || matches(id)) ids.push(id);
    return true;
  });
  return [String(cursor), ids];
}
