import type { Command, Expiry, KeyValue, SetCondition } from "./command.js";
import { decimalSum, INFINITE } from "./decimal.js";
import { Shortening, type Draft } from "./draft.js";
import {
  leased,
  limitReached,
  NOT_A_FLOAT,
  NOT_A_FINITE_NUMBER,
  NOT_AN_INTEGER,
  OVERFLOW,
  STRING_TOO_LONG,
} from "./errors.js";
import { unreachable } from "./invariant.js";
import { NO_KEY, type KeyRow } from "./key-table.js";
import { VALUE_BYTES_MAX } from "./limits.js";
import type { KeyspaceEvent } from "./op.js";
import { OK, type ByteString, type ErrorReply, type Reply } from "./reply.js";

/**
 * The rules of Redis's strings: keys that are set, changed and deleted without a lease. Like `lease.ts`, each function answers one
 * command and changes nothing.
 *
 * A plain key with a TTL is a lease of its own (`lease-table.ts`): value and granted TTL are durable, the deadline is not. So a
 * renewal within the durable TTL is memory only, by EXPIRE and its like, and by a SET of the very value that is there, which is how
 * several lock libraries extend. A longer TTL, the first TTL, and PERSIST are written.
 *
 * A key that leases hold is a string for these commands too:
 *  - what keeps a key's TTL in Redis leaves the key with its lease, under the same token: APPEND, SETRANGE, INCR, SET KEEPTTL
 *  - what would make another key of it takes it from its lease: SET, GETSET, MSET, DEL, GETDEL
 *  - what asks for another expiry is refused with LEASED: EXPIRE, PERSIST, GETEX with an option
 * A shared key has the value of its first holder, who gets changes of it too.
 *
 * Token of a plain key: the revision at which it came to be, or was set to something else. Changes of its value or time leave it.
 */

type CommandOf<K extends Command["kind"]> = Extract<Command, { kind: K }>;

const SET: readonly KeyspaceEvent[] = ["set"];
const SET_EXPIRE: readonly KeyspaceEvent[] = ["set", "expire"];
const EXPIRE: readonly KeyspaceEvent[] = ["expire"];
const PERSIST: readonly KeyspaceEvent[] = ["persist"];

const INTEGER_MAX = 2n ** 63n - 1n;
const INTEGER_MIN = -(2n ** 63n);

// SET and its relatives ---------------------------------------------------------------------------------------------

export function setString(draft: Draft, command: CommandOf<"string-set">): Reply {
  const { key, value, expiry, answer } = command;
  const wantsFormer = command.returnsFormer || answer === "former";
  const row = wantsFormer ? draft.readKey(key) : draft.findKey(key);
  const former = row === NO_KEY ? null : draft.keys.value(row);
  if (!holds(draft, command.condition, former))
    return wantsFormer || answer === "ok" ? (wantsFormer ? former : null) : 0;
  if (renews(draft, row, value, expiry)) return wantsFormer ? former : answer === "one" ? 1 : OK;
  const refusal = row === NO_KEY ? refuseKeys(draft, 1) : null;
  if (refusal !== null) return refusal;
  put(draft, row, key, value, expiry);
  return wantsFormer ? former : answer === "one" ? 1 : OK;
}

export function setStrings(draft: Draft, command: CommandOf<"string-set-many">): Reply {
  const { condition, expiry } = command;
  const pairs = lastOfEach(command.pairs);
  const rows = pairs.map(({ key }) => draft.findKey(key));
  const missing = rows.filter((row) => row === NO_KEY).length;
  if (condition === "if-none" && missing < rows.length) return 0;
  if (condition === "if-all" && missing > 0) return 0;
  const refusal = refuseKeys(draft, missing);
  if (refusal !== null) return refusal;
  for (const [index, { key, value }] of pairs.entries()) put(draft, rows[index]!, key, value, expiry);
  return command.answer === "one" ? 1 : OK;
}

/** A key that is named twice gets the value that was named last, as in Redis. */
function lastOfEach(pairs: readonly KeyValue[]): readonly KeyValue[] {
  if (pairs.length < 2) return pairs;
  const values = new Map<ByteString, KeyValue>();
  for (const pair of pairs) values.set(pair.key, pair);
  return values.size === pairs.length ? pairs : [...values.values()];
}

