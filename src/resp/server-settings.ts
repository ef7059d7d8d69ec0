import { quoteForError } from "../engine/errors.js";
import { DATABASE_COUNT } from "../engine/limits.js";
import type { ByteString } from "../engine/reply.js";
import type { ServerSettings } from "./command.js";
import { parseInteger } from "./commands/arguments.js";

/**
 * The settings that a running server is asked about (CONFIG GET) and may be told to change (CONFIG SET). `config.ts` makes
 * one `RuntimeSettings` at start; the connections read their few fields of it at each use, the commands the rest.
 *
 * A parameter is one row of `PARAMETERS`: how it reads, and how a new value is checked and applied. Parameters without
 * `plan` are fixed at start; setting one to the value that it has is accepted all the same, because test suites do that
 * (`CONFIG SET save ""`).
 *
 * Invariants:
 *  - CONFIG SET with several parameters changes all of them or none
 *  - every value that CONFIG GET shows can be given to CONFIG SET
 *  - nothing here is written to disk: after a restart flags and environment count again
 */

/** What is known at start. Durations and sizes have their unit last. */
export interface StartSettings {
  readonly bind: readonly string[];
  readonly port: number;
  readonly directory: string;
  /** Empty: none is asked for. */
  readonly requirePass: ByteString;
  readonly protectedMode: boolean;
  readonly connectionsMax: number;
  readonly idleTimeoutSeconds: number;
  readonly tcpKeepAliveSeconds: number;
  /** Redis's letters, e.g. `KEx`; empty: no keyspace events. */
  readonly notifyKeyspaceEvents: string;
  /** DEBUG SLEEP may be used. */
  readonly debugCommands: boolean;
  readonly frameBytesMax: number;
}

/** Redis's classes of keyspace events as bits, and the two channels that they go to. */
export const KEYSPACE_FLAGS = {
  /** `__keyspace@<db>__:<key>` */
  K: 1 << 0,
  /** `__keyevent@<db>__:<event>` */
  E: 1 << 1,
  /** Commands of any type: DEL, EXPIRE, RENAME ... */
  g: 1 << 2,
  $: 1 << 3,
  l: 1 << 4,
  s: 1 << 5,
  h: 1 << 6,
  z: 1 << 7,
  /** Expired. */
  x: 1 << 8,
  /** Evicted. */
  e: 1 << 9,
  t: 1 << 10,
  d: 1 << 11,
  /** Key misses; not part of A. */
  m: 1 << 12,
  /** New keys; not part of A. */
  n: 1 << 13,
} as const;

type KeyspaceLetter = keyof typeof KEYSPACE_FLAGS;

/** What `A` stands for. */
const LETTERS_OF_A: readonly KeyspaceLetter[] = ["g", "$", "l", "s", "h", "z", "x", "e", "t", "d"];
const LETTERS_BESIDE_A: readonly KeyspaceLetter[] = ["K", "E", "m", "n"];
const FLAGS_OF_A = LETTERS_OF_A.reduce((flags, letter) => flags | KEYSPACE_FLAGS[letter], 0);

/** Null when a letter is unknown. */
export function parseKeyspaceFlags(text: ByteString): number | null {
  let flags = 0;
  for (const letter of text) {
    if (letter === "A") flags |= FLAGS_OF_A;
    else if (letter in KEYSPACE_FLAGS) flags |= KEYSPACE_FLAGS[letter as KeyspaceLetter];
    else return null;
  }
  return flags;
}

/** In Redis's order, A standing for all that it covers. */
export function formatKeyspaceFlags(flags: number): string {
  const isSet = (letter: KeyspaceLetter): boolean => (flags & KEYSPACE_FLAGS[letter]) !== 0;
  const all = (flags & FLAGS_OF_A) === FLAGS_OF_A;
  const letters = all ? ["A"] : LETTERS_OF_A.filter(isSet);
  return [...letters, ...LETTERS_BESIDE_A.filter(isSet)].join("");
}

/** As in Redis. What AUTH can carry before it has succeeded is bounded; a longer password would lock everybody out. */
export const PASSWORD_BYTES_MAX = 512;

/** Enough for any analysis; each entry may hold 4 KB of arguments. */
export const SLOWLOG_ENTRIES_MAX = 4096;
const UINT32_MAX = 4_294_967_295;
const INT32_MAX = 2_147_483_647;

export class RuntimeSettings implements ServerSettings {
  readonly start: StartSettings;

  // Read by the connections.
  password: ByteString | null;
  protectedMode: boolean;
  connectionsMax: number;
  idleTimeoutMs: number;
  tcpKeepAliveMs: number;

