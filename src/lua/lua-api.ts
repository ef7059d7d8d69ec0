/**
 * Lua 5.1's C API as the WebAssembly module exports it, and the constants of `lua.h`. Only what is used here is listed.
 *
 * Every value is a number: `LuaState` and other pointers are addresses in the module's memory, `StackIndex` is Lua's (1 is the
 * lowest slot of the current C function, -1 the top), C strings are addresses of zero-terminated bytes.
 *
 * A call marked "raises" may leave by a long jump, which is a JavaScript exception on its way through our frames
 * (`lua-instance.ts`). So no function that calls Lua may keep anything open that only its own end would close.
 */

export type LuaState = number;
export type Address = number;
export type StackIndex = number;

export const REGISTRY = -10000;
export const GLOBALS = -10002;

export const TYPE_NIL = 0;
export const TYPE_BOOLEAN = 1;
export const TYPE_LIGHT_USERDATA = 2;
export const TYPE_NUMBER = 3;
export const TYPE_STRING = 4;
export const TYPE_TABLE = 5;
export const TYPE_FUNCTION = 6;

export const MULTIPLE_RESULTS = -1;

/** What `lua_pcall` and `luaL_loadbuffer` return. */
export const STATUS_OK = 0;
export const STATUS_RUNTIME_ERROR = 2;
export const STATUS_MEMORY = 4;

export const HOOK_LINE = 4;
export const HOOK_COUNT = 8;

export const GC_RESTART = 1;
export const GC_SET_PAUSE = 6;
export const GC_SET_STEP_MULTIPLIER = 7;

/** Lua's own settings of its collector, in per cent. */
export const GC_PAUSE_DEFAULT = 200;
export const GC_STEP_MULTIPLIER_DEFAULT = 200;

/** Where `lua_Debug` keeps what `lua_getinfo` found, in bytes, and how large it is. */
export const DEBUG_RECORD = { what: 12, source: 16, currentLine: 20, bytes: 128 } as const;

/** Where a `Table` keeps its parts, in bytes: the only look behind the API, checked when a VM is made (`sandbox.ts`). */
export const TABLE_RECORD = { metatable: 8, array: 12, node: 16, arraySize: 28 } as const;

export interface LuaApi {
  readonly memory: WebAssembly.Memory;
  readonly __indirect_function_table: WebAssembly.Table;
  readonly __wasm_call_ctors: () => void;
  readonly emscripten_stack_init: () => void;
  readonly emscripten_stack_get_end: () => Address;
  readonly stackSave: () => Address;
  readonly stackRestore: (address: Address) => void;
  readonly setThrew: (threw: number, value: number) => void;
  /** 0 when there is no memory left. */
  readonly malloc: (bytes: number) => Address;
  readonly free: (address: Address) => void;

  readonly luaL_newstate: () => LuaState;
  readonly luaopen_base: (state: LuaState) => number;
  readonly luaopen_table: (state: LuaState) => number;
  readonly luaopen_string: (state: LuaState) => number;
  readonly luaopen_math: (state: LuaState) => number;
  readonly lua_atpanic: (state: LuaState, panic: Address) => Address;
  readonly lua_sethook: (state: LuaState, hook: Address, mask: number, count: number) => number;
  readonly lua_gc: (state: LuaState, what: number, data: number) => number;

  readonly lua_gettop: (state: LuaState) => number;
  readonly lua_settop: (state: LuaState, top: StackIndex) => void;
  readonly lua_pushvalue: (state: LuaState, index: StackIndex) => void;
  readonly lua_remove: (state: LuaState, index: StackIndex) => void;
  readonly lua_insert: (state: LuaState, index: StackIndex) => void;
  readonly lua_replace: (state: LuaState, index: StackIndex) => void;
  /** 0 when the stack cannot grow by that many slots. */
  readonly lua_checkstack: (state: LuaState, slots: number) => number;

  readonly lua_type: (state: LuaState, index: StackIndex) => number;
  /** 1 for a number and for a string that reads as one. */
  readonly lua_isnumber: (state: LuaState, index: StackIndex) => number;
  /** A C string. */
  readonly lua_typename: (state: LuaState, type: number) => Address;
  readonly lua_isstring: (state: LuaState, index: StackIndex) => number;
  readonly lua_tonumber: (state: LuaState, index: StackIndex) => number;
  readonly lua_toboolean: (state: LuaState, index: StackIndex) => number;
  /** Turns a number in place into a string. 0 for anything but a string or a number. Raises. */
  readonly lua_tolstring: (state: LuaState, index: StackIndex, lengthAddress: Address) => Address;
  readonly lua_topointer: (state: LuaState, index: StackIndex) => Address;
  /** The pointer of a C function: an index in the function table. */
  readonly lua_tocfunction: (state: LuaState, index: StackIndex) => Address;

  readonly lua_pushnil: (state: LuaState) => void;
  readonly lua_pushnumber: (state: LuaState, value: number) => void;
  readonly lua_pushboolean: (state: LuaState, value: number) => void;
  readonly lua_pushlstring: (state: LuaState, bytes: Address, length: number) => void;
  readonly lua_pushlightuserdata: (state: LuaState, pointer: Address) => void;
  readonly lua_pushcclosure: (state: LuaState, cFunction: Address, upvalues: number) => void;
  readonly lua_createtable: (state: LuaState, arraySlots: number, recordSlots: number) => void;

  readonly lua_getfield: (state: LuaState, index: StackIndex, name: Address) => void;
  readonly lua_setfield: (state: LuaState, index: StackIndex, name: Address) => void;
  readonly lua_rawget: (state: LuaState, index: StackIndex) => void;
  readonly lua_rawset: (state: LuaState, index: StackIndex) => void;
  readonly lua_rawgeti: (state: LuaState, index: StackIndex, key: number) => void;
  readonly lua_rawseti: (state: LuaState, index: StackIndex, key: number) => void;
  readonly lua_next: (state: LuaState, index: StackIndex) => number;
  readonly lua_getmetatable: (state: LuaState, index: StackIndex) => number;
  readonly lua_setmetatable: (state: LuaState, index: StackIndex) => number;
  readonly lua_setfenv: (state: LuaState, index: StackIndex) => number;

  readonly luaL_loadbuffer: (state: LuaState, bytes: Address, length: number, chunkName: Address) => number;
  readonly lua_pcall: (state: LuaState, args: number, results: number, errorHandler: StackIndex) => number;
  /** Raises. */
  readonly lua_call: (state: LuaState, args: number, results: number) => void;
  /** Raises, always. */
  readonly lua_error: (state: LuaState) => number;
  /** Raises. */
  readonly lua_concat: (state: LuaState, count: number) => void;

  readonly luaL_ref: (state: LuaState, table: StackIndex) => number;
  readonly luaL_unref: (state: LuaState, table: StackIndex, reference: number) => void;
  readonly luaL_where: (state: LuaState, level: number) => void;
  /** Raises when the argument is not a number. */
  readonly luaL_checknumber: (state: LuaState, argument: number) => number;
  /** Raises when there is no such argument. */
  readonly luaL_checkany: (state: LuaState, argument: number) => void;
  /** Raises when the argument is neither a string nor a number. */
  readonly luaL_checklstring: (state: LuaState, argument: number, lengthAddress: Address) => Address;
  readonly luaL_checktype: (state: LuaState, argument: number, type: number) => void;
  /** Raises, always. */
  readonly luaL_argerror: (state: LuaState, argument: number, message: Address) => number;

  readonly lua_getstack: (state: LuaState, level: number, record: Address) => number;
  readonly lua_getinfo: (state: LuaState, what: Address, record: Address) => number;
}
