import type { Command, KeyValue } from "../../engine/command.js";
import { clauseIncomplete, empty, syntaxErrorAt, tooLong, tooMany } from "../../engine/errors.js";
import { KEYS_PER_COMMAND_MAX, LABEL_BYTES_MAX, REQUEST_NONCE_BYTES_MAX } from "../../engine/limits.js";
import { ErrorReply, type ByteString } from "../../engine/reply.js";
import {
  after,
  block,
  integer,
  key,
  oneOf,
  optional,
  pattern,
  several,
  severalClauses,
  text,
  word,
  type ArgumentDoc,
  type CommandRow,
} from "../command-definition.js";
import {
  isWord,
  keyError,
  keysFrom,
  leaseIdError,
  leaseIds,
  parseScan,
  parseTtlMs,
  ttlWidth,
  valueError,
} from "./arguments.js";

/**
 * The LEASE.* commands: argv in, engine Command out. The rules are the engine's; here is only form: numbers, words, lengths.
 *
 * Invariant: an error of this file changed nothing and names what was wrong.
 */

const SINCE = "0.1.0";
const leaseId = key("id");
const ttl: ArgumentDoc = oneOf(
  "ttl",
  integer("seconds"),
  after("EX", integer("seconds")),
  after("PX", integer("milliseconds")),
);

/** A command of the lease group with the name's own defaults. */
const row = (fields: Omit<CommandRow, "group" | "since">): CommandRow => ({ ...fields, group: "lease", since: SINCE });

export function leaseCommands(): CommandRow[] {
  return [...lifeCommands(), ...keyCommands(), ...readingCommands()];
}

function lifeCommands(): CommandRow[] {
  return [
    row({
      name: "lease.grant",
      arity: -3,
      flags: "write denyoom fast movablekeys",
      summary: "Grants a lease, with keys that live and die with it.",
      complexity: "O(N) in the number of keys",
      arguments: [
        key("id|*"),
        ttl,
        optional(severalClauses(after("KEY", block("attachment", key(), text("value"))))),
        optional(after("LABEL", text("text"))),
        optional(after("REQUEST", text("nonce"))),
      ],
      replies: "`[id, ttl in ms, token]`; nil when another lease holds one of the keys, then nothing is granted",
      examples: ["LEASE.GRANT worker-7 30", "LEASE.GRANT * PX 1500 KEY lock:a me LABEL nightly REQUEST 5f0c"],
      keys: [1, 1, 1],
      keysOf: grantKeys,
      parse: parseGrant,
    }),
    row({
      name: "lease.keepalive",
      arity: -2,
      flags: "fast",
      summary: "Starts the TTL of leases anew. Never writes to disk.",
      complexity: "O(1) for each lease",
      arguments: [several(leaseId)],
      replies: "remaining ms, the full TTL, or the error `NOLEASE`; of several ids an array, -2 for each dead one",
      examples: ["LEASE.KEEPALIVE worker-7", "LEASE.KEEPALIVE worker-7 worker-8"],
      keys: [1, -1, 1],
      parse: parseKeepAlive,
    }),
    row({
      name: "lease.revoke",
      arity: -2,
      flags: "write fast",
      summary: "Ends leases and removes their keys.",
      complexity: "O(N) in the number of keys of the leases",
      arguments: [several(leaseId)],
      replies: "number of leases revoked; absent ones do not count",
      examples: ["LEASE.REVOKE worker-7"],
      timed: true,
      keys: [1, -1, 1],
      parse: (argv) => {
        const ids = leaseIds(argv, 1);
        return ids instanceof ErrorReply ? ids : { kind: "lease-revoke", ids };
      },
    }),
    row({
      name: "lease.setttl",
      arity: -3,
      flags: "write fast",
      summary: "Gives a lease another TTL, from now on.",
      arguments: [leaseId, ttl],
      replies: "remaining ms, the new TTL",
      examples: ["LEASE.SETTTL worker-7 PX 90000"],
      keys: [1, 1, 1],
      parse: parseSetTtl,
    }),
  ];
}

