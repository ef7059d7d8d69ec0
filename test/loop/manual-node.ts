import { Coordinator } from "#src/coordinator.js";
import { MemoryDisk, MemoryStore } from "#src/durability/memory-store.js";
import type { Command, Origin } from "#src/engine/command.js";
import type { EngineEvent } from "#src/engine/events.js";
import { DEFAULT_ENGINE_LIMITS } from "#src/engine/limits.js";
import type { Reply } from "#src/engine/reply.js";
import { PARKED, SATURATED, type Session } from "#src/ports.js";
import { countingIds, ManualClock, ManualScheduler, noFault } from "../durability/manual.js";
import { plain } from "../engine/manual-engine.js";

/** The real loop, engine and committer over the memory store, under a clock and a scheduler that only a test moves. */
export class ManualNode {
  readonly clock = new ManualClock();
  readonly scheduler = new ManualScheduler(this.clock);
  readonly store: MemoryStore;
  readonly events: EngineEvent[] = [];
  readonly sessions = new Set<Client>();
  readonly coordinator: Coordinator;
  failure: string | null = null;

  constructor(disk = new MemoryDisk(), batchBytesMax = 1024 * 1024) {
    const ids = countingIds();
    this.store = new MemoryStore({ scheduler: this.scheduler, ids, disk });
    this.coordinator = new Coordinator({
      store: this.store,
      engineLimits: { ...DEFAULT_ENGINE_LIMITS, clockErrorPerMille: 0 },
      batchBytesMax,
      clock: this.clock,
      scheduler: this.scheduler,
      ids,
      log: { write: () => undefined },
      fault: noFault,
      events: { hasListeners: true, publish: (event) => this.events.push(event) },
      closeSessions: (except) => {
        for (const session of this.sessions) if (session !== except) session.close();
      },
      onFailure: (error) => {
        this.failure = error.message;
      },
    });
    this.coordinator.start((error) => {
      if (error !== null) throw error;
    });
    this.scheduler.run();
  }

  client(databaseIndex = 0): Client {
    const client = new Client(this, databaseIndex);
    this.sessions.add(client);
    return client;
  }

  /** Everything on its way becomes durable and is answered. */
  settle(): void {
    this.scheduler.run();
  }

  takeEvents(): string[] {
    return this.events.splice(0).map((event) => {
      if (event.kind === "keyspace") return `${event.event} ${event.key}`;
      return event.kind === "lock" ? `lock:${event.key} ${event.message}` : `lease:${event.id} ${event.message}`;
    });
  }
}

export class Client implements Session {
  readonly origin: Origin;
  get nowMs(): number {
    return this.#node.clock.monotonicMs();
  }
  /** Replies in the order in which they came, by ticket. */
  readonly replies = new Map<number, unknown>();
  isClosed = false;
  readonly #node: ManualNode;
  #ticket = 0;

  constructor(node: ManualNode, databaseIndex: number) {
    this.#node = node;
    this.origin = { databaseIndex, owner: "tester" };
  }

  deliver(ticket: number, reply: Reply): void {
    if (this.isClosed) throw new Error("delivered to a closed session");
    if (this.replies.has(ticket)) throw new Error("answered twice");
    this.replies.set(ticket, plain(reply));
  }

  close(): void {
    if (this.isClosed) return;
    this.isClosed = true;
    this.#node.sessions.delete(this);
    this.#node.coordinator.forget(this);
  }

  /** Sends a command. Returns its ticket: its reply is in `replies` once it came. */
  send(command: Command): number {
    this.#ticket += 1;
    this.#note(this.#ticket, this.#node.coordinator.submit(command, this, this.#ticket));
    return this.#ticket;
  }

  step(work: (run: (command: Command) => Reply) => Reply): number {
    this.#ticket += 1;
    this.#note(this.#ticket, this.#node.coordinator.atomically(this, this.#ticket, work));
    return this.#ticket;
  }

  /** Sends a command and lets everything settle. Returns its reply, undefined when it waits. */
  ask(command: Command): unknown {
    const ticket = this.send(command);
    this.#node.settle();
    return this.replies.get(ticket);
  }

  #note(ticket: number, result: Reply | typeof PARKED | typeof SATURATED): void {
    if (result === SATURATED) this.replies.set(ticket, "saturated");
    else if (result !== PARKED) this.replies.set(ticket, plain(result));
  }
}
