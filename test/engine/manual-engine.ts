import type { Command, Expiry, KeyValue, LockMode, Origin } from "#src/engine/command.js";
import { checkInvariants, digest, Engine, type Decision } from "#src/engine/engine.js";
import { DEFAULT_ENGINE_LIMITS, EXPIRIES_PER_TURN_MAX, type EngineLimits } from "#src/engine/limits.js";
import type { Op } from "#src/engine/op.js";
import { ErrorReply, MapReply, StatusReply, type Reply } from "#src/engine/reply.js";

/** The engine under a manual clock. Deadlines are not padded unless a test asks for it, so that times are round. */
export class ManualEngine {
  engine: Engine;
  nowMs = 1_000;
  unixMs = 1_790_000_000_000;
  /** Every op since the beginning: what a store would have. */
  readonly log: Op[] = [];
  readonly #limits: EngineLimits;

  constructor(limits: Partial<EngineLimits> = {}) {
    this.#limits = { ...DEFAULT_ENGINE_LIMITS, clockErrorPerMille: 0, ...limits };
    this.engine = new Engine(this.#limits, "inc", testDigest);
  }

  decide(command: Command, origin: Origin = ORIGIN): Decision {
    return this.engine.decide(command, this, origin);
  }

  /** Answers of commands that waited, newest last, and the revision after which each may be given. */
  readonly woken: { readonly waitId: number; readonly reply: unknown; readonly revision: number }[] = [];

  apply(decision: Decision): void {
    this.#applyOne(decision);
    for (let next = this.engine.handOver(this); next !== null; next = this.engine.handOver(this)) this.#applyOne(next);
  }

  #applyOne(decision: Decision): void {
    this.log.push(...decision.ops);
    this.engine.apply(decision, this);
    const revision = decision.ops.length > 0 ? this.engine.state.revision : decision.sawRevision;
    for (const { waitId, reply } of decision.wakes) this.woken.push({ waitId, reply: plain(reply), revision });
  }

  /** The answers that came since the last call, in their order: `[wait, reply]`. */
  takeWoken(): [number, unknown][] {
    return this.woken.splice(0).map(({ waitId, reply }) => [waitId, reply]);
  }

  /** Runs a command that has to wait. Returns the name of its wait. */
  wait(command: Command, origin: Origin = ORIGIN): number {
    const { waits } = this.run(command, origin);
    if (waits === null) throw new Error("it does not wait");
    return waits.waitId;
  }

  run(command: Command, origin: Origin = ORIGIN): Decision {
    const decision = this.decide(command, origin);
    this.apply(decision);
    return decision;
  }

  reply(command: Command, origin: Origin = ORIGIN): Reply {
    return this.run(command, origin).reply;
  }

  /** Error replies as their text, maps as objects: easy to compare. */
  answer(command: Command, origin: Origin = ORIGIN): unknown {
    return plain(this.run(command, origin).reply);
  }

  advance(ms: number): void {
    this.nowMs += ms;
    this.unixMs += ms;
  }

  /** What the tick does until nothing is due: expires. Returns the ids of leases and names of plain keys that ended, in their order. */
  tick(): string[] {
    const ended: string[] = [];
    for (let round = 0; round < 100_000; round += 1) {
      const dueMs = this.engine.nextDueMs();
      if (dueMs === null || dueMs > this.nowMs) return ended;
      const due = this.engine.dueLeases(this.nowMs, EXPIRIES_PER_TURN_MAX);
      const decision = this.run({ kind: "lease-expire", ...due });
      for (const op of decision.ops) {
        if (op.kind === "lease-end") ended.push(op.id);
        if (op.kind === "string-end") ended.push(op.key);
      }
      const waitIds = this.engine.dueWaits(this.nowMs, EXPIRIES_PER_TURN_MAX);
      if (waitIds.length > 0) this.run({ kind: "wait-end", waitIds, reply: null });
      const dropped = this.engine.dropKeys(this);
      if (dropped !== null) this.apply(dropped);
      this.durable();
    }
    throw new Error("the tick finds no end");
  }

  /** Everything so far is durable, and swept. */
  durable(): void {
    this.engine.durable(this.engine.state.revision);
    while (!this.engine.sweepSome(1_000));
  }

