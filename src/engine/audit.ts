import { invariant } from "./invariant.js";
import { NO_KEY, SHARED, type KeyTable } from "./key-table.js";
import { NO_LEASE } from "./lease-table.js";
import { DATABASE_COUNT } from "./limits.js";
import type { State } from "./state.js";

/**
 * The state looked at as a whole, for tests and the simulation: what must always hold, and what is durable about it.
 * Costs a walk over everything.
 */

/** Throws InvariantError naming the first thing that is wrong. */
export function checkInvariants(state: State): void {
  checkLeases(state);
  for (let index = 0; index < DATABASE_COUNT; index += 1) checkKeys(state, index);
}

function checkLeases(state: State): void {
  const { leases } = state;
  let live = 0;
  let ended = 0;
  let hidden = 0;
  for (let row = 0; row < leases.rows.rowsEnd; row += 1) {
    if (leases.isEnded(row)) {
      ended += 1;
      // One that left keys unnamed stays on for their sake, when its end and those of later leases of its id are durable.
      const isFound = leases.find(leases.id(row)) !== NO_LEASE || state.leftoverReason(row) !== null;
      invariant(isFound, "an ended lease is found until it is swept");
    }
    if (!leases.isLive(row)) continue;
    if (leases.isHidden(row)) {
      hidden += 1;
      checkHidden(state, row);
      continue;
    }
    live += 1;
    invariant(leases.find(leases.id(row)) === row, "a live lease is found by its id");
    invariant(leases.token(row) <= state.revision, "no token is ahead of the revision");
    invariant(leases.changedAt(row) <= state.revision, "no lease changed after the revision");
    invariant(leases.keysChangedAt(row) <= state.revision, "no key of a lease changed after the revision");
    invariant(leases.ttlMs(row) > 0, "a live lease has a TTL");
    const request = leases.request(row);
    if (request?.idChosenByServer === true) {
      invariant(leases.findByNonce(request.nonce) === row, "a server-chosen lease is found by its nonce");
    }
  }
  invariant(live === leases.liveCount, "live leases are counted");
  invariant(ended === state.leaseGraveCount + state.leftoverCount, "every ended lease waits to be swept");
  for (const row of state.leftovers(Infinity)) {
    invariant(leases.isEnded(row) && state.leftoverReason(row) !== null, "only an ended lease leaves keys behind");
  }
  invariant(hidden === leases.hiddenCount, "hidden leases are counted");
  invariant(live + ended + hidden === leases.rows.rowsUsed, "every row in use is live or ended");
}

function checkHidden(state: State, row: number): void {
  const { leases } = state;
  if (row === leases.forever) {
    invariant(leases.ttlMs(row) === Infinity, "what holds keys without a TTL does not end");
    return;
  }
  invariant(leases.ttlMs(row) > 0 && leases.ttlMs(row) < Infinity, "the lease of a plain key has a TTL");
  if (state.isStray(row)) invariant(state.hasStrays, "a hidden lease without a key waits to be swept");
  else
    invariant(state.keys(leases.databaseOfHidden(row)).countOf(row) === 1, "a hidden lease with a TTL holds one key");
}

function checkKeys(state: State, databaseIndex: number): void {
  const { leases } = state;
  const keys = state.keys(databaseIndex);
  let used = 0;
  let held = 0;
  let free = 0;
  let members = 0;
  let shared = 0;
  for (let row = 0; row < keys.rows.rowsEnd; row += 1) {
    if (keys.isFree(row)) continue;
    used += 1;
    const lease = keys.holder(row);
    invariant(keys.changedAt.get(row) <= state.revision, "no key changed after the revision");
    if (keys.isMember(row)) {
      members += 1;
      const head = keys.find(keys.name(row));
      invariant(keys.sharing(head)?.byLease.get(lease) === row, "a member is found by key and lease");
      invariant(keys.sharing(head)?.byToken.get(keys.token.get(row)) === row, "a member is found by its token");
      invariant(leases.isLive(lease), "a member goes with its lease");
    } else {
      invariant(keys.find(keys.name(row)) === row, "a key is found by its name");
    }
    if (lease === NO_LEASE) {
      free += 1;
      continue;
    }
    if (lease === SHARED) {
      shared += 1;
      checkSharing(keys, row);
      continue;
    }
    held += 1;
    invariant(leases.isLive(lease) || leases.isEnded(lease), "the holder of a key is a lease");
    if (!leases.isLive(lease)) continue;
    invariant(keys.token.get(row) <= state.revision, "no token is ahead of the revision");
    if (leases.isHidden(lease)) continue;
    invariant(keys.token.get(row) >= leases.token(lease), "a key is attached after its lease was granted");
    invariant((leases.databases(lease) & (1 << databaseIndex)) !== 0, "a lease knows the databases of its keys");
  }
  invariant(used === keys.rows.rowsUsed, "every row in use has a name");
  invariant(free <= state.keyGraveCount(databaseIndex), "every key without a holder waits to be swept");
  invariant(members === keys.memberCount, "members are counted");
  const { ringed, live } = countRings(state, keys);
  invariant(ringed === held, "every key with a holder lies in its ring");
  invariant(live - members + shared === keys.liveCount, "the keys of live leases are counted");
}

