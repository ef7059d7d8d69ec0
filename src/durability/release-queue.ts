import { invariant } from "../engine/invariant.js";
import type { Revision } from "../engine/op.js";
import type { Reply } from "../engine/reply.js";
import type { Session } from "../ports.js";

/**
 * Replies that wait until what they reveal is durable.
 *
 * Replies are kept in the order of their revisions, and among equals in the order in which they were parked. Most arrive in that
 * order; a read that saw an older change than the newest one is put in its place by a binary search, so that it does not wait for
 * a sync more than it has to.
 *
 * A session that is gone is only remembered here, with the newest revision parked at that moment: nothing of it can lie behind
 * that one. Its replies are skipped when their turn comes, and the note is dropped with the last of them. So forgetting costs O(1)
 * however much is parked and however many sessions go at once.
 *
 * Invariants:
 *  1. A reply is delivered at most once, and only after a release at or above its revision.
 *  2. The released revision never falls.
 *  3. Nothing is delivered to a session after `forget`.
 */

interface ParkedReply {
  readonly revision: Revision;
  readonly session: Session;
  readonly ticket: number;
  readonly reply: Reply;
}

/** Delivered entries at the front of the array are cut off once there are this many of them and they are the larger half. */
const FRONT_CUT_MIN = 1024;

export class ReleaseQueue {
  #parked: ParkedReply[] = [];
  /** Index of the first reply that is not delivered. */
  #front = 0;
  #releasedRevision: Revision = 0;
  #newestParkedRevision: Revision = 0;
  /** Gone sessions, with the revision from which on nothing of theirs can be parked; in rising order of it. */
  readonly #forgotten = new Map<Session, Revision>();
  #releasing = false;

  /** Replies that wait, those of sessions that are gone included until their revision is durable. */
  get size(): number {
    return this.#parked.length - this.#front;
  }

  /** Keeps a reply until `release(revision)`. The revision is not durable yet, the session not forgotten. */
  park(revision: Revision, session: Session, ticket: number, reply: Reply): void {
    invariant(revision > this.#releasedRevision, "what is durable need not wait");
    const entry: ParkedReply = { revision, session, ticket, reply };
    if (revision >= this.#newestParkedRevision) {
      this.#newestParkedRevision = revision;
      this.#parked.push(entry);
    } else {
      this.#parked.splice(this.#indexBehind(revision), 0, entry);
    }
  }

  /** Delivers, in order, everything parked up to `durableRevision`. A delivery may park, forget, or submit more. */
  release(durableRevision: Revision): void {
    invariant(durableRevision >= this.#releasedRevision, "the durable revision never falls");
    invariant(!this.#releasing, "a release inside a release");
    this.#releasedRevision = durableRevision;
    this.#releasing = true;
    for (;;) {
      const entry = this.#parked[this.#front];
      if (entry === undefined || entry.revision > durableRevision) break;
      this.#front += 1;
      if (this.#forgotten.size > 0 && this.#forgotten.has(entry.session)) continue;
      entry.session.deliver(entry.ticket, entry.reply);
    }
    this.#releasing = false;
    this.#cutFront();
    for (const [session, lastRevision] of this.#forgotten) {
      if (lastRevision > durableRevision) break;
      this.#forgotten.delete(session);
    }
  }

  /** A session is gone: its replies are dropped. It never parks again. */
  forget(session: Session): void {
    if (this.size === 0 && !this.#releasing) return;
    if (!this.#forgotten.has(session)) this.#forgotten.set(session, this.#newestParkedRevision);
  }

  /**
   * Fail-stop or step-down: forgets every reply and tells which sessions waited, each once. Their outcomes are unknown: the
   * caller closes them. A new durable revision may be lower afterwards (another store state after a take-over).
   */
  discard(): readonly Session[] {
    const waiting = new Set<Session>();
    for (let index = this.#front; index < this.#parked.length; index += 1) {
      const session = this.#parked[index]?.session;
      if (session !== undefined && !this.#forgotten.has(session)) waiting.add(session);
    }
    this.#parked = [];
    this.#front = 0;
    this.#releasedRevision = 0;
    this.#newestParkedRevision = 0;
    this.#forgotten.clear();
    return [...waiting];
  }

  /** Index of the first parked reply with a larger revision. */
  #indexBehind(revision: Revision): number {
    let low = this.#front;
    let high = this.#parked.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      const entry = this.#parked[middle];
      if (entry !== undefined && entry.revision <= revision) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  #cutFront(): void {
    if (this.#front === this.#parked.length) {
      this.#parked = [];
      this.#front = 0;
    } else if (this.#front >= FRONT_CUT_MIN && this.#front * 2 > this.#parked.length) {
      this.#parked.splice(0, this.#front);
      this.#front = 0;
    }
  }
}
