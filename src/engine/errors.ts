import { ErrorReply, type ByteString } from "./reply.js";

/**
 * The one list of errors that a client can get, codes first. Every error text of the server is made here, so that the docs
 * can be tested against the code in both directions (`docs/PROTOCOL.md`, section Errors).
 *
 * Two kinds of error and no third: operating errors are replies from this list; programmer errors crash (`invariant.ts`).
 * An outcome that is unknown is neither: the connection is closed without a word.
 */

/** Every code that can open an error reply, with what it means to a client. The docs list exactly these. */
export const ERROR_CODES = {
  ERR: "the request is malformed or its arguments are out of range; nothing changed",
  NOLEASE: "there is no live lease of that id: never granted, expired or revoked",
  LEASEEXISTS: "a live lease has that id already",
  LEASED: "the key's expiry belongs to its lease",
  DEADLOCK: "waiting for the key would close a cycle of leases that wait for each other",
  WRONGMODE:
    "the key is held, or waited for by the same lease, in a mode that does not go together with the one asked for",
  READONLY: "this node does not hold the primary role",
  LOADING: "this node holds the primary role and is still loading",
  OOM: "a limit of the server is reached; keep-alive, release, revoke and expiry go on",
  NOAUTH: "the connection has not authenticated",
  WRONGPASS: "user name or password is wrong",
  NOPERM: "the command is switched off or not allowed for this connection",
  NOPROTO: "the RESP version asked for is not spoken",
  DENIED: "protected mode: no password is set and the connection does not come from this machine",
  EXECABORT: "the transaction was discarded: one of its commands was refused when it was queued",
  NOSCRIPT: "there is no script of that SHA-1",
  NOTBUSY: "no script is running",
  UNBLOCKED: "the wait was ended by CLIENT UNBLOCK",
} as const;

export type ErrorCode = keyof typeof ERROR_CODES;

const error = (code: ErrorCode, message: string): ErrorReply => new ErrorReply(`${code} ${message}`);

/** Makes text of any origin fit for an error line: CR and LF would end it, and long values would flood it. */
export function quoteForError(value: ByteString, charactersMax = 128): string {
  const shown = value.length > charactersMax ? `${value.slice(0, charactersMax)}...` : value;
  return shown.replace(
    // oxlint-disable-next-line no-control-regex -- control characters are exactly what must not reach the error line
    /[\x00-\x1f\x7f]/g,
    (character) => `\\x${character.charCodeAt(0).toString(16).padStart(2, "0")}`,
  );
}

// Leases ------------------------------------------------------------------------------------------------------------

export const noLease = (id: ByteString): ErrorReply => error("NOLEASE", `no live lease '${quoteForError(id)}'`);
export const leaseExists = (id: ByteString): ErrorReply =>
  error("LEASEEXISTS", `lease '${quoteForError(id)}' is alive already`);
export const leased = (key: ByteString): ErrorReply =>
  error("LEASED", `the expiry of key '${quoteForError(key)}' belongs to its lease`);
export const limitReached = (what: string, limit: number): ErrorReply =>
  error("OOM", `the limit of ${limit} ${what} is reached`);
export const ttlInvalid = (given: ByteString, unit: "seconds" | "milliseconds", maximum: number): ErrorReply =>
  error("ERR", `invalid TTL '${quoteForError(given)}': must be a whole number of ${unit} from 1 to ${maximum}`);
export const tooLong = (what: string, bytes: number, maximumBytes: number): ErrorReply =>
  error("ERR", `${what} is ${bytes} bytes long, the limit is ${maximumBytes} bytes`);
export const empty = (what: string): ErrorReply => error("ERR", `${what} must not be empty`);
export const tooMany = (what: string, given: number, maximum: number): ErrorReply =>
  error("ERR", `${given} ${what} in one command, the limit is ${maximum}`);
export const duplicateKey = (key: ByteString): ErrorReply => error("ERR", `key '${quoteForError(key)}' is named twice`);