/** Whether a condition holds for what is there: null when nothing is. */
function holds(draft: Draft, condition: SetCondition, present: ByteString | null): boolean {
  switch (condition.kind) {
    case "always":
      return true;
    case "nx":
      return present === null;
    case "xx":
      return present !== null;
    case "eq":
      return present === condition.value;
    case "ne":
      return present !== condition.value;
    case "digest-eq":
      return present !== null && draft.digestOf(present) === condition.digest.toLowerCase();
    case "digest-ne":
      return present === null || draft.digestOf(present) !== condition.digest.toLowerCase();
    default:
      return unreachable(condition);
  }
}

/** True when a SET says what the disk knows already: the same value, and no longer than the durable TTL. Only the time moves. */
function renews(draft: Draft, row: KeyRow, value: ByteString, expiry: Expiry): boolean {
  if (row === NO_KEY || (expiry.kind !== "in" && expiry.kind !== "at")) return false;
  const { keys } = draft;
  const durableTtlMs = draft.ttlOfPlain(row);
  if (durableTtlMs === null || keys.value(row) !== value) return false;
  const ttlMs = ttlFrom(draft, expiry);
  if (ttlMs <= 0 || ttlMs > durableTtlMs) return false;
  draft.renew(new Shortening(keys.holder(row), ttlMs));
  for (const event of SET_EXPIRE) draft.tell(keys.name(row), event);
  return true;
}

/** The key becomes a plain one of this value, whoever held it; only KEEPTTL leaves a key with its lease. */
function put(draft: Draft, row: KeyRow, key: ByteString, value: ByteString, expiry: Expiry): void {
  if (expiry.kind === "keep" && row !== NO_KEY) {
    draft.changeValue(row, value, "set");
    return;
  }
  const hasTtl = expiry.kind === "in" || expiry.kind === "at";
  const ttlMs = hasTtl ? ttlFrom(draft, expiry) : null;
  if (ttlMs !== null && ttlMs <= 0) {
    // As good as set and expired.
    if (row !== NO_KEY) draft.takeKey(row, "deleted");
    return;
  }
  if (row !== NO_KEY && !draft.isPlain(row)) draft.takeKey(row, "taken");
  putNew(draft, key, value, ttlMs, hasTtl ? SET_EXPIRE : SET);
}

function putNew(
  draft: Draft,
  key: ByteString,
  value: ByteString,
  ttlMs: number | null,
  events: readonly KeyspaceEvent[],
): void {
  const { databaseIndex } = draft;
  const token = draft.revision;
  draft.add({ kind: "string-put", databaseIndex, key, value, ttlMs, token, sinceUnixMs: draft.unixMs, events });
}

function refuseKeys(draft: Draft, newKeys: number): ErrorReply | null {
  const { keysMax } = draft.limits;
  if (newKeys > 0 && draft.keyCount + newKeys > keysMax) draft.makeRoom();
  return newKeys > 0 && draft.keyCount + newKeys > keysMax ? limitReached("keys", keysMax) : null;
}

/** A TTL in milliseconds; 0 or less when the time is over. The wall clock is read here and nowhere else. */
function ttlFrom(draft: Draft, expiry: Extract<Expiry, { kind: "in" | "at" }>): number {
  return expiry.kind === "in" ? expiry.ttlMs : Math.ceil(expiry.unixMs - draft.unixMs);
}

// Reading -----------------------------------------------------------------------------------------------------------

export function getStrings(draft: Draft, keys: readonly ByteString[]): Reply {
  return keys.map((key) => valueOf(draft, key));
}

export function stringLength(draft: Draft, key: ByteString): Reply {
  return (valueOf(draft, key) ?? "").length;
}

/** `start` and `end` are included; negative ones count from the end. */
export function getRange(draft: Draft, command: CommandOf<"string-get-range">): Reply {
  const value = valueOf(draft, command.key) ?? "";
  const { length } = value;
  if (command.start < 0 && command.end < 0 && command.start > command.end) return "";
  const start = Math.max(0, command.start < 0 ? length + command.start : command.start);
  const end = Math.max(0, command.end < 0 ? length + command.end : command.end);
  return start > end ? "" : value.slice(start, end + 1);
}

export function digestString(draft: Draft, key: ByteString): Reply {
  const value = valueOf(draft, key);
  return value === null ? null : draft.digestOf(value);
}

function valueOf(draft: Draft, key: ByteString): ByteString | null {
  const row = draft.readKey(key);
  return row === NO_KEY ? null : draft.keys.value(row);
}

