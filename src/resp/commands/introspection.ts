import { generic, SYNTAX_ERROR } from "../../engine/errors.js";
import { compileGlob } from "../../engine/glob.js";
import { MapReply, SetReply, StatusReply, type ByteString, type Reply } from "../../engine/reply.js";
import {
  after,
  oneOf,
  optional,
  pattern,
  several,
  text,
  type ArgumentDoc,
  type CommandDefinition,
  type CommandRow,
  type KeyPositions,
} from "../command-definition.js";
import type { CommandTable } from "../command-table.js";
import { isWord, patternError } from "./arguments.js";

/**
 * COMMAND: the command table in the form that clients read. redis-cli takes its hints and completions from DOCS and aborts on a
 * map that it does not expect; cluster clients take the key positions from INFO.
 */

const nameArguments = optional(several(text("command-name")));
const wholeCommand = [text("command"), optional(several(text("arg")))];

const sub = (fields: Omit<CommandRow, "group" | "flags">): CommandRow => ({
  ...fields,
  name: `command|${fields.name}`,
  group: "server",
  flags: "loading stale",
  categories: ["@connection"],
});

/** `table` is called when a client asks: these rows are part of the table themselves. */
export function commandCommands(table: () => CommandTable): CommandRow[] {
  return [
    {
      name: "command",
      arity: -1,
      flags: "loading stale",
      summary: "Describes all commands.",
      since: "2.8.13",
      group: "server",
      categories: ["@connection"],
      complexity: "O(N) in the number of commands",
      replies: "array with an entry for each command",
      examples: ["COMMAND"],
      timed: true,
      run: () => table().definitions.map(infoOf),
      subcommands: [...describingRows(table), listRow(table), ...keyRows(table)],
    },
  ];
}

function describingRows(table: () => CommandTable): CommandRow[] {
  return [
    sub({
      name: "count",
      arity: 2,
      summary: "Counts the commands.",
      since: "2.8.13",
      replies: "number",
      examples: ["COMMAND COUNT"],
      run: () => table().definitions.length,
    }),
    sub({
      name: "info",
      arity: -2,
      summary: "Describes the commands named, or all.",
      since: "2.8.13",
      complexity: "O(N) in the number of commands",
      arguments: [nameArguments],
      replies: "array with an entry for each command, nil for an unknown one",
      examples: ["COMMAND INFO lease.grant get"],
      timed: true,
      run: (argv) => commandInfo(table(), argv.slice(2)),
    }),
    sub({
      name: "docs",
      arity: -2,
      summary: "Documents the commands named, or all.",
      since: "7.0.0",
      complexity: "O(N) in the number of commands",
      arguments: [nameArguments],
      replies: "map of names and maps",
      examples: ["COMMAND DOCS lease.grant"],
      timed: true,
      run: (argv) => commandDocs(table(), argv.slice(2)),
    }),
  ];
}

function listRow(table: () => CommandTable): CommandRow {
  const filter = oneOf(
    "filterby",
    after("MODULE", text("module-name")),
    after("ACLCAT", text("category")),
    after("PATTERN", pattern()),
  );
  return sub({
    name: "list",
    arity: -2,
    summary: "Lists the names of all commands, or of those that a filter lets through.",
    since: "7.0.0",
    complexity: "O(N) in the number of commands",
    arguments: [optional(after("FILTERBY", filter))],
    replies: "array of names",
    examples: ["COMMAND LIST FILTERBY PATTERN lease.*"],
    run: (argv) => commandList(table(), argv.slice(2)),
  });
}

function keyRows(table: () => CommandTable): CommandRow[] {
  return [
    sub({
      name: "getkeys",
      arity: -3,
      summary: "Tells which arguments of a whole command are keys or lease ids.",
      since: "2.8.13",
      complexity: "O(N) in the number of arguments",
      arguments: wholeCommand,
      replies: "array of keys",
      examples: ["COMMAND GETKEYS LEASE.ATTACH worker-7 lock:b me"],
      run: (argv) => getKeys(table(), argv.slice(2), (name) => name),
    }),
    sub({
      name: "getkeysandflags",
      arity: -3,
      summary: "The same, with how each key is used.",
      since: "7.0.0",
      complexity: "O(N) in the number of arguments",
      arguments: wholeCommand,
      replies: "array of `[key, flags]`",
      examples: ["COMMAND GETKEYSANDFLAGS GET lock:b"],
      run: (argv) => getKeys(table(), argv.slice(2), (name, definition) => [name, keyFlags(definition)]),
    }),
  ];
}

// COMMAND INFO ----------------------------------------------------------------------------------------------------------

function commandInfo(table: CommandTable, names: readonly ByteString[]): Reply {
  if (names.length === 0) return table.definitions.map(infoOf);
  return names.map((name) => {
    const definition = table.findFullName(name);
    return definition === undefined ? null : infoOf(definition);
  });
}

const statuses = (words: readonly string[]): Reply => new SetReply(words.map((word) => new StatusReply(word)));

/** The ten fields of Redis 7. */
function infoOf(definition: CommandDefinition): Reply {
  const { keys } = definition;
  return [
    definition.name,
    definition.arity,
    statuses(definition.flags),
    keys?.first ?? 0,
    keys?.last ?? 0,
    keys?.step ?? 0,
    statuses(definition.categories),
    new SetReply([]),
    new SetReply(keys === null ? [] : [keySpecification(definition, keys)]),
    definition.subcommands?.definitions.map(infoOf) ?? [],
  ];
}

