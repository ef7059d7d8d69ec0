import { StatusReply, type ByteString } from "../engine/reply.js";
import type { Clock } from "../ports.js";
import type { ClientConnection, CommandObserver, CommandSpec } from "./command.js";
import { EncodedOnce } from "./encoder.js";
import type { RuntimeSettings } from "./server-settings.js";

/**
 * What the server remembers about its own slowness, for SLOWLOG and LATENCY, and MONITOR's live view of all commands.
 *
 * Every command passes here only while somebody runs MONITOR. Otherwise the connections tell about commands that can take long, by
 * their kind or their number of arguments; the durations of all the others are taken only when the threshold of the SLOWLOG asks
 * for them (a clock reading more for each command).
 *
 * Invariants:
 *  - every list is bounded: the SLOWLOG by its setting, arguments as in Redis, events and samples by the constants below
 *  - a password is never remembered or shown
 */

/** Redis's bounds of one SLOWLOG entry. */
const ENTRY_ARGUMENTS_MAX = 32;
const ENTRY_ARGUMENT_CHARACTERS_MAX = 128;
/** Redis's number of samples per latency event. */
const LATENCY_SAMPLES_MAX = 160;
/** Event names come from the code, not from clients; this is a fuse. */
const LATENCY_EVENTS_MAX = 64;
/** Below this the connections report a command only when asked to time all of them. */
const UNASKED_US_MIN = 1000;

export interface SlowlogEntry {
  readonly id: number;
  readonly unixSeconds: number;
  readonly durationUs: number;
  /** Cut as Redis cuts them. */
  readonly argv: readonly ByteString[];
  readonly clientAddress: string;
  readonly clientName: ByteString;
}

export interface LatencySample {
  readonly unixSeconds: number;
  readonly durationMs: number;
}

export interface LatencyEvent {
  readonly name: string;
  readonly latest: LatencySample;
  readonly maximumMs: number;
}

interface LatencyHistory {
  samples: LatencySample[];
  maximumMs: number;
}

export class Diagnostics implements CommandObserver {
  readonly #settings: RuntimeSettings;
  readonly #clock: Clock;
  readonly #monitors = new Set<ClientConnection>();
  /** Newest last. */
  #slowlog: SlowlogEntry[] = [];
  #slowlogIdNext = 0;
  readonly #latency = new Map<string, LatencyHistory>();

  constructor(settings: RuntimeSettings, clock: Clock) {
    this.#settings = settings;
    this.#clock = clock;
  }

  /** WRONGPASS since start, for INFO. */
  authenticationFailures = 0;

  // The connections' side ---------------------------------------------------------------------------------------------

  get watchesAll(): boolean {
    return this.#monitors.size > 0;
  }

  get timesAll(): boolean {
    const threshold = this.#settings.slowlogSlowerThanUs;
    return threshold >= 0 && threshold < UNASKED_US_MIN;
  }

