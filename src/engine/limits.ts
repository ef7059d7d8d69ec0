/**
 * Every bound of the engine and of what a client may send it, each with its reason. Nothing in the server grows without one
 * of these. Those that a user may want to move are in `EngineLimits` and come from the configuration.
 */

/** Redis's number of databases; `SELECT 0`..`SELECT 15`. */
export const DATABASE_COUNT = 16;

/** Long enough for a UUID, a host name and a path; short enough that an id is never the bulk of a lease's memory. */
export const LEASE_ID_BYTES_MAX = 256;

/** The shortest TTL that can be asked for. */
export const TTL_MS_MIN = 1;

/** Number.MAX_SAFE_INTEGER: beyond it milliseconds lose precision. About 285,000 years. */
export const TTL_MS_MAX = 9_007_199_254_740_991;

/** A label is for people to read. */
export const LABEL_BYTES_MAX = 1024;

/** A request nonce is a UUID or a hash. */
export const REQUEST_NONCE_BYTES_MAX = 256;

/** Keys are names. etcd takes 1.5 MiB per request in all; Redis 512 MB, which no lock needs. */
export const KEY_BYTES_MAX = 65_536;

/** Values say who holds a lock; a megabyte is etcd's envelope too. */
export const VALUE_BYTES_MAX = 1_048_576;

/** Keys named in one GRANT, DETACH, EXISTS or DEL: they share one turn. */
export const KEYS_PER_COMMAND_MAX = 10_000;

/** Globs of KEYS, SCAN, PSUBSCRIBE and the like: a compiled one is dozens of times as large as its text. */
export const PATTERN_BYTES_MAX = 1024;

/** Permits of one semaphore: holders are rows, listed by LOCK.INFO. */
export const LOCK_PERMITS_MAX = 1_000_000;

/** COUNT of SCAN and LEASE.SCAN: the work of one turn. */
export const SCAN_COUNT_MAX = 10_000;

/** Expiries handed to one command: a batch of rows and a slice of a turn (about 1 ms). */
export const EXPIRIES_PER_TURN_MAX = 500;

/**
 * Keys of ended leases named in one command, and in each slice of what it left unnamed: a slice of a turn (about 1 ms). There is one
 * slice per batch, so that a grant never waits for a batch of 100,000 rows.
 */
export const KEYS_ENDED_AT_ONCE_MAX = 1_000;

/** Ended leases that LEASE.INFO still tells about. Memory only. */
export const ENDED_LEASES_REMEMBERED_MAX = 10_000;

/** Rows of ended leases and keys freed per call: a slice of a turn (about 1 ms). */
export const SWEPT_PER_CALL_MAX = 1_000;

/**
 * After a take-over a lease may live longer than its TTL by up to this share of it, and by no more than the maximum: leases that
 * were granted at one moment then do not all fall due at one moment.
 */
export const SPREAD_TTL_FRACTION = 0.1;
export const SPREAD_MS_MAX = 60_000;

/**
 * Keys handed to waiters in one turn: each is a row to write and a reply to send (about 2 ms in all). When a lease with 100,000 contended
 * keys ends, the rest follows turn by turn, other commands in between; a key that is not handed on yet is free, but who asks for
 * it with LOCK.ACQUIRE stands behind those who wait.
 */
export const HAND_OVERS_PER_TURN_MAX = 200;

/** Holders and waiters that LOCK.INFO names, each; it counts all of them. */
export const LOCK_INFO_LISTED_MAX = 100;

/** Steps from lease to lease that the search for a cycle takes before a wait is let in unexamined (about 1 ms). */
export const DEADLOCK_STEPS_MAX = 10_000;

/** Scripts kept for EVALSHA, and the bytes of their sources: a client that makes a new script for each call must not fill the memory. */
export const SCRIPTS_MAX = 1_000;
export const SCRIPT_BYTES_MAX = 16 * 1024 * 1024;

/** One of them: it is one row, and a row has to fit into one transaction of a shared store. */
export const SCRIPT_BODY_BYTES_MAX = 1_048_576;

export interface EngineLimits {
  /** Leases in all. V8's Map ends at 16.7 million entries; 10 million leave room and are about 3 GB. */
  readonly leasesMax: number;
  /** Keys of one lease: those that it shares end in the turn in which it ends. */
  readonly keysPerLeaseMax: number;
  /** Keys in all, for the same reason as leases. */
  readonly keysMax: number;
  /** Commands that wait for one key, and in all: a waiter is about 1 KB. */
  readonly waitersPerKeyMax: number;
  readonly waitersMax: number;
  /** KEYS_ENDED_AT_ONCE_MAX, but for tests. */
  readonly keysEndedAtOnceMax: number;
  /** Bound of the clocks' rate error: every deadline is padded by this share of its TTL, in thousandths. 2 = 0.2 %. */
  readonly clockErrorPerMille: number;
}

export const DEFAULT_ENGINE_LIMITS: EngineLimits = {
  leasesMax: 10_000_000,
  keysPerLeaseMax: 100_000,
  keysMax: 10_000_000,
  waitersPerKeyMax: 100_000,
  waitersMax: 1_000_000,
  keysEndedAtOnceMax: KEYS_ENDED_AT_ONCE_MAX,
  clockErrorPerMille: 2,
};
