import { generic, SYNTAX_ERROR } from "../../engine/errors.js";
import { MapReply, OK, VerbatimReply, type ByteString, type Reply } from "../../engine/reply.js";
import type { ClientConnection } from "../command.js";
import { integer, optional, several, text, type CommandRow } from "../command-definition.js";
import { SLOWLOG_ENTRIES_MAX } from "../server-settings.js";
import type { ServerContext } from "../server-context.js";
import { parseInteger } from "./arguments.js";
import { memoryUsageRow } from "./keys.js";

/** SLOWLOG, LATENCY, MEMORY and MONITOR: what the server remembers about itself (`diagnostics.ts`), as Redis shows it. */

const ADMIN_FLAGS = "admin noscript loading stale";

type Subrow = Omit<CommandRow, "group" | "flags">;

const inContainer =
  (container: string, flags = ADMIN_FLAGS) =>
  (fields: Subrow): CommandRow => ({
    ...fields,
    name: `${container}|${fields.name}`,
    group: "server",
    flags,
  });

export function diagnosticsCommands(context: ServerContext): CommandRow[] {
  return [slowlogRow(context), latencyRow(context), memoryRow(context), monitorRow(context)];
}

function monitorRow(context: ServerContext): CommandRow {
  return {
    name: "monitor",
    arity: 1,
    flags: ADMIN_FLAGS,
    summary: "Shows every command that the server runs from now on, passwords left out.",
    since: "1.0.0",
    group: "server",
    replies: "`OK`, then a line for each command",
    run: (_argv, connection) => {
      context.diagnostics.addMonitor(connection);
      return OK;
    },
  };
}

// SLOWLOG ---------------------------------------------------------------------------------------------------------------

const SLOWLOG_COUNT_DEFAULT = 10;

function slowlogRow(context: ServerContext): CommandRow {
  const { diagnostics } = context;
  const sub = inContainer("slowlog", "admin loading stale");
  return {
    name: "slowlog",
    arity: -2,
    flags: "",
    summary: "Looks at the commands that took long.",
    since: "2.2.12",
    group: "server",
    complexity: "Depends on the subcommand.",
    replies: "see the subcommands",
    subcommands: [
      sub({
        name: "get",
        arity: -2,
        summary: "Lists the newest slow commands; -1 lists all.",
        since: "2.2.12",
        complexity: "O(N) in the number of entries shown",
        arguments: [optional(integer("count"))],
        replies: "array of `[id, unix seconds, microseconds, arguments, client address, client name]`",
        examples: ["SLOWLOG GET", "SLOWLOG GET -1"],
        run: (argv) => slowlogGet(context, argv),
      }),
      sub({
        name: "len",
        arity: 2,
        summary: "Counts the slow commands that are remembered.",
        since: "2.2.12",
        replies: "number",
        examples: ["SLOWLOG LEN"],
        run: () => diagnostics.slowlogLength,
      }),
      sub({
        name: "reset",
        arity: 2,
        summary: "Forgets the slow commands.",
        since: "2.2.12",
        replies: "`OK`",
        examples: ["SLOWLOG RESET"],
        run: () => {
          diagnostics.resetSlowlog();
          return OK;
        },
      }),
    ],
  };
}

function slowlogGet(context: ServerContext, argv: readonly ByteString[]): Reply {
  if (argv.length > 3) return SYNTAX_ERROR;
  const given = argv[2];
  const count = given === undefined ? SLOWLOG_COUNT_DEFAULT : parseInteger(given);
  if (count === null || count < -1) return generic("count should be greater than or equal to -1");
  return context.diagnostics
    .slowlog(count === -1 ? SLOWLOG_ENTRIES_MAX : count)
    .map((entry) => [entry.id, entry.unixSeconds, entry.durationUs, entry.argv, entry.clientAddress, entry.clientName]);
}

// LATENCY ---------------------------------------------------------------------------------------------------------------

