import { generic, quoteForError, SYNTAX_ERROR, tooLong, withCode } from "../../engine/errors.js";
import { ErrorReply, MapReply, OK, SetReply, VerbatimReply, type ByteString, type Reply } from "../../engine/reply.js";
import type { Backend } from "../backend.js";
import { NO_REPLY, type ClientConnection, type RunResult } from "../command.js";
import {
  after,
  block,
  integer,
  oneOf,
  optional,
  several,
  severalClauses,
  text,
  word,
  type ArgumentDoc,
  type CommandRow,
} from "../command-definition.js";
import { Subscriptions } from "../pubsub.js";
import type { ServerContext } from "../server-context.js";
import { integerOr, isWord, parseInteger } from "./arguments.js";
import { clientNameError, isVisible, CLIENT_NAME_BYTES_MAX } from "./connection.js";

/**
 * CLIENT: a connection's own name and mode, and the view of all connections. Replies and texts are Redis's; what Redis keeps
 * and we do not (client side caching) is refused by name.
 */

const CONNECTION_FLAGS = "noscript loading stale";
const ADMIN_FLAGS = "admin noscript loading stale";
const TYPES: ArgumentDoc = oneOf(
  "client-type",
  word("NORMAL"),
  word("MASTER"),
  word("SLAVE"),
  word("REPLICA"),
  word("PUBSUB"),
);

/** A subcommand's row with what all of them share. */
const sub = (fields: Omit<CommandRow, "group" | "flags"> & { readonly flags?: string }): CommandRow => ({
  flags: CONNECTION_FLAGS,
  ...fields,
  name: `client|${fields.name}`,
  group: "connection",
});

export function clientCommands(context: ServerContext): CommandRow[] {
  return [container([...plainRows(), ...pauseRows(context.backend), ...trackingRows()])];
}

/** CLIENT as a port without data has it: names, views, modes, KILL. */
export function plainClientCommands(): CommandRow[] {
  return [container(plainRows())];
}

const plainRows = (): CommandRow[] => [...nameRows(), ...viewRows(), ...modeRows(), killRow()];

const container = (subcommands: readonly CommandRow[]): CommandRow => ({
  name: "client",
  arity: -2,
  flags: "",
  summary: "Looks at and steers connections.",
  since: "2.4.0",
  group: "connection",
  complexity: "Depends on the subcommand.",
  replies: "see the subcommands",
  subcommands,
});

// Names ---------------------------------------------------------------------------------------------------------------

function nameRows(): CommandRow[] {
  return [
    sub({
      name: "setname",
      arity: 3,
      summary: "Names the connection; the name is kept with each lease that it grants.",
      since: "2.6.9",
      arguments: [text("connection-name")],
      replies: "`OK`",
      examples: ["CLIENT SETNAME worker-7"],
      run: ([, , name = ""], connection) => {
        const error = clientNameError(name);
        if (error !== null) return error;
        connection.name = name;
        return OK;
      },
    }),
    sub({
      name: "getname",
      arity: 2,
      summary: "Tells the connection's name.",
      since: "2.6.9",
      replies: "the name; nil without one",
      examples: ["CLIENT GETNAME"],
      run: (_argv, connection) => (connection.name === "" ? null : connection.name),
    }),
    sub({
      name: "setinfo",
      arity: 4,
      summary: "Tells the client library and its version.",
      since: "7.2.0",
      arguments: [oneOf("attr", after("LIB-NAME", text("libname")), after("LIB-VER", text("libver")))],
      replies: "`OK`",
      examples: ["CLIENT SETINFO LIB-NAME ioredis"],
      run: setInfo,
    }),
    sub({
      name: "id",
      arity: 2,
      summary: "Tells the connection's number.",
      since: "5.0.0",
      replies: "number",
      examples: ["CLIENT ID"],
      run: (_argv, connection) => connection.id,
    }),
  ];
}

