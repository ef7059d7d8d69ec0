import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { invariant } from "../engine/invariant.js";
import type { ByteString } from "../engine/reply.js";
import type { Address, LuaApi, LuaState, StackIndex } from "./lua-api.js";

/**
 * One instance of the Lua interpreter: the WebAssembly module of the package `wasmoon-lua5.1`, its memory, and the way bytes go
 * in and out. The package's JavaScript is not used: it turns strings into UTF-8, brings a file system and an environment with
 * it, and can make an instance only asynchronously. What the module needs from outside is the few functions in `imports` below.
 *
 * Lua raises errors with `longjmp`. In WebAssembly that is a JavaScript exception (`LONG_JUMP`): thrown by
 * `_emscripten_throw_longjmp`, caught by `invoke_vii`, which the module calls wherever C has `setjmp`. It passes through every
 * frame in between, those of our own C functions too. Any other exception passes through the interpreter without being caught by
 * it and leaves its memory in the middle of something: the instance must be thrown away then, and a new one made, which takes
 * some 10 ms. This file throws, but never decides; `script-engine.ts` does.
 *
 * Invariants:
 *  1. The interpreter reaches nothing outside its memory but `imports`: no files, no clock, no environment, no output.
 *  2. Its memory never exceeds `memoryBytesMax`: growing beyond is refused, and Lua says "not enough memory".
 *  3. `heap` and `words` always show the present memory: it grows nowhere but in `growMemory`.
 */

/** A C function of Lua: takes the state, returns the number of results on its stack. */
export type CFunction = (state: LuaState) => number;
export type HookFunction = (state: LuaState, activation: Address) => void;

/** The interpreter gave up: an error outside of a protected call, an exit. Its instance is lost. */
export class InterpreterError extends Error {
  override readonly name = "InterpreterError";
}

const PAGE_BYTES = 65_536;

/** The module's own lower bound: 4 MiB of stack, and what is left of 16 MiB for data. */
export const INSTANCE_BYTES_MIN = 16_777_216;

/** Strings up to this length are written to a place that is always there; longer ones get memory of their own for the call. */
const SCRATCH_BYTES = 4096;

/** Up to these lengths a loop beats the call into Node's native copy, which costs 50 ns in and 90 ns out at any short length. */
const WRITE_LOOP_BYTES_MAX = 24;
const READ_LOOP_BYTES_MAX = 8;

const STACK_CANARY = 0x1ea5e401;

const LONG_JUMP = Symbol("longjmp");

const require = createRequire(import.meta.url);

/** The code of the interpreter, compiled once for all instances. Throws when the package is damaged. */
export async function loadInterpreter(): Promise<WebAssembly.Module> {
  const path = require.resolve("wasmoon-lua5.1/dist/liblua5.1.wasm");
  return WebAssembly.compile(await readFile(path));
}

const I32 = 0x7f;

/**
 * A module that takes one function and gives it back with a WebAssembly signature of `parameters` integers, which is what a
 * function table accepts. (`WebAssembly.Function` would do it; Node 20 does not have it.)
 */
function signatureModule(parameters: number, results: number): WebAssembly.Module {
  const type = [0x60, parameters, ...Array<number>(parameters).fill(I32), results, ...Array<number>(results).fill(I32)];
  const importOfFunction = [2, 7, 1, 1, 0x65, 1, 0x66, 0, 0];
  const exportOfFunction = [7, 5, 1, 1, 0x66, 0, 0];
  const header = [0, 0x61, 0x73, 0x6d, 1, 0, 0, 0];
  return new WebAssembly.Module(
    new Uint8Array([...header, 1, type.length + 1, 1, ...type, ...importOfFunction, ...exportOfFunction]),
  );
}

const C_FUNCTION_SIGNATURE = signatureModule(1, 1);
const HOOK_SIGNATURE = signatureModule(2, 0);

export class LuaInstance {
  readonly api: LuaApi;
  /** Set once growing the memory was refused. */
  memoryRefused = false;

