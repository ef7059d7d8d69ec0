import type { Op } from "#src/engine/op.js";
import { ErrorReply, MapReply, type ByteString } from "#src/engine/reply.js";
import { isPlainId, isSameMode, keyName, type ModelKey } from "./model.js";
import type { ReplyContext } from "./reply-rules.js";
import { field, fieldsOf, isError, isOk } from "./reply-forms.js";
import type { SimulatedCommand } from "./simulated.js";

/** What replies to commands of locks and strings have to be, as `reply-rules.ts` asks of the others. */

type CommandOf<Kind extends SimulatedCommand["kind"]> = Extract<SimulatedCommand, { kind: Kind }>;

export type LockCommand = CommandOf<"lock-acquire" | "lock-release" | "lock-check" | "lock-info">;
export type StringCommand = CommandOf<
  "string-set" | "string-delete-if" | "string-increment" | "key-expire" | "key-persist"
>;

// Locks -------------------------------------------------------------------------------------------------------------

/** True when the reply does not fit the state. */
export function isLockReplyWrong(context: ReplyContext, command: LockCommand): boolean {
  const { after, origin, decision, queues } = context;
  const { reply } = decision;
  const name = keyName(origin.databaseIndex, command.key);
  switch (command.kind) {
    case "lock-acquire":
      return isAcquireWrong(context, command, name);
    case "lock-release":
      return isReleaseWrong(context, command, name);
    case "lock-check":
      return reply !== (after.holders(name).some((hold) => hold.token === command.token) ? 1 : 0);
    case "lock-info": {
      const holders = after.holders(name);
      const waiters = queues.of(name);
      if (!(reply instanceof MapReply)) return reply !== null || holders.length > 0 || waiters.length > 0;
      const tokens = fieldsOf(field(reply, "holders"), "token");
      const ids = fieldsOf(field(reply, "holders"), "id");
      const waiting = fieldsOf(field(reply, "waiters"), "id");
      return (
        !isSameList(
          tokens,
          holders.map((hold) => hold.token),
        ) ||
        !isSameList(
          ids,
          holders.map((hold) => (isPlainId(hold.leaseId) ? null : hold.leaseId)),
        ) ||
        !isSameList(
          waiting,
          waiters.map((place) => place.leaseId),
        )
      );
    }
  }
}

function isAcquireWrong(context: ReplyContext, command: CommandOf<"lock-acquire">, name: string): boolean {
  const { decision, after, revision, queues, options } = context;
  const { reply, waits } = decision;
  const { id, mode, value } = command;
  const lease = after.leases.get(id);
  if (lease === undefined) return waits !== null || !isError(reply, "NOLEASE");
  const own = after.holdOf(name, id);
  const isNew = decision.ops.some((op) => op.kind === "key-put" && op.valueOnly !== true);
  if (isNew) {
    const wanted = value ?? id;
    // Whoever comes first is first: nobody else may wait.
    const isNext = queues.of(name).every((place) => place.leaseId === id);
    return (
      own?.token !== revision || reply !== revision || !isSameMode(own.mode, mode) || own.value !== wanted || !isNext
    );
  }
  if (own !== undefined) {
    if (!isSameMode(own.mode, mode)) return !isError(reply, "WRONGMODE");
    return waits !== null || reply !== own.token || (value !== null && own.value !== value);
  }
  const queue = queues.of(name);
  const place = queues.placeOf(name, id);
  const fit = after.fit(name, mode);
  const isOtherMode = fit === "other-mode" || (place !== undefined && !isSameMode(place.mode, mode));
  if (isOtherMode) return waits !== null || !isError(reply, "WRONGMODE");
  const { keysMax, keysPerLeaseMax } = options;
  const isNext = fit === "fits" && (queue.length === 0 || queue[0] === place);
  if (isNext) {
    const isOverLimit = after.keyCountForLimits >= keysMax || lease.keys.size >= keysPerLeaseMax;
    return !isError(reply, "OOM") || !isOverLimit;
  }
  if (isError(reply, "DEADLOCK")) {
    return waits !== null || command.blockMs === null || !queues.closesCycle(id, name, mode, after);
  }
  if (waits === null) return reply !== null || context.mayWait;
  const isDeadlock =
    place === undefined &&
    context.isSurelyAlive(id) &&
    queues.closesCycle(id, name, mode, after, (leaseId) => context.isSurelyAlive(leaseId));
  return !context.mayWait || isDeadlock;
}

