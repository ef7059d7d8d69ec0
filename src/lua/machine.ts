import type { ByteString, Reply } from "../engine/reply.js";
import { HOOK_COUNT, HOOK_LINE, type Address, type LuaApi, type LuaState } from "./lua-api.js";
import type { LuaInstance } from "./lua-instance.js";
import type { ScriptRandom } from "./random.js";

/**
 * What the functions that scripts call share: the interpreter, and the run that is going on. One run at a time, so there is one
 * `run` and no way to confuse two.
 *
 * Also here: how such a function raises an error. All of these leave by a long jump and never return; they have a return type
 * so that a C function can end with `return raise...(...)`.
 */

/** Executes the commands that a script sends, and answers what only the server knows. */
export interface ScriptHost {
  /**
   * Executes one command at once and returns its reply, an ErrorReply for one that failed or is not allowed in scripts.
   * `readOnly` says that the script must not write: EVAL_RO, EVALSHA_RO, or the flag `no-writes` in its first line. Whatever
   * this throws ends the run and comes out of `ScriptEngine.run`.
   */
  call(argv: readonly ByteString[], readOnly: boolean): Reply;
  /** For `redis.acl_check_cmd`: whether the user may run this; null when there is no such command. Without it, always true. */
  mayCall?(argv: readonly ByteString[]): boolean | null;
}

export type LogLevel = "debug" | "verbose" | "notice" | "warning";

/** One execution of a script, from its first instruction to its reply. */
export interface ActiveRun {
  readonly sha: string;
  readonly host: ScriptHost;
  readonly readOnly: boolean;
  /** Milliseconds that only go forward. */
  readonly nowMs: () => number;
  readonly timeLimitMs: number;
  readonly deadlineMs: number;
  /** When the hook last looked at the clock, and after how many instructions it does so again. */
  lastLookMs: number;
  instructionsPerLook: number;
  /** Which RESP version the replies of `redis.call` are shown in: `redis.setresp`. */
  resp: 2 | 3;
  /** Its time is over: it is being ended, whatever it does. */
  isOverdue: boolean;
  /** Where the error that ended it was raised: chunk name and line; null when Lua does not know. */
  errorPosition: { readonly source: ByteString; readonly line: number } | null;
}

/**
 * What always lies at the bottom of the main thread's stack, by its slot: the table behind the globals, the handler that errors
 * pass on their way out, and the names of fields and globals as Lua strings, so that no C string is hashed for them.
 */
export const SLOT = {
  globals: 1,
  errorHandler: 2,
  KEYS: 3,
  ARGV: 4,
  err: 5,
  ok: 6,
  double: 7,
  bigNumber: 8,
  verbatim: 9,
  format: 10,
  string: 11,
  map: 12,
  set: 13,
} as const;

/** The height of the main thread's stack between runs. */
export const SLOTS = 13;

export interface Machine {
  readonly instance: LuaInstance;
  readonly api: LuaApi;
  /** The main thread. Functions get the state of the coroutine they are called in, which may be another. */
  readonly state: LuaState;
  /** The hook that watches the time, as a C pointer. */
  readonly hook: Address;
  readonly random: ScriptRandom;
  readonly redisVersion: string;
  run: ActiveRun | null;
  /** Something happened after which this instance must not be used for another run. */
  isSpoiled: boolean;
  /** A script changed the collector's settings. */
  isCollectorChanged: boolean;
  /** What the server's own code threw inside `redis.call`: it is passed on, whatever Lua makes of the exception. */
  hostFailure: { readonly thrown: unknown } | null;
  /** Whether the table on top of the stack has no named fields at all, so that none of them need be looked for. */
  readonly isPlainArray: (state: LuaState) => boolean;
  readonly log: (level: LogLevel, text: ByteString) => void;
}

/** The run that calls us: there is one whenever Lua code runs. */
export function activeRun(machine: Machine): ActiveRun {
  if (machine.run === null) throw new TypeError("Lua code runs outside of a run");
  return machine.run;
}

/** Raises a plain string, without a position. */
export function raiseText(machine: Machine, state: LuaState, text: ByteString): number {
  machine.instance.pushString(state, text);
  return machine.api.lua_error(state);
}

