import type { Command, Expiry, KeyValue, SetCondition } from "../../engine/command.js";
import { generic, invalidExpireTime, NOT_A_FLOAT, SYNTAX_ERROR, tooMany, wrongArity } from "../../engine/errors.js";
import { KEYS_PER_COMMAND_MAX, VALUE_BYTES_MAX } from "../../engine/limits.js";
import { ErrorReply, type ByteString } from "../../engine/reply.js";
import {
  after,
  block,
  integer,
  key,
  oneOf,
  optional,
  several,
  text,
  word,
  type ArgumentDoc,
  type CommandRow,
} from "../command-definition.js";
import {
  clampedIntegerOr,
  expiryAt,
  expiryIn,
  integer64Or,
  keyError,
  keysFrom,
  parseFloatText,
  valueError,
} from "./arguments.js";

/**
 * Redis's strings: keys of their own, which lock libraries set, compare and delete. Here is form only: options in any order as
 * Redis takes them, numbers, lengths; the rules are the engine's.
 *
 * Stricter than Redis in what cannot be known here: an expire time or digest that can never be right is refused even when the
 * key is missing, where Redis answers as if it had not been given.
 *
 * Invariant: an error of this file changed nothing, and its text is Redis's.
 */

const NEVER_EXPIRES: Expiry = { kind: "none" };
const KEEPS_TTL: Expiry = { kind: "keep" };
const ALWAYS: SetCondition = { kind: "always" };

const oneKey = { keys: [1, 1, 1] } as const;

/** A command of this group. */
const row = (fields: Omit<CommandRow, "group">): CommandRow => ({ ...fields, group: "string" });

export function stringCommands(): CommandRow[] {
  return [
    setRow(),
    ...settingRows(),
    ...gettingRows(),
    ...manyRows(),
    msetexRow(),
    ...rangeRows(),
    ...countingRows(),
    incrByFloatRow(),
    ...comparingRows(),
  ];
}

// Options -------------------------------------------------------------------------------------------------------------

const EXPIRY_CHOICES: readonly ArgumentDoc[] = [
  after("EX", integer("seconds")),
  after("PX", integer("milliseconds")),
  after("EXAT", integer("unix-time-seconds")),
  after("PXAT", integer("unix-time-milliseconds")),
];

const CONDITION_CHOICES: readonly ArgumentDoc[] = [
  after("IFEQ", text("value")),
  after("IFNE", text("value")),
  after("IFDEQ", text("digest")),
  after("IFDNE", text("digest")),
];

interface Options {
  condition: SetCondition;
  returnsFormer: boolean;
  expiry: ExpiryOption;
  /** What follows EX, PX, EXAT or PXAT. */
  expiryValue: ByteString;
}

type ExpiryOption = "none" | "EX" | "PX" | "EXAT" | "PXAT" | "KEEPTTL" | "PERSIST";

/** Whose options are read: each command takes some of them. */
type OptionTaker = "set" | "getex" | "msetex";

/**
 * The options from `argv[from]` on, in any order. As in Redis: one kind of expiry and one condition, but the same word may be
 * repeated, and then the last counts.
 */
function readOptions(argv: readonly ByteString[], from: number, taker: OptionTaker): Options | ErrorReply {
  const options: Options = { condition: ALWAYS, returnsFormer: false, expiry: "none", expiryValue: "" };
  let index = from;
  while (index < argv.length) {
    const read = readOption(options, argv[index] ?? "", argv[index + 1], taker);
    if (typeof read !== "number") return read;
    index += read;
  }
  return options;
}

