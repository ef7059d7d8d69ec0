import { isIP } from "node:net";
import { parseArgs } from "node:util";
import { CLUSTER_SETTINGS, readClusterConfig, type ClusterConfig } from "./config-cluster.js";
import { ConfigError } from "./config-error.js";
import { DEFAULT_ENGINE_LIMITS, type EngineLimits } from "./engine/limits.js";
import type { LogLevel } from "./ports.js";
import { PASSWORD_BYTES_MAX } from "./resp/server-settings.js";

/**
 * Flags and environment become one frozen Config. Each setting is one row of `SETTINGS`: its flag, its unit, its range, its
 * default, a line of help; the variable in the environment has the flag's name (`--batch-bytes-max` is
 * `LEASEHOLD_BATCH_BYTES_MAX`). A flag wins over the environment, the environment over the default.
 *
 * Invariant: a Config that exists is complete, in range and consistent; nobody checks it again.
 */

export interface Config {
  readonly port: number;
  readonly bind: readonly string[];
  readonly directory: string;
  readonly requirePass: string;
  readonly protectedMode: boolean;
  readonly connectionsMax: number;
  readonly idleTimeoutSeconds: number;
  readonly keepAliveSeconds: number;
  readonly acceptLoss: boolean;
  /** Tokens begin above it. */
  readonly tokenMin: number;
  readonly logLevel: LogLevel;
  readonly batchBytesMax: number;
  readonly frameBytesMax: number;
  readonly engineLimits: EngineLimits;
  readonly notifyKeyspaceEvents: string;
  readonly debugCommands: boolean;
  /** Null: rows in the data directory, a node of its own. */
  readonly cluster: ClusterConfig | null;
}

interface Setting {
  readonly flag: string;
  readonly kind: "integer" | "text" | "boolean" | "choice";
  readonly unit?: string;
  readonly minimum?: number;
  readonly maximum?: number;
  readonly choices?: readonly string[];
  readonly fallback: string;
  readonly help: string;
}

const MEBIBYTE = 1_048_576;

/** Leaves room for tokens above it: for a million a second over a century. */
const TOKEN_MIN_MAX = 2 ** 52;

const SETTINGS = [
  {
    flag: "port",
    kind: "integer",
    minimum: 0,
    maximum: 65_535,
    fallback: "7379",
    help: "TCP port; 0 takes a free one",
  },
  { flag: "bind", kind: "text", fallback: "127.0.0.1", help: "addresses to listen on, separated by commas" },
  { flag: "dir", kind: "text", fallback: "./data", help: "data directory; made when missing" },
  { flag: "requirepass", kind: "text", fallback: "", help: "password that clients must give with AUTH" },
  {
    flag: "protected-mode",
    kind: "choice",
    choices: ["yes", "no"],
    fallback: "yes",
    help: "without a password, refuse to listen beyond loopback",
  },
  {
    flag: "maxclients",
    kind: "integer",
    unit: "connections",
    minimum: 1,
    maximum: 1_000_000,
    fallback: "10000",
    help: "client connections at once",
  },
  {
    flag: "timeout",
    kind: "integer",
    unit: "seconds",
    minimum: 0,
    maximum: 2_147_483,
    fallback: "0",
    help: "close a client after so long without a command; 0 never",
  },
  {
    flag: "tcp-keepalive",
    kind: "integer",
    unit: "seconds",
    minimum: 0,
    maximum: 2_147_483,
    fallback: "300",
    help: "TCP keep-alive probes to idle clients; 0 none",
  },
  {
    flag: "accept-loss",
    kind: "boolean",
    fallback: "no",
    help: "start although acknowledged writes are missing from the data directory",
  },
  {
    flag: "token-min",
    kind: "integer",
    minimum: 0,
    maximum: TOKEN_MIN_MAX,
    fallback: "0",
    help: "after a restore from a backup: give no token up to this one again",
  },
  {
    flag: "log-level",
    kind: "choice",
    choices: ["debug", "info", "warn", "error"],
    fallback: "info",
    help: "least level that is logged to standard error",
  },
  {
    flag: "batch-bytes-max",
    kind: "integer",
    unit: "bytes",
    minimum: 65_536,
    maximum: 256 * MEBIBYTE,
    fallback: String(8 * MEBIBYTE),
    help: "writes that may wait for the disk before clients that write are held up",
  },
  {
    flag: "frame-bytes-max",
    kind: "integer",
    unit: "bytes",
    minimum: 65_536,
    maximum: 512 * MEBIBYTE,
    fallback: String(64 * MEBIBYTE),
    help: "size of one request",
  },
  {
    flag: "leases-max",
    kind: "integer",
    unit: "leases",
    minimum: 1,
    maximum: 16_000_000,
    fallback: String(DEFAULT_ENGINE_LIMITS.leasesMax),
    help: "live leases",
  },
  {
    flag: "keys-max",
    kind: "integer",
    unit: "keys",
    minimum: 1,
    maximum: 16_000_000,
    fallback: String(DEFAULT_ENGINE_LIMITS.keysMax),
    help: "keys in all databases together",
  },
  {
    flag: "keys-per-lease-max",
    kind: "integer",
    unit: "keys",
    minimum: 1,
    maximum: 1_000_000,
    fallback: String(DEFAULT_ENGINE_LIMITS.keysPerLeaseMax),
    help: "keys of one lease",
  },
  {
    flag: "clock-error-per-mille",
    kind: "integer",
    unit: "thousandths",
    minimum: 0,
    maximum: 100,
    fallback: String(DEFAULT_ENGINE_LIMITS.clockErrorPerMille),
    help: "how wrong the rate of a client's clock may be",
  },
  { flag: "notify-keyspace-events", kind: "text", fallback: "", help: "Redis's flags for keyspace notifications" },
  {
    flag: "enable-debug-command",
    kind: "choice",
    choices: ["yes", "no"],
    fallback: "no",
    help: "allow DEBUG SLEEP",
  },
  ...CLUSTER_SETTINGS,
] as const satisfies readonly Setting[];

