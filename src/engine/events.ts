import { unreachable } from "./invariant.js";
import type { HeldKey, KeyspaceEvent, LeaseEndOp, LeaseEndReason, Op, StringEndOp } from "./op.js";
import type { ByteString } from "./reply.js";

/**
 * What clients hear of a change, derived from the op alone, after the op is durable and visible. `resp/pubsub.ts` turns
 * these into channels; the engine knows no channel.
 *
 * FLUSHDB and FLUSHALL are one op that names nothing and are heard of by nobody, as in Redis.
 *
 * Invariant: one op gives the same events each time, each event once.
 */

export type { KeyspaceEvent } from "./op.js";

export type EngineEvent =
  /** Always published: channel `lease:<id>`. `message` is e.g. `expired late-ms=3`, `revoked by=<client>`, `forced`. */
  | { readonly kind: "lease"; readonly id: ByteString; readonly message: ByteString }
  /** Always published: channel `lock:<key>`: `acquired <id> <token>`, `released <id> <token>`. */
  | { readonly kind: "lock"; readonly key: ByteString; readonly message: ByteString }
  /** Published under notify-keyspace-events: `__keyevent@<db>__:<event>` and `__keyspace@<db>__:<key>`. */
  | {
      readonly kind: "keyspace";
      readonly databaseIndex: number;
      readonly key: ByteString;
      readonly event: KeyspaceEvent;
    };

const NO_EVENTS: readonly EngineEvent[] = [];
const NO_NAMES: readonly KeyspaceEvent[] = [];

/** The events of one op, in the order in which they are to be published. */
export function eventsOf(op: Op): readonly EngineEvent[] {
  switch (op.kind) {
    case "lease-put":
    case "flush-database":
    case "flush-all":
    case "script-put":
    case "script-end":
    case "scripts-flush":
      return NO_EVENTS;
    case "string-put": {
      const { databaseIndex, key, events } = op;
      return (events ?? NO_NAMES).map((event) => ({ kind: "keyspace", databaseIndex, key, event }));
    }
    case "string-end":
      return eventsOfStringEnd(op);
    case "key-put": {
      const { databaseIndex, key } = op;
      const acquired: EngineEvent = { kind: "lock", key, message: `acquired ${op.leaseId} ${op.token}` };
      if (op.event === null) return [acquired];
      const set: EngineEvent = { kind: "keyspace", databaseIndex, key, event: op.event ?? "set" };
      return op.valueOnly === true ? [set] : [acquired, set];
    }
    case "key-end": {
      const { databaseIndex, key } = op;
      const released: EngineEvent = { kind: "lock", key, message: `released ${op.leaseId} ${op.token}` };
      // A key that was taken goes on under its next holder; who watches the keyspace hears of that as `set`.
      if (op.reason === "taken" || op.remains === true) return [released];
      return [released, { kind: "keyspace", databaseIndex, key, event: "del" }];
    }
    case "lease-end":
      return [{ kind: "lease", id: op.id, message: endMessage(op) }, ...eventsOfKeys(op.id, op.reason, op.keys)];
    case "lease-keys-end":
      return eventsOfKeys(op.leaseId, op.reason, op.keys);
    default:
      return unreachable(op);
  }
}

/** A plain key is nobody's lock: only the keyspace hears of it. */
function eventsOfStringEnd({ databaseIndex, key, reason }: StringEndOp): readonly EngineEvent[] {
  if (reason === "taken") return NO_EVENTS;
  return [{ kind: "keyspace", databaseIndex, key, event: reason === "expired" ? "expired" : "del" }];
}

/** Of keys that end with their lease. */
export function eventsOfKeys(
  leaseId: ByteString,
  reason: LeaseEndReason,
  keys: Iterable<HeldKey>,
): readonly EngineEvent[] {
  const events: EngineEvent[] = [];
  const event = reason === "expired" ? "expired" : "del";
  for (const { databaseIndex, key, token, remains } of keys) {
    events.push({ kind: "lock", key, message: `released ${leaseId} ${token}` });
    if (remains !== true) events.push({ kind: "keyspace", databaseIndex, key, event });
  }
  return events;
}

function endMessage(op: LeaseEndOp): ByteString {
  switch (op.reason) {
    case "expired":
      return `expired late-ms=${op.lateMs}`;
    case "revoked":
      return `revoked by=${op.by}`;
    case "forced":
      return "forced";
    default:
      return unreachable(op.reason);
  }
}
