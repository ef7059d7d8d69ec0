/** A promise of the cluster that the simulation saw broken. `rule` first in the message, so that a report begins with it. */
export class ClusterViolation extends Error {
  override readonly name = "ClusterViolation";
  readonly rule: ClusterRule;
  constructor(rule: ClusterRule, message: string) {
    super(`${rule}: ${message}`);
    this.rule = rule;
  }
}

/** What is watched. S1 to S4 are those of the safety argument in docs/CLUSTER.md. */
export type ClusterRule =
  /** Nobody acts as primary at a clock reading at which the fence is not its own. */
  | "S1-one-primary"
  /** What one epoch acknowledges comes from one process; epochs rise. */
  | "S1-epochs"
  /** Batches take effect in the order of their revisions, each as a whole; only the newest may be written once more. */
  | "S2-one-history"
  /** What was acknowledged is there. */
  | "S2-kept"
  /** What was acknowledged as ended, or refused, is not there and does not come back. */
  | "S2-ended"
  /** A client that counts as it should believes in nothing that is not there: no lease ends early. */
  | "S3-early-end"
  /** Two leases hold one key at one moment, by the rows or by what clients believe. */
  | "S4-exclusion"
  /** Tokens of a key rise with each new holder. */
  | "S4-tokens"
  /** After all is healed somebody serves, clients get on, and what is abandoned ends. */
  | "liveness"
  /** The simulated node asked for something that the ports forbid. */
  | "ports";

/** Throws a ClusterViolation when `holds` is false. */
export function demand(holds: boolean, rule: ClusterRule, message: () => string): asserts holds {
  if (!holds) throw new ClusterViolation(rule, message());
}
