import type { Origin } from "#src/engine/command.js";
import type { Decision } from "#src/engine/engine.js";
import type { Op, Revision } from "#src/engine/op.js";
import { ErrorReply, MapReply, StatusReply, type ByteString, type Reply } from "#src/engine/reply.js";
import { isLockReplyWrong, isStringReplyWrong } from "./lock-rules.js";
import {
  instanceName,
  isPlainId,
  keyName,
  nameOfPlain,
  plainId,
  type Model,
  type ModelKey,
  type ModelLease,
} from "./model.js";
import type { LeaseLife, OracleOptions } from "./oracle.js";
import type { Queues } from "./queues.js";
import { describe, field, isError, isList, isOk, isSameSet } from "./reply-forms.js";
import { show, type Acquired, type LeasePromise } from "./request.js";
import { namesOfPage } from "./revealed.js";
import type { SimulatedCommand } from "./simulated.js";
import { check } from "./violation.js";

/**
 * What a reply has to be, given the model before and after the ops of its decision. Time does not enter here: whether a lease
 * may have ended is the oracle's question, this file asks only that replies, ops and state tell one story.
 */

export interface ReplyContext {
  readonly command: SimulatedCommand;
  readonly origin: Origin;
  readonly decision: Decision;
  /** The engine's revision after the decision. */
  readonly revision: Revision;
  /** Who held the key that the command names, before it. */
  readonly before: readonly ModelKey[];
  readonly after: Model;
  /** After those were answered whose wait this decision ended; the command itself is not among them. */
  readonly queues: Queues;
  /** The command may wait for what it asks for. */
  readonly mayWait: boolean;
  readonly options: OracleOptions;
  lifeOf(id: ByteString): LeaseLife | null;
  /** False near the end of a lease: it may be over. */
  isSurelyAlive(id: ByteString): boolean;
}

type CommandOf<Kind extends SimulatedCommand["kind"]> = Extract<SimulatedCommand, { kind: Kind }>;

/** Op kinds that each command may cause, besides the expiry of leases that it came across. */
const OPS_ALLOWED: { readonly [Kind in SimulatedCommand["kind"]]: readonly Op["kind"][] } = {
  "lease-grant": ["lease-put", "key-put"],
  "lease-keepalive": [],
  "lease-keepalive-many": [],
  "lease-revoke": ["lease-end"],
  "lease-ttl": [],
  "lease-setttl": ["lease-put"],
  "lease-attach": ["key-put", "key-end", "string-end"],
  "lease-detach": ["key-end"],
  "lease-info": [],
  "lease-scan": [],
  "lease-expire": [],
  "key-get": [],
  "key-exists": [],
  "key-delete": ["key-end", "string-end"],
  "key-type": [],
  "key-ttl": [],
  "key-list": [],
  "key-scan": [],
  "key-count": [],
  "key-random": [],
  "key-expire": ["string-put"],
  "key-persist": ["string-put"],
  "string-set": ["string-put", "key-end"],
  "string-increment": ["string-put", "key-put"],
  "string-delete-if": ["string-end", "key-end"],
  "lock-acquire": ["key-put"],
  "lock-release": ["key-end"],
  "lock-info": [],
  "lock-check": [],
  "wait-end": [],
  "flush-database": ["flush-database"],
  "flush-all": ["flush-all"],
};

export function checkReply(context: ReplyContext): void {
  const { command, decision } = context;
  const allowed = OPS_ALLOWED[command.kind];
  for (const op of decision.ops) {
    const isExpiry = (op.kind === "lease-end" || op.kind === "string-end") && op.reason === "expired";
    const isAllowed = isExpiry || op.kind === "lease-keys-end" || allowed.includes(op.kind);
    check(isAllowed, "ops", () => `${command.kind} does ${JSON.stringify(op)}`);
  }
  const wrong = isWrong(context);
  const outcome = decision.waits === null ? describe(decision.reply) : "no reply, it waits";
  check(!wrong, "I8-replies", () => `${show(command)} gets ${outcome}`);
}

