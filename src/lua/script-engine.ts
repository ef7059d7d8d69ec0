import { invariant } from "../engine/invariant.js";
import { ErrorReply, type ByteString, type Reply } from "../engine/reply.js";
import { errorLine } from "./lua-to-reply.js";
import { INSTANCE_BYTES_MIN, loadInterpreter } from "./lua-instance.js";
import { LuaVm, outOfMemory, overdue, type ChunkReference } from "./lua-vm.js";
import { FIRST_LOOK_INSTRUCTIONS, OverdueError, type ActiveRun, type LogLevel, type ScriptHost } from "./machine.js";
import { ScriptRandom } from "./random.js";
import { sha1 } from "./redis-library.js";
import { parseSource } from "./script-source.js";

/**
 * EVAL, EVALSHA, SCRIPT LOAD, as far as they are about Lua: keeps scripts under their SHA-1, runs them one at a time, and keeps the
 * VM in order. It knows no command: what a script calls goes to the host of the run, at once, on the same stack.
 *
 * Invariants:
 *  1. A run leaves nothing behind that another run could see; what might have is run in a VM that is then replaced.
 *  2. A run ends: by itself, at its time limit, or at the memory limit. None of these ends the process.
 *  3. A script that is kept can be run at any time; its chunk is compiled again in a new VM when it is next needed.
 */

export type { LogLevel, ScriptHost } from "./machine.js";

export interface ScriptEngineOptions {
  /** All memory of the VM, in bytes: values of the running script, compiled scripts, 4 MiB of C stack. At least 16 MiB. */
  readonly memoryBytesMax: number;
  /** Scripts kept. The one that was not used for longest goes first; those of SCRIPT LOAD stay. */
  readonly scriptsMax: number;
  /** Bytes of source kept in all. */
  readonly sourceBytesMax: number;
  /** What scripts see as `redis.REDIS_VERSION`, and INFO says: "7.2.0". */
  readonly redisVersion: string;
  /** What `math.random` starts from: a 32-bit integer. */
  readonly randomSeed: number;
  /** `redis.log`, and what the engine has to say for itself. */
  readonly log: (level: LogLevel, text: ByteString) => void;
}

export interface ScriptRun {
  /** 40 hexadecimal digits in lower case. */
  readonly sha: string;
  readonly keys: readonly ByteString[];
  readonly args: readonly ByteString[];
  /** EVAL_RO and EVALSHA_RO. */
  readonly readOnly: boolean;
  readonly host: ScriptHost;
  /** Milliseconds that only go forward, with fractions. */
  readonly nowMs: () => number;
  /** The run is ended when it takes longer. Infinity: never. */
  readonly timeLimitMs: number;
}

export interface LoadedScript {
  readonly sha: string;
  /** False when it was kept already. */
  readonly isNew: boolean;
  /** SHAs of the scripts that had to go. */
  readonly evicted: readonly string[];
}

export const NO_SCRIPT = new ErrorReply("NOSCRIPT No matching script. Please use EVAL.");

const WRITES_IN_READ_ONLY_RUN = new ErrorReply("ERR Can not execute a script with write flag using *_ro command.");

/** The VM may stay this large between runs. */
const MEMORY_BYTES_KEEP = 2 * INSTANCE_BYTES_MIN;

interface Script {
  readonly sha: string;
  readonly source: ByteString;
  readonly chunk: ByteString;
  readonly hasFlags: boolean;
  readonly isReadOnly: boolean;
  /** Loaded by SCRIPT LOAD: kept until SCRIPT FLUSH. */
  isPinned: boolean;
  /** Where it is compiled, if it is. */
  compiledIn: LuaVm | null;
  reference: ChunkReference;
}

export class ScriptEngine {
  readonly #options: ScriptEngineOptions;
  readonly #interpreter: WebAssembly.Module;
  /** By SHA; the order is that of the last use. */
  readonly #scripts = new Map<string, Script>();
  /** The same by source: EVAL of a known script needs no SHA-1. */
  readonly #bySource = new Map<ByteString, Script>();
  readonly #random: ScriptRandom;
  #sourceBytes = 0;
  #vm: LuaVm;
  #isRunning = false;