function checkSharing(keys: KeyTable, row: number): void {
  const sharing = keys.sharing(row)!;
  invariant(sharing.byLease.size > 0 && sharing.byLease.size === sharing.byToken.size, "a shared key has members");
  invariant(sharing.mode.kind !== "exclusive", "what is shared is not held alone");
  if (sharing.mode.kind === "limit")
    invariant(sharing.byLease.size <= sharing.mode.permits, "no more holders than permits");
  let token = 0;
  for (const member of sharing.byLease.values()) {
    invariant(keys.token.get(member) > token, "members are in the order of their tokens");
    token = keys.token.get(member);
  }
}

function countRings(state: State, keys: KeyTable): { ringed: number; live: number } {
  const { leases } = state;
  let ringed = 0;
  let live = 0;
  for (let lease = 0; lease < leases.rows.rowsEnd; lease += 1) {
    const count = keys.countOf(lease);
    const first = keys.firstOf(lease);
    invariant((count === 0) === (first === NO_KEY), "a ring is empty when its count is 0");
    let row = first;
    for (let left = count; left > 0; left -= 1, row = keys.nextOf(row)) {
      invariant(keys.holder(row) === lease, "all keys of a ring have one holder");
    }
    invariant(row === first, "a ring closes after as many keys as it counts");
    ringed += count;
    if (leases.isLive(lease)) live += count;
  }
  return { ringed, live };
}

/**
 * The durable state as text: equal for equal states, whatever the order in which they came about. Two engines that agree on it
 * would answer alike but for deadlines.
 */
export function digest(state: State): string {
  const lines: string[] = [];
  const { leases } = state;
  for (let row = 0; row < leases.rows.rowsEnd; row += 1) {
    if (!leases.isLive(row) || leases.isHidden(row)) continue;
    lines.push(
      JSON.stringify([
        "lease",
        leases.id(row),
        leases.ttlMs(row),
        leases.token(row),
        leases.label(row),
        leases.request(row),
        leases.grantedAtUnixMs(row),
        leases.owner(row),
      ]),
    );
  }
  for (let index = 0; index < DATABASE_COUNT; index += 1) keyLines(state, index, lines);
  for (const [sha, { body, isPinned }] of state.scripts.entries()) {
    lines.push(JSON.stringify(["script", sha, body, isPinned]));
  }
  return [`revision ${state.revision}`, ...lines.sort()].join("\n");
}

function keyLines(state: State, databaseIndex: number, lines: string[]): void {
  const { leases } = state;
  const keys = state.keys(databaseIndex);
  for (let row = 0; row < keys.rows.rowsEnd; row += 1) {
    const holder = keys.holder(row);
    if (keys.isFree(row) || holder < 0 || !leases.isLive(holder)) continue;
    const [name, value, token] = [keys.name(row), keys.value(row), keys.token.get(row)];
    if (leases.isHidden(holder)) {
      const ttlMs = holder === leases.forever ? null : leases.ttlMs(holder);
      lines.push(JSON.stringify(["string", databaseIndex, name, value, token, ttlMs]));
      continue;
    }
    const line = ["key", databaseIndex, name, leases.id(holder), value, token];
    const mode = keys.isMember(row) ? keys.sharing(keys.find(name))!.mode : null;
    lines.push(JSON.stringify(mode === null ? line : [...line, mode]));
  }
}
