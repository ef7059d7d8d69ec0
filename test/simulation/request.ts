import type { Command } from "#src/engine/command.js";
import type { LockMode, Revision, Token } from "#src/engine/op.js";
import type { Reply } from "#src/engine/reply.js";

/** A client as the checks see it: a number and a clock of its own. */
export interface ClientClock {
  readonly index: number;
  /** What its clock shows at a true time. */
  clockAt(trueMs: number): number;
}

/**
 * What a reply promises of a lease or a plain key: it lives at least `ms` from the moment before the request was sent, by the
 * client's clock. Infinity: until somebody ends it.
 */
export interface LeasePromise {
  readonly instance: string;
  readonly ms: number;
}

/** A key that its client has by a reply. */
export interface Acquired {
  /** As `keyName` makes it. */
  readonly name: string;
  readonly token: Token;
  readonly mode: LockMode;
}

/** What the server made of one command, noted by the oracle at the moment at which it happened. */
export interface DecisionPart {
  readonly command: Command;
  readonly reply: Reply;
  /** Rises with every decision. */
  readonly order: number;
  readonly promises: readonly LeasePromise[];
  /** The lease, or plain key, that the command worked on, if it was there afterwards. */
  readonly instance: string | null;
  readonly acquired: readonly Acquired[];
  /** The command itself changed something durable; more than leases found expired. */
  readonly changedSomething: boolean;
}

/** What the server made of a request: of one command, or of all commands of a step. */
export interface DecisionRecord {
  readonly reply: Reply;
  /** The oldest durable revision at which the reply reveals nothing that a crash could take back. */
  readonly requiredRevision: Revision;
  readonly parts: readonly DecisionPart[];
}

/** Several commands that are carried out as one, as EXEC and scripts do; answered with the list of their replies. */
export interface Step {
  readonly kind: "step";
  readonly commands: readonly Command[];
}

export type Asked = Command | Step;

/** The commands of a request. */
export const commandsOf = (asked: Asked): readonly Command[] => (asked.kind === "step" ? asked.commands : [asked]);

/** A request in a line of a trace. */
export const show = (asked: Asked): string =>
  asked.kind === "step" || asked.kind === "string-increment"
    ? JSON.stringify(asked, (_name, value: unknown) => (typeof value === "bigint" ? String(value) : value))
    : JSON.stringify(asked);

/** Whether a command waits when it cannot have what it asks for. Nothing waits within a step. */
export const mayWait = (asked: Asked): boolean => asked.kind === "lock-acquire" && asked.blockMs !== null;

/** One request on its way. Sent again after a lost reply, it is another request with the same command. */
export interface SimRequest {
  readonly number: number;
  readonly client: ClientClock;
  readonly databaseIndex: number;
  readonly command: Asked;
  /** By the client's own clock, before it was sent. */
  readonly sentAtMs: number;
  /** For keys that it may take: the largest token that anybody was known to hold when it was sent. */
  readonly tokensKnown: ReadonlyMap<string, number>;
  decision: DecisionRecord | null;
  /** True time before it was sent, and at which its client had the reply. */
  readonly sentAtTrueMs?: number;
  heardAtTrueMs?: number;
  /** Its reply has left the loop for the connection. */
  isReleased?: boolean;
  /** The server knows that its connection is gone. */
  isGone?: boolean;
}