  /** The process ends and another takes over from the log, its clock somewhere else. */
  restart(nowMs: number): void {
    const { revision } = this.engine.state;
    const before = digest(this.engine.state);
    this.engine = new Engine(this.#limits, "inc", testDigest);
    for (const op of this.log) this.engine.recover(op);
    this.engine.recoverRevision(revision);
    this.engine.finishRecovery();
    checkInvariants(this.engine.state);
    if (digest(this.engine.state) !== before) throw new Error("recovery made another state");
    this.nowMs = nowMs;
    this.engine.beginRebuild(this);
    while (!this.engine.rebuildSome(3));
  }
}

/** Stands for a hash function. */
export const testDigest = (value: string): string => value.length.toString(16).padStart(16, "0");

export const ORIGIN: Origin = { databaseIndex: 0, owner: "worker-1 127.0.0.1:50123" };

export const inDatabase = (databaseIndex: number): Origin => ({ ...ORIGIN, databaseIndex });

/** Replies without their classes. */
export function plain(reply: Reply): unknown {
  if (reply instanceof ErrorReply) return reply.text;
  if (reply instanceof StatusReply) return `+${reply.text}`;
  if (Array.isArray(reply)) return reply.map((item) => plain(item));
  if (reply instanceof MapReply) return Object.fromEntries(reply.pairs.map(([name, value]) => [name, plain(value)]));
  return reply;
}

export const pairs = (keys: Record<string, string>): KeyValue[] =>
  Object.entries(keys).map(([key, value]) => ({ key, value }));

interface GrantOptions {
  readonly keys?: Record<string, string>;
  readonly label?: string;
  readonly request?: string;
}

export const grant = (id: string | null, ttlMs: number, options: GrantOptions = {}): Command => ({
  kind: "lease-grant",
  id,
  ttlMs,
  keys: pairs(options.keys ?? {}),
  label: options.label ?? null,
  request: options.request ?? null,
});

export const keepAlive = (id: string): Command => ({ kind: "lease-keepalive", id });
export const keepAliveMany = (...ids: string[]): Command => ({ kind: "lease-keepalive-many", ids });
export const revoke = (...ids: string[]): Command => ({ kind: "lease-revoke", ids });
export const ttl = (id: string): Command => ({ kind: "lease-ttl", id, unit: "s" });
export const pttl = (id: string): Command => ({ kind: "lease-ttl", id, unit: "ms" });
export const setTtl = (id: string, ttlMs: number): Command => ({ kind: "lease-setttl", id, ttlMs });
export const attach = (id: string, key: string, value = "v", force = false): Command => ({
  kind: "lease-attach",
  id,
  key,
  value,
  force,
});
export const detach = (id: string, ...keys: string[]): Command => ({ kind: "lease-detach", id, keys });
export const info = (id: string): Command => ({ kind: "lease-info", id });
export const expire = (...ids: string[]): Command => ({ kind: "lease-expire", ids, keys: [] });
export const scanLeases = (cursor: number, count = 10, match: string | null = null): Command => ({
  kind: "lease-scan",
  cursor,
  count,
  match,
});
export const get = (key: string): Command => ({ kind: "key-get", key });
export const exists = (...keys: string[]): Command => ({ kind: "key-exists", keys });
export const del = (...keys: string[]): Command => ({ kind: "key-delete", keys });
export const type = (key: string): Command => ({ kind: "key-type", key });
export const keyTtl = (key: string): Command => ({ kind: "key-ttl", key, unit: "s" });
export const keyPttl = (key: string): Command => ({ kind: "key-ttl", key, unit: "ms" });
export const list = (pattern = "*"): Command => ({ kind: "key-list", pattern });
export const scan = (
  cursor: number,
  count = 10,
  match: string | null = null,
  ofType: string | null = null,
): Command => ({
  kind: "key-scan",
  cursor,
  count,
  match,
  type: ofType,
});
export const COUNT: Command = { kind: "key-count" };
export const random = (fraction: number): Command => ({ kind: "key-random", fraction });
export const FLUSH_DATABASE: Command = { kind: "flush-database" };
export const FLUSH_ALL: Command = { kind: "flush-all" };

// Strings -----------------------------------------------------------------------------------------------------------

export type StringSet = Extract<Command, { kind: "string-set" }>;

export const NONE: Expiry = { kind: "none" };
export const KEEP: Expiry = { kind: "keep" };
export const inMs = (ttlMs: number): Expiry => ({ kind: "in", ttlMs });
export const atMs = (unixMs: number): Expiry => ({ kind: "at", unixMs });

export const set = (key: string, value: string, options: Partial<StringSet> = {}): Command => ({
  kind: "string-set",
  key,
  value,
  condition: { kind: "always" },
  returnsFormer: false,
  expiry: NONE,
  answer: "ok",
  ...options,
});
export const setPx = (key: string, value: string, ttlMs: number): Command => set(key, value, { expiry: inMs(ttlMs) });
export const setNx = (key: string, value: string, ttlMs: number): Command =>
  set(key, value, { expiry: inMs(ttlMs), condition: { kind: "nx" } });
export const pexpire = (key: string, ttlMs: number, condition: ExpireCondition = "always"): Command => ({
  kind: "key-expire",
  key,
  expiry: inMs(ttlMs),
  condition,
});
export type ExpireCondition = Extract<Command, { kind: "key-expire" }>["condition"];
export const persist = (key: string): Command => ({ kind: "key-persist", key });

// Locks -------------------------------------------------------------------------------------------------------------

export const SHARED: LockMode = { kind: "shared" };
export const EXCLUSIVE: LockMode = { kind: "exclusive" };
export const limit = (permits: number): LockMode => ({ kind: "limit", permits });

interface AcquireOptions {
  readonly mode?: LockMode;
  readonly value?: string;
  readonly blockMs?: number | null;
}

export const acquire = (key: string, id: string, options: AcquireOptions = {}): Command => ({
  kind: "lock-acquire",
  key,
  id,
  value: options.value ?? null,
  mode: options.mode ?? EXCLUSIVE,
  blockMs: options.blockMs ?? null,
});
/** Waits for ever unless it is told how long. */
export const block = (key: string, id: string, options: AcquireOptions = {}): Command =>
  acquire(key, id, { blockMs: 0, ...options });
export const release = (key: string, id: string, token: number | null = null): Command => ({
  kind: "lock-release",
  key,
  id,
  token,
});
export const lockInfo = (key: string): Command => ({ kind: "lock-info", key });
export const check = (key: string, token: number): Command => ({ kind: "lock-check", key, token });
export const endWait = (...waitIds: number[]): Command => ({ kind: "wait-end", waitIds, reply: null });

/** Text of a NOLEASE error for an id. */
export const noLease = (id: string): string => `NOLEASE no live lease '${id}'`;
