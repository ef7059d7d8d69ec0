import { invariant } from "../engine/invariant.js";
import { bitLibrary, randomFunctions } from "./bit-library.js";
import type { ByteString } from "../engine/reply.js";
import {
  DEBUG_RECORD,
  GLOBALS,
  REGISTRY,
  TABLE_RECORD,
  TYPE_BOOLEAN,
  TYPE_NIL,
  TYPE_STRING,
  TYPE_TABLE,
  type Address,
  type LuaState,
  type StackIndex,
} from "./lua-api.js";
import type { CFunction, LuaInstance } from "./lua-instance.js";
import { activeRun, pushError, raiseHere, raiseText, SLOT, SLOTS, type Machine } from "./machine.js";
import { jsonFunctions } from "./json-library.js";
import { redisConstants, redisFunctions } from "./redis-library.js";
import { baseFunctions, stringFunctions } from "./standard-functions.js";

/**
 * The world of a script: which globals exist, and that no script can change them for the next.
 *
 * Redis patches Lua to have read-only tables. Here each shared table (the globals, `string`, `redis`, ...) is an empty table in
 * front, whose metatable sends reads to the real table behind it and refuses writes. Scripts only ever hold the front. The few
 * functions that look past metatables (`pairs`, `next`, `rawget`, `rawset`, `getmetatable`, `setmetatable`) know the fronts and
 * behave as on a read-only table. What is left are functions of the table library that write without metamethods
 * (`table.insert(string, 1)`): they fill a front, which `isPristine` sees after the run; then the instance is not used again.
 *
 * Absent by construction, because their libraries are never opened: io, package, debug, and os but for a clock. Absent as in
 * Redis: dofile, loadfile, print, getfenv, setfenv, newproxy. `load` and `loadstring` take source only.
 */

/** What Lua's base library defines and scripts may use as it is. */
const BASE_FUNCTIONS = [
  "assert",
  "error",
  "gcinfo",
  "ipairs",
  "rawequal",
  "select",
  "tostring",
  "type",
  "unpack",
  "_VERSION",
] as const;

/** Libraries that Redis has and this server does not: a script that asks for one is told so. */
const ABSENT_LIBRARIES = new Set(["cmsgpack", "struct"]);

export interface Sandbox {
  /** Whether no run has written into a shared table. */
  isPristine(): boolean;
}

/** Opens the libraries, builds the globals and fills the slots at the bottom of the main thread's stack. */
export function buildSandbox(machine: Machine): Sandbox {
  openLibraries(machine);
  const builder = new SandboxBuilder(machine);
  return builder.build();
}

function openLibraries({ api, instance, state }: Machine): void {
  const open = (library: unknown, name: string): void => {
    api.lua_pushcclosure(state, instance.exportedFunction(library), 0);
    instance.pushString(state, name);
    api.lua_call(state, 1, 0);
  };
  open(api.luaopen_base, "");
  open(api.luaopen_table, "table");
  open(api.luaopen_string, "string");
  open(api.luaopen_math, "math");
}

/** A front, the registry reference that keeps it alive, and the words of its header that a write changes. */
interface Front {
  readonly address: Address;
  readonly reference: number;
  header: readonly number[];
}

const HEADER_FIELDS = [TABLE_RECORD.metatable, TABLE_RECORD.array, TABLE_RECORD.node, TABLE_RECORD.arraySize];

function headerOf(instance: LuaInstance, table: Address): number[] {
  return HEADER_FIELDS.map((offset) => instance.word(table + offset));
}

class SandboxBuilder {
  readonly #machine: Machine;
  readonly #fronts: Front[] = [];
  /** Registry reference of the table behind each front, by the front's address. */
  readonly #behind = new Map<Address, number>();
  /** What `getmetatable` answers for a front: a registry reference; absent for nil. */
  readonly #shownMetatables = new Map<Address, number>();
  readonly #readonlyError: Address;

