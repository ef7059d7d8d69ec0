import { generic, quoteForError, SYNTAX_ERROR, withCode } from "../../engine/errors.js";
import { ErrorReply, OK, StatusReply, VerbatimReply, type ByteString, type Reply } from "../../engine/reply.js";
import { NO_REPLY, type ClientConnection, type RunResult } from "../command.js";
import { integer, oneOf, optional, several, text, word, type CommandRow } from "../command-definition.js";
import { renderInfo, type InfoSource } from "../info.js";
import type { ServerContext } from "../server-context.js";
import { integerOr, isWord, parseInteger } from "./arguments.js";
import { TIMEOUT_NEGATIVE, TIMEOUT_NOT_AN_INTEGER } from "./client.js";
import { answerLater } from "./engine-calls.js";
import { redisRole } from "./roles.js";

/**
 * The server as a whole: INFO, its role, its end, its clock; and those commands of Redis's that have one true answer here
 * because every acknowledged write is on disk (SAVE, WAITAOF) or because there is nothing of the kind (CLUSTER, MODULE).
 */

const NO_CLUSTER = generic("This instance has cluster support disabled");

export function serverCommands(context: ServerContext, info: InfoSource): CommandRow[] {
  return [
    infoRow(info),
    ...roleRows(context),
    ...lifeRows(context),
    ...savingRows(context),
    ...waitingRows(),
    ...clusterRows(),
    ...emptyContainers(),
    aclRow(context, info),
  ];
}

function infoRow(info: InfoSource): CommandRow {
  return {
    name: "info",
    arity: -1,
    flags: "loading stale",
    summary: "Tells the state of the server in figures.",
    since: "1.0.0",
    group: "server",
    categories: ["@dangerous"],
    arguments: [optional(several(text("section")))],
    replies: "text: sections of `field:value` lines",
    examples: ["INFO", "INFO replication leases", "INFO everything"],
    timed: true,
    run: (argv, connection) => new VerbatimReply(renderInfo(info, connection, argv.slice(1))),
  };
}

// Role ----------------------------------------------------------------------------------------------------------------

function roleRows(context: ServerContext): CommandRow[] {
  const replicaOf = (name: string, since: string): CommandRow => ({
    name,
    arity: 3,
    flags: "admin noscript stale no_async_loading",
    summary: "With NO ONE: takes the primary role. There is no replication from another server.",
    since,
    group: "server",
    arguments: [text("host"), text("port")],
    replies: "`OK` once the node serves",
    examples: [`${name.toUpperCase()} NO ONE`],
    standsAlone: true,
    run: ([, host = "", port = ""], connection) =>
      isWord(host, "NO") && isWord(port, "ONE") ? takeRole(context, connection) : NO_REPLICATION,
  });
  return [
    {
      name: "role",
      arity: 1,
      flags: "noscript loading stale fast",
      summary: "Tells the role of this node in Redis's words.",
      since: "2.8.12",
      group: "server",
      categories: ["@admin", "@dangerous"],
      replies: "`[master, revision, []]` or `[slave, host, port, state, revision]`",
      examples: ["ROLE"],
      run: () => roleReply(context),
    },
    replicaOf("replicaof", "5.0.0"),
    replicaOf("slaveof", "1.0.0"),
    {
      name: "failover",
      arity: -1,
      flags: "admin noscript stale",
      summary: "Finishes what is in flight and gives up the primary role; other connections are closed.",
      since: "6.2.0",
      group: "server",
      arguments: [optional(word("ABORT"))],
      replies: "`OK` once the role is given up",
      standsAlone: true,
      run: (argv, connection) => failover(context, argv, connection),
    },
  ];
}

const NO_REPLICATION = generic(
  "Leasehold does not replicate from another server; REPLICAOF NO ONE takes the primary role",
);

function roleReply(context: ServerContext): Reply {
  const node = context.backend.report();
  if (redisRole(node.role) === "master") return ["master", node.durableRevision, []];
  const primary = node.cluster?.primary ?? null;
  if (primary === null) return ["slave", "", 0, "connect", node.durableRevision];
  return ["slave", primary.host, primary.port, "connected", node.durableRevision];
}

function takeRole(context: ServerContext, connection: ClientConnection): RunResult {
  connection.blockUntilReply();
  return answerLater(connection, (answer) => {
    context.backend.takeRole(answer);
  });
}

