import type { KeyName, LockMode } from "./op.js";
import type { ByteString, Reply } from "./reply.js";

export type { KeyName, LockMode } from "./op.js";

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
  /** Wall clock, for people, and to turn the wall-clock times of EXPIREAT and its like into TTLs; no other rule reads it. */
  readonly unixMs: number;
}

export interface KeyValue {
  readonly key: ByteString;
  readonly value: ByteString;
}

export type SetCondition =
  | { readonly kind: "always" | "nx" | "xx" }
  /** The present value equals, or does not equal, `value`. A missing key: `eq` misses, `ne` holds. */
  | { readonly kind: "eq" | "ne"; readonly value: ByteString }
  /** The same by DIGEST: 16 hexadecimal digits. */
  | { readonly kind: "digest-eq" | "digest-ne"; readonly digest: ByteString };

export type Expiry =
  /** The key lives until it is deleted. */
  | { readonly kind: "none" }
  /** KEEPTTL; of GETEX: as it is. */
  | { readonly kind: "keep" }
  | { readonly kind: "in"; readonly ttlMs: number }
  /**
   * Wall-clock milliseconds since 1970; a time that is past deletes the key, as in Redis. Turned into a TTL at once, by the turn's wall
   * clock: no rule compares wall-clock times later. So after a restart the key has that whole TTL again, and may live beyond the
   * time that was named; and when the wall clock is set, the key does not follow.
   */
  | { readonly kind: "at"; readonly unixMs: number };

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
  /**
   * From the tick: these leases look due, and these plain keys; decide compares each deadline again. Answers the number of those that
   * ended.
   */
  | { readonly kind: "lease-expire"; readonly ids: readonly ByteString[]; readonly keys: readonly KeyName[] }
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
  // Strings: keys of their own, with or without a TTL, as Redis has them
  | {
      readonly kind: "string-set";
      readonly key: ByteString;
      readonly value: ByteString;
      readonly condition: SetCondition;
      /** SET ... GET: the reply is the former value (nil when there was none), whatever the condition says. */
      readonly returnsFormer: boolean;
      readonly expiry: Expiry;
      /** What a success answers: SET says OK, SETNX 1 or 0, GETSET the former value. */
      readonly answer: "ok" | "one" | "former";
    }
  /** MSET, MSETNX, MSETEX. `ifNone`: only when no key exists; `ifAll`: only when every one does. */
  | {
      readonly kind: "string-set-many";
      readonly pairs: readonly KeyValue[];
      readonly condition: "always" | "if-none" | "if-all";
      readonly expiry: Expiry;
      readonly answer: "ok" | "one";
    }
  | { readonly kind: "string-get-many"; readonly keys: readonly ByteString[] }
  /** GETEX and GETDEL. */
  | { readonly kind: "string-get-expire"; readonly key: ByteString; readonly expiry: Expiry }
  | { readonly kind: "string-get-delete"; readonly key: ByteString }
  | { readonly kind: "string-length"; readonly key: ByteString }
  | { readonly kind: "string-append"; readonly key: ByteString; readonly value: ByteString }
  | { readonly kind: "string-get-range"; readonly key: ByteString; readonly start: number; readonly end: number }
  | { readonly kind: "string-set-range"; readonly key: ByteString; readonly offset: number; readonly value: ByteString }
  | { readonly kind: "string-increment"; readonly key: ByteString; readonly by: bigint }
  | { readonly kind: "string-increment-float"; readonly key: ByteString; readonly by: number }
  /** DELIFEQ, DELEX. */
  | { readonly kind: "string-delete-if"; readonly key: ByteString; readonly condition: SetCondition }
  | { readonly kind: "string-digest"; readonly key: ByteString }
  /** EXPIRE, PEXPIRE, EXPIREAT, PEXPIREAT: a TTL from now, or a wall-clock time turned into one by the turn's wall clock. */
  | {
      readonly kind: "key-expire";
      readonly key: ByteString;
      readonly expiry: Expiry;
      readonly condition: "always" | "nx" | "xx" | "gt" | "lt" | "xx-gt" | "xx-lt";
    }
  | { readonly kind: "key-persist"; readonly key: ByteString }
  /** EXPIRETIME, PEXPIRETIME: the remaining time added to the wall clock, for people. */
  | { readonly kind: "key-expire-time"; readonly key: ByteString; readonly unit: "s" | "ms" }
  // Locks
  | {
      readonly kind: "lock-acquire";
      readonly key: ByteString;
      readonly id: ByteString;
      /** null: the lease id stands as the value. */
      readonly value: ByteString | null;
      readonly mode: LockMode;
      /** null: answer at once. 0: wait for ever. */
      readonly blockMs: number | null;
    }
  | { readonly kind: "lock-release"; readonly key: ByteString; readonly id: ByteString; readonly token: number | null }
  | { readonly kind: "lock-info"; readonly key: ByteString }
  | { readonly kind: "lock-check"; readonly key: ByteString; readonly token: number }
  /**
   * Commands that wait in a queue leave it. `reply`: what each of them is answered; from the tick for those whose time is over (nil),
   * from the loop for a connection that has gone.
   */
  | { readonly kind: "wait-end"; readonly waitIds: readonly number[]; readonly reply: Reply }
  // Scripts: their sources, by SHA-1 in lower case, kept over restarts
  | {
      readonly kind: "script-load";
      readonly sha: ByteString;
      readonly body: ByteString;
      /** SCRIPT LOAD: kept until SCRIPT FLUSH. EVAL: kept until newer ones need the room. */
      readonly isPinned: boolean;
    }
  | { readonly kind: "script-get"; readonly sha: ByteString }
  | { readonly kind: "script-exists"; readonly shas: readonly ByteString[] }
  | { readonly kind: "script-flush" }
  | { readonly kind: "flush-database" }
  | { readonly kind: "flush-all" };
