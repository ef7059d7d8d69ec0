import type { Command } from "#src/engine/command.js";
import type { Op } from "#src/engine/op.js";
import { check } from "./violation.js";

/** What simulated clients do so far: leases and their keys. Strings, locks and scripts they do not send. */

type Elsewhere =
  | `string-${string}`
  | `lock-${string}`
  | `script-${string}`
  | "scripts-flush"
  | "key-expire"
  | "key-persist"
  | "key-expire-time"
  | "wait-end";

export type SimulatedCommand = Exclude<Command, { kind: Elsewhere }>;
export type SimulatedOp = Exclude<Op, { kind: Elsewhere }>;

const ELSEWHERE = /^(?:string|lock|script|scripts|wait)-|^key-(?:expire|persist)/;

export function simulatedCommand(command: Command): SimulatedCommand {
  check(!ELSEWHERE.test(command.kind), "ports", () => `nobody sends ${command.kind}`);
  return command as SimulatedCommand;
}

export function simulatedOp(op: Op): SimulatedOp {
  check(!ELSEWHERE.test(op.kind), "ops", () => `nobody asked for ${op.kind}`);
  return op as SimulatedOp;
}
