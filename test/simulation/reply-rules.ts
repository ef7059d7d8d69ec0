import type { Origin } from "#src/engine/command.js";
import type { Decision } from "#src/engine/engine.js";
import type { Op, Revision } from "#src/engine/op.js";
import { ErrorReply, MapReply, StatusReply, type ByteString, type Reply } from "#src/engine/reply.js";
import { instanceName, keyName, type Model, type ModelKey, type ModelLease } from "./model.js";
import type { LeaseLife, OracleOptions } from "./oracle.js";
import type { LeasePromise } from "./request.js";
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
  readonly before: Model;
  readonly after: Model;
  readonly oracle: { readonly options: OracleOptions; lifeOf(id: ByteString): LeaseLife | null };
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
  "lease-attach": ["key-put", "key-end"],
  "lease-detach": ["key-end"],
  "lease-info": [],
  "lease-scan": [],
  "lease-expire": [],
  "key-get": [],
  "key-exists": [],
  "key-delete": ["key-end"],
  "key-type": [],
  "key-ttl": [],
  "key-list": [],
  "key-scan": [],
  "key-count": [],
  "key-random": [],
  "flush-database": ["flush-database"],
  "flush-all": ["flush-all"],
};

export function checkReply(context: ReplyContext): void {
  const { command, decision } = context;
  const allowed = OPS_ALLOWED[command.kind];
  for (const op of decision.ops) {
    const isExpiry = op.kind === "lease-end" && op.reason === "expired";
    check(isExpiry || allowed.includes(op.kind), "ops", () => `${command.kind} does ${JSON.stringify(op)}`);
  }
  const wrong = isWrong(context);
  check(!wrong, "I8-replies", () => `${JSON.stringify(command)} gets ${describe(decision.reply)}`);
}

/** True when the reply does not fit the state. */
function isWrong(context: ReplyContext): boolean {
  const { command, decision, after, origin } = context;
  const { reply } = decision;
  const keyOf = (key: ByteString): ModelKey | undefined => after.keys.get(keyName(origin.databaseIndex, key));
  const ttlOf = (id: ByteString): number | null => context.oracle.lifeOf(id)?.ttlMs ?? null;
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
        command.keys.some((key) => keyOf(key)?.leaseId === command.id)
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
      return reply !== countOps(decision, "key-end", "deleted") || command.keys.some((key) => keyOf(key) !== undefined);
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
      const held = after.keys.get(keyName(origin.databaseIndex, key));
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
  if (reply === null) return !command.keys.some(({ key }) => after.keys.has(keyName(origin.databaseIndex, key)));
  const { leasesMax, keysMax, keysPerLeaseMax } = context.oracle.options;
  const isOverLimit =
    after.leases.size >= leasesMax ||
    command.keys.length > keysPerLeaseMax ||
    after.keys.size + command.keys.length > keysMax;
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
  const name = keyName(origin.databaseIndex, command.key);
  const held = after.keys.get(name);
  if (typeof reply === "number") {
    const former = before.keys.get(name);
    const wasAnothers = former !== undefined && before.leases.has(former.leaseId) && former.leaseId !== command.id;
    const tookByForce = wasAnothers && decision.ops.some((op) => op.kind === "key-end");
    if (tookByForce && !command.force) return true;
    return held?.leaseId !== command.id || held.token !== reply || held.value !== command.value;
  }
  if (reply === null) return held === undefined || held.leaseId === command.id || command.force;
  const { keysMax, keysPerLeaseMax } = context.oracle.options;
  const ownKeys = after.leases.get(command.id)?.keys.size ?? 0;
  return !isError(reply, "OOM") || (after.keys.size < keysMax && ownKeys < keysPerLeaseMax);
}

function isInfoWrong(context: ReplyContext, id: ByteString): boolean {
  const { decision, after, origin, oracle } = context;
  const { reply } = decision;
  const lease = after.leases.get(id);
  if (lease === undefined) return reply !== null && !(reply instanceof MapReply && field(reply, "state") === "ended");
  if (!(reply instanceof MapReply) || field(reply, "state") !== "live") return true;
  const keys = after.keysOf(origin.databaseIndex).filter((key) => lease.keys.has(keyName(origin.databaseIndex, key)));
  const shown = field(reply, "keys");
  return (
    field(reply, "ttl") !== oracle.lifeOf(id)?.ttlMs ||
    field(reply, "token") !== lease.token ||
    field(reply, "label") !== lease.label ||
    field(reply, "grace") !== (oracle.lifeOf(id)?.isOnGrace === true ? 1 : 0) ||
    field(reply, "keys-total") !== lease.keys.size ||
    !Array.isArray(shown) ||
    !isSameSet(shown, keys)
  );
}

/** The leases that a reply shows as alive. */
export function leasesShown({ command, decision, after, origin }: ReplyContext): ByteString[] {
  const { reply } = decision;
  const alive = (ids: readonly ByteString[]): ByteString[] => ids.filter((id) => after.leases.has(id));
  const holders = (keys: readonly ByteString[]): ByteString[] =>
    keys.flatMap((key) => after.keys.get(keyName(origin.databaseIndex, key))?.leaseId ?? []);
  switch (command.kind) {
    case "lease-keepalive":
    case "lease-ttl":
    case "lease-setttl":
    case "lease-info":
      return alive([command.id]);
    case "lease-attach":
      return reply instanceof ErrorReply ? [] : [...alive([command.id]), ...holders([command.key])];
    case "lease-detach":
      return reply instanceof ErrorReply ? [] : [...alive([command.id]), ...holders(command.keys)];
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
    const lease = id === undefined ? undefined : after.leases.get(id);
    if (lease === undefined || typeof ms !== "number" || ms < 0) return [];
    return [{ instance: instanceName(lease.id, lease.token), ms }];
  };
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
      return promise(after.keys.get(keyName(origin.databaseIndex, command.key))?.leaseId, inMs(reply, command.unit));
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

const inMs = (reply: Reply, unit: "s" | "ms"): number | null =>
  typeof reply !== "number" ? null : unit === "ms" ? reply : reply * 1000;

const isOk = (reply: Reply): boolean => reply instanceof StatusReply && reply.text === "OK";

const isError = (reply: Reply, code: string): boolean =>
  reply instanceof ErrorReply && reply.text.startsWith(`${code} `);

function isTtlWrong(reply: Reply, ttlMs: number | null, unit: "s" | "ms"): boolean {
  if (ttlMs === null) return reply !== -2;
  return typeof reply !== "number" || reply < 0 || (unit === "ms" ? reply : reply * 1000) > ttlMs;
}

function isList(reply: Reply, expected: readonly (string | number)[]): boolean {
  return (
    Array.isArray(reply) && reply.length === expected.length && expected.every((item, index) => reply[index] === item)
  );
}

/** The same names, each once, in any order. */
function isSameSet(shown: readonly Reply[], expected: readonly ByteString[]): boolean {
  const names = new Set(shown);
  return names.size === shown.length && names.size === expected.length && expected.every((name) => names.has(name));
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

function countOps({ ops }: Decision, kind: Op["kind"], reason: string): number {
  return ops.filter((op) => op.kind === kind && "reason" in op && op.reason === reason).length;
}

function field(map: MapReply, name: string): Reply | undefined {
  return map.pairs.find(([key]) => key === name)?.[1];
}

/** A reply in a line of a report. */
export function describe(reply: Reply): string {
  if (reply instanceof ErrorReply) return `-${reply.text}`;
  if (reply instanceof StatusReply) return `+${reply.text}`;
  return JSON.stringify(reply);
}