  private constructor(options: ScriptEngineOptions, interpreter: WebAssembly.Module) {
    this.#options = options;
    this.#interpreter = interpreter;
    this.#random = new ScriptRandom(options.randomSeed);
    this.#vm = this.#newVm();
  }

  /** Loads the interpreter. Rejects when the limits make no sense or the interpreter is missing. */
  static async create(options: ScriptEngineOptions): Promise<ScriptEngine> {
    if (options.memoryBytesMax < INSTANCE_BYTES_MIN) {
      throw new RangeError(`memory for scripts must be at least ${INSTANCE_BYTES_MIN} bytes`);
    }
    return new ScriptEngine(options, await loadInterpreter());
  }

  /** Bytes of memory that the VM holds. */
  get memoryBytes(): number {
    return this.#vm.instance.memoryBytes;
  }

  get scriptCount(): number {
    return this.#scripts.size;
  }

  has(sha: string): boolean {
    return this.#scripts.has(sha);
  }

  source(sha: string): ByteString | undefined {
    return this.#scripts.get(sha)?.source;
  }

  shas(): IterableIterator<string> {
    return this.#scripts.keys();
  }

  /**
   * Compiles a script and keeps it. `isPinned`: it is never evicted (SCRIPT LOAD); a script that is kept already may become pinned
   * so. Errors as Redis says them; nothing changes then.
   */
  compile(source: ByteString, isPinned = false): LoadedScript | ErrorReply {
    invariant(!this.#isRunning, "no script is compiled while one runs");
    const known = this.#bySource.get(source);
    if (known !== undefined) {
      known.isPinned ||= isPinned;
      this.#touch(known);
      return { sha: known.sha, isNew: false, evicted: [] };
    }
    const parsed = parseSource(source);
    if (parsed instanceof ErrorReply) return parsed;
    const script: Script = {
      sha: sha1(source),
      source,
      chunk: parsed.chunk,
      hasFlags: parsed.hasFlags,
      isReadOnly: parsed.isReadOnly,
      isPinned,
      compiledIn: null,
      reference: 0,
    };
    const failure = this.#compileChunk(script);
    if (failure !== null) return failure;
    const evicted = this.#makeRoom(source.length);
    if (evicted === null) {
      this.#forgetChunk(script);
      return new ErrorReply("OOM the limit of kept scripts is reached; SCRIPT FLUSH makes room");
    }
    this.#scripts.set(script.sha, script);
    this.#bySource.set(source, script);
    this.#sourceBytes += source.length;
    return { sha: script.sha, isNew: true, evicted };
  }

  /** Forgets all scripts (SCRIPT FLUSH). */
  flush(): void {
    invariant(!this.#isRunning, "no script is forgotten while one runs");
    this.#scripts.clear();
    this.#bySource.clear();
    this.#sourceBytes = 0;
    this.#vm = this.#newVm();
  }

  /**
   * Runs a script to its end, synchronously, and returns its reply; NO_SCRIPT when there is none of that SHA. Throws what the host
   * throws and nothing else.
   */
  run(run: ScriptRun): Reply {
    invariant(!this.#isRunning, "one script runs at a time");
    const script = this.#scripts.get(run.sha);
    if (script === undefined) return NO_SCRIPT;
    if (run.readOnly && script.hasFlags && !script.isReadOnly) return WRITES_IN_READ_ONLY_RUN;
    this.#touch(script);
    if (script.compiledIn !== this.#vm) {
      const failure = this.#compileChunk(script);
      if (failure !== null) return failure;
    }
    this.#isRunning = true;
    try {
      return this.#execute(script, run);
    } finally {
      this.#isRunning = false;
    }
  }

  #execute(script: Script, run: ScriptRun): Reply {
    const vm = this.#vm;
    const startedMs = run.nowMs();
    const active: ActiveRun = {
      sha: script.sha,
      host: run.host,
      readOnly: run.readOnly || script.isReadOnly,
      nowMs: run.nowMs,
      timeLimitMs: run.timeLimitMs,
      deadlineMs: startedMs + run.timeLimitMs,
      lastLookMs: startedMs,
      instructionsPerLook: FIRST_LOOK_INSTRUCTIONS,
      resp: 2,
      isOverdue: false,
      errorPosition: null,
    };
    let reply: Reply;
    try {
      reply = vm.execute(script.reference, active, run.keys, run.args);
    } catch (thrown) {
      this.#random.endRun();
      this.#vm = this.#newVm();
      if (vm.hostFailure !== null) throw vm.hostFailure.thrown;
      return this.#gaveUp(vm, script, run, thrown);
    }
    if (!vm.isSound) {
      this.#options.log(
        "notice",
        `script ${script.sha} left its VM unfit for others (${vm.instance.memoryBytes} bytes); it is replaced`,
      );
      this.#vm = this.#newVm();
    }
    return reply;
  }

  /** The interpreter did not come back in order: what to tell the client. */
  #gaveUp(vm: LuaVm, script: Script, run: ScriptRun, thrown: unknown): ErrorReply {
    const where = ` script: ${script.sha}`;
    if (thrown instanceof OverdueError) return overdue(run);
    if (vm.instance.memoryRefused) return outOfMemory(script.sha);
    const reason = thrown instanceof RangeError ? "stack overflow" : errorLine(String(thrown));
    this.#options.log("warning", `the Lua interpreter gave up on script ${script.sha}: ${reason}; it is replaced`);
    return new ErrorReply(`ERR the script broke the interpreter: ${reason}${where}`);
  }

