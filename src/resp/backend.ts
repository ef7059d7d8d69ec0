import type { Command } from "../engine/command.js";
import type { Reply } from "../engine/reply.js";
import type { NodeReport, PARKED, SATURATED, Session } from "../ports.js";

/**
 * What the RESP surface asks of the rest of the server. `coordinator.ts` is it in production; tests of this folder bring a
 * small one of their own.
 */

export interface Backend {
  /**
   * Runs one engine command now. Returns its reply when that reply reveals only durable state; PARKED when it has to wait;
   * SATURATED when the command could not be taken.
   */
  submit(command: Command, session: Session, ticket: number): Reply | typeof PARKED | typeof SATURATED;

  /** Calls back once when there is room for writes again. */
  onRoom(callback: () => void): void;

  /** A session is gone: replies parked for it are dropped. */
  forget(session: Session): void;

  report(): NodeReport;

  /** FAILOVER: finishes the batch in flight, gives up the primary role, closes every session but `except`. */
  stepDown(except: Session | null, done: (reply: Reply) => void): void;

  /** REPLICAOF NO ONE: takes the primary role; answers once the node serves, or at once if it is primary already. */
  takeRole(done: (reply: Reply) => void): void;

  /** SHUTDOWN: the same as SIGTERM. */
  shutdown(): void;
}
