import type { ByteString } from "../engine/reply.js";
import {
  TYPE_BOOLEAN,
  TYPE_LIGHT_USERDATA,
  TYPE_NIL,
  TYPE_NUMBER,
  TYPE_STRING,
  TYPE_TABLE,
  type LuaState,
} from "./lua-api.js";
import type { CFunction } from "./lua-instance.js";
import { raiseHere, raiseText, type Machine } from "./machine.js";

/**
 * The `cjson` library of Redis as far as `JSON.parse` and `JSON.stringify` are its work: `encode`, `decode` and `null`. What is
 * valid JSON decodes to the same values, what can be encoded gives the same text. Two differences: text that is not valid JSON is
 * always an error (Redis takes `0x10`, `nan` and some more), and the error's wording is JavaScript's. The functions that change
 * cjson's settings are not there: they would change them for other scripts.
 */

const DEPTH_MAX = 1000;

/** An array may have this many places, or twice as many as items; anything emptier is refused. */
const SPARSE_PLACES_MAX = 10;
const SPARSE_RATIO = 2;

/** Its functions by name. */
export function jsonFunctions(machine: Machine): Record<string, CFunction> {
  const { api, instance } = machine;
  return {
    encode: (state) => {
      if (api.lua_gettop(state) !== 1)
        return raiseHere(machine, state, "bad argument #1 to 'encode' (expected 1 argument)");
      instance.pushString(state, new JsonEncoder(machine, state).encode());
      return 1;
    },
    decode: (state) => {
      if (api.lua_gettop(state) !== 1)
        return raiseHere(machine, state, "bad argument #1 to 'decode' (expected 1 argument)");
      api.luaL_checklstring(state, 1, 0);
      const value = parseJson(instance.toByteString(state, 1) ?? "");
      if (value instanceof SyntaxError) return raiseHere(machine, state, value.message);
      pushJson(machine, state, value, 1);
      return 1;
    },
  };
}

// Decoding --------------------------------------------------------------------------------------------------------------

type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

const STRING_LITERAL = /"(?:[^"\\]|\\[^])*"/g;
const ESCAPE_OR_CONTROL =
  // oxlint-disable-next-line no-control-regex -- control characters are what it looks for
  /\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\[^]|[\x01-\x1f]/g;

const LONE_SURROGATE = /[\ud800-\udfff]/u;

/** Parses bytes: what JSON writes as an escape becomes the bytes of UTF-8, everything else stays the bytes that it is. */
function parseJson(text: ByteString): Json | SyntaxError {
  try {
    return JSON.parse(text.replace(STRING_LITERAL, (literal) => literal.replace(ESCAPE_OR_CONTROL, inBytes))) as Json;
  } catch (error) {
    if (error instanceof SyntaxError) return error;
    throw error;
  }
}

/** One escape sequence with its character as UTF-8; one bare control character, which cjson accepts, as an escape. */
function inBytes(part: string): string {
  if (!part.startsWith("\\")) return JSON.stringify(part).slice(1, -1);
  if (part[1] !== "u") return part;
  const units = part
    .split("\\u")
    .slice(1)
    .map((hex) => Number.parseInt(hex, 16));
  const character = String.fromCharCode(...units);
  if (units[0] !== undefined && units[0] < 0x80) return part;
  if (LONE_SURROGATE.test(character)) throw new SyntaxError("invalid unicode escape code");
  return Buffer.from(character, "utf8").toString("latin1");
}

function pushJson(machine: Machine, state: LuaState, value: Json, depth: number): void {
  const { api, instance } = machine;
  if (typeof value === "string") return instance.pushString(state, value);
  if (typeof value === "number") return api.lua_pushnumber(state, value);
  if (typeof value === "boolean") return api.lua_pushboolean(state, value ? 1 : 0);
  if (value === null) return api.lua_pushlightuserdata(state, 0);
  if (depth > DEPTH_MAX || api.lua_checkstack(state, 4) === 0) {
    raiseHere(machine, state, `Found too many nested data structures (${depth})`);
  }
  if (Array.isArray(value)) {
    api.lua_createtable(state, value.length, 0);
    let position = 0;
    for (const item of value) {
      pushJson(machine, state, item, depth + 1);
      api.lua_rawseti(state, -2, ++position);
    }
    return;
  }
  api.lua_createtable(state, 0, 0);
  for (const [key, item] of Object.entries(value)) {
    instance.pushString(state, key);
    pushJson(machine, state, item, depth + 1);
    api.lua_rawset(state, -3);
  }
}