function isReleaseWrong(context: ReplyContext, command: CommandOf<"lock-release">, name: string): boolean {
  const { decision, after } = context;
  const { reply } = decision;
  const held = formerHolders(context).find((hold) => hold.leaseId === command.id);
  const isMeant = held !== undefined && (command.token === null || command.token === held.token);
  if (!isMeant) return reply !== 0 || decision.ops.some((op) => op.kind === "key-end");
  return reply !== 1 || after.holdOf(name, command.id) !== undefined;
}

// Strings -----------------------------------------------------------------------------------------------------------

/** True when the reply does not fit the state. */
export function isStringReplyWrong(context: ReplyContext, command: StringCommand): boolean {
  const { after, origin, decision, options } = context;
  const { reply, ops } = decision;
  const name = keyName(origin.databaseIndex, command.key);
  const former = formerHolders(context)[0];
  const now = after.first(name);
  const isUntouched = !ops.some((op) => isAbout(op, origin.databaseIndex, command.key));
  if (former === undefined && isError(reply, "OOM")) return !isUntouched || after.keyCountForLimits < options.keysMax;
  switch (command.kind) {
    case "string-set":
      return isSetWrong(context, command, former, now, isUntouched);
    case "string-delete-if": {
      const isMeant = command.condition.kind === "eq" && former?.value === command.condition.value;
      return isMeant ? reply !== 1 || now !== undefined : reply !== 0 || !isUntouched;
    }
    case "string-increment": {
      const text = former?.value ?? "0";
      if (!/^(?:0|-?[1-9][0-9]*)$/.test(text)) return !(reply instanceof ErrorReply) || !isUntouched;
      const sum = Number(text) + Number(command.by);
      return reply !== sum || now?.value !== String(sum) || (former !== undefined && now.token !== former.token);
    }
    case "key-expire": {
      if (former === undefined) return reply !== 0 || !isUntouched;
      if (former.plainTtlMs === null) return !isError(reply, "LEASED") || !isUntouched;
      const hasTtl = former.plainTtlMs < Infinity;
      if ((command.condition === "nx" && hasTtl) || (command.condition === "xx" && !hasTtl)) {
        return reply !== 0 || !isUntouched;
      }
      const ttlMs = command.expiry.kind === "in" ? command.expiry.ttlMs : NaN;
      return reply !== 1 || now?.token !== former.token || !((now.plainTtlMs ?? 0) >= ttlMs);
    }
    case "key-persist": {
      if (former === undefined) return reply !== 0 || !isUntouched;
      if (former.plainTtlMs === null) return !isError(reply, "LEASED") || !isUntouched;
      if (former.plainTtlMs === Infinity) return reply !== 0 || !isUntouched;
      return reply !== 1 || now?.plainTtlMs !== Infinity || now.token !== former.token;
    }
  }
}

function isSetWrong(
  { decision, revision }: ReplyContext,
  command: CommandOf<"string-set">,
  former: ModelKey | undefined,
  now: ModelKey | undefined,
  isUntouched: boolean,
): boolean {
  const { condition, expiry, value } = command;
  const isMet = condition.kind === "always" || (condition.kind === "nx" && former === undefined);
  if (!isMet) return decision.reply !== null || !isUntouched;
  if (!isOk(decision.reply) || now?.value !== value) return true;
  if (isUntouched) {
    // The very value again, for no longer than the disk knows: only the time moves.
    return former?.value !== value || expiry.kind !== "in" || !((now.plainTtlMs ?? 0) >= expiry.ttlMs);
  }
  return now.plainTtlMs !== (expiry.kind === "in" ? expiry.ttlMs : Infinity) || now.token !== revision;
}

const isSameList = (shown: readonly unknown[], expected: readonly unknown[]): boolean =>
  shown.length === expected.length && shown.every((item, index) => item === expected[index]);

/** Who held the command's key when it was decided: without those whose time was over, which the decision ended. */
function formerHolders({ before, decision }: ReplyContext): readonly ModelKey[] {
  const ended = new Set<ByteString>();
  const expired = new Set<number>();
  for (const op of decision.ops) {
    if (op.kind === "lease-end" && op.reason === "expired") ended.add(op.id);
    if (op.kind === "string-end" && op.reason === "expired") expired.add(op.token);
  }
  return before.filter((hold) => !ended.has(hold.leaseId) && !(hold.plainTtlMs !== null && expired.has(hold.token)));
}

/** Whether an op changes a key otherwise than by the end of somebody's time. */
function isAbout(op: Op, databaseIndex: number, key: ByteString): boolean {
  if (op.kind !== "key-put" && op.kind !== "key-end" && op.kind !== "string-put" && op.kind !== "string-end")
    return false;
  const isExpiry = op.kind === "string-end" && op.reason === "expired";
  return !isExpiry && op.databaseIndex === databaseIndex && op.key === key;
}