/** Reads one option into `options`: how many arguments it took, or the error. */
function readOption(
  options: Options,
  given: ByteString,
  next: ByteString | undefined,
  taker: OptionTaker,
): 1 | 2 | ErrorReply {
  const option = given.toUpperCase();
  switch (option) {
    case "EX":
    case "PX":
    case "EXAT":
    case "PXAT":
      if (next === undefined || !takesExpiry(options, option)) return SYNTAX_ERROR;
      options.expiryValue = next;
      return 2;
    case "KEEPTTL":
      return taker !== "getex" && takesExpiry(options, option) ? 1 : SYNTAX_ERROR;
    case "PERSIST":
      return taker === "getex" && takesExpiry(options, option) ? 1 : SYNTAX_ERROR;
    case "NX":
    case "XX":
      return taker !== "getex" && takesPresence(options, option === "NX" ? "nx" : "xx") ? 1 : SYNTAX_ERROR;
    case "GET":
      if (taker !== "set") return SYNTAX_ERROR;
      options.returnsFormer = true;
      return 1;
    default: {
      const condition = taker === "set" ? readComparison(option, next) : SYNTAX_ERROR;
      if (condition instanceof ErrorReply) return condition;
      if (options.condition !== ALWAYS) return SYNTAX_ERROR;
      options.condition = condition;
      return 2;
    }
  }
}

function takesExpiry(options: Options, option: ExpiryOption): boolean {
  if (options.expiry !== "none" && options.expiry !== option) return false;
  options.expiry = option;
  return true;
}

function takesPresence(options: Options, kind: "nx" | "xx"): boolean {
  const { condition } = options;
  if (condition !== ALWAYS && condition.kind !== kind) return false;
  options.condition = { kind };
  return true;
}

const DIGEST_DIGITS = 16;
const BAD_DIGEST = generic(`must be exactly ${DIGEST_DIGITS} hexadecimal characters`);

/** IFEQ and its kin; `option` in capitals. */
function readComparison(option: string, value: ByteString | undefined): SetCondition | ErrorReply {
  if (value === undefined) return SYNTAX_ERROR;
  switch (option) {
    case "IFEQ":
      return { kind: "eq", value };
    case "IFNE":
      return { kind: "ne", value };
    case "IFDEQ":
    case "IFDNE":
      if (value.length !== DIGEST_DIGITS) return BAD_DIGEST;
      return { kind: option === "IFDEQ" ? "digest-eq" : "digest-ne", digest: value.toLowerCase() };
    default:
      return SYNTAX_ERROR;
  }
}

/** `unnamed`: what it means that no option speaks of expiry. */
function expiryOf(options: Options, unnamed: Expiry, commandName: string): Expiry | ErrorReply {
  const { expiry, expiryValue } = options;
  switch (expiry) {
    case "none":
      return unnamed;
    case "KEEPTTL":
      return KEEPS_TTL;
    case "PERSIST":
      return NEVER_EXPIRES;
    case "EX":
      return expiryIn(expiryValue, 1000, commandName);
    case "PX":
      return expiryIn(expiryValue, 1, commandName);
    case "EXAT":
      return positiveTime(expiryAt(expiryValue, 1000, commandName), commandName);
    case "PXAT":
      return positiveTime(expiryAt(expiryValue, 1, commandName), commandName);
  }
}

const positiveTime = (expiry: Expiry | ErrorReply, commandName: string): Expiry | ErrorReply =>
  expiry instanceof ErrorReply || (expiry.kind === "at" && expiry.unixMs > 0) ? expiry : invalidExpireTime(commandName);

// SET and its relatives -----------------------------------------------------------------------------------------------

function setRow(): CommandRow {
  return row({
    name: "set",
    arity: -3,
    flags: "write denyoom",
    summary: "Sets a key, on a condition, with or without a TTL.",
    since: "1.0.0",
    arguments: [
      key(),
      text("value"),
      optional(oneOf("condition", word("NX"), word("XX"), ...CONDITION_CHOICES)),
      optional(word("GET")),
      optional(oneOf("expiration", ...EXPIRY_CHOICES, word("KEEPTTL"))),
    ],
    ...oneKey,
    replies: "`OK`; nil when the condition does not hold; with GET the former value, nil when there was none",
    examples: ["SET lock:a me NX PX 30000", "SET lock:a me PX 30000 IFEQ me", "SET counter 1 GET KEEPTTL"],
    parse: parseSet,
  });
}

