import { generic, withCode } from "../../engine/errors.js";
import { ErrorReply, OK, type ByteString, type Reply } from "../../engine/reply.js";
import { NO_SCRIPT, type ScriptHost } from "../../lua/script-engine.js";
import { integer, key, oneOf, optional, several, text, word, type CommandRow } from "../command-definition.js";
import type { ClientConnection, CommandLookup, CommandSpec, Step } from "../command.js";
import type { ServerContext } from "../server-context.js";
import { runInStep } from "../step.js";
import { clampedIntegerOr, isWord } from "./arguments.js";

/**
 * EVAL and its kin, and SCRIPT. A script is one step: time stands still in it, its changes are one batch, its answer and the
 * messages that it publishes leave when that is durable. Changes made before an error stay, as in Redis.
 *
 * The engine keeps the sources, durably, by their SHA-1 (`script-load`); the interpreter keeps what it has compiled, and is given a source
 * again when it has not.
 *
 * Invariants:
 *  - a script calls only what Redis lets scripts call, through the same table as everybody else
 *  - SELECT within a script ends with it
 */

const KEYS_NEGATIVE = generic("Number of keys can't be negative");
const KEYS_BEYOND_ARGUMENTS = generic("Number of keys can't be greater than number of args");

const UNKNOWN_IN_SCRIPT = generic("Unknown Redis command called from script");
const WRONG_ARITY_IN_SCRIPT = generic("Wrong number of args calling Redis command from script");
const NOT_IN_SCRIPT = generic("This Redis command is not allowed from script");
const WRITE_IN_READ_ONLY_SCRIPT = generic("Write commands are not allowed from read-only scripts.");

/** A command of this group. */
const row = (fields: Omit<CommandRow, "group">): CommandRow => ({ ...fields, group: "scripting" });

export function scriptingCommands(context: ServerContext, commands: () => CommandLookup): CommandRow[] {
  return [...evalRows(context, commands), scriptRow(context)];
}

// EVAL ----------------------------------------------------------------------------------------------------------------

const SHA_DIGITS = 40;

function evalRows(context: ServerContext, commands: () => CommandLookup): CommandRow[] {
  const calling = (
    name: string,
    since: string,
    what: "script" | "sha1",
    readOnly: boolean,
    summary: string,
    example: string,
  ): CommandRow =>
    row({
      name,
      arity: -3,
      flags: `${readOnly ? "readonly " : ""}noscript stale skip_monitor no_mandatory_keys movablekeys`,
      summary,
      since,
      complexity: "Depends on the script that is executed.",
      arguments: [text(what), integer("numkeys"), optional(several(key())), optional(several(text("arg")))],
      keysOf: (argv) => argv.slice(3, 3 + Number(argv[2])),
      replies: "what the script returns",
      examples: [example],
      timed: true,
      compose: (argv, connection, step) => {
        const scope: Scope = { context, commands: commands(), connection, step };
        return what === "script" ? evalSource(scope, argv, readOnly) : evalSha(scope, argv, readOnly);
      },
    });
  const source = `"return redis.call('get', KEYS[1])"`;
  const sha = "fd758d1589d044dd850a6f05d52f2eefd27f033f";
  return [
    calling("eval", "2.6.0", "script", false, "Runs a Lua script.", `EVAL ${source} 1 lock:a`),
    calling("evalsha", "2.6.0", "sha1", false, "Runs a Lua script that the server knows.", `EVALSHA ${sha} 1 lock:a`),
    calling("eval_ro", "7.0.0", "script", true, "Runs a Lua script that only reads.", `EVAL_RO ${source} 1 lock:a`),
    calling(
      "evalsha_ro",
      "7.0.0",
      "sha1",
      true,
      "Runs a Lua script that the server knows and that only reads.",
      `EVALSHA_RO ${sha} 1 lock:a`,
    ),
  ];
}

/** What a script runs in. */
interface Scope {
  readonly context: ServerContext;
  readonly commands: CommandLookup;
  readonly connection: ClientConnection;
  readonly step: Step;
}

