import { quoteForError } from "../engine/errors.js";
import { ScriptEngine } from "../lua/script-engine.js";
import type { Clock, Ids, Log } from "../ports.js";
import type { Backend } from "./backend.js";
import { Diagnostics } from "./diagnostics.js";
import { PubSub } from "./pubsub.js";
import type { RuntimeSettings } from "./server-settings.js";

/**
 * Everything that the commands may use, in one object that is made once at start and handed to `buildCommandTable`.
 *
 * `redisVersion` is what HELLO and INFO claim. Clients open or close features by it (BullMQ wants >= 5.0, test suites skip
 * tests), so it has to be a version whose connection surface is the one spoken here: 7.2 brought CLIENT SETINFO, CLIENT
 * NO-TOUCH and WAITAOF and has nothing of the later data commands (HEXPIRE of 7.4, vectors of 8). 7.2.4 is also what Valkey says in
 * `redis_version` for the same reason, so every client in use knows how to live with it.
 */
const REDIS_VERSION = "7.2.4";

/** Memory for Lua: a lock script needs some kilobytes, the interpreter itself 16 MiB. */
const SCRIPT_MEMORY_BYTES_MAX = 64 * 1024 * 1024;

/** Compiled scripts at hand; others are compiled again when they are called. */
const SCRIPTS_COMPILED_MAX = 1000;
const SCRIPT_SOURCE_BYTES_MAX = 16 * 1024 * 1024;

const RANDOM_SEEDS = 2 ** 31;

/** The Lua interpreter of a server; its loading is the one thing at start that takes a moment. Rejects when it is not there. */
export function createScriptEngine(ids: Ids, log: Log): Promise<ScriptEngine> {
  return ScriptEngine.create({
    memoryBytesMax: SCRIPT_MEMORY_BYTES_MAX,
    scriptsMax: SCRIPTS_COMPILED_MAX,
    sourceBytesMax: SCRIPT_SOURCE_BYTES_MAX,
    redisVersion: REDIS_VERSION,
    randomSeed: Math.floor(ids.fraction() * RANDOM_SEEDS),
    log: (level, text) => {
      const isLoud = level === "notice" || level === "warning";
      log.write(
        level === "warning" ? "warn" : isLoud ? "info" : "debug",
        `script: ${quoteForError(text, LOG_CHARACTERS_MAX)}`,
      );
    },
  });
}

/** A script may log whatever it likes; one line of it is enough. */
const LOG_CHARACTERS_MAX = 1024;

export interface ServerContext {
  readonly backend: Backend;
  readonly settings: RuntimeSettings;
  readonly pubsub: PubSub;
  readonly diagnostics: Diagnostics;
  readonly scripts: ScriptEngine;
  readonly clock: Clock;
  readonly ids: Ids;
  readonly log: Log;
  readonly figures: ProcessFigures;
  readonly identity: ServerIdentity;
}

interface ServerIdentity {
  /** Leasehold's own version. */
  readonly version: string;
  readonly redisVersion: string;
  /** 40 hexadecimal digits, new with each process. */
  readonly runId: string;
  /** Monotonic milliseconds. */
  readonly startedAtMs: number;
}

/** What only the operating system and the runtime know about this process. `process-figures.ts` is the real form. */
export interface ProcessFigures {
  readonly processId: number;
  /** E.g. `Linux 6.1.0 x86_64`. */
  readonly operatingSystem: string;
  /** E.g. `v20.20.2`. */
  readonly runtimeVersion: string;
  readonly executablePath: string;
  readonly systemMemoryBytes: number;
  memory(): MemoryFigures;
  cpu(): CpuFigures;
}

interface MemoryFigures {
  readonly residentBytes: number;
  readonly residentPeakBytes: number;
  readonly heapUsedBytes: number;
  readonly heapTotalBytes: number;
  /** Buffers and what native code holds for JavaScript objects. */
  readonly externalBytes: number;
}

interface CpuFigures {
  readonly userMs: number;
  readonly systemMs: number;
}

/** What the lead parts bring; the rest of the context is made here. */
export interface ContextParts {
  readonly backend: Backend;
  readonly settings: RuntimeSettings;
  readonly scripts: ScriptEngine;
  readonly clock: Clock;
  readonly ids: Ids;
  readonly log: Log;
  readonly figures: ProcessFigures;
  readonly version: string;
  readonly runId: string;
}

export function createServerContext(parts: ContextParts): ServerContext {
  return {
    backend: parts.backend,
    settings: parts.settings,
    pubsub: new PubSub(parts.settings),
    diagnostics: new Diagnostics(parts.settings, parts.clock),
    scripts: parts.scripts,
    clock: parts.clock,
    ids: parts.ids,
    log: parts.log,
    figures: parts.figures,
    identity: {
      version: parts.version,
      redisVersion: REDIS_VERSION,
      runId: parts.runId,
      startedAtMs: parts.clock.monotonicMs(),
    },
  };
}