function setInfo([, , attribute = "", value = ""]: readonly ByteString[], connection: ClientConnection): RunResult {
  const name = isWord(attribute, "LIB-NAME");
  if (!name && !isWord(attribute, "LIB-VER")) return generic(`Unrecognized option '${quoteForError(attribute)}'`);
  if (!isVisible(value)) {
    return generic(`${attribute.toLowerCase()} cannot contain spaces, newlines or special characters.`);
  }
  if (value.length > CLIENT_NAME_BYTES_MAX) return tooLong("the value", value.length, CLIENT_NAME_BYTES_MAX);
  if (name) connection.libraryName = value;
  else connection.libraryVersion = value;
  return OK;
}

// Views ---------------------------------------------------------------------------------------------------------------

function viewRows(): CommandRow[] {
  return [
    sub({
      name: "info",
      arity: 2,
      summary: "Describes the connection.",
      since: "6.2.0",
      replies: "one line of `field=value`",
      examples: ["CLIENT INFO"],
      run: (_argv, connection) => new VerbatimReply(`${describe(connection, connection)}\n`),
    }),
    sub({
      name: "list",
      arity: -2,
      flags: ADMIN_FLAGS,
      summary: "Describes all connections.",
      since: "2.4.0",
      complexity: "O(N) in the number of connections",
      arguments: [optional(after("TYPE", TYPES)), optional(after("ID", several(integer("client-id"))))],
      replies: "a line of `field=value` for each",
      examples: ["CLIENT LIST", "CLIENT LIST TYPE pubsub"],
      timed: true,
      run: list,
    }),
  ];
}

function list(argv: readonly ByteString[], connection: ClientConnection): RunResult {
  const chosen = chooseForList(argv, connection);
  if (chosen instanceof ErrorReply) return chosen;
  return new VerbatimReply(chosen.map((client) => `${describe(client, connection)}\n`).join(""));
}

function chooseForList(argv: readonly ByteString[], connection: ClientConnection): ClientConnection[] | ErrorReply {
  const all = (): ClientConnection[] => [...connection.server.connections()];
  if (argv.length === 2) return all();
  const [, , option = "", value = ""] = argv;
  if (argv.length === 4 && isWord(option, "TYPE")) {
    const type = clientType(value);
    if (type === null) return unknownType(value);
    return all().filter((client) => typeOf(client) === type);
  }
  if (argv.length >= 4 && isWord(option, "ID")) {
    const found: ClientConnection[] = [];
    for (const given of argv.slice(3)) {
      const id = parseInteger(given);
      if (id === null) return generic("Invalid client ID");
      const client = connection.server.connection(id);
      if (client !== undefined) found.push(client);
    }
    return found;
  }
  return SYNTAX_ERROR;
}

type ClientType = "normal" | "master" | "slave" | "pubsub";

function clientType(given: ByteString): ClientType | null {
  const type = given.toLowerCase();
  if (type === "replica" || type === "slave") return "slave";
  return type === "normal" || type === "master" || type === "pubsub" ? type : null;
}

/** There are no masters and no replicas among our clients. */
const typeOf = (client: ClientConnection): ClientType => (subscriptionCount(client) > 0 ? "pubsub" : "normal");

const unknownType = (given: ByteString): ErrorReply => generic(`Unknown client type '${quoteForError(given)}'`);

function subscriptionCount(client: ClientConnection): number {
  const { subscriptions } = client;
  return subscriptions instanceof Subscriptions ? subscriptions.total : 0;
}