function latencyRow(context: ServerContext): CommandRow {
  const { diagnostics } = context;
  const sub = inContainer("latency");
  return {
    name: "latency",
    arity: -2,
    flags: "",
    summary: "Looks at the moments when the server was slow.",
    since: "2.8.13",
    group: "server",
    complexity: "Depends on the subcommand.",
    replies: "see the subcommands",
    subcommands: [
      sub({
        name: "latest",
        arity: 2,
        summary: "Lists the newest sample of each event.",
        since: "2.8.13",
        replies: "array of `[event, unix seconds, ms, longest ms]`",
        examples: ["LATENCY LATEST"],
        run: () =>
          diagnostics
            .latencyLatest()
            .map((event) => [event.name, event.latest.unixSeconds, event.latest.durationMs, event.maximumMs]),
      }),
      sub({
        name: "history",
        arity: 3,
        summary: "Lists the samples of one event.",
        since: "2.8.13",
        arguments: [text("event")],
        replies: "array of `[unix seconds, ms]`",
        examples: ["LATENCY HISTORY command"],
        run: ([, , event = ""]) =>
          diagnostics.latencyHistory(event).map((sample) => [sample.unixSeconds, sample.durationMs]),
      }),
      sub({
        name: "reset",
        arity: -2,
        summary: "Forgets the samples of the events named, or of all.",
        since: "2.8.13",
        arguments: [optional(several(text("event")))],
        replies: "number of events forgotten",
        examples: ["LATENCY RESET"],
        run: (argv) => diagnostics.resetLatency(argv.slice(2)),
      }),
      sub({
        name: "doctor",
        arity: 2,
        summary: "Tells in words what the samples show.",
        since: "2.8.13",
        replies: "text",
        examples: ["LATENCY DOCTOR"],
        run: () => new VerbatimReply(latencyReport(context)),
      }),
      sub({
        name: "histogram",
        arity: -2,
        summary: "Distributions per command are not kept.",
        since: "7.0.0",
        arguments: [optional(several(text("command")))],
        replies: "empty map",
        examples: ["LATENCY HISTOGRAM"],
        run: () => new MapReply([]),
      }),
    ],
  };
}

function latencyReport(context: ServerContext): string {
  if (context.settings.latencyThresholdMs === 0) {
    return "Latency is not watched. CONFIG SET latency-monitor-threshold <milliseconds> starts it.\n";
  }
  const events = context.diagnostics.latencyLatest();
  if (events.length === 0) return `Nothing took ${context.settings.latencyThresholdMs} ms or longer so far.\n`;
  return events
    .map((event) => {
      const samples = context.diagnostics.latencyHistory(event.name);
      const mean = samples.reduce((sum, sample) => sum + sample.durationMs, 0) / samples.length;
      return `${event.name}: ${samples.length} samples, mean ${mean.toFixed(1)} ms, longest ${event.maximumMs} ms\n`;
    })
    .join("");
}

// MEMORY ----------------------------------------------------------------------------------------------------------------

function memoryRow(context: ServerContext): CommandRow {
  const sub = inContainer("memory", "");
  return {
    name: "memory",
    arity: -2,
    flags: "",
    summary: "Looks at the memory of the server.",
    since: "4.0.0",
    group: "server",
    complexity: "Depends on the subcommand.",
    replies: "see the subcommands",
    subcommands: [
      memoryUsageRow(),
      sub({
        name: "stats",
        arity: 2,
        summary: "Tells the memory in figures.",
        since: "4.0.0",
        replies: "map",
        examples: ["MEMORY STATS"],
        run: (_argv, connection) => memoryStats(context, connection),
      }),
      sub({
        name: "doctor",
        arity: 2,
        summary: "Tells in words how the memory is used.",
        since: "4.0.0",
        replies: "text",
        examples: ["MEMORY DOCTOR"],
        run: () => new VerbatimReply(memoryReport(context)),
      }),
      sub({
        name: "purge",
        arity: 2,
        summary: "Accepted; the runtime gives memory back by itself.",
        since: "4.0.0",
        replies: "`OK`",
        examples: ["MEMORY PURGE"],
        run: () => OK,
      }),
    ],
  };
}

function memoryStats(context: ServerContext, connection: ClientConnection): Reply {
  const memory = context.figures.memory();
  const node = context.backend.report();
  const allocated = memory.heapUsedBytes + memory.externalBytes;
  let clients = 0;
  for (const client of connection.server.connections()) clients += client.queryBufferBytes + client.outputBufferBytes;
  const keys = node.keysByDatabase.reduce((sum, count) => sum + count, 0);
  return new MapReply([
    ["peak.allocated", memory.residentPeakBytes],
    ["total.allocated", allocated],
    ["replication.backlog", 0],
    ["clients.slaves", 0],
    ["clients.normal", clients],
    ["aof.buffer", node.batchOpenBytes],
    ["keys.count", keys],
    ["leases.count", node.leases],
    ["allocator.allocated", memory.heapUsedBytes],
    ["allocator.active", memory.heapTotalBytes],
    ["allocator.resident", memory.residentBytes],
  ]);
}

function memoryReport(context: ServerContext): string {
  const memory = context.figures.memory();
  const node = context.backend.report();
  const megabytes = (bytes: number): string => `${(bytes / 1_048_576).toFixed(1)} MB`;
  const perLease = node.leases === 0 ? "" : `, ${Math.round(memory.residentBytes / node.leases)} bytes for each lease`;
  return (
    `${node.leases} leases; resident ${megabytes(memory.residentBytes)}${perLease}; ` +
    `heap ${megabytes(memory.heapUsedBytes)} used of ${megabytes(memory.heapTotalBytes)}.\n`
  );
}