function failover(context: ServerContext, argv: readonly ByteString[], connection: ClientConnection): RunResult {
  if (argv.length === 2 && isWord(argv[1] ?? "", "ABORT")) return generic("No failover in progress.");
  if (argv.length > 1) return SYNTAX_ERROR;
  connection.blockUntilReply();
  return answerLater(connection, (answer) => {
    context.backend.stepDown(connection, answer);
  });
}

// Clock and end ---------------------------------------------------------------------------------------------------------

const SHUTDOWN_WORDS = ["NOSAVE", "SAVE", "NOW", "FORCE"];

function lifeRows(context: ServerContext): CommandRow[] {
  return [
    {
      name: "time",
      arity: 1,
      flags: "loading stale fast",
      summary: "Tells the wall clock, which no lease depends on.",
      since: "2.6.0",
      group: "server",
      replies: "`[seconds, microseconds]`",
      examples: ["TIME"],
      run: () => timeReply(context.clock.unixMs()),
      compose: (_argv, _connection, step) => timeReply(step.unixMs),
    },
    {
      name: "shutdown",
      arity: -1,
      flags: "admin noscript loading stale no_multi allow_busy",
      summary: "Finishes what is in flight, syncs and ends the server.",
      since: "1.0.0",
      group: "server",
      arguments: [
        optional(oneOf("save-selector", word("NOSAVE"), word("SAVE"))),
        optional(word("NOW")),
        optional(word("FORCE")),
        optional(word("ABORT")),
      ],
      replies: "nothing: the connection is closed",
      run: (argv) => shutdown(context, argv.slice(1)),
    },
    debugRow(context),
    {
      name: "lolwut",
      arity: -1,
      flags: "readonly fast",
      summary: "Draws something.",
      since: "5.0.0",
      group: "server",
      arguments: [optional(several(text("argument")))],
      replies: "text",
      examples: ["LOLWUT"],
      run: () => new VerbatimReply(`${HOUSE}\nLeasehold ver. ${context.identity.version}\n`),
    },
  ];
}

function timeReply(unixMs: number): Reply {
  const seconds = Math.floor(unixMs / 1000);
  return [String(seconds), String(Math.floor((unixMs - seconds * 1000) * 1000))];
}

function shutdown(context: ServerContext, options: readonly ByteString[]): RunResult {
  if (options.length === 1 && isWord(options[0] ?? "", "ABORT")) return generic("No shutdown in progress.");
  const words = options.map((option) => option.toUpperCase());
  const areLegal = words.every((option) => SHUTDOWN_WORDS.includes(option));
  if (!areLegal || (words.includes("SAVE") && words.includes("NOSAVE"))) return SYNTAX_ERROR;
  context.backend.shutdown();
  return NO_REPLY;
}

const HOUSE = [
  "          /\\",
  "         /  \\        +----------------------+",
  "        / /\\ \\       |  TO LET               |",
  "       / /__\\ \\      |  by the millisecond   |",
  "      /________\\     +-----------+----------+",
  "      |  _  _  |                 |",
  "      | |_||_| |                 |",
  "      |   __   |                 |",
  "______|__|  |__|_________________|___________",
].join("\n");

/** A longer sleep would only be a way to forget the server. */
const DEBUG_SLEEP_SECONDS_MAX = 3600;

function debugRow(context: ServerContext): CommandRow {
  return {
    name: "debug",
    arity: -2,
    flags: "admin noscript loading stale",
    summary: "For tests. Refused unless the server was started with debug commands.",
    since: "1.0.0",
    group: "server",
    complexity: "Depends on the subcommand.",
    replies: "see the subcommands",
    subcommands: [
      {
        name: "debug|sleep",
        arity: 3,
        flags: "admin noscript loading stale",
        summary: "Stops the whole server for a time.",
        since: "1.0.0",
        group: "server",
        arguments: [text("seconds")],
        replies: "`OK`",
        timed: true,
        run: ([, , given = ""]) => {
          if (!context.settings.start.debugCommands) return DEBUG_REFUSED;
          const seconds = Number(given);
          if (given.trim() === "" || !(seconds >= 0 && seconds <= DEBUG_SLEEP_SECONDS_MAX)) {
            return generic(`the sleep must be 0 to ${DEBUG_SLEEP_SECONDS_MAX} seconds`);
          }
          Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, seconds * 1000);
          return OK;
        },
      },
    ],
  };
}

const DEBUG_REFUSED = withCode(
  "NOPERM",
  "DEBUG is switched off; start the server with --enable-debug-command yes to use it",
);

