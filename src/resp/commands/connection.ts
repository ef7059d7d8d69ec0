import { createHash, timingSafeEqual } from "node:crypto";
import {
  DB_INDEX_OUT_OF_RANGE,
  generic,
  NO_PROTO,
  NOT_AN_INTEGER,
  quoteForError,
  SYNTAX_ERROR,
  tooLong,
  withCode,
  WRONG_PASS,
  wrongArity,
} from "../../engine/errors.js";
import { DATABASE_COUNT } from "../../engine/limits.js";
import { MapReply, OK, StatusReply, type ByteString, type ErrorReply, type Reply } from "../../engine/reply.js";
import type { ClientConnection, ProtocolVersion } from "../command.js";
import { after, block, integer, optional, text, type CommandRow } from "../command-definition.js";
import type { ServerContext } from "../server-context.js";
import { isWord, parseInteger } from "./arguments.js";
import { redisRole } from "./roles.js";
import { leaveTransaction } from "./transactions.js";

/**
 * The handshake and the state of one connection: HELLO, AUTH, SELECT, RESET, QUIT, PING, ECHO. Texts and order of checks are
 * Redis's, because clients choose their next step by them (RESP2 when HELLO is unknown, AUTH when it is refused).
 */

/** The only user there is. */
const USER = "default";

/** A name goes into the record of every lease that the client grants. */
export const CLIENT_NAME_BYTES_MAX = 256;

export function connectionCommands(context: ServerContext): CommandRow[] {
  const hello = helloRow(context, (connection) => helloReply(context, connection));
  return [hello, authRow(context), selectRow(), quitRow(), resetRow(context), pingRow(), echoRow()];
}

/** What the handshake needs to know of a server. */
export type HandshakeContext = Pick<ServerContext, "settings" | "diagnostics">;

/** HELLO, AUTH, QUIT and PING, as every port speaks them; `greet` makes the answer of HELLO. */
export function handshakeCommands(
  context: HandshakeContext,
  greet: (connection: ClientConnection) => Reply,
): CommandRow[] {
  return [helloRow(context, greet), authRow(context), quitRow(), pingRow()];
}

const HANDSHAKE_FLAGS = "noscript loading stale fast no_auth allow_busy";

// Authentication ------------------------------------------------------------------------------------------------------

/** Null when the pair is right. As in Redis, without a password the default user gets in with any. */
function authenticationError(context: HandshakeContext, user: ByteString, password: ByteString): ErrorReply | null {
  const expected = context.settings.password;
  const isRight = user === USER && (expected === null || sameSecret(password, expected));
  if (isRight) return null;
  context.diagnostics.authenticationFailures += 1;
  return WRONG_PASS;
}

/** In a time that tells nothing of how much was right. */
function sameSecret(given: ByteString, expected: ByteString): boolean {
  const digest = (secret: ByteString): Buffer => createHash("sha256").update(secret, "latin1").digest();
  return timingSafeEqual(digest(given), digest(expected));
}

const NO_PASSWORD_CONFIGURED = generic(
  "AUTH <password> called without any password configured for the default user. " +
    "Are you sure your configuration is correct?",
);

function authRow(context: HandshakeContext): CommandRow {
  return {
    name: "auth",
    arity: -2,
    flags: HANDSHAKE_FLAGS,
    summary: "Authenticates the connection.",
    since: "1.0.0",
    group: "connection",
    arguments: [optional(text("username")), text("password")],
    replies: "`OK`",
    secret: true,
    run: (argv, connection) => {
      if (argv.length > 3) return SYNTAX_ERROR;
      if (argv.length === 2 && context.settings.password === null) return NO_PASSWORD_CONFIGURED;
      const [user, password] = argv.length === 2 ? [USER, argv[1] ?? ""] : [argv[1] ?? "", argv[2] ?? ""];
      const error = authenticationError(context, user, password);
      if (error !== null) return error;
      connection.authenticated = true;
      return OK;
    },
  };
}

// HELLO ---------------------------------------------------------------------------------------------------------------

const HELLO_NEEDS_AUTH = withCode(
  "NOAUTH",
  "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option " +
    "can be used to authenticate the client and select the RESP protocol version at the same time",
);

interface HelloArguments {
  readonly protocol: ProtocolVersion | null;
  readonly credentials: readonly [user: ByteString, password: ByteString] | null;
  readonly name: ByteString | null;
}

function helloRow(context: HandshakeContext, greet: (connection: ClientConnection) => Reply): CommandRow {
  return {
    name: "hello",
    arity: -1,
    flags: HANDSHAKE_FLAGS,
    summary: "Chooses the RESP version, with authentication and name in the same step.",
    since: "6.0.0",
    group: "connection",
    arguments: [
      optional(
        block(
          "arguments",
          integer("protover"),
          optional(after("AUTH", block("username_password", text("username"), text("password")))),
          optional(after("SETNAME", text("clientname"))),
        ),
      ),
    ],
    replies: "map: server, version, proto, id, mode, role, modules",
    examples: ["HELLO 3", "HELLO 3 SETNAME worker"],
    secret: true,
    run: (argv, connection) => {
      const wanted = parseHello(argv);
      if (!("protocol" in wanted)) return wanted;
      if (wanted.credentials !== null) {
        const error = authenticationError(context, ...wanted.credentials);
        if (error !== null) return error;
        connection.authenticated = true;
      }
      if (!connection.authenticated) return HELLO_NEEDS_AUTH;
      if (wanted.name !== null) connection.name = wanted.name;
      if (wanted.protocol !== null) connection.protocol = wanted.protocol;
      return greet(connection);
    },
  };
}