  // Scripts

  /** It was used just now. */
  #touch(script: Script): void {
    if (script.isPinned) return;
    this.#scripts.delete(script.sha);
    this.#scripts.set(script.sha, script);
  }

  #compileChunk(script: Script): ErrorReply | null {
    const vm = this.#vm;
    let result: ChunkReference | { readonly message: ByteString };
    try {
      result = vm.compile(script.chunk);
    } catch (thrown) {
      this.#vm = this.#newVm();
      if (vm.instance.memoryRefused) return outOfMemory(script.sha);
      return new ErrorReply(errorLine(`ERR Error compiling script (new function): ${String(thrown)}`));
    }
    if (typeof result !== "number") {
      if (!vm.isSound) this.#vm = this.#newVm();
      return new ErrorReply(errorLine(`ERR Error compiling script (new function): ${result.message}`));
    }
    script.compiledIn = vm;
    script.reference = result;
    return null;
  }

  #forgetChunk(script: Script): void {
    if (script.compiledIn === this.#vm) this.#vm.forget(script.reference);
  }

  /** Evicts until one more script of that size fits: null when the pinned ones leave no room. */
  #makeRoom(bytes: number): string[] | null {
    const isFull = (): boolean =>
      this.#scripts.size - evicted.length >= this.#options.scriptsMax ||
      this.#sourceBytes - freed + bytes > this.#options.sourceBytesMax;
    const evicted: string[] = [];
    let freed = 0;
    for (const script of this.#scripts.values()) {
      if (!isFull()) break;
      if (script.isPinned) continue;
      evicted.push(script.sha);
      freed += script.source.length;
    }
    if (isFull()) return null;
    for (const sha of evicted) this.#forget(sha);
    return evicted;
  }

  #forget(sha: string): void {
    const script = this.#scripts.get(sha);
    if (script === undefined) return;
    this.#forgetChunk(script);
    this.#scripts.delete(sha);
    this.#bySource.delete(script.source);
    this.#sourceBytes -= script.source.length;
  }

  #newVm(): LuaVm {
    return new LuaVm({
      interpreter: this.#interpreter,
      memoryBytesMax: this.#options.memoryBytesMax,
      memoryBytesKeep: Math.min(MEMORY_BYTES_KEEP, this.#options.memoryBytesMax),
      redisVersion: this.#options.redisVersion,
      random: this.#random,
      log: this.#options.log,
    });
  }
}