  // Read by the commands.
  keyspaceFlags: number;
  /** Commands at least this long are logged; 0: all; negative: none. Microseconds. */
  slowlogSlowerThanUs = 10_000;
  slowlogEntriesMax = 128;
  /** Events at least this long are remembered by LATENCY; 0: none. Milliseconds. */
  latencyThresholdMs = 0;
  /** A script that runs longer is ended; 0: never. Nothing else runs meanwhile, no keep-alive either. Milliseconds. */
  scriptTimeLimitMs = 1000;

  /** `start` has been checked by whoever read the flags. Throws when `notifyKeyspaceEvents` has an unknown letter. */
  constructor(start: StartSettings) {
    const flags = parseKeyspaceFlags(start.notifyKeyspaceEvents);
    if (flags === null) {
      throw new RangeError(`notify-keyspace-events: unknown letter in '${start.notifyKeyspaceEvents}'`);
    }
    this.start = start;
    this.password = start.requirePass === "" ? null : start.requirePass;
    this.protectedMode = start.protectedMode;
    this.connectionsMax = start.connectionsMax;
    this.idleTimeoutMs = start.idleTimeoutSeconds * 1000;
    this.tcpKeepAliveMs = start.tcpKeepAliveSeconds * 1000;
    this.keyspaceFlags = flags;
  }

  /** Name and value of every parameter that `matches`, in the order of the table. */
  read(matches: (name: string) => boolean): [name: string, value: ByteString][] {
    return PARAMETERS.filter((parameter) => matches(parameter.name)).map((parameter) => [
      parameter.name,
      parameter.read(this),
    ]);
  }

  /** All of `pairs` or none. Null when done, else Redis's error text without its code. */
  write(pairs: readonly (readonly [name: ByteString, value: ByteString])[]): string | null {
    const plans: (() => void)[] = [];
    const seen = new Set<string>();
    for (const [given, value] of pairs) {
      const name = given.toLowerCase();
      const parameter = PARAMETERS_BY_NAME.get(name);
      if (parameter === undefined)
        return `Unknown option or number of arguments for CONFIG SET - '${quoteForError(given)}'`;
      const failed = (why: string): string =>
        `CONFIG SET failed (possibly related to argument '${parameter.name}') - ${why}`;
      if (seen.has(name)) return failed("duplicate parameter");
      seen.add(name);
      if (parameter.plan === null) {
        if (value !== parameter.read(this)) return failed("can't set immutable config");
        continue;
      }
      const plan = parameter.plan(value, this);
      if (typeof plan === "string") return failed(plan);
      plans.push(plan);
    }
    for (const apply of plans) apply();
    return null;
  }
}

interface Parameter {
  readonly name: string;
  /** One line for the docs. */
  readonly summary: string;
  readonly read: (settings: RuntimeSettings) => ByteString;
  /** Checks a value: what applies it, or why it is refused. Null: fixed at start. */
  readonly plan: ((value: ByteString, settings: RuntimeSettings) => (() => void) | string) | null;
}

type IntegerField = {
  [Name in keyof RuntimeSettings]: RuntimeSettings[Name] extends number ? Name : never;
}[keyof RuntimeSettings];

/** A whole number; the field holds it times `factor`. */
function integer(
  name: string,
  field: IntegerField,
  range: { readonly minimum: number; readonly maximum: number; readonly factor?: number },
  summary: string,
): Parameter {
  const factor = range.factor ?? 1;
  return {
    name,
    summary,
    read: (settings) => String(settings[field] / factor),
    plan: (text, settings) => {
      const value = parseInteger(text);
      if (value === null) return "argument couldn't be parsed into an integer";
      if (value < range.minimum || value > range.maximum) {
        return `argument must be between ${range.minimum} and ${range.maximum} inclusive`;
      }
      return () => {
        settings[field] = value * factor;
      };
    },
  };
}

const yesNo = (value: boolean): string => (value ? "yes" : "no");

/** A parameter whose value was settled at start, or that has only one possible value here. */
function fixed(name: string, value: string | ((start: StartSettings) => string), summary: string): Parameter {
  return {
    name,
    summary,
    read: ({ start }) => (typeof value === "string" ? value : value(start)),
    plan: null,
  };
}

