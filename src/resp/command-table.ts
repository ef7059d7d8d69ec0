import type { ByteString } from "../engine/reply.js";
import {
  canBeCalled,
  define,
  NameIndex,
  syntaxOf,
  type CommandDefinition,
  type CommandGroup,
  type CommandRow,
} from "./command-definition.js";
import type { ClientConnection, CommandLookup } from "./command.js";
import { clientCommands } from "./commands/client.js";
import { configCommands } from "./commands/config.js";
import { connectionCommands } from "./commands/connection.js";
import { diagnosticsCommands } from "./commands/diagnostics.js";
import { commandCommands } from "./commands/introspection.js";
import { keyCommands } from "./commands/keys.js";
import { leaseCommands } from "./commands/leases.js";
import { lockCommands } from "./commands/locks.js";
import { pubsubCommands } from "./commands/pubsub.js";
import { scriptingCommands } from "./commands/scripting.js";
import { serverCommands } from "./commands/server.js";
import { stringCommands } from "./commands/strings.js";
import { transactionCommands } from "./commands/transactions.js";
import { Rates } from "./info.js";
import type { ServerContext } from "./server-context.js";

/**
 * The one list of commands. Dispatch, arity errors, COMMAND and its DOCS, the tables of README and PROTOCOL.md and the fuzzer
 * all come from it. To add a family of commands: a file in `commands/` with its rows, and a line in `buildCommandTable`.
 */
export class CommandTable implements CommandLookup {
  /** Without subcommands, in the order of the docs. */
  readonly definitions: readonly CommandDefinition[];
  readonly #byName: NameIndex;

  /** Throws for two rows of one name: a programmer error, found at start. */
  constructor(rows: readonly CommandRow[]) {
    this.definitions = rows.map(define);
    const names = new Set<string>();
    for (const { name } of this.all()) {
      if (names.has(name)) throw new Error(`command ${name}: defined twice`);
      names.add(name);
    }
    this.#byName = new NameIndex(this.definitions.map((definition) => [definition.name, definition]));
  }

  find(name: ByteString): CommandDefinition | undefined {
    return this.#byName.find(name);
  }

  /** Also `client|kill`. */
  findFullName(name: ByteString): CommandDefinition | undefined {
    const bar = name.indexOf("|");
    if (bar < 0) return this.find(name);
    return this.find(name.slice(0, bar))?.subcommands?.find(name.slice(bar + 1));
  }

  /** The command, or the subcommand, that `argv` would run. */
  resolve(argv: readonly ByteString[]): CommandDefinition | undefined {
    const definition = this.find(argv[0] ?? "");
    if (definition?.subcommands === undefined || argv.length < 2) return definition;
    return definition.subcommands.find(argv[1] ?? "");
  }

  /** Each command, followed by its subcommands. */
  *all(): Generator<CommandDefinition> {
    for (const definition of this.definitions) {
      yield definition;
      if (definition.subcommands !== undefined) yield* definition.subcommands.definitions;
    }
  }
}

/** The table of a server. `context` is what its commands act on. */
export function buildCommandTable(context: ServerContext): CommandTable {
  const table: CommandTable = new CommandTable([
    ...leaseCommands(),
    ...lockCommands(),
    ...keyCommands(context),
    ...stringCommands(),
    ...connectionCommands(context),
    ...clientCommands(context),
    ...transactionCommands(context),
    ...scriptingCommands(context, () => table),
    ...pubsubCommands(context),
    ...serverCommands(context, {
      context,
      definitions: () => table.all(),
      rates: new Rates(context.identity.startedAtMs),
    }),
    ...configCommands(context, (connection) => {
      resetStatistics(table, context, connection);
    }),
    ...diagnosticsCommands(context),
    ...commandCommands(() => table),
  ]);
  return table;
}

/** CONFIG RESETSTAT: everything that INFO counts, but for what the engine counts. */
function resetStatistics(table: CommandTable, context: ServerContext, connection: ClientConnection): void {
  for (const { counters } of table.all()) {
    counters.calls = 0;
    counters.rejected = 0;
    counters.failed = 0;
    counters.durationMs = 0;
  }
  const { statistics } = connection.server;
  statistics.connectionsReceived = 0;
  statistics.connectionsRejected = 0;
  statistics.commandsProcessed = 0;
  statistics.bytesRead = 0;
  statistics.bytesWritten = 0;
  statistics.protocolErrors = 0;
  statistics.outputLimitDisconnections = 0;
  statistics.errorReplies.clear();
  context.diagnostics.authenticationFailures = 0;
}

// Docs ------------------------------------------------------------------------------------------------------------------

/** The tables of the docs, in their order. */
const DOCS_TITLES = [
  "Leases",
  "Locks",
  "Keys",
  "Strings",
  "Scripts and transactions",
  "Connection",
  "Publish and subscribe",
  "Server",
] as const;

export type DocsTitle = (typeof DOCS_TITLES)[number];

const TITLE_OF_GROUP: Readonly<Record<CommandGroup, DocsTitle>> = {
  lease: "Leases",
  lock: "Locks",
  string: "Strings",
  generic: "Keys",
  connection: "Connection",
  pubsub: "Publish and subscribe",
  server: "Server",
  cluster: "Server",
  scripting: "Scripts and transactions",
  transactions: "Scripts and transactions",
};

/** `LEASE.GRANT id|* ...` as the docs show a call. */
export function usageOf(definition: CommandDefinition): string {
  const name = definition.name.toUpperCase().replace("|", " ");
  return `${name} ${syntaxOf(definition.arguments)}`.trimEnd();
}

/** The commands as Markdown tables, subcommands in place of their containers. */
export function renderCommandTable(table: CommandTable, titles: readonly DocsTitle[] = DOCS_TITLES): string {
  return titles
    .map((title) => {
      const rows = [...table.all()].filter(
        (definition) => TITLE_OF_GROUP[definition.group] === title && isShown(definition),
      );
      return `### ${title}\n\n| command | what it does | reply |\n| --- | --- | --- |\n${rows.map(rowOf).join("")}`;
    })
    .join("\n");
}

/** Containers show by their subcommands, unless they can be called themselves (COMMAND). HELP goes without saying. */
const isShown = (definition: CommandDefinition): boolean =>
  canBeCalled(definition) && !definition.name.endsWith("|help");

function rowOf(definition: CommandDefinition): string {
  const cells = [`\`${usageOf(definition)}\``, definition.summary, definition.replies];
  return `| ${cells.map((cell) => cell.replaceAll("|", "\\|")).join(" | ")} |\n`;
}
