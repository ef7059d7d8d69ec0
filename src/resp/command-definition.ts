import { StatusReply, type ByteString } from "../engine/reply.js";
import type { CommandCounters, CommandLookup, CommandSpec } from "./command.js";

/**
 * What one row of the command table holds: everything that dispatch, arity errors, COMMAND, COMMAND DOCS, the README's table
 * and the fuzzer need to know of a command, written once.
 *
 * A container gets its HELP subcommand from `define`: the text comes from the rows beside it.
 *
 * Invariants (tested over the whole table):
 *  - a row has `parse`, `compose` or `run`; `run` and `compose` may stand together, and a container may have none
 *  - `arity` agrees with `arguments`: the fewest arguments that the tree allows are those that the arity asks for
 */

/** One argument, in the form that COMMAND DOCS gives it. */
export interface ArgumentDoc {
  readonly name: string;
  readonly type: "string" | "integer" | "key" | "pattern" | "pure-token" | "oneof" | "block";
  /** The word in front of the value, or the word itself of a `pure-token`. */
  readonly token?: string;
  readonly optional?: boolean;
  readonly multiple?: boolean;
  /** With `multiple`: the token is repeated with each value. */
  readonly multipleToken?: boolean;
  readonly arguments?: readonly ArgumentDoc[];
}

/** Where the keys are in argv: first, last (negative: from the end), step. Lease ids count as keys: they decide the slot. */
export interface KeyPositions {
  readonly first: number;
  readonly last: number;
  readonly step: number;
}

export interface CommandDefinition extends CommandSpec {
  readonly summary: string;
  /** The version of Redis that brought the command; of Leasehold for its own. */
  readonly since: string;
  readonly group: CommandGroup;
  readonly complexity: string;
  readonly arguments: readonly ArgumentDoc[];
  /** What it answers, in a few words for the docs. */
  readonly replies: string;
  /** Calls that succeed, without the name in front being repeated. */
  readonly examples: readonly string[];
  readonly keys: KeyPositions | null;
  /** Where positions do not suffice: the keys of a legal argv. */
  readonly keysOf: ((argv: readonly ByteString[]) => readonly ByteString[]) | null;
  /** ACL categories with their `@`, for COMMAND INFO and ACL CAT. */
  readonly categories: readonly string[];
  readonly subcommands?: Subcommands;
}

export type CommandGroup =
  | "lease"
  | "lock"
  | "generic"
  | "string"
  | "connection"
  | "server"
  | "pubsub"
  | "cluster"
  | "scripting"
  | "transactions";

/** A row as it is written in `commands/*.ts`; `define` fills in what follows from the rest. */
export interface CommandRow {
  readonly name: string;
  readonly arity: number;
  /** Redis's flags, separated by blanks. */
  readonly flags: string;
  readonly summary: string;
  readonly since: string;
  readonly group: CommandGroup;
  readonly complexity?: string;
  readonly arguments?: readonly ArgumentDoc[];
  readonly replies: string;
  readonly examples?: readonly string[];
  readonly keys?: readonly [first: number, last: number, step: number];
  readonly keysOf?: (argv: readonly ByteString[]) => readonly ByteString[];
  /** ACL categories beyond those that follow from the flags; in place of those that follow from the group. */
  readonly categories?: readonly string[];
  readonly secret?: boolean;
  readonly timed?: boolean;
  readonly ignoresPause?: boolean;
  readonly standsAlone?: boolean;
  readonly isNeverQueued?: boolean;
  readonly parse?: NonNullable<CommandSpec["parse"]>;
  readonly compose?: NonNullable<CommandSpec["compose"]>;
  readonly run?: NonNullable<CommandSpec["run"]>;
  readonly subcommands?: readonly CommandRow[];
}

/** The rows of one container, found by the subcommand's name alone. */
class Subcommands implements CommandLookup {
  readonly definitions: readonly CommandDefinition[];
  readonly #byName: NameIndex;

  constructor(definitions: readonly CommandDefinition[]) {
    this.definitions = definitions;
    this.#byName = new NameIndex(definitions.map((definition) => [afterBar(definition.name), definition]));
  }

