import { eventsOfKeys, type EngineEvent } from "./events.js";
import type { LeaseRow } from "./lease-table.js";
import { DATABASE_COUNT } from "./limits.js";
import type { HeldKey, Op } from "./op.js";
import type { State } from "./state.js";

/**
 * What clients hear of FLUSHALL and FLUSHDB. The op of a flush names nobody, so its events are those of the state as it is
 * before the op is applied; every other op tells its own (`events.ts`).
 *
 * Invariant: each live lease and each key of the flushed databases is named once.
 */

/** The events of the flushes among `ops`, to be asked for before they are applied. Costs nothing when there is none. */
export function flushEvents(state: State, ops: readonly Op[]): EngineEvent[] {
  const events: EngineEvent[] = [];
  for (const op of ops) {
    if (op.kind !== "flush-all" && op.kind !== "flush-database") continue;
    for (let lease = 0; lease < state.leases.rows.rowsEnd; lease += 1) {
      if (!state.leases.isLive(lease) || state.leases.isHidden(lease)) continue;
      if (op.kind === "flush-database") {
        tellReleased(state, lease, op.databaseIndex, events);
        continue;
      }
      events.push({ kind: "lease", id: state.leases.id(lease), message: "forced" });
      for (let index = 0; index < DATABASE_COUNT; index += 1) tellReleased(state, lease, index, events);
    }
    for (const lease of state.leftovers(Infinity)) tellLeft(state, lease, op, events);
  }
  return events;
}

/** Keys that went with their lease before, and are told of only now: nobody could tell of them later. */
function tellLeft(state: State, lease: LeaseRow, op: Op, events: EngineEvent[]): void {
  for (let index = 0; index < DATABASE_COUNT; index += 1) {
    if (op.kind === "flush-database" && op.databaseIndex !== index) continue;
    const keys = heldKeys(state, lease, index);
    events.push(...eventsOfKeys(state.leases.id(lease), state.leftoverReason(lease)!, keys));
  }
}

function* heldKeys(state: State, lease: LeaseRow, databaseIndex: number): Iterable<HeldKey> {
  const keys = state.keys(databaseIndex);
  let row = keys.firstOf(lease);
  for (let left = keys.countOf(lease); left > 0; left -= 1) {
    yield { databaseIndex, key: keys.name(row), token: keys.token.get(row) };
    row = keys.nextOf(row);
  }
}

function tellReleased(state: State, lease: LeaseRow, databaseIndex: number, events: EngineEvent[]): void {
  const keys = state.keys(databaseIndex);
  let row = keys.firstOf(lease);
  for (let left = keys.countOf(lease); left > 0; left -= 1) {
    const message = `released ${state.leases.id(lease)} ${keys.token.get(row)}`;
    events.push({ kind: "lock", key: keys.name(row), message });
    row = keys.nextOf(row);
  }
}
