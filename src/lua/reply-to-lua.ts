import {
  BigNumberReply,
  BooleanReply,
  doubleText,
  DoubleReply,
  ErrorReply,
  MapReply,
  NullArrayReply,
  PushReply,
  SetReply,
  StatusReply,
  VerbatimReply,
  type ByteString,
  type Reply,
} from "../engine/reply.js";
import type { LuaState } from "./lua-api.js";
import { pushError, raiseError, scriptErrorText, type Machine } from "./machine.js";

/**
 * The reply of a command as a script sees it, as Redis shows it: an integer is a number, a bulk string a string, null is false, an
 * array a table, a status {ok=}, an error {err=}. What only RESP3 has looks as in RESP2, unless the script has called
 * `redis.setresp(3)`: then null is nil, and there are {map={}}, {set={}}, {double=}, {big_number=}, {verbatim_string={}}, booleans.
 */

/** Deeper than any command's reply; our own stack ends a little later. */
const DEPTH_MAX = 1000;

/** Slots of Lua's stack that one level of nesting may need. */
const SLOTS_PER_LEVEL = 6;

/** Pushes one value. Raises when the reply is nested too deeply or Lua is out of memory. */
export function pushReply(machine: Machine, state: LuaState, reply: Reply, resp: 2 | 3): void {
  if (typeof reply === "string") machine.instance.pushString(state, reply);
  else if (typeof reply === "number") machine.api.lua_pushnumber(state, reply);
  else new ReplyPusher(machine, state, resp).push(reply);
}

/** What RESP2 has in place of the types that came with RESP3. */
function inResp2(reply: Reply): Reply {
  if (reply instanceof MapReply) return reply.pairs.flat();
  if (reply instanceof SetReply) return reply.items;
  if (reply instanceof VerbatimReply) return reply.text;
  if (reply instanceof BooleanReply) return Number(reply.value);
  if (reply instanceof DoubleReply) return doubleText(reply.value);
  if (reply instanceof BigNumberReply) return reply.digits;
  return reply;
}

class ReplyPusher {
  readonly #machine: Machine;
  readonly #state: LuaState;
  readonly #resp: 2 | 3;
  #depth = 0;

  constructor(machine: Machine, state: LuaState, resp: 2 | 3) {
    this.#machine = machine;
    this.#state = state;
    this.#resp = resp;
  }

  push(given: Reply): void {
    const { api, instance } = this.#machine;
    const state = this.#state;
    const reply = this.#resp === 2 ? inResp2(given) : given;
    if (typeof reply === "string") instance.pushString(state, reply);
    else if (typeof reply === "number") api.lua_pushnumber(state, reply);
    else if (typeof reply === "bigint") api.lua_pushnumber(state, Number(reply));
    else if (reply === null || reply instanceof NullArrayReply) this.#pushNull();
    else if (reply instanceof StatusReply) this.#pushRecord("ok", () => instance.pushString(state, reply.text));
    else if (reply instanceof ErrorReply) this.#pushError(reply.text);
    else if (reply instanceof BooleanReply) api.lua_pushboolean(state, reply.value ? 1 : 0);
    else if (reply instanceof DoubleReply) this.#pushRecord("double", () => api.lua_pushnumber(state, reply.value));
    else if (reply instanceof BigNumberReply) {
      this.#pushRecord("big_number", () => instance.pushString(state, reply.digits));
    } else if (reply instanceof VerbatimReply) this.#pushRecord("verbatim_string", () => this.#pushVerbatim(reply));
    else this.#pushNested(reply);
  }

  #pushNull(): void {
    if (this.#resp === 3) this.#machine.api.lua_pushnil(this.#state);
    else this.#machine.api.lua_pushboolean(this.#state, 0);
  }

  /** A table with one field, whose value `pushValue` pushes. */
  #pushRecord(name: string, pushValue: () => void): void {
    this.#machine.api.lua_createtable(this.#state, 0, 1);
    pushValue();
    this.#machine.api.lua_setfield(this.#state, -2, this.#machine.instance.name(name));
  }

  /** `{err=, ignore_error_stats_update=true}`: the server has counted this error already. */
  #pushError(text: ByteString): void {
    pushError(this.#machine, this.#state, scriptErrorText(text));
    this.#machine.api.lua_pushboolean(this.#state, 1);
    this.#machine.api.lua_setfield(this.#state, -2, this.#machine.instance.name("ignore_error_stats_update"));
  }

  #pushVerbatim({ text, format }: VerbatimReply): void {
    const { api, instance } = this.#machine;
    this.#pushRecord("string", () => instance.pushString(this.#state, text));
    instance.pushString(this.#state, format);
    api.lua_setfield(this.#state, -2, instance.name("format"));
  }

  #pushNested(reply: readonly Reply[] | MapReply | SetReply | PushReply): void {
    const machine = this.#machine;
    this.#depth += 1;
    if (this.#depth > DEPTH_MAX || machine.api.lua_checkstack(this.#state, SLOTS_PER_LEVEL) === 0) {
      raiseError(machine, this.#state, "the reply of the command is nested too deeply");
    }
    if (reply instanceof MapReply) this.#pushRecord("map", () => this.#pushMap(reply));
    else if (reply instanceof SetReply) this.#pushRecord("set", () => this.#pushSet(reply));
    else this.#pushList(reply instanceof PushReply ? reply.items : reply);
    this.#depth -= 1;
  }

  #pushList(items: readonly Reply[]): void {
    const { api } = this.#machine;
    api.lua_createtable(this.#state, items.length, 0);
    let position = 0;
    for (const item of items) {
      this.push(item);
      api.lua_rawseti(this.#state, -2, ++position);
    }
  }

  #pushMap({ pairs }: MapReply): void {
    const { api } = this.#machine;
    api.lua_createtable(this.#state, 0, pairs.length);
    for (const [key, value] of pairs) {
      this.push(key);
      this.push(value);
      api.lua_rawset(this.#state, -3);
    }
  }

  #pushSet({ items }: SetReply): void {
    const { api } = this.#machine;
    api.lua_createtable(this.#state, 0, items.length);
    for (const item of items) {
      this.push(item);
      api.lua_pushboolean(this.#state, 1);
      api.lua_rawset(this.#state, -3);
    }
  }
}