/** Raises as `luaL_error` does: the position of whoever called the function goes in front. */
export function raiseHere(machine: Machine, state: LuaState, text: ByteString): number {
  machine.api.luaL_where(state, 1);
  machine.instance.pushString(state, text);
  machine.api.lua_concat(state, 2);
  return machine.api.lua_error(state);
}

/**
 * An error reply as Redis shows it to a script: the text with its code in front. A text without a blank has no code, so it gets
 * the generic one; line ends around the message go away; a C string ends at its first zero byte.
 */
export function scriptErrorText(text: ByteString): ByteString {
  const shown = beforeZero(text);
  const blank = shown.indexOf(" ");
  const code = blank < 0 ? "ERR" : shown.slice(0, blank);
  return `${code} ${withoutOuterLineEnds(shown.slice(blank + 1))}`;
}

export function beforeZero(text: ByteString): ByteString {
  const zero = text.indexOf("\0");
  return zero < 0 ? text : text.slice(0, zero);
}

const OUTER_LINE_ENDS = /^[\r\n]+|[\r\n]+$/g;

const withoutOuterLineEnds = (text: ByteString): ByteString => text.replace(OUTER_LINE_ENDS, "");

/** Pushes `{err = text}`, the form of an error in scripts. `text` has its code in front already. */
export function pushError(machine: Machine, state: LuaState, text: ByteString): void {
  machine.api.lua_createtable(state, 0, 1);
  machine.instance.pushString(state, text);
  machine.api.lua_setfield(state, -2, machine.instance.name("err"));
}

/** Raises `{err = "ERR " + message}`, as the functions of `redis` do when they are called wrongly. */
export function raiseError(machine: Machine, state: LuaState, message: ByteString): number {
  pushError(machine, state, `ERR ${message}`);
  return machine.api.lua_error(state);
}

/** The run was cut off in the middle of one of Lua's own functions: its time is over. */
export class OverdueError extends Error {
  override readonly name = "OverdueError";
}

/** Why a run whose time is over ended. */
export const overdueText = (timeLimitMs: number): ByteString =>
  `ERR Script killed: it ran for longer than ${timeLimitMs} milliseconds.`;

/**
 * Ends the run when its time is over, by an error. From then on a hook comes before every line, in this coroutine and in the main
 * one, and raises the error again: catching it does not help.
 */
export function checkTime(machine: Machine, state: LuaState): void {
  const run = activeRun(machine);
  if (!run.isOverdue && run.nowMs() < run.deadlineMs) return;
  run.isOverdue = true;
  for (const thread of new Set([machine.state, state])) machine.api.lua_sethook(thread, machine.hook, HOOK_LINE, 0);
  pushError(machine, state, overdueText(run.timeLimitMs));
  machine.api.lua_error(state);
}

/** Instructions from the start of a run to its first look at the clock; most scripts are over by then or soon after. */
export const FIRST_LOOK_INSTRUCTIONS = 50;
const INSTRUCTIONS_MAX = 1000;

/** What should lie between two looks at the clock, in milliseconds. */
const LOOK_INTERVAL_MS = { short: 0.5, long: 5 } as const;

/**
 * The hook: looks at the clock, and sets the number of instructions to the next look. An instruction takes 20 ns, or 100 ms when it
 * calls a function on a string of megabytes: so the number follows the time that the last ones took.
 */
export function lookAtClock(machine: Machine, state: LuaState): void {
  checkTime(machine, state);
  const run = activeRun(machine);
  const nowMs = run.nowMs();
  const elapsedMs = nowMs - run.lastLookMs;
  run.lastLookMs = nowMs;
  const before = run.instructionsPerLook;
  if (elapsedMs < LOOK_INTERVAL_MS.short) run.instructionsPerLook = Math.min(before * 4, INSTRUCTIONS_MAX);
  else if (elapsedMs > LOOK_INTERVAL_MS.long) run.instructionsPerLook = Math.max(before >> 4, 1);
  if (run.instructionsPerLook !== before) {
    machine.api.lua_sethook(state, machine.hook, HOOK_COUNT, run.instructionsPerLook);
  }
}
