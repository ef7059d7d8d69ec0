import type { Command } from "#src/engine/command.js";
import type { LockMode, Op } from "#src/engine/op.js";
import { ErrorReply, MapReply, type Reply } from "#src/engine/reply.js";
import { KEY, type KeyAction, type KeyMode } from "../support/key-history.js";
import { checkLinearizable, type Operation } from "../support/linearizable.js";
import { keyName } from "./model.js";
import { field, fieldsOf, isOk } from "./reply-forms.js";
import { commandsOf, type SimRequest } from "./request.js";
import { check } from "./violation.js";

/**
 * What all clients were told of one key, as one history: is there an order of all of it in which each answer is the right one?
 * Unlike the oracle's rules this looks at nothing but what was sent and heard and when. From the server it takes only which
 * leases and plain keys it ended by time, which may have become known or not.
 *
 * A command that was lost may have happened, with the answer that it would have had, or not. One that the server never decided did not. A
 * command of several keys, and a step of several commands, is several operations at once.
 */

/** Beyond this many tries nothing is said of a key. */
const STEPS_MAX = 4000;

type KeyOperation = Operation<KeyAction>;

export class KeyHistories {
  readonly #requests: SimRequest[] = [];
  readonly #ends: { readonly atMs: number; readonly op: Op }[] = [];
  judged = 0;
  givenUp = 0;

  sent(request: SimRequest): void {
    this.#requests.push(request);
  }

  /** The server ended something that nobody had asked it to end, at this true time. */
  ended(atMs: number, op: Op): void {
    this.#ends.push({ atMs, op });
  }

  /** Throws a Violation when no order explains a key. */
  check(): void {
    const histories = new Map<string, KeyOperation[]>();
    const names = new Set(this.#requests.flatMap((request) => namesIn(request)));
    for (const name of names) histories.set(name, []);
    for (const request of this.#requests) {
      for (const [name, operation] of operationsOf(request, names)) histories.get(name)?.push(operation);
    }
    for (const { atMs, op } of this.#ends) {
      for (const [name, action] of endsOf(op)) {
        histories.get(name)?.push({ invokeMs: atMs, returnMs: Infinity, action });
      }
    }
    for (const [name, operations] of histories) this.#judge(name, operations);
  }

  #judge(name: string, operations: readonly KeyOperation[]): void {
    const verdict = checkLinearizable(whatMatters(operations), KEY, STEPS_MAX);
    if (verdict.kind === "given-up") this.givenUp += 1;
    else this.judged += 1;
    const text = (): string =>
      `no order explains what was told of ${name}: ${verdict.kind === "broken" ? `${verdict.state}, then ${JSON.stringify(verdict.stuckAt)}` : ""}`;
    check(verdict.kind !== "broken", "linearizable", text);
  }
}

/** Without ends of leases that never had the key, and without what nobody heard of and what changed nothing. */
function whatMatters(operations: readonly KeyOperation[]): KeyOperation[] {
  const leases = new Set(operations.map(({ action }) => (action.kind === "acquire" ? action.lease : null)));
  return operations.filter(({ action, returnMs }) => {
    if (action.kind === "end" && !leases.has(action.lease) && action.lease !== null) return false;
    return returnMs < Infinity || !changesNothing(action);
  });
}

const changesNothing = (action: KeyAction): boolean =>
  action.kind === "get" ||
  action.kind === "exists" ||
  action.kind === "holders" ||
  action.kind === "check" ||
  (action.kind === "set" && !action.answer) ||
  (action.kind === "acquire" && action.answer === null) ||
  ((action.kind === "release" || action.kind === "delete" || action.kind === "delete-if") && action.answer === 0);

function namesIn({ command, databaseIndex }: SimRequest): string[] {
  return commandsOf(command).flatMap((part) => {
    if (part.kind === "lease-grant") return part.keys.map(({ key }) => keyName(databaseIndex, key));
    return "key" in part ? [keyName(databaseIndex, part.key)] : [];
  });
}

/** By key: what a request did, as far as that can be told from its replies. `names`: all keys, for what concerns every one. */
function operationsOf(request: SimRequest, names: ReadonlySet<string>): [string, KeyOperation][] {
  const { decision, databaseIndex, sentAtTrueMs, heardAtTrueMs } = request;
  if (decision === null || sentAtTrueMs === undefined) return [];
  const found: [string, KeyOperation][] = [];
  for (const { command, reply } of decision.parts) {
    if (reply instanceof ErrorReply) continue;
    // What the same request did before it does not do again.
    const isRepeatable = command.kind === "lease-grant" && command.request !== null;
    const returnMs = heardAtTrueMs === undefined || isRepeatable ? Infinity : heardAtTrueMs;
    for (const [name, action] of actionsOf(command, reply, databaseIndex, names)) {
      found.push([name, { invokeMs: sentAtTrueMs, returnMs, action }]);
    }
  }
  return found;
}

