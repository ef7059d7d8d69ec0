import type { LockMode } from "#src/engine/op.js";
import type { WaitId } from "#src/engine/engine.js";
import type { ByteString } from "#src/engine/reply.js";
import type { Model, ModelKey } from "./model.js";
import type { SimRequest } from "./request.js";

/**
 * Who waits for which key, in the order of their coming: one list, walked over for each question. What it knows it has from
 * decisions alone; it shares no code with the engine's waiters.
 */

/** A blocked command. */
export interface Ask {
  readonly waitId: WaitId;
  readonly request: SimRequest;
  /** By the server's clock; Infinity: no limit. */
  readonly deadlineMs: number;
}

/** The place of a lease in a queue; every command of the lease that waits for the key shares it. */
export interface Place {
  readonly name: string;
  readonly leaseId: ByteString;
  readonly mode: LockMode;
  /** The value that the key is to get. */
  value: ByteString;
  readonly asks: Ask[];
}

/** What a command that waits asks for. */
export type NewPlace = Omit<Place, "asks">;

export class Queues {
  readonly #places: Place[] = [];

  get isEmpty(): boolean {
    return this.#places.length === 0;
  }

  get places(): readonly Place[] {
    return this.#places;
  }

  get asks(): readonly Ask[] {
    return this.#places.flatMap((place) => place.asks);
  }

  clear(): void {
    this.#places.length = 0;
  }

  of(name: string): readonly Place[] {
    return this.#places.filter((place) => place.name === name);
  }

  placeOf(name: string, leaseId: ByteString): Place | undefined {
    return this.#places.find((place) => place.name === name && place.leaseId === leaseId);
  }

  /** Whoever is next, of each queue. */
  firsts(): readonly Place[] {
    return this.#places.filter((place) => this.of(place.name)[0] === place);
  }

  add(wanted: NewPlace, ask: Ask): void {
    const place = this.placeOf(wanted.name, wanted.leaseId);
    if (place === undefined) {
      this.#places.push({ ...wanted, asks: [ask] });
    } else {
      place.value = wanted.value;
      place.asks.push(ask);
    }
  }

  find(waitId: WaitId): { readonly place: Place; readonly ask: Ask } | null {
    for (const place of this.#places) {
      for (const ask of place.asks) if (ask.waitId === waitId) return { place, ask };
    }
    return null;
  }

  remove(waitId: WaitId): void {
    const found = this.find(waitId);
    if (found === null) return;
    const { place, ask } = found;
    place.asks.splice(place.asks.indexOf(ask), 1);
    if (place.asks.length === 0) this.#places.splice(this.#places.indexOf(place), 1);
  }

  /**
   * Whether a lease that waited for a key behind all who wait already would wait for itself. `counts`: which of the leases to go by.
   * Readers do not wait for readers, and nobody for one holder of several permits.
   */
  closesCycle(
    start: ByteString,
    name: string,
    mode: LockMode,
    model: Model,
    counts: (leaseId: ByteString) => boolean = () => true,
  ): boolean {
    const seen = new Set<ByteString>();
    const reaches = (leaseId: ByteString): boolean => {
      if (leaseId === start) return true;
      if (seen.has(leaseId) || !counts(leaseId)) return false;
      seen.add(leaseId);
      return this.#places.some((place) => place.leaseId === leaseId && waits(place.name, place.mode, place));
    };
    const waits = (key: string, asMode: LockMode, until: Place | null): boolean => {
      const queue = this.of(key);
      const before = until === null ? queue : queue.slice(0, queue.indexOf(until));
      const holders = model.holders(key).filter((hold) => hold.plainTtlMs === null);
      return [...holders, ...before].some((other) => hasToWait(asMode, other) && reaches(other.leaseId));
    };
    return waits(name, mode, null);
  }
}

function hasToWait(mode: LockMode, { mode: before }: ModelKey | Place): boolean {
  if (before.kind === "shared") return mode.kind !== "shared";
  return before.kind !== "limit" || before.permits === 1;
}
