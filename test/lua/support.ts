/**
 * What the tests of the script engine share: an engine, a host with just enough of Redis's commands to compare scripts with the
 * real server, and a real Redis spoken to in raw bytes.
 */
import { spawn, type ChildProcess } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { connect, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  DoubleReply,
  ErrorReply,
  MapReply,
  NULL_ARRAY,
  OK,
  SetReply,
  StatusReply,
  type ByteString,
  type Reply,
} from "#src/engine/reply.js";
import { ScriptEngine, type ScriptEngineOptions, type ScriptHost } from "#src/lua/script-engine.js";

export const MEBIBYTE = 1024 * 1024;

export function createEngine(options: Partial<ScriptEngineOptions> = {}): Promise<ScriptEngine> {
  return ScriptEngine.create({
    memoryBytesMax: 64 * MEBIBYTE,
    scriptsMax: 1000,
    sourceBytesMax: 16 * MEBIBYTE,
    redisVersion: "7.0.15",
    randomSeed: 1,
    log: () => {},
    ...options,
  });
}

export interface EvalOptions {
  readonly keys?: readonly ByteString[];
  readonly args?: readonly ByteString[];
  readonly readOnly?: boolean;
  readonly host?: ScriptHost;
  readonly timeLimitMs?: number;
}

/** A host whose every command fails. */
export const noCommands: ScriptHost = {
  call: () => new ErrorReply("ERR Unknown Redis command called from script"),
};

/** EVAL: compiles and runs. */
export function evaluate(engine: ScriptEngine, source: ByteString, options: EvalOptions = {}): Reply {
  const compiled = engine.compile(source);
  if (compiled instanceof ErrorReply) return compiled;
  return engine.run({
    sha: compiled.sha,
    keys: options.keys ?? [],
    args: options.args ?? [],
    readOnly: options.readOnly ?? false,
    host: options.host ?? noCommands,
    nowMs: () => performance.now(),
    timeLimitMs: options.timeLimitMs ?? 20_000,
  });
}

type Value = string | Map<string, string> | Set<string> | Map<string, number>;

const INTEGER = /^-?\d{1,15}$/;
const WRONG_TYPE = new ErrorReply("WRONGTYPE Operation against a key holding the wrong kind of value");
const NOT_AN_INTEGER = new ErrorReply("ERR value is not an integer or out of range");

type Command = readonly [arity: number, run: (store: Map<string, Value>, args: readonly string[]) => Reply];

function fieldsOf(store: Map<string, Value>, key: string): Map<string, string> {
  const fields = (store.get(key) as Map<string, string> | undefined) ?? new Map<string, string>();
  store.set(key, fields);
  return fields;
}

function setOf(store: Map<string, Value>, key: string): Set<string> {
  const members = (store.get(key) as Set<string> | undefined) ?? new Set<string>();
  store.set(key, members);
  return members;
}

/** Arity as Redis counts it: with the name; negative means at least. */
const COMMANDS: Readonly<Record<string, Command>> = {
  ping: [-1, (_, args) => args[0] ?? new StatusReply("PONG")],
  echo: [2, (_, args) => args[0] ?? null],
  get: [2, (store, [key = ""]) => stringOr(store, key, (value) => value ?? null)],
  set: [-3, setString],
  strlen: [2, (store, [key = ""]) => stringOr(store, key, (value) => value?.length ?? 0)],
  del: [-2, (store, keys) => keys.filter((key) => store.delete(key)).length],
  exists: [-2, (store, keys) => keys.filter((key) => store.has(key)).length],
  mget: [
    -2,
    (store, keys) => keys.map((key) => (typeof store.get(key) === "string" ? (store.get(key) as string) : null)),
  ],
  incr: [
    2,
    (store, [key = ""]) =>
      stringOr(store, key, (value = "0") => {
        if (!INTEGER.test(value)) return NOT_AN_INTEGER;
        store.set(key, String(Number(value) + 1));
        return Number(value) + 1;
      }),
  ],
  type: [2, (store, [key = ""]) => new StatusReply(typeName(store.get(key)))],
  pexpire: [-3, (store, [key = "", ttl = ""]) => (INTEGER.test(ttl) ? Number(store.has(key)) : NOT_AN_INTEGER)],
  hset: [
    -4,
    (store, [key = "", field = "", value = ""]) => {
      fieldsOf(store, key).set(field, value);
      return 1;
    },
  ],
  hgetall: [2, (store, [key = ""]) => new MapReply([...fieldsOf(store, key)])],
  sadd: [
    -3,
    (store, [key = "", ...members]) => {
      for (const member of members) setOf(store, key).add(member);
      return members.length;
    },
  ],
  smembers: [2, (store, [key = ""]) => new SetReply([...setOf(store, key)])],
  zadd: [
    -4,
    (store, [key = "", score = "", member = ""]) => {
      fieldsOf(store, key).set(member, score);
      return 1;
    },
  ],
  zscore: [
    3,
    (store, [key = "", member = ""]) => {
      const score = fieldsOf(store, key).get(member);
      return score === undefined ? null : new DoubleReply(Number(score));
    },
  ],
  // Of a key that is never there.
  lpop: [-2, (_, args) => (args.length > 1 ? NULL_ARRAY : null)],
};

