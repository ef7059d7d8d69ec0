import { generic, limitReached, withCode } from "../../engine/errors.js";
import { KEYS_PER_COMMAND_MAX } from "../../engine/limits.js";
import { ErrorReply, NULL_ARRAY, OK, StatusReply, type ByteString, type Reply } from "../../engine/reply.js";
import { SATURATED } from "../../ports.js";
import { key, several, type CommandRow } from "../command-definition.js";
import type { ClientConnection, ClientTransaction, CommandSpec, RunResult, Step, WatchedKey } from "../command.js";
import type { ServerContext } from "../server-context.js";
import { runInStep, runStep } from "../step.js";
import { REPLY_BYTES_MAX, TRANSACTION_BYTES_MAX, TRANSACTION_COMMANDS_MAX } from "../wire-limits.js";
import { keysFrom } from "./arguments.js";

/**
 * MULTI, EXEC, DISCARD, WATCH, UNWATCH. Commands between MULTI and EXEC are kept as they came; EXEC runs them as one step, so that
 * a crash leaves all of their changes or none.
 *
 * As in Redis: a command that is refused when it is queued (unknown name, wrong number of arguments) makes EXEC discard everything; one
 * that fails when it runs stays an error in its place, and the others have their effect. There is no rollback.
 *
 * Invariants:
 *  - what a transaction holds is bounded, in commands and in bytes
 *  - after EXEC and DISCARD, whatever they answered, the connection is out of the transaction and watches nothing
 */

const QUEUED = new StatusReply("QUEUED");

const NOT_QUEUED = generic("Command not allowed inside a transaction");
const NESTED_MULTI = generic("MULTI calls can not be nested");
const WATCH_IN_MULTI = generic("WATCH inside MULTI is not allowed");
const EXEC_ALONE = generic("EXEC without MULTI");
const DISCARD_ALONE = generic("DISCARD without MULTI");
const ABORTED = withCode("EXECABORT", "Transaction discarded because of previous errors.");

interface QueuedCommand {
  readonly spec: CommandSpec;
  readonly argv: readonly ByteString[];
}

class Transaction implements ClientTransaction {
  readonly commands: QueuedCommand[] = [];
  isAborted = false;
  #bytes = 0;

  get size(): number {
    return this.commands.length;
  }

  take(spec: CommandSpec, argv: readonly ByteString[]): Reply | undefined {
    if (spec.isNeverQueued === true) return undefined;
    const error = this.#refusal(spec, argv);
    if (error !== null) {
      this.isAborted = true;
      return error;
    }
    // What will never run need not be kept.
    if (!this.isAborted) this.commands.push({ spec, argv });
    return QUEUED;
  }

  abort(): void {
    this.isAborted = true;
    this.commands.length = 0;
  }

  #refusal(spec: CommandSpec, argv: readonly ByteString[]): ErrorReply | null {
    if (spec.standsAlone === true) return NOT_QUEUED;
    if (this.commands.length >= TRANSACTION_COMMANDS_MAX) {
      return limitReached("commands of one transaction", TRANSACTION_COMMANDS_MAX);
    }
    for (const argument of argv) this.#bytes += argument.length;
    return this.#bytes > TRANSACTION_BYTES_MAX ? limitReached("bytes of one transaction", TRANSACTION_BYTES_MAX) : null;
  }
}

/** A command of this group. */
const row = (fields: Omit<CommandRow, "group" | "flags"> & { readonly flags?: string }): CommandRow => ({
  flags: "noscript loading stale fast allow_busy",
  ...fields,
  group: "transactions",
});

export function transactionCommands(context: ServerContext): CommandRow[] {
  return [...transactionRows(context), ...watchRows(context)];
}

function transactionRows(context: ServerContext): CommandRow[] {
  return [
    row({
      name: "multi",
      arity: 1,
      summary: "Begins a transaction: the commands that follow are queued until EXEC.",
      since: "1.2.0",
      replies: "`OK`; the commands after it answer `QUEUED`",
      isNeverQueued: true,
      run: (_argv, connection) => {
        if (connection.transaction !== null) return NESTED_MULTI;
        connection.transaction = new Transaction();
        return OK;
      },
    }),
    row({
      name: "exec",
      arity: 1,
      flags: "noscript loading stale skip_slowlog",
      summary: "Runs the commands of a transaction as one step and one write.",
      since: "1.2.0",
      complexity: "Depends on the commands of the transaction.",
      replies: "array of their replies; nil when a watched key has changed",
      isNeverQueued: true,
      timed: true,
      run: (_argv, connection) => exec(context, connection),
    }),
    row({
      name: "discard",
      arity: 1,
      summary: "Forgets the commands of a transaction.",
      since: "2.0.0",
      complexity: "O(N) in the number of queued commands",
      replies: "`OK`",
      isNeverQueued: true,
      run: (_argv, connection) => {
        if (connection.transaction === null) return DISCARD_ALONE;
        leaveTransaction(connection);
        return OK;
      },
    }),
  ];
}

