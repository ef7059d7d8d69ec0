import type { ByteString } from "./reply.js";

/**
 * Name -> row, for millions of names.
 *
 * A Map would do but for three things: V8 rebuilds it as a whole when it is full (measured: a quarter of a second at a million
 * entries, a full second at four million, in which nobody is answered), ends it at 16.7 million entries, and hashes every name
 * that it is asked for by a call out of compiled code, which was the most expensive part of a grant. So this is a hash table of
 * our own: many small ones, shards, dealt out by the upper bits of the hash, each rebuilt on its own in well under a millisecond.
 *
 * A shard is an Int32Array of slots, two numbers each: the hash of the name, and its row + 1 (0: the slot is empty). Names are not
 * kept here but compared where the owner of the table has them, and only when all 32 bits of the hash agree. Collisions go to
 * the next slot; a deletion moves the ones behind it up, so that there are no tombstones. 12 to 24 bytes a name.
 *
 * The hash is no secret: somebody can make names that collide. A shard that would put a name far from its place, or beside too
 * many of its very hash, becomes a Map of V8's, whose hash is seeded: it is what one Map would have been, no worse. It is a
 * table again once it was empty.
 *
 * The last name looked at is remembered with its place: rules look a name up, replay does it again, then sets it.
 *
 * Invariants:
 *  - from `set` to `deleteIf` or `clear`, or until `set` gives the name another row, `names.get(row)` is the name
 *  - at most two thirds of the slots of a shard are used, so that every search ends
 */

/** Where the owner keeps the name of a row. */
export interface RowNames {
  get(row: number): ByteString | null;
}

const SHARD_BITS = 10;
const SHARD_COUNT = 1 << SHARD_BITS;
const SHARD_SHIFT = 32 - SHARD_BITS;

/** Numbers of the smallest table: four slots. V8 keeps so small an array within its own heap, which is cheap. */
const TABLE_LENGTH_MIN = 8;

/** Names that are spread evenly do not get further than about 260 slots from their place, with 100 million of them. */
const SLOTS_PASSED_MAX = 512;

/** Names of one hash. Of 100 million names that are spread evenly, hardly ever do five share one. */
const SAME_HASH_MAX = 8;

/** A shard that is no longer a table, but a Map. Never written. */
const IS_MAP = new Int32Array(2);

/** A shard without names: one empty slot. Never written. */
const NO_NAMES = new Int32Array(2);

export class NameIndex {
  readonly #names: RowNames;
  /** Empty until the first name comes: most databases never get one. */
  #tables: Int32Array[] = [];
  #sizes = new Int32Array(0);
  readonly #maps = new Map<number, Map<ByteString, number>>();

  /** The last name looked at, and where it is or would be; null when that is not known any more. */
  #lastName: ByteString | null = null;
  #lastHash = 0;
  #lastRow = -1;
  /** Position in the table of its shard; of no meaning in a Map. */
  #lastPosition = 0;
  /** The name is to be added and lies too far from its place. */
  #isCrowded = false;

  constructor(names: RowNames) {
    this.#names = names;
  }

