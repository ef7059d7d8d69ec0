import { generic, SYNTAX_ERROR, tooMany } from "../../engine/errors.js";
import { compileGlob } from "../../engine/glob.js";
import { MapReply, OK, type ByteString, type Reply } from "../../engine/reply.js";
import { block, several, text, type CommandRow } from "../command-definition.js";
import type { ClientConnection } from "../command.js";
import type { ServerContext } from "../server-context.js";
import { patternError } from "./arguments.js";

/**
 * CONFIG: reading and changing `RuntimeSettings`. Nothing is written to a file: what shall outlive the process belongs to flags
 * or environment.
 */

/** Far more than there are settings. */
const PATTERNS_MAX = 1000;

const ADMIN_FLAGS = "admin noscript loading stale";

/** `resetStatistics` zeroes what the command table counts; the table is built later than these rows. */
export function configCommands(
  context: ServerContext,
  resetStatistics: (connection: ClientConnection) => void,
): CommandRow[] {
  const sub = (fields: Omit<CommandRow, "group" | "flags">): CommandRow => ({
    ...fields,
    name: `config|${fields.name}`,
    group: "server",
    flags: ADMIN_FLAGS,
  });
  return [
    {
      name: "config",
      arity: -2,
      flags: "",
      summary: "Reads and changes settings of the running server.",
      since: "2.0.0",
      group: "server",
      complexity: "Depends on the subcommand.",
      replies: "see the subcommands",
      subcommands: [
        sub({
          name: "get",
          arity: -3,
          summary: "Reads the settings whose names match one of the globs.",
          since: "2.0.0",
          complexity: "O(N*M) in the numbers of settings and of globs",
          arguments: [several(block("parameters", text("parameter")))],
          replies: "map of names and values",
          examples: ["CONFIG GET *", "CONFIG GET maxclients slowlog-*"],
          run: (argv) => get(context, argv.slice(2)),
        }),
        sub({
          name: "set",
          arity: -4,
          summary: "Changes settings, all of those named or none, until the process ends.",
          since: "2.0.0",
          complexity: "O(N) in the number of settings named",
          arguments: [several(block("data", text("parameter"), text("value")))],
          replies: "`OK`",
          examples: ["CONFIG SET timeout 0 slowlog-max-len 128"],
          run: (argv) => set(context, argv),
        }),
        sub({
          name: "resetstat",
          arity: 2,
          summary: "Starts the counters of INFO anew.",
          since: "2.0.0",
          complexity: "O(N) in the number of commands",
          replies: "`OK`",
          examples: ["CONFIG RESETSTAT"],
          run: (_argv, connection) => {
            resetStatistics(connection);
            return OK;
          },
        }),
        sub({
          name: "rewrite",
          arity: 2,
          summary: "Refused: there is no configuration file.",
          since: "2.8.0",
          replies: "an error, as in Redis without a file",
          run: () => generic("The server is running without a config file"),
        }),
      ],
    },
  ];
}

function get(context: ServerContext, patterns: readonly ByteString[]): Reply {
  if (patterns.length > PATTERNS_MAX) return tooMany("patterns", patterns.length, PATTERNS_MAX);
  const globs: ((name: string) => boolean)[] = [];
  for (const pattern of patterns) {
    const error = patternError(pattern);
    if (error !== null) return error;
    globs.push(compileGlob(pattern.toLowerCase()));
  }
  return new MapReply(context.settings.read((name) => globs.some((matches) => matches(name))));
}

function set(context: ServerContext, argv: readonly ByteString[]): Reply {
  if (argv.length % 2 !== 0) return SYNTAX_ERROR;
  const pairs: [ByteString, ByteString][] = [];
  for (let index = 2; index < argv.length; index += 2) pairs.push([argv[index] ?? "", argv[index + 1] ?? ""]);
  const error = context.settings.write(pairs);
  return error === null ? OK : generic(error);
}
