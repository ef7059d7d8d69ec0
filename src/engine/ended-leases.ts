import { ENDED_LEASES_REMEMBERED_MAX } from "./limits.js";
import type { LeaseEndReason } from "./op.js";
import type { ByteString } from "./reply.js";

/** How a lease came to its end, for LEASE.INFO. */
export interface LeaseEnd {
  readonly reason: LeaseEndReason;
  /** Wall clock, for people. */
  readonly endedAtUnixMs: number;
  /** How late an expiry was, in milliseconds. */
  readonly lateMs: number;
  readonly by: ByteString;
}

/** The newest ends, by lease id: memory only, bounded, for people who ask what became of their lease. */
export class EndedLeases {
  /** In the order of the ends. */
  readonly #ends = new Map<ByteString, LeaseEnd>();

  find(id: ByteString): LeaseEnd | null {
    return this.#ends.get(id) ?? null;
  }

  note(id: ByteString, end: LeaseEnd): void {
    this.#ends.delete(id);
    this.#ends.set(id, end);
    if (this.#ends.size <= ENDED_LEASES_REMEMBERED_MAX) return;
    for (const oldest of this.#ends.keys()) {
      this.#ends.delete(oldest);
      return;
    }
  }
}
