import type { Op } from "./op.js";
import type { ByteString } from "./reply.js";

/**
 * What clients hear of a change, derived from the op alone, after the op is durable and visible. `resp/pubsub.ts` turns
 * these into channels; the engine knows no channel.
 *
 * Invariant: one op gives the same events each time, each event once.
 */

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
      readonly event: "set" | "del" | "expired";
    };

/** The events of one op, in the order in which they are to be published. */
export function eventsOf(op: Op): readonly EngineEvent[] {
  switch (op.kind) {
    case "lease-put":
    case "flush-database":
    case "flush-all":
      return [];
    case "key-put":
      return [
        { kind: "lock", key: op.key, message: `acquired ${op.leaseId} ${op.token}` },
        { kind: "keyspace", databaseIndex: op.databaseIndex, key: op.key, event: "set" },
      ];
    case "key-end":
      return [{ kind: "keyspace", databaseIndex: op.databaseIndex, key: op.key, event: "del" }];
    case "lease-end":
      return [];
  }
}
