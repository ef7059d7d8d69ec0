import type { Command, Origin, Turn } from "./command.js";
import type { Decision, Draft } from "./draft.js";
import type { EndedLeases } from "./ended-leases.js";
import { unreachable } from "./invariant.js";
import * as keyspace from "./keyspace.js";
import * as lease from "./lease.js";
import type { Reply } from "./reply.js";

/**
 * The rules' front door: what a command answers and what is to be done for it. Changes nothing; the same state, command, turn
 * and origin give the same decision.
 */
export function decide(draft: Draft, ended: EndedLeases, command: Command, turn: Turn, origin: Origin): Decision {
  draft.begin(turn, origin);
  return draft.finish(answer(draft, ended, command));
}

function answer(draft: Draft, ended: EndedLeases, command: Command): Reply {
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
      return lease.expireLeases(draft, command.ids);
    case "key-get":
      return keyspace.getKey(draft, command.key);
    case "key-exists":
      return keyspace.countExisting(draft, command.keys);
    case "key-delete":
      return keyspace.deleteKeys(draft, command.keys);
    case "key-type":
      return keyspace.keyType(draft, command.key);
    case "key-ttl":
      return keyspace.keyTtl(draft, command);
    case "key-list":
      return keyspace.listKeys(draft, command.pattern);
    case "key-scan":
      return keyspace.scanKeys(draft, command);
    case "key-count":
      return keyspace.countKeys(draft);
    case "key-random":
      return keyspace.randomKey(draft, command.fraction);
    case "flush-database":
      return keyspace.flushDatabase(draft);
    case "flush-all":
      return keyspace.flushAll(draft);
    default:
      return unreachable(command);
  }
}
