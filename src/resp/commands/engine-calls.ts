import type { Reply } from "../../engine/reply.js";
import { PARKED } from "../../ports.js";
import type { ClientConnection, RunResult } from "../command.js";

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
