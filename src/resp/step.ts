import type { Command } from "../engine/command.js";
import { invariant } from "../engine/invariant.js";
import { ErrorReply, type ByteString, type Reply } from "../engine/reply.js";
import { PARKED, SATURATED, type Session } from "../ports.js";
import type { Backend } from "./backend.js";
import { NO_REPLY, SeveralReplies, type ClientConnection, type CommandSpec, type Step } from "./command.js";

/**
 * Several engine commands as one: what EXEC, scripts and composed commands run in.
 *
 * Invariants:
 *  - no other command of any client runs within a step, and all of its changes are one batch
 *  - nothing of a step is seen outside before it is durable: neither its answer nor the messages that it sends
 *  - nothing waits within a step: BLOCK means nothing there, as in Redis
 */

/**
 * Runs `work` as one step of the connection's, under the ticket of the command that runs now. Answers as `Backend.atomically` does;
 * SATURATED, or the refusal of a node without the role: `work` was not called.
 */
export function runStep(
  backend: Backend,
  connection: ClientConnection,
  unixMs: number,
  work: (step: Step) => Reply,
): Reply | typeof PARKED | typeof SATURATED {
  const effects: (() => void)[] = [];
  const settle = (): void => {
    for (const effect of effects) effect();
  };
  // A session of its own: what the step has to do once it is durable happens also when the client has gone.
  const session: Session = {
    origin: connection.origin,
    nowMs: connection.nowMs,
    deliver: (ticket, reply) => {
      settle();
      if (!connection.isClosed) connection.deliver(ticket, reply);
    },
    close: (reason) => {
      connection.close(reason);
    },
  };
  const result = backend.atomically(session, connection.ticket, (run) =>
    work({
      run,
      whenDurable: (effect) => {
        effects.push(effect);
      },
      unixMs,
    }),
  );
  if (result !== PARKED && result !== SATURATED) settle();
  return result;
}

/** Runs one command of any kind within a step. Counts it. */
export function runInStep(
  spec: CommandSpec,
  argv: readonly ByteString[],
  connection: ClientConnection,
  step: Step,
): Reply {
  const reply = replyInStep(spec, argv, connection, step);
  spec.counters.calls++;
  if (reply instanceof ErrorReply) spec.counters.failed++;
  return reply;
}

function replyInStep(spec: CommandSpec, argv: readonly ByteString[], connection: ClientConnection, step: Step): Reply {
  if (spec.parse !== undefined) {
    const command = spec.parse(argv, connection);
    return command instanceof ErrorReply ? command : step.run(withoutWaiting(command));
  }
  if (spec.compose !== undefined) return spec.compose(argv, connection, step);
  const result = spec.run?.(argv, connection);
  const isReply =
    result !== undefined &&
    result !== PARKED &&
    result !== SATURATED &&
    result !== NO_REPLY &&
    !(result instanceof SeveralReplies);
  invariant(isReply, "a command that may run within a step answers at once");
  return result;
}

function withoutWaiting(command: Command): Command {
  return command.kind === "lock-acquire" && command.blockMs !== null ? { ...command, blockMs: null } : command;
}
