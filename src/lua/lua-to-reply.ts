import {
  BigNumberReply,
  BooleanReply,
  DoubleReply,
  ErrorReply,
  MapReply,
  SetReply,
  StatusReply,
  VerbatimReply,
  type ByteString,
  type Reply,
} from "../engine/reply.js";
import { TYPE_BOOLEAN, TYPE_NIL, TYPE_NUMBER, TYPE_STRING, TYPE_TABLE } from "./lua-api.js";
import { beforeZero, SLOT, type Machine } from "./machine.js";

/**
 * What a script returns, as the reply that Redis makes of it. A number becomes an integer, cut toward zero; a string a bulk string;
 * true 1 (a boolean after `redis.setresp(3)`); false and everything without a form in the protocol null. A table is asked for the
 * fields err, ok, double, big_number, verbatim_string, map, set, in this order; without any it is an array, up to its first nil.
 *
 * Nothing here runs Lua code: tables are read without metamethods.
 */

/** A reply of a script in all: tables that hold one another could otherwise describe replies without end. */
const REPLY_ITEMS_MAX = 1_000_000;
const REPLY_BYTES_MAX = 64 * 1024 * 1024;

const TOO_LARGE = new ErrorReply(
  `ERR the script's reply has more than ${REPLY_ITEMS_MAX} items or ${REPLY_BYTES_MAX} bytes`,
);
const TOO_DEEP = new ErrorReply("ERR reached lua stack limit");

/** Deeper than that Redis's own stack ends too; ours is that of JavaScript. */
const REPLY_DEPTH_MAX = 1000;

/** Slots that reading one level of nesting may need. */
const SLOTS_PER_LEVEL = 6;

/** What may still be added to a reply. */
interface Budget {
  items: number;
  bytes: number;
  depth: number;
}

/** The value on top of the main thread's stack as a reply. Leaves the stack as it was. */
export function toReply(machine: Machine): Reply {
  const { api, instance, state } = machine;
  const type = api.lua_type(state, -1);
  if (type === TYPE_STRING) return instance.toByteString(state, -1);
  if (type === TYPE_NUMBER) return toInteger(api.lua_tonumber(state, -1));
  if (type !== TYPE_TABLE) return toSimpleReply(machine, type);
  const budget = { items: REPLY_ITEMS_MAX, bytes: REPLY_BYTES_MAX, depth: REPLY_DEPTH_MAX };
  const reply = toTableReply(machine, budget);
  return isSpent(budget) ? TOO_LARGE : reply;
}

const isSpent = (budget: Budget): boolean => budget.items < 0 || budget.bytes < 0;

/** Takes the value on top off the stack. */
function takeReply(machine: Machine, budget: Budget): Reply {
  const { api, instance, state } = machine;
  budget.items -= 1;
  if (isSpent(budget)) {
    api.lua_settop(state, -2);
    return null;
  }
  const type = api.lua_type(state, -1);
  let reply: Reply;
  if (type === TYPE_STRING) {
    budget.bytes -= instance.stringLength(state, -1);
    reply = isSpent(budget) ? null : instance.toByteString(state, -1);
  } else if (type === TYPE_NUMBER) reply = toInteger(api.lua_tonumber(state, -1));
  else if (type === TYPE_TABLE) reply = toTableReply(machine, budget);
  else reply = toSimpleReply(machine, type);
  api.lua_settop(state, -2);
  return reply;
}

/** Booleans, nil, and what has no form in the protocol. */
function toSimpleReply({ api, state, run }: Machine, type: number): Reply {
  if (type !== TYPE_BOOLEAN) return null;
  const value = api.lua_toboolean(state, -1) === 1;
  if (run?.resp === 3) return new BooleanReply(value);
  return value ? 1 : null;
}

const INTEGER_64_MIN = -(2n ** 63n);
const TWO_TO_63 = 2 ** 63;

/** As C converts a double to a 64-bit integer on x86: cut toward zero; what does not fit, and NaN, become the smallest. */
function toInteger(value: number): number | bigint {
  if (value >= Number.MIN_SAFE_INTEGER && value <= Number.MAX_SAFE_INTEGER) return Math.trunc(value) + 0;
  if (value >= -TWO_TO_63 && value < TWO_TO_63) return BigInt(value);
  return INTEGER_64_MIN;
}

/** The table on top, which stays there. */
function toTableReply(machine: Machine, budget: Budget): Reply {
  if (budget.depth === 0 || machine.api.lua_checkstack(machine.state, SLOTS_PER_LEVEL) === 0) return TOO_DEEP;
  budget.depth -= 1;
  const special = machine.isPlainArray(machine.state) ? undefined : toSpecialReply(machine, budget);
  const reply = special ?? toArrayReply(machine, budget);
  budget.depth += 1;
  return reply;
}

