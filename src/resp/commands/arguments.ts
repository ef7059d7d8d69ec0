import {
  KEY_BYTES_MAX,
  KEYS_PER_COMMAND_MAX,
  LEASE_ID_BYTES_MAX,
  PATTERN_BYTES_MAX,
  SCAN_COUNT_MAX,
  TTL_MS_MAX,
  TTL_MS_MIN,
  VALUE_BYTES_MAX,
} from "../../engine/limits.js";
import {
  empty,
  INVALID_CURSOR,
  NOT_AN_INTEGER,
  SYNTAX_ERROR,
  tooLong,
  tooMany,
  invalidExpireTime,
  ttlInvalid,
  wrongArity,
} from "../../engine/errors.js";
import type { Expiry } from "../../engine/command.js";
import { ErrorReply, type ByteString } from "../../engine/reply.js";

/**
 * The words, numbers and names that commands are made of, read from argv. Each function answers the value or the error that
 * the client gets; none throws.
 *
 * Invariants:
 *  - a number is read as Redis reads one (decimal digits, a leading minus; no plus, no leading zeros, no blanks), or not at all
 *  - nothing here allocates on the way to a keep-alive
 */

/** The largest whole number of seconds that is a legal TTL. */
const TTL_SECONDS_MAX = Math.floor(TTL_MS_MAX / 1000);

const ZERO = 0x30;
const NINE = 0x39;
const MINUS = 0x2d;

const LOWER_A = 0x61;
const LOWER_Z = 0x7a;
const LOWER_TO_UPPER = 0x20;

/** True when `argument` is `word` in any letter case. `word` is in capitals. */
export function isWord(argument: ByteString, word: string): boolean {
  if (argument === word) return true;
  if (argument.length !== word.length) return false;
  for (let index = 0; index < word.length; index += 1) {
    const code = argument.charCodeAt(index);
    const upper = code >= LOWER_A && code <= LOWER_Z ? code - LOWER_TO_UPPER : code;
    if (upper !== word.charCodeAt(index)) return false;
  }
  return true;
}

/** The whole number that `text` is, from -(2^53-1) to 2^53-1; null when it is anything else. */
export function parseInteger(text: ByteString): number | null {
  const negative = text.charCodeAt(0) === MINUS;
  const first = negative ? 1 : 0;
  const digits = text.length - first;
  // 16 digits hold every safe integer, and are few enough that the sum below cannot overflow into infinity.
  if (digits === 0 || digits > 16) return null;
  if (text.charCodeAt(first) === ZERO) return text.length === 1 ? 0 : null;
  let value = 0;
  for (let index = first; index < text.length; index += 1) {
    const code = text.charCodeAt(index);
    if (code < ZERO || code > NINE) return null;
    value = value * 10 + (code - ZERO);
  }
  if (value > Number.MAX_SAFE_INTEGER) return null;
  return negative ? -value : value;
}

/** As `parseInteger`, with Redis's error for what is none or lies outside of `minimum`..`maximum`. */
export function integerOr(
  text: ByteString,
  error: ErrorReply = NOT_AN_INTEGER,
  minimum = Number.MIN_SAFE_INTEGER,
  maximum = Number.MAX_SAFE_INTEGER,
): number | ErrorReply {
  const value = parseInteger(text);
  return value === null || value < minimum || value > maximum ? error : value;
}

const INTEGER_64_MIN = -(2n ** 63n);
const INTEGER_64_MAX = 2n ** 63n - 1n;
const INTEGER_64_FORM = /^-?[1-9]\d{0,18}$/;

/** As `integerOr` over all 64 bits that Redis counts in. */
export function integer64Or(text: ByteString, error: ErrorReply = NOT_AN_INTEGER): bigint | ErrorReply {
  const small = parseInteger(text);
  if (small !== null) return BigInt(small);
  if (!INTEGER_64_FORM.test(text)) return error;
  const value = BigInt(text);
  return value < INTEGER_64_MIN || value > INTEGER_64_MAX ? error : value;
}