type Flag = (typeof SETTINGS)[number]["flag"];

const environmentName = (flag: string): string => `LEASEHOLD_${flag.toUpperCase().replaceAll("-", "_")}`;

/** Variables of the same prefix that are not settings: LEASEHOLD_FAULTS scripts faults in tests. */
const OTHER_VARIABLES: readonly string[] = ["LEASEHOLD_FAULTS"];

/** The lines of `leasehold serve --help` about settings. */
export function settingsHelp(): string {
  const rows = SETTINGS.map((setting: Setting): readonly [string, string] => {
    const value = setting.kind === "choice" ? (setting.choices ?? []).join("|") : (setting.unit ?? setting.kind);
    const name = setting.kind === "boolean" ? `--${setting.flag}` : `--${setting.flag} <${value}>`;
    return [name, `${setting.help} (default ${setting.fallback === "" ? "empty" : setting.fallback})`];
  });
  const width = Math.max(...rows.map(([name]) => name.length));
  return rows.map(([name, help]) => `  ${name.padEnd(width)}  ${help}`).join("\n");
}

/**
 * Reads the arguments behind `leasehold serve` and the environment.
 *
 * @throws ConfigError naming the flag or variable, the value and what is allowed.
 */
export function readConfig(args: readonly string[], environment: Readonly<Record<string, string | undefined>>): Config {
  const given = parseFlags(args);
  for (const name of Object.keys(environment)) {
    const known = SETTINGS.some((setting) => environmentName(setting.flag) === name) || OTHER_VARIABLES.includes(name);
    if (name.startsWith("LEASEHOLD_") && !known) throw new ConfigError(`${name}: there is no such setting`);
  }
  const values = new Map<string, string>();
  const isGiven = (flag: Flag): boolean => given.has(flag) || environment[environmentName(flag)] !== undefined;
  for (const setting of SETTINGS) {
    const fromEnvironment = environment[environmentName(setting.flag)];
    const origin = given.has(setting.flag) ? `--${setting.flag}` : environmentName(setting.flag);
    const value = given.get(setting.flag) ?? fromEnvironment ?? setting.fallback;
    checkSetting(setting, origin, value);
    values.set(setting.flag, value);
  }
  const text = (flag: Flag): string => values.get(flag) ?? "";
  const integer = (flag: Flag): number => Number(text(flag));
  const config: Config = Object.freeze({
    port: integer("port"),
    bind: text("bind")
      .split(",")
      .map((address) => address.trim()),
    directory: text("dir"),
    requirePass: text("requirepass"),
    protectedMode: text("protected-mode") === "yes",
    connectionsMax: integer("maxclients"),
    idleTimeoutSeconds: integer("timeout"),
    keepAliveSeconds: integer("tcp-keepalive"),
    acceptLoss: text("accept-loss") === "yes",
    tokenMin: integer("token-min"),
    logLevel: text("log-level") as LogLevel,
    batchBytesMax: integer("batch-bytes-max"),
    frameBytesMax: integer("frame-bytes-max"),
    engineLimits: Object.freeze({
      leasesMax: integer("leases-max"),
      keysPerLeaseMax: integer("keys-per-lease-max"),
      keysMax: integer("keys-max"),
      waitersPerKeyMax: DEFAULT_ENGINE_LIMITS.waitersPerKeyMax,
      waitersMax: DEFAULT_ENGINE_LIMITS.waitersMax,
      keysEndedAtOnceMax: DEFAULT_ENGINE_LIMITS.keysEndedAtOnceMax,
      clockErrorPerMille: integer("clock-error-per-mille"),
    }),
    notifyKeyspaceEvents: text("notify-keyspace-events"),
    debugCommands: text("enable-debug-command") === "yes",
    cluster: readClusterConfig(text, isGiven),
  });
  checkRelations(config);
  return config;
}