/** True when the reply does not fit the state. */
function isWrong(context: ReplyContext): boolean {
  const { command, decision, after, origin } = context;
  const { reply } = decision;
  const keyOf = (key: ByteString): ModelKey | undefined => after.first(keyName(origin.databaseIndex, key));
  const ttlOf = (id: ByteString): number | null => context.lifeOf(id)?.ttlMs ?? null;
  switch (command.kind) {
    case "lease-grant":
      return isGrantWrong(context, command);
    case "lease-keepalive":
      return after.leases.has(command.id) ? reply !== ttlOf(command.id) : !isError(reply, "NOLEASE");
    case "lease-keepalive-many":
      return !isList(
        reply,
        command.ids.map((id) => ttlOf(id) ?? -2),
      );
    case "lease-revoke":
      return reply !== countOps(decision, "lease-end", "revoked") || command.ids.some((id) => after.leases.has(id));
    case "lease-ttl":
      return isTtlWrong(reply, ttlOf(command.id), command.unit);
    case "lease-setttl":
      return after.leases.has(command.id) ? reply !== command.ttlMs : !isError(reply, "NOLEASE");
    case "lease-attach":
      return isAttachWrong(context, command);
    case "lease-detach":
      if (!after.leases.has(command.id)) return !isError(reply, "NOLEASE");
      return (
        reply !== countOps(decision, "key-end", "detached") ||
        command.keys.some((key) => after.holdOf(keyName(origin.databaseIndex, key), command.id) !== undefined)
      );
    case "lease-info":
      return isInfoWrong(context, command.id);
    case "lease-scan":
      return isPageWrong(reply, (id) => after.leases.has(id));
    case "lease-expire":
      return reply !== decision.ops.length;
    case "key-get":
      return reply !== (keyOf(command.key)?.value ?? null);
    case "key-exists":
      return reply !== command.keys.filter((key) => keyOf(key) !== undefined).length;
    case "key-delete":
      return reply !== countDeleted(decision) || command.keys.some((key) => keyOf(key) !== undefined);
    case "key-type":
      return !(reply instanceof StatusReply) || reply.text !== (keyOf(command.key) === undefined ? "none" : "string");
    case "key-ttl":
      return isTtlWrong(reply, ttlOf(keyOf(command.key)?.leaseId ?? ""), command.unit);
    case "key-list":
      return !Array.isArray(reply) || !isSameSet(reply, after.keysOf(origin.databaseIndex));
    case "key-scan":
      return isPageWrong(reply, (key) => keyOf(key) !== undefined);
    case "key-count":
      return reply !== after.keysOf(origin.databaseIndex).length;
    case "key-random":
      return typeof reply === "string" ? keyOf(reply) === undefined : after.keysOf(origin.databaseIndex).length > 0;
    case "string-set":
    case "string-increment":
    case "string-delete-if":
    case "key-expire":
    case "key-persist":
      return isStringReplyWrong(context, command);
    case "lock-acquire":
    case "lock-release":
    case "lock-info":
    case "lock-check":
      return isLockReplyWrong(context, command);
    case "wait-end":
      return reply !== null;
    case "flush-database":
      return !isOk(reply) || after.keysOf(origin.databaseIndex).length > 0;
    case "flush-all":
      return !isOk(reply) || after.leases.size > 0;
  }
}

