import type { Command, Expiry, LockMode, Origin, SetCondition } from "#src/engine/command.js";
import { testDigest } from "./manual-engine.js";

/**
 * What the rules say, written as plainly as possible and apart from the engine: a list of holds, a list of those who wait, every
 * question answered by a walk over all of it, time compared at every look. Answers a command with the reply that the engine
 * has to give; where the engine is free (tokens, server-chosen ids, order of lists, which of several keys is handed on first) the
 * model takes the engine's choice and checks what holds of it.
 *
 * A plain key with a TTL is a lease of its own here too, under an id that no client can name.
 */

export interface ModelLease {
  readonly id: string;
  durableTtlMs: number;
  ttlMs: number;
  /** Dead from here on for certain. */
  deadAtMs: number;
  /** Alive before this for certain; earlier than `deadAtMs` only after a take-over, which may spread deadlines. */
  aliveUntilMs: number;
  token: number;
  readonly nonce: string | null;
  readonly isIdChosen: boolean;
  readonly firstTtlMs: number;
  isOnGrace: boolean;
}

/** One holder of one key. */
export interface ModelHold {
  readonly databaseIndex: number;
  readonly key: string;
  /** null: a plain key without a TTL. */
  readonly leaseId: string | null;
  readonly value: string;
  readonly token: number;
  readonly mode: LockMode;
}

/** A place in a queue. */
interface ModelPlace {
  readonly name: string;
  readonly leaseId: string;
  readonly mode: LockMode;
  value: string | null;
  readonly asks: { readonly waitId: number; readonly deadlineMs: number }[];
}

/** A number that the model knows within bounds only, both included. */
export class Between {
  readonly least: number;
  readonly most: number;
  constructor(least: number, most: number) {
    this.least = least;
    this.most = most;
  }
}

/** The command has to wait. */
export const WAITS = Symbol("waits");

const EXCLUSIVE: LockMode = { kind: "exclusive" };

const nameOf = (databaseIndex: number, key: string): string => `${databaseIndex} ${key}`;
const plainId = (name: string): string => `\0plain ${name}`;
export const isPlainId = (id: string | null): boolean => id === null || id.startsWith("\0plain ");

type StringCommand = Extract<Command, { kind: `string-${string}` | "key-expire" | "key-persist" }>;

const isStringCommand = (command: Command): command is StringCommand =>
  command.kind.startsWith("string-") || command.kind === "key-expire" || command.kind === "key-persist";

type CommandOf<K extends Command["kind"]> = Extract<Command, { kind: K }>;

export class ReferenceModel {
  readonly leases = new Map<string, ModelLease>();
  /** In the order in which their holders came. */
  holds: ModelHold[] = [];
  /** In the order of their coming, all keys. */
  places: ModelPlace[] = [];
  /** Commands of leases that are dead, still to be told so. */
  readonly owed = new Map<number, string>();
  /** By lease id and by key name: the revision of the newest change, ends included; kept for ever. */
  readonly leaseChangedAt = new Map<string, number>();
  readonly keyChangedAt = new Map<string, number>();
  /** Leases whose time is over, with their keys, that the disk still has: a crash brings them back for a full TTL. */
  readonly limbo = new Map<string, { readonly lease: ModelLease; readonly holds: readonly ModelHold[] }>();
  readonly clockErrorPerMille: number;
  nowMs = 0;
  unixMs = 0;

  constructor(clockErrorPerMille: number) {
    this.clockErrorPerMille = clockErrorPerMille;
  }

  /** What a crash leaves of it: waiters do not survive. */
  clone(): ReferenceModel {
    const copy = new ReferenceModel(this.clockErrorPerMille);
    for (const [id, lease] of this.leases) copy.leases.set(id, { ...lease });
    copy.holds = [...this.holds];
    for (const [id, revision] of this.leaseChangedAt) copy.leaseChangedAt.set(id, revision);
    for (const [name, revision] of this.keyChangedAt) copy.keyChangedAt.set(name, revision);
    for (const [id, { lease, holds }] of this.limbo) copy.limbo.set(id, { lease: { ...lease }, holds });
    copy.nowMs = this.nowMs;
    return copy;
  }

