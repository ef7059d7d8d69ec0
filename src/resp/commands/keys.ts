import type { Command, Expiry } from "../../engine/command.js";
import { generic, NOT_AN_INTEGER, quoteForError, SYNTAX_ERROR } from "../../engine/errors.js";
import { ErrorReply, type ByteString, type Reply } from "../../engine/reply.js";
import {
  after,
  integer,
  key,
  oneOf,
  optional,
  pattern,
  several,
  text,
  word,
  type CommandRow,
} from "../command-definition.js";
import type { Step } from "../command.js";
import type { ServerContext } from "../server-context.js";
import {
  expiryAt,
  expiryInOrPast,
  isWord,
  keyError,
  keysFrom,
  parseInteger,
  parseScan,
  patternError,
} from "./arguments.js";

/**
 * Redis's commands on keys of any origin: attached to a lease, whose time is then theirs, or set for themselves (`strings.ts`).
 * All of them are strings. What only Redis keeps (access times, sizes of encodings) is answered as well as it can be, or refused by name.
 */

export function keyCommands(context: ServerContext): CommandRow[] {
  return [
    ...readingRows(),
    ...timeRows(),
    ...expiryRows(),
    randomRow(context),
    ...countingRows(),
    ...removingRows(),
    ...walkingRows(),
    objectRow(),
  ];
}

const oneKey = { arguments: [key()], keys: [1, 1, 1] } as const;
const manyKeys = {
  arguments: [several(key())],
  keys: [1, -1, 1],
  complexity: "O(N) in the number of keys named",
} as const;

function ofKey(argv: readonly ByteString[], make: (name: ByteString) => Command): Command | ErrorReply {
  const [, name = ""] = argv;
  return keyError(name) ?? make(name);
}

function ofKeys(argv: readonly ByteString[], make: (names: readonly ByteString[]) => Command): Command | ErrorReply {
  const names = keysFrom(argv, 1);
  return names instanceof ErrorReply ? names : make(names);
}

function readingRows(): CommandRow[] {
  return [
    {
      name: "get",
      arity: 2,
      flags: "readonly fast",
      summary: "Gets the value of a key.",
      since: "1.0.0",
      group: "string",
      ...oneKey,
      replies: "the value; nil when there is no such key",
      examples: ["GET lock:a"],
      parse: (argv) => ofKey(argv, (name) => ({ kind: "key-get", key: name })),
    },
    {
      name: "type",
      arity: 2,
      flags: "readonly fast",
      summary: "Tells the type of a key.",
      since: "1.0.0",
      group: "generic",
      ...oneKey,
      replies: "`string` or `none`",
      examples: ["TYPE lock:a"],
      parse: (argv) => ofKey(argv, (name) => ({ kind: "key-type", key: name })),
    },
  ];
}

function timeRows(): CommandRow[] {
  return [
    {
      name: "ttl",
      arity: 2,
      flags: "readonly fast",
      summary: "Tells the remaining time of a key, its own or its lease's, in seconds.",
      since: "1.0.0",
      group: "generic",
      ...oneKey,
      replies: "seconds; -1 when it never expires, -2 when there is no such key",
      examples: ["TTL lock:a"],
      parse: (argv) => ofKey(argv, (name) => ({ kind: "key-ttl", key: name, unit: "s" })),
    },
    {
      name: "pttl",
      arity: 2,
      flags: "readonly fast",
      summary: "Tells the remaining time of a key, its own or its lease's, in milliseconds.",
      since: "2.6.0",
      group: "generic",
      ...oneKey,
      replies: "milliseconds; -1 when it never expires, -2 when there is no such key",
      examples: ["PTTL lock:a"],
      parse: (argv) => ofKey(argv, (name) => ({ kind: "key-ttl", key: name, unit: "ms" })),
    },
  ];
}

// Expiry --------------------------------------------------------------------------------------------------------------

type ExpireCondition = Extract<Command, { kind: "key-expire" }>["condition"];

