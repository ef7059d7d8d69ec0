import { ErrorReply, type Reply } from "#src/engine/reply.js";
import { PARKED, SATURATED, type Session } from "#src/ports.js";
import type { ClusterNode } from "./cluster-node.js";
import type { Request, Wire } from "./cluster-wire.js";
import { demand } from "./rules.js";

interface Slot {
  readonly request: Request;
  readonly ticket: number;
  reply: Reply | undefined;
}

/** A node that serves says neither. */
export const isRefusal = (reply: Reply): boolean =>
  reply instanceof ErrorReply && /^(READONLY|LOADING) /.test(reply.text);

/**
 * The server's end of one connection: what `resp/connection.ts` is in production, without bytes. Replies go out in the order of the
 * requests. Between the reading of the clock and what is done at it the process may stand still.
 */
export class ClusterSession implements Session {
  readonly origin: { readonly databaseIndex: number; readonly owner: string };
  nowMs = 0;
  readonly #node: ClusterNode;
  readonly #wire: Wire;
  #slots: Slot[] = [];
  #backlog: Request[] = [];
  #waits = false;
  #nextTicket = 1;
  #isClosed = false;

  constructor(node: ClusterNode, owner: string, wire: Wire) {
    this.#node = node;
    this.#wire = wire;
    this.origin = { databaseIndex: 0, owner };
  }

  receive(request: Request): void {
    if (this.#isClosed) return;
    this.#backlog.push(request);
    if (!this.#waits) this.#turn();
  }

  deliver(ticket: number, reply: Reply): void {
    if (this.#isClosed) return;
    const slot = this.#slots.find((candidate) => candidate.ticket === ticket);
    demand(
      slot !== undefined && slot.reply === undefined,
      "ports",
      () => `ticket ${ticket} is answered twice, or was never parked`,
    );
    slot.reply = reply;
    this.#flush();
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#drop();
    this.#wire.closedByServer();
  }

  /** The connection is gone; the server hears of it now. */
  lost(): void {
    this.#isClosed = true;
    this.#drop();
    this.#node.coordinator.forget(this);
  }

  #drop(): void {
    this.#slots = [];
    this.#backlog = [];
  }

  /** Runs what has arrived with one reading of the clock. */
  #turn(): void {
    this.#waits = false;
    if (this.#isClosed) return;
    this.nowMs = this.#node.host.clock.monotonicMs();
    if (!this.#node.standsStill("turn")) {
      this.#run();
      return;
    }
    this.#waits = true;
    this.#node.host.enter(() => {
      this.#waits = false;
      this.#run();
    });
  }

  #run(): void {
    while (!this.#waits && !this.#isClosed) {
      const request = this.#backlog.shift();
      if (request === undefined) return;
      this.#submit(request);
    }
  }

  #submit(request: Request): void {
    const ticket = this.#nextTicket;
    this.#nextTicket += 1;
    const reply = this.#node.coordinator.submit(request.command, this, ticket);
    if (reply === SATURATED) {
      this.#backlog.unshift(request);
      this.#waits = true;
      this.#node.coordinator.onRoom(() => this.#turn());
      return;
    }
    this.#slots.push({ request, ticket, reply: reply === PARKED ? undefined : reply });
    this.#flush();
  }

  #flush(): void {
    for (;;) {
      const first = this.#slots[0];
      if (first === undefined || first.reply === undefined) return;
      this.#slots.shift();
      if (!isRefusal(first.reply)) this.#node.acknowledges();
      this.#wire.reply(first.request, first.reply);
    }
  }
}