function parseSet(argv: readonly ByteString[]): Command | ErrorReply {
  const [, name = "", value = ""] = argv;
  const options = readOptions(argv, 3, "set");
  if (options instanceof ErrorReply) return options;
  const expiry = expiryOf(options, NEVER_EXPIRES, "set");
  if (expiry instanceof ErrorReply) return expiry;
  const { condition, returnsFormer } = options;
  return stringSet(name, value, { condition, returnsFormer, expiry, answer: returnsFormer ? "former" : "ok" });
}

type StringSet = Extract<Command, { kind: "string-set" }>;
type StringSetFields = Omit<StringSet, "kind" | "key" | "value">;

const PLAIN: StringSetFields = { condition: ALWAYS, returnsFormer: false, expiry: NEVER_EXPIRES, answer: "ok" };

const stringSet = (name: ByteString, value: ByteString, fields: StringSetFields): Command | ErrorReply =>
  keyError(name) ?? valueError(value) ?? { kind: "string-set", key: name, value, ...fields };

function settingRows(): CommandRow[] {
  const expiring = (name: string, since: string, unit: string, factor: 1 | 1000): CommandRow =>
    row({
      name,
      arity: 4,
      flags: "write denyoom",
      summary: `Sets a key with a TTL in ${unit}.`,
      since,
      arguments: [key(), integer(unit), text("value")],
      ...oneKey,
      replies: "`OK`",
      examples: [`${name.toUpperCase()} lock:a ${30 * (1000 / factor)} me`],
      parse: ([, target = "", ttl = "", value = ""]) => {
        const expiry = expiryIn(ttl, factor, name);
        return expiry instanceof ErrorReply ? expiry : stringSet(target, value, { ...PLAIN, expiry });
      },
    });
  return [
    row({
      name: "setnx",
      arity: 3,
      flags: "write denyoom fast",
      summary: "Sets a key that does not exist.",
      since: "1.0.0",
      arguments: [key(), text("value")],
      ...oneKey,
      replies: "1, or 0 when the key exists",
      examples: ["SETNX lock:a me"],
      parse: ([, name = "", value = ""]) =>
        stringSet(name, value, { ...PLAIN, condition: { kind: "nx" }, answer: "one" }),
    }),
    expiring("setex", "2.0.0", "seconds", 1000),
    expiring("psetex", "2.6.0", "milliseconds", 1),
    row({
      name: "getset",
      arity: 3,
      flags: "write denyoom fast",
      summary: "Sets a key and gives back what it was.",
      since: "1.0.0",
      arguments: [key(), text("value")],
      ...oneKey,
      replies: "the former value; nil when there was none",
      examples: ["GETSET lock:a me"],
      parse: ([, name = "", value = ""]) => stringSet(name, value, { ...PLAIN, returnsFormer: true, answer: "former" }),
    }),
  ];
}

/** The only argument of these commands is a key. */
function ofKey(argv: readonly ByteString[], make: (name: ByteString) => Command): Command | ErrorReply {
  const [, name = ""] = argv;
  return keyError(name) ?? make(name);
}

function gettingRows(): CommandRow[] {
  return [
    row({
      name: "getdel",
      arity: 2,
      flags: "write fast",
      summary: "Gets the value of a key and removes it.",
      since: "6.2.0",
      arguments: [key()],
      ...oneKey,
      replies: "the value; nil when there is no such key",
      examples: ["GETDEL lock:a"],
      parse: (argv) => ofKey(argv, (name) => ({ kind: "string-get-delete", key: name })),
    }),
    row({
      name: "getex",
      arity: -2,
      flags: "write fast",
      summary: "Gets the value of a key and gives it another TTL, or none.",
      since: "6.2.0",
      arguments: [key(), optional(oneOf("expiration", ...EXPIRY_CHOICES, word("PERSIST")))],
      ...oneKey,
      replies: "the value; nil when there is no such key",
      examples: ["GETEX lock:a", "GETEX lock:a PX 30000"],
      parse: (argv) => {
        const [, name = ""] = argv;
        const options = readOptions(argv, 2, "getex");
        if (options instanceof ErrorReply) return options;
        const expiry = expiryOf(options, KEEPS_TTL, "getex");
        if (expiry instanceof ErrorReply) return expiry;
        return keyError(name) ?? { kind: "string-get-expire", key: name, expiry };
      },
    }),
    row({
      name: "strlen",
      arity: 2,
      flags: "readonly fast",
      summary: "Tells the length of a value.",
      since: "2.2.0",
      arguments: [key()],
      ...oneKey,
      replies: "bytes; 0 when there is no such key",
      examples: ["STRLEN lock:a"],
      parse: (argv) => ofKey(argv, (name) => ({ kind: "string-length", key: name })),
    }),
  ];
}