// Saving --------------------------------------------------------------------------------------------------------------

/** Each acknowledged write is on disk: there is never anything to save, and the last save is always now. */
function savingRows(context: ServerContext): CommandRow[] {
  const status = (name: string, arguments_: CommandRow["arguments"], reply: StatusReply): CommandRow => ({
    name,
    arity: name === "bgsave" ? -1 : 1,
    flags: `admin noscript no_async_loading${name === "save" ? " no_multi" : ""}`,
    summary: "Accepted and without effect: each write is on disk before its reply.",
    since: "1.0.0",
    group: "server",
    arguments: arguments_ ?? [],
    replies: "a status",
    examples: [name.toUpperCase()],
    run: (argv) =>
      argv.length === 1 || (argv.length === 2 && isWord(argv[1] ?? "", "SCHEDULE")) ? reply : SYNTAX_ERROR,
  });
  return [
    status("save", [], OK),
    status("bgsave", [optional(word("SCHEDULE"))], new StatusReply("Background saving started")),
    status("bgrewriteaof", [], new StatusReply("Background append only file rewriting started")),
    {
      name: "lastsave",
      arity: 1,
      flags: "loading stale fast",
      summary: "Tells the time of the last save, which is always now.",
      since: "1.0.0",
      group: "server",
      categories: ["@admin", "@dangerous"],
      replies: "seconds since 1970",
      examples: ["LASTSAVE"],
      run: () => Math.floor(context.clock.unixMs() / 1000),
    },
  ];
}

const OUT_OF_RANGE_LOCAL = generic("value is out of range, value must between 0 and 1");
const OUT_OF_RANGE_POSITIVE = generic("value is out of range, must be positive");

/** Null when `given` is a time-out. */
function timeoutError(given: ByteString): ErrorReply | null {
  const timeoutMs = integerOr(given, TIMEOUT_NOT_AN_INTEGER);
  if (timeoutMs instanceof ErrorReply) return timeoutMs;
  return timeoutMs < 0 ? TIMEOUT_NEGATIVE : null;
}

/** An answer leaves only after the replies before it, and those wait for their sync: there is nothing more to wait for. */
function waitingRows(): CommandRow[] {
  return [
    {
      name: "wait",
      arity: 3,
      flags: "noscript",
      categories: ["@connection"],
      summary: "Answers at once: there are no replicas to wait for.",
      since: "3.0.0",
      group: "server",
      arguments: [integer("numreplicas"), integer("timeout")],
      replies: "0",
      examples: ["WAIT 0 100"],
      run: ([, replicas = "", timeout = ""]) => {
        const count = integerOr(replicas);
        return timeoutError(timeout) ?? (count instanceof ErrorReply ? count : 0);
      },
    },
    {
      name: "waitaof",
      arity: 4,
      flags: "noscript",
      categories: ["@connection"],
      summary: "Answers at once: what was acknowledged is synced.",
      since: "7.2.0",
      group: "server",
      arguments: [integer("numlocal"), integer("numreplicas"), integer("timeout")],
      replies: "`[1, 0]`",
      examples: ["WAITAOF 1 0 100"],
      run: ([, local = "", replicas = "", timeout = ""]) => {
        const [localCount, replicaCount] = [parseInteger(local), parseInteger(replicas)];
        if (localCount === null || localCount < 0 || localCount > 1) return OUT_OF_RANGE_LOCAL;
        if (replicaCount === null || replicaCount < 0) return OUT_OF_RANGE_POSITIVE;
        return timeoutError(timeout) ?? [1, 0];
      },
    },
  ];
}

// What there is none of -----------------------------------------------------------------------------------------------

function clusterRows(): CommandRow[] {
  const refused = (
    name: string,
    arity: number,
    flags: string,
    rest: Pick<CommandRow, "arguments" | "categories">,
  ): CommandRow => ({
    name,
    arity,
    flags,
    summary: "Refused: Redis Cluster is not spoken.",
    since: "3.0.0",
    group: "cluster",
    replies: "an error, as in Redis without a cluster",
    run: () => NO_CLUSTER,
    ...rest,
  });
  const connection = { categories: ["@connection"] };
  return [
    refused("cluster", -2, "", { arguments: [text("subcommand"), optional(several(text("argument")))] }),
    refused("readonly", 1, "loading stale fast", connection),
    refused("readwrite", 1, "loading stale fast", connection),
    refused("asking", 1, "fast", connection),
  ];
}