  find(name: ByteString): CommandDefinition | undefined {
    return this.#byName.find(name);
  }
}

/**
 * Names in any letter case. Lower and upper case are found as they stand; a mixed one costs a conversion. Bounded by the number
 * of commands: what clients ask for is never remembered.
 */
export class NameIndex {
  readonly #byName = new Map<string, CommandDefinition>();

  constructor(entries: Iterable<readonly [string, CommandDefinition]>) {
    for (const [name, definition] of entries) {
      this.#byName.set(name, definition);
      this.#byName.set(name.toUpperCase(), definition);
    }
  }

  find(name: ByteString): CommandDefinition | undefined {
    return this.#byName.get(name) ?? this.#byName.get(name.toLowerCase());
  }
}

const afterBar = (name: string): string => name.slice(name.indexOf("|") + 1);

/** Fills in a row. Throws for a row that contradicts itself: a programmer error, found at start. */
export function define(row: CommandRow): CommandDefinition {
  const { parse, compose, run, subcommands } = row;
  const isCallable = (run ?? compose) !== undefined;
  if (parse === undefined ? !isCallable && subcommands === undefined : isCallable) {
    throw new Error(`command ${row.name}: needs either parse or run, or compose`);
  }
  const flags = row.flags === "" ? [] : row.flags.split(" ");
  const has = (flag: string): boolean => flags.includes(flag);
  const [first, last, step] = row.keys ?? [0, 0, 0];
  return {
    name: row.name,
    arity: row.arity,
    flags,
    withoutPassword: has("no_auth"),
    write: has("write"),
    ignoresPause: row.ignoresPause ?? false,
    secret: row.secret ?? false,
    timed: row.timed ?? false,
    isNoScript: has("noscript"),
    standsAlone: row.standsAlone ?? has("no_multi"),
    isNeverQueued: row.isNeverQueued ?? false,
    counters: newCounters(),
    summary: row.summary,
    since: row.since,
    group: row.group,
    complexity: row.complexity ?? "O(1)",
    arguments: row.arguments ?? [],
    replies: row.replies,
    examples: row.examples ?? [],
    keys: first === 0 ? null : { first, last, step },
    keysOf: row.keysOf ?? null,
    categories: categoriesOf(row, flags),
    ...(parse === undefined ? {} : { parse }),
    ...(compose === undefined ? {} : { compose }),
    ...(run === undefined ? {} : { run }),
    ...(subcommands === undefined ? {} : { subcommands: subcommandsOf(row, subcommands) }),
  };
}

function subcommandsOf(container: CommandRow, rows: readonly CommandRow[]): Subcommands {
  const definitions = rows.map(define);
  const help = define({
    name: `${container.name}|help`,
    arity: 2,
    flags: "loading stale",
    summary: "Shows the subcommands.",
    since: container.since,
    group: container.group,
    ...(container.categories === undefined ? {} : { categories: container.categories }),
    replies: "lines of text",
    run: () => lines,
  });
  const lines = [
    `${container.name.toUpperCase()} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:`,
    ...[...definitions, help].flatMap((definition) => {
      const usage = `${afterBar(definition.name).toUpperCase()} ${syntaxOf(definition.arguments)}`.trimEnd();
      return [usage, `    ${definition.summary}`];
    }),
  ].map((line) => new StatusReply(line));
  return new Subcommands([...definitions, help]);
}

const newCounters = (): CommandCounters => ({ calls: 0, rejected: 0, failed: 0, durationMs: 0 });

const CATEGORIES_OF_GROUP: Readonly<Record<CommandGroup, readonly string[]>> = {
  lease: ["@lease"],
  lock: ["@lock"],
  generic: ["@keyspace"],
  string: ["@string"],
  connection: ["@connection"],
  server: [],
  pubsub: [],
  cluster: [],
  scripting: ["@scripting"],
  transactions: ["@transaction"],
};

/** False for a container that has no meaning of its own. */
export const canBeCalled = ({ parse, compose, run }: Pick<CommandRow, "parse" | "compose" | "run">): boolean =>
  (parse ?? compose ?? run) !== undefined;

