import type { ByteString } from "../engine/reply.js";
import { formatInteger } from "./integer-format.js";
import {
  MULTIPLE_RESULTS,
  STATUS_OK,
  STATUS_RUNTIME_ERROR,
  TYPE_NIL,
  TYPE_NUMBER,
  TYPE_STRING,
  TYPE_TABLE,
  TYPE_FUNCTION,
  type LuaState,
  type StackIndex,
} from "./lua-api.js";
import type { CFunction } from "./lua-instance.js";
import { beforeZero, checkTime, raiseHere, raiseText, type Machine } from "./machine.js";
import { COSTLY_STEPS, isShort, patternSteps } from "./pattern-cost.js";
import { callWatched } from "./watchdog.js";

/**
 * Functions of Lua's own libraries that need help, each for one of these reasons:
 *
 *   - Redis has its own (`pcall` gives the text of an error table, see below for `xpcall`)
 *   - the interpreter is a 32-bit program, scripts expect 64-bit integers (`format`, `tonumber` with a base, positions)
 *   - it could run for ever in one instruction, where no hook sees it (patterns, `rep`, `collectgarbage`)
 *   - it would load bytecode, which can break the interpreter
 *
 * All of them end in Lua's own function, called on the same stack as if it had been called directly: its errors and their
 * positions are the original ones.
 */

type OriginalFunctions = (name: string) => CFunction;

/** The globals `pcall`, `xpcall`, `tonumber`, `load`, `loadstring`, `collectgarbage`. */
export function baseFunctions(machine: Machine, original: OriginalFunctions): Record<string, CFunction> {
  return {
    pcall: protectedCall(machine),
    xpcall: protectedCallWithHandler(machine),
    tonumber: toNumber(machine, original("tonumber")),
    loadstring: loadString(machine, original("loadstring")),
    load: loadPieces(machine),
    collectgarbage: collectGarbage(machine, original("collectgarbage")),
  };
}

/** The functions of `string` that are not Lua's own. */
export function stringFunctions(machine: Machine, original: OriginalFunctions): Record<string, CFunction> {
  const gmatch = eachMatch(machine, original("gmatch"));
  return {
    format: format(machine, original("format")),
    rep: repeat(machine, original("rep")),
    sub: withPositions(machine, original("sub"), [2, 3]),
    byte: withPositions(machine, original("byte"), [2, 3]),
    find: search(machine, withPositions(machine, original("find"), [3])),
    match: search(machine, withPositions(machine, original("match"), [3])),
    gsub: substitute(machine, original("gsub")),
    gmatch,
    gfind: gmatch,
  };
}

// Base library ----------------------------------------------------------------------------------------------------------

/** Redis's `pcall`: an error table that has a text as `err` arrives as that text. */
function protectedCall({ api, instance }: Machine): CFunction {
  return (state) => {
    api.luaL_checkany(state, 1);
    const count = api.lua_gettop(state);
    api.lua_pushboolean(state, 1);
    api.lua_insert(state, 1);
    if (api.lua_pcall(state, count - 1, MULTIPLE_RESULTS, 0) === STATUS_OK) return api.lua_gettop(state);
    api.lua_remove(state, 1);
    if (api.lua_type(state, -1) === TYPE_TABLE) {
      api.lua_getfield(state, -1, instance.name("err"));
      if (api.lua_isstring(state, -1) === 1) api.lua_replace(state, -2);
    }
    api.lua_pushboolean(state, 0);
    api.lua_insert(state, 1);
    return api.lua_gettop(state);
  };
}

/**
 * `xpcall` that calls its handler after the call and not from within the error. Lua calls it from where the error was raised; when that
 * is the hook that ends a run, hooks are off, and a handler that never returns could not be ended. A handler can tell the
 * difference only with the debug library, which scripts do not have.
 */