/** Also what RESET does. */
export function leaveTransaction(connection: ClientConnection): void {
  connection.transaction = null;
  connection.watchedKeys = [];
}

function exec(context: ServerContext, connection: ClientConnection): RunResult | typeof SATURATED {
  const { transaction } = connection;
  if (!(transaction instanceof Transaction)) return EXEC_ALONE;
  if (transaction.isAborted) {
    leaveTransaction(connection);
    return ABORTED;
  }
  let hasBegun = false;
  const result = runStep(context.backend, connection, context.clock.unixMs(), (step) => {
    hasBegun = true;
    return execute(context, connection, transaction.commands, step);
  });
  if (result === SATURATED || hasBegun) return result;
  leaveTransaction(connection);
  return result instanceof ErrorReply
    ? withCode("EXECABORT", `Transaction discarded because of: ${result.text}`)
    : result;
}

function execute(
  context: ServerContext,
  connection: ClientConnection,
  commands: readonly QueuedCommand[],
  step: Step,
): Reply {
  const { watchedKeys } = connection;
  leaveTransaction(connection);
  const hasChanged = (watched: WatchedKey): boolean =>
    context.backend.revisionOf(watched.databaseIndex, watched.key) !== watched.revision;
  if (watchedKeys.some(hasChanged)) return NULL_ARRAY;
  let bytes = 0;
  return commands.map(({ spec, argv }) => {
    const reply = runInStep(spec, argv, connection, step);
    const replyBytes = bytesOf(reply);
    if (bytes + replyBytes > REPLIES_BYTES_MAX) return LEFT_OUT;
    bytes += replyBytes;
    return reply;
  });
}

/**
 * What the replies of one transaction may come to. Beyond it they are left out one by one, so that EXEC never answers with one error for what has
 * been done: an error means that nothing has changed.
 */
const REPLIES_BYTES_MAX = REPLY_BYTES_MAX / 2;

const LEFT_OUT = withCode(
  "ERR",
  `the command ran; its reply is left out, those of the transaction are longer than ${REPLIES_BYTES_MAX} bytes`,
);

/** About as many bytes as the reply has on the wire. */
function bytesOf(reply: Reply): number {
  if (typeof reply === "string") return reply.length;
  if (!Array.isArray(reply)) return 0;
  let bytes = 0;
  for (const item of reply) bytes += bytesOf(item as Reply) + REPLY_HEAD_BYTES;
  return bytes;
}

const REPLY_HEAD_BYTES = 16;

function watchRows(context: ServerContext): CommandRow[] {
  return [
    row({
      name: "watch",
      arity: -2,
      summary: "Lets the next EXEC run only if these keys stay as they are.",
      since: "2.2.0",
      complexity: "O(1) for each key",
      arguments: [several(key())],
      keys: [1, -1, 1],
      replies: "`OK`",
      examples: ["WATCH lock:a lock:b"],
      isNeverQueued: true,
      run: (argv, connection) => watch(context, argv, connection),
    }),
    row({
      name: "unwatch",
      arity: 1,
      summary: "Forgets what WATCH named.",
      since: "2.2.0",
      replies: "`OK`",
      run: (_argv, connection) => {
        connection.watchedKeys = [];
        return OK;
      },
    }),
  ];
}

function watch(context: ServerContext, argv: readonly ByteString[], connection: ClientConnection): Reply {
  if (connection.transaction !== null) return WATCH_IN_MULTI;
  const keys = keysFrom(argv, 1);
  if (keys instanceof ErrorReply) return keys;
  const { databaseIndex } = connection;
  const isWatched = (name: ByteString): boolean =>
    connection.watchedKeys.some((watched) => watched.key === name && watched.databaseIndex === databaseIndex);
  const added = [...new Set(keys)].filter((name) => !isWatched(name));
  if (connection.watchedKeys.length + added.length > KEYS_PER_COMMAND_MAX) {
    return limitReached("watched keys of one connection", KEYS_PER_COMMAND_MAX);
  }
  connection.watchedKeys = [
    ...connection.watchedKeys,
    ...added.map((name) => ({
      databaseIndex,
      key: name,
      revision: context.backend.revisionOf(databaseIndex, name),
    })),
  ];
  return OK;
}