function parseFlags(args: readonly string[]): ReadonlyMap<string, string> {
  const options: Record<string, { type: "string" | "boolean" }> = {};
  for (const setting of SETTINGS) options[setting.flag] = { type: setting.kind === "boolean" ? "boolean" : "string" };
  const given = new Map<string, string>();
  try {
    const { values } = parseArgs({ args: withValuesJoined(args), options, strict: true, allowPositionals: false });
    for (const [flag, value] of Object.entries(values)) given.set(flag, value === true ? "yes" : String(value));
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    throw new ConfigError(message.split("\n", 1)[0] ?? message);
  }
  return given;
}

/** `--flag -1` as `--flag=-1`: else a value that begins with a dash is taken for a flag, before anybody can say what is wrong with it. */
function withValuesJoined(args: readonly string[]): string[] {
  const joined: string[] = [];
  for (let index = 0; index < args.length; index += 1) {
    const arg = args[index] ?? "";
    const next = args[index + 1];
    const setting = SETTINGS.find(({ flag }) => arg === `--${flag}`);
    const takesValue = setting !== undefined && setting.kind !== "boolean";
    if (takesValue && next !== undefined && !next.startsWith("--")) {
      joined.push(`${arg}=${next}`);
      index += 1;
    } else {
      joined.push(arg);
    }
  }
  return joined;
}

function checkSetting(setting: Setting, origin: string, value: string): void {
  const unit = setting.unit === undefined ? "" : ` of ${setting.unit}`;
  switch (setting.kind) {
    case "integer": {
      const { minimum = 0, maximum = Number.MAX_SAFE_INTEGER } = setting;
      const number = Number(value);
      if (!/^\d{1,16}$/.test(value) || number < minimum || number > maximum) {
        throw new ConfigError(`${origin}: '${value}' is not a whole number${unit} from ${minimum} to ${maximum}`);
      }
      return;
    }
    case "boolean":
      if (value !== "yes" && value !== "no") throw new ConfigError(`${origin}: '${value}' is neither yes nor no`);
      return;
    case "choice":
      if (!(setting.choices ?? []).includes(value)) {
        throw new ConfigError(`${origin}: '${value}' is none of ${(setting.choices ?? []).join(", ")}`);
      }
      return;
    case "text":
      return;
  }
}

/** Loopback in the sense of protected mode: reachable from this machine only. */
export function isLoopback(address: string): boolean {
  return address === "localhost" || address === "::1" || /^(::ffff:)?127(\.\d{1,3}){3}$/.test(address);
}

function checkRelations(config: Config): void {
  if (config.bind.some((address) => address === "")) throw new ConfigError("--bind: an address is empty");
  const passwordBytes = Buffer.byteLength(config.requirePass);
  if (passwordBytes > PASSWORD_BYTES_MAX) {
    throw new ConfigError(
      `--requirepass: the password is ${passwordBytes} bytes long, the limit is ${PASSWORD_BYTES_MAX} bytes`,
    );
  }
  if (config.directory === "") throw new ConfigError("--dir: the data directory must be named");
  const exposed = config.bind.find((address) => !isLoopback(address));
  if (exposed !== undefined && config.protectedMode && config.requirePass === "") {
    throw new ConfigError(
      `--bind ${exposed}: without --requirepass only loopback is listened on; set a password, or --protected-mode no`,
    );
  }
  if (config.cluster !== null && config.cluster.announce === null) checkAnnounceable(config.bind);
}

/** What other machines are told has to be one address. */
function checkAnnounceable(bind: readonly string[]): void {
  const [address = ""] = bind;
  if (bind.length !== 1 || isIP(address) === 0 || address === "0.0.0.0" || address === "::") {
    throw new ConfigError(`--announce: with --bind ${bind.join(",")} say at which IP:PORT clients reach this node`);
  }
}
