import type { Command } from "#src/engine/command.js";
import type { Revision } from "#src/engine/op.js";
import type { Reply } from "#src/engine/reply.js";

/** A client as the checks see it: a number and a clock of its own. */
export interface ClientClock {
  readonly index: number;
  /** What its clock shows at a true time. */
  clockAt(trueMs: number): number;
}

/** What a reply promises of a lease: it lives at least `ms` from the moment before the request was sent, by the client's clock. */
export interface LeasePromise {
  readonly instance: string;
  readonly ms: number;
}

/** What the server made of a request, noted by the oracle at the moment at which it happened. */
export interface DecisionRecord {
  readonly reply: Reply;
  /** Rises with every decision. */
  readonly order: number;
  /** The oldest durable revision at which the reply reveals nothing that a crash could take back. */
  readonly requiredRevision: Revision;
  readonly promises: readonly LeasePromise[];
  /** The lease that the command worked on, if it was there afterwards. */
  readonly instance: string | null;
  /** The command itself changed something durable; more than leases found expired. */
  readonly changedSomething: boolean;
}

/** One command on its way. Sent again after a lost reply, it is another request with the same command. */
export interface SimRequest {
  readonly number: number;
  readonly client: ClientClock;
  readonly databaseIndex: number;
  readonly command: Command;
  /** By the client's own clock, before it was sent. */
  readonly sentAtMs: number;
  /** For keys that it may take: the largest token that anybody was known to hold when it was sent. */
  readonly tokensKnown: ReadonlyMap<string, number>;
  decision: DecisionRecord | null;
}