function keySpecification(definition: CommandDefinition, keys: KeyPositions): Reply {
  // Counted from the first key, or from the end when negative.
  const lastKey = keys.last < 0 ? keys.last : keys.last - keys.first;
  return new MapReply([
    ["flags", keyFlags(definition)],
    [
      "begin_search",
      new MapReply([
        ["type", "index"],
        ["spec", new MapReply([["index", keys.first]])],
      ]),
    ],
    [
      "find_keys",
      new MapReply([
        ["type", "range"],
        [
          "spec",
          new MapReply([
            ["lastkey", lastKey],
            ["keystep", keys.step],
            ["limit", 0],
          ]),
        ],
      ]),
    ],
  ]);
}

const keyFlags = (definition: CommandDefinition): Reply =>
  statuses(definition.flags.includes("readonly") ? ["RO", "access"] : ["RW", "update"]);

// COMMAND DOCS ----------------------------------------------------------------------------------------------------------

function commandDocs(table: CommandTable, names: readonly ByteString[]): Reply {
  if (names.length === 0) return new MapReply(table.definitions.map(docsEntry));
  const known = new Map<string, CommandDefinition>();
  for (const name of names) {
    const definition = table.findFullName(name);
    if (definition !== undefined) known.set(definition.name, definition);
  }
  return new MapReply([...known.values()].map(docsEntry));
}

const docsEntry = (definition: CommandDefinition): readonly [Reply, Reply] => [definition.name, docsOf(definition)];

function docsOf(definition: CommandDefinition): Reply {
  const pairs: (readonly [Reply, Reply])[] = [
    ["summary", definition.summary],
    ["since", definition.since],
    ["group", definition.group],
    ["complexity", definition.complexity],
  ];
  if (definition.arguments.length > 0) {
    pairs.push(["arguments", definition.arguments.map((argument) => argumentDocs(argument, definition))]);
  }
  if (definition.subcommands !== undefined) {
    pairs.push(["subcommands", new MapReply(definition.subcommands.definitions.map(docsEntry))]);
  }
  return new MapReply(pairs);
}

function argumentDocs(argument: ArgumentDoc, definition: CommandDefinition): Reply {
  const pairs: (readonly [Reply, Reply])[] = [
    ["name", argument.name],
    ["type", argument.type],
    ["display_text", argument.name],
  ];
  if (argument.type === "key" && definition.keys !== null) pairs.push(["key_spec_index", 0]);
  if (argument.token !== undefined) pairs.push(["token", argument.token]);
  const flags: string[] = [];
  if (argument.optional === true) flags.push("optional");
  if (argument.multiple === true) flags.push("multiple");
  if (argument.multipleToken === true) flags.push("multiple_token");
  if (flags.length > 0) pairs.push(["flags", statuses(flags)]);
  if (argument.arguments !== undefined) {
    pairs.push(["arguments", argument.arguments.map((part) => argumentDocs(part, definition))]);
  }
  return new MapReply(pairs);
}

// COMMAND LIST and GETKEYS --------------------------------------------------------------------------------------------

function commandList(table: CommandTable, filter: readonly ByteString[]): Reply {
  if (filter.length === 0) return [...table.all()].map((definition) => definition.name);
  const [by = "", kind = "", value = ""] = filter;
  if (filter.length !== 3 || !isWord(by, "FILTERBY")) return SYNTAX_ERROR;
  const lower = value.toLowerCase();
  if (isWord(kind, "MODULE")) return [];
  if (isWord(kind, "ACLCAT")) return namesOf(table, ({ categories }) => categories.includes(`@${lower}`));
  if (!isWord(kind, "PATTERN")) return SYNTAX_ERROR;
  const error = patternError(value);
  if (error !== null) return error;
  const matches = compileGlob(lower);
  return namesOf(table, ({ name }) => matches(name));
}

const namesOf = (table: CommandTable, passes: (definition: CommandDefinition) => boolean): Reply =>
  [...table.all()].filter(passes).map((definition) => definition.name);

/** Answers `show` of each key of the command `argv`. */
function getKeys(
  table: CommandTable,
  argv: readonly ByteString[],
  show: (key: ByteString, definition: CommandDefinition) => Reply,
): Reply {
  const definition = table.resolve(argv);
  if (definition === undefined) return generic("Invalid command specified");
  const noKeys = generic("The command has no key arguments");
  if (definition.keys === null && definition.keysOf === null) return noKeys;
  const isLegal = definition.arity >= 0 ? argv.length === definition.arity : argv.length >= -definition.arity;
  if (!isLegal) return generic("Invalid number of arguments specified for command");
  const keys = keysOf(definition, argv);
  return keys.length === 0 ? noKeys : keys.map((key) => show(key, definition));
}

function keysOf(
  { keys: positions, keysOf: find }: CommandDefinition,
  argv: readonly ByteString[],
): readonly ByteString[] {
  if (find !== null) return find(argv);
  if (positions === null) return [];
  const last = positions.last < 0 ? argv.length + positions.last : positions.last;
  const keys: ByteString[] = [];
  for (let index = positions.first; index <= last; index += positions.step) keys.push(argv[index] ?? "");
  return keys;
}