/** One line of CLIENT LIST, as `asker` sees `client`; fields and order are Redis's. */
function describe(client: ClientConnection, asker: ClientConnection): string {
  const seconds = (sinceMs: number): number => Math.max(0, Math.floor((asker.nowMs - sinceMs) / 1000));
  const subscriptions = client.subscriptions instanceof Subscriptions ? client.subscriptions : null;
  const fields: readonly (readonly [string, string | number])[] = [
    ["id", client.id],
    ["addr", client.remoteAddress],
    ["laddr", client.localAddress],
    // Node does not tell the descriptor of a socket.
    ["fd", -1],
    ["name", client.name],
    ["age", seconds(client.createdAtMs)],
    ["idle", seconds(client.lastCommandAtMs)],
    ["flags", flagsOf(client)],
    ["db", client.databaseIndex],
    ["sub", subscriptions?.channelCount ?? 0],
    ["psub", subscriptions?.patternCount ?? 0],
    ["ssub", subscriptions?.shardCount ?? 0],
    ["multi", client.transaction?.size ?? -1],
    ["qbuf", client.queryBufferBytes],
    ["qbuf-free", 0],
    ["argv-mem", 0],
    ["multi-mem", 0],
    ["rbs", 0],
    ["rbp", 0],
    ["obl", 0],
    ["oll", client.repliesWaiting],
    ["omem", client.outputBufferBytes],
    ["tot-mem", client.queryBufferBytes + client.outputBufferBytes],
    ["events", client.outputBufferBytes > 0 ? "rw" : "r"],
    ["cmd", client.lastCommandName === "" ? "NULL" : client.lastCommandName],
    ["user", "default"],
    ["redir", -1],
    ["resp", client.protocol],
    ["lib-name", client.libraryName],
    ["lib-ver", client.libraryVersion],
  ];
  return fields.map(([name, value]) => `${name}=${value}`).join(" ");
}

function flagsOf(client: ClientConnection): string {
  let flags = "";
  if (client.isMonitor) flags += "O";
  if (subscriptionCount(client) > 0) flags += "P";
  if (client.transaction !== null) flags += "x";
  if (client.isBlocked) flags += "b";
  if (client.isClosing) flags += "c";
  if (client.noEvict) flags += "e";
  if (client.noTouch) flags += "T";
  return flags === "" ? "N" : flags;
}

// Modes ---------------------------------------------------------------------------------------------------------------

function modeRows(): CommandRow[] {
  const onOff = oneOf("enabled", word("ON"), word("OFF"));
  const toggle = (
    name: string,
    since: string,
    summary: string,
    set: (connection: ClientConnection, enabled: boolean) => void,
    flags = CONNECTION_FLAGS,
  ): CommandRow =>
    sub({
      name,
      arity: 3,
      flags,
      summary,
      since,
      arguments: [onOff],
      replies: "`OK`",
      run: ([, , value = ""], connection) => {
        const on = isWord(value, "ON");
        if (!on && !isWord(value, "OFF")) return SYNTAX_ERROR;
        set(connection, on);
        return OK;
      },
    });
  return [
    toggle(
      "no-evict",
      "7.0.0",
      "Accepted; a client is never evicted.",
      (connection, on) => {
        connection.noEvict = on;
      },
      ADMIN_FLAGS,
    ),
    toggle("no-touch", "7.2.0", "Accepted; access times are not kept.", (connection, on) => {
      connection.noTouch = on;
    }),
    sub({
      name: "reply",
      arity: 3,
      summary: "Turns replies off and on, or leaves out the next one.",
      since: "3.2.0",
      arguments: [oneOf("action", word("ON"), word("OFF"), word("SKIP"))],
      replies: "`OK` for ON, nothing otherwise",
      standsAlone: true,
      run: ([, , mode = ""], connection) => {
        if (isWord(mode, "ON")) {
          connection.replyMode = "on";
          return OK;
        }
        if (isWord(mode, "OFF")) connection.replyMode = "off";
        else if (!isWord(mode, "SKIP")) return SYNTAX_ERROR;
        else if (connection.replyMode !== "off") connection.replyMode = "skip-next";
        return NO_REPLY;
      },
    }),
    sub({
      name: "capa",
      arity: -3,
      summary: "Accepted; none of the capabilities that clients tell changes anything here.",
      since: "7.2.4",
      arguments: [several(text("capability"))],
      replies: "`OK`",
      run: () => OK,
    }),
  ];
}

// KILL ----------------------------------------------------------------------------------------------------------------