// Many at once --------------------------------------------------------------------------------------------------------

const PAIRS = several(block("data", key(), text("value")));

function manyRows(): CommandRow[] {
  const setting = (name: string, condition: "always" | "if-none", summary: string, replies: string): CommandRow =>
    row({
      name,
      arity: -3,
      flags: "write denyoom",
      summary,
      since: "1.0.1",
      complexity: "O(N) in the number of keys named",
      arguments: [PAIRS],
      keys: [1, -1, 2],
      replies,
      examples: [`${name.toUpperCase()} lock:a me lock:b me`],
      parse: (argv) => {
        if (argv.length % 2 === 0) return wrongArity(name);
        const pairs = pairsFrom(argv, 1, argv.length);
        if (pairs instanceof ErrorReply) return pairs;
        const answer = condition === "always" ? "ok" : "one";
        return { kind: "string-set-many", pairs, condition, expiry: NEVER_EXPIRES, answer };
      },
    });
  return [
    row({
      name: "mget",
      arity: -2,
      flags: "readonly fast",
      summary: "Gets the values of several keys.",
      since: "1.0.0",
      complexity: "O(N) in the number of keys named",
      arguments: [several(key())],
      keys: [1, -1, 1],
      replies: "array of values, nil for each key that does not exist",
      examples: ["MGET lock:a lock:b"],
      parse: (argv) => {
        const keys = keysFrom(argv, 1);
        return keys instanceof ErrorReply ? keys : { kind: "string-get-many", keys };
      },
    }),
    setting("mset", "always", "Sets several keys in one step.", "`OK`"),
    setting("msetnx", "if-none", "Sets several keys in one step, or none when one of them exists.", "1 or 0"),
  ];
}

/** Keys and values in turn, `argv[from]` to `argv[to - 1]`. */
function pairsFrom(argv: readonly ByteString[], from: number, to: number): readonly KeyValue[] | ErrorReply {
  const count = (to - from) / 2;
  if (count > KEYS_PER_COMMAND_MAX) return tooMany("keys", count, KEYS_PER_COMMAND_MAX);
  const pairs: KeyValue[] = [];
  for (let index = from; index < to; index += 2) {
    const [name = "", value = ""] = [argv[index], argv[index + 1]];
    const error = keyError(name) ?? valueError(value);
    if (error !== null) return error;
    pairs.push({ key: name, value });
  }
  return pairs;
}

/** Redis counts the keys of MSETEX in an `int`. */
const PAIRS_COUNT_MAX = 2_147_483_647;
const BAD_PAIRS_COUNT = generic("invalid numkeys value");

function msetexRow(): CommandRow {
  return row({
    name: "msetex",
    arity: -4,
    flags: "write denyoom movablekeys",
    summary: "Sets several keys in one step, on a condition, with or without a TTL.",
    since: "8.4.0",
    complexity: "O(N) in the number of keys named",
    arguments: [
      integer("numkeys"),
      PAIRS,
      optional(oneOf("condition", word("NX"), word("XX"))),
      optional(oneOf("expiration", ...EXPIRY_CHOICES, word("KEEPTTL"))),
    ],
    keysOf: (argv) => {
      const count = Number(argv[1]);
      return argv.slice(2, 2 + 2 * count).filter((_, index) => index % 2 === 0);
    },
    replies: "1; 0 when the condition does not hold, then nothing is set",
    examples: ["MSETEX 2 lock:a me lock:b me NX PX 30000"],
    parse: parseMsetex,
  });
}

