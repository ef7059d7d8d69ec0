import { NO_KEY } from "./key-table.js";
import { NO_LEASE } from "./lease-table.js";
import type { KeyEndOp, KeyName, KeyPutOp, Op, Token } from "./op.js";
import { replay } from "./replay.js";
import type { ByteString } from "./reply.js";
import type { State } from "./state.js";

/** A key row of the store that belongs to nothing. */
export interface OrphanKey extends KeyName {
  readonly leaseId: ByteString;
  readonly token: Token;
}

/**
 * Rows of the store become state. What is loaded is durable, so it is replayed under revision 0: no reply has to wait for it.
 *
 * The store should hold no key without its lease, none older than its lease, nor one key under two leases. Should it ever, the
 * server starts nevertheless: such rows are left out, reported, and removed from the store. Of two claims on a key the one with
 * the larger token is the newer.
 */
export class Recovery {
  readonly orphanKeys: OrphanKey[] = [];
  readonly #state: State;

  constructor(state: State) {
    this.#state = state;
  }

  recover(op: Op): void {
    if (op.kind === "key-put" && !this.#admit(op)) return;
    replay(this.#state, op, 0);
  }

  removals(): readonly KeyEndOp[] {
    return this.orphanKeys.map(({ databaseIndex, key, leaseId, token }) => ({
      kind: "key-end",
      databaseIndex,
      key,
      leaseId,
      token,
      reason: "deleted",
    }));
  }

  #admit(op: KeyPutOp): boolean {
    const { leases } = this.#state;
    const lease = leases.findLive(op.leaseId);
    // A key is never attached before its lease is granted: an older one belonged to a former lease of the same id.
    if (lease === NO_LEASE || op.token < leases.token(lease)) {
      this.#reject(op);
      return false;
    }
    const keys = this.#state.keys(op.databaseIndex);
    const row = keys.find(op.key);
    const holder = row === NO_KEY ? NO_LEASE : keys.holder(row);
    if (holder === NO_LEASE || holder === lease || !leases.isLive(holder)) return true;
    const other = {
      databaseIndex: op.databaseIndex,
      key: op.key,
      leaseId: leases.id(holder),
      token: keys.token.get(row),
    };
    const isNewer = op.token > other.token;
    this.#reject(isNewer ? other : op);
    return isNewer;
  }

  #reject({ databaseIndex, key, leaseId, token }: OrphanKey): void {
    this.orphanKeys.push({ databaseIndex, key, leaseId, token });
  }
}