function toArrayReply(machine: Machine, budget: Budget): Reply {
  const { api, state } = machine;
  const items: Reply[] = [];
  for (let position = 1; ; position++) {
    api.lua_rawgeti(state, -1, position);
    if (api.lua_type(state, -1) === TYPE_NIL || isSpent(budget)) break;
    items.push(takeReply(machine, budget));
  }
  api.lua_settop(state, -2);
  return items;
}

/** Pushes the field whose name lies in that slot, and returns its type. */
function pushNamed({ api, state }: Machine, slot: number): number {
  api.lua_pushvalue(state, slot);
  api.lua_rawget(state, -2);
  return api.lua_type(state, -1);
}

/** A table that says what it stands for; undefined when it is a plain array. */
function toSpecialReply(machine: Machine, budget: Budget): Reply | undefined {
  const { api, state } = machine;
  const below = api.lua_gettop(state);
  const reply = readSpecialReply(machine, budget);
  api.lua_settop(state, below);
  return reply;
}

/** Leaves what it looked at on the stack. */
function readSpecialReply(machine: Machine, budget: Budget): Reply | undefined {
  const { api, instance, state } = machine;
  const text = (): ByteString => instance.toByteString(state, -1) ?? "";
  const drop = (): void => api.lua_settop(state, -2);
  if (pushNamed(machine, SLOT.err) === TYPE_STRING) return new ErrorReply(errorLine(text()));
  drop();
  if (pushNamed(machine, SLOT.ok) === TYPE_STRING) return new StatusReply(spacedLine(beforeZero(text())));
  drop();
  if (pushNamed(machine, SLOT.double) === TYPE_NUMBER) return new DoubleReply(api.lua_tonumber(state, -1));
  drop();
  if (pushNamed(machine, SLOT.bigNumber) === TYPE_STRING) return new BigNumberReply(spacedLine(text()));
  drop();
  if (pushNamed(machine, SLOT.verbatim) === TYPE_TABLE) {
    const verbatim = readVerbatim(machine);
    if (verbatim !== undefined) return verbatim;
  }
  drop();
  if (pushNamed(machine, SLOT.map) === TYPE_TABLE) return readMap(machine, budget);
  drop();
  if (pushNamed(machine, SLOT.set) === TYPE_TABLE) return readSet(machine, budget);
  return undefined;
}

const FORMAT_BYTES = 3;

function readVerbatim(machine: Machine): Reply | undefined {
  const { api, instance, state } = machine;
  if (pushNamed(machine, SLOT.format) === TYPE_STRING) {
    const format = beforeZero(instance.toByteString(state, -1) ?? "");
    api.lua_settop(state, -2);
    if (pushNamed(machine, SLOT.string) === TYPE_STRING) {
      const text = instance.toByteString(state, -1) ?? "";
      return new VerbatimReply(text, format.slice(0, FORMAT_BYTES).padEnd(FORMAT_BYTES, " "));
    }
  }
  api.lua_settop(state, -2);
  return undefined;
}

function readMap(machine: Machine, budget: Budget): Reply {
  const { api, state } = machine;
  const pairs: (readonly [Reply, Reply])[] = [];
  api.lua_pushnil(state);
  while (!isSpent(budget) && api.lua_next(state, -2) !== 0) {
    // The stack now: table, key, value. The key is needed twice: for the reply and to find the next one.
    api.lua_pushvalue(state, -2);
    const key = takeReply(machine, budget);
    pairs.push([key, takeReply(machine, budget)]);
  }
  return new MapReply(pairs);
}

function readSet(machine: Machine, budget: Budget): Reply {
  const { api, state } = machine;
  const items: Reply[] = [];
  api.lua_pushnil(state);
  while (!isSpent(budget) && api.lua_next(state, -2) !== 0) {
    api.lua_settop(state, -2);
    api.lua_pushvalue(state, -1);
    items.push(takeReply(machine, budget));
  }
  return new SetReply(items);
}

const TRAILING_LINE_ENDS = /[\r\n]+$/;
const LINE_ENDS = /[\r\n]/g;

const spacedLine = (text: ByteString): ByteString => text.replace(LINE_ENDS, " ");

/** The text of an error as it may stand on one line of the protocol. */
export const errorLine = (text: ByteString): ByteString => spacedLine(beforeZero(text).replace(TRAILING_LINE_ENDS, ""));
