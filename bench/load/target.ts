/**
 * What a load generator sends, and to whom: plain data, so that it can be handed to a generator process as it is.
 */

/** How the id in a command is chosen, request by request. */
export type IdChoice =
  /** Any of 0..count-1, at random: to renew what was granted before. */
  | { readonly kind: "random"; readonly count: number }
  /** from, from + 1, ...: to grant what must not exist yet. */
  | { readonly kind: "sequence"; readonly from: number };

export type ExpectedReply = "positive" | "one" | "ok" | "array";

/** One command of a cycle. */
export interface CycleStep {
  /** Arguments; `{id}` is the cycle's id, `{connection}` the number of the connection, from 0, both as 12 digits. */
  readonly argv: readonly string[];
  readonly expect: ExpectedReply;
}

export type TargetSpec =
  | {
      readonly kind: "resp";
      readonly port: number;
      /** Arguments; `{id}` stands for the id as 12 digits (redis-benchmark's form), `{msUntilDue}` see `dueAtUnixMs`. */
      readonly argv: readonly string[];
      readonly ids: IdChoice;
      readonly expect: ExpectedReply;
      /** `{msUntilDue}` becomes the whole milliseconds from the moment of sending to this one, at least 1. */
      readonly dueAtUnixMs?: number;
    }
  | {
      /** Commands of which each is sent when the one before it was answered; one request is the whole cycle. */
      readonly kind: "resp-cycle";
      readonly port: number;
      readonly steps: readonly CycleStep[];
      readonly ids: IdChoice;
    }
  | {
      readonly kind: "etcd";
      readonly port: number;
      /** `grant-with-key`: a grant, and when it is answered a transaction that puts one key unless it exists. */
      readonly operation: "grant" | "grant-with-key" | "keep-alive";
      readonly ids: IdChoice;
      readonly ttlS: number;
    };

/** `error` is null for the reply that was expected. Sequences of one connection may be answered in any order. */
export type OnReply = (sequence: number, error: string | null) => void;

export interface LoadConnection {
  /** Takes one request into the current write. */
  send(sequence: number): void;
  /** Lets the requests taken so far go. */
  flush(): void;
  close(): void;
}

export const ID_DIGITS = 12;

/** What a lock holder would store: as long as a random token. */
export const HOLDER = "holder-0123456789abc";

export type RespSpec = Extract<TargetSpec, { kind: "resp" }>;
export type RespCycleSpec = Extract<TargetSpec, { kind: "resp-cycle" }>;
export type EtcdSpec = Extract<TargetSpec, { kind: "etcd" }>;

/** The 12 digits that redis-benchmark puts in place of `__rand_int__`. */
export function idDigits(id: number): string {
  return id.toString().padStart(ID_DIGITS, "0");
}

export function chooseId(choice: IdChoice, sequence: number): number {
  return choice.kind === "random" ? Math.floor(Math.random() * choice.count) : choice.from + sequence;
}
