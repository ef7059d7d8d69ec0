import type { KeyName } from "./command.js";
import { NO_KEY, SHARED, type KeyTable } from "./key-table.js";
import { NO_LEASE } from "./lease-table.js";
import type { KeyPutOp, Op, StringPutOp, Token } from "./op.js";
import { replay } from "./replay.js";
import type { ByteString } from "./reply.js";
import type { State } from "./state.js";

/** A key row of the store that belongs to nothing. */
export interface OrphanKey extends KeyName {
  /** null: a plain key. */
  readonly leaseId: ByteString | null;
  readonly token: Token;
}

/**
 * Rows of the store become state. What is loaded is durable, so it is replayed under revision 0: no reply has to wait for it.
 *
 * The store should hold no key without its lease, none older than its lease, nor one key under two holders that do not go together.
 * Should it ever, the server starts nevertheless: such rows are left out, reported, and removed from the store. Of two claims on a key the
 * one with the larger token is the newer.
 */
export class Recovery {
  readonly orphanKeys: OrphanKey[] = [];
  readonly #state: State;

  constructor(state: State) {
    this.#state = state;
  }

  recover(op: Op): void {
    if ((op.kind === "key-put" || op.kind === "string-put") && !this.#admit(op)) return;
    replay(this.#state, op, 0);
  }

  removals(): readonly Op[] {
    return this.orphanKeys.map((orphan) => removalOf(orphan));
  }

  /** Whether a claim on a key stands; claims that are older and do not go together with it are taken back. */
  #admit(op: KeyPutOp | StringPutOp): boolean {
    if (op.kind === "key-put" && !this.#hasLeaseOf(op)) {
      this.#reject(claimOf(op));
      return false;
    }
    const others = this.#othersThan(op);
    if (others.some(({ token }) => token > op.token)) {
      this.#reject(claimOf(op));
      return false;
    }
    for (const other of others) {
      replay(this.#state, removalOf(other), 0);
      this.#reject(other);
    }
    return true;
  }

  /** A key is never attached before its lease is granted: an older one belonged to a former lease of the same id. */
  #hasLeaseOf(op: KeyPutOp): boolean {
    const { leases } = this.#state;
    const lease = leases.findLive(op.leaseId);
    return lease !== NO_LEASE && op.token >= leases.token(lease);
  }

  /** The claims on the same key that this one excludes. */
  #othersThan(op: KeyPutOp | StringPutOp): readonly OrphanKey[] {
    const { leases } = this.#state;
    const keys = this.#state.keys(op.databaseIndex);
    const row = keys.find(op.key);
    if (row === NO_KEY || keys.holder(row) === NO_LEASE) return [];
    const sharing = keys.sharing(row);
    const isShare = op.kind === "key-put" && op.mode.kind !== "exclusive";
    if (sharing !== null) {
      if (isShare && JSON.stringify(sharing.mode) === JSON.stringify(op.mode)) return [];
      return [...sharing.byLease.values()].map((member) => this.#claimAt(op, keys, member));
    }
    const holder = keys.holder(row);
    if (!leases.isLive(holder)) return [];
    const isOwn =
      op.kind === "string-put" ? leases.isHidden(holder) : !isShare && holder === leases.findLive(op.leaseId);
    return isOwn ? [] : [this.#claimAt(op, keys, row)];
  }

  #claimAt({ databaseIndex, key }: KeyName, keys: KeyTable, row: number): OrphanKey {
    const { leases } = this.#state;
    const holder = keys.holder(row);
    const leaseId = holder === SHARED || leases.isHidden(holder) ? null : leases.id(holder);
    return { databaseIndex, key, leaseId, token: keys.token.get(row) };
  }

  #reject({ databaseIndex, key, leaseId, token }: OrphanKey): void {
    this.orphanKeys.push({ databaseIndex, key, leaseId, token });
  }
}

function claimOf(op: KeyPutOp | StringPutOp): OrphanKey {
  const { databaseIndex, key, token } = op;
  return { databaseIndex, key, leaseId: op.kind === "key-put" ? op.leaseId : null, token };
}

function removalOf({ databaseIndex, key, leaseId, token }: OrphanKey): Op {
  if (leaseId === null) return { kind: "string-end", databaseIndex, key, token, reason: "deleted" };
  return { kind: "key-end", databaseIndex, key, leaseId, token, reason: "deleted" };
}