/** As `integer64Or`, cut to the safe integers: for positions and counts, where what lies beyond means the same as the bound. */
export function clampedIntegerOr(text: ByteString, error: ErrorReply = NOT_AN_INTEGER): number | ErrorReply {
  const small = parseInteger(text);
  if (small !== null) return small;
  const wide = integer64Or(text, error);
  if (wide instanceof ErrorReply) return wide;
  return wide < 0n ? Number.MIN_SAFE_INTEGER : Number.MAX_SAFE_INTEGER;
}

const FLOAT_FORM = /^[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?$/i;
const INFINITY_FORM = /^([+-]?)inf(?:inity)?$/i;

/** The number that `text` is as C reads one, hexadecimal ones aside; null when it is anything else. */
export function parseFloatText(text: ByteString): number | null {
  if (FLOAT_FORM.test(text)) return Number(text);
  const infinity = INFINITY_FORM.exec(text);
  if (infinity === null) return null;
  return infinity[1] === "-" ? -Infinity : Infinity;
}

/** A number of `factor` milliseconds each, in Redis's words for what is none. Below all safe integers: the smallest of them. */
function milliseconds(given: ByteString, factor: 1 | 1000, commandName: string): number | ErrorReply {
  const value = parseInteger(given);
  if (value === null) {
    const wide = integer64Or(given);
    if (wide instanceof ErrorReply) return wide;
    const isFarPast = wide < 0n && wide * BigInt(factor) >= INTEGER_64_MIN;
    return isFarPast ? Number.MIN_SAFE_INTEGER : invalidExpireTime(commandName);
  }
  const valueMs = value * factor;
  return valueMs > TTL_MS_MAX ? invalidExpireTime(commandName) : valueMs;
}

/** A TTL from now, in units of `factor` milliseconds. */
export function expiryIn(given: ByteString, factor: 1 | 1000, commandName: string): Expiry | ErrorReply {
  const ttlMs = milliseconds(given, factor, commandName);
  if (ttlMs instanceof ErrorReply) return ttlMs;
  return ttlMs < TTL_MS_MIN ? invalidExpireTime(commandName) : { kind: "in", ttlMs };
}

/** As `expiryIn`, and none or a negative one is a time that is past: it ends the key at once (EXPIRE). */
export function expiryInOrPast(given: ByteString, factor: 1 | 1000, commandName: string): Expiry | ErrorReply {
  const ttlMs = milliseconds(given, factor, commandName);
  if (ttlMs instanceof ErrorReply) return ttlMs;
  return ttlMs < TTL_MS_MIN ? { kind: "at", unixMs: 0 } : { kind: "in", ttlMs };
}

/** A time on the wall clock, in units of `factor` milliseconds. One before 1970 is as past as 1970. */
export function expiryAt(given: ByteString, factor: 1 | 1000, commandName: string): Expiry | ErrorReply {
  const unixMs = milliseconds(given, factor, commandName);
  return unixMs instanceof ErrorReply ? unixMs : { kind: "at", unixMs: Math.max(0, unixMs) };
}

/** How many arguments the TTL at `argv[at]` takes: 2 with EX or PX in front, else 1. */
export function ttlWidth(argv: readonly ByteString[], at: number): 1 | 2 {
  const first = argv[at] ?? "";
  return isWord(first, "EX") || isWord(first, "PX") ? 2 : 1;
}

/**
 * The TTL at `argv[at]` in milliseconds: `seconds`, `EX seconds` or `PX milliseconds`; `width` is its `ttlWidth`. Exact or
 * refused: nothing is rounded, cut or guessed, and the error names the unit that was meant.
 */
export function parseTtlMs(
  argv: readonly ByteString[],
  at: number,
  width: 1 | 2,
  commandName: string,
): number | ErrorReply {
  const given = argv[at + width - 1];
  if (given === undefined) return wrongArity(commandName);
  const value = parseInteger(given);
  if (width === 2 && isWord(argv[at] ?? "", "PX")) {
    return value === null || value < TTL_MS_MIN || value > TTL_MS_MAX
      ? ttlInvalid(given, "milliseconds", TTL_MS_MAX)
      : value;
  }
  return value === null || value < 1 || value > TTL_SECONDS_MAX
    ? ttlInvalid(given, "seconds", TTL_SECONDS_MAX)
    : value * 1000;
}

/** null when `id` can be a lease id, else the error. */
export function leaseIdError(id: ByteString): ErrorReply | null {
  if (id.length > LEASE_ID_BYTES_MAX) return tooLong("the lease id", id.length, LEASE_ID_BYTES_MAX);
  if (id.length === 0) return empty("the lease id");
  return null;
}

/** null when `key` can be a key, else the error. As in Redis, a key may be empty. */
export function keyError(key: ByteString): ErrorReply | null {
  return key.length > KEY_BYTES_MAX ? tooLong("the key", key.length, KEY_BYTES_MAX) : null;
}

/** null when `value` may be stored, else the error. */
export function valueError(value: ByteString): ErrorReply | null {
  return value.length > VALUE_BYTES_MAX ? tooLong("the value", value.length, VALUE_BYTES_MAX) : null;
}

/** null when `glob` may be compiled, else the error. */
export function patternError(glob: ByteString): ErrorReply | null {
  return glob.length > PATTERN_BYTES_MAX ? tooLong("the pattern", glob.length, PATTERN_BYTES_MAX) : null;
}

/** The arguments from `from` on as lease ids. */
export function leaseIds(argv: readonly ByteString[], from: number): readonly ByteString[] | ErrorReply {
  const count = argv.length - from;
  if (count > KEYS_PER_COMMAND_MAX) return tooMany("leases", count, KEYS_PER_COMMAND_MAX);
  const ids = argv.slice(from);
  for (const id of ids) {
    const error = leaseIdError(id);
    if (error !== null) return error;
  }
  return ids;
}

/** The arguments from `from` on as keys. */
export function keysFrom(argv: readonly ByteString[], from: number): readonly ByteString[] | ErrorReply {
  const count = argv.length - from;
  if (count > KEYS_PER_COMMAND_MAX) return tooMany("keys", count, KEYS_PER_COMMAND_MAX);
  const keys = argv.slice(from);
  for (const key of keys) {
    const error = keyError(key);
    if (error !== null) return error;
  }
  return keys;
}

/** What SCAN and LEASE.SCAN have in common. */
export interface ScanArguments {
  readonly cursor: number;
  readonly match: ByteString | null;
  /** 1..SCAN_COUNT_MAX: COUNT is a hint, so that a larger one is cut and not refused. */
  readonly count: number;
  readonly type: ByteString | null;
}

/** Redis's default of COUNT. */
const SCAN_COUNT_DEFAULT = 10;

/** `cursor [MATCH glob] [COUNT n] [TYPE t]` from `argv[1]` on; as in Redis the last of a repeated option counts. */
export function parseScan(argv: readonly ByteString[], takesType: boolean): ScanArguments | ErrorReply {
  const cursor = integerOr(argv[1] ?? "", INVALID_CURSOR, 0);
  if (cursor instanceof ErrorReply) return cursor;
  let match: ByteString | null = null;
  let count = SCAN_COUNT_DEFAULT;
  let type: ByteString | null = null;
  for (let index = 2; index < argv.length; index += 2) {
    const word = argv[index] ?? "";
    const value = argv[index + 1];
    if (value === undefined) return SYNTAX_ERROR;
    if (isWord(word, "COUNT")) {
      const wanted = parseInteger(value);
      if (wanted === null) return NOT_AN_INTEGER;
      if (wanted < 1) return SYNTAX_ERROR;
      count = Math.min(wanted, SCAN_COUNT_MAX);
    } else if (isWord(word, "MATCH")) {
      const error = patternError(value);
      if (error !== null) return error;
      match = value;
    } else if (takesType && isWord(word, "TYPE")) {
      type = value;
    } else {
      return SYNTAX_ERROR;
    }
  }
  return { cursor, match, count, type };
}
