import { RespConnection } from "./resp-connection.js";
import { faultOf, SequenceQueue, templateEncoder } from "./resp-target.js";
import { chooseId, idDigits, type LoadConnection, type OnReply, type RespCycleSpec } from "./target.js";

/**
 * A RESP connection whose requests are cycles: a few commands, each sent when the one before it was answered, as a client does
 * that takes a lock and gives it back. Several cycles may be under way side by side.
 *
 * Invariants:
 *  - a cycle is told of once: after its last reply, or at its first wrong one, with which it ends
 *  - the commands that the replies of one read set free leave in one write
 */

export async function openRespCycleConnection(
  spec: RespCycleSpec,
  index: number,
  onReply: OnReply,
  onLost: (reason: string) => void,
): Promise<LoadConnection> {
  const encoders = spec.steps.map(({ argv }) =>
    templateEncoder(argv.map((part) => part.replaceAll("{connection}", idDigits(index)))),
  );
  // Replies come in the order of the commands: cycle, step and id of those under way, oldest first.
  const sequences = new SequenceQueue();
  const steps = new SequenceQueue();
  const ids = new SequenceQueue();
  let flushArmed = false;

  const sendStep = (sequence: number, step: number, id: number): void => {
    sequences.push(sequence);
    steps.push(step);
    ids.push(id);
    connection.append(encoders[step]?.(id) ?? "");
  };
  const flushSoon = (): void => {
    if (flushArmed) return;
    flushArmed = true;
    process.nextTick(() => {
      flushArmed = false;
      connection.flush();
    });
  };
  const connection = await RespConnection.open(
    spec.port,
    (reply) => {
      const [sequence, step, id] = [sequences.shift(), steps.shift(), ids.shift()];
      const fault = faultOf(reply, spec.steps[step]?.expect ?? "ok");
      if (fault !== null) {
        onReply(sequence, `${spec.steps[step]?.argv[0] ?? ""}: ${fault}`);
      } else if (step + 1 === spec.steps.length) {
        onReply(sequence, null);
      } else {
        sendStep(sequence, step + 1, id);
        flushSoon();
      }
    },
    onLost,
  );
  return {
    send: (sequence) => sendStep(sequence, 0, chooseId(spec.ids, sequence)),
    flush: () => connection.flush(),
    close: () => connection.close(),
  };
}
