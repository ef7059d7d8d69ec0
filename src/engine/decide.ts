import type { Command, Origin, Turn } from "./command.js";
import type { Decision, Draft } from "./draft.js";
import type { EndedLeases } from "./ended-leases.js";
import { unreachable } from "./invariant.js";
import * as keyspace from "./keyspace.js";
import * as lease from "./lease.js";
import * as lock from "./lock.js";
import type { Reply } from "./reply.js";
import * as scripts from "./scripts.js";
import * as strings from "./strings.js";

/**
 * The rules' front door: what a command answers and what is to be done for it. Changes nothing; the same state, command, turn
 * and origin give the same decision.
 */
export function decide(draft: Draft, ended: EndedLeases, command: Command, turn: Turn, origin: Origin): Decision {
  draft.begin(turn, origin);
  return draft.finish(answer(draft, ended, command));
}

type CommandOf<K extends Command["kind"]> = Extract<Command, { kind: K }>;
type StringCommand = CommandOf<Extract<Command["kind"], `string-${string}`>>;
type LockCommand = CommandOf<Extract<Command["kind"], `lock-${string}`>>;
type ScriptCommand = CommandOf<Extract<Command["kind"], `script-${string}`>>;
type OtherCommand = Exclude<Command, StringCommand | LockCommand | ScriptCommand>;

function answer(draft: Draft, ended: EndedLeases, command: Command): Reply {
  switch (command.kind) {
    case "lease-keepalive":
    case "lease-keepalive-many":
    case "lease-grant":
    case "lease-revoke":
    case "lease-ttl":
    case "lease-setttl":
    case "lease-attach":
    case "lease-detach":
    case "lease-info":
    case "lease-scan":
    case "lease-expire":
    case "key-get":
    case "key-exists":
    case "key-delete":
    case "key-type":
    case "key-ttl":
    case "key-expire":
    case "key-persist":
    case "key-expire-time":
    case "key-list":
    case "key-scan":
    case "key-count":
    case "key-random":
    case "wait-end":
    case "flush-database":
    case "flush-all":
      return answerOther(draft, ended, command);
    case "string-set":
    case "string-set-many":
    case "string-get-many":
    case "string-get-expire":
    case "string-get-delete":
    case "string-length":
    case "string-append":
    case "string-get-range":
    case "string-set-range":
    case "string-increment":
    case "string-increment-float":
    case "string-delete-if":
    case "string-digest":
      return answerString(draft, command);
    case "lock-acquire":
    case "lock-release":
    case "lock-info":
    case "lock-check":
      return answerLock(draft, command);
    case "script-load":
    case "script-get":
    case "script-exists":
    case "script-flush":
      return answerScript(draft, command);
    default:
      return unreachable(command);
  }
}

function answerOther(draft: Draft, ended: EndedLeases, command: OtherCommand): Reply {
  switch (command.kind) {
    case "lease-keepalive":
      return lease.keepAlive(draft, command.id);
    case "lease-keepalive-many":
      return lease.keepAliveMany(draft, command.ids);
    case "lease-grant":
      return lease.grantLease(draft, command);
    case "lease-revoke":
      return lease.revokeLeases(draft, command.ids);
    case "lease-ttl":
      return lease.leaseTtl(draft, command);
    case "lease-setttl":
      return lease.setTtl(draft, command);
    case "lease-attach":
      return lease.attachKey(draft, command);
    case "lease-detach":
      return lease.detachKeys(draft, command);
    case "lease-info":
      return lease.leaseInfo(draft, command.id, ended);
    case "lease-scan":
      return lease.scanLeases(draft, command);
    case "lease-expire":
      return lease.expireLeases(draft, command);
    case "key-get":
      return keyspace.getKey(draft, command.key);
    case "key-exists":
      return keyspace.countExisting(draft, command.keys);
    case "key-delete":
      return keyspace.deleteKeys(draft, command.keys);
    case "key-type":
      return keyspace.keyType(draft, command.key);
    case "key-ttl":
      return strings.keyTtl(draft, command);
    case "key-expire":
      return strings.expireKey(draft, command);
    case "key-persist":
      return strings.persistKey(draft, command.key);
    case "key-expire-time":
      return strings.expireTime(draft, command);
    case "key-list":
      return keyspace.listKeys(draft, command.pattern);
    case "key-scan":
      return keyspace.scanKeys(draft, command);
    case "key-count":
      return keyspace.countKeys(draft);
    case "key-random":
      return keyspace.randomKey(draft, command.fraction);
    case "wait-end":
      return lock.endWaits(draft, command);
    case "flush-database":
      return keyspace.flushDatabase(draft);
    case "flush-all":
      return keyspace.flushAll(draft);
    default:
      return unreachable(command);
  }
}

function answerString(draft: Draft, command: StringCommand): Reply {
  switch (command.kind) {
    case "string-set":
      return strings.setString(draft, command);
    case "string-set-many":
      return strings.setStrings(draft, command);
    case "string-get-many":
      return strings.getStrings(draft, command.keys);
    case "string-get-expire":
      return strings.getAndExpire(draft, command);
    case "string-get-delete":
      return strings.getAndDelete(draft, command.key);
    case "string-length":
      return strings.stringLength(draft, command.key);
    case "string-append":
      return strings.append(draft, command);
    case "string-get-range":
      return strings.getRange(draft, command);
    case "string-set-range":
      return strings.setRange(draft, command);
    case "string-increment":
      return strings.increment(draft, command);
    case "string-increment-float":
      return strings.incrementFloat(draft, command);
    case "string-delete-if":
      return strings.deleteIf(draft, command);
    case "string-digest":
      return strings.digestString(draft, command.key);
    default:
      return unreachable(command);
  }
}

function answerLock(draft: Draft, command: LockCommand): Reply {
  switch (command.kind) {
    case "lock-acquire":
      return lock.acquireLock(draft, command);
    case "lock-release":
      return lock.releaseLock(draft, command);
    case "lock-info":
      return lock.lockInfo(draft, command.key);
    case "lock-check":
      return lock.checkLock(draft, command);
    default:
      return unreachable(command);
  }
}

function answerScript(draft: Draft, command: ScriptCommand): Reply {
  switch (command.kind) {
    case "script-load":
      return scripts.loadScript(draft, command);
    case "script-get":
      return scripts.getScript(draft, command.sha);
    case "script-exists":
      return scripts.scriptsExist(draft, command.shas);
    case "script-flush":
      return scripts.flushScripts(draft);
    default:
      return unreachable(command);
  }
}