function parseMsetex(argv: readonly ByteString[]): Command | ErrorReply {
  const count = clampedIntegerOr(argv[1] ?? "", BAD_PAIRS_COUNT);
  if (count instanceof ErrorReply) return count;
  if (count < 1 || count > PAIRS_COUNT_MAX) return BAD_PAIRS_COUNT;
  const pairsEnd = 2 + 2 * count;
  if (pairsEnd > argv.length) return generic("wrong number of key-value pairs");
  const options = readOptions(argv, pairsEnd, "msetex");
  if (options instanceof ErrorReply) return options;
  const expiry = expiryOf(options, NEVER_EXPIRES, "msetex");
  if (expiry instanceof ErrorReply) return expiry;
  const pairs = pairsFrom(argv, 2, pairsEnd);
  if (pairs instanceof ErrorReply) return pairs;
  return { kind: "string-set-many", pairs, condition: presenceOf(options.condition), expiry, answer: "one" };
}

function presenceOf(condition: SetCondition): "always" | "if-none" | "if-all" {
  if (condition.kind === "nx") return "if-none";
  return condition.kind === "xx" ? "if-all" : "always";
}

// Parts of values -----------------------------------------------------------------------------------------------------

const TOO_LONG = generic("string exceeds maximum allowed size (proto-max-bulk-len)");

function rangeRows(): CommandRow[] {
  const range = (name: string, since: string, summary: string): CommandRow =>
    row({
      name,
      arity: 4,
      flags: "readonly",
      summary,
      since,
      complexity: "O(N) in the number of bytes returned",
      arguments: [key(), integer("start"), integer("end")],
      ...oneKey,
      replies: "the bytes; empty when there are none",
      examples: [`${name.toUpperCase()} lock:a 0 -1`],
      parse: ([, target = "", first = "", last = ""]) => {
        const start = clampedIntegerOr(first);
        if (start instanceof ErrorReply) return start;
        const end = clampedIntegerOr(last);
        if (end instanceof ErrorReply) return end;
        return keyError(target) ?? { kind: "string-get-range", key: target, start, end };
      },
    });
  return [
    row({
      name: "append",
      arity: 3,
      flags: "write denyoom fast",
      summary: "Appends to the value of a key, which is made when there is none.",
      since: "2.0.0",
      arguments: [key(), text("value")],
      ...oneKey,
      replies: "length of the value in bytes",
      examples: ["APPEND log hello"],
      parse: ([, name = "", value = ""]) =>
        keyError(name) ?? valueError(value) ?? { kind: "string-append", key: name, value },
    }),
    range("getrange", "2.4.0", "Gets a part of a value; negative positions count from its end."),
    range("substr", "1.0.0", "The old name of GETRANGE."),
    row({
      name: "setrange",
      arity: 4,
      flags: "write denyoom",
      summary: "Writes over a part of a value, which grows with zero bytes as needed.",
      since: "2.2.0",
      arguments: [key(), integer("offset"), text("value")],
      ...oneKey,
      replies: "length of the value in bytes",
      examples: ["SETRANGE log 6 world"],
      parse: ([, name = "", position = "", value = ""]) => {
        const offset = clampedIntegerOr(position);
        if (offset instanceof ErrorReply) return offset;
        if (offset < 0) return generic("offset is out of range");
        if (value !== "" && offset + value.length > VALUE_BYTES_MAX) return TOO_LONG;
        return keyError(name) ?? { kind: "string-set-range", key: name, offset, value };
      },
    }),
  ];
}

// Numbers -------------------------------------------------------------------------------------------------------------

const INTEGER_64_MIN = -(2n ** 63n);