function killRow(): CommandRow {
  return sub({
    name: "kill",
    arity: -3,
    flags: ADMIN_FLAGS,
    summary: "Closes connections.",
    since: "2.4.0",
    complexity: "O(N) in the number of connections",
    arguments: [
      oneOf(
        "filter",
        text("ip:port"),
        severalClauses(
          oneOf(
            "new-format",
            after("ID", integer("client-id")),
            after("TYPE", TYPES),
            after("USER", text("username")),
            after("ADDR", text("ip:port")),
            after("LADDR", text("ip:port")),
            after("SKIPME", oneOf("skipme", word("YES"), word("NO"))),
            after("MAXAGE", integer("maxage")),
          ),
        ),
      ),
    ],
    replies: "`OK` in the old form with an address, else the number of connections closed",
    examples: ["CLIENT KILL ID 7", "CLIENT KILL TYPE normal SKIPME yes"],
    run: (argv, connection) =>
      argv.length === 3 ? killAddress(argv[2] ?? "", connection) : killMatching(argv, connection),
  });
}

function killAddress(address: ByteString, connection: ClientConnection): RunResult {
  for (const client of connection.server.connections()) {
    if (client.remoteAddress !== address) continue;
    kill(client, connection);
    return OK;
  }
  return generic("No such client");
}

type KillFilter = (client: ClientConnection) => boolean;

function killMatching(argv: readonly ByteString[], connection: ClientConnection): RunResult {
  const filters: KillFilter[] = [];
  let skipMe = true;
  for (let index = 2; index < argv.length; index += 2) {
    const [option = "", value] = [argv[index], argv[index + 1]];
    if (value === undefined) return SYNTAX_ERROR;
    if (isWord(option, "SKIPME")) {
      skipMe = isWord(value, "YES");
      if (!skipMe && !isWord(value, "NO")) return SYNTAX_ERROR;
      continue;
    }
    const filter = killFilter(option, value, connection.nowMs);
    if (filter instanceof ErrorReply) return filter;
    filters.push(filter);
  }
  let killed = 0;
  for (const client of connection.server.connections()) {
    if ((client === connection && skipMe) || !filters.every((matches) => matches(client))) continue;
    kill(client, connection);
    killed += 1;
  }
  return killed;
}

function killFilter(option: ByteString, value: ByteString, nowMs: number): KillFilter | ErrorReply {
  switch (option.toUpperCase()) {
    case "ID": {
      const id = parseInteger(value);
      if (id === null || id < 1) return generic("client-id should be greater than 0");
      return (client) => client.id === id;
    }
    case "TYPE": {
      const type = clientType(value);
      return type === null ? unknownType(value) : (client) => typeOf(client) === type;
    }
    case "USER":
      return value === "default" ? () => true : generic(`No such user '${quoteForError(value)}'`);
    case "ADDR":
      return (client) => client.remoteAddress === value;
    case "LADDR":
      return (client) => client.localAddress === value;
    case "MAXAGE": {
      const seconds = parseInteger(value);
      if (seconds === null) return generic("maxage is not an integer or out of range");
      if (seconds < 1) return generic("maxage should be greater than 0");
      return (client) => nowMs - client.createdAtMs >= seconds * 1000;
    }
    default:
      return SYNTAX_ERROR;
  }
}

/** The asker itself still gets its answer. */
function kill(client: ClientConnection, asker: ClientConnection): void {
  if (client === asker) asker.closeAfterReplies();
  else client.close("killed by CLIENT KILL");
}

// PAUSE ---------------------------------------------------------------------------------------------------------------