  constructor(machine: Machine) {
    this.#machine = machine;
    this.#readonlyError = machine.instance.cFunction((state) =>
      raiseHere(machine, state, "Attempt to modify a readonly table"),
    );
  }

  build(): Sandbox {
    const { api, state } = this.#machine;
    api.lua_settop(state, 0);
    api.lua_createtable(state, 0, 64);
    this.#addBase();
    for (const name of ["table", "string", "math", "coroutine"]) this.#addStandardLibrary(name);
    this.#addLibrary("bit", bitLibrary(this.#machine), {});
    this.#addLibrary("cjson", jsonFunctions(this.#machine), { _NAME: "cjson", _VERSION: "2.1.0", null: null });
    this.#addLibrary("os", { clock: this.#clock() }, {});
    this.#addLibrary("redis", redisFunctions(this.#machine), redisConstants(this.#machine));
    this.#addStringMetatable();
    this.#addGlobals();
    this.#fillSlots();
    this.#checkTableLayout();
    const fronts = this.#fronts;
    return { isPristine: () => fronts.every((front) => this.#isEmpty(front)) };
  }

  /**
   * Whether nothing was written into a front. A refused write leaves room for its key there, which shows in the header too: so a
   * changed header only means that the table must be looked through.
   */
  #isEmpty(front: Front): boolean {
    const { api, instance, state } = this.#machine;
    const { address, header } = front;
    if (HEADER_FIELDS.every((offset, at) => instance.word(address + offset) === header[at])) return true;
    const metatable = HEADER_FIELDS.indexOf(TABLE_RECORD.metatable);
    if (instance.word(address + TABLE_RECORD.metatable) !== header[metatable]) return false;
    api.lua_rawgeti(state, REGISTRY, front.reference);
    api.lua_pushnil(state);
    const hasEntry = api.lua_next(state, -2) !== 0;
    api.lua_settop(state, SLOTS);
    if (hasEntry) return false;
    front.header = headerOf(instance, address);
    return true;
  }

  // Parts. The table behind the globals lies at stack index 1 meanwhile.

  #addBase(): void {
    const { api, instance, state } = this.#machine;
    for (const name of BASE_FUNCTIONS) {
      api.lua_getfield(state, GLOBALS, instance.name(name));
      api.lua_setfield(state, SLOT.globals, instance.name(name));
    }
    const functions = { ...this.#tableFunctions(), ...baseFunctions(this.#machine, this.#originals()) };
    for (const [name, implementation] of Object.entries(functions))
      this.#setFunction(SLOT.globals, name, implementation);
    this.#addPairs();
  }

  /** Puts a front before `string` and the like, with the functions that need other ways than Lua's own. */
  #addStandardLibrary(name: string): void {
    const { api, instance, state } = this.#machine;
    api.lua_getfield(state, GLOBALS, instance.name(name));
    const table = api.lua_gettop(state);
    const own =
      name === "string"
        ? stringFunctions(this.#machine, (field) => this.#originalOf(name, field))
        : name === "math"
          ? randomFunctions(this.#machine)
          : {};
    for (const [field, implementation] of Object.entries(own)) this.#setFunction(table, field, implementation);
    this.#pushFront(table);
    api.lua_setfield(state, SLOT.globals, instance.name(name));
    api.lua_settop(state, SLOT.globals);
  }

  #addLibrary(
    name: string,
    functions: Record<string, CFunction>,
    constants: Record<string, number | string | null>,
  ): void {
    const { api, instance, state } = this.#machine;
    api.lua_createtable(state, 0, 32);
    const table = api.lua_gettop(state);
    for (const [field, implementation] of Object.entries(functions)) this.#setFunction(table, field, implementation);
    for (const [field, value] of Object.entries(constants)) {
      if (value === null) api.lua_pushlightuserdata(state, 0);
      else if (typeof value === "number") api.lua_pushnumber(state, value);
      else instance.pushString(state, value);
      api.lua_setfield(state, table, instance.name(field));
    }
    this.#pushFront(table);
    api.lua_setfield(state, SLOT.globals, instance.name(name));
    api.lua_settop(state, SLOT.globals);
  }

  /** `os.clock`: seconds since the run began, by the server's clock. */
  #clock(): CFunction {
    const machine = this.#machine;
    return (state) => {
      machine.api.lua_pushnumber(state, (machine.run?.nowMs() ?? 0) / 1000);
      return 1;
    };
  }

  /** The metatable of strings stays Lua's own; what scripts can get hold of is a front of it. */
  #addStringMetatable(): void {
    const { api, instance, state } = this.#machine;
    instance.pushString(state, "");
    api.lua_getmetatable(state, -1);
    const metatable = api.lua_gettop(state);
    api.lua_createtable(state, 0, 1);
    const shown = api.lua_gettop(state);
    api.lua_getfield(state, SLOT.globals, instance.name("string"));
    api.lua_setfield(state, shown, instance.name("__index"));
    this.#pushFront(shown);
    this.#shownMetatables.set(api.lua_topointer(state, metatable), api.luaL_ref(state, REGISTRY));
    api.lua_settop(state, SLOT.globals);
  }

  /** The globals: a front as the environment of every chunk; behind it, unknown names are an error. */
  #addGlobals(): void {
    const machine = this.#machine;
    const { api, instance, state } = machine;
    api.lua_createtable(state, 0, 1);
    const missing = api.lua_gettop(state);
    this.#setFunction(missing, "__index", missingGlobal(machine));
    api.lua_pushvalue(state, missing);
    api.lua_setmetatable(state, SLOT.globals);
    this.#pushFront(SLOT.globals);
    const front = api.lua_gettop(state);
    this.#pushFront(missing);
    this.#shownMetatables.set(api.lua_topointer(state, front), api.luaL_ref(state, REGISTRY));
    api.lua_pushvalue(state, front);
    api.lua_setfield(state, SLOT.globals, instance.name("_G"));
    api.lua_pushvalue(state, front);
    api.lua_replace(state, GLOBALS);
    api.lua_settop(state, SLOT.globals);
  }

  #fillSlots(): void {
    const machine = this.#machine;
    const { api, instance, state } = machine;
    api.lua_pushcclosure(state, instance.cFunction(errorHandler(machine)), 0);
    const names = [
      "KEYS",
      "ARGV",
      "err",
      "ok",
      "double",
      "big_number",
      "verbatim_string",
      "format",
      "string",
      "map",
      "set",
    ];
    for (const name of names) instance.pushString(state, name);
    invariant(api.lua_gettop(state) === SLOT.set, "every slot is filled");
  }

  /** The one assumption about Lua's insides, put to the test in each new instance. */
  #checkTableLayout(): void {
    const { api, instance, state } = this.#machine;
    const isSeen = (change: () => void): boolean => {
      api.lua_createtable(state, 0, 0);
      const address = api.lua_topointer(state, -1);
      const before = headerOf(instance, address).join(" ");
      change();
      const after = headerOf(instance, address).join(" ");
      api.lua_settop(state, SLOT.set);
      return before !== after;
    };
    const setIndex = (): void => {
      api.lua_pushnumber(state, 1);
      api.lua_rawseti(state, -2, 1);
    };
    const setField = (): void => {
      api.lua_pushnumber(state, 1);
      api.lua_setfield(state, -2, instance.name("ok"));
    };
    const setMetatable = (): void => {
      api.lua_createtable(state, 0, 0);
      api.lua_setmetatable(state, -2);
    };
    invariant([setIndex, setField, setMetatable].every(isSeen), "a write shows in the header of an empty table");
    invariant(!isSeen(() => {}), "nothing else shows in the header of a table");
  }

  // Fronts

  /** Pushes a new front of the table at that index. */
  #pushFront(table: StackIndex): void {
    const { api, instance, state } = this.#machine;
    api.lua_createtable(state, 0, 0);
    const front = api.lua_gettop(state);
    const address = api.lua_topointer(state, front);
    api.lua_createtable(state, 0, 2);
    api.lua_pushvalue(state, table);
    api.lua_setfield(state, -2, instance.name("__index"));
    api.lua_pushcclosure(state, this.#readonlyError, 0);
    api.lua_setfield(state, -2, instance.name("__newindex"));
    api.lua_setmetatable(state, front);
    api.lua_pushvalue(state, table);
    this.#behind.set(address, api.luaL_ref(state, REGISTRY));
    // Keeps the front alive for as long as its address is known here.
    api.lua_pushvalue(state, front);
    const reference = api.luaL_ref(state, REGISTRY);
    this.#fronts.push({ address, reference, header: headerOf(instance, address) });
  }

  #setFunction(table: StackIndex, name: string, implementation: CFunction): void {
    const { api, instance, state } = this.#machine;
    api.lua_pushcclosure(state, instance.cFunction(implementation), 0);
    api.lua_setfield(state, table, instance.name(name));
  }

  /** Lua's own implementation of a base function. */
  #originals(): (name: string) => CFunction {
    const { api, instance, state } = this.#machine;
    return (name) => {
      api.lua_getfield(state, GLOBALS, instance.name(name));
      const original = instance.functionAt(api.lua_tocfunction(state, -1));
      api.lua_settop(state, -2);
      return original;
    };
  }

  #originalOf(library: string, name: string): CFunction {
    const { api, instance, state } = this.#machine;
    api.lua_getfield(state, GLOBALS, instance.name(library));
    api.lua_getfield(state, -1, instance.name(name));
    const original = instance.functionAt(api.lua_tocfunction(state, -1));
    api.lua_settop(state, -3);
    return original;
  }

  /** The functions that see through metatables: on a front they act as on a read-only table, else they are Lua's own. */
  #tableFunctions(): Record<string, CFunction> {
    const machine = this.#machine;
    const { api, instance } = machine;
    const behind = this.#behind;
    const shown = this.#shownMetatables;
    const original = this.#originals();
    const next = original("next");
    const rawget = original("rawget");
    const rawset = original("rawset");
    const getmetatable = original("getmetatable");
    const setmetatable = original("setmetatable");
    const lookBehind = (state: LuaState): void => {
      const reference = behind.get(api.lua_topointer(state, 1));
      if (reference === undefined) return;
      api.lua_rawgeti(state, REGISTRY, reference);
      api.lua_replace(state, 1);
    };
    const isFront = (state: LuaState): boolean => behind.has(api.lua_topointer(state, 1));
    const refuse = (state: LuaState): number => raiseText(machine, state, "Attempt to modify a readonly table");
    const pushShown = (state: LuaState, reference: number | undefined): number => {
      if (reference === undefined) api.lua_pushnil(state);
      else api.lua_rawgeti(state, REGISTRY, reference);
      return 1;
    };
    instance.pushString(machine.state, "");
    api.lua_getmetatable(machine.state, -1);
    const stringMetatable = api.lua_topointer(machine.state, -1);
    api.lua_settop(machine.state, -3);
    return {
      next: (state) => {
        lookBehind(state);
        return next(state);
      },
      rawget: (state) => {
        lookBehind(state);
        return rawget(state);
      },
      rawset: (state) => (isFront(state) && api.lua_gettop(state) >= 3 ? refuse(state) : rawset(state)),
      setmetatable: (state) => {
        const type = api.lua_type(state, 2);
        const isCall = type === TYPE_TABLE || type === TYPE_NIL;
        return isCall && isFront(state) ? refuse(state) : setmetatable(state);
      },
      getmetatable: (state) => {
        if (api.lua_type(state, 1) === TYPE_STRING) return pushShown(state, shown.get(stringMetatable));
        if (isFront(state)) return pushShown(state, shown.get(api.lua_topointer(state, 1)));
        return getmetatable(state);
      },
    };
  }

  /** `pairs` of a front goes through the `next` above, so that nobody gets to see the table behind it. */
  #addPairs(): void {
    const { api, instance, state } = this.#machine;
    const behind = this.#behind;
    const pairs = this.#originals()("pairs");
    api.lua_getfield(state, SLOT.globals, instance.name("next"));
    const ownNext = api.luaL_ref(state, REGISTRY);
    const implementation: CFunction = (caller) => {
      if (!behind.has(api.lua_topointer(caller, 1))) return pairs(caller);
      api.lua_rawgeti(caller, REGISTRY, ownNext);
      api.lua_pushvalue(caller, 1);
      api.lua_pushnil(caller);
      return 3;
    };
    // Lua's own `pairs` finds `next` in its first upvalue: so must the one that calls it.
    api.lua_getfield(state, GLOBALS, instance.name("next"));
    api.lua_pushcclosure(state, instance.cFunction(implementation), 1);
    api.lua_setfield(state, SLOT.globals, instance.name("pairs"));
  }
}