  readonly memoryBytesMax: number;
  readonly #canaryAddress: Address;
  readonly #scratch: Address;
  readonly #lengthAddress: Address;
  readonly #names = new Map<string, Address>();
  #heap: Buffer;
  #words: Int32Array;

  /** `memoryBytesMax` in bytes, at least INSTANCE_BYTES_MIN. */
  constructor(interpreter: WebAssembly.Module, memoryBytesMax: number) {
    this.memoryBytesMax = memoryBytesMax;
    const imports = this.#imports(interpreter);
    const instance = new WebAssembly.Instance(interpreter, { env: imports, wasi_snapshot_preview1: imports });
    this.api = instance.exports as LuaApi;
    this.#heap = Buffer.from(this.api.memory.buffer);
    this.#words = new Int32Array(this.api.memory.buffer);
    this.api.emscripten_stack_init();
    this.api.__wasm_call_ctors();
    this.#canaryAddress = this.api.emscripten_stack_get_end() >> 2;
    this.#words[this.#canaryAddress] = STACK_CANARY;
    this.#scratch = this.api.malloc(SCRATCH_BYTES);
    this.#lengthAddress = this.api.malloc(8);
    invariant(this.#scratch !== 0 && this.#lengthAddress !== 0, "a new interpreter has memory");
  }

  get memoryBytes(): number {
    return this.#heap.length;
  }

  /** Whether the C stack never ran over the data below it. */
  get isStackIntact(): boolean {
    return this.#words[this.#canaryAddress] === STACK_CANARY;
  }

  #imports(interpreter: WebAssembly.Module): Record<string, WebAssembly.ImportValue> {
    const imports: Record<string, WebAssembly.ImportValue> = {};
    for (const { name } of WebAssembly.Module.imports(interpreter)) {
      imports[name] = () => {
        throw new InterpreterError(`it asked for ${name}`);
      };
    }
    imports["environ_sizes_get"] = (count: Address, bytes: Address) => {
      this.#words[count >> 2] = 0;
      this.#words[bytes >> 2] = 0;
      return 0;
    };
    imports["environ_get"] = () => 0;
    imports["emscripten_memcpy_js"] = (to: Address, from: Address, bytes: number) => {
      this.#heap.copyWithin(to, from, from + bytes);
    };
    imports["emscripten_resize_heap"] = (bytes: number) => this.#growMemory(bytes >>> 0);
    imports["_emscripten_throw_longjmp"] = () => {
      throw LONG_JUMP;
    };
    imports["invoke_vii"] = (pointer: Address, first: number, second: number) => {
      const stack = this.api.stackSave();
      try {
        this.functionAt(pointer)(first, second);
      } catch (thrown) {
        if (thrown !== LONG_JUMP) throw thrown;
        this.api.stackRestore(stack);
        this.api.setThrew(1, 0);
      }
    };
    return imports;
  }