function emptyContainers(): CommandRow[] {
  return [
    {
      name: "module",
      arity: -2,
      flags: "",
      summary: "There are no modules.",
      since: "4.0.0",
      group: "server",
      complexity: "Depends on the subcommand.",
      replies: "see the subcommands",
      subcommands: [
        {
          name: "module|list",
          arity: 2,
          flags: "admin noscript",
          summary: "Lists the modules, of which there are none.",
          since: "4.0.0",
          group: "server",
          replies: "empty array",
          examples: ["MODULE LIST"],
          run: () => [],
        },
      ],
    },
    {
      name: "function",
      arity: -2,
      flags: "",
      summary: "There are no functions.",
      since: "7.0.0",
      group: "scripting",
      complexity: "Depends on the subcommand.",
      replies: "see the subcommands",
      subcommands: [
        {
          name: "function|list",
          arity: -2,
          flags: "noscript",
          summary: "Lists the function libraries, of which there are none.",
          since: "7.0.0",
          group: "scripting",
          arguments: [optional(several(text("option")))],
          replies: "empty array",
          examples: ["FUNCTION LIST"],
          run: () => [],
        },
        {
          name: "function|flush",
          arity: -2,
          flags: "write noscript",
          summary: "Accepted; there are no functions to remove.",
          since: "7.0.0",
          group: "scripting",
          arguments: [optional(oneOf("flush-type", word("ASYNC"), word("SYNC")))],
          replies: "`OK`",
          examples: ["FUNCTION FLUSH"],
          run: ([, , mode]) =>
            mode === undefined || isWord(mode, "ASYNC") || isWord(mode, "SYNC")
              ? OK
              : generic("FUNCTION FLUSH only supports SYNC|ASYNC option"),
        },
      ],
    },
  ];
}

// ACL -------------------------------------------------------------------------------------------------------------------

/** Redis's categories and the one of the leases. */
export const CATEGORIES = [
  "keyspace",
  "read",
  "write",
  "set",
  "sortedset",
  "list",
  "hash",
  "string",
  "bitmap",
  "hyperloglog",
  "geo",
  "stream",
  "pubsub",
  "admin",
  "fast",
  "slow",
  "blocking",
  "dangerous",
  "connection",
  "transaction",
  "scripting",
  "lease",
  "lock",
] as const;

function aclRow(context: ServerContext, info: InfoSource): CommandRow {
  const sub = (
    fields: Omit<CommandRow, "group" | "flags" | "since">,
    flags = "noscript loading stale",
  ): CommandRow => ({
    ...fields,
    name: `acl|${fields.name}`,
    since: "6.0.0",
    group: "server",
    flags,
  });
  const adminFlags = "admin noscript loading stale";
  return {
    name: "acl",
    arity: -2,
    flags: "",
    summary: "There is one user, `default`, who may do everything.",
    since: "6.0.0",
    group: "server",
    complexity: "Depends on the subcommand.",
    replies: "see the subcommands",
    subcommands: [
      sub({
        name: "whoami",
        arity: 2,
        summary: "Tells the user of the connection.",
        replies: "`default`",
        examples: ["ACL WHOAMI"],
        run: () => "default",
      }),
      sub(
        {
          name: "users",
          arity: 2,
          summary: "Lists the users.",
          replies: "`[default]`",
          examples: ["ACL USERS"],
          run: () => ["default"],
        },
        adminFlags,
      ),
      sub(
        {
          name: "list",
          arity: 2,
          summary: "Lists the users with their rights.",
          replies: "array of one rule; the password is not shown",
          examples: ["ACL LIST"],
          run: () => [`user default on ${context.settings.password === null ? "nopass " : ""}~* &* +@all`],
        },
        adminFlags,
      ),
      sub({
        name: "cat",
        arity: -2,
        summary: "Lists the categories, or the commands of one.",
        arguments: [optional(text("category"))],
        replies: "array of names",
        examples: ["ACL CAT", "ACL CAT lease"],
        run: (argv) => {
          const [, , given] = argv;
          if (argv.length > 3) return SYNTAX_ERROR;
          if (given === undefined) return [...CATEGORIES];
          const category = CATEGORIES.find((known) => known === given.toLowerCase());
          if (category === undefined) return generic(`Unknown category '${quoteForError(given)}'`);
          return [...info.definitions()]
            .filter(({ categories }) => categories.includes(`@${category}`))
            .map(({ name }) => name);
        },
      }),
    ],
  };
}
