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

/**
 * The newest ends, by lease id: memory only, bounded, for people who ask what became of their lease.
 *
 * A ring of ids says which is the oldest. (A Map keeps its order too, but asked for its first entry it steps over the holes that
 * all the removed ones left: measured at a third of the time of an expiry storm.)
 */
export class EndedLeases {
  readonly #ends = new Map<ByteString, LeaseEnd & { readonly place: number }>();
  readonly #ring: ByteString[] = [];
  #nextPlace = 0;

  find(id: ByteString): LeaseEnd | null {
    return this.#ends.get(id) ?? null;
  }

  note(id: ByteString, { reason, endedAtUnixMs, lateMs, by }: LeaseEnd): void {
    const place = this.#nextPlace;
    const oldest = this.#ring[place];
    // An id that ended again since has its newest end at another place.
    if (oldest !== undefined && this.#ends.get(oldest)?.place === place) this.#ends.delete(oldest);
    this.#ring[place] = id;
    this.#ends.set(id, { reason, endedAtUnixMs, lateMs, by, place });
    this.#nextPlace = (place + 1) % ENDED_LEASES_REMEMBERED_MAX;
  }
}