  lifeMs(ttlMs: number): number {
    return ttlMs + Math.ceil((ttlMs * this.clockErrorPerMille) / 1_000);
  }

  changedAtOfKey(databaseIndex: number, key: string): number {
    return this.keyChangedAt.get(nameOf(databaseIndex, key)) ?? 0;
  }

  /** Leases whose end by time cannot be told from here: a take-over may have given them a little more. */
  uncertain(): ModelLease[] {
    return [...this.leases.values()].filter((lease) => lease.aliveUntilMs <= this.nowMs && this.nowMs < lease.deadAtMs);
  }

  /** Leases past their deadline are absent with their keys, though nothing is written about it yet. */
  dropDead(): void {
    for (const lease of this.leases.values()) {
      if (this.nowMs < lease.deadAtMs) continue;
      const holds = this.holds.filter((hold) => hold.leaseId === lease.id);
      this.leases.delete(lease.id);
      this.holds = this.holds.filter((hold) => hold.leaseId !== lease.id);
      this.limbo.set(lease.id, { lease, holds });
      this.#leaveQueues(lease.id);
    }
  }

  /** The end of such a lease is written under this revision. */
  writeDead(id: string, revision: number): void {
    const dead = this.limbo.get(id);
    if (dead === undefined) return;
    this.limbo.delete(id);
    if (!isPlainId(id)) this.leaseChangedAt.set(id, revision);
    for (const hold of dead.holds) this.keyChangedAt.set(nameOf(hold.databaseIndex, hold.key), revision);
  }

  /** The same for a plain key. */
  writeDeadKey(databaseIndex: number, key: string, revision: number): void {
    this.writeDead(plainId(nameOf(databaseIndex, key)), revision);
  }

  endLease(id: string, revision: number): void {
    this.leases.delete(id);
    if (!isPlainId(id)) this.leaseChangedAt.set(id, revision);
    for (const hold of this.holds) {
      if (hold.leaseId === id) this.keyChangedAt.set(nameOf(hold.databaseIndex, hold.key), revision);
    }
    this.holds = this.holds.filter((hold) => hold.leaseId !== id);
    this.#leaveQueues(id);
  }

  /** After a take-over at `nowMs`: everything durable lives for its full durable TTL, and up to a tenth longer. */
  takeOver(nowMs: number): void {
    this.nowMs = nowMs;
    for (const { lease, holds } of this.limbo.values()) {
      this.leases.set(lease.id, lease);
      this.holds.push(...holds);
    }
    this.holds.sort((a, b) => a.token - b.token);
    this.limbo.clear();
    for (const lease of this.leases.values()) {
      lease.ttlMs = lease.durableTtlMs;
      lease.aliveUntilMs = nowMs + this.lifeMs(lease.ttlMs);
      lease.deadAtMs = lease.aliveUntilMs + lease.ttlMs / 10;
      lease.isOnGrace = true;
    }
  }

  /** Lines as the engine's digest has them: what is durable, without the dead. */
  durableText(): string {
    const lines: string[] = [];
    for (const { id, durableTtlMs, token } of this.leases.values()) {
      if (!isPlainId(id)) lines.push(`lease ${id} ${durableTtlMs} ${token}`);
    }
    for (const { databaseIndex, key, leaseId, value, token, mode } of this.holds) {
      if (leaseId === null || isPlainId(leaseId)) {
        const ttlMs = leaseId === null ? null : this.leases.get(leaseId)?.durableTtlMs;
        lines.push(`string ${databaseIndex} ${key} ${value} ${token} ${ttlMs}`);
      } else {
        const shown = mode.kind === "exclusive" ? "" : ` ${JSON.stringify(mode)}`;
        lines.push(`key ${databaseIndex} ${key} ${leaseId} ${value} ${token}${shown}`);
      }
    }
    return lines.toSorted().join("\n");
  }

  // Look-ups --------------------------------------------------------------------------------------------------------

