import { ErrorReply, type ByteString } from "../engine/reply.js";
import { errorLine } from "./lua-to-reply.js";

/**
 * The first line of a script may say how it is to be run, since Redis 7: `#!lua flags=no-writes,allow-stale`. Of the flags only
 * `no-writes` has a meaning here; the others are about replicas, clusters and Redis's own memory limit.
 */

const FLAGS = new Set(["no-writes", "allow-oom", "allow-stale", "no-cluster", "allow-cross-slot-keys"]);
const FLAGS_OPTION = "flags=";

export interface ScriptSource {
  /** What the compiler gets: the script without the text of its first line, so that line numbers stay. */
  readonly chunk: ByteString;
  /** Whether it begins with such a line at all: then it may write only if it does not say no-writes. */
  readonly hasFlags: boolean;
  readonly isReadOnly: boolean;
}

/** Takes a script apart, or says what is wrong with its first line. */
export function parseSource(source: ByteString): ScriptSource | ErrorReply {
  if (!source.startsWith("#!")) return { chunk: source, hasFlags: false, isReadOnly: false };
  const end = source.indexOf("\n");
  if (end < 0) return refused("Invalid script shebang");
  const [engine = "", ...options] = source.slice(0, end).split(" ");
  if (engine !== "#!lua") return refused(`Unexpected engine in script shebang: ${engine}`);
  const flags: string[] = [];
  for (const option of options) {
    if (!option.startsWith(FLAGS_OPTION)) return refused(`Unknown lua shebang option: ${option}`);
    const given = option.slice(FLAGS_OPTION.length);
    if (given !== "") flags.push(...given.split(","));
  }
  const unknown = flags.find((flag) => !FLAGS.has(flag));
  if (unknown !== undefined) return refused(`Unexpected flag in script shebang: ${unknown}`);
  return { chunk: source.slice(end), hasFlags: true, isReadOnly: flags.includes("no-writes") };
}

const refused = (message: ByteString): ErrorReply => new ErrorReply(errorLine(`ERR ${message}`));