/** The number of keys at `argv[2]`. */
function keyCount(argv: readonly ByteString[]): number | ErrorReply {
  const count = clampedIntegerOr(argv[2] ?? "");
  if (count instanceof ErrorReply) return count;
  if (count > argv.length - 3) return KEYS_BEYOND_ARGUMENTS;
  return count < 0 ? KEYS_NEGATIVE : count;
}

function evalSource(scope: Scope, argv: readonly ByteString[], readOnly: boolean): Reply {
  const keys = keyCount(argv);
  if (keys instanceof ErrorReply) return keys;
  const body = argv[1] ?? "";
  const compiled = scope.context.scripts.compile(body);
  if (compiled instanceof ErrorReply) return compiled;
  const { sha } = compiled;
  // Kept so that EVALSHA finds it, also after a restart. When there is no room for it, it runs all the same.
  if (compiled.isNew) scope.step.run({ kind: "script-load", sha, body, isPinned: false });
  return runScript(scope, sha, argv, keys, readOnly);
}

function evalSha(scope: Scope, argv: readonly ByteString[], readOnly: boolean): Reply {
  const given = argv[1] ?? "";
  if (given.length !== SHA_DIGITS) return NO_SCRIPT;
  const keys = keyCount(argv);
  if (keys instanceof ErrorReply) return keys;
  const { scripts } = scope.context;
  const sha = scripts.has(given) ? given : given.toLowerCase();
  if (!scripts.has(sha)) {
    const body = scope.step.run({ kind: "script-get", sha });
    if (body instanceof ErrorReply) return body;
    if (typeof body !== "string") return NO_SCRIPT;
    const compiled = scripts.compile(body);
    if (compiled instanceof ErrorReply) return compiled;
  }
  return runScript(scope, sha, argv, keys, readOnly);
}

function runScript(scope: Scope, sha: string, argv: readonly ByteString[], keys: number, readOnly: boolean): Reply {
  const { context, connection } = scope;
  const { databaseIndex } = connection;
  const { scriptTimeLimitMs } = context.settings;
  try {
    return context.scripts.run({
      sha,
      keys: argv.slice(3, 3 + keys),
      args: argv.slice(3 + keys),
      readOnly,
      host: new ScriptClient(scope),
      nowMs: () => context.clock.monotonicMs(),
      timeLimitMs: scriptTimeLimitMs === 0 ? Infinity : scriptTimeLimitMs,
    });
  } finally {
    connection.databaseIndex = databaseIndex;
  }
}

/** `redis.call` of one run. */
class ScriptClient implements ScriptHost {
  readonly #scope: Scope;

  constructor(scope: Scope) {
    this.#scope = scope;
  }

  call(argv: readonly ByteString[], readOnly: boolean): Reply {
    const { context, connection, step } = this.#scope;
    const spec = this.#find(argv);
    if (spec === undefined) return UNKNOWN_IN_SCRIPT;
    const refusal = refusalInScript(spec, argv, readOnly);
    if (refusal !== null) {
      spec.counters.rejected++;
      return refusal;
    }
    if (context.diagnostics.watchesAll) context.diagnostics.beforeCommand(spec, argv, connection, true);
    return runInStep(spec, argv, connection, step);
  }

  mayCall(argv: readonly ByteString[]): boolean | null {
    return this.#find(argv) === undefined ? null : true;
  }

  #find(argv: readonly ByteString[]): CommandSpec | undefined {
    const spec = this.#scope.commands.find(argv[0] ?? "");
    if (spec?.subcommands === undefined || argv.length < 2) return spec;
    return spec.subcommands.find(argv[1] ?? "");
  }
}

/** Redis counts these as writes where scripts are concerned. */
const SENDING: ReadonlySet<string> = new Set(["publish", "spublish"]);

function refusalInScript(spec: CommandSpec, argv: readonly ByteString[], readOnly: boolean): ErrorReply | null {
  if (spec.arity >= 0 ? argv.length !== spec.arity : argv.length < -spec.arity) return WRONG_ARITY_IN_SCRIPT;
  if (spec.isNoScript === true || spec.standsAlone === true) return NOT_IN_SCRIPT;
  return readOnly && (spec.write === true || SENDING.has(spec.name)) ? WRITE_IN_READ_ONLY_SCRIPT : null;
}