/** The `__index` of the globals. */
function missingGlobal(machine: Machine): CFunction {
  const { api, instance } = machine;
  return (state) => {
    if (api.lua_gettop(state) !== 2)
      return raiseHere(machine, state, "Wrong number of arguments to luaProtectedTableError");
    if (api.lua_isstring(state, 2) === 0) {
      return raiseHere(machine, state, "Second argument to luaProtectedTableError must be a string or number");
    }
    const name = instance.toByteString(state, 2) ?? "";
    if (ABSENT_LIBRARIES.has(name))
      return raiseHere(machine, state, `This server has no library '${name}' for scripts`);
    return raiseHere(machine, state, `Script attempted to access nonexistent global variable '${name}'`);
  };
}

/**
 * What an error passes on its way out of the script: gives it the form `{err=}` and takes down where it was raised. A C function
 * has no line: then its caller's counts, whatever that is.
 */
function errorHandler(machine: Machine): CFunction {
  const { api, instance } = machine;
  const record = instance.allocate(DEBUG_RECORD.bytes);
  const what = instance.cString("nSl");
  const lookAt = (state: LuaState, level: number): boolean => {
    if (api.lua_getstack(state, level, record) === 0) return false;
    api.lua_getinfo(state, what, record);
    return true;
  };
  const isC = (): boolean => instance.readCString(instance.word(record + DEBUG_RECORD.what)) === "C";
  return (state) => {
    const isKnown = lookAt(state, 1) && (!isC() || lookAt(state, 2));
    activeRun(machine).errorPosition = isKnown
      ? {
          source: instance.readCString(instance.word(record + DEBUG_RECORD.source)),
          line: instance.word(record + DEBUG_RECORD.currentLine),
        }
      : null;
    if (api.lua_type(state, 1) !== TYPE_TABLE) pushError(machine, state, `ERR ${describe(machine, state)}`);
    return 1;
  };
}

/** What `tostring` says about the error value at index 1, but for addresses. */
function describe({ api, instance }: Machine, state: LuaState): ByteString {
  const type = api.lua_type(state, 1);
  if (type === TYPE_NIL) return "nil";
  if (type === TYPE_BOOLEAN) return api.lua_toboolean(state, 1) === 1 ? "true" : "false";
  return instance.toByteString(state, 1) ?? instance.readCString(api.lua_typename(state, type));
}
