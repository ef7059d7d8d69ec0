import type { ByteString } from "./reply.js";

/**
 * What the engine can be asked: parsed, checked for form and limits, free of RESP. `resp/command-table.ts` builds these from
 * argv; `decide.ts` answers them in one exhaustive switch.
 *
 * Invariants:
 *  - a Command is data; it holds no socket, no clock, no randomness (a random number that a command needs comes in with it)
 *  - times are whole milliseconds, already checked against `limits.ts`
 */

/** Where a command comes from. One object per connection, reused; the engine reads it and never keeps it. */
export interface Origin {
  readonly databaseIndex: number;
  /** Client name and address, e.g. `worker-1 127.0.0.1:50123`, for LEASE.INFO and events. The same string object until
   * the name changes, so that a million leases of one client share it. */
  readonly owner: ByteString;
}

/** The one clock reading of a turn: guard and base of every deadline that the turn promises. */
export interface Turn {
  /** Monotonic milliseconds, fractions allowed, origin without meaning. */
  readonly nowMs: number;
  /** Wall clock, for people only: no rule ever reads it. */
  readonly unixMs: number;
}

export interface KeyValue {
  readonly key: ByteString;
  readonly value: ByteString;
}

export type Command =
  // Leases
  | {
      readonly kind: "lease-grant";
      /** null: the server chooses. */
      readonly id: ByteString | null;
      readonly ttlMs: number;
      readonly keys: readonly KeyValue[];
      readonly label: ByteString | null;
      readonly request: ByteString | null;
    }
  | { readonly kind: "lease-keepalive"; readonly id: ByteString }
  | { readonly kind: "lease-keepalive-many"; readonly ids: readonly ByteString[] }
  | { readonly kind: "lease-revoke"; readonly ids: readonly ByteString[] }
  | { readonly kind: "lease-ttl"; readonly id: ByteString; readonly unit: "s" | "ms" }
  | { readonly kind: "lease-setttl"; readonly id: ByteString; readonly ttlMs: number }
  | {
      readonly kind: "lease-attach";
      readonly id: ByteString;
      readonly key: ByteString;
      readonly value: ByteString;
      readonly force: boolean;
    }
  | { readonly kind: "lease-detach"; readonly id: ByteString; readonly keys: readonly ByteString[] }
  | { readonly kind: "lease-info"; readonly id: ByteString }
  | {
      readonly kind: "lease-scan";
      readonly cursor: number;
      readonly match: ByteString | null;
      readonly count: number;
    }
  /** From the tick: these leases look due; decide compares each deadline again. Answers the number that ended. */
  | { readonly kind: "lease-expire"; readonly ids: readonly ByteString[] }
  // Keys
  | { readonly kind: "key-get"; readonly key: ByteString }
  | { readonly kind: "key-exists"; readonly keys: readonly ByteString[] }
  | { readonly kind: "key-delete"; readonly keys: readonly ByteString[] }
  | { readonly kind: "key-type"; readonly key: ByteString }
  | { readonly kind: "key-ttl"; readonly key: ByteString; readonly unit: "s" | "ms" }
  | { readonly kind: "key-list"; readonly pattern: ByteString }
  | {
      readonly kind: "key-scan";
      readonly cursor: number;
      readonly match: ByteString | null;
      readonly count: number;
      /** Redis's TYPE option: only `string` matches anything. */
      readonly type: ByteString | null;
    }
  | { readonly kind: "key-count" }
  /** fraction: 0 <= fraction < 1, drawn by the caller. */
  | { readonly kind: "key-random"; readonly fraction: number }
  | { readonly kind: "flush-database" }
  | { readonly kind: "flush-all" };