function protectedCallWithHandler({ api, instance }: Machine): CFunction {
  return (state) => {
    api.luaL_checkany(state, 2);
    api.lua_settop(state, 2);
    api.lua_pushvalue(state, 1);
    const status = api.lua_pcall(state, 0, MULTIPLE_RESULTS, 0);
    api.lua_pushboolean(state, status === STATUS_OK ? 1 : 0);
    api.lua_replace(state, 1);
    if (status === STATUS_RUNTIME_ERROR) {
      const isFunction = api.lua_type(state, 2) === TYPE_FUNCTION;
      api.lua_pushvalue(state, 2);
      api.lua_insert(state, 3);
      if (!isFunction || api.lua_pcall(state, 1, 1, 0) !== STATUS_OK) {
        api.lua_settop(state, 2);
        instance.pushString(state, "error in error handling");
      }
    }
    api.lua_remove(state, 2);
    return api.lua_gettop(state);
  };
}

/** As many digits fit into 32 bits in every base. */
const SHORT_DIGITS = 6;

/** `tonumber` with a base takes 64 bits. */
function toNumber(machine: Machine, original: CFunction): CFunction {
  const { api, instance } = machine;
  return (state) => {
    if (api.lua_gettop(state) < 2 || api.lua_type(state, 2) !== TYPE_NUMBER) return original(state);
    const base = api.lua_tonumber(state, 2);
    if (!Number.isInteger(base) || base < 2 || base > 36 || base === 10) return original(state);
    const text = beforeZero(instance.toByteString(state, 1) ?? "");
    if (text.length <= SHORT_DIGITS && !text.includes("-")) return original(state);
    const value = parseUnsigned(text, base);
    if (value === null) api.lua_pushnil(state);
    else api.lua_pushnumber(state, Number(value));
    return 1;
  };
}

const SIGNED_DIGITS = /^[ \t\n\v\f\r]*([+-]?)([0-9a-z]+)[ \t\n\v\f\r]*$/i;
const UNSIGNED_64_MAX = 2n ** 64n - 1n;

/** As C's `strtoul` reads a whole text: null when it is not one number. */
function parseUnsigned(text: string, base: number): bigint | null {
  const match = SIGNED_DIGITS.exec(text);
  if (match === null) return null;
  const [, sign, allDigits = ""] = match;
  const digits = base === 16 ? allDigits.replace(/^0x(?=[0-9a-f])/i, "") : allDigits;
  let value = 0n;
  for (const digit of digits) {
    const worth = Number.parseInt(digit, 36);
    if (worth >= base) return null;
    value = value * BigInt(base) + BigInt(worth);
  }
  if (value > UNSIGNED_64_MAX) return UNSIGNED_64_MAX;
  return sign === "-" ? BigInt.asUintN(64, -value) : value;
}

/** What compiled code begins with. A blank in front makes the compiler read it as source, which it is not. */
const BYTECODE_MARK = "\u001b";

/** Source that cannot be taken for bytecode. */
export const asSource = (chunk: ByteString): ByteString => (chunk.startsWith(BYTECODE_MARK) ? ` ${chunk}` : chunk);

function loadString(machine: Machine, original: CFunction): CFunction {
  const { api, instance } = machine;
  return (state) => {
    if (api.lua_type(state, 1) !== TYPE_STRING) return original(state);
    const chunk = instance.toByteString(state, 1) as ByteString;
    if (!chunk.startsWith(BYTECODE_MARK)) return original(state);
    if (api.lua_gettop(state) < 2) api.lua_pushvalue(state, 1);
    instance.pushString(state, asSource(chunk));
    api.lua_replace(state, 1);
    return original(state);
  };
}

/** Source that a reader function may hand over in all. */
const LOADED_BYTES_MAX = 16 * 1024 * 1024;