type Named = [string, KeyAction];

function actionsOf(command: Command, reply: Reply, databaseIndex: number, names: ReadonlySet<string>): Named[] {
  const name = (key: string): string => keyName(databaseIndex, key);
  const every = (prefix: string, action: KeyAction): Named[] =>
    [...names].filter((candidate) => candidate.startsWith(prefix)).map((candidate) => [candidate, action]);
  if (command.kind === "flush-database") return every(`${databaseIndex}:`, { kind: "end", lease: null });
  if (command.kind === "flush-all") return every("", { kind: "end", lease: null });
  if (command.kind === "lease-revoke") return command.ids.flatMap((lease) => every("", { kind: "end", lease }));
  if (command.kind === "lease-grant") {
    if (!Array.isArray(reply)) return [];
    const [lease, token] = [String(reply[0]), Number(reply[2])];
    const rest = { kind: "acquire", lease, mode: "exclusive", by: "lock", answer: token } as const;
    return command.keys.map(({ key, value }) => [name(key), { ...rest, value }]);
  }
  if (command.kind === "lease-detach" || command.kind === "key-delete") {
    // Of several keys the number tells nothing about one.
    const answer = command.keys.length === 1 ? Number(reply) : undefined;
    const action: KeyAction =
      command.kind === "key-delete"
        ? { kind: "delete", answer }
        : { kind: "release", lease: command.id, token: null, answer };
    return command.keys.map((key) => [name(key), action]);
  }
  if (!("key" in command)) return [];
  const action = lockActionOf(command, reply) ?? stringActionOf(command, reply);
  return action === null ? [] : [[name(command.key), action]];
}

function lockActionOf(command: Command, reply: Reply): KeyAction | null {
  if (command.kind === "lease-attach" || command.kind === "lock-acquire") {
    const { id: lease, value } = command;
    const mode = command.kind === "lock-acquire" ? keyModeOf(command.mode) : "exclusive";
    const by = command.kind === "lock-acquire" ? "lock" : command.force ? "force" : "attach";
    return { kind: "acquire", lease, mode, value, by, answer: reply === null ? null : Number(reply) };
  }
  if (command.kind === "lock-release") {
    return { kind: "release", lease: command.id, token: command.token, answer: Number(reply) };
  }
  if (command.kind === "lock-check") return { kind: "check", token: command.token, answer: Number(reply) };
  if (command.kind !== "lock-info") return null;
  const isPlain = reply instanceof MapReply && field(reply, "mode") === "string";
  const holders = reply instanceof MapReply ? field(reply, "holders") : [];
  return isPlain
    ? { kind: "exists", answer: true }
    : { kind: "holders", answer: fieldsOf(holders, "token").map(Number) };
}

function stringActionOf(command: Command, reply: Reply): KeyAction | null {
  if (command.kind === "key-get") return { kind: "get", answer: typeof reply === "string" ? reply : null };
  if (command.kind === "key-ttl") return { kind: "exists", answer: reply !== -2 };
  if (command.kind === "string-increment") {
    return { kind: "increment", by: Number(command.by), answer: Number(reply) };
  }
  if (command.kind === "string-delete-if" && command.condition.kind === "eq") {
    return { kind: "delete-if", value: command.condition.value, answer: Number(reply) };
  }
  if (command.kind !== "string-set") return null;
  return { kind: "set", value: command.value, ifAbsent: command.condition.kind === "nx", answer: isOk(reply) };
}

/** Who lost what by such an op. */
function endsOf(op: Op): Named[] {
  if (op.kind === "lease-end") {
    return op.keys.map(({ databaseIndex, key }) => [keyName(databaseIndex, key), { kind: "end", lease: op.id }]);
  }
  if (op.kind === "string-end") return [[keyName(op.databaseIndex, op.key), { kind: "expire" }]];
  if (op.kind !== "key-end") return [];
  const { databaseIndex, key, leaseId: lease, token } = op;
  return [[keyName(databaseIndex, key), { kind: "release", lease, token, answer: 1 }]];
}

const keyModeOf = (mode: LockMode): KeyMode => (mode.kind === "limit" ? { permits: mode.permits } : mode.kind);