  beforeCommand(
    spec: CommandSpec,
    argv: readonly ByteString[],
    connection: ClientConnection,
    isInScript = false,
  ): void {
    if (spec.secret === true) return;
    let message: EncodedOnce | null = null;
    for (const monitor of this.#monitors) {
      if (monitor.isClosed || !monitor.isMonitor) {
        this.#monitors.delete(monitor);
        continue;
      }
      message ??= new EncodedOnce(new StatusReply(this.#monitorLine(spec, argv, connection, isInScript)));
      monitor.push(message);
    }
  }

  afterTimedCommand(
    spec: CommandSpec,
    argv: readonly ByteString[],
    connection: ClientConnection,
    durationMs: number,
  ): void {
    const durationUs = Math.round(durationMs * 1000);
    const threshold = this.#settings.slowlogSlowerThanUs;
    if (threshold >= 0 && durationUs >= threshold && spec.secret !== true) {
      this.#log(redacted(spec, argv), connection, durationUs);
    }
    this.latency(spec.flags.includes("fast") ? "fast-command" : "command", durationMs);
  }

  #monitorLine(
    spec: CommandSpec,
    argv: readonly ByteString[],
    connection: ClientConnection,
    isInScript: boolean,
  ): ByteString {
    const unixMs = this.#clock.unixMs();
    const seconds = Math.floor(unixMs / 1000);
    const micros = String(Math.floor((unixMs - seconds * 1000) * 1000)).padStart(6, "0");
    const words = redacted(spec, argv).map(quotedStart).join(" ");
    return `${seconds}.${micros} [${connection.databaseIndex} ${isInScript ? "lua" : connection.remoteAddress}] ${words}`;
  }

  // MONITOR -----------------------------------------------------------------------------------------------------------

  addMonitor(connection: ClientConnection): void {
    connection.isMonitor = true;
    this.#monitors.add(connection);
  }

  removeMonitor(connection: ClientConnection): void {
    connection.isMonitor = false;
    this.#monitors.delete(connection);
  }

  // SLOWLOG -----------------------------------------------------------------------------------------------------------

  #log(argv: readonly ByteString[], connection: ClientConnection, durationUs: number): void {
    this.#slowlog.push({
      id: this.#slowlogIdNext,
      unixSeconds: Math.floor(this.#clock.unixMs() / 1000),
      durationUs,
      argv: cutArguments(argv),
      clientAddress: connection.remoteAddress,
      clientName: connection.name,
    });
    this.#slowlogIdNext += 1;
    this.#trimSlowlog();
  }

  #trimSlowlog(): void {
    const excess = this.#slowlog.length - this.#settings.slowlogEntriesMax;
    if (excess > 0) this.#slowlog.splice(0, excess);
  }

  /** Newest first, at most `count`. */
  slowlog(count: number): SlowlogEntry[] {
    this.#trimSlowlog();
    return this.#slowlog.slice(Math.max(0, this.#slowlog.length - count)).toReversed();
  }

  get slowlogLength(): number {
    this.#trimSlowlog();
    return this.#slowlog.length;
  }

  resetSlowlog(): void {
    this.#slowlog = [];
  }

  // LATENCY -----------------------------------------------------------------------------------------------------------

  /**
   * Remembers that `name` took `durationMs`, when that reaches the threshold of `latency-monitor-threshold`. One sample a second
   * and event: the longest.
   */
  latency(name: string, durationMs: number): void {
    const threshold = this.#settings.latencyThresholdMs;
    if (threshold === 0 || durationMs < threshold) return;
    let history = this.#latency.get(name);
    if (history === undefined) {
      if (this.#latency.size >= LATENCY_EVENTS_MAX) return;
      history = { samples: [], maximumMs: 0 };
      this.#latency.set(name, history);
    }
    const sample = { unixSeconds: Math.floor(this.#clock.unixMs() / 1000), durationMs: Math.floor(durationMs) };
    history.maximumMs = Math.max(history.maximumMs, sample.durationMs);
    const last = history.samples.at(-1);
    if (last?.unixSeconds === sample.unixSeconds) {
      if (sample.durationMs > last.durationMs) history.samples[history.samples.length - 1] = sample;
      return;
    }
    history.samples.push(sample);
    if (history.samples.length > LATENCY_SAMPLES_MAX) history.samples.shift();
  }

  latencyLatest(): LatencyEvent[] {
    const events: LatencyEvent[] = [];
    for (const [name, history] of this.#latency) {
      const latest = history.samples.at(-1);
      if (latest !== undefined) events.push({ name, latest, maximumMs: history.maximumMs });
    }
    return events;
  }

  latencyHistory(name: ByteString): readonly LatencySample[] {
    return this.#latency.get(name.toLowerCase())?.samples ?? [];
  }

  /** Forgets the events named, or all. Answers how many there were. */
  resetLatency(names: readonly ByteString[]): number {
    if (names.length === 0) {
      const count = this.#latency.size;
      this.#latency.clear();
      return count;
    }
    return names.filter((name) => this.#latency.delete(name.toLowerCase())).length;
  }
}

/** CONFIG SET may carry the password; everything else that carries one is `secret` as a whole. */
function redacted(spec: CommandSpec, argv: readonly ByteString[]): readonly ByteString[] {
  if (spec.name !== "config|set") return argv;
  return argv.map((argument, index) =>
    index > 0 && argv[index - 1]?.toLowerCase() === "requirepass" ? "(redacted)" : argument,
  );
}

function cutArguments(argv: readonly ByteString[]): ByteString[] {
  const shown = argv.length > ENTRY_ARGUMENTS_MAX ? ENTRY_ARGUMENTS_MAX - 1 : argv.length;
  const kept = argv.slice(0, shown).map((argument) => {
    const more = argument.length - ENTRY_ARGUMENT_CHARACTERS_MAX;
    return more > 0 ? `${argument.slice(0, ENTRY_ARGUMENT_CHARACTERS_MAX)}... (${more} more bytes)` : argument;
  });
  if (shown < argv.length) kept.push(`... (${argv.length - shown} more arguments)`);
  return kept;
}

const ESCAPES: Readonly<Record<string, string>> = {
  "\\": "\\\\",
  '"': '\\"',
  "\n": "\\n",
  "\r": "\\r",
  "\t": "\\t",
  "\u0007": "\\a",
  "\b": "\\b",
};

/** Quoting goes character by character: a megabyte of it would hold up everybody. */
const QUOTED_CHARACTERS_MAX = 4096;

/** As MONITOR quotes an argument; of a long one the beginning. */
function quotedStart(argument: ByteString): string {
  if (argument.length <= QUOTED_CHARACTERS_MAX) return quoted(argument);
  return `${quoted(argument.slice(0, QUOTED_CHARACTERS_MAX))}... (${argument.length - QUOTED_CHARACTERS_MAX} more bytes)`;
}

/** As MONITOR quotes an argument. */
function quoted(argument: ByteString): string {
  let shown = '"';
  for (const character of argument) {
    const code = character.charCodeAt(0);
    const printable = code >= 0x20 && code < 0x7f;
    shown += ESCAPES[character] ?? (printable ? character : `\\x${code.toString(16).padStart(2, "0")}`);
  }
  return `${shown}"`;
}
