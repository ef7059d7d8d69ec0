import type { Command } from "../../engine/command.js";
import { ErrorReply, type Reply } from "../../engine/reply.js";
import { PARKED, SATURATED, type Session } from "../../ports.js";
import type { Backend } from "../backend.js";
import type { ClientConnection, RunResult } from "../command.js";

/**
 * For commands that answer later, or that ask the engine something and make their own answer of it (OBJECT ENCODING of a key's
 * value). Plain engine commands need none of this: they have `parse`, and the connection submits them.
 */

/**
 * Starts something that answers once through the callback, now or later. The answer of a connection that has gone in the
 * meantime is dropped.
 */
export function answerLater(connection: ClientConnection, start: (answer: (reply: Reply) => void) => void): RunResult {
  const { ticket } = connection;
  let hasReturned = false;
  let early: { readonly reply: Reply } | null = null;
  start((reply) => {
    if (!hasReturned) early = { reply };
    else if (!connection.isClosed) connection.deliver(ticket, reply);
  });
  hasReturned = true;
  return early === null ? PARKED : (early as { readonly reply: Reply }).reply;
}

/** Runs an engine command and answers what `translate` makes of its reply; an error goes to the client as it is. */
export function askEngine(
  backend: Backend,
  connection: ClientConnection,
  command: Command,
  translate: (reply: Reply) => Reply,
): RunResult {
  const { ticket } = connection;
  return answerLater(connection, (answer) => {
    const finish = (reply: Reply): void => {
      answer(reply instanceof ErrorReply ? reply : translate(reply));
    };
    const session: Session = {
      origin: connection.origin,
      get nowMs() {
        return connection.nowMs;
      },
      deliver: (_ticket, reply) => {
        finish(reply);
      },
      close: (reason) => {
        connection.close(reason);
      },
    };
    const attempt = (): void => {
      if (connection.isClosed) return;
      const reply = backend.submit(command, session, ticket);
      if (reply === SATURATED) backend.onRoom(attempt);
      else if (reply !== PARKED) finish(reply);
    };
    attempt();
  });
}
