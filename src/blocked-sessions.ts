import type { Grant, WaitId } from "./engine/engine.js";
import type { Revision, Token } from "./engine/op.js";
import type { Session } from "./ports.js";

/** The loop's side of waiting: which connection waits under which name, and grants that are on their way to a connection. */

/** A blocked command. */
export interface BlockedCommand {
  readonly session: Session;
  readonly ticket: number;
}

/** Blocked commands by the engine's names for them. A session may have several, as the loop sees it. */
export class BlockedSessions {
  readonly #commands = new Map<WaitId, BlockedCommand>();
  readonly #bySession = new Map<Session, Set<WaitId>>();

  get size(): number {
    return this.#commands.size;
  }

  add(waitId: WaitId, session: Session, ticket: number): void {
    this.#commands.set(waitId, { session, ticket });
    const own = this.#bySession.get(session);
    if (own === undefined) this.#bySession.set(session, new Set([waitId]));
    else own.add(waitId);
  }

  /** Takes out a command that has its answer. null: nobody waits for the answer any more. */
  take(waitId: WaitId): BlockedCommand | null {
    const command = this.#commands.get(waitId);
    if (command === undefined) return null;
    this.#commands.delete(waitId);
    const own = this.#bySession.get(command.session);
    own?.delete(waitId);
    if (own?.size === 0) this.#bySession.delete(command.session);
    return command;
  }

  of(session: Session): readonly WaitId[] {
    return [...(this.#bySession.get(session) ?? [])];
  }

  /** The session is gone: nothing is answered to it. Returns what it waited for. */
  forget(session: Session): readonly WaitId[] {
    const waitIds = this.of(session);
    for (const waitId of waitIds) this.#commands.delete(waitId);
    this.#bySession.delete(session);
    return waitIds;
  }

  sessions(): Iterable<Session> {
    return this.#bySession.keys();
  }
}

interface Underway {
  readonly grant: Grant;
  readonly revision: Revision;
  /** Who is to hear of it. */
  readonly sessions: Set<Session>;
}

/**
 * Grants to waiters whose answers are not delivered yet, because they are not durable yet. When every connection that was to hear of
 * one has gone before, nobody knows of it, and the key goes to the next in the queue.
 *
 * A client that lost its connection may have asked again over another one and been told meanwhile that it has the key: then the grant
 * stands (`told`).
 *
 * Invariant: each token is one grant, and is dropped with the delivery of its answers.
 */
export class GrantsUnderway {
  readonly #byToken = new Map<Token, Underway>();
  readonly #bySession = new Map<Session, Set<Token>>();
  /** In rising order of their revisions. */
  #order: { readonly token: Token; readonly revision: Revision }[] = [];

  get size(): number {
    return this.#byToken.size;
  }

  add(grant: Grant, session: Session, revision: Revision): void {
    const { token } = grant;
    let underway = this.#byToken.get(token);
    if (underway === undefined) {
      underway = { grant, revision, sessions: new Set() };
      this.#byToken.set(token, underway);
      this.#order.push({ token, revision });
    }
    underway.sessions.add(session);
    const own = this.#bySession.get(session);
    if (own === undefined) this.#bySession.set(session, new Set([token]));
    else own.add(token);
  }

  /** Somebody was told by another answer that it holds a key under this token. */
  told(token: Token): void {
    const underway = this.#byToken.get(token);
    if (underway === undefined) return;
    this.#byToken.delete(token);
    for (const session of underway.sessions) this.#drop(session, token);
  }

  /** Everything up to this revision is delivered. */
  delivered(durableRevision: Revision): void {
    let count = 0;
    for (const { token, revision } of this.#order) {
      if (revision > durableRevision) break;
      count += 1;
      this.told(token);
    }
    if (count > 0) this.#order = this.#order.slice(count);
  }

  /** A session is gone. Returns the grants that nobody will hear of now. */
  forget(session: Session): readonly Grant[] {
    const unheard: Grant[] = [];
    for (const token of this.#bySession.get(session) ?? []) {
      const underway = this.#byToken.get(token);
      if (underway === undefined) continue;
      underway.sessions.delete(session);
      if (underway.sessions.size > 0) continue;
      this.#byToken.delete(token);
      unheard.push(underway.grant);
    }
    this.#bySession.delete(session);
    return unheard;
  }

  #drop(session: Session, token: Token): void {
    const own = this.#bySession.get(session);
    own?.delete(token);
    if (own?.size === 0) this.#bySession.delete(session);
  }
}
