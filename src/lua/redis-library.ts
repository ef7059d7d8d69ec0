import { createHash } from "node:crypto";
import { doubleText, ErrorReply, type ByteString } from "../engine/reply.js";
import { pushReply } from "./reply-to-lua.js";
import { TYPE_NUMBER, TYPE_STRING, type LuaState } from "./lua-api.js";
import type { CFunction } from "./lua-instance.js";
import {
  activeRun,
  beforeZero,
  pushError,
  raiseError,
  scriptErrorText,
  type LogLevel,
  type Machine,
} from "./machine.js";

/**
 * The global `redis` of scripts: everything that Redis 7 has there. What only means something to replication or to the script
 * debugger is accepted and does nothing.
 */

/** Arguments of one call in all; a script can name one long string thousands of times. */
const ARGUMENT_BYTES_MAX = 64 * 1024 * 1024;

const REPLICATION_FLAGS = { REPL_NONE: 0, REPL_AOF: 1, REPL_SLAVE: 2, REPL_REPLICA: 2, REPL_ALL: 3 } as const;
const LOG_LEVELS: readonly LogLevel[] = ["debug", "verbose", "notice", "warning"];

/** Its functions by name. */
export function redisFunctions(machine: Machine): Record<string, CFunction> {
  return {
    call: (state) => callCommand(machine, state, true),
    pcall: (state) => callCommand(machine, state, false),
    error_reply: (state) => errorReply(machine, state),
    status_reply: (state) => statusReply(machine, state),
    sha1hex: (state) => sha1hex(machine, state),
    log: (state) => log(machine, state),
    setresp: (state) => setResp(machine, state),
    set_repl: (state) => setReplication(machine, state),
    acl_check_cmd: (state) => mayCall(machine, state),
    replicate_commands: (state) => pushBoolean(machine, state, true),
    breakpoint: (state) => pushBoolean(machine, state, false),
    debug: () => 0,
  };
}

/** Its constants by name. */
export function redisConstants({ redisVersion }: Machine): Record<string, number | string> {
  const [major = 0, minor = 0, patch = 0] = redisVersion.split(".").map(Number);
  return {
    ...REPLICATION_FLAGS,
    LOG_DEBUG: 0,
    LOG_VERBOSE: 1,
    LOG_NOTICE: 2,
    LOG_WARNING: 3,
    REDIS_VERSION: redisVersion,
    REDIS_VERSION_NUM: major * 0x10000 + minor * 0x100 + patch,
  };
}

function pushBoolean({ api }: Machine, state: LuaState, value: boolean): number {
  api.lua_pushboolean(state, value ? 1 : 0);
  return 1;
}

/** Pushes the error; raises it if that is asked for, else it is the function's result. */
function refuse(machine: Machine, state: LuaState, message: string, isRaised: boolean): number {
  pushError(machine, state, `ERR ${message}`);
  return isRaised ? machine.api.lua_error(state) : 1;
}

/** All arguments as bytes, or why they cannot be. */
function readArguments(machine: Machine, state: LuaState): ByteString[] | string {
  const { api, instance } = machine;
  const count = api.lua_gettop(state);
  if (count === 0) return "Please specify at least one argument for this redis lib call";
  const argv: ByteString[] = [];
  let bytes = 0;
  for (let index = 1; index <= count; index++) {
    const type = api.lua_type(state, index);
    if (type === TYPE_STRING) {
      bytes += instance.stringLength(state, index);
      if (bytes > ARGUMENT_BYTES_MAX) return `the arguments of a call may be ${ARGUMENT_BYTES_MAX} bytes long in all`;
      argv.push(instance.toByteString(state, index) as ByteString);
    } else if (type === TYPE_NUMBER) argv.push(numberText(api.lua_tonumber(state, index)));
    else return "Lua redis lib command arguments must be strings or integers";
  }
  return argv;
}

/** Integers up to here have the same digits in JavaScript as in C. */
const PLAIN_INTEGER_MAX = 1e15;

/** A number as an argument of a command. The sign of a NaN has no meaning; x86 shows the one that 0/0 makes as negative. */
function numberText(value: number): ByteString {
  if (Number.isInteger(value) && Math.abs(value) < PLAIN_INTEGER_MAX && value !== 0) return String(value);
  return Number.isNaN(value) ? "-nan" : doubleText(value);
}

