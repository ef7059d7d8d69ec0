import type { Command, LockMode } from "../../engine/command.js";
import {
  blockTimeInvalid,
  clauseIncomplete,
  permitsInvalid,
  syntaxErrorAt,
  tokenInvalid,
} from "../../engine/errors.js";
import { LOCK_PERMITS_MAX, TTL_MS_MAX } from "../../engine/limits.js";
import { ErrorReply, type ByteString } from "../../engine/reply.js";
import { after, integer, key, oneOf, optional, text, word, type CommandRow } from "../command-definition.js";
import { isWord, keyError, leaseIdError, parseInteger, valueError } from "./arguments.js";

/**
 * The LOCK.* commands: argv in, engine Command out. Who gets a lock, who waits and in what order, is the engine's; that later
 * commands of a waiting connection wait with it is the connection's, which knows a blocking acquire by its `blockMs`.
 *
 * Invariant: an error of this file changed nothing and names what was wrong.
 */

const SINCE = "0.2.0";
const leaseId = key("id");

/** A command of the lock group with the name's own defaults. */
const row = (fields: Omit<CommandRow, "group" | "since">): CommandRow => ({ ...fields, group: "lock", since: SINCE });

export function lockCommands(): CommandRow[] {
  return [
    row({
      name: "lock.acquire",
      arity: -3,
      flags: "write denyoom fast blocking",
      summary: "Acquires a lock for a lease: alone, shared with readers, or as one of several permits.",
      complexity: "O(1)",
      arguments: [
        key(),
        leaseId,
        optional(after("VALUE", text("value"))),
        optional(oneOf("mode", word("SHARED"), after("LIMIT", integer("permits")))),
        optional(after("BLOCK", integer("milliseconds"))),
      ],
      keys: [1, 2, 1],
      replies: "token; nil when others hold it, with BLOCK when the time is over",
      examples: [
        "LOCK.ACQUIRE lock:a worker-7",
        "LOCK.ACQUIRE lock:a worker-7 BLOCK 5000",
        "LOCK.ACQUIRE pool worker-7 LIMIT 3 VALUE me",
      ],
      parse: parseAcquire,
    }),
    row({
      name: "lock.release",
      arity: -3,
      flags: "write fast",
      summary: "Gives a lock back; the next in the queue gets it in the same step.",
      arguments: [key(), leaseId, optional(after("TOKEN", integer("token")))],
      keys: [1, 2, 1],
      replies: "1; 0 when the lease does not hold it, or not under that token",
      examples: ["LOCK.RELEASE lock:a worker-7", "LOCK.RELEASE lock:a worker-7 TOKEN 42"],
      parse: parseRelease,
    }),
    row({
      name: "lock.info",
      arity: 2,
      flags: "readonly",
      summary: "Tells who holds a lock and who waits for it.",
      complexity: "O(N) in the number of holders and waiters shown",
      arguments: [key()],
      keys: [1, 1, 1],
      replies: "map; nil when nobody holds it",
      examples: ["LOCK.INFO lock:a"],
      timed: true,
      parse: ([, name = ""]) => keyError(name) ?? { kind: "lock-info", key: name },
    }),
    row({
      name: "lock.check",
      arity: 3,
      flags: "readonly fast",
      summary: "Tells whether a token holds a lock now.",
      arguments: [key(), integer("token")],
      keys: [1, 1, 1],
      replies: "1 or 0",
      examples: ["LOCK.CHECK lock:a 42"],
      parse: ([, name = "", given = ""]) => {
        const token = tokenOf(given);
        if (token instanceof ErrorReply) return token;
        return keyError(name) ?? { kind: "lock-check", key: name, token };
      },
    }),
  ];
}

function tokenOf(given: ByteString): number | ErrorReply {
  const token = parseInteger(given);
  return token === null || token < 0 ? tokenInvalid(given) : token;
}

const EXCLUSIVE: LockMode = { kind: "exclusive" };

/** Each clause at most once, in any order. */
function parseAcquire(argv: readonly ByteString[]): Command | ErrorReply {
  const [, name = "", id = ""] = argv;
  const error = keyError(name) ?? leaseIdError(id);
  if (error !== null) return error;
  let value: ByteString | null = null;
  let mode: LockMode | null = null;
  let blockMs: number | null = null;
  let index = 3;
  while (index < argv.length) {
    const clause = argv[index] ?? "";
    if (isWord(clause, "SHARED") && mode === null) {
      mode = { kind: "shared" };
      index += 1;
      continue;
    }
    const isKnown = isWord(clause, "BLOCK") || isWord(clause, "LIMIT") || isWord(clause, "VALUE");
    if (!isKnown) return syntaxErrorAt(clause);
    const given = argv[index + 1];
    if (given === undefined) return clauseIncomplete(clause, isWord(clause, "VALUE") ? "a value" : "a number");
    if (isWord(clause, "BLOCK") && blockMs === null) {
      blockMs = parseInteger(given);
      if (blockMs === null || blockMs < 0) return blockTimeInvalid(given, TTL_MS_MAX);
    } else if (isWord(clause, "LIMIT") && mode === null) {
      const permits = parseInteger(given);
      if (permits === null || permits < 1 || permits > LOCK_PERMITS_MAX) return permitsInvalid(given, LOCK_PERMITS_MAX);
      mode = { kind: "limit", permits };
    } else if (isWord(clause, "VALUE") && value === null) {
      const tooLong = valueError(given);
      if (tooLong !== null) return tooLong;
      value = given;
    } else {
      return syntaxErrorAt(clause);
    }
    index += 2;
  }
  return { kind: "lock-acquire", key: name, id, value, mode: mode ?? EXCLUSIVE, blockMs };
}

function parseRelease(argv: readonly ByteString[]): Command | ErrorReply {
  const [, name = "", id = "", clause, given] = argv;
  const error = keyError(name) ?? leaseIdError(id);
  if (error !== null) return error;
  if (clause === undefined) return { kind: "lock-release", key: name, id, token: null };
  if (!isWord(clause, "TOKEN")) return syntaxErrorAt(clause);
  if (given === undefined) return clauseIncomplete(clause, "a token");
  if (argv[5] !== undefined) return syntaxErrorAt(argv[5]);
  const token = tokenOf(given);
  return token instanceof ErrorReply ? token : { kind: "lock-release", key: name, id, token };
}
