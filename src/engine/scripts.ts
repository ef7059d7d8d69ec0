import type { Command } from "./command.js";
import type { Draft } from "./draft.js";
import { limitReached, tooLong } from "./errors.js";
import { SCRIPT_BODY_BYTES_MAX, SCRIPT_BYTES_MAX, SCRIPTS_MAX } from "./limits.js";
import { OK, type ByteString, type Reply } from "./reply.js";

/**
 * The sources of scripts, kept over restarts so that EVALSHA goes on working. What is in them is somebody else's business. Scripts of
 * EVAL make room for newer ones, the oldest first; those of SCRIPT LOAD stay.
 */

type CommandOf<K extends Command["kind"]> = Extract<Command, { kind: K }>;

/** Answers the SHA. */
export function loadScript(draft: Draft, { sha, body, isPinned }: CommandOf<"script-load">): Reply {
  const { scripts } = draft.state;
  const present = scripts.find(sha);
  if (present !== null) {
    draft.see(present.changedAt);
    if (isPinned && !present.isPinned) draft.add({ kind: "script-put", sha, body, isPinned });
    return sha;
  }
  if (body.length > SCRIPT_BODY_BYTES_MAX) return tooLong("script", body.length, SCRIPT_BODY_BYTES_MAX);
  let missingCount = scripts.count + 1 - SCRIPTS_MAX;
  let missingBytes = scripts.bytes + body.length - SCRIPT_BYTES_MAX;
  const dropped: ByteString[] = [];
  for (const [old, script] of scripts.entries()) {
    if (missingCount <= 0 && missingBytes <= 0) break;
    if (script.isPinned) continue;
    dropped.push(old);
    missingCount -= 1;
    missingBytes -= script.body.length;
  }
  if (missingCount > 0) return limitReached("scripts", SCRIPTS_MAX);
  if (missingBytes > 0) return limitReached("bytes of scripts", SCRIPT_BYTES_MAX);
  for (const old of dropped) draft.add({ kind: "script-end", sha: old });
  draft.add({ kind: "script-put", sha, body, isPinned });
  return sha;
}

export function getScript(draft: Draft, sha: ByteString): Reply {
  const script = draft.state.scripts.find(sha);
  draft.see(script?.changedAt ?? draft.state.scripts.removedAt);
  return script?.body ?? null;
}

export function scriptsExist(draft: Draft, shas: readonly ByteString[]): Reply {
  return shas.map((sha) => (getScript(draft, sha) === null ? 0 : 1));
}

export function flushScripts(draft: Draft): Reply {
  draft.see(draft.state.scripts.removedAt);
  if (draft.state.scripts.count > 0) draft.add({ kind: "scripts-flush" });
  return OK;
}
