import type { LeaseEndReason, LeaseRequest, LockMode, Revision, Token } from "#src/engine/op.js";
import type { ByteString } from "#src/engine/reply.js";
import type { SimulatedOp } from "./simulated.js";
import { check } from "./violation.js";

/**
 * Leases and keys in the plainest form that can be: two Maps, changed by ops alone. It shares no code with the engine's state, and
 * it refuses ops that do not fit what is there.
 *
 * A plain key, one that no lease holds, is held by a name that no client can give to a lease.
 */

export interface ModelLease {
  readonly id: ByteString;
  readonly token: Token;
  /** The durable one. */
  ttlMs: number;
  readonly label: ByteString | null;
  readonly request: LeaseRequest | null;
  /** Names as `keyName` makes them. */
  readonly keys: Set<string>;
}

/** One holder of one key. */
export interface ModelKey {
  readonly databaseIndex: number;
  readonly key: ByteString;
  /** Of a plain key: `plainId`. */
  readonly leaseId: ByteString;
  readonly value: ByteString;
  readonly token: Token;
  readonly mode: LockMode;
  /** Of a plain key its durable TTL, Infinity when it lasts; null for one that a lease holds. */
  readonly plainTtlMs: number | null;
}

/** A row of a key that the store still has although its lease has ended. */
export interface LeftRow extends Pick<ModelKey, "databaseIndex" | "key" | "leaseId" | "token"> {
  readonly reason: LeaseEndReason;
}

/** One name for a key of a database. */
export const keyName = (databaseIndex: number, key: ByteString): string => `${databaseIndex}:${key}`;

/** A lease from its grant to its end: an id may be used again, with another token. */
export const instanceName = (id: ByteString, token: Token): string => `${id}#${token}`;

const PLAIN = "\0plain ";

/** Who holds a plain key. `name`: as `keyName` makes it. */
export const plainId = (name: string): ByteString => PLAIN + name;

export const isPlainId = (id: ByteString): boolean => id.startsWith(PLAIN);

/** The key that such a holder holds. */
export const nameOfPlain = (id: ByteString): string => id.slice(PLAIN.length);

export const isSameMode = (a: LockMode, b: LockMode): boolean =>
  a.kind === b.kind && (a.kind !== "limit" || b.kind !== "limit" || a.permits === b.permits);

/** How a key could be held once more: `other-mode` when that is another kind of lock than what is held. */
export type Fit = "fits" | "held" | "other-mode";

const EXCLUSIVE: LockMode = { kind: "exclusive" };
const NOBODY: readonly ModelKey[] = [];

export class Model {
  readonly leases = new Map<ByteString, ModelLease>();
  readonly #holds = new Map<string, readonly ModelKey[]>();
  /** What the ends of leases left unnamed, by key: nobody holds it, and the store has its row still. */
  readonly left = new Map<string, LeftRow>();