/** `load` with all pieces read first, so that the first byte is known. */
function loadPieces(machine: Machine): CFunction {
  const { api, instance } = machine;
  const fail = (state: LuaState): number => {
    api.lua_pushnil(state);
    api.lua_insert(state, -2);
    return 2;
  };
  return (state) => {
    api.luaL_checktype(state, 1, TYPE_FUNCTION);
    const name = api.lua_type(state, 2) > TYPE_NIL ? beforeZero(instance.toByteString(state, 2) ?? "") : "=(load)";
    api.lua_settop(state, 1);
    let chunk = "";
    for (;;) {
      api.lua_pushvalue(state, 1);
      if (api.lua_pcall(state, 0, 1, 0) !== STATUS_OK) return fail(state);
      const piece = instance.toByteString(state, -1);
      if (piece === null && api.lua_type(state, -1) !== TYPE_NIL) {
        api.luaL_where(state, 1);
        instance.pushString(state, "reader function must return a string");
        api.lua_concat(state, 2);
        return fail(state);
      }
      api.lua_settop(state, 1);
      if (piece === null || piece === "") break;
      chunk += piece;
      if (chunk.length > LOADED_BYTES_MAX) return raiseHere(machine, state, "the chunk is too long");
    }
    const source = asSource(chunk);
    const status = instance.withCopy(source, (address) =>
      instance.withCopy(name, (nameAddress) => api.luaL_loadbuffer(state, address, source.length, nameAddress)),
    );
    return status === STATUS_OK ? 1 : fail(state);
  };
}

/** `collectgarbage`: a changed setting is noted, to be undone after the run; a long collection counts against the time. */
function collectGarbage(machine: Machine, original: CFunction): CFunction {
  return (state) => {
    machine.isCollectorChanged = true;
    const results = original(state);
    checkTime(machine, state);
    return results;
  };
}

// String library --------------------------------------------------------------------------------------------------------

const INT32_MAX = 0x7fffffff;
const TWO_TO_63 = 2 ** 63;

/**
 * Positions beyond 32 bits are beyond the end of any string: the nearest one that fits means the same. What does not even fit into
 * 64 bits becomes the smallest integer on x86, infinity included.
 */
function withPositions({ api }: Machine, original: CFunction, positions: readonly StackIndex[]): CFunction {
  return (state) => {
    for (const index of positions) {
      if (api.lua_type(state, index) !== TYPE_NUMBER) continue;
      const position = api.lua_tonumber(state, index);
      if (position >= -INT32_MAX && position <= INT32_MAX) continue;
      api.lua_pushnumber(state, position > 0 && position < TWO_TO_63 ? INT32_MAX : -INT32_MAX);
      api.lua_replace(state, index);
    }
    return original(state);
  };
}

/** `string.rep`: of nothing, Lua would count to the end; of too much, it would write until memory ends. */
function repeat(machine: Machine, original: CFunction): CFunction {
  const { api, instance } = machine;
  return (state) => {
    if (api.lua_type(state, 1) !== TYPE_STRING || api.lua_isnumber(state, 2) === 0) return original(state);
    const bytes = instance.stringLength(state, 1);
    if (bytes === 0) {
      api.lua_settop(state, 1);
      return 1;
    }
    const count = Math.trunc(api.lua_tonumber(state, 2)) | 0;
    if (bytes * count <= instance.memoryBytesMax) return original(state);
    instance.memoryRefused = true;
    return raiseText(machine, state, "not enough memory");
  };
}