function expiryRows(): CommandRow[] {
  const condition = optional(oneOf("condition", word("NX"), word("XX"), word("GT"), word("LT")));
  const setting = (
    name: string,
    since: string,
    argument: string,
    summary: string,
    read: (given: ByteString) => Expiry | ErrorReply,
  ): CommandRow => ({
    name,
    arity: -3,
    flags: "write fast",
    summary,
    since,
    group: "generic",
    arguments: [key(), integer(argument), condition],
    keys: [1, 1, 1],
    replies: "1; 0 when there is no such key or the condition does not hold",
    examples: [`${name.toUpperCase()} lock:a 4102444800`, `${name.toUpperCase()} lock:a 4102444800 GT`],
    parse: (argv) => {
      const [, target = "", time = ""] = argv;
      const wanted = expireConditionFrom(argv);
      if (wanted instanceof ErrorReply) return wanted;
      const expiry = read(time);
      if (expiry instanceof ErrorReply) return expiry;
      return keyError(target) ?? { kind: "key-expire", key: target, expiry, condition: wanted };
    },
  });
  const telling = (name: string, unit: "s" | "ms", what: string): CommandRow => ({
    name,
    arity: 2,
    flags: "readonly fast",
    summary: `Tells when a key will expire, as a Unix time in ${what}.`,
    since: "7.0.0",
    group: "generic",
    ...oneKey,
    replies: `Unix time in ${what}; -1 when it never expires, -2 when there is no such key`,
    examples: [`${name.toUpperCase()} lock:a`],
    parse: (argv) => ofKey(argv, (target) => ({ kind: "key-expire-time", key: target, unit })),
  });
  return [
    setting("expire", "1.0.0", "seconds", "Gives a key a TTL in seconds.", (given) =>
      expiryInOrPast(given, 1000, "expire"),
    ),
    setting("pexpire", "2.6.0", "milliseconds", "Gives a key a TTL in milliseconds.", (given) =>
      expiryInOrPast(given, 1, "pexpire"),
    ),
    setting("expireat", "1.2.0", "unix-time-seconds", "Lets a key expire at a Unix time in seconds.", (given) =>
      expiryAt(given, 1000, "expireat"),
    ),
    setting(
      "pexpireat",
      "2.6.0",
      "unix-time-milliseconds",
      "Lets a key expire at a Unix time in milliseconds.",
      (given) => expiryAt(given, 1, "pexpireat"),
    ),
    {
      name: "persist",
      arity: 2,
      flags: "write fast",
      summary: "Takes the TTL of a key away: it lives until it is removed.",
      since: "2.2.0",
      group: "generic",
      ...oneKey,
      replies: "1; 0 when there is no such key or it has no TTL",
      examples: ["PERSIST lock:a"],
      parse: (argv) => ofKey(argv, (target) => ({ kind: "key-persist", key: target })),
    },
    telling("expiretime", "s", "seconds"),
    telling("pexpiretime", "ms", "milliseconds"),
  ];
}

const NX_WITH_OTHERS = generic("NX and XX, GT or LT options at the same time are not compatible");
const GT_WITH_LT = generic("GT and LT options at the same time are not compatible");

/** NX, XX, GT and LT from `argv[3]` on. */
function expireConditionFrom(argv: readonly ByteString[]): ExpireCondition | ErrorReply {
  if (argv.length === 3) return "always";
  const given = new Set<string>();
  for (const option of argv.slice(3)) {
    const wanted = option.toUpperCase();
    if (wanted !== "NX" && wanted !== "XX" && wanted !== "GT" && wanted !== "LT") {
      return generic(`Unsupported option ${quoteForError(option)}`);
    }
    given.add(wanted);
  }
  if (given.has("NX")) return given.size > 1 ? NX_WITH_OTHERS : "nx";
  if (given.has("GT")) return given.has("LT") ? GT_WITH_LT : given.has("XX") ? "xx-gt" : "gt";
  if (given.has("LT")) return given.has("XX") ? "xx-lt" : "lt";
  return "xx";
}

function randomRow(context: ServerContext): CommandRow {
  return {
    name: "randomkey",
    arity: 1,
    flags: "readonly",
    summary: "Picks any key of the database.",
    since: "1.0.0",
    group: "generic",
    replies: "a key; nil when there is none",
    examples: ["RANDOMKEY"],
    parse: () => ({ kind: "key-random", fraction: context.ids.fraction() }),
  };
}

