import { ErrorReply, type ByteString, type Reply } from "../engine/reply.js";
import { errorLine, toReply } from "./lua-to-reply.js";
import {
  GC_PAUSE_DEFAULT,
  GC_RESTART,
  GC_SET_PAUSE,
  GC_SET_STEP_MULTIPLIER,
  GC_STEP_MULTIPLIER_DEFAULT,
  HOOK_COUNT,
  REGISTRY,
  STATUS_MEMORY,
  STATUS_OK,
  TABLE_RECORD,
  TYPE_TABLE,
  type Address,
  type LuaState,
} from "./lua-api.js";
import { InterpreterError, LuaInstance } from "./lua-instance.js";
import {
  beforeZero,
  FIRST_LOOK_INSTRUCTIONS,
  lookAtClock,
  overdueText,
  SLOT,
  SLOTS,
  type ActiveRun,
  type LogLevel,
  type Machine,
} from "./machine.js";
import type { ScriptRandom } from "./random.js";
import { buildSandbox, type Sandbox } from "./sandbox.js";
import { asSource } from "./standard-functions.js";

/**
 * One Lua VM with its sandbox: compiles chunks, runs them one at a time, and tells when it should be replaced. It never repairs
 * itself: making a new one takes some 10 ms and leaves nothing to be forgotten.
 *
 * Invariants:
 *  1. between runs the main thread's stack is exactly as high as SLOTS
 *  2. after a run of which `isSound` is false, the VM is not used again
 */

const CHUNK_NAME = "@user_script";

export interface VmOptions {
  readonly interpreter: WebAssembly.Module;
  /** The VM is not used again after a run that left it larger than this. */
  readonly memoryBytesKeep: number;
  readonly memoryBytesMax: number;
  readonly redisVersion: string;
  readonly random: ScriptRandom;
  readonly log: (level: LogLevel, text: ByteString) => void;
}

/** A compiled chunk: its reference in Lua's registry. */
export type ChunkReference = number;

export class LuaVm implements Machine {
  readonly instance: LuaInstance;
  readonly api: LuaInstance["api"];
  readonly state: LuaState;
  readonly hook: Address;
  readonly random: ScriptRandom;
  readonly redisVersion: string;
  readonly log: (level: LogLevel, text: ByteString) => void;
  run: ActiveRun | null = null;
  isSpoiled = false;
  isCollectorChanged = false;
  hostFailure: { readonly thrown: unknown } | null = null;

  readonly #memoryBytesKeep: number;
  readonly #sandbox: Sandbox;
  readonly #chunkName: Address;
  readonly #emptyNode: number;

  constructor(options: VmOptions) {
    this.redisVersion = options.redisVersion;
    this.random = options.random;
    this.log = options.log;
    this.#memoryBytesKeep = options.memoryBytesKeep;
    this.instance = new LuaInstance(options.interpreter, options.memoryBytesMax);
    this.api = this.instance.api;
    this.state = this.api.luaL_newstate();
    if (this.state === 0) throw new InterpreterError("not enough memory for a Lua state");
    this.api.lua_atpanic(
      this.state,
      this.instance.cFunction(() => {
        throw new InterpreterError("an error outside of a protected call");
      }),
    );
    this.hook = this.instance.hookFunction((state) => lookAtClock(this, state));
    this.#chunkName = this.instance.cString(CHUNK_NAME);
    this.#sandbox = buildSandbox(this);
    this.api.lua_createtable(this.state, 0, 0);
    this.#emptyNode = this.instance.word(this.api.lua_topointer(this.state, -1) + TABLE_RECORD.node);
    this.api.lua_settop(this.state, SLOTS);
    this.#watchTime();
  }

  /** Whether it may be used for another run. */
  get isSound(): boolean {
    return (
      !this.isSpoiled &&
      !this.instance.memoryRefused &&
      this.instance.memoryBytes <= this.#memoryBytesKeep &&
      this.instance.isStackIntact &&
      this.api.lua_gettop(this.state) === SLOTS &&
      this.#sandbox.isPristine()
    );
  }

  isPlainArray(state: LuaState): boolean {
    return this.instance.word(this.api.lua_topointer(state, -1) + TABLE_RECORD.node) === this.#emptyNode;
  }