  clone(): Model {
    const copy = new Model();
    for (const [id, lease] of this.leases) copy.leases.set(id, { ...lease, keys: new Set(lease.keys) });
    for (const [name, holds] of this.#holds) copy.#holds.set(name, holds);
    for (const [name, row] of this.left) copy.left.set(name, row);
    return copy;
  }

  /** Keys; a shared one counts once. */
  get keyCount(): number {
    return this.#holds.size;
  }

  /** Keys as limits count them: as often as they are held, and once more when they may be shared. */
  get keyCountForLimits(): number {
    let count = 0;
    for (const holds of this.#holds.values()) count += holds.length + (holds[0]?.mode.kind === "exclusive" ? 0 : 1);
    return count;
  }

  has(name: string): boolean {
    return this.#holds.has(name);
  }

  /** Who holds a key, in the order in which they came. */
  holders(name: string): readonly ModelKey[] {
    return this.#holds.get(name) ?? NOBODY;
  }

  /** Its first holder, whose value the key has. */
  first(name: string): ModelKey | undefined {
    return this.#holds.get(name)?.[0];
  }

  holdOf(name: string, leaseId: ByteString): ModelKey | undefined {
    return this.holders(name).find((hold) => hold.leaseId === leaseId);
  }

  names(): Iterable<string> {
    return this.#holds.keys();
  }

  /** Every holder of every key. */
  allHolds(): ModelKey[] {
    return [...this.#holds.values()].flat();
  }

  /** The names of all keys of a database. */
  keysOf(databaseIndex: number): ByteString[] {
    return [...this.#holds.values()].flatMap(([key]) => (key?.databaseIndex === databaseIndex ? [key.key] : []));
  }

  /** Whether a key could be held in this mode by one more lease. */
  fit(name: string, mode: LockMode): Fit {
    const [first, ...others] = this.holders(name);
    if (first === undefined) return "fits";
    if (first.plainTtlMs !== null) return "held";
    if (mode.kind === "limit" || first.mode.kind === "limit") {
      if (mode.kind !== "limit" || !isSameMode(mode, first.mode)) return "other-mode";
      return others.length + 1 < mode.permits ? "fits" : "held";
    }
    return mode.kind === "shared" && first.mode.kind === "shared" ? "fits" : "held";
  }

  apply(op: SimulatedOp, revision: Revision): void {
    switch (op.kind) {
      case "lease-put":
        this.#putLease(op, revision);
        return;
      case "lease-end":
        this.#endLease(op);
        return;
      case "lease-keys-end":
        for (const { databaseIndex, key, token } of op.keys) {
          const name = keyName(databaseIndex, key);
          const row = this.left.get(name);
          const fits = row?.leaseId === op.leaseId && row.token === token;
          check(fits, "ops", () => `${name} of ${op.leaseId} is named, left is ${JSON.stringify(row)}`);
          this.left.delete(name);
        }
        return;
      case "key-put":
        this.#checkNothingLeft(op);
        this.#putKey(op, revision);
        return;
      case "key-end":
        this.#endKey(op);
        return;
      case "string-put":
        this.#checkNothingLeft(op);
        this.#putString(op, revision);
        return;
      case "string-end": {
        const name = keyName(op.databaseIndex, op.key);
        const held = this.first(name);
        const fits = held !== undefined && held.plainTtlMs !== null && held.token === op.token;
        check(fits, "ops", () => `the end of plain key ${name} ${op.token}: there is ${JSON.stringify(held)}`);
        this.#holds.delete(name);
        return;
      }
      case "flush-database":
        for (const hold of this.allHolds()) {
          if (hold.databaseIndex !== op.databaseIndex) continue;
          const name = keyName(hold.databaseIndex, hold.key);
          this.#holds.delete(name);
          this.leases.get(hold.leaseId)?.keys.delete(name);
        }
        for (const [name, row] of this.left) if (row.databaseIndex === op.databaseIndex) this.left.delete(name);
        return;
      case "flush-all":
        this.left.clear();
        this.#holds.clear();
        this.leases.clear();
        return;
    }
  }

  #putLease(op: Extract<SimulatedOp, { kind: "lease-put" }>, revision: Revision): void {
    const lease = this.leases.get(op.id);
    if (lease === undefined) {
      check(op.token === revision, "ops", () => `lease ${op.id} is granted at ${revision} with token ${op.token}`);
      const { id, token, ttlMs, label, request } = op;
      this.leases.set(op.id, { id, token, ttlMs, label, request, keys: new Set() });
      return;
    }
    check(lease.token === op.token, "ops", () => `lease ${op.id} changes its token ${lease.token} to ${op.token}`);
    check(op.ttlMs > lease.ttlMs, "ops", () => `a TTL of ${op.ttlMs} is written over ${lease.ttlMs}`);
    lease.ttlMs = op.ttlMs;
  }

  #endLease(op: Extract<SimulatedOp, { kind: "lease-end" }>): void {
    const lease = this.leases.get(op.id);
    check(lease !== undefined, "ops", () => `the end of lease ${op.id}, which is not there`);
    const named = op.keys.map((key) => keyName(key.databaseIndex, key.key));
    const isWhole = named.length === lease.keys.size || op.hasMore === true;
    const fits = isWhole && named.every((name) => lease.keys.has(name));
    check(fits, "ops", () => `lease ${op.id} ends with keys ${named.join(" ")}, it holds ${[...lease.keys].join(" ")}`);
    for (const { databaseIndex, key, token, remains } of op.keys) {
      this.#drop(keyName(databaseIndex, key), op.id, token, remains === true);
    }
    this.leases.delete(op.id);
    for (const name of lease.keys) {
      const held = this.holdOf(name, op.id);
      if (held === undefined) continue;
      check(held.mode.kind === "exclusive", "ops", () => `${op.id} ends without naming ${name}, which it shares`);
      this.#drop(name, op.id, held.token, false);
      this.left.set(name, { ...held, reason: op.reason });
    }
  }

  /** Who gets a key removes the row of its former holder, which nobody could find any more. */
  #checkNothingLeft({ databaseIndex, key }: Pick<ModelKey, "databaseIndex" | "key">): void {
    const name = keyName(databaseIndex, key);
    check(!this.left.has(name), "ops", () => `${name} is put beside a row of ${this.left.get(name)?.leaseId}`);
  }

  #putKey(op: Extract<SimulatedOp, { kind: "key-put" }>, revision: Revision): void {
    const { databaseIndex, key, leaseId, value, token, mode } = op;
    const name = keyName(databaseIndex, key);
    const lease = this.leases.get(leaseId);
    check(lease !== undefined, "ops", () => `key ${name} is put for ${leaseId}, which is not there`);
    const hold = { databaseIndex, key, leaseId, value, token, mode, plainTtlMs: null };
    const holders = this.holders(name);
    const held = this.holdOf(name, leaseId);
    check((op.valueOnly === true) === (held !== undefined), "ops", () => `${JSON.stringify(op)} over what is held`);
    if (held === undefined) {
      check(token === revision, "I2-tokens", () => `key ${name} is taken at ${revision} with token ${token}`);
      const text = (): string =>
        `key ${name} of ${holders.map((holder) => holder.leaseId).join(" ")} is put for ${leaseId}`;
      check(this.fit(name, mode) === "fits", "I1-exclusion", text);
      this.#holds.set(name, [...holders, hold]);
    } else {
      const isAsBefore = held.token === token && isSameMode(held.mode, mode);
      check(isAsBefore, "I2-tokens", () => `key ${name} changes from ${JSON.stringify(held)} to ${JSON.stringify(op)}`);
      this.#holds.set(
        name,
        holders.map((holder) => (holder === held ? hold : holder)),
      );
    }
    lease.keys.add(name);
  }

  #endKey(op: Extract<SimulatedOp, { kind: "key-end" }>): void {
    const name = keyName(op.databaseIndex, op.key);
    this.#drop(name, op.leaseId, op.token, op.remains === true);
    this.leases.get(op.leaseId)?.keys.delete(name);
  }

  #drop(name: string, leaseId: ByteString, token: Token, remains: boolean): void {
    const held = this.holdOf(name, leaseId);
    const holders = this.holders(name);
    const text = (): string =>
      `key ${name} ends for ${leaseId} with token ${token}, there is ${JSON.stringify(holders)}`;
    check(held !== undefined && held.plainTtlMs === null && held.token === token, "ops", text);
    check(remains === holders.length > 1, "ops", () => `key ${name} remains: ${remains}, of ${holders.length} holders`);
    if (remains)
      this.#holds.set(
        name,
        holders.filter((holder) => holder !== held),
      );
    else this.#holds.delete(name);
  }

  #putString(op: Extract<SimulatedOp, { kind: "string-put" }>, revision: Revision): void {
    const { databaseIndex, key, value, token } = op;
    const name = keyName(databaseIndex, key);
    const held = this.first(name);
    const plainTtlMs = op.ttlMs ?? Infinity;
    check(held?.plainTtlMs !== null, "ops", () => `plain key ${name} is put over a lease's`);
    if (held?.token !== token) {
      check(token === revision, "I2-tokens", () => `plain key ${name} is set at ${revision} with token ${token}`);
    }
    if (op.keepsTime === true) {
      const isAsBefore = held?.token === token && held.plainTtlMs === plainTtlMs;
      check(isAsBefore, "ops", () => `the time of ${name} goes on: ${JSON.stringify(op)} over ${JSON.stringify(held)}`);
    }
    const leaseId = plainId(name);
    this.#holds.set(name, [{ databaseIndex, key, leaseId, value, token, mode: EXCLUSIVE, plainTtlMs }]);
  }
}