function countingRows(): CommandRow[] {
  const increment = (name: ByteString, by: bigint): Command | ErrorReply =>
    keyError(name) ?? { kind: "string-increment", key: name, by };
  const byOne = (name: string, by: bigint, summary: string): CommandRow =>
    row({
      name,
      arity: 2,
      flags: "write denyoom fast",
      summary,
      since: "1.0.0",
      arguments: [key()],
      ...oneKey,
      replies: "the new number",
      examples: [`${name.toUpperCase()} counter`],
      parse: ([, target = ""]) => increment(target, by),
    });
  const byMany = (name: string, argument: string, sign: 1n | -1n, summary: string): CommandRow =>
    row({
      name,
      arity: 3,
      flags: "write denyoom fast",
      summary,
      since: "1.0.0",
      arguments: [key(), integer(argument)],
      ...oneKey,
      replies: "the new number",
      examples: [`${name.toUpperCase()} counter 10`],
      parse: ([, target = "", amount = ""]) => {
        const by = integer64Or(amount);
        if (by instanceof ErrorReply) return by;
        if (sign < 0 && by === INTEGER_64_MIN) return generic("decrement would overflow");
        return increment(target, sign * by);
      },
    });
  return [
    byOne("incr", 1n, "Adds 1 to a number."),
    byOne("decr", -1n, "Subtracts 1 from a number."),
    byMany("incrby", "increment", 1n, "Adds to a number."),
    byMany("decrby", "decrement", -1n, "Subtracts from a number."),
  ];
}

function incrByFloatRow(): CommandRow {
  return row({
    name: "incrbyfloat",
    arity: 3,
    flags: "write denyoom fast",
    summary: "Adds to a number with a fraction.",
    since: "2.6.0",
    arguments: [key(), text("increment")],
    ...oneKey,
    replies: "the new number as a string",
    examples: ["INCRBYFLOAT counter 0.5"],
    parse: ([, name = "", amount = ""]) => {
      const by = parseFloatText(amount);
      if (by === null) return NOT_A_FLOAT;
      return keyError(name) ?? { kind: "string-increment-float", key: name, by };
    },
  });
}

// Comparing -----------------------------------------------------------------------------------------------------------

const BAD_CONDITION = generic("Invalid condition. Use IFEQ, IFNE, IFDEQ, or IFDNE");

function comparingRows(): CommandRow[] {
  return [
    row({
      name: "delifeq",
      arity: 3,
      flags: "write fast",
      summary: "Removes a key if its value equals the one given: the release of a lock.",
      since: "9.0.0",
      arguments: [key(), text("value")],
      ...oneKey,
      replies: "1, or 0 when the value differs or there is no such key",
      examples: ["DELIFEQ lock:a me"],
      parse: ([, name = "", value = ""]) =>
        keyError(name) ?? { kind: "string-delete-if", key: name, condition: { kind: "eq", value } },
    }),
    row({
      name: "delex",
      arity: -2,
      flags: "write fast",
      summary: "Removes a key on a condition.",
      since: "8.4.0",
      arguments: [key(), optional(oneOf("condition", ...CONDITION_CHOICES))],
      ...oneKey,
      replies: "1, or 0 when the condition does not hold or there is no such key",
      examples: ["DELEX lock:a", "DELEX lock:a IFEQ me"],
      parse: (argv) => {
        const [, name = "", option, value] = argv;
        if (argv.length === 3 || argv.length > 4) return wrongArity("delex");
        const condition = option === undefined ? ALWAYS : readComparison(option.toUpperCase(), value);
        if (condition instanceof ErrorReply) return condition === SYNTAX_ERROR ? BAD_CONDITION : condition;
        return keyError(name) ?? { kind: "string-delete-if", key: name, condition };
      },
    }),
    row({
      name: "digest",
      arity: 2,
      flags: "readonly fast",
      summary: "Tells the digest of a value (XXH3, 64 bits), for conditions on long values.",
      since: "8.4.0",
      arguments: [key()],
      ...oneKey,
      replies: "16 hexadecimal digits; nil when there is no such key",
      examples: ["DIGEST lock:a"],
      parse: (argv) => ofKey(argv, (name) => ({ kind: "string-digest", key: name })),
    }),
  ];
}
