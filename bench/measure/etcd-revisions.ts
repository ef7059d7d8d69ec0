/**
 * How often etcd was written to, from its own count: each transaction that writes raises its revision by one, and each key knows how
 * often it was put. Read over etcd's HTTP gateway.
 */

export interface EtcdCount {
  readonly revision: number;
  /** By key: how often it has been put since it was made. */
  readonly versions: ReadonlyMap<string, number>;
}

interface RangeReply {
  readonly header: { readonly revision: string };
  readonly kvs?: readonly { readonly key: string; readonly version: string }[];
}

const base64 = (text: string): string => Buffer.from(text).toString("base64");

/** All keys whose names begin with `prefix`, at one revision. */
export async function countOf(port: number, prefix: string): Promise<EtcdCount> {
  const end = prefix.slice(0, -1) + String.fromCodePoint((prefix.codePointAt(prefix.length - 1) ?? 0) + 1);
  const response = await fetch(`http://127.0.0.1:${port}/v3/kv/range`, {
    method: "POST",
    body: JSON.stringify({ key: base64(prefix), range_end: base64(end) }),
    signal: AbortSignal.timeout(10_000),
  });
  if (!response.ok) throw new Error(`etcd answers ${response.status} to a range`);
  const reply = (await response.json()) as RangeReply;
  const versions = new Map(
    (reply.kvs ?? []).map(({ key, version }) => [Buffer.from(key, "base64").toString("latin1"), Number(version)]),
  );
  return { revision: Number(reply.header.revision), versions };
}

/** How often the keys that `is` holds for were put between two counts. */
export function putsBetween(before: EtcdCount, after: EtcdCount, is: (key: string) => boolean): number {
  let puts = 0;
  for (const [key, version] of after.versions) if (is(key)) puts += version - (before.versions.get(key) ?? 0);
  return puts;
}