  /** The row of a name, -1 when there is none. */
  get(name: ByteString): number {
    if (name !== this.#lastName) this.#find(name);
    return this.#lastRow;
  }

  /** From now on the name stands for this row, which has the name already. */
  set(name: ByteString, row: number): void {
    if (this.#tables.length === 0) this.#begin();
    if (name !== this.#lastName) this.#find(name);
    const shard = this.#lastHash >>> SHARD_SHIFT;
    if (this.#lastRow < 0) this.#makeRoom(shard, name);
    const table = this.#tables[shard]!;
    if (table === IS_MAP) {
      this.#maps.get(shard)!.set(name, row);
    } else {
      table[this.#lastPosition] = this.#lastHash;
      table[this.#lastPosition + 1] = row + 1;
    }
    this.#lastRow = row;
  }

  /** Forgets a name that stands for this row; nothing when it stands for another. */
  deleteIf(name: ByteString, row: number): void {
    if (this.get(name) !== row) return;
    const shard = this.#lastHash >>> SHARD_SHIFT;
    const table = this.#tables[shard]!;
    this.#lastName = null;
    if (table === IS_MAP) {
      const map = this.#maps.get(shard)!;
      map.delete(name);
      if (map.size > 0) return;
      this.#maps.delete(shard);
      this.#tables[shard] = NO_NAMES;
      return;
    }
    closeGap(table, this.#lastPosition);
    this.#sizes[shard]! -= 1;
    const size = this.#sizes[shard]!;
    if (size === 0) this.#tables[shard] = NO_NAMES;
    else if (size * 16 < table.length && table.length > TABLE_LENGTH_MIN) {
      this.#tables[shard] = copyTable(table, table.length >>> 1);
    }
  }

  clear(): void {
    this.#tables = [];
    this.#sizes = new Int32Array(0);
    this.#maps.clear();
    this.#lastName = null;
    this.#lastRow = -1;
  }

  #begin(): void {
    this.#tables = Array.from({ length: SHARD_COUNT }, () => NO_NAMES);
    this.#sizes = new Int32Array(SHARD_COUNT);
    this.#lastName = null;
  }

  /** Looks a name up and remembers where it is. */
  #find(name: ByteString): void {
    const hash = hashOf(name);
    this.#lastName = name;
    this.#lastHash = hash;
    this.#lastRow = -1;
    if (this.#tables.length === 0) return;
    const table = this.#tables[hash >>> SHARD_SHIFT]!;
    if (table === IS_MAP) {
      this.#lastRow = this.#maps.get(hash >>> SHARD_SHIFT)!.get(name) ?? -1;
      return;
    }
    const wrap = table.length - 2;
    const home = (hash << 1) & wrap;
    let position = home;
    let sameHashCount = 0;
    for (let entry = table[position + 1]!; entry !== 0; entry = table[position + 1]!) {
      if (table[position] === hash) {
        if (this.#names.get(entry - 1) === name) {
          this.#lastRow = entry - 1;
          break;
        }
        sameHashCount += 1;
      }
      position = (position + 2) & wrap;
    }
    this.#lastPosition = position;
    this.#isCrowded = sameHashCount >= SAME_HASH_MAX || ((position - home) & wrap) > 2 * SLOTS_PASSED_MAX;
  }

  /** A place in its shard for the name looked up last, which is in none. */
  #makeRoom(shard: number, name: ByteString): void {
    const table = this.#tables[shard]!;
    if (table === IS_MAP) return;
    if (this.#isCrowded) {
      this.#maps.set(shard, this.#mapOf(table));
      this.#tables[shard] = IS_MAP;
      this.#sizes[shard] = 0;
      return;
    }
    const size = this.#sizes[shard]! + 1;
    this.#sizes[shard] = size;
    if (size * 3 <= table.length) return;
    this.#tables[shard] = copyTable(table, Math.max(TABLE_LENGTH_MIN, table.length * 2));
    this.#find(name);
  }

  #mapOf(table: Int32Array): Map<ByteString, number> {
    const map = new Map<ByteString, number>();
    for (let position = 0; position < table.length; position += 2) {
      const row = table[position + 1]! - 1;
      if (row >= 0) map.set(this.#names.get(row) ?? "", row);
    }
    return map;
  }
}

/** Empties a slot and moves up what had been pushed behind it. */
function closeGap(table: Int32Array, position: number): void {
  const wrap = table.length - 2;
  let gap = position;
  for (let next = (gap + 2) & wrap; table[next + 1] !== 0; next = (next + 2) & wrap) {
    const home = (table[next]! << 1) & wrap;
    if (((next - home) & wrap) < ((next - gap) & wrap)) continue;
    table[gap] = table[next]!;
    table[gap + 1] = table[next + 1]!;
    gap = next;
  }
  table[gap + 1] = 0;
}

/** The same entries in a table of another length; no name is looked at for it. */
function copyTable(table: Int32Array, length: number): Int32Array {
  const copy = new Int32Array(length);
  const wrap = length - 2;
  for (let from = 0; from < table.length; from += 2) {
    if (table[from + 1] === 0) continue;
    let position = (table[from]! << 1) & wrap;
    while (copy[position + 1] !== 0) position = (position + 2) & wrap;
    copy[position] = table[from]!;
    copy[position + 1] = table[from + 1]!;
  }
  return copy;
}

/** Names up to this length are hashed as a whole, longer ones by as many characters evenly spaced, and their last four. */
const HASHED_CHARACTERS = 512;

/** 2^32 over the golden ratio: multiplying by it spreads what differs in few bits over all of them. */
const GOLDEN = 0x9e37_79b1;

/**
 * Four characters a step. Each step can be undone, so two names that differ in one step only never have the same hash before the
 * last mix, nor after it. Exported for the tests, which make names that collide.
 */
export function hashOf(name: ByteString): number {
  const { length } = name;
  let hash = length;
  if (length < 4) {
    for (let index = 0; index < length; index += 1) hash = Math.imul((hash << 8) ^ name.charCodeAt(index), GOLDEN);
  } else {
    const stride = length <= HASHED_CHARACTERS ? 4 : 4 * Math.ceil(length / HASHED_CHARACTERS);
    const last = length - 4;
    for (let index = 0; index < last; index += stride) {
      hash = Math.imul(hash ^ fourCharacters(name, index), GOLDEN);
      hash ^= hash >>> 15;
    }
    hash = Math.imul(hash ^ fourCharacters(name, last), GOLDEN);
  }
  hash ^= hash >>> 15;
  hash = Math.imul(hash, GOLDEN);
  return hash ^ (hash >>> 16);
}

function fourCharacters(name: ByteString, index: number): number {
  return (
    name.charCodeAt(index) |
    (name.charCodeAt(index + 1) << 8) |
    (name.charCodeAt(index + 2) << 16) |
    (name.charCodeAt(index + 3) << 24)
  );
}
