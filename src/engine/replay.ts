import { unreachable } from "./invariant.js";
import type { Op, Revision } from "./op.js";
import type { State } from "./state.js";

/**
 * Carries out one op. The only writer of durable state, on the live path and at recovery alike, so that the two cannot drift
 * apart. Replaying an op a second time changes nothing.
 */
export function replay(state: State, op: Op, revision: Revision): void {
  switch (op.kind) {
    case "lease-put":
      state.putLease(op, revision);
      return;
    case "lease-end":
      state.endLease(op, revision);
      return;
    case "lease-keys-end":
      state.endLeftKeys(op);
      return;
    case "key-put":
      state.putKey(op, revision);
      return;
    case "key-end":
      state.endKey(op, revision);
      return;
    case "string-put":
      state.putString(op, revision);
      return;
    case "string-end":
      state.endString(op, revision);
      return;
    case "script-put":
      state.scripts.put(op, revision);
      return;
    case "script-end":
      state.scripts.end(op.sha, revision);
      return;
    case "scripts-flush":
      state.scripts.clear(revision);
      return;
    case "flush-database":
      state.flushDatabase(op.databaseIndex, revision);
      return;
    case "flush-all":
      state.flushAll(revision);
      return;
    default:
      unreachable(op);
  }
}