/** Every parameter of CONFIG GET and CONFIG SET. */
export const PARAMETERS: readonly Parameter[] = [
  fixed("bind", (start) => start.bind.join(" "), "addresses that the server listens on"),
  fixed("port", (start) => String(start.port), "TCP port"),
  fixed("dir", (start) => start.directory, "data directory"),
  {
    name: "requirepass",
    summary: "password that new connections must give; empty: none",
    read: (settings) => settings.password ?? "",
    plan: (value, settings) => {
      if (value.length > PASSWORD_BYTES_MAX) {
        return `the password is ${value.length} bytes long, the limit is ${PASSWORD_BYTES_MAX} bytes`;
      }
      return () => {
        settings.password = value === "" ? null : value;
      };
    },
  },
  {
    name: "protected-mode",
    summary: "without a password, serve this machine only",
    read: (settings) => yesNo(settings.protectedMode),
    plan: (value, settings) => {
      const lower = value.toLowerCase();
      if (lower !== "yes" && lower !== "no") return "argument must be 'yes' or 'no'";
      return () => {
        settings.protectedMode = lower === "yes";
      };
    },
  },
  integer("maxclients", "connectionsMax", { minimum: 1, maximum: UINT32_MAX }, "client connections at once"),
  integer(
    "timeout",
    "idleTimeoutMs",
    { minimum: 0, maximum: INT32_MAX, factor: 1000 },
    "seconds after which an idle connection is closed; 0: never",
  ),
  integer(
    "tcp-keepalive",
    "tcpKeepAliveMs",
    { minimum: 0, maximum: INT32_MAX, factor: 1000 },
    "seconds of silence before TCP keep-alive probes start, for new connections; 0: none",
  ),
  {
    name: "notify-keyspace-events",
    summary: "which keyspace events are published, in Redis's letters",
    read: (settings) => formatKeyspaceFlags(settings.keyspaceFlags),
    plan: (value, settings) => {
      const flags = parseKeyspaceFlags(value);
      if (flags === null) return "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.";
      return () => {
        settings.keyspaceFlags = flags;
      };
    },
  },
  integer(
    "slowlog-log-slower-than",
    "slowlogSlowerThanUs",
    { minimum: -1, maximum: Number.MAX_SAFE_INTEGER },
    "microseconds from which on a command enters the SLOWLOG; 0: all; -1: none",
  ),
  integer(
    "slowlog-max-len",
    "slowlogEntriesMax",
    { minimum: 0, maximum: SLOWLOG_ENTRIES_MAX },
    "entries that the SLOWLOG keeps",
  ),
  integer(
    "latency-monitor-threshold",
    "latencyThresholdMs",
    { minimum: 0, maximum: INT32_MAX },
    "milliseconds from which on LATENCY remembers an event; 0: none",
  ),
  integer(
    "busy-reply-threshold",
    "scriptTimeLimitMs",
    { minimum: 0, maximum: INT32_MAX },
    "milliseconds after which a running script is ended; 0: never",
  ),
  integer(
    "lua-time-limit",
    "scriptTimeLimitMs",
    { minimum: 0, maximum: INT32_MAX },
    "old name of busy-reply-threshold",
  ),
  fixed("latency-tracking", "no", "latency distributions per command are not kept"),
  fixed("databases", String(DATABASE_COUNT), "databases that SELECT knows"),
  fixed("save", "", "there are no snapshots to schedule: each write is durable before its reply"),
  fixed("appendonly", "yes", "each write is durable before its reply"),
  fixed("appendfsync", "always", "each write is synced before its reply"),
  fixed("maxmemory", "0", "there is no limit of memory but the limits of leases and keys"),
  fixed("maxmemory-policy", "noeviction", "a lease is never evicted"),
  fixed("proto-max-bulk-len", (start) => String(start.frameBytesMax), "bytes of one argument"),
  fixed("client-query-buffer-limit", (start) => String(start.frameBytesMax), "bytes of one request"),
  fixed("enable-debug-command", (start) => yesNo(start.debugCommands), "DEBUG may be used"),
  fixed("enable-module-command", "no", "there are no modules"),
  fixed("cluster-enabled", "no", "Redis Cluster is not spoken"),
  fixed("replica-read-only", "yes", "a node without the primary role writes nothing"),
  fixed("slave-read-only", "yes", "old name of replica-read-only"),
  fixed("replicaof", "", "there is no replication from another server"),
  fixed("slaveof", "", "old name of replicaof"),
  fixed("tls-port", "0", "TLS is not spoken"),
  fixed("unixsocket", "", "Unix sockets are not listened on"),
];

const PARAMETERS_BY_NAME: ReadonlyMap<string, Parameter> = new Map(
  PARAMETERS.map((parameter) => [parameter.name, parameter]),
);
