import type { ByteString } from "./reply.js";

/**
 * Name -> row, for millions of names.
 *
 * One Map would do but for two things: it is rebuilt as a whole when it is full (measured: a quarter of a second at a million
 * entries, a full second at four million, in which nobody is answered), and V8 ends it at 16.7 million entries. So the names are
 * dealt out to many small Maps by a cheap hash of their last characters; each is rebuilt on its own, in well under a
 * millisecond. A client that makes names which all fall into one Map gets what one Map would have given, no worse.
 */

const SHARD_BITS = 10;
const SHARD_COUNT = 1 << SHARD_BITS;
const SHARD_SHIFT = 32 - SHARD_BITS;

/** Names differ at their ends more often than at their beginnings. */
const HASHED_CHARACTERS = 12;

export class NameIndex {
  /** Empty until the first name comes: most databases never get one. */
  #shards: (Map<ByteString, number> | undefined)[] = [];

  /** The row of a name, -1 when there is none. */
  get(name: ByteString): number {
    if (this.#shards.length === 0) return -1;
    const shard = this.#shards[shardOf(name)];
    if (shard === undefined) return -1;
    const row = shard.get(name);
    return row === undefined ? -1 : row;
  }

  set(name: ByteString, row: number): void {
    if (this.#shards.length === 0) this.#shards = Array.from<undefined>({ length: SHARD_COUNT });
    const index = shardOf(name);
    let shard = this.#shards[index];
    if (shard === undefined) {
      shard = new Map();
      this.#shards[index] = shard;
    }
    shard.set(name, row);
  }

  /** Forgets a name that stands for this row; nothing when it stands for another. */
  deleteIf(name: ByteString, row: number): void {
    if (this.#shards.length === 0) return;
    const index = shardOf(name);
    const shard = this.#shards[index];
    if (shard === undefined || shard.get(name) !== row) return;
    shard.delete(name);
    if (shard.size === 0) this.#shards[index] = undefined;
  }

  clear(): void {
    this.#shards = [];
  }
}

function shardOf(name: ByteString): number {
  const { length } = name;
  let hash = length;
  for (let index = Math.max(0, length - HASHED_CHARACTERS); index < length; index += 1) {
    hash = Math.imul(hash, 31) + name.charCodeAt(index);
  }
  hash ^= hash >>> 15;
  return Math.imul(hash, 0x9e37_79b1) >>> SHARD_SHIFT;
}