function isGrantWrong(context: ReplyContext, command: CommandOf<"lease-grant">): boolean {
  const { decision, after, revision, origin } = context;
  const { reply } = decision;
  const granted = decision.ops.find((op) => op.kind === "lease-put");
  if (granted !== undefined) {
    const gotAll = command.keys.every(({ key, value }) => {
      const held = after.first(keyName(origin.databaseIndex, key));
      return held?.leaseId === granted.id && held.value === value && held.token === revision;
    });
    const isAsAsked = command.id === null || command.id === granted.id;
    return !isList(reply, [granted.id, command.ttlMs, revision]) || !gotAll || !isAsAsked;
  }
  const alive = aliveForGrant(after, command);
  if (Array.isArray(reply)) {
    // The same request again: its first reply again.
    if (alive === undefined || command.request === null || alive.request?.nonce !== command.request) return true;
    return !isList(reply, [alive.id, alive.request.ttlMs, alive.token]);
  }
  if (isError(reply, "LEASEEXISTS")) {
    return alive === undefined || (command.request !== null && alive.request?.nonce === command.request);
  }
  if (alive !== undefined) return true;
  if (reply === null) return !command.keys.some(({ key }) => after.has(keyName(origin.databaseIndex, key)));
  const { leasesMax, keysMax, keysPerLeaseMax } = context.options;
  const isOverLimit =
    after.leases.size >= leasesMax ||
    command.keys.length > keysPerLeaseMax ||
    after.keyCountForLimits + command.keys.length > keysMax;
  return !isError(reply, "OOM") || !isOverLimit;
}

function aliveForGrant(model: Model, command: CommandOf<"lease-grant">): ModelLease | undefined {
  if (command.id !== null) return model.leases.get(command.id);
  if (command.request === null) return undefined;
  return [...model.leases.values()].find(
    ({ request }) => request !== null && request.idChosenByServer && request.nonce === command.request,
  );
}

function isAttachWrong(context: ReplyContext, command: CommandOf<"lease-attach">): boolean {
  const { decision, before, after, origin } = context;
  const { reply } = decision;
  if (!after.leases.has(command.id)) return !isError(reply, "NOLEASE");
  const holders = after.holders(keyName(origin.databaseIndex, command.key));
  const [held] = holders;
  const isOwn = held?.leaseId === command.id && held.mode.kind === "exclusive";
  if (typeof reply === "number") {
    const wasAnothers = before.some((hold) => hold.leaseId !== command.id || hold.mode.kind !== "exclusive");
    const wasTaken = decision.ops.some(
      (op) => (op.kind === "key-end" || op.kind === "string-end") && op.reason === "taken",
    );
    if (wasAnothers && wasTaken && !command.force) return true;
    return !isOwn || held.token !== reply || held.value !== command.value;
  }
  if (reply === null) return held === undefined || isOwn || command.force;
  const { keysMax, keysPerLeaseMax } = context.options;
  const ownKeys = after.leases.get(command.id)?.keys.size ?? 0;
  return !isError(reply, "OOM") || (after.keyCountForLimits < keysMax && ownKeys < keysPerLeaseMax);
}

function isInfoWrong(context: ReplyContext, id: ByteString): boolean {
  const { decision, after, origin } = context;
  const { reply } = decision;
  const lease = after.leases.get(id);
  if (lease === undefined) return reply !== null && !(reply instanceof MapReply && field(reply, "state") === "ended");
  if (!(reply instanceof MapReply) || field(reply, "state") !== "live") return true;
  const keys = after.keysOf(origin.databaseIndex).filter((key) => lease.keys.has(keyName(origin.databaseIndex, key)));
  const shown = field(reply, "keys");
  return (
    field(reply, "ttl") !== context.lifeOf(id)?.ttlMs ||
    field(reply, "token") !== lease.token ||
    field(reply, "label") !== lease.label ||
    field(reply, "grace") !== (context.lifeOf(id)?.isOnGrace === true ? 1 : 0) ||
    field(reply, "keys-total") !== lease.keys.size ||
    !Array.isArray(shown) ||
    !isSameSet(shown, keys)
  );
}

