import { invariant } from "./invariant.js";
import { NO_KEY, type KeyTable } from "./key-table.js";
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
  for (let row = 0; row < leases.rows.rowsEnd; row += 1) {
    if (leases.isEnded(row)) {
      ended += 1;
      invariant(leases.find(leases.id(row)) !== NO_LEASE, "an ended lease is found until it is swept");
    }
    if (!leases.isLive(row)) continue;
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
  invariant(ended === state.leaseGraveCount, "every ended lease waits to be swept");
  invariant(live + ended === leases.rows.rowsUsed, "every row in use is live or ended");
}

function checkKeys(state: State, databaseIndex: number): void {
  const { leases } = state;
  const keys = state.keys(databaseIndex);
  let used = 0;
  let held = 0;
  let free = 0;
  for (let row = 0; row < keys.rows.rowsEnd; row += 1) {
    if (keys.isFree(row)) continue;
    used += 1;
    invariant(keys.find(keys.name(row)) === row, "a key is found by its name");
    invariant(keys.changedAt.get(row) <= state.revision, "no key changed after the revision");
    const lease = keys.holder(row);
    if (lease === NO_LEASE) {
      free += 1;
      continue;
    }
    held += 1;
    invariant(leases.isLive(lease) || leases.isEnded(lease), "the holder of a key is a lease");
    if (!leases.isLive(lease)) continue;
    invariant(keys.token.get(row) <= state.revision, "no token is ahead of the revision");
    invariant(keys.token.get(row) >= leases.token(lease), "a key is attached after its lease was granted");
    invariant((leases.databases(lease) & (1 << databaseIndex)) !== 0, "a lease knows the databases of its keys");
  }
  invariant(used === keys.rows.rowsUsed, "every row in use has a name");
  invariant(free <= state.keyGraveCount(databaseIndex), "every key without a holder waits to be swept");
  const { ringed, live } = countRings(state, keys);
  invariant(ringed === held, "every key with a holder lies in its ring");
  invariant(live === keys.liveCount, "the keys of live leases are counted");
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
    if (!leases.isLive(row)) continue;
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
  for (let index = 0; index < DATABASE_COUNT; index += 1) {
    const keys = state.keys(index);
    for (let row = 0; row < keys.rows.rowsEnd; row += 1) {
      if (keys.isFree(row) || keys.holder(row) === NO_LEASE || !leases.isLive(keys.holder(row))) continue;
      const holder = leases.id(keys.holder(row));
      lines.push(JSON.stringify(["key", index, keys.name(row), holder, keys.value(row), keys.token.get(row)]));
    }
  }
  return [`revision ${state.revision}`, ...lines.sort()].join("\n");
}
