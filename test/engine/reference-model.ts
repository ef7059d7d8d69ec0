import type { Command, Origin } from "#src/engine/command.js";

/**
 * What the rules say, written as plainly as possible and apart from the engine: two Maps, every question answered by a walk over
 * all of it, time compared at every look. Answers a command with the reply that the engine has to give; where the engine is
 * free (tokens, server-chosen ids, order of lists) the model takes the engine's choice and checks what holds of it.
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

export interface ModelKey {
  readonly databaseIndex: number;
  readonly key: string;
  readonly leaseId: string;
  readonly value: string;
  readonly token: number;
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

const nameOf = (databaseIndex: number, key: string): string => `${databaseIndex} ${key}`;

export class ReferenceModel {
  readonly leases = new Map<string, ModelLease>();
  readonly keys = new Map<string, ModelKey>();
  /** By lease id and by key name: the revision of the newest change, ends included; kept for ever. */
  readonly leaseChangedAt = new Map<string, number>();
  readonly keyChangedAt = new Map<string, number>();
  /** Leases whose time is over, with their keys, that the disk still has: a crash brings them back for a full TTL. */
  readonly limbo = new Map<string, { readonly lease: ModelLease; readonly keys: ReadonlyMap<string, ModelKey> }>();
  readonly clockErrorPerMille: number;
  nowMs = 0;

  constructor(clockErrorPerMille: number) {
    this.clockErrorPerMille = clockErrorPerMille;
  }

  clone(): ReferenceModel {
    const copy = new ReferenceModel(this.clockErrorPerMille);
    for (const [id, lease] of this.leases) copy.leases.set(id, { ...lease });
    for (const [name, key] of this.keys) copy.keys.set(name, key);
    for (const [id, revision] of this.leaseChangedAt) copy.leaseChangedAt.set(id, revision);
    for (const [name, revision] of this.keyChangedAt) copy.keyChangedAt.set(name, revision);
    for (const [id, { lease, keys }] of this.limbo) copy.limbo.set(id, { lease: { ...lease }, keys: new Map(keys) });
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
      const keys = new Map([...this.keys].filter(([, key]) => key.leaseId === lease.id));
      this.leases.delete(lease.id);
      for (const name of keys.keys()) this.keys.delete(name);
      this.limbo.set(lease.id, { lease, keys });
    }
  }

  /** The end of such a lease is written under this revision. */
  writeDead(id: string, revision: number): void {
    const dead = this.limbo.get(id);
    if (dead === undefined) return;
    this.limbo.delete(id);
    this.leaseChangedAt.set(id, revision);
    for (const name of dead.keys.keys()) this.keyChangedAt.set(name, revision);
  }

  endLease(id: string, revision: number): void {
    this.leases.delete(id);
    this.leaseChangedAt.set(id, revision);
    for (const [name, key] of this.keys) {
      if (key.leaseId !== id) continue;
      this.keys.delete(name);
      this.keyChangedAt.set(name, revision);
    }
  }

  /** After a take-over at `nowMs`: everything durable lives for its full durable TTL, and up to a tenth longer. */
  takeOver(nowMs: number): void {
    this.nowMs = nowMs;
    for (const { lease, keys } of this.limbo.values()) {
      this.leases.set(lease.id, lease);
      for (const [name, key] of keys) this.keys.set(name, key);
    }
    this.limbo.clear();
    for (const lease of this.leases.values()) {
      lease.ttlMs = lease.durableTtlMs;
      lease.aliveUntilMs = nowMs + this.lifeMs(lease.ttlMs);
      lease.deadAtMs = lease.aliveUntilMs + lease.ttlMs / 10;
      lease.isOnGrace = true;
    }
  }

  /** True when a command would find nothing to write, as far as the model can tell. */
  durableText(): string {
    const leases = [...this.leases.values()].map((lease) => `lease ${lease.id} ${lease.durableTtlMs} ${lease.token}`);
    const keys = [...this.keys.values()].map(
      (key) => `key ${key.databaseIndex} ${key.key} ${key.leaseId} ${key.value} ${key.token}`,
    );
    return [...leases.toSorted(), ...keys.toSorted()].join("\n");
  }

  #key(origin: Origin, key: string): ModelKey | null {
    return this.keys.get(nameOf(origin.databaseIndex, key)) ?? null;
  }

  #keysOf(databaseIndex: number): string[] {
    return [...this.keys.values()].filter((key) => key.databaseIndex === databaseIndex).map((key) => key.key);
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

  #putKey(origin: Origin, key: string, leaseId: string, value: string, token: number, revision: number): void {
    const name = nameOf(origin.databaseIndex, key);
    this.keys.set(name, { databaseIndex: origin.databaseIndex, key, leaseId, value, token });
    this.keyChangedAt.set(name, revision);
  }

  #removeKey(name: string, revision: number): void {
    this.keys.delete(name);
    this.keyChangedAt.set(name, revision);
  }

  /**
   * Carries out a command at `nowMs` and returns the reply that it must have; `ANY_TOKEN` stands for the revision of the command,
   * `Unordered` for a list in any order. `revision`: what the engine gave to this command. `chosenId`: the id that the engine
   * chose, if it did.
   */
  run(command: Command, origin: Origin, revision: number, chosenId: string | null): unknown {
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
        const held = new Set(command.keys.filter((key) => this.#key(origin, key)?.leaseId === command.id));
        for (const key of held) this.#removeKey(nameOf(origin.databaseIndex, key), revision);
        return held.size;
      }
      case "lease-info":
        return this.#info(command.id, origin);
      case "lease-scan":
        return [...this.leases.keys()];
      case "lease-expire":
        return null;
      case "key-get":
        return this.#key(origin, command.key)?.value ?? null;
      case "key-exists":
        return command.keys.filter((key) => this.#key(origin, key) !== null).length;
      case "key-delete": {
        const there = new Set(command.keys.filter((key) => this.#key(origin, key) !== null));
        for (const key of there) this.#removeKey(nameOf(origin.databaseIndex, key), revision);
        return there.size;
      }
      case "key-type":
        return this.#key(origin, command.key) === null ? "+none" : "+string";
      case "key-ttl": {
        const lease = this.leases.get(this.#key(origin, command.key)?.leaseId ?? "");
        return lease === undefined ? -2 : this.#inUnit(lease, command.unit);
      }
      case "key-list":
      case "key-scan":
      case "key-random":
        return this.#keysOf(origin.databaseIndex);
      case "key-count":
        return this.#keysOf(origin.databaseIndex).length;
      case "flush-database":
        for (const [name, key] of this.keys) {
          if (key.databaseIndex === origin.databaseIndex) this.#removeKey(name, revision);
        }
        for (const [id, { lease, keys }] of this.limbo) {
          const left = [...keys].filter(([, key]) => key.databaseIndex !== origin.databaseIndex);
          for (const [name, key] of keys) {
            if (key.databaseIndex === origin.databaseIndex) this.keyChangedAt.set(name, revision);
          }
          this.limbo.set(id, { lease, keys: new Map(left) });
        }
        return "+OK";
      case "flush-all":
        for (const id of this.leases.keys()) this.endLease(id, revision);
        for (const id of this.limbo.keys()) this.writeDead(id, revision);
        return "+OK";
    }
  }

  #inUnit(lease: ModelLease, unit: "s" | "ms"): Between {
    return this.#remaining(lease, unit === "ms" ? 1 : 1_000);
  }

  #grant(
    command: Extract<Command, { kind: "lease-grant" }>,
    origin: Origin,
    revision: number,
    chosenId: string | null,
  ): unknown {
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
    if (keys.some(({ key }) => this.#key(origin, key) !== null)) return null;
    const name = id ?? chosenId ?? "no id chosen";
    this.leases.set(name, {
      id: name,
      durableTtlMs: ttlMs,
      ttlMs,
      deadAtMs: this.nowMs + this.lifeMs(ttlMs),
      aliveUntilMs: this.nowMs + this.lifeMs(ttlMs),
      token: revision,
      nonce: request,
      isIdChosen: id === null,
      firstTtlMs: ttlMs,
      isOnGrace: false,
    });
    this.leaseChangedAt.set(name, revision);
    for (const { key, value } of keys) this.#putKey(origin, key, name, value, revision, revision);
    return [name, ttlMs, revision];
  }

  #setTtl(id: string, ttlMs: number, revision: number): unknown {
    const lease = this.leases.get(id);
    if (lease === undefined) return "NOLEASE";
    if (ttlMs > lease.durableTtlMs) {
      lease.durableTtlMs = ttlMs;
      this.leaseChangedAt.set(id, revision);
    }
    lease.ttlMs = ttlMs;
    lease.deadAtMs = lease.aliveUntilMs = this.nowMs + this.lifeMs(ttlMs);
    lease.isOnGrace = false;
    return ttlMs;
  }

  #attach(command: Extract<Command, { kind: "lease-attach" }>, origin: Origin, revision: number): unknown {
    const { id, key, value, force } = command;
    if (!this.leases.has(id)) return "NOLEASE";
    const held = this.#key(origin, key);
    if (held !== null && held.leaseId === id) {
      if (held.value !== value) this.#putKey(origin, key, id, value, held.token, revision);
      return held.token;
    }
    if (held !== null && !force) return null;
    this.#putKey(origin, key, id, value, revision, revision);
    return revision;
  }

  #info(id: string, origin: Origin): unknown {
    const lease = this.leases.get(id);
    if (lease === undefined) return "ended or nil";
    return {
      id,
      state: "live",
      ttl: lease.ttlMs,
      remaining: this.#remaining(lease, 1),
      token: lease.token,
      grace: lease.isOnGrace ? 1 : 0,
      keys: this.#keysOf(origin.databaseIndex).filter((key) => this.#key(origin, key)?.leaseId === id),
      "keys-total": [...this.keys.values()].filter((key) => key.leaseId === id).length,
    };
  }
}
