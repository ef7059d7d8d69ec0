import { openEtcdConnection } from "./etcd-target.js";
import { openRespCycleConnection } from "./resp-cycle-target.js";
import { openRespConnection } from "./resp-target.js";
import type { LoadConnection, OnReply, TargetSpec } from "./target.js";

/**
 * Rejects when the server cannot be reached. `onLost` is called when the connection ends, by `close` too. `index`: the number of
 * this connection among those of one load, from 0.
 */
export async function openConnection(
  spec: TargetSpec,
  index: number,
  onReply: OnReply,
  onLost: (reason: string) => void,
): Promise<LoadConnection> {
  switch (spec.kind) {
    case "etcd":
      return openEtcdConnection(spec, onReply, onLost);
    case "resp":
      return openRespConnection(spec, onReply, onLost);
    case "resp-cycle":
      return openRespCycleConnection(spec, index, onReply, onLost);
  }
}