const SPECIFICATION = /%([-+ #0]*\d*(?:\.\d*)?[a-zA-Z%])/g;

/** `string.format` whose integers have 64 bits: those that do not fit into 32 are put into the text here. */
function format(machine: Machine, original: CFunction): CFunction {
  const { api, instance } = machine;
  const isLarge = (state: LuaState, index: StackIndex): boolean => {
    if (api.lua_isnumber(state, index) === 0) return false;
    const value = api.lua_tonumber(state, index);
    return !(value >= 0 && value <= INT32_MAX);
  };
  return (state) => {
    const count = api.lua_gettop(state);
    let index = 2;
    while (index <= count && !isLarge(state, index)) index++;
    if (index > count) return original(state);
    let argument = 1;
    const text = instance.toByteString(state, 1) ?? "";
    const changed = text.replace(SPECIFICATION, (whole, specification: string) => {
      if (specification === "%") return whole;
      argument += 1;
      if (argument > count || !isLarge(state, argument)) return whole;
      const shown = formatInteger(specification, api.lua_tonumber(state, argument));
      if (shown === null) return whole;
      instance.pushString(state, shown);
      api.lua_replace(state, argument);
      return "%s";
    });
    if (changed !== text) {
      instance.pushString(state, changed);
      api.lua_replace(state, 1);
    }
    return original(state);
  };
}

/** A bound of the steps that searching argument 1 for argument 2 may take. */
function stepsOf({ api, instance }: Machine, state: LuaState): number {
  const subjectBytes = api.lua_isstring(state, 1) === 1 ? instance.stringLength(state, 1) : 0;
  const patternBytes = api.lua_isstring(state, 2) === 1 ? instance.stringLength(state, 2) : 0;
  if (isShort(subjectBytes, patternBytes)) return 0;
  return patternSteps(subjectBytes, instance.toByteString(state, 2) ?? "", api.lua_toboolean(state, 4) === 1);
}

/** `find` and `match`: watched when pattern and subject could keep them busy for long. */
function search(machine: Machine, original: CFunction): CFunction {
  return (state) => {
    if (stepsOf(machine, state) <= COSTLY_STEPS) return original(state);
    let results = 0;
    callWatched(machine, () => {
      results = original(state);
    });
    return results;
  };
}

/**
 * Repeated searches with code of the script in between, which must not be cut off. What they match depends on subject and pattern
 * only: so the searches are first made without that code, watched, and what came to its end will do so again.
 */
function rehearse(machine: Machine, state: LuaState, searches: () => void): void {
  const { api } = machine;
  const top = api.lua_gettop(state);
  callWatched(machine, searches);
  api.lua_settop(state, top);
}

/** `string.gsub`. */
function substitute(machine: Machine, original: CFunction): CFunction {
  const { api, instance } = machine;
  const originalPointer = instance.exportedFunction(original);
  const keepMatch = instance.cFunction(() => 0);
  return (state) => {
    if (stepsOf(machine, state) > COSTLY_STEPS) {
      const hasLimit = api.lua_type(state, 4) > TYPE_NIL;
      rehearse(machine, state, () => {
        api.lua_pushcclosure(state, originalPointer, 0);
        api.lua_pushvalue(state, 1);
        api.lua_pushvalue(state, 2);
        api.lua_pushcclosure(state, keepMatch, 0);
        if (hasLimit) api.lua_pushvalue(state, 4);
        // An error of the arguments comes again below, where it has its position.
        api.lua_pcall(state, hasLimit ? 4 : 3, 0, 0);
      });
    }
    return original(state);
  };
}

/** `string.gmatch`. */
function eachMatch(machine: Machine, original: CFunction): CFunction {
  const { api, instance } = machine;
  const originalPointer = instance.exportedFunction(original);
  return (state) => {
    if (stepsOf(machine, state) > COSTLY_STEPS) {
      rehearse(machine, state, () => {
        api.lua_pushcclosure(state, originalPointer, 0);
        api.lua_pushvalue(state, 1);
        api.lua_pushvalue(state, 2);
        if (api.lua_pcall(state, 2, 1, 0) !== STATUS_OK) return;
        const iterator = api.lua_gettop(state);
        do {
          api.lua_settop(state, iterator);
          api.lua_pushvalue(state, iterator);
        } while (api.lua_pcall(state, 0, 1, 0) === STATUS_OK && api.lua_type(state, -1) !== TYPE_NIL);
      });
    }
    return original(state);
  };
}
