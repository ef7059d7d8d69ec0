import type { ByteString } from "./reply.js";

/**
 * What may happen to durable state. `decide` computes ops and changes nothing; `replay` is the only code that applies them,
 * on the live path and at recovery alike; `durability/schema.ts` turns each into rows.
 *
 * Invariants:
 *  - an op says what is to be, never how far to move: replaying one twice gives the same state
 *  - no op holds a deadline or any other monotonic clock value; those mean nothing to the next process or node
 *  - the ops of one command share one revision, are replayed in one turn and lie in one batch
 *
 * To add an op: add it here, in `replay.ts`, in `durability/schema.ts` (with golden bytes), and in `events.ts` if clients
 * hear of it. The switches are exhaustive, so the compiler names the places.
 */

/** The durable revision counter: one step per command that changed something. Strictly increasing for ever. */
export type Revision = number;

/** A fencing token: the revision at which its holder got the key. */
export type Token = number;

export interface KeyName {
  readonly databaseIndex: number;
  readonly key: ByteString;
}

/** How a lease holds a key, or asks for it. `limit`: a semaphore of so many permits, 1 and up. */
export type LockMode =
  | { readonly kind: "exclusive" }
  | { readonly kind: "shared" }
  | { readonly kind: "limit"; readonly permits: number };

/** Why a lease came to its end. `forced`: somebody other than its owner ended it (FLUSHALL). */
export type LeaseEndReason = "expired" | "revoked" | "forced";

/**
 * Why a key left its lease. `released`: LOCK.RELEASE. `lease`: it went with the lease. `taken`: another lease or a plain SET took it by
 * force.
 */
export type KeyEndReason = "detached" | "released" | "deleted" | "taken" | "lease";

/** Why a plain key ended. `taken`: a lease took it by force. */
export type StringEndReason = "deleted" | "expired" | "taken";

/** What the keyspace notifications call a change, in Redis's words. */
export type KeyspaceEvent =
  | "set"
  | "del"
  | "expired"
  | "expire"
  | "persist"
  | "append"
  | "setrange"
  | "incrby"
  | "incrbyfloat";

/** A lease is granted, or its durable TTL is made longer (then with the token it has). */
export interface LeasePutOp {
  readonly kind: "lease-put";
  readonly id: ByteString;
  /** The durable upper bound of every promise made for this lease, in milliseconds. */
  readonly ttlMs: number;
  readonly token: Token;
  readonly label: ByteString | null;
  /** The REQUEST nonce of the grant and what its first reply said, so that a retry gets the same reply. */
  readonly request: LeaseRequest | null;
  /** Wall-clock milliseconds of the grant: for people to read, never compared with anything. */
  readonly grantedAtUnixMs: number;
  /** Client name and address of whoever granted it: for people to read. */
  readonly owner: ByteString;
}

export interface LeaseRequest {
  readonly nonce: ByteString;
  /** True when the server chose the id: then the nonce alone finds the lease again. */
  readonly idChosenByServer: boolean;
  /** The TTL that the first reply named, in milliseconds. */
  readonly ttlMs: number;
}

/**
 * A lease ends, and all of its keys with it. The keys are named, so that the store needs no read to delete them; but for those of a
 * large lease, which `lease-keys-end` ops name one slice after the other. Until then their rows are in the store without a lease,
 * or older than the lease of that id: rows that count for nothing.
 */
export interface LeaseEndOp {
  readonly kind: "lease-end";
  readonly id: ByteString;
  readonly reason: LeaseEndReason;
  /** How long after its deadline an expiry was decided, in whole milliseconds; 0 for the other reasons. */
  readonly lateMs: number;
  /** Client name and address of whoever ended it; empty for an expiry. */
  readonly by: ByteString;
  readonly keys: readonly HeldKey[];
  /** True when the lease held more keys than are named here, none of them shared. */
  readonly hasMore?: true;
}