function keyCommands(): CommandRow[] {
  return [
    row({
      name: "lease.attach",
      arity: -4,
      flags: "write denyoom fast",
      summary: "Attaches a key to a lease.",
      arguments: [leaseId, key(), text("value"), optional(word("FORCE"))],
      replies: "the key's token; nil when another lease holds the key",
      examples: ["LEASE.ATTACH worker-7 lock:b me", "LEASE.ATTACH worker-7 lock:b me FORCE"],
      keys: [1, 2, 1],
      parse: parseAttach,
    }),
    row({
      name: "lease.detach",
      arity: -3,
      flags: "write fast",
      summary: "Removes keys from their lease.",
      complexity: "O(N) in the number of keys named",
      arguments: [leaseId, several(key())],
      replies: "number of keys detached; only those of that lease count",
      examples: ["LEASE.DETACH worker-7 lock:a lock:b"],
      keys: [1, -1, 1],
      parse: (argv) => {
        const [, id = ""] = argv;
        const error = leaseIdError(id);
        if (error !== null) return error;
        const keys = keysFrom(argv, 2);
        return keys instanceof ErrorReply ? keys : { kind: "lease-detach", id, keys };
      },
    }),
  ];
}

function readingCommands(): CommandRow[] {
  return [
    row({
      name: "lease.ttl",
      arity: 2,
      flags: "readonly fast",
      summary: "Tells the remaining time of a lease in seconds.",
      arguments: [leaseId],
      replies: "whole seconds, rounded down; -2 when there is no such lease",
      examples: ["LEASE.TTL worker-7"],
      keys: [1, 1, 1],
      parse: (argv) => ofLease(argv, (id) => ({ kind: "lease-ttl", id, unit: "s" })),
    }),
    row({
      name: "lease.pttl",
      arity: 2,
      flags: "readonly fast",
      summary: "Tells the remaining time of a lease in milliseconds.",
      arguments: [leaseId],
      replies: "milliseconds; -2 when there is no such lease",
      examples: ["LEASE.PTTL worker-7"],
      keys: [1, 1, 1],
      parse: (argv) => ofLease(argv, (id) => ({ kind: "lease-ttl", id, unit: "ms" })),
    }),
    row({
      name: "lease.info",
      arity: 2,
      flags: "readonly",
      summary: "Tells everything about a lease, for a while even after its end.",
      complexity: "O(N) in the number of its keys",
      arguments: [leaseId],
      replies: "map; nil when there is no such lease",
      examples: ["LEASE.INFO worker-7"],
      timed: true,
      keys: [1, 1, 1],
      parse: (argv) => ofLease(argv, (id) => ({ kind: "lease-info", id })),
    }),
    row({
      name: "lease.scan",
      arity: -2,
      flags: "readonly",
      summary: "Walks through the ids of all leases.",
      complexity: "O(1) for each call, O(N) for a whole walk",
      arguments: [integer("cursor"), optional(after("MATCH", pattern())), optional(after("COUNT", integer("count")))],
      replies: "`[cursor, [ids]]`; the walk ends with cursor 0",
      examples: ["LEASE.SCAN 0", "LEASE.SCAN 0 MATCH worker-* COUNT 100"],
      timed: true,
      parse: (argv) => {
        const scan = parseScan(argv, false);
        if (scan instanceof ErrorReply) return scan;
        return { kind: "lease-scan", cursor: scan.cursor, match: scan.match, count: scan.count };
      },
    }),
  ];
}

/** The one argument of these commands is a lease id. */
function ofLease(argv: readonly ByteString[], make: (id: ByteString) => Command): Command | ErrorReply {
  const [, id = ""] = argv;
  return leaseIdError(id) ?? make(id);
}

/** The hot path of the server: one object, no loop, for a single id. */
function parseKeepAlive(argv: readonly ByteString[]): Command | ErrorReply {
  if (argv.length === 2) {
    const id = argv[1] ?? "";
    return leaseIdError(id) ?? { kind: "lease-keepalive", id };
  }
  const ids = leaseIds(argv, 1);
  return ids instanceof ErrorReply ? ids : { kind: "lease-keepalive-many", ids };
}