// SCRIPT --------------------------------------------------------------------------------------------------------------

const NO_DEBUGGER = generic("the script debugger is not offered");
const FLUSH_MODES = generic("SCRIPT FLUSH only support SYNC|ASYNC option");
const NOT_BUSY = withCode("NOTBUSY", "No scripts in execution right now.");

function scriptRow(context: ServerContext): CommandRow {
  return row({
    name: "script",
    arity: -2,
    flags: "",
    summary: "Looks after the scripts that the server knows.",
    since: "2.6.0",
    complexity: "Depends on the subcommand.",
    replies: "see the subcommands",
    subcommands: [loadRow(context), existsRow(), flushRow(context), killRow(), debugRow()],
  });
}

function loadRow(context: ServerContext): CommandRow {
  return row({
    name: "script|load",
    arity: 3,
    flags: "noscript stale",
    summary: "Keeps a script, over restarts too, until SCRIPT FLUSH.",
    since: "2.6.0",
    complexity: "O(N) in the length of the script",
    arguments: [text("script")],
    replies: "its SHA-1, for EVALSHA",
    examples: [`SCRIPT LOAD "return redis.call('get', KEYS[1])"`],
    timed: true,
    compose: ([, , body = ""], _connection, step) => {
      const compiled = context.scripts.compile(body);
      if (compiled instanceof ErrorReply) return compiled;
      const kept = step.run({ kind: "script-load", sha: compiled.sha, body, isPinned: true });
      return kept instanceof ErrorReply ? kept : compiled.sha;
    },
  });
}

function existsRow(): CommandRow {
  return row({
    name: "script|exists",
    arity: -3,
    flags: "noscript",
    summary: "Tells which scripts the server knows.",
    since: "2.6.0",
    complexity: "O(N) in the number of scripts named",
    arguments: [several(text("sha1"))],
    replies: "array of 1 and 0",
    examples: ["SCRIPT EXISTS fd758d1589d044dd850a6f05d52f2eefd27f033f"],
    parse: (argv) => ({ kind: "script-exists", shas: argv.slice(2).map((sha) => sha.toLowerCase()) }),
  });
}

function flushRow(context: ServerContext): CommandRow {
  return row({
    name: "script|flush",
    arity: -2,
    flags: "noscript",
    summary: "Forgets all scripts.",
    since: "2.6.0",
    complexity: "O(N) in the number of scripts",
    arguments: [optional(oneOf("flush-type", word("ASYNC"), word("SYNC")))],
    replies: "`OK`",
    examples: ["SCRIPT FLUSH"],
    compose: (argv, _connection, step) => {
      const [, , mode] = argv;
      const isLegal = mode === undefined || (argv.length === 3 && (isWord(mode, "ASYNC") || isWord(mode, "SYNC")));
      if (!isLegal) return FLUSH_MODES;
      const flushed = step.run({ kind: "script-flush" });
      if (flushed instanceof ErrorReply) return flushed;
      context.scripts.flush();
      return OK;
    },
  });
}

function killRow(): CommandRow {
  return row({
    name: "script|kill",
    arity: 2,
    flags: "noscript allow_busy",
    summary: "A script that runs too long is ended by the server: there is never one to kill.",
    since: "2.6.0",
    replies: "an error, as in Redis when no script runs",
    run: () => NOT_BUSY,
  });
}

function debugRow(): CommandRow {
  return row({
    name: "script|debug",
    arity: 3,
    flags: "noscript",
    summary: "The script debugger is not offered: NO is accepted, YES and SYNC refused.",
    since: "3.2.0",
    arguments: [oneOf("mode", word("YES"), word("SYNC"), word("NO"))],
    replies: "`OK` for NO",
    run: ([, , mode = ""]) => {
      if (isWord(mode, "NO")) return OK;
      return isWord(mode, "YES") || isWord(mode, "SYNC") ? NO_DEBUGGER : generic("Use SCRIPT DEBUG YES/SYNC/NO");
    },
  });
}
