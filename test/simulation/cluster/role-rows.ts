import { asBuffer } from "#src/durability/batch.js";
import type { ByteString } from "#src/engine/reply.js";
import type { NodeAddress } from "#src/ports.js";

/** Where things lie in the shared store. */
export interface Layout {
  readonly fence: ByteString;
  /** What lies behind it is a row of the schema. */
  readonly rowPrefix: ByteString;
  /** Of the journal for batches that are too large for one transaction; null: there is none. */
  readonly journalPrefix: ByteString | null;
}

/** What a fence row holds; `tenure` counts the take-overs that a process tried. */
export interface FenceValue {
  readonly epoch: number;
  readonly node: NodeAddress;
  readonly incarnation: string;
  readonly tenure: number;
}

/** Rows never change in place, so each is parsed once. */
const parsed = new WeakMap<Uint8Array, object>();

export function decodeJson(value: Uint8Array): object {
  const known = parsed.get(value) ?? (JSON.parse(asBuffer(value).toString()) as object);
  parsed.set(value, known);
  return known;
}

export function decodeFenceValue(value: Uint8Array): FenceValue {
  return decodeJson(value) as FenceValue;
}
