import { openEtcdConnection } from "./etcd-target.js";
import { openRespConnection } from "./resp-target.js";
import type { LoadConnection, OnReply, TargetSpec } from "./target.js";

/** Rejects when the server cannot be reached. `onLost` is called when the connection ends, by `close` too. */
export async function openConnection(
  spec: TargetSpec,
  onReply: OnReply,
  onLost: (reason: string) => void,
): Promise<LoadConnection> {
  return spec.kind === "etcd" ? openEtcdConnection(spec, onReply, onLost) : openRespConnection(spec, onReply, onLost);
}