/** The leases that a reply shows as alive. */
export function leasesShown({ command, decision, after, origin, queues }: ReplyContext): ByteString[] {
  const { reply } = decision;
  if (decision.waits !== null) return [];
  const alive = (ids: readonly ByteString[]): ByteString[] => ids.filter((id) => after.leases.has(id));
  const holders = (keys: readonly ByteString[]): ByteString[] =>
    keys.flatMap((key) => after.first(keyName(origin.databaseIndex, key))?.leaseId ?? []);
  switch (command.kind) {
    case "lease-keepalive":
    case "lease-ttl":
    case "lease-setttl":
    case "lease-info":
      return alive([command.id]);
    case "lease-attach":
      return reply instanceof ErrorReply ? [] : [...alive([command.id]), ...holders([command.key])];
    case "lease-detach":
      // Of keys that it does not hold it says only that.
      return reply instanceof ErrorReply ? [] : alive([command.id]);
    case "lease-keepalive-many":
      return alive(command.ids);
    case "key-get":
    case "key-type":
    case "key-ttl":
      return holders([command.key]);
    case "key-exists":
      return holders(command.keys);
    case "key-list":
      return holders(Array.isArray(reply) ? reply.map(String) : []);
    case "key-count":
      return holders(after.keysOf(origin.databaseIndex));
    case "key-scan":
      return holders(namesOfPage(reply));
    case "lease-scan":
      return namesOfPage(reply);
    case "key-random":
      return typeof reply === "string" ? holders([reply]) : [];
    case "lease-grant":
      if (Array.isArray(reply)) return [String(reply[0])];
      return reply === null ? holders(command.keys.map((pair) => pair.key)) : [];
    case "string-set":
    case "string-increment":
    case "string-delete-if":
    case "key-expire":
    case "key-persist":
      return holders([command.key]);
    case "lock-acquire":
      if (reply instanceof ErrorReply) return [];
      if (typeof reply === "number") return alive([command.id]);
      return queues.of(keyName(origin.databaseIndex, command.key)).length > 0 ? [] : holders([command.key]);
    case "lock-info":
      return after.holders(keyName(origin.databaseIndex, command.key)).map((hold) => hold.leaseId);
    case "lock-check":
      return after
        .holders(keyName(origin.databaseIndex, command.key))
        .flatMap((hold) => (hold.token === command.token ? [hold.leaseId] : []));
    case "lock-release":
    case "wait-end":
    case "lease-revoke":
    case "lease-expire":
    case "key-delete":
    case "flush-database":
    case "flush-all":
      return [];
  }
}

/** What a reply promises: which leases live for how long, counted from before the request was sent. */
export function promisesOf({ command, decision, after, origin }: ReplyContext): LeasePromise[] {
  const { reply } = decision;
  const promise = (id: ByteString | undefined, ms: unknown): LeasePromise[] => {
    const instance = id === undefined ? null : instanceOf(after, id);
    return instance === null || typeof ms !== "number" || ms < 0 ? [] : [{ instance, ms }];
  };
  const promiseOfKey = (key: ByteString, ms: unknown): LeasePromise[] =>
    promise(after.first(keyName(origin.databaseIndex, key))?.leaseId, ms);
  switch (command.kind) {
    case "lease-grant":
      return Array.isArray(reply) ? promise(String(reply[0]), reply[1]) : [];
    case "lease-keepalive":
    case "lease-setttl":
      return promise(command.id, reply);
    case "lease-keepalive-many":
      return command.ids.flatMap((id, index) => promise(id, Array.isArray(reply) ? reply[index] : null));
    case "lease-ttl":
      return promise(command.id, inMs(reply, command.unit));
    case "key-ttl":
      return promiseOfKey(command.key, reply === LASTS ? Infinity : inMs(reply, command.unit));
    case "key-expire":
      return reply === 1 && command.expiry.kind === "in" ? promiseOfKey(command.key, command.expiry.ttlMs) : [];
    case "key-persist":
      return reply === 1 ? promiseOfKey(command.key, Infinity) : [];
    case "string-set":
      if (!isOk(reply)) return [];
      return promiseOfKey(command.key, command.expiry.kind === "in" ? command.expiry.ttlMs : Infinity);
    case "string-increment":
    case "string-delete-if":
    case "lock-acquire":
    case "lock-release":
    case "lock-info":
    case "lock-check":
    case "wait-end":
      return [];
    case "lease-info":
      return reply instanceof MapReply ? promise(command.id, field(reply, "remaining")) : [];
    case "lease-revoke":
    case "lease-attach":
    case "lease-detach":
    case "lease-scan":
    case "lease-expire":
    case "key-get":
    case "key-exists":
    case "key-delete":
    case "key-type":
    case "key-list":
    case "key-scan":
    case "key-count":
    case "key-random":
    case "flush-database":
    case "flush-all":
      return [];
  }
}