/** Keys that the end of their lease left unnamed: dead since then, now gone from memory and store. */
export interface LeaseKeysEndOp {
  readonly kind: "lease-keys-end";
  readonly leaseId: ByteString;
  /** Why the lease ended. */
  readonly reason: LeaseEndReason;
  readonly keys: readonly HeldKey[];
}

/** A key and the token under which its lease held it. */
export interface HeldKey extends KeyName {
  readonly token: Token;
  /** True when others hold the key on: it was shared. */
  readonly remains?: true;
}

/** A key is attached to a lease, or its value changes under the same token. */
export interface KeyPutOp {
  readonly kind: "key-put";
  readonly databaseIndex: number;
  readonly key: ByteString;
  readonly leaseId: ByteString;
  readonly value: ByteString;
  readonly token: Token;
  /** How the lease holds it. Of a key that is not held exclusively, every holder has an op and a row of its own. */
  readonly mode: LockMode;
  /** Wall-clock milliseconds at which the lease got the key: for people to read. */
  readonly sinceUnixMs: number;
  /** True when the lease held the key before, so that nobody acquires anything: only the value changes. */
  readonly valueOnly?: true;
  /** What the keyspace hears; absent: `set`; null: nothing, one more lease holds a key that is there. */
  readonly event?: KeyspaceEvent | null;
}

/** A key leaves the lease that holds it. */
export interface KeyEndOp {
  readonly kind: "key-end";
  readonly databaseIndex: number;
  readonly key: ByteString;
  readonly leaseId: ByteString;
  /** The token under which the lease held it. */
  readonly token: Token;
  readonly reason: KeyEndReason;
  /** True when others hold the key on: it was shared. */
  readonly remains?: true;
}

/** A plain key, one that no lease holds, gets a value or another TTL. */
export interface StringPutOp {
  readonly kind: "string-put";
  readonly databaseIndex: number;
  readonly key: ByteString;
  readonly value: ByteString;
  /** The durable upper bound of the key's life, in milliseconds; null: it lives until it is deleted. */
  readonly ttlMs: number | null;
  /** The revision at which the key got into being, or was set to another value. Changes of its value alone leave it. */
  readonly token: Token;
  /** Wall-clock milliseconds of the same: for people to read. */
  readonly sinceUnixMs: number;
  /** True when the key's time goes on as it was; otherwise it has the whole TTL from now on. */
  readonly keepsTime?: true;
  /** What the keyspace hears, in this order. Absent in what a store hands over. */
  readonly events?: readonly KeyspaceEvent[];
}

/** A plain key ends. */
export interface StringEndOp {
  readonly kind: "string-end";
  readonly databaseIndex: number;
  readonly key: ByteString;
  readonly token: Token;
  readonly reason: StringEndReason;
}

/** A script is kept for EVALSHA. */
export interface ScriptPutOp {
  readonly kind: "script-put";
  /** SHA-1 of the body, 40 hexadecimal digits in lower case. */
  readonly sha: ByteString;
  readonly body: ByteString;
  /** Loaded by SCRIPT LOAD: it is never dropped for a newer one. */
  readonly isPinned: boolean;
}

export interface ScriptEndOp {
  readonly kind: "script-end";
  readonly sha: ByteString;
}

/** SCRIPT FLUSH. */
export interface ScriptsFlushOp {
  readonly kind: "scripts-flush";
}

/** All keys of one database go; the leases stay. */
interface FlushDatabaseOp {
  readonly kind: "flush-database";
  readonly databaseIndex: number;
}

/** All keys of all databases and all leases go. The revision goes on counting, scripts stay. */
interface FlushAllOp {
  readonly kind: "flush-all";
  readonly by: ByteString;
}

export type Op =
  | LeasePutOp
  | LeaseEndOp
  | LeaseKeysEndOp
  | KeyPutOp
  | KeyEndOp
  | StringPutOp
  | StringEndOp
  | ScriptPutOp
  | ScriptEndOp
  | ScriptsFlushOp
  | FlushDatabaseOp
  | FlushAllOp;