// Locks -------------------------------------------------------------------------------------------------------------

export const blockTimeInvalid = (given: ByteString, maximumMs: number): ErrorReply =>
  error(
    "ERR",
    `invalid BLOCK time '${quoteForError(given)}': must be a whole number of milliseconds from 0 (no limit) to ${maximumMs}`,
  );
export const permitsInvalid = (given: ByteString, maximum: number): ErrorReply =>
  error("ERR", `invalid LIMIT '${quoteForError(given)}': must be a whole number of permits from 1 to ${maximum}`);
export const tokenInvalid = (given: ByteString): ErrorReply =>
  error("ERR", `invalid token '${quoteForError(given)}': must be a whole number, as LOCK.ACQUIRE answered it`);

export const wrongMode = (key: ByteString, mode: string): ErrorReply =>
  error("WRONGMODE", `key '${quoteForError(key)}' is held or waited for in mode ${mode}`);
/** `cycle`: who waits for what of whom, as text. */
export const deadlock = (cycle: string): ErrorReply => error("DEADLOCK", `waiting would close a cycle: ${cycle}`);

// Role --------------------------------------------------------------------------------------------------------------

export const READONLY = error("READONLY", "You can't write against a read only replica.");
export const LOADING = error("LOADING", "Leasehold is loading the leases from its store");

// Redis's own texts -------------------------------------------------------------------------------------------------

export const SYNTAX_ERROR = error("ERR", "syntax error");
/** The same with the word that it stumbled over: for commands that Redis does not have, whose errors nobody compares. */
export const syntaxErrorAt = (word: ByteString): ErrorReply => error("ERR", `syntax error at '${quoteForError(word)}'`);
export const clauseIncomplete = (clause: ByteString, what: string): ErrorReply =>
  error("ERR", `syntax error at '${quoteForError(clause)}': ${what} must follow`);
export const NOT_AN_INTEGER = error("ERR", "value is not an integer or out of range");
export const NOT_A_FLOAT = error("ERR", "value is not a valid float");
export const OVERFLOW = error("ERR", "increment or decrement would overflow");
export const NOT_A_FINITE_NUMBER = error("ERR", "increment would produce NaN or Infinity");
export const STRING_TOO_LONG = error("ERR", "string exceeds maximum allowed size (proto-max-bulk-len)");
export const invalidExpireTime = (commandName: string): ErrorReply =>
  error("ERR", `invalid expire time in '${commandName}' command`);
export const INVALID_CURSOR = error("ERR", "invalid cursor");
export const NO_AUTH = error("NOAUTH", "Authentication required.");
export const WRONG_PASS = error("WRONGPASS", "invalid username-password pair or user is disabled.");
export const NO_PROTO = error("NOPROTO", "unsupported protocol version");
export const DB_INDEX_OUT_OF_RANGE = error("ERR", "DB index is out of range");
export const wrongArity = (commandName: string): ErrorReply =>
  error("ERR", `wrong number of arguments for '${commandName}' command`);
export const unknownSubcommand = (given: ByteString, container: string): ErrorReply =>
  error("ERR", `unknown subcommand '${quoteForError(given)}'. Try ${container} HELP.`);

/** Redis's text, which Lettuce, Redisson, Jedis and ioredis look for: name and arguments cut to 128 characters in all. */
export function unknownCommand(name: ByteString, args: readonly ByteString[]): ErrorReply {
  let shown = "";
  for (const arg of args) {
    if (shown.length >= 128) break;
    shown += `'${quoteForError(arg, 128 - shown.length)}' `;
  }
  return error("ERR", `unknown command '${quoteForError(name)}', with args beginning with: ${shown}`);
}

export const protocolError = (what: string): ErrorReply => error("ERR", `Protocol error: ${what}`);
/** Any other text of Redis's under the generic code. */
export const generic = (message: string): ErrorReply => error("ERR", message);
export const withCode = (code: ErrorCode, message: string): ErrorReply => error(code, message);