function countingRows(): CommandRow[] {
  return [
    {
      name: "exists",
      arity: -2,
      flags: "readonly fast",
      summary: "Counts the keys that exist; one named twice counts twice.",
      since: "1.0.0",
      group: "generic",
      ...manyKeys,
      replies: "number",
      examples: ["EXISTS lock:a lock:b"],
      parse: (argv) => ofKeys(argv, (keys) => ({ kind: "key-exists", keys })),
    },
    {
      name: "touch",
      arity: -2,
      flags: "readonly fast",
      summary: "The same as EXISTS: access times are not kept.",
      since: "3.2.1",
      group: "generic",
      ...manyKeys,
      replies: "number",
      examples: ["TOUCH lock:a"],
      parse: (argv) => ofKeys(argv, (keys) => ({ kind: "key-exists", keys })),
    },
    {
      name: "dbsize",
      arity: 1,
      flags: "readonly fast",
      summary: "Counts the keys of the database.",
      since: "1.0.0",
      group: "server",
      categories: ["@keyspace"],
      replies: "number",
      examples: ["DBSIZE"],
      parse: () => ({ kind: "key-count" }),
    },
  ];
}

function removingRows(): CommandRow[] {
  const mode = optional(oneOf("flush-type", word("ASYNC"), word("SYNC")));
  return [
    {
      name: "del",
      arity: -2,
      flags: "write",
      summary: "Removes keys; their leases live on.",
      since: "1.0.0",
      group: "generic",
      ...manyKeys,
      replies: "number of keys removed",
      examples: ["DEL lock:a"],
      parse: (argv) => ofKeys(argv, (keys) => ({ kind: "key-delete", keys })),
    },
    {
      name: "unlink",
      arity: -2,
      flags: "write fast",
      summary: "The same as DEL.",
      since: "4.0.0",
      group: "generic",
      ...manyKeys,
      replies: "number of keys removed",
      examples: ["UNLINK lock:a"],
      parse: (argv) => ofKeys(argv, (keys) => ({ kind: "key-delete", keys })),
    },
    {
      name: "flushdb",
      arity: -1,
      flags: "write",
      summary: "Removes all keys of the database; the leases live on.",
      since: "1.0.0",
      group: "server",
      categories: ["@keyspace", "@dangerous"],
      complexity: "O(N) in the number of keys",
      arguments: [mode],
      replies: "`OK`",
      examples: ["FLUSHDB"],
      timed: true,
      parse: (argv) => flushError(argv) ?? { kind: "flush-database" },
    },
    {
      name: "flushall",
      arity: -1,
      flags: "write",
      summary: "Ends all leases and removes all keys of all databases.",
      since: "1.0.0",
      group: "server",
      categories: ["@keyspace", "@dangerous"],
      complexity: "O(N) in the number of keys and leases",
      arguments: [mode],
      replies: "`OK`",
      examples: ["FLUSHALL"],
      timed: true,
      parse: (argv) => flushError(argv) ?? { kind: "flush-all" },
    },
  ];
}

/** ASYNC and SYNC are the same here: the answer waits until the removal is durable. */
function flushError(argv: readonly ByteString[]): ErrorReply | null {
  const mode = argv[1];
  const isLegal = argv.length <= 2 && (mode === undefined || isWord(mode, "ASYNC") || isWord(mode, "SYNC"));
  return isLegal ? null : SYNTAX_ERROR;
}

