import type { LeaseRequest, Revision, Token } from "#src/engine/op.js";
import type { ByteString } from "#src/engine/reply.js";
import type { SimulatedOp } from "./simulated.js";
import { check } from "./violation.js";

/**
 * Leases and keys in the plainest form that can be: two Maps, changed by ops alone. It shares no code with the engine's state, and
 * it refuses ops that do not fit what is there.
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

export interface ModelKey {
  readonly databaseIndex: number;
  readonly key: ByteString;
  readonly leaseId: ByteString;
  readonly value: ByteString;
  readonly token: Token;
}

/** One name for a key of a database. */
export const keyName = (databaseIndex: number, key: ByteString): string => `${databaseIndex}:${key}`;

/** A lease from its grant to its end: an id may be used again, with another token. */
export const instanceName = (id: ByteString, token: Token): string => `${id}#${token}`;

export class Model {
  readonly leases = new Map<ByteString, ModelLease>();
  readonly keys = new Map<string, ModelKey>();

  clone(): Model {
    const copy = new Model();
    for (const [id, lease] of this.leases) copy.leases.set(id, { ...lease, keys: new Set(lease.keys) });
    for (const [name, key] of this.keys) copy.keys.set(name, key);
    return copy;
  }

  /** The names of all keys of a database. */
  keysOf(databaseIndex: number): ByteString[] {
    return [...this.keys.values()].filter((key) => key.databaseIndex === databaseIndex).map((key) => key.key);
  }

  apply(op: SimulatedOp, revision: Revision): void {
    switch (op.kind) {
      case "lease-put":
        this.#putLease(op, revision);
        return;
      case "lease-end": {
        const lease = this.leases.get(op.id);
        check(lease !== undefined, "ops", () => `the end of lease ${op.id}, which is not there`);
        const named = op.keys.map((key) => keyName(key.databaseIndex, key.key));
        const fits = named.length === lease.keys.size && named.every((name) => lease.keys.has(name));
        check(
          fits,
          "ops",
          () => `lease ${op.id} ends with keys ${named.join(" ")}, it holds ${[...lease.keys].join(" ")}`,
        );
        for (const name of named) this.keys.delete(name);
        this.leases.delete(op.id);
        return;
      }
      case "key-put": {
        this.#putKey(op, revision);
        return;
      }
      case "key-end": {
        const name = keyName(op.databaseIndex, op.key);
        const held = this.keys.get(name);
        check(
          held?.leaseId === op.leaseId,
          "ops",
          () => `key ${name} ends for ${op.leaseId}, held by ${held?.leaseId}`,
        );
        check(held.token === op.token, "ops", () => `key ${name} ends with token ${op.token}, has ${held.token}`);
        this.leases.get(op.leaseId)?.keys.delete(name);
        this.keys.delete(name);
        return;
      }
      case "flush-database":
        for (const [name, key] of this.keys) {
          if (key.databaseIndex !== op.databaseIndex) continue;
          this.keys.delete(name);
          this.leases.get(key.leaseId)?.keys.delete(name);
        }
        return;
      case "flush-all":
        this.keys.clear();
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

  #putKey(op: Extract<SimulatedOp, { kind: "key-put" }>, revision: Revision): void {
    const name = keyName(op.databaseIndex, op.key);
    const lease = this.leases.get(op.leaseId);
    check(lease !== undefined, "ops", () => `key ${name} is put for ${op.leaseId}, which is not there`);
    const held = this.keys.get(name);
    if (held === undefined) {
      check(op.token === revision, "I2-tokens", () => `key ${name} is taken at ${revision} with token ${op.token}`);
    } else {
      check(held.leaseId === op.leaseId, "ops", () => `key ${name} of ${held.leaseId} is put for ${op.leaseId}`);
      check(held.token === op.token, "I2-tokens", () => `key ${name} changes its token ${held.token} to ${op.token}`);
    }
    lease.keys.add(name);
    this.keys.set(name, {
      databaseIndex: op.databaseIndex,
      key: op.key,
      leaseId: op.leaseId,
      value: op.value,
      token: op.token,
    });
  }
}