/** `redis.call` and `redis.pcall`. */
function callCommand(machine: Machine, state: LuaState, isRaised: boolean): number {
  const { api } = machine;
  const run = activeRun(machine);
  const argv = readArguments(machine, state);
  api.lua_settop(state, 0);
  if (typeof argv === "string") return refuse(machine, state, argv, isRaised);
  let reply;
  try {
    reply = run.host.call(argv, run.readOnly);
  } catch (thrown) {
    machine.hostFailure = { thrown };
    throw thrown;
  }
  pushReply(machine, state, reply, run.resp);
  return isRaised && reply instanceof ErrorReply ? api.lua_error(state) : 1;
}

function errorReply(machine: Machine, state: LuaState): number {
  const { api, instance } = machine;
  if (api.lua_gettop(state) !== 1 || api.lua_type(state, 1) !== TYPE_STRING) {
    return refuse(machine, state, "wrong number or type of arguments", false);
  }
  const text = beforeZero(instance.toByteString(state, 1) ?? "");
  pushError(machine, state, scriptErrorText(text.startsWith("-") ? text.slice(1) : text));
  return 1;
}

function statusReply(machine: Machine, state: LuaState): number {
  const { api, instance } = machine;
  if (api.lua_gettop(state) !== 1 || api.lua_type(state, 1) !== TYPE_STRING) {
    return refuse(machine, state, "wrong number or type of arguments", false);
  }
  api.lua_createtable(state, 0, 1);
  api.lua_pushvalue(state, 1);
  api.lua_setfield(state, -2, instance.name("ok"));
  return 1;
}

/** SHA-1 of bytes, as Redis names scripts. */
export const sha1 = (bytes: ByteString): string => createHash("sha1").update(bytes, "latin1").digest("hex");

function sha1hex(machine: Machine, state: LuaState): number {
  if (machine.api.lua_gettop(state) !== 1) return raiseError(machine, state, "wrong number of arguments");
  machine.instance.pushString(state, sha1(machine.instance.toByteString(state, 1) ?? ""));
  return 1;
}

function log(machine: Machine, state: LuaState): number {
  const { api, instance } = machine;
  const count = api.lua_gettop(state);
  if (count < 2) return raiseError(machine, state, "redis.log() requires two arguments or more.");
  if (api.lua_isnumber(state, 1) === 0)
    return raiseError(machine, state, "First argument must be a number (log level).");
  const level = LOG_LEVELS[Math.trunc(api.lua_tonumber(state, 1))];
  if (level === undefined) return raiseError(machine, state, "Invalid debug level.");
  const parts: ByteString[] = [];
  for (let index = 2; index <= count; index++) {
    const part = instance.toByteString(state, index);
    if (part !== null) parts.push(part);
  }
  machine.log(level, parts.join(" "));
  return 0;
}

function setResp(machine: Machine, state: LuaState): number {
  const { api } = machine;
  if (api.lua_gettop(state) !== 1) return raiseError(machine, state, "redis.setresp() requires one argument.");
  const version = Math.trunc(api.lua_tonumber(state, 1));
  if (version !== 2 && version !== 3) return raiseError(machine, state, "RESP version must be 2 or 3.");
  activeRun(machine).resp = version;
  return 0;
}

function setReplication(machine: Machine, state: LuaState): number {
  const { api } = machine;
  if (api.lua_gettop(state) !== 1) return raiseError(machine, state, "redis.set_repl() requires two arguments.");
  const flags = Math.trunc(api.lua_tonumber(state, 1));
  if ((flags & ~REPLICATION_FLAGS.REPL_ALL) !== 0) {
    const message = "Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.";
    return raiseError(machine, state, message);
  }
  return 0;
}

function mayCall(machine: Machine, state: LuaState): number {
  const { host } = activeRun(machine);
  const argv = readArguments(machine, state);
  if (typeof argv === "string") return raiseError(machine, state, argv);
  const answer = host.mayCall === undefined ? true : host.mayCall(argv);
  if (answer === null) return raiseError(machine, state, "Invalid command passed to redis.acl_check_cmd()");
  return pushBoolean(machine, state, answer);
}