function walkingRows(): CommandRow[] {
  return [
    {
      name: "keys",
      arity: 2,
      flags: "readonly",
      summary: "Lists all keys that match a glob; SCAN does the same in small steps.",
      since: "1.0.0",
      group: "generic",
      categories: ["@keyspace", "@dangerous"],
      complexity: "O(N) in the number of keys of the database",
      arguments: [pattern()],
      replies: "array of keys",
      examples: ["KEYS lock:*"],
      timed: true,
      parse: ([, glob = ""]) => patternError(glob) ?? { kind: "key-list", pattern: glob },
    },
    {
      name: "scan",
      arity: -2,
      flags: "readonly",
      summary: "Walks through the keys of the database.",
      since: "2.8.0",
      group: "generic",
      complexity: "O(1) for each call, O(N) for a whole walk",
      arguments: [
        integer("cursor"),
        optional(after("MATCH", pattern())),
        optional(after("COUNT", integer("count"))),
        optional(after("TYPE", text("type"))),
      ],
      replies: "`[cursor, [keys]]`; the walk ends with cursor 0",
      examples: ["SCAN 0", "SCAN 0 MATCH lock:* COUNT 100 TYPE string"],
      timed: true,
      parse: (argv) => {
        const scan = parseScan(argv, true);
        return scan instanceof ErrorReply ? scan : { kind: "key-scan", ...scan };
      },
    },
  ];
}

// What only Redis keeps -----------------------------------------------------------------------------------------------

function objectRow(): CommandRow {
  const sub = (
    name: string,
    since: string,
    summary: string,
    replies: string,
    translate: (value: ByteString) => Reply,
  ): CommandRow => ({
    name: `object|${name}`,
    arity: 3,
    flags: "readonly",
    summary,
    since,
    group: "generic",
    arguments: [key()],
    keys: [2, 2, 1],
    replies,
    compose: (argv, _connection, step) => ofValue(argv, step, translate),
  });
  return {
    name: "object",
    arity: -2,
    flags: "",
    summary: "Looks at the inside of a key.",
    since: "2.2.3",
    group: "generic",
    complexity: "Depends on the subcommand.",
    replies: "see the subcommands",
    subcommands: [
      sub("encoding", "2.2.3", "Tells how Redis would hold the value.", "`int`, `embstr` or `raw`", encodingOf),
      sub("freq", "4.0.0", "Access frequencies are not kept.", "an error, as in Redis without LFU", () => NO_FREQUENCY),
      sub("idletime", "2.2.3", "Access times are not kept.", "an error", () => NO_IDLE_TIME),
      sub("refcount", "2.2.3", "A value is never shared.", "1", () => 1),
    ],
  };
}

const NO_FREQUENCY = generic("An LFU maxmemory policy is not selected, access frequency not tracked.");
const NO_IDLE_TIME = generic("Access times are not tracked.");

/** Answers by the value of the key at `argv[2]`, nil when there is no such key. */
function ofValue(argv: readonly ByteString[], step: Step, translate: (value: ByteString) => Reply): Reply {
  const name = argv[2] ?? "";
  const error = keyError(name);
  if (error !== null) return error;
  const value = step.run({ kind: "key-get", key: name });
  if (value instanceof ErrorReply) return value;
  return typeof value === "string" ? translate(value) : null;
}

/** Redis's bounds: a 64-bit integer, a string that fits beside its object header, any other. */
function encodingOf(value: ByteString): string {
  if (parseInteger(value) !== null) return "int";
  return value.length <= 44 ? "embstr" : "raw";
}

/** About what one key costs beside its bytes: its row in the tables, its name's entry, its record's header. */
const KEY_OVERHEAD_BYTES = 96;

/** MEMORY USAGE, which `server.ts` puts into its container. */
export function memoryUsageRow(): CommandRow {
  return {
    name: "memory|usage",
    arity: -3,
    flags: "readonly",
    summary: "Estimates the memory of a key and its value.",
    since: "4.0.0",
    group: "server",
    arguments: [key(), optional(after("SAMPLES", integer("count")))],
    keys: [2, 2, 1],
    replies: "bytes; nil when there is no such key",
    compose: (argv, _connection, step) => {
      const [, , name = "", option, samples] = argv;
      if (option !== undefined) {
        if (argv.length !== 5 || !isWord(option, "SAMPLES")) return SYNTAX_ERROR;
        const count = parseInteger(samples ?? "");
        if (count === null) return NOT_AN_INTEGER;
        if (count < 0) return SYNTAX_ERROR;
      }
      return ofValue(argv, step, (value) => KEY_OVERHEAD_BYTES + name.length + value.length);
    },
  };
}