function parseHello(argv: readonly ByteString[]): HelloArguments | ErrorReply {
  if (argv.length === 1) return { protocol: null, credentials: null, name: null };
  const version = parseInteger(argv[1] ?? "");
  if (version === null) return generic("Protocol version is not an integer or out of range");
  if (version !== 2 && version !== 3) return NO_PROTO;
  let credentials: HelloArguments["credentials"] = null;
  let name: ByteString | null = null;
  let index = 2;
  while (index < argv.length) {
    const option = argv[index] ?? "";
    const [first, second] = [argv[index + 1], argv[index + 2]];
    if (isWord(option, "AUTH") && first !== undefined && second !== undefined) {
      credentials = [first, second];
      index += 3;
    } else if (isWord(option, "SETNAME") && first !== undefined) {
      const error = clientNameError(first);
      if (error !== null) return error;
      name = first;
      index += 2;
    } else {
      return generic(`Syntax error in HELLO option '${quoteForError(option)}'`);
    }
  }
  return { protocol: version, credentials, name };
}

function helloReply(context: ServerContext, connection: ClientConnection): Reply {
  return new MapReply([
    ["server", "redis"],
    ["version", context.identity.redisVersion],
    ["proto", connection.protocol],
    ["id", connection.id],
    ["mode", "standalone"],
    ["role", redisRole(context.backend.report().role) === "master" ? "master" : "replica"],
    ["modules", []],
  ]);
}

/** Null when `name` may be a client's name: visible characters, so that CLIENT LIST stays one line per client. */
export function clientNameError(name: ByteString): ErrorReply | null {
  if (!isVisible(name)) return generic("Client names cannot contain spaces, newlines or special characters.");
  return name.length > CLIENT_NAME_BYTES_MAX ? tooLong("the client name", name.length, CLIENT_NAME_BYTES_MAX) : null;
}

/** Nothing but `!`..`~`. */
export function isVisible(value: ByteString): boolean {
  for (let index = 0; index < value.length; index += 1) {
    const code = value.charCodeAt(index);
    if (code < 0x21 || code > 0x7e) return false;
  }
  return true;
}

// State ---------------------------------------------------------------------------------------------------------------

function selectRow(): CommandRow {
  return {
    name: "select",
    arity: 2,
    flags: "loading stale fast",
    summary: "Changes the database of the connection.",
    since: "1.0.0",
    group: "connection",
    arguments: [integer("index")],
    replies: "`OK`",
    examples: ["SELECT 2"],
    run: ([, given = ""], connection) => {
      const index = parseInteger(given);
      if (index === null) return NOT_AN_INTEGER;
      if (index < 0 || index >= DATABASE_COUNT) return DB_INDEX_OUT_OF_RANGE;
      connection.databaseIndex = index;
      return OK;
    },
  };
}

function quitRow(): CommandRow {
  return {
    name: "quit",
    arity: -1,
    flags: "noscript loading stale fast no_auth allow_busy",
    summary: "Closes the connection; nothing sent after it runs.",
    since: "1.0.0",
    group: "connection",
    replies: "`OK`",
    isNeverQueued: true,
    run: (_argv, connection) => {
      connection.closeAfterReplies();
      return OK;
    },
  };
}

const RESET_DONE = new StatusReply("RESET");

function resetRow(context: ServerContext): CommandRow {
  return {
    name: "reset",
    arity: 1,
    flags: HANDSHAKE_FLAGS,
    summary: "Puts the connection back into the state of a new one.",
    since: "6.2.0",
    group: "connection",
    replies: "`RESET`",
    isNeverQueued: true,
    run: (_argv, connection) => {
      connection.subscriptions?.dropAll();
      connection.subscriptions = null;
      context.diagnostics.removeMonitor(connection);
      connection.gate = null;
      leaveTransaction(connection);
      connection.protocol = 2;
      connection.databaseIndex = 0;
      connection.name = "";
      connection.replyMode = "on";
      connection.noEvict = false;
      connection.noTouch = false;
      connection.authenticated = context.settings.password === null;
      return RESET_DONE;
    },
  };
}

const PONG = new StatusReply("PONG");

function pingRow(): CommandRow {
  return {
    name: "ping",
    arity: -1,
    flags: "fast loading stale",
    summary: "Answers, to show that the server is there.",
    since: "1.0.0",
    group: "connection",
    arguments: [optional(text("message"))],
    replies: "`PONG`, or the message",
    examples: ["PING", "PING hello"],
    run: (argv, connection) => {
      if (argv.length > 2) return wrongArity("ping");
      // A RESP2 subscriber can tell this from messages only by its form.
      if (connection.protocol === 2 && connection.gate !== null && connection.subscriptions !== null) {
        return ["pong", argv[1] ?? ""];
      }
      return argv[1] ?? PONG;
    },
  };
}

function echoRow(): CommandRow {
  return {
    name: "echo",
    arity: 2,
    flags: "fast loading stale",
    summary: "Gives the message back.",
    since: "1.0.0",
    group: "connection",
    arguments: [text("message")],
    replies: "the message",
    examples: ["ECHO hello"],
    run: ([, message = ""]) => message,
  };
}