/** Redis derives most categories from the flags; so do we. */
function categoriesOf(row: CommandRow, flags: readonly string[]): readonly string[] {
  const categories = new Set<string>();
  const has = (flag: string): boolean => flags.includes(flag);
  const isCallable = canBeCalled(row);
  if (isCallable) {
    if (has("write")) categories.add("@write");
    if (has("readonly") && row.group !== "scripting") categories.add("@read");
    if (has("admin")) categories.add("@admin").add("@dangerous");
    if (has("pubsub")) categories.add("@pubsub");
    if (has("blocking")) categories.add("@blocking");
  }
  const ofGroup = isCallable ? CATEGORIES_OF_GROUP[row.group] : [];
  for (const category of row.categories ?? ofGroup) categories.add(category);
  categories.add(has("fast") ? "@fast" : "@slow");
  return [...categories];
}

// Arguments ---------------------------------------------------------------------------------------------------------

export const key = (name = "key"): ArgumentDoc => ({ name, type: "key" });
export const text = (name: string): ArgumentDoc => ({ name, type: "string" });
export const integer = (name: string): ArgumentDoc => ({ name, type: "integer" });
export const pattern = (name = "pattern"): ArgumentDoc => ({ name, type: "pattern" });
/** A word that stands for itself. */
export const word = (token: string): ArgumentDoc => ({ name: token.toLowerCase(), type: "pure-token", token });
export const oneOf = (name: string, ...choices: readonly ArgumentDoc[]): ArgumentDoc => ({
  name,
  type: "oneof",
  arguments: choices,
});
export const block = (name: string, ...parts: readonly ArgumentDoc[]): ArgumentDoc => ({
  name,
  type: "block",
  arguments: parts,
});
/** `token` in front of `argument`. */
export const after = (token: string, argument: ArgumentDoc): ArgumentDoc => ({ ...argument, token });
export const optional = (argument: ArgumentDoc): ArgumentDoc => ({ ...argument, optional: true });
/** Once or more; with `optional` around it: any number. */
export const several = (argument: ArgumentDoc): ArgumentDoc => ({ ...argument, multiple: true });
/** As `several`, the token repeated each time. */
export const severalClauses = (argument: ArgumentDoc): ArgumentDoc => ({
  ...argument,
  multiple: true,
  multipleToken: true,
});

/** The arguments as Redis's docs write them, e.g. `id <seconds | EX seconds> [KEY key value [KEY key value ...]]`. */
export function syntaxOf(args: readonly ArgumentDoc[]): string {
  return args.map(syntaxOfOne).join(" ");
}

function syntaxOfOne(argument: ArgumentDoc): string {
  const value = valueSyntax(argument);
  const once = argument.token === undefined || argument.type === "pure-token" ? value : `${argument.token} ${value}`;
  let shown = once;
  if (argument.multiple === true) shown += ` [${argument.multipleToken === true ? once : value} ...]`;
  return argument.optional === true ? `[${shown}]` : shown;
}

function valueSyntax(argument: ArgumentDoc): string {
  switch (argument.type) {
    case "pure-token":
      return argument.token ?? argument.name;
    case "block":
      return syntaxOf(argument.arguments ?? []);
    case "oneof": {
      const choices = (argument.arguments ?? []).map(syntaxOfOne).join(" | ");
      return argument.optional === true && argument.token === undefined ? choices : `<${choices}>`;
    }
    case "string":
    case "integer":
    case "key":
    case "pattern":
      return argument.name;
  }
}

/** The fewest arguments that the tree allows. */
export function fewestArguments(args: readonly ArgumentDoc[]): number {
  let sum = 0;
  for (const argument of args) {
    if (argument.optional === true) continue;
    sum += fewestOfValue(argument) + (argument.token !== undefined && argument.type !== "pure-token" ? 1 : 0);
  }
  return sum;
}

function fewestOfValue(argument: ArgumentDoc): number {
  const parts = argument.arguments ?? [];
  if (argument.type === "block") return fewestArguments(parts);
  if (argument.type === "oneof")
    return Math.min(...parts.map((part) => fewestArguments([{ ...part, optional: false }])));
  return 1;
}
