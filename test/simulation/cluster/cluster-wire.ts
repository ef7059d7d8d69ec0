import type { Command } from "#src/engine/command.js";
import type { Reply } from "#src/engine/reply.js";
import type { World } from "../sim-world.js";
import type { ClusterNode } from "./cluster-node.js";
import type { ClusterSession } from "./cluster-session.js";

/** One command on its way. */
export interface Request {
  readonly number: number;
  readonly command: Command;
  /** By the client's clock, before it was sent. */
  readonly sentAtMs: number;
}

/** The client's end. */
export interface WireEnd {
  readonly name: string;
  hear(request: Request, reply: Reply): void;
  /** The connection is gone; what was not answered has an unknown outcome. */
  lost(): void;
}

const DELAY_MS_MEAN = 1;

/**
 * One connection between a client and one incarnation of a node. Each way messages arrive in order, after delays of their own. When
 * it breaks, what is under way to the server may still arrive; the client hears nothing any more.
 */
export class Wire {
  readonly #world: World;
  readonly #end: WireEnd;
  readonly #node: ClusterNode;
  #session: ClusterSession | null = null;
  #up: Request[] = [];
  #upMs = 0;
  #downMs = 0;
  #clientGone = false;
  #serverGone = false;

  constructor(world: World, end: WireEnd, node: ClusterNode) {
    this.#world = world;
    this.#end = end;
    this.#node = node;
    node.wires.add(this);
  }

  send(request: Request): void {
    if (this.#clientGone) return;
    this.#up.push(request);
    this.#upMs = Math.max(this.#upMs, this.#world.nowMs + this.#delayMs());
    this.#world.at(this.#upMs, () => this.#node.host.enter(() => this.#arrive()));
  }

  #arrive(): void {
    const request = this.#up.shift();
    if (request === undefined || this.#serverGone) return;
    this.#session ??= this.#node.accept(this.#end.name, this);
    this.#session.receive(request);
  }

  /** From the server. */
  reply(request: Request, reply: Reply): void {
    this.#downMs = Math.max(this.#downMs, this.#world.nowMs + this.#delayMs());
    this.#world.at(this.#downMs, () => {
      if (!this.#clientGone) this.#end.hear(request, reply);
    });
  }

  /** The client gives it up; what it sent may still arrive. */
  giveUp(): void {
    if (this.#clientGone) return;
    this.#clientGone = true;
    if (this.#world.random.chance(0.5)) this.#up = [];
    this.#world.at(this.#upMs + this.#delayMs(), () =>
      this.#node.host.enter(() => {
        this.#serverGone = true;
        this.#forget();
      }),
    );
  }

  /** The server closes it, or is dead: the client hears of it after what was sent before. */
  closedByServer(): void {
    if (this.#serverGone) return;
    this.#serverGone = true;
    this.#up = [];
    this.#world.at(Math.max(this.#downMs, this.#world.nowMs + this.#delayMs()), () => {
      if (this.#clientGone) return;
      this.#clientGone = true;
      this.#end.lost();
    });
    // The socket's own end is heard of a little later, as from a real one.
    this.#world.after(this.#delayMs(), () => this.#node.host.enter(() => this.#forget()));
  }

  #forget(): void {
    this.#node.wires.delete(this);
    if (this.#session !== null) this.#node.sessionLost(this.#session);
  }

  #delayMs(): number {
    return this.#world.random.exponential(DELAY_MS_MEAN);
  }
}