// Encoding --------------------------------------------------------------------------------------------------------------

/** A string as cjson writes it: JSON.stringify's way, and slashes and DEL escaped too. */
function jsonString(text: ByteString): string {
  return JSON.stringify(text).replaceAll("/", "\\/").replaceAll("\x7f", "\\u007f");
}

class JsonEncoder {
  readonly #machine: Machine;
  readonly #state: LuaState;
  readonly #parts: string[] = [];
  #bytes = 0;

  constructor(machine: Machine, state: LuaState) {
    this.#machine = machine;
    this.#state = state;
  }

  /** The value on top of the stack, which stays there. */
  encode(): ByteString {
    this.#value(1);
    return this.#parts.join("");
  }

  #add(part: string): void {
    this.#bytes += part.length;
    if (this.#bytes > this.#machine.instance.memoryBytesMax) raiseText(this.#machine, this.#state, "not enough memory");
    this.#parts.push(part);
  }

  #fail(type: number, reason: string): void {
    const name = this.#machine.instance.readCString(this.#machine.api.lua_typename(this.#state, type));
    raiseHere(this.#machine, this.#state, `Cannot serialise ${name}: ${reason}`);
  }

  #value(depth: number): void {
    const { api, instance } = this.#machine;
    const state = this.#state;
    const type = api.lua_type(state, -1);
    if (type === TYPE_STRING) this.#add(jsonString(instance.toByteString(state, -1) ?? ""));
    else if (type === TYPE_NUMBER) this.#number();
    else if (type === TYPE_BOOLEAN) this.#add(api.lua_toboolean(state, -1) === 1 ? "true" : "false");
    else if (type === TYPE_NIL) this.#add("null");
    else if (type === TYPE_LIGHT_USERDATA && api.lua_topointer(state, -1) === 0) this.#add("null");
    else if (type === TYPE_TABLE) this.#table(depth);
    else this.#fail(type, "type not supported");
  }

  #number(): void {
    const { api, instance } = this.#machine;
    const state = this.#state;
    if (!Number.isFinite(api.lua_tonumber(state, -1))) this.#fail(TYPE_NUMBER, "must not be NaN or Inf");
    this.#add(instance.numberText(state, -1));
  }

  #table(depth: number): void {
    const { api } = this.#machine;
    const state = this.#state;
    if (depth > DEPTH_MAX || api.lua_checkstack(state, 4) === 0) {
      raiseHere(this.#machine, state, `Cannot serialise, excessive nesting (${depth})`);
    }
    const places = this.#arrayPlaces();
    if (places > 0) this.#array(places, depth);
    else this.#object(depth);
  }

  /** How long the table is as an array; 0 when it is empty or has other keys. */
  #arrayPlaces(): number {
    const { api } = this.#machine;
    const state = this.#state;
    let highest = 0;
    let items = 0;
    api.lua_pushnil(state);
    while (api.lua_next(state, -2) !== 0) {
      const key = api.lua_type(state, -2) === TYPE_NUMBER ? api.lua_tonumber(state, -2) : 0;
      if (!Number.isInteger(key) || key < 1) {
        api.lua_settop(state, -3);
        return 0;
      }
      highest = Math.max(highest, key);
      items += 1;
      api.lua_settop(state, -2);
    }
    if (highest > items * SPARSE_RATIO && highest > SPARSE_PLACES_MAX)
      this.#fail(TYPE_TABLE, "excessively sparse array");
    return highest;
  }

  #array(places: number, depth: number): void {
    const { api } = this.#machine;
    for (let position = 1; position <= places; position++) {
      this.#add(position === 1 ? "[" : ",");
      api.lua_rawgeti(this.#state, -1, position);
      this.#value(depth + 1);
      api.lua_settop(this.#state, -2);
    }
    this.#add("]");
  }

  #object(depth: number): void {
    const { api, instance } = this.#machine;
    const state = this.#state;
    let separator = "{";
    api.lua_pushnil(state);
    while (api.lua_next(state, -2) !== 0) {
      const type = api.lua_type(state, -2);
      this.#add(separator);
      if (type === TYPE_NUMBER) this.#add(`"${instance.numberText(state, -2)}":`);
      else if (type === TYPE_STRING) this.#add(`${jsonString(instance.toByteString(state, -2) ?? "")}:`);
      else this.#fail(type, "table key must be a number or string");
      this.#value(depth + 1);
      api.lua_settop(state, -2);
      separator = ",";
    }
    this.#add(separator === "{" ? "{}" : "}");
  }
}