  #watchTime(): void {
    this.api.lua_sethook(this.state, this.hook, HOOK_COUNT, FIRST_LOOK_INSTRUCTIONS);
  }

  /** Compiles a chunk and keeps it. A chunk that does not compile: the compiler's message. */
  compile(source: ByteString): ChunkReference | { readonly message: ByteString } {
    const { api, instance, state } = this;
    const text = asSource(source);
    const status = instance.withCopy(text, (address) =>
      api.luaL_loadbuffer(state, address, text.length, this.#chunkName),
    );
    if (status === STATUS_OK) return api.luaL_ref(state, REGISTRY);
    const message = instance.toByteString(state, -1) ?? "";
    api.lua_settop(state, SLOTS);
    return { message };
  }

  forget(chunk: ChunkReference): void {
    this.api.luaL_unref(this.state, REGISTRY, chunk);
  }

  /**
   * Runs a chunk to its end and returns its reply. Throws what the host threw, InterpreterError and other exceptions when the
   * interpreter gave up; then the VM is not to be used again.
   */
  execute(chunk: ChunkReference, run: ActiveRun, keys: readonly ByteString[], args: readonly ByteString[]): Reply {
    const { api, state } = this;
    this.run = run;
    this.#setGlobalArray(SLOT.KEYS, keys);
    this.#setGlobalArray(SLOT.ARGV, args);
    api.lua_rawgeti(state, REGISTRY, chunk);
    const status = api.lua_pcall(state, 0, 1, SLOT.errorHandler);
    const reply = status === STATUS_OK ? toReply(this) : this.#toErrorReply(status, run);
    const isCaught = status === STATUS_OK && run.isOverdue;
    api.lua_settop(state, SLOTS);
    this.run = null;
    this.random.endRun();
    if (run.isOverdue || run.instructionsPerLook !== FIRST_LOOK_INSTRUCTIONS) this.#watchTime();
    if (this.isCollectorChanged) this.#resetCollector();
    return isCaught ? overdue(run) : reply;
  }

  #setGlobalArray(name: number, items: readonly ByteString[]): void {
    const { api, instance, state } = this;
    api.lua_pushvalue(state, name);
    api.lua_createtable(state, items.length, 0);
    for (let at = 0; at < items.length; at++) {
      instance.pushString(state, items[at] as ByteString);
      api.lua_rawseti(state, -2, at + 1);
    }
    api.lua_rawset(state, SLOT.globals);
  }

  #resetCollector(): void {
    const { api, state } = this;
    api.lua_gc(state, GC_RESTART, 0);
    api.lua_gc(state, GC_SET_PAUSE, GC_PAUSE_DEFAULT);
    api.lua_gc(state, GC_SET_STEP_MULTIPLIER, GC_STEP_MULTIPLIER_DEFAULT);
    this.isCollectorChanged = false;
  }

  /** The error value on top as the reply that Redis makes of it. */
  #toErrorReply(status: number, run: ActiveRun): ErrorReply {
    const { api, instance, state } = this;
    if (status === STATUS_MEMORY) {
      this.isSpoiled = true;
      return outOfMemory(run.sha);
    }
    if (api.lua_type(state, -1) !== TYPE_TABLE) {
      const message = instance.toByteString(state, -1) ?? "execution failure";
      return new ErrorReply(errorLine(`ERR Error running script ${run.sha}, ${message.slice(0, 100)}`));
    }
    api.lua_pushvalue(state, SLOT.err);
    api.lua_rawget(state, -2);
    const text = beforeZero(instance.toByteString(state, -1) ?? "ERR unknown error");
    if (text === OUT_OF_MEMORY_TEXT && instance.memoryRefused) return outOfMemory(run.sha);
    const position = run.errorPosition;
    const where = position === null ? "" : ` script: ${run.sha}, on ${position.source}:${position.line}.`;
    return new ErrorReply(errorLine(text + beforeZero(where)));
  }
}

/** The run was ended, but without a position: it caught the error and came to its end, or it was cut off. */
export const overdue = ({ sha, timeLimitMs }: { readonly sha: string; readonly timeLimitMs: number }): ErrorReply =>
  new ErrorReply(`${overdueText(timeLimitMs)} script: ${sha}`);

/** The same error after a `pcall` that passed it on. */
const OUT_OF_MEMORY_TEXT = "ERR not enough memory";

/** A script wanted more memory than scripts may have. */
export const outOfMemory = (sha: string): ErrorReply =>
  new ErrorReply(`OOM not enough memory for the script: the limit of memory for scripts is reached. script: ${sha}`);
