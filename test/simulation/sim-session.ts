import type { Coordinator } from "#src/coordinator.js";
import type { Reply } from "#src/engine/reply.js";
import { PARKED, SATURATED, type Session } from "#src/ports.js";
import type { Oracle } from "./oracle.js";
import type { SimRequest } from "./request.js";
import { check } from "./violation.js";

/**
 * The server's end of one connection: what `resp/connection.ts` is in production, without bytes. It submits commands in the order in
 * which they arrive, holds its input back while the server has no room, and sends replies in the order of the requests, whatever
 * the order in which they become ready.
 */

interface Slot {
  readonly request: SimRequest;
  reply: Reply | undefined;
}

/** What a session tells its connection. */
export interface SessionEnd {
  /** The next reply, in the order of the requests. */
  reply(request: SimRequest, reply: Reply): void;
  /** The server closes the connection. */
  closed(): void;
}

export class SimSession implements Session {
  readonly origin: { databaseIndex: number; readonly owner: string };
  readonly #coordinator: Coordinator;
  readonly #oracle: Oracle;
  readonly #end: SessionEnd;
  /** In the order of the requests, oldest first. */
  #slots: { readonly ticket: number; readonly slot: Slot }[] = [];
  #backlog: SimRequest[] = [];
  #waitsForRoom = false;
  #nextTicket = 1;
  #isClosed = false;
  #isForgotten = false;
  /** Set when the store has failed: not a word may come through any more. */
  silenced = false;

  constructor(coordinator: Coordinator, oracle: Oracle, owner: string, end: SessionEnd) {
    this.#coordinator = coordinator;
    this.#oracle = oracle;
    this.#end = end;
    this.origin = { databaseIndex: 0, owner };
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** Requests that have not been answered. */
  get waiting(): number {
    return this.#slots.length + this.#backlog.length;
  }

  receive(request: SimRequest): void {
    if (this.#isClosed) return;
    if (this.#waitsForRoom) this.#backlog.push(request);
    else this.#submit(request);
  }

  deliver(ticket: number, reply: Reply): void {
    check(!this.silenced, "fail-stop", () => "a reply after the store failed");
    check(!this.#isForgotten, "I8-replies", () => "a reply for a session that was forgotten");
    if (this.#isClosed) return;
    const waiting = this.#slots.find((candidate) => candidate.ticket === ticket);
    const isExpected = waiting !== undefined && waiting.slot.reply === undefined;
    check(isExpected, "I8-replies", () => `ticket ${ticket} is answered twice, or was never parked`);
    this.#oracle.released(waiting.slot.request, reply);
    waiting.slot.reply = reply;
    this.#flush();
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#slots = [];
    this.#backlog = [];
    this.#end.closed();
  }

  /** The connection is gone; the server hears of it now. */
  lost(): void {
    if (this.#isForgotten) return;
    this.#isClosed = true;
    this.#isForgotten = true;
    this.#slots = [];
    this.#backlog = [];
    this.#coordinator.forget(this);
  }

  #submit(request: SimRequest): void {
    const ticket = this.#nextTicket;
    this.#nextTicket += 1;
    this.origin.databaseIndex = request.databaseIndex;
    this.#oracle.beginSubmit(request);
    const reply = this.#coordinator.submit(request.command, this, ticket);
    this.#oracle.endSubmit();
    if (reply === SATURATED) {
      check(request.decision === null, "I8-replies", () => "saturated, and decided all the same");
      this.#backlog.unshift(request);
      this.#waitsForRoom = true;
      this.#coordinator.onRoom(() => this.#resume());
      return;
    }
    const slot: Slot = { request, reply: undefined };
    this.#slots.push({ ticket, slot });
    if (reply === PARKED) {
      const { decision } = request;
      check(decision !== null, "I8-replies", () => "parked without having been decided");
      const { durableRevision } = this.#coordinator.report();
      const hasToWait = request.command.kind !== "lease-keepalive" || decision.requiredRevision > durableRevision;
      check(hasToWait, "release", () => `a keep-alive waits for nothing: ${request.number}`);
      return;
    }
    // Without a decision it is the refusal of a server that does not serve: nothing happened.
    if (request.decision !== null) this.#oracle.released(request, reply);
    slot.reply = reply;
    this.#flush();
  }

  #resume(): void {
    if (this.#isClosed) return;
    this.#waitsForRoom = false;
    while (!this.#waitsForRoom) {
      const request = this.#backlog.shift();
      if (request === undefined) return;
      this.#submit(request);
    }
  }

  #flush(): void {
    for (;;) {
      const first = this.#slots[0];
      if (first === undefined || first.slot.reply === undefined) return;
      this.#slots.shift();
      this.#end.reply(first.slot.request, first.slot.reply);
    }
  }
}
