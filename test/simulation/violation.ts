/** A promise of the server that the simulation saw broken. `name` of the rule first, so that a report begins with it. */
export class Violation extends Error {
  override readonly name = "Violation";
  readonly rule: RuleName;
  constructor(rule: RuleName, message: string) {
    super(`${rule}: ${message}`);
    this.rule = rule;
  }
}

/** What is watched. The letters I1.. are those of docs/INVARIANTS.md's safety list. */
export type RuleName =
  /** Two believe in one key at one moment. */
  | "I1-exclusion"
  /** Tokens of a key rise with every new holder. */
  | "I2-tokens"
  /** What was acknowledged is there after recovery: grants with keys and TTL. */
  | "I3-grants-survive"
  /** What was revoked and acknowledged stays away. */
  | "I4-revokes-stay"
  /** No expiry before the newest acknowledged promise is over by the client's clock. */
  | "I5-early-expiry"
  /** A dead lease answers nothing but that it is dead. */
  | "I6-dead-is-dead"
  /** Those who wait for a key get it in the order of their coming, as soon as it is free, and nobody gets it before them. */
  | "I7-order"
  /** Replies: each once, in order, the one that was decided, never a refusal of what happened. */
  | "I8-replies"
  /** Nothing is revealed before it is durable. */
  | "release"
  /** Nothing is said after the store failed. */
  | "fail-stop"
  /** Recovered state equals the state at the durable revision. */
  | "recovery"
  /** Ops fit the command, the state and each other. */
  | "ops"
  /** Events: each once, in order, after their change is durable. */
  | "events"
  /** A step, and a key's way from one holder to the next, are on disk whole or not at all. */
  | "atomic"
  /** What clients were told can be put in one order in which each reply is the right one. */
  | "linearizable"
  /** Everything ends when traffic ends, and nothing stays behind. */
  | "liveness"
  /** The simulated server asked for something that the ports forbid. */
  | "ports";

/** Throws a Violation when `holds` is false. */
export function check(holds: boolean, rule: RuleName, message: () => string): asserts holds {
  if (!holds) throw new Violation(rule, message());
}
