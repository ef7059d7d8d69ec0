import type { Command } from "#src/engine/command.js";
import type { Op } from "#src/engine/op.js";
import { check } from "./violation.js";

/** What simulated clients do: leases, locks, and the strings that lock libraries use. Scripts and the rest of the strings they do not send. */

type Elsewhere =
  | `script-${string}`
  | "scripts-flush"
  | "string-set-many"
  | "string-get-many"
  | "string-get-expire"
  | "string-get-delete"
  | "string-length"
  | "string-append"
  | "string-get-range"
  | "string-set-range"
  | "string-increment-float"
  | "string-digest"
  | "key-expire-time";

export type SimulatedCommand = Exclude<Command, { kind: Elsewhere }>;
export type SimulatedOp = Exclude<Op, { kind: Elsewhere }>;

const SIMULATED_STRINGS: ReadonlySet<string> = new Set([
  "string-set",
  "string-increment",
  "string-delete-if",
  "string-put",
  "string-end",
]);

const isElsewhere = (kind: string): boolean =>
  kind.startsWith("script") ||
  kind === "key-expire-time" ||
  (kind.startsWith("string-") && !SIMULATED_STRINGS.has(kind));

export function simulatedCommand(command: Command): SimulatedCommand {
  check(!isElsewhere(command.kind), "ports", () => `nobody sends ${command.kind}`);
  return command as SimulatedCommand;
}

export function simulatedOp(op: Op): SimulatedOp {
  check(!isElsewhere(op.kind), "ops", () => `nobody asked for ${op.kind}`);
  return op as SimulatedOp;
}
