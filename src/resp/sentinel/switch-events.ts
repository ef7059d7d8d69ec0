import type { ByteString } from "../../engine/reply.js";
import type { NodeAddress } from "../../ports.js";
import { hostAndPort } from "./cluster-state.js";

/**
 * What a Sentinel publishes when the role changes hands, in the order in which clients are used to hear it. Each waits for another
 * of them: go-redis, Jedis and ioredis for `+switch-master`, node-redis for `+sdown`, `+slave` and `-odown`, Lettuce for any.
 *
 * A primary that takes the role again is no switch: what was down is up again. The first one that a node hears of is
 * a master that it begins to watch.
 */

export interface SwitchEvent {
  readonly channel: ByteString;
  readonly message: ByteString;
}

/** `name` is the master's name; `from` is null when no primary was known before. */
export function switchEvents(name: ByteString, from: NodeAddress | null, to: NodeAddress): readonly SwitchEvent[] {
  const master = (node: NodeAddress): ByteString => `master ${name} ${node.host} ${node.port}`;
  if (from === null) {
    return [
      { channel: "+monitor", message: `${master(to)} quorum 1` },
      { channel: "-odown", message: master(to) },
    ];
  }
  if (from.host === to.host && from.port === to.port) {
    return [
      { channel: "-sdown", message: master(to) },
      { channel: "-odown", message: master(to) },
    ];
  }
  const slave = `slave ${hostAndPort(from)} ${from.host} ${from.port}`;
  return [
    { channel: "+sdown", message: master(from) },
    { channel: "+switch-master", message: `${name} ${from.host} ${from.port} ${to.host} ${to.port}` },
    { channel: "+slave", message: `${slave} @ ${name} ${to.host} ${to.port}` },
    { channel: "-odown", message: master(to) },
  ];
}
