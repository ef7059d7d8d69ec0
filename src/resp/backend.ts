import type { Command } from "../engine/command.js";
import type { ByteString, Reply } from "../engine/reply.js";
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

  /**
   * Runs several engine commands as one step, for EXEC and scripts: `work` is called at once and runs to its end before
   * anything else does; all commands that it runs see the same time, each sees the effects of those before, and what they change is
   * one batch: after a crash all of it is there or nothing. `session.origin` is read at each command, so that SELECT takes effect in
   * between.
   *
   * The answer is what `work` returned, under the rules of `submit`: PARKED until everything that it saw and did is durable. SATURATED, or the
   * refusal of a node without the role: `work` was not called. What `work` throws comes out of here, and is a programmer error.
   */
  atomically(
    session: Session,
    ticket: number,
    work: (run: (command: Command) => Reply) => Reply,
  ): Reply | typeof PARKED | typeof SATURATED;

  /**
   * For WATCH: a number that rises with every change to the key: set, deleted, taken over, expired (also by time alone, when the tick has
   * not come yet). 0 for a key without a trace. Any two calls with different numbers have a change between them; a change of
   * another key may be one too, but not of an unrelated database.
   */
  revisionOf(databaseIndex: number, key: ByteString): number;

  /**
   * For CLIENT UNBLOCK: a command of this session that waits in a queue leaves it and is answered with `reply`. False when none waits, or
   * it has been granted already.
   */
  unblock(session: Session, reply: Reply): boolean;

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
