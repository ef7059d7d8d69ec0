import type { Reply } from "#src/engine/reply.js";
import type { Session } from "#src/ports.js";
import type { SimRequest } from "./request.js";
import type { SimNode } from "./sim-node.js";
import type { SimSession } from "./sim-session.js";
import type { World } from "./sim-world.js";

/**
 * One connection between a client and one incarnation of the server. In each direction messages arrive in order, each after a
 * delay of its own. When the connection breaks, what is under way may still arrive at the server, a prefix of it; the client hears
 * nothing any more. Neither end learns at once of the other's end.
 */

export interface WireOptions {
  readonly delayMsMean: number;
  /** The chance that a message is much slower than the others. */
  readonly slowChance: number;
  readonly slowMsMax: number;
}

/** The client's end. */
export interface WireClient {
  readonly name: string;
  hear(request: SimRequest, reply: Reply): void;
  /** The connection is gone; what was not answered has an unknown outcome. */
  lost(connection: Connection): void;
}

export class Connection {
  readonly #world: World;
  readonly #options: WireOptions;
  readonly #client: WireClient;
  readonly #node: SimNode;
  #session: SimSession | null = null;
  #up: SimRequest[] = [];
  #lastUpMs = 0;
  #lastDownMs = 0;
  /** The client has given it up, or knows that it is gone. */
  #clientGone = false;
  #serverGone = false;
  /** Replies that would arrive later are lost. */
  #downCutMs = Infinity;

  constructor(world: World, options: WireOptions, client: WireClient, node: SimNode) {
    this.#world = world;
    this.#options = options;
    this.#client = client;
    this.#node = node;
  }

  send(request: SimRequest): void {
    if (this.#clientGone) return;
    this.#up.push(request);
    this.#lastUpMs = Math.max(this.#lastUpMs, this.#world.nowMs + this.#delayMs());
    // Each arrival takes the oldest message, so that no delay changes the order.
    this.#node.host.enterAt(this.#lastUpMs, () => this.#arrive());
  }

  #arrive(): void {
    const request = this.#up.shift();
    if (request === undefined || this.#serverGone) return;
    this.#session ??= this.#node.accept(this.#client.name, {
      reply: (answered, reply) => this.#sendDown(answered, reply),
      closed: () => this.closedByServer(),
    });
    this.#session.receive(request, this.#world.random.fraction());
  }

  #sendDown(request: SimRequest, reply: Reply): void {
    this.#lastDownMs = Math.max(this.#lastDownMs, this.#world.nowMs + this.#delayMs());
    this.#world.at(this.#lastDownMs, () => {
      if (!this.#clientGone && this.#world.nowMs <= this.#downCutMs) this.#client.hear(request, reply);
    });
  }

  /** Whether the server's end is this session. */
  isOf(session: Session): boolean {
    return this.#session === session;
  }

  /** The client gives the connection up; `keeps` requests that are under way still arrive. */
  giveUp(keeps: number): void {
    if (this.#clientGone) return;
    this.#clientGone = true;
    this.#up = this.#up.slice(0, keeps);
    const arrivedMs = keeps > 0 ? this.#lastUpMs : this.#world.nowMs;
    this.#node.host.enterAt(arrivedMs + this.#delayMs(), () => {
      this.#serverGone = true;
      if (this.#session !== null) this.#node.sessionLost(this.#session);
    });
  }

  /** The server closed it, or is dead: the client learns of it after what was sent before. */
  closedByServer(): void {
    if (this.#serverGone) return;
    this.#serverGone = true;
    this.#up = [];
    this.#world.at(Math.max(this.#lastDownMs, this.#world.nowMs + this.#delayMs()), () => {
      if (this.#clientGone) return;
      this.#clientGone = true;
      this.#client.lost(this);
    });
    // The socket's own end is heard of a little later, as from a real one.
    const session = this.#session;
    if (session !== null) {
      this.#node.host.enterAt(this.#world.nowMs + this.#delayMs(), () => this.#node.sessionLost(session));
    }
  }

  /** The server's process died: some of the replies under way, the newer ones, are lost with it. */
  cutByCrash(): void {
    const { nowMs, random } = this.#world;
    this.#downCutMs = random.between(nowMs, Math.max(nowMs, this.#lastDownMs));
    this.closedByServer();
  }

  #delayMs(): number {
    const { random } = this.#world;
    const { delayMsMean, slowChance, slowMsMax } = this.#options;
    return random.chance(slowChance) ? random.between(0, slowMsMax) : random.exponential(delayMsMean);
  }
}