function parseSetTtl(argv: readonly ByteString[]): Command | ErrorReply {
  const [, id = ""] = argv;
  const idError = leaseIdError(id);
  if (idError !== null) return idError;
  const width = ttlWidth(argv, 2);
  const ttlMs = parseTtlMs(argv, 2, width, "lease.setttl");
  if (ttlMs instanceof ErrorReply) return ttlMs;
  const stray = argv[2 + width];
  if (stray !== undefined) return syntaxErrorAt(stray);
  return { kind: "lease-setttl", id, ttlMs };
}

function parseAttach(argv: readonly ByteString[]): Command | ErrorReply {
  const [, id = "", attached = "", value = "", option] = argv;
  const error = leaseIdError(id) ?? keyError(attached) ?? valueError(value);
  if (error !== null) return error;
  if (option !== undefined && !isWord(option, "FORCE")) return syntaxErrorAt(option);
  if (argv[5] !== undefined) return syntaxErrorAt(argv[5]);
  return { kind: "lease-attach", id, key: attached, value, force: option !== undefined };
}

function parseGrant(argv: readonly ByteString[]): Command | ErrorReply {
  const [, id = ""] = argv;
  const idError = leaseIdError(id);
  if (idError !== null) return idError;
  const width = ttlWidth(argv, 2);
  const ttlMs = parseTtlMs(argv, 2, width, "lease.grant");
  if (ttlMs instanceof ErrorReply) return ttlMs;
  const clauses = parseGrantClauses(argv, 2 + width);
  if (clauses instanceof ErrorReply) return clauses;
  const { keys, label, request } = clauses;
  return { kind: "lease-grant", id: id === "*" ? null : id, ttlMs, keys, label, request };
}

interface GrantClauses {
  readonly keys: readonly KeyValue[];
  readonly label: ByteString | null;
  readonly request: ByteString | null;
}

const NO_KEYS: readonly KeyValue[] = [];

/** KEY, LABEL and REQUEST from `argv[at]` on, in any order; KEY as often as wanted, the others once. */
function parseGrantClauses(argv: readonly ByteString[], at: number): GrantClauses | ErrorReply {
  let keys: KeyValue[] | null = null;
  let label: ByteString | null = null;
  let request: ByteString | null = null;
  let index = at;
  while (index < argv.length) {
    const clause = argv[index] ?? "";
    const first = argv[index + 1];
    if (isWord(clause, "KEY")) {
      const value = argv[index + 2];
      if (first === undefined || value === undefined) return clauseIncomplete(clause, "a key and a value");
      const error = keyError(first) ?? valueError(value);
      if (error !== null) return error;
      keys ??= [];
      keys.push({ key: first, value });
      index += 3;
    } else if (isWord(clause, "LABEL") && label === null) {
      if (first === undefined) return clauseIncomplete(clause, "a text");
      if (first.length > LABEL_BYTES_MAX) return tooLong("the label", first.length, LABEL_BYTES_MAX);
      label = first;
      index += 2;
    } else if (isWord(clause, "REQUEST") && request === null) {
      if (first === undefined) return clauseIncomplete(clause, "a nonce");
      if (first.length === 0) return empty("the request nonce");
      if (first.length > REQUEST_NONCE_BYTES_MAX) {
        return tooLong("the request nonce", first.length, REQUEST_NONCE_BYTES_MAX);
      }
      request = first;
      index += 2;
    } else {
      return syntaxErrorAt(clause);
    }
  }
  if (keys !== null && keys.length > KEYS_PER_COMMAND_MAX) return tooMany("keys", keys.length, KEYS_PER_COMMAND_MAX);
  return { keys: keys ?? NO_KEYS, label, request };
}

/** COMMAND GETKEYS: the lease id, then the keys of the KEY clauses. */
function grantKeys(argv: readonly ByteString[]): readonly ByteString[] {
  const keys = argv.slice(1, 2);
  let index = 2 + ttlWidth(argv, 2);
  while (index < argv.length) {
    const isKey = isWord(argv[index] ?? "", "KEY");
    const attached = argv[index + 1];
    if (isKey && attached !== undefined) keys.push(attached);
    index += isKey ? 3 : 2;
  }
  return keys;
}