  #holders(name: string): ModelHold[] {
    return this.holds.filter((hold) => nameOf(hold.databaseIndex, hold.key) === name);
  }

  /** The first holder. */
  #first(name: string): ModelHold | null {
    return this.#holders(name)[0] ?? null;
  }

  #value(origin: Origin, key: string): string | null {
    return this.#first(nameOf(origin.databaseIndex, key))?.value ?? null;
  }

  #keysOf(databaseIndex: number): string[] {
    return [...new Set(this.holds.filter((hold) => hold.databaseIndex === databaseIndex).map((hold) => hold.key))];
  }

  #remaining(lease: ModelLease, unitMs: number): Between {
    const left = (untilMs: number): number => {
      const shownMs = untilMs - (this.lifeMs(lease.ttlMs) - lease.ttlMs) - this.nowMs;
      return Math.floor(Math.max(0, Math.floor(Math.min(lease.ttlMs, shownMs))) / unitMs);
    };
    return new Between(left(lease.aliveUntilMs), left(lease.deadAtMs));
  }

  /** Never to an earlier time. */
  #renew(lease: ModelLease, ttlMs = lease.ttlMs): void {
    const untilMs = this.nowMs + this.lifeMs(ttlMs);
    lease.deadAtMs = Math.max(lease.deadAtMs, untilMs);
    lease.aliveUntilMs = Math.max(lease.aliveUntilMs, untilMs);
    lease.isOnGrace = false;
  }

  #restart(lease: ModelLease, ttlMs: number): void {
    lease.ttlMs = ttlMs;
    lease.deadAtMs = lease.aliveUntilMs = this.nowMs + this.lifeMs(ttlMs);
    lease.isOnGrace = false;
  }

  // Changes ---------------------------------------------------------------------------------------------------------

  #touch(name: string, revision: number): void {
    this.keyChangedAt.set(name, revision);
  }

  #hold(origin: Origin, key: string, rest: Omit<ModelHold, "databaseIndex" | "key">, revision: number): void {
    this.holds.push({ databaseIndex: origin.databaseIndex, key, ...rest });
    this.#touch(nameOf(origin.databaseIndex, key), revision);
  }

  /** All who hold the key let it go. */
  #drop(name: string, revision: number): void {
    if (this.#holders(name).length > 0) this.#touch(name, revision);
    this.holds = this.holds.filter((hold) => nameOf(hold.databaseIndex, hold.key) !== name);
    this.leases.delete(plainId(name));
  }

  #dropHold(hold: ModelHold, revision: number): void {
    this.holds = this.holds.filter((other) => other !== hold);
    this.#touch(nameOf(hold.databaseIndex, hold.key), revision);
  }

  #changeValue(hold: ModelHold, value: string, revision: number): void {
    this.holds[this.holds.indexOf(hold)] = { ...hold, value };
    this.#touch(nameOf(hold.databaseIndex, hold.key), revision);
  }

  #newLease(id: string, ttlMs: number, token: number, nonce: string | null, isIdChosen: boolean): ModelLease {
    const untilMs = this.nowMs + this.lifeMs(ttlMs);
    const lease: ModelLease = {
      id,
      durableTtlMs: ttlMs,
      ttlMs,
      deadAtMs: untilMs,
      aliveUntilMs: untilMs,
      token,
      nonce,
      isIdChosen,
      firstTtlMs: ttlMs,
      isOnGrace: false,
    };
    this.leases.set(id, lease);
    return lease;
  }

  #leaveQueues(leaseId: string): void {
    for (const place of this.places) {
      if (place.leaseId === leaseId) for (const { waitId } of place.asks) this.owed.set(waitId, leaseId);
    }
    this.places = this.places.filter((place) => place.leaseId !== leaseId);
  }

  // Commands --------------------------------------------------------------------------------------------------------

  /**
   * Carries out a command at `nowMs` and returns the reply that it must have. `revision`: what the engine gave to this command.
   * `chosenId`: the id that the engine chose, if it did. `waitId`: the name of its wait, if it waits.
   */
  run(command: Command, origin: Origin, revision: number, chosenId: string | null, waitId: number): unknown {
    if (isStringCommand(command)) return this.#runString(command, origin, revision);
    const name = "key" in command ? nameOf(origin.databaseIndex, command.key) : "";
    switch (command.kind) {
      case "lease-grant":
        return this.#grant(command, origin, revision, chosenId);
      case "lease-keepalive": {
        const lease = this.leases.get(command.id);
        if (lease === undefined) return "NOLEASE";
        this.#renew(lease);
        return lease.ttlMs;
      }
      case "lease-keepalive-many":
        return command.ids.map((id) => {
          const lease = this.leases.get(id);
          if (lease === undefined) return -2;
          this.#renew(lease);
          return lease.ttlMs;
        });
      case "lease-revoke": {
        const alive = new Set(command.ids.filter((id) => this.leases.has(id)));
        for (const id of alive) this.endLease(id, revision);
        return alive.size;
      }
      case "lease-ttl": {
        const lease = this.leases.get(command.id);
        return lease === undefined ? -2 : this.#inUnit(lease, command.unit);
      }
      case "lease-setttl":
        return this.#setTtl(command.id, command.ttlMs, revision);
      case "lease-attach":
        return this.#attach(command, origin, revision);
      case "lease-detach": {
        if (!this.leases.has(command.id)) return "NOLEASE";
        const held = this.holds.filter(
          (hold) =>
            hold.leaseId === command.id &&
            hold.databaseIndex === origin.databaseIndex &&
            command.keys.includes(hold.key),
        );
        for (const hold of held) this.#dropHold(hold, revision);
        return held.length;
      }
      case "lease-info":
        return this.#info(command.id, origin);
      case "lease-scan":
        return [...this.leases.keys()].filter((id) => !isPlainId(id));
      case "key-get":
        return this.#value(origin, command.key);
      case "key-exists":
        return command.keys.filter((key) => this.#value(origin, key) !== null).length;
      case "key-delete": {
        const there = new Set(command.keys.filter((key) => this.#value(origin, key) !== null));
        for (const key of there) this.#drop(nameOf(origin.databaseIndex, key), revision);
        return there.size;
      }
      case "key-type":
        return this.#first(name) === null ? "+none" : "+string";
      case "key-ttl": {
        const hold = this.#first(name);
        if (hold === null) return -2;
        return hold.leaseId === null ? -1 : this.#inUnit(this.leases.get(hold.leaseId)!, command.unit);
      }
      case "key-list":
      case "key-scan":
      case "key-random":
        return this.#keysOf(origin.databaseIndex);
      case "key-count":
        return this.#keysOf(origin.databaseIndex).length;
      case "lock-acquire":
        return this.#acquire(command, origin, revision, waitId);
      case "lock-release": {
        const own = this.leases.has(command.id) ? this.#holdOf(name, command.id) : null;
        if (own === null || (command.token !== null && command.token !== own.token)) return 0;
        this.#dropHold(own, revision);
        return 1;
      }
      case "lock-check":
        return this.#holders(name).some((hold) => hold.token === command.token) ? 1 : 0;
      case "lock-info":
        return this.#lockInfo(name);
      case "flush-database":
        return this.#flushDatabase(origin.databaseIndex, revision);
      case "flush-all":
        for (const { databaseIndex, key } of this.holds) this.#touch(nameOf(databaseIndex, key), revision);
        this.holds = [];
        for (const id of this.leases.keys()) this.endLease(id, revision);
        for (const id of this.limbo.keys()) this.writeDead(id, revision);
        return "+OK";
      case "lease-expire":
      case "wait-end":
      case "key-expire-time":
      case "script-load":
      case "script-get":
      case "script-exists":
      case "script-flush":
        return null;
    }
  }

  #inUnit(lease: ModelLease, unit: "s" | "ms"): Between {
    return this.#remaining(lease, unit === "ms" ? 1 : 1_000);
  }

  #grant(command: CommandOf<"lease-grant">, origin: Origin, revision: number, chosenId: string | null): unknown {
    const { id, ttlMs, keys, request } = command;
    if (new Set(keys.map(({ key }) => key)).size < keys.length) return "ERR";
    const alive =
      id === null
        ? [...this.leases.values()].find((lease) => request !== null && lease.isIdChosen && lease.nonce === request)
        : this.leases.get(id);
    if (alive !== undefined) {
      if (request === null || alive.nonce !== request) return "LEASEEXISTS";
      this.#renew(alive, Math.max(alive.ttlMs, alive.firstTtlMs));
      return [alive.id, alive.firstTtlMs, alive.token];
    }
    if (keys.some(({ key }) => this.#value(origin, key) !== null)) return null;
    const name = id ?? chosenId ?? "no id chosen";
    this.#newLease(name, ttlMs, revision, request, id === null);
    this.leaseChangedAt.set(name, revision);
    for (const { key, value } of keys) {
      this.#hold(origin, key, { leaseId: name, value, token: revision, mode: EXCLUSIVE }, revision);
    }
    return [name, ttlMs, revision];
  }

  #setTtl(id: string, ttlMs: number, revision: number): unknown {
    const lease = this.leases.get(id);
    if (lease === undefined) return "NOLEASE";
    if (ttlMs > lease.durableTtlMs) {
      lease.durableTtlMs = ttlMs;
      this.leaseChangedAt.set(id, revision);
    }
    this.#restart(lease, ttlMs);
    return ttlMs;
  }

  #attach(command: CommandOf<"lease-attach">, origin: Origin, revision: number): unknown {
    const { id, key, value, force } = command;
    const name = nameOf(origin.databaseIndex, key);
    if (!this.leases.has(id)) return "NOLEASE";
    const held = this.#first(name);
    if (held !== null && held.leaseId === id && held.mode.kind === "exclusive") {
      if (held.value !== value) this.#changeValue(held, value, revision);
      return held.token;
    }
    if (held !== null && !force) return null;
    this.#drop(name, revision);
    this.#hold(origin, key, { leaseId: id, value, token: revision, mode: EXCLUSIVE }, revision);
    return revision;
  }

  #info(id: string, origin: Origin): unknown {
    const lease = this.leases.get(id);
    if (lease === undefined) return "ended or nil";
    const held = this.holds.filter((hold) => hold.leaseId === id);
    return {
      id,
      state: "live",
      ttl: lease.ttlMs,
      remaining: this.#remaining(lease, 1),
      token: lease.token,
      grace: lease.isOnGrace ? 1 : 0,
      keys: held.filter((hold) => hold.databaseIndex === origin.databaseIndex).map((hold) => hold.key),
      "keys-total": held.length,
    };
  }

  #flushDatabase(databaseIndex: number, revision: number): string {
    for (const name of this.#keysOf(databaseIndex)) this.#drop(nameOf(databaseIndex, name), revision);
    for (const [id, { lease, holds }] of this.limbo) {
      for (const hold of holds) {
        if (hold.databaseIndex === databaseIndex) this.#touch(nameOf(databaseIndex, hold.key), revision);
      }
      const left = holds.filter((hold) => hold.databaseIndex !== databaseIndex);
      if (isPlainId(id) && left.length === 0) this.limbo.delete(id);
      else this.limbo.set(id, { lease, holds: left });
    }
    return "+OK";
  }

  // Strings ---------------------------------------------------------------------------------------------------------

  #runString(command: StringCommand, origin: Origin, revision: number): unknown {
    if (command.kind === "string-set-many") return this.#setMany(command, origin, revision);
    if (command.kind === "string-get-many") return command.keys.map((key) => this.#value(origin, key));
    const { key } = command;
    const name = nameOf(origin.databaseIndex, key);
    const held = this.#first(name);
    const value = held?.value ?? null;
    const change = (changed: string): void => {
      if (held !== null) this.#changeValue(held, changed, revision);
      else this.#hold(origin, key, { leaseId: null, value: changed, token: revision, mode: EXCLUSIVE }, revision);
    };
    switch (command.kind) {
      case "string-set": {
        const wantsFormer = command.returnsFormer || command.answer === "former";
        if (!isMet(command.condition, value)) return wantsFormer ? value : command.answer === "one" ? 0 : null;
        this.#set(origin, key, command.value, command.expiry, revision, true);
        return wantsFormer ? value : command.answer === "one" ? 1 : "+OK";
      }
      case "string-get-delete":
        this.#drop(name, revision);
        return value;
      case "string-get-expire":
        if (held === null || command.expiry.kind === "keep") return value;
        if (!isPlainId(held.leaseId)) return "LEASED";
        if (command.expiry.kind === "none") this.#persist(name, revision);
        else this.#expire(name, this.#ttl(command.expiry), revision);
        return value;
      case "string-delete-if":
        if (held === null || !isMet(command.condition, value)) return 0;
        this.#drop(name, revision);
        return 1;
      case "string-length":
        return (value ?? "").length;
      case "string-append":
        change((value ?? "") + command.value);
        return (value ?? "").length + command.value.length;
      case "string-increment": {
        if (!/^-?\d+$/.test(value ?? "0")) return "ERR";
        const sum = BigInt(value ?? "0") + command.by;
        change(String(sum));
        return Number(sum);
      }
      case "key-expire":
        return this.#expireIf(command, held, name, revision);
      case "key-persist":
        if (held === null) return 0;
        return isPlainId(held.leaseId) ? this.#persist(name, revision) : "LEASED";
      case "string-get-range":
      case "string-set-range":
      case "string-increment-float":
      case "string-digest":
        throw new Error(`the model does not know ${command.kind}`);
    }
  }

  #setMany(command: CommandOf<"string-set-many">, origin: Origin, revision: number): unknown {
    const isThere = command.pairs.map(({ key }) => this.#value(origin, key) !== null);
    if (command.condition === "if-none" && isThere.includes(true)) return 0;
    if (command.condition === "if-all" && isThere.includes(false)) return 0;
    const values = new Map(command.pairs.map(({ key, value }) => [key, value]));
    for (const [key, value] of values) this.#set(origin, key, value, command.expiry, revision, false);
    return command.answer === "one" ? 1 : "+OK";
  }

  #ttl(expiry: Extract<Expiry, { kind: "in" | "at" }>): number {
    return expiry.kind === "in" ? expiry.ttlMs : expiry.unixMs - this.unixMs;
  }

  #set(origin: Origin, key: string, value: string, expiry: Expiry, revision: number, mayRenew: boolean): void {
    const name = nameOf(origin.databaseIndex, key);
    const held = this.#first(name);
    if (expiry.kind === "keep" && held !== null) {
      this.#changeValue(held, value, revision);
      return;
    }
    const ttlMs = expiry.kind === "in" || expiry.kind === "at" ? this.#ttl(expiry) : null;
    const life = this.leases.get(plainId(name));
    if (mayRenew && ttlMs !== null && ttlMs > 0 && life !== undefined && held?.value === value) {
      if (ttlMs <= life.durableTtlMs) {
        this.#restart(life, ttlMs);
        return;
      }
    }
    this.#drop(name, revision);
    if (ttlMs !== null && ttlMs <= 0) return;
    const leaseId = ttlMs === null ? null : this.#newLease(plainId(name), ttlMs, revision, null, false).id;
    this.#hold(origin, key, { leaseId, value, token: revision, mode: EXCLUSIVE }, revision);
  }

  #expireIf(
    { condition, expiry }: CommandOf<"key-expire">,
    held: ModelHold | null,
    name: string,
    revision: number,
  ): unknown {
    if (held === null || expiry.kind === "keep" || expiry.kind === "none") return 0;
    if (!isPlainId(held.leaseId)) return "LEASED";
    const ttlMs = this.#ttl(expiry);
    const life = this.leases.get(plainId(name));
    const left = life === undefined ? new Between(Infinity, Infinity) : this.#remaining(life, 1);
    if (condition.includes("nx") && life !== undefined) return 0;
    if (condition.includes("xx") && life === undefined) return 0;
    // Between the bounds of a grace the model does not know; the generator keeps away from there.
    if (condition.includes("gt") && ttlMs <= left.least) return 0;
    if (condition.includes("lt") && ttlMs >= left.most) return 0;
    this.#expire(name, ttlMs, revision);
    return 1;
  }

  #expire(name: string, ttlMs: number, revision: number): void {
    if (ttlMs <= 0) {
      this.#drop(name, revision);
      return;
    }
    const life = this.leases.get(plainId(name));
    if (life === undefined) {
      const lease = this.#newLease(plainId(name), ttlMs, revision, null, false);
      this.holds = this.holds.map((hold) =>
        nameOf(hold.databaseIndex, hold.key) === name ? { ...hold, leaseId: lease.id } : hold,
      );
      this.#touch(name, revision);
      return;
    }
    if (ttlMs > life.durableTtlMs) {
      life.durableTtlMs = ttlMs;
      this.#touch(name, revision);
    }
    this.#restart(life, ttlMs);
  }

  #persist(name: string, revision: number): number {
    if (!this.leases.delete(plainId(name))) return 0;
    this.holds = this.holds.map((hold) =>
      nameOf(hold.databaseIndex, hold.key) === name ? { ...hold, leaseId: null } : hold,
    );
    this.#touch(name, revision);
    return 1;
  }

  // Locks -----------------------------------------------------------------------------------------------------------

  #holdOf(name: string, leaseId: string): ModelHold | null {
    return this.#holders(name).find((hold) => hold.leaseId === leaseId) ?? null;
  }

  #queue(name: string): ModelPlace[] {
    return this.places.filter((place) => place.name === name);
  }

  #acquire(command: CommandOf<"lock-acquire">, origin: Origin, revision: number, waitId: number): unknown {
    const { id, key, mode, value, blockMs } = command;
    const name = nameOf(origin.databaseIndex, key);
    if (!this.leases.has(id)) return "NOLEASE";
    const own = this.#holdOf(name, id);
    if (own !== null) {
      if (!isSame(own.mode, mode)) return "WRONGMODE";
      if (value !== null && value !== own.value) this.#changeValue(own, value, revision);
      return own.token;
    }
    const queue = this.#queue(name);
    const place = queue.find(({ leaseId }) => leaseId === id);
    if (place !== undefined && !isSame(place.mode, mode)) return "WRONGMODE";
    const fit = this.#fit(name, mode);
    if (fit === "other") return "WRONGMODE";
    if (fit === "fits" && (queue.length === 0 || queue[0] === place)) {
      this.#hold(origin, key, { leaseId: id, value: value ?? id, token: revision, mode }, revision);
      return revision;
    }
    if (blockMs === null) return null;
    if (place === undefined && this.#closesCycle(id, name, mode)) return "DEADLOCK";
    const ask = { waitId, deadlineMs: blockMs === 0 ? Infinity : this.nowMs + blockMs };
    if (place === undefined) {
      this.places.push({ name, leaseId: id, mode, value, asks: [ask] });
    } else {
      place.value = value;
      place.asks.push(ask);
    }
    return WAITS;
  }

  #fit(name: string, mode: LockMode): "fits" | "held" | "other" {
    const present = this.#holders(name);
    const first = present[0];
    if (first === undefined) return "fits";
    if (isPlainId(first.leaseId)) return "held";
    if (mode.kind === "limit" || first.mode.kind === "limit") {
      if (!isSame(mode, first.mode)) return "other";
      return mode.kind === "limit" && present.length < mode.permits ? "fits" : "held";
    }
    return mode.kind === "shared" && first.mode.kind === "shared" ? "fits" : "held";
  }

  /** Would the lease, waiting for this key behind all who wait already, wait for itself? */
  #closesCycle(start: string, name: string, mode: LockMode): boolean {
    const seen = new Set<string>();
    const waitsForStart = (key: string, asMode: LockMode, before: readonly ModelPlace[]): boolean => {
      const others = [
        ...this.#holders(key).filter((hold) => hold.leaseId !== null && !isPlainId(hold.leaseId)),
        ...before,
      ].filter((other) => hasToWait(asMode, other.mode));
      return others.some((other) => other.leaseId === start || (other.leaseId !== null && reaches(other.leaseId)));
    };
    const reaches = (leaseId: string): boolean => {
      if (seen.has(leaseId)) return false;
      seen.add(leaseId);
      return this.places
        .filter((place) => place.leaseId === leaseId)
        .some((place) => {
          const queue = this.#queue(place.name);
          return waitsForStart(place.name, place.mode, queue.slice(0, queue.indexOf(place)));
        });
    };
    return waitsForStart(name, mode, this.#queue(name));
  }

  #lockInfo(name: string): unknown {
    const held = this.#holders(name);
    const queue = this.#queue(name);
    if (held.length === 0 && queue.length === 0) return null;
    return {
      holders: held.map(({ leaseId, token, value }) => ({ id: isPlainId(leaseId) ? null : leaseId, token, value })),
      "holders-total": held.length,
      waiters: queue.map(({ leaseId, mode }, index) => ({ id: leaseId, mode: mode.kind, position: index + 1 })),
    };
  }

  // What the engine tells those who wait -----------------------------------------------------------------------------

  /** A waiting command is told that its lease is dead. */
  takeOwed(waitId: number): string {
    const leaseId = this.owed.get(waitId);
    if (leaseId === undefined) throw new Error(`${waitId} is told that its lease is dead, and it is not`);
    this.owed.delete(waitId);
    return leaseId;
  }

  /** A command leaves its queue without the key. */
  endWait(waitId: number): void {
    if (this.owed.delete(waitId)) return;
    const place = this.places.find(({ asks }) => asks.some((ask) => ask.waitId === waitId));
    if (place === undefined) throw new Error(`${waitId} does not wait`);
    place.asks.splice(
      place.asks.findIndex((ask) => ask.waitId === waitId),
      1,
    );
    if (place.asks.length === 0) this.places = this.places.filter((other) => other !== place);
  }

  waits(waitId: number): boolean {
    return this.owed.has(waitId) || this.places.some(({ asks }) => asks.some((ask) => ask.waitId === waitId));
  }

  /**
   * The engine gave the place of this command the key under `token`, newly or because its lease had it already. Returns all commands of
   * the place: each must have been told.
   */
  grantPlace(waitId: number, token: number, revision: number): number[] {
    const place = this.places.find(({ asks }) => asks.some((ask) => ask.waitId === waitId));
    if (place === undefined) throw new Error(`${waitId} does not wait`);
    if (this.#queue(place.name)[0] !== place) throw new Error(`${waitId} is not the first in its queue`);
    const own = this.#holdOf(place.name, place.leaseId);
    if (own === null) {
      if (this.#fit(place.name, place.mode) !== "fits") throw new Error(`${waitId} gets a key that is held`);
      const [databaseIndex, key] = place.name.split(" ") as [string, string];
      const { leaseId, mode, value } = place;
      this.holds.push({ databaseIndex: Number(databaseIndex), key, leaseId, value: value ?? leaseId, token, mode });
      this.#touch(place.name, revision);
    } else if (own.token !== token || !isSame(own.mode, place.mode)) {
      throw new Error(`${waitId} is told of another hold than its lease has`);
    }
    this.places = this.places.filter((other) => other !== place);
    return place.asks.map((ask) => ask.waitId);
  }

  /** A place is refused: its lease has the key in another mode. */
  refusePlace(waitId: number): number[] {
    const place = this.places.find(({ asks }) => asks.some((ask) => ask.waitId === waitId));
    const own = place === undefined ? null : this.#holdOf(place.name, place.leaseId);
    if (place === undefined || own === null || isSame(own.mode, place.mode)) throw new Error(`${waitId} is refused`);
    this.places = this.places.filter((other) => other !== place);
    return place.asks.map((ask) => ask.waitId);
  }

  /** Nobody who waits could have what it waits for. */
  checkNobodyIsKeptWaiting(): void {
    for (const place of this.places) {
      if (this.#queue(place.name)[0] !== place) continue;
      const fits = this.#fit(place.name, place.mode) === "fits";
      if (fits || this.#holdOf(place.name, place.leaseId) !== null) {
        throw new Error(`${place.leaseId} is kept waiting for ${place.name}`);
      }
    }
  }

  /** Commands that wait beyond their time, at `nowMs`. */
  overdue(nowMs: number): number[] {
    return this.places.flatMap(({ asks }) => asks.filter((ask) => ask.deadlineMs <= nowMs).map((ask) => ask.waitId));
  }
}

function isMet(condition: SetCondition, present: string | null): boolean {
  switch (condition.kind) {
    case "always":
      return true;
    case "nx":
      return present === null;
    case "xx":
      return present !== null;
    case "eq":
      return present === condition.value;
    case "ne":
      return present !== condition.value;
    case "digest-eq":
      return present !== null && testDigest(present) === condition.digest;
    case "digest-ne":
      return present === null || testDigest(present) !== condition.digest;
  }
}

const isSame = (a: LockMode, b: LockMode): boolean => JSON.stringify(a) === JSON.stringify(b);

function hasToWait(mode: LockMode, other: LockMode): boolean {
  if (other.kind === "shared") return mode.kind !== "shared";
  return other.kind !== "limit" || other.permits === 1;
}
