import type { Coordinator } from "#src/coordinator.js";
import type { Reply } from "#src/engine/reply.js";
import { PARKED, SATURATED, type Clock, type Scheduler, type Session } from "#src/ports.js";
import type { Oracle } from "./oracle.js";
import { mayWait, type SimRequest } from "./request.js";
import { check } from "./violation.js";

/**
 * The server's end of one connection: what `resp/connection.ts` is in production, without bytes. It submits commands in the order in
 * which they arrive, holds its input back while the server has no room or a command waits for a key, and sends replies in the order of the requests, whatever
 * the order in which they become ready.
 */

interface Slot {
  readonly request: SimRequest;
  reply: Reply | undefined;
}

/** Where a session lives, and how its turns go. */
export interface SessionOptions {
  readonly coordinator: Coordinator;
  readonly oracle: Oracle;
  readonly clock: Clock;
  readonly scheduler: Scheduler;
  /** The chance that what arrives waits for other input of its connection. */
  readonly batchChance: number;
  /** A command has run; time passes. */
  spend(): void;
  /** A deliberate bug: a turn that goes on where another was held up keeps the reading of that one. */
  readonly keepsOldReading: boolean;
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
  /** The one clock reading of the turn that runs. */
  nowMs = 0;
  readonly #options: SessionOptions;
  readonly #end: SessionEnd;
  /** In the order of the requests, oldest first. */
  #slots: { readonly ticket: number; readonly slot: Slot }[] = [];
  /** What has arrived and did not run yet. */
  #backlog: SimRequest[] = [];
  #waitsForRoom = false;
  #waitsForTurn = false;
  #nextTicket = 1;
  /** A command that waits for a key, or may: what came after it runs when it is answered. */
  #blocked: { readonly ticket: number; readonly request: SimRequest } | null = null;
  #isClosed = false;
  #isForgotten = false;
  /** Set when the store has failed: not a word may come through any more. */
  silenced = false;

  constructor(options: SessionOptions, owner: string, end: SessionEnd) {
    this.#options = options;
    this.#end = end;
    this.origin = { databaseIndex: 0, owner };
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  get isBlocked(): boolean {
    return this.#blocked !== null;
  }

  /** `dice`: a number from 0 to 1 that decides whether the request runs at once. */
  receive(request: SimRequest, dice: number): void {
    if (this.#isClosed) return;
    this.#backlog.push(request);
    if (this.#isHeld) return;
    if (dice >= this.#options.batchChance) {
      this.#turn();
      return;
    }
    this.#askForTurn();
  }

  get #isHeld(): boolean {
    return this.#waitsForRoom || this.#waitsForTurn || this.#blocked !== null;
  }

  #askForTurn(): void {
    this.#waitsForTurn = true;
    this.#options.scheduler.soon(() => this.#turn());
  }

  deliver(ticket: number, reply: Reply): void {
    check(!this.silenced, "fail-stop", () => "a reply after the store failed");
    check(!this.#isForgotten, "I8-replies", () => "a reply for a session that was forgotten");
    if (this.#isClosed) return;
    const waiting = this.#slots.find((candidate) => candidate.ticket === ticket);
    const isExpected = waiting !== undefined && waiting.slot.reply === undefined;
    check(isExpected, "I8-replies", () => `ticket ${ticket} is answered twice, or was never parked`);
    this.#options.oracle.released(waiting.slot.request, reply);
    waiting.slot.reply = reply;
    if (ticket === this.#blocked?.ticket) {
      this.#blocked = null;
      this.#askForTurn();
    }
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
    const { coordinator, oracle } = this.#options;
    oracle.connectionGone(this.#slots.map(({ slot }) => slot.request));
    this.#slots = [];
    this.#backlog = [];
    coordinator.forget(this);
    if (coordinator.report().role === "primary") oracle.connectionForgotten();
  }

  /** Runs what has arrived, all of it with one reading of the clock. */
  #turn(): void {
    this.#waitsForTurn = false;
    if (this.#isClosed) return;
    this.nowMs = this.#options.clock.monotonicMs();
    this.#runBacklog();
  }

  #runBacklog(): void {
    while (!this.#waitsForRoom && this.#blocked === null && !this.#isClosed) {
      const request = this.#backlog.shift();
      if (request === undefined) return;
      this.#submit(request);
      this.#options.spend();
    }
  }

  #submit(request: SimRequest): void {
    const { oracle } = this.#options;
    const ticket = this.#nextTicket;
    this.#nextTicket += 1;
    this.origin.databaseIndex = request.databaseIndex;
    oracle.beginSubmit(request, this.nowMs);
    const reply = this.#carryOut(request, ticket);
    oracle.endSubmit();
    if (reply === SATURATED) {
      check(request.decision === null, "I8-replies", () => "saturated, and decided all the same");
      this.#backlog.unshift(request);
      this.#waitsForRoom = true;
      this.#options.coordinator.onRoom(() => this.#resume());
      return;
    }
    const slot: Slot = { request, reply: undefined };
    this.#slots.push({ ticket, slot });
    if (reply === PARKED) {
      this.#checkParked(request);
      if (mayWait(request.command)) this.#blocked = { ticket, request };
      return;
    }
    // Without a decision it is the refusal of a server that does not serve: nothing happened.
    if (request.decision !== null) oracle.released(request, reply);
    slot.reply = reply;
    this.#flush();
  }

  #carryOut(request: SimRequest, ticket: number): Reply | typeof PARKED | typeof SATURATED {
    const { coordinator, oracle } = this.#options;
    const { command } = request;
    if (command.kind !== "step") return coordinator.submit(command, this, ticket);
    return coordinator.atomically(this, ticket, (run) => {
      const replies = command.commands.map((part) => run(part));
      oracle.stepDone(request, replies);
      return replies;
    });
  }

  #checkParked(request: SimRequest): void {
    const { coordinator, oracle } = this.#options;
    const { decision, command } = request;
    if (decision === null) {
      const waits = mayWait(command) && oracle.queues.asks.some((ask) => ask.request === request);
      check(waits, "I8-replies", () => "parked without having been decided");
      return;
    }
    const { durableRevision } = coordinator.report();
    const hasToWait = command.kind !== "lease-keepalive" || decision.requiredRevision > durableRevision;
    check(hasToWait, "release", () => `a keep-alive waits for nothing: ${request.number}`);
  }

  #resume(): void {
    this.#waitsForRoom = false;
    if (this.#options.keepsOldReading) this.#runBacklog();
    else this.#turn();
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