// Getting and changing ----------------------------------------------------------------------------------------------

export function getAndDelete(draft: Draft, key: ByteString): Reply {
  const row = draft.readKey(key);
  if (row === NO_KEY) return null;
  draft.takeKey(row, "deleted");
  return draft.keys.value(row);
}

/** GETEX: without an option a GET, otherwise also an EXPIRE or PERSIST. */
export function getAndExpire(draft: Draft, { key, expiry }: CommandOf<"string-get-expire">): Reply {
  const row = draft.readKey(key);
  if (row === NO_KEY) return null;
  const value = draft.keys.value(row);
  if (expiry.kind === "keep") return value;
  if (!draft.isPlain(row)) return leased(key);
  if (expiry.kind === "none") persist(draft, row);
  else expire(draft, row, ttlFrom(draft, expiry));
  return value;
}

export function deleteIf(draft: Draft, { key, condition }: CommandOf<"string-delete-if">): Reply {
  const row = draft.findKey(key);
  if (row === NO_KEY || !holds(draft, condition, draft.keys.value(row))) return 0;
  draft.takeKey(row, "deleted");
  return 1;
}

export function append(draft: Draft, { key, value }: CommandOf<"string-append">): Reply {
  const row = draft.findKey(key);
  const former = row === NO_KEY ? "" : draft.keys.value(row);
  if (former.length + value.length > VALUE_BYTES_MAX) return STRING_TOO_LONG;
  return change(draft, row, key, former + value, "append") ?? former.length + value.length;
}

/** Writes over a part of the value; a gap before it is filled with zero bytes. */
export function setRange(draft: Draft, { key, offset, value }: CommandOf<"string-set-range">): Reply {
  const row = draft.findKey(key);
  const former = row === NO_KEY ? "" : draft.keys.value(row);
  if (value === "") return former.length;
  const end = offset + value.length;
  if (end > VALUE_BYTES_MAX) return STRING_TOO_LONG;
  const changed = former.slice(0, offset).padEnd(offset, "\0") + value + former.slice(end);
  return change(draft, row, key, changed, "setrange") ?? changed.length;
}

/** Over the whole range of 64 bits; the number is kept as its decimal text. */
export function increment(draft: Draft, { key, by }: CommandOf<"string-increment">): Reply {
  const row = draft.findKey(key);
  const former = row === NO_KEY ? 0n : parseInteger(draft.keys.value(row));
  if (former === null) return NOT_AN_INTEGER;
  const sum = former + by;
  if (sum > INTEGER_MAX || sum < INTEGER_MIN) return OVERFLOW;
  const number = Number(sum);
  return change(draft, row, key, String(sum), "incrby") ?? (Number.isSafeInteger(number) ? number : sum);
}

/** Redis's form of an integer: no spaces, no plus, no leading zeros, 64 bits. */
function parseInteger(text: ByteString): bigint | null {
  if (!/^(?:0|-?[1-9][0-9]{0,18})$/.test(text)) return null;
  const value = BigInt(text);
  return value > INTEGER_MAX || value < INTEGER_MIN ? null : value;
}

/**
 * The sum of the two decimal numbers, exactly, cut to 17 digits behind the point as Redis shows them. (Redis adds in the 80-bit
 * numbers of its processor: for numbers below a thousand or so the text is the same, beyond it shows digits that nobody meant.)
 */
export function incrementFloat(draft: Draft, { key, by }: CommandOf<"string-increment-float">): Reply {
  const row = draft.findKey(key);
  if (!Number.isFinite(by)) return NOT_A_FINITE_NUMBER;
  const sum = decimalSum(row === NO_KEY ? "0" : draft.keys.value(row), String(by));
  if (sum === null) return NOT_A_FLOAT;
  if (sum === INFINITE) return NOT_A_FINITE_NUMBER;
  return change(draft, row, key, sum, "incrbyfloat") ?? sum;
}

/** Another value for a key, which keeps its time and holder; a new key without a TTL when there is none. null when that is done. */
function change(
  draft: Draft,
  row: KeyRow,
  key: ByteString,
  value: ByteString,
  event: KeyspaceEvent,
): ErrorReply | null {
  if (row !== NO_KEY) {
    draft.changeValue(row, value, event);
    return null;
  }
  const refusal = refuseKeys(draft, 1);
  if (refusal === null) putNew(draft, key, value, null, [event]);
  return refusal;
}

