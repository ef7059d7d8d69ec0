import { ErrorReply, MapReply, StatusReply, type ByteString, type Reply } from "#src/engine/reply.js";

/** Looking at replies: small questions that rules ask. */

export const isOk = (reply: Reply): boolean => reply instanceof StatusReply && reply.text === "OK";

export const isError = (reply: Reply, code: string): boolean =>
  reply instanceof ErrorReply && reply.text.startsWith(`${code} `);

export function isList(reply: Reply, expected: readonly (string | number)[]): boolean {
  return (
    Array.isArray(reply) && reply.length === expected.length && expected.every((item, index) => reply[index] === item)
  );
}

/** The same names, each once, in any order. */
export function isSameSet(shown: readonly Reply[], expected: readonly ByteString[]): boolean {
  const names = new Set(shown);
  return names.size === shown.length && names.size === expected.length && expected.every((name) => names.has(name));
}

export function field(map: MapReply, name: string): Reply | undefined {
  return map.pairs.find(([key]) => key === name)?.[1];
}

/** One field of each map in a list. */
export function fieldsOf(list: Reply | undefined, name: string): (Reply | undefined)[] {
  if (!Array.isArray(list)) return [];
  return list.map((item: Reply) => (item instanceof MapReply ? field(item, name) : undefined));
}

/** A reply in a line of a report. */
export function describe(reply: Reply): string {
  if (reply instanceof ErrorReply) return `-${reply.text}`;
  if (reply instanceof StatusReply) return `+${reply.text}`;
  if (Array.isArray(reply)) return `[${reply.map((item: Reply) => describe(item)).join(", ")}]`;
  return typeof reply === "bigint" ? String(reply) : JSON.stringify(reply);
}
