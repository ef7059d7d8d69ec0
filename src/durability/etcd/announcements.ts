import type { Clock, NodeAddress } from "../../ports.js";
import type { NodeSighting } from "../shared-store.js";
import type { EtcdCalls } from "./etcd-client.js";
import { encodeNode, type EtcdKeys } from "./rows.js";

/**
 * This node's sign of presence, and the end of those of nodes that are gone: a process has its own id, so what one that was killed
 * announced would stay for ever. The primary deletes a row that it has not seen change for long, if it is still the same row.
 */

export interface AnnouncementsOptions {
  readonly client: EtcdCalls;
  readonly keys: EtcdKeys;
  readonly clock: Clock;
  nodes(): readonly NodeSighting[];
  isPrimary(): boolean;
}

/** Longer than anybody counts a silent node as present. */
const FORGOTTEN_AFTER_MS = 600_000;

export class Announcements {
  readonly #options: AnnouncementsOptions;
  /** By id: the newest revision of each announcement, and when it was seen first. */
  #seen = new Map<string, { readonly modRevision: number; readonly sinceMs: number }>();

  constructor(options: AnnouncementsOptions) {
    this.#options = options;
  }

  /** Rejects with an EtcdError. */
  async announce(node: NodeAddress): Promise<void> {
    const { client, keys } = this.#options;
    const success = [{ kind: "put", key: keys.node(node.id), value: encodeNode(node) }] as const;
    await client.txn({ guards: [], success, failure: [] });
    await this.#forgetTheGone();
  }

  /** This node is leaving. Rejects with an EtcdError. */
  async withdraw(node: NodeAddress): Promise<void> {
    const { client, keys } = this.#options;
    await client.txn({ guards: [], success: [{ kind: "delete", key: keys.node(node.id) }], failure: [] });
  }

  async #forgetTheGone(): Promise<void> {
    const { client, keys, clock } = this.#options;
    const nowMs = clock.monotonicMs();
    const before = this.#seen;
    this.#seen = new Map();
    for (const { node, modRevision } of this.#options.nodes()) {
      const known = before.get(node.id);
      const seen = known?.modRevision === modRevision ? known : { modRevision, sinceMs: nowMs };
      this.#seen.set(node.id, seen);
      if (nowMs - seen.sinceMs < FORGOTTEN_AFTER_MS || !this.#options.isPrimary()) continue;
      const key = keys.node(node.id);
      await client.txn({ guards: [{ key, modRevision }], success: [{ kind: "delete", key }], failure: [] });
    }
  }
}