function stringOr(store: Map<string, Value>, key: string, use: (value: string | undefined) => Reply): Reply {
  const value = store.get(key);
  return value === undefined || typeof value === "string" ? use(value) : WRONG_TYPE;
}

function setString(store: Map<string, Value>, [key = "", value = "", ...options]: readonly string[]): Reply {
  const names = options.map((option) => option.toLowerCase());
  if (names.includes("nx") && store.has(key)) return null;
  if (names.includes("xx") && !store.has(key)) return null;
  store.set(key, value);
  return OK;
}

function typeName(value: Value | undefined): string {
  if (value === undefined) return "none";
  if (typeof value === "string") return "string";
  return value instanceof Set ? "set" : "hash";
}

const NOT_ALLOWED = new Set(["multi", "exec", "eval", "auth", "config", "subscribe", "hello"]);

/** A store of strings and a few other types, with the error texts that Redis 7.0 has for scripts. */
export class StoreHost implements ScriptHost {
  readonly #store = new Map<string, Value>();

  call(argv: readonly ByteString[]): Reply {
    const [name = "", ...args] = argv;
    const command = COMMANDS[name.toLowerCase()];
    if (NOT_ALLOWED.has(name.toLowerCase())) return new ErrorReply("ERR This Redis command is not allowed from script");
    if (command === undefined) return new ErrorReply("ERR Unknown Redis command called from script");
    const [arity, run] = command;
    const isComplete = arity < 0 ? argv.length >= -arity : argv.length === arity;
    if (!isComplete) return new ErrorReply("ERR Wrong number of args calling Redis command from script");
    return run(this.#store, args);
  }

  mayCall(argv: readonly ByteString[]): boolean | null {
    return COMMANDS[(argv[0] ?? "").toLowerCase()] === undefined ? null : true;
  }
}

/** A Redis server on a socket of its own, for as long as a suite runs. */
export class RealRedis {
  readonly #process: ChildProcess;
  readonly #directory: string;
  readonly #socket: Socket;
  #received = "";
  #wake: () => void = () => {};

  private constructor(process: ChildProcess, directory: string, socket: Socket) {
    this.#process = process;
    this.#directory = directory;
    this.#socket = socket;
    socket.setEncoding("latin1");
    socket.on("data", (chunk: string) => {
      this.#received += chunk;
      this.#wake();
    });
    socket.on("close", () => this.#wake());
  }

  static async start(): Promise<RealRedis> {
    const directory = mkdtempSync(join(tmpdir(), "lua-golden-"));
    const path = join(directory, "redis.sock");
    const options = ["--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no", "--dir", directory];
    const process = spawn("redis-server", options, { stdio: "ignore" });
    for (let attempt = 0; ; attempt++) {
      try {
        return new RealRedis(process, directory, await connected(path));
      } catch (error) {
        if (attempt === 200) throw error;
        await new Promise((resolve) => {
          setTimeout(resolve, 25);
        });
      }
    }
  }

  /** Sends one command and returns the bytes of its reply. */
  async exchange(...argv: readonly string[]): Promise<string> {
    const mark = `end of reply ${Math.random()}`;
    const end = `$${mark.length}\r\n${mark}\r\n`;
    this.#received = "";
    this.#socket.write(frame(argv) + frame(["ECHO", mark]), "latin1");
    while (!this.#received.endsWith(end)) {
      if (this.#socket.destroyed) throw new Error(`Redis closed the connection after ${argv.join(" ")}`);
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    return this.#received.slice(0, -end.length);
  }

  stop(): void {
    this.#socket.destroy();
    this.#process.kill("SIGKILL");
    rmSync(this.#directory, { recursive: true, force: true });
  }
}

const frame = (argv: readonly string[]): string =>
  `*${argv.length}\r\n${argv.map((argument) => `$${argument.length}\r\n${argument}\r\n`).join("")}`;

function connected(path: string): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = connect(path);
    socket.once("connect", () => resolve(socket));
    socket.once("error", reject);
  });
}