  /** What C calls when its heap is full: 1 when there is room for `bytes` now, 0 when not. */
  #growMemory(bytes: number): number {
    const memory = this.api.memory;
    const present = memory.buffer.byteLength;
    if (bytes > this.memoryBytesMax) {
      this.memoryRefused = true;
      return 0;
    }
    const wanted = Math.min(this.memoryBytesMax, Math.max(bytes, present * 1.25));
    try {
      memory.grow(Math.ceil((wanted - present) / PAGE_BYTES));
    } catch {
      // The host itself has no more memory to give: the same to a script.
      this.memoryRefused = true;
      return 0;
    }
    this.#heap = Buffer.from(memory.buffer);
    this.#words = new Int32Array(memory.buffer);
    return 1;
  }

  /** The C pointer of a JavaScript function, for `lua_pushcclosure`. Kept for the life of the instance. */
  cFunction(implementation: CFunction): Address {
    return this.#addToTable(C_FUNCTION_SIGNATURE, implementation);
  }

  /** The C pointer of a hook, for `lua_sethook`. */
  hookFunction(implementation: HookFunction): Address {
    return this.#addToTable(HOOK_SIGNATURE, implementation);
  }

  #addToTable(signature: WebAssembly.Module, implementation: WebAssembly.ImportValue): Address {
    const { f } = new WebAssembly.Instance(signature, { e: { f: implementation } }).exports as { f: unknown };
    return this.exportedFunction(f);
  }

  /** The C pointer of a function that the module itself exports. */
  exportedFunction(exported: unknown): Address {
    const table = this.api.__indirect_function_table;
    const index = table.grow(1);
    table.set(index, exported);
    return index;
  }

  /** The function behind a C pointer: calling it is what C does in an indirect call. */
  functionAt(pointer: Address): (...values: number[]) => number {
    return this.api.__indirect_function_table.get(pointer);
  }

  word(address: Address): number {
    return this.#words[address >> 2] as number;
  }

  /** Memory for the life of the instance. */
  allocate(bytes: number): Address {
    const address = this.api.malloc(bytes);
    if (address === 0) throw new InterpreterError("not enough memory");
    return address;
  }

  /** A zero-terminated copy for the life of the instance: names of fields, messages of fixed wording. */
  cString(text: string): Address {
    const address = this.allocate(text.length + 1);
    this.#heap.write(text, address, "latin1");
    this.#heap[address + text.length] = 0;
    return address;
  }

  /** The C string of a name that the code uses, made at its first use. Never for text that comes from outside. */
  name(text: string): Address {
    const known = this.#names.get(text);
    if (known !== undefined) return known;
    const address = this.cString(text);
    this.#names.set(text, address);
    return address;
  }

  /** Reads the zero-terminated bytes at an address. */
  readCString(address: Address): ByteString {
    if (address === 0) return "";
    return this.#heap.toString("latin1", address, this.#heap.indexOf(0, address));
  }

  /** Pushes bytes as a Lua string. Raises when Lua is out of memory. */
  pushString(state: LuaState, text: ByteString): void {
    const length = text.length;
    if (length > SCRATCH_BYTES) {
      this.withCopy(text, (address) => this.api.lua_pushlstring(state, address, length));
      return;
    }
    const address = this.#scratch;
    if (length <= WRITE_LOOP_BYTES_MAX) {
      const heap = this.#heap;
      for (let at = 0; at < length; at++) heap[address + at] = text.charCodeAt(at);
    } else {
      this.#heap.write(text, address, "latin1");
    }
    this.api.lua_pushlstring(state, address, length);
  }

  /** Runs `use` with the address of a copy of `text`. When `use` raises, the copy is lost, and so is the instance soon. */
  withCopy<T>(text: ByteString, use: (address: Address) => T): T {
    const address = this.api.malloc(text.length + 1);
    if (address === 0) {
      this.memoryRefused = true;
      throw new InterpreterError("not enough memory");
    }
    this.#heap.write(text, address, "latin1");
    this.#heap[address + text.length] = 0;
    const result = use(address);
    this.api.free(address);
    return result;
  }

  /**
   * The bytes of a string or number on the stack, null for any other value. A number is turned into a string in place, as
   * `lua_tolstring` does.
   */
  toByteString(state: LuaState, index: StackIndex): ByteString | null {
    const address = this.api.lua_tolstring(state, index, this.#lengthAddress);
    if (address === 0) return null;
    const length = this.#words[this.#lengthAddress >> 2] as number;
    if (length > READ_LOOP_BYTES_MAX) return this.#heap.toString("latin1", address, address + length);
    const heap = this.#heap;
    let text = "";
    for (let at = address; at < address + length; at++) text += String.fromCharCode(heap[at] as number);
    return text;
  }

  /** The text that Lua makes of the number on the stack (`%.14g`); the number itself stays one. */
  numberText(state: LuaState, index: StackIndex): ByteString {
    this.api.lua_pushvalue(state, index);
    const text = this.toByteString(state, -1) ?? "";
    this.api.lua_settop(state, -2);
    return text;
  }

  /** Length in bytes of the string on the stack; 0 for what is none. */
  stringLength(state: LuaState, index: StackIndex): number {
    const address = this.api.lua_tolstring(state, index, this.#lengthAddress);
    return address === 0 ? 0 : (this.#words[this.#lengthAddress >> 2] as number);
  }
}