function pauseRows(backend: Backend): CommandRow[] {
  return [
    sub({
      name: "pause",
      arity: -3,
      flags: ADMIN_FLAGS,
      summary: "Holds up all commands of all clients, or those that write; leases go on expiring.",
      since: "3.0.0",
      arguments: [integer("timeout"), optional(oneOf("mode", word("WRITE"), word("ALL")))],
      replies: "`OK`",
      examples: ["CLIENT PAUSE 100 WRITE"],
      run: (argv, connection) => {
        const [, , timeout = "", mode = "ALL"] = argv;
        if (argv.length > 4) return SYNTAX_ERROR;
        const isWriteOnly = isWord(mode, "WRITE");
        if (!isWriteOnly && !isWord(mode, "ALL")) return generic("CLIENT PAUSE mode must be WRITE or ALL");
        const durationMs = integerOr(timeout, TIMEOUT_NOT_AN_INTEGER);
        if (durationMs instanceof ErrorReply) return durationMs;
        if (durationMs < 0) return TIMEOUT_NEGATIVE;
        connection.server.pause(isWriteOnly ? "write" : "all", durationMs);
        return OK;
      },
    }),
    sub({
      name: "unpause",
      arity: 2,
      flags: ADMIN_FLAGS,
      summary: "Ends a pause.",
      since: "6.2.0",
      replies: "`OK`",
      examples: ["CLIENT UNPAUSE"],
      ignoresPause: true,
      run: (_argv, connection) => {
        connection.server.unpause();
        return OK;
      },
    }),
    sub({
      name: "unblock",
      arity: -3,
      flags: ADMIN_FLAGS,
      summary: "Ends the waiting of another connection.",
      since: "5.0.0",
      arguments: [integer("client-id"), optional(oneOf("unblock-type", word("TIMEOUT"), word("ERROR")))],
      replies: "1; 0 when it does not wait, or got its lock just now",
      examples: ["CLIENT UNBLOCK 7", "CLIENT UNBLOCK 7 ERROR"],
      run: (argv, connection) => {
        const [, , id = "", reason = "TIMEOUT"] = argv;
        if (argv.length > 4) return SYNTAX_ERROR;
        const isError = isWord(reason, "ERROR");
        if (!isError && !isWord(reason, "TIMEOUT")) {
          return generic("CLIENT UNBLOCK reason should be TIMEOUT or ERROR");
        }
        const number = integerOr(id);
        if (number instanceof ErrorReply) return number;
        const client = connection.server.connection(number);
        if (client === undefined || !client.isBlocked) return 0;
        return backend.unblock(client, isError ? UNBLOCKED : null) ? 1 : 0;
      },
    }),
  ];
}

const UNBLOCKED = withCode("UNBLOCKED", "client unblocked via CLIENT UNBLOCK");

/** Also WAIT's and WAITAOF's. */
export const TIMEOUT_NOT_AN_INTEGER = generic("timeout is not an integer or out of range");
export const TIMEOUT_NEGATIVE = generic("timeout is negative");

// Client side caching -----------------------------------------------------------------------------------------------

function trackingRows(): CommandRow[] {
  return [
    sub({
      name: "tracking",
      arity: -3,
      summary: "Client side caching is not offered: OFF is accepted, ON refused.",
      since: "6.0.0",
      arguments: [oneOf("status", word("ON"), word("OFF")), optional(block("options", several(text("option"))))],
      replies: "`OK` for OFF",
      run: ([, , status = ""]) => {
        if (isWord(status, "OFF")) return OK;
        return isWord(status, "ON") ? generic("client side caching is not offered") : SYNTAX_ERROR;
      },
    }),
    sub({
      name: "trackinginfo",
      arity: 2,
      summary: "Tells that client side caching is off.",
      since: "6.2.0",
      replies: "map",
      run: (): Reply =>
        new MapReply([
          ["flags", new SetReply(["off"])],
          ["redirect", -1],
          ["prefixes", []],
        ]),
    }),
    sub({
      name: "getredir",
      arity: 2,
      summary: "Tells that client side caching is off.",
      since: "6.0.0",
      replies: "-1",
      run: () => -1,
    }),
    sub({
      name: "caching",
      arity: 3,
      summary: "Refused: client side caching is off.",
      since: "6.0.0",
      arguments: [oneOf("mode", word("YES"), word("NO"))],
      replies: "an error",
      run: () =>
        generic(
          "CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled",
        ),
    }),
  ];
}