/** The lease, or the plain key, that an id names now, from its beginning to its end; null when there is none. */
export function instanceOf(model: Model, id: ByteString): string | null {
  const there = isPlainId(id) ? model.first(nameOfPlain(id)) : model.leases.get(id);
  if (there === undefined || ("plainTtlMs" in there && there.plainTtlMs === null)) return null;
  return instanceName(id, there.token);
}

/** The keys that a reply gives to its client. Those that it only looked at are not among them. */
export function acquiredBy({ command, decision, after, origin }: ReplyContext): Acquired[] {
  const { reply } = decision;
  const of = (key: ByteString, id: ByteString): Acquired[] => {
    const name = keyName(origin.databaseIndex, key);
    const hold = after.holdOf(name, id);
    return hold === undefined ? [] : [{ name, token: hold.token, mode: hold.mode }];
  };
  if (command.kind === "lease-grant" && Array.isArray(reply)) {
    // The same request again is told of all of its keys again, whatever happened since.
    const mode = { kind: "exclusive" } as const;
    return command.keys.map(({ key }) => ({ name: keyName(origin.databaseIndex, key), token: Number(reply[2]), mode }));
  }
  if (command.kind === "lease-attach" || command.kind === "lock-acquire") {
    return typeof reply === "number" ? of(command.key, command.id) : [];
  }
  if (command.kind !== "string-set" || command.condition.kind !== "nx" || !isOk(reply)) return [];
  // Who sets a key that was not there, for a time, takes it for a lock.
  return command.expiry.kind === "in" ? of(command.key, plainId(keyName(origin.databaseIndex, command.key))) : [];
}

/** What TTL answers for a key that lasts. */
const LASTS = -1;

const inMs = (reply: Reply, unit: "s" | "ms"): number | null =>
  typeof reply !== "number" ? null : unit === "ms" ? reply : reply * 1000;

function isTtlWrong(reply: Reply, ttlMs: number | null, unit: "s" | "ms"): boolean {
  if (ttlMs === null) return reply !== -2;
  if (ttlMs === Infinity) return reply !== LASTS;
  return typeof reply !== "number" || reply < 0 || (unit === "ms" ? reply : reply * 1000) > ttlMs;
}

function isPageWrong(reply: Reply, isThere: (name: ByteString) => boolean): boolean {
  const names = namesOfPage(reply);
  return (
    !Array.isArray(reply) ||
    typeof reply[0] !== "string" ||
    new Set(names).size !== names.length ||
    !names.every(isThere)
  );
}

/** A shared key has one end for each holder, and counts once. */
function countDeleted({ ops }: Decision): number {
  const names = ops.flatMap((op) =>
    (op.kind === "key-end" || op.kind === "string-end") && op.reason === "deleted"
      ? [keyName(op.databaseIndex, op.key)]
      : [],
  );
  return new Set(names).size;
}

function countOps({ ops }: Decision, kind: Op["kind"], reason: string): number {
  return ops.filter((op) => op.kind === kind && "reason" in op && op.reason === reason).length;
}
