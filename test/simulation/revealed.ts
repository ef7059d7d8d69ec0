import type { Origin } from "#src/engine/command.js";
import type { Revision } from "#src/engine/op.js";
import { ErrorReply, type ByteString, type Reply } from "#src/engine/reply.js";
import { keyName, type Model } from "./model.js";
import type { SimulatedCommand, SimulatedOp } from "./simulated.js";

/**
 * What a reply gives away: for each lease and key the revision of its newest change, its end included, and from these the
 * least revision that has to be durable before a reply may leave. Computed from ops and replies alone, never from what the
 * engine says it saw.
 */
export class Revealed {
  readonly #leases = new Map<ByteString, Revision>();
  readonly #keys = new Map<string, Revision>();
  /** By lease: when it last got a key, or another value of one, or lost one but by a flush. */
  readonly #keysOfLeases = new Map<ByteString, Revision>();
  readonly #flushed = new Map<number, Revision>();
  readonly #changedDatabases = new Map<number, Revision>();
  #flushedAll: Revision = 0;

  /** To be called before the op is applied to `model`. */
  note(op: SimulatedOp, revision: Revision, model: Model): void {
    switch (op.kind) {
      case "lease-put":
        this.#leases.set(op.id, revision);
        return;
      case "lease-end":
        this.#leases.set(op.id, revision);
        for (const name of model.leases.get(op.id)?.keys ?? []) this.#keys.set(name, revision);
        for (const { databaseIndex, key } of op.keys) this.#noteKey(databaseIndex, key, revision);
        return;
      case "lease-keys-end":
        return; // they have been absent since the end of their lease
      case "key-put":
      case "key-end":
        this.#keysOfLeases.set(op.leaseId, revision);
        this.#noteKey(op.databaseIndex, op.key, revision);
        return;
      case "string-put":
      case "string-end":
        this.#noteKey(op.databaseIndex, op.key, revision);
        return;
      case "flush-database":
        this.#flushed.set(op.databaseIndex, revision);
        this.#changedDatabases.set(op.databaseIndex, revision);
        return;
      case "flush-all":
        this.#flushedAll = revision;
        for (const { databaseIndex } of model.allHolds()) this.#changedDatabases.set(databaseIndex, revision);
        return;
    }
  }

  /** Of a reply to a command that changed nothing. */
  by(command: SimulatedCommand, origin: Origin, reply: Reply, model: Model): Revision {
    const { databaseIndex } = origin;
    const keys = (names: readonly ByteString[]): Revision =>
      Math.max(0, ...names.map((name) => this.#key(databaseIndex, name)));
    const leases = (ids: readonly ByteString[]): Revision => Math.max(0, ...ids.map((id) => this.#lease(id)));
    switch (command.kind) {
      case "lease-keepalive":
      case "lease-ttl":
      case "lease-setttl":
        return leases([command.id]);
      case "lease-info":
        // Of a key that it shares it tells nothing about the others.
        return Math.max(leases([command.id]), this.#keysOfLeases.get(command.id) ?? 0);
      case "lease-keepalive-many":
      case "lease-revoke":
        return leases(command.ids);
      case "lease-grant":
        // A refusal by a held key gives away one of them; by a limit, nothing in particular.
        if (reply === null)
          return this.#leastHeld(
            databaseIndex,
            command.keys.map((pair) => pair.key),
            model,
          );
        if (Array.isArray(reply)) return leases([String(reply[0])]);
        return command.id === null || isLimit(reply) ? 0 : leases([command.id]);
      case "lease-attach":
        if (isLimit(reply)) return 0;
        if (reply === null) return keys([command.key]);
        return Math.max(leases([command.id]), typeof reply === "number" ? keys([command.key]) : 0);
      case "lease-detach":
        return reply instanceof ErrorReply ? leases([command.id]) : keys(command.keys);
      case "key-get":
      case "key-type":
        return keys([command.key]);
      case "key-ttl": {
        const holder = model.first(keyName(databaseIndex, command.key))?.leaseId;
        return Math.max(keys([command.key]), holder === undefined ? 0 : leases([holder]));
      }
      case "string-set":
      case "string-increment":
      case "string-delete-if":
      case "key-expire":
      case "key-persist":
        return isLimit(reply) ? 0 : keys([command.key]);
      case "lock-info":
      case "lock-check":
        return keys([command.key]);
      case "lock-acquire":
        return this.ofAcquire(command.id, databaseIndex, command.key, reply);
      case "lock-release":
        return Math.max(leases([command.id]), model.leases.has(command.id) ? keys([command.key]) : 0);
      case "key-exists":
      case "key-delete":
        return keys(command.keys);
      case "key-list":
      case "key-count":
        return this.#changedDatabases.get(databaseIndex) ?? 0;
      case "key-scan":
        return keys(namesOfPage(reply));
      case "lease-scan":
        return leases(namesOfPage(reply));
      case "key-random":
        return typeof reply === "string" ? keys([reply]) : (this.#changedDatabases.get(databaseIndex) ?? 0);
      case "lease-expire":
      case "wait-end":
      case "flush-database":
      case "flush-all":
        return 0;
    }
  }

  /** Of the answer to somebody who wants a key for a lease, also one who waited for it. */
  ofAcquire(id: ByteString, databaseIndex: number, key: ByteString, reply: Reply): Revision {
    if (reply instanceof ErrorReply) return reply.text.startsWith("NOLEASE ") ? this.#lease(id) : 0;
    return Math.max(reply === null ? 0 : this.#lease(id), this.#key(databaseIndex, key));
  }

  #noteKey(databaseIndex: number, key: ByteString, revision: Revision): void {
    this.#keys.set(keyName(databaseIndex, key), revision);
    this.#changedDatabases.set(databaseIndex, revision);
  }

  #lease(id: ByteString): Revision {
    return Math.max(this.#leases.get(id) ?? 0, this.#flushedAll);
  }

  #key(databaseIndex: number, key: ByteString): Revision {
    const flushed = Math.max(this.#flushed.get(databaseIndex) ?? 0, this.#flushedAll);
    return Math.max(this.#keys.get(keyName(databaseIndex, key)) ?? 0, flushed);
  }

  #leastHeld(databaseIndex: number, names: readonly ByteString[], model: Model): Revision {
    const held = names.filter((name) => model.has(keyName(databaseIndex, name)));
    return held.length === 0 ? 0 : Math.min(...held.map((name) => this.#key(databaseIndex, name)));
  }
}

const isLimit = (reply: Reply): boolean => reply instanceof ErrorReply && reply.text.startsWith("OOM ");

/** The names in `[cursor, [names]]`. */
export function namesOfPage(reply: Reply): ByteString[] {
  const names: unknown = Array.isArray(reply) ? reply[1] : null;
  return Array.isArray(names) ? names.map(String) : [];
}