// Expiry ------------------------------------------------------------------------------------------------------------

export function expireKey(draft: Draft, { key, expiry, condition }: CommandOf<"key-expire">): Reply {
  const row = draft.findKey(key);
  if (row === NO_KEY || expiry.kind === "keep" || expiry.kind === "none") return 0;
  if (!draft.isPlain(row)) return leased(key);
  const ttlMs = ttlFrom(draft, expiry);
  const hasTtl = draft.ttlOfPlain(row) !== null;
  const leftMs = hasTtl ? draft.deadlines.remainingMs(draft.keys.holder(row), draft.nowMs) : Infinity;
  if (!mayExpire(condition, hasTtl, ttlMs, leftMs)) return 0;
  expire(draft, row, ttlMs);
  return 1;
}

function mayExpire(
  condition: CommandOf<"key-expire">["condition"],
  hasTtl: boolean,
  ttlMs: number,
  leftMs: number,
): boolean {
  switch (condition) {
    case "always":
      return true;
    case "nx":
      return !hasTtl;
    case "xx":
      return hasTtl;
    case "gt":
      return ttlMs > leftMs;
    case "lt":
      return ttlMs < leftMs;
    case "xx-gt":
      return hasTtl && ttlMs > leftMs;
    case "xx-lt":
      return hasTtl && ttlMs < leftMs;
    default:
      return unreachable(condition);
  }
}

/** A plain key gets this TTL from now on: in memory when the disk knows a longer one. */
function expire(draft: Draft, row: KeyRow, ttlMs: number): void {
  const { keys } = draft;
  if (ttlMs <= 0) {
    draft.endKey(row, "deleted");
    return;
  }
  const durableTtlMs = draft.ttlOfPlain(row);
  if (durableTtlMs !== null && ttlMs <= durableTtlMs) {
    draft.renew(new Shortening(keys.holder(row), ttlMs));
    draft.tell(keys.name(row), "expire");
  } else {
    rewrite(draft, row, ttlMs, EXPIRE);
  }
}

export function persistKey(draft: Draft, key: ByteString): Reply {
  const row = draft.findKey(key);
  if (row === NO_KEY) return 0;
  return draft.isPlain(row) ? persist(draft, row) : leased(key);
}

function persist(draft: Draft, row: KeyRow): number {
  if (draft.ttlOfPlain(row) === null) return 0;
  rewrite(draft, row, null, PERSIST);
  return 1;
}

function rewrite(draft: Draft, row: KeyRow, ttlMs: number | null, events: readonly KeyspaceEvent[]): void {
  const { keys, databaseIndex } = draft;
  draft.add({
    kind: "string-put",
    databaseIndex,
    key: keys.name(row),
    value: keys.value(row),
    ttlMs,
    token: keys.token.get(row),
    sinceUnixMs: keys.sinceUnixMs(row),
    events,
  });
}

/** EXPIRETIME: what is left, added to the wall clock; for people. */
export function expireTime(draft: Draft, { key, unit }: CommandOf<"key-expire-time">): Reply {
  const leftMs = timeLeft(draft, key);
  if (leftMs < 0) return leftMs;
  // The longest TTL from now on ends beyond the last millisecond that a number can name.
  const unixMs = Math.min(draft.unixMs + leftMs, Number.MAX_SAFE_INTEGER);
  return Math.floor(unit === "ms" ? unixMs : unixMs / 1000);
}

/** What TTL answers for a key that is not there, and for one without a TTL. */
const ABSENT = -2;
const NO_TTL = -1;

/** TTL, PTTL. */
export function keyTtl(draft: Draft, { key, unit }: CommandOf<"key-ttl">): Reply {
  const leftMs = timeLeft(draft, key);
  return leftMs < 0 || unit === "ms" ? leftMs : Math.floor(leftMs / 1000);
}

/** What is left of a key, in whole milliseconds, rounded down: its own time, or its lease's, of a shared key its first holder's. */
function timeLeft(draft: Draft, key: ByteString): number {
  const row = draft.readKey(key);
  if (row === NO_KEY) return ABSENT;
  const { leases } = draft.state;
  const holder = draft.keys.holder(row);
  draft.see(leases.changedAt(holder));
  return holder === leases.forever ? NO_TTL : draft.deadlines.remainingMs(holder, draft.nowMs);
}
