import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import { hashOf, NameIndex } from "#src/engine/name-index.js";

/** An index with its owner's column, and the Map that it has to agree with. Each set takes a row of its own, as tables do. */
class Checked {
  readonly #names: (string | null)[] = [];
  readonly #index = new NameIndex({ get: (row) => this.#names[row] ?? null });
  readonly map = new Map<string, number>();

  get(name: string): void {
    const row = this.#index.get(name);
    const expected = this.map.get(name) ?? -1;
    if (row !== expected) expect({ name, row }).toEqual({ name, row: expected }); // an expect for each look-up is slow
  }

  set(name: string): void {
    const row = this.#names.push(name) - 1;
    this.#index.set(name, row);
    this.map.set(name, row);
  }

  delete(name: string): void {
    const row = this.map.get(name);
    if (row === undefined) return;
    this.#index.deleteIf(name, row);
    this.map.delete(name);
    this.#names[row] = null;
  }

  /** For a row that the name does not stand for. */
  deleteOther(name: string): void {
    this.#index.deleteIf(name, this.#names.length);
  }

  clear(): void {
    this.#index.clear();
    this.map.clear();
    this.#names.length = 0;
  }

  checkAll(): void {
    for (const name of this.map.keys()) this.get(name);
  }
}

/** The eight-character name that begins with `start` and has the hash of `model`. */
function colliding(model: string, start: string): string {
  const last = stateAfter(model) ^ stateAfter(start) ^ word(model, 4);
  return start + String.fromCharCode(last & 255, (last >>> 8) & 255, (last >>> 16) & 255, last >>> 24);
}

const word = (text: string, index: number): number =>
  text.charCodeAt(index) |
  (text.charCodeAt(index + 1) << 8) |
  (text.charCodeAt(index + 2) << 16) |
  (text.charCodeAt(index + 3) << 24);

/** The state of the hash of an eight-character name after its first four characters. */
function stateAfter(text: string): number {
  const hash = Math.imul(8 ^ word(text, 0), 0x9e37_79b1);
  return hash ^ (hash >>> 15);
}

function collidingNames(count: number): string[] {
  return Array.from({ length: count }, (_, index) => colliding("lease-01", String(index).padStart(4, "0")));
}

const someColliding = collidingNames(16);

const anyName = fc.oneof(
  fc.constantFrom("", "a", "\0", "\0\0", "\xff", "\xff\xff\xff\xff"),
  fc.string({ unit: fc.constantFrom("a", "b", "\xff"), maxLength: 20 }),
  fc.constantFrom(...someColliding),
  fc.nat(40).map((number) => `lock:${number}`),
  fc.nat(3).map((number) => `${"x".repeat(700 + number)}y${"x".repeat(700 - number)}`),
);

describe("an index of names is a Map", () => {
  test("whatever the names and changes", () => {
    const kind = fc.constantFrom("set", "set", "get", "delete", "delete-other", "clear");
    const change = fc.record({ name: anyName, kind });
    fc.assert(
      fc.property(fc.array(change, { maxLength: 150 }), (changes) => {
        const index = new Checked();
        for (const [number, { name, kind: what }] of changes.entries()) {
          if (what === "set") index.set(name);
          else if (what === "get") index.get(name);
          else if (what === "delete") index.delete(name);
          else if (what === "delete-other") index.deleteOther(name);
          else if (number % 10 === 0) index.clear();
          index.get(name);
        }
        for (const { name } of changes) index.get(name);
      }),
      { numRuns: 300 },
    );
  });

  test("through growth and shrinking", () => {
    const index = new Checked();
    const names = Array.from({ length: 40_000 }, (_, number) => `lease:${number}`);
    for (const name of names) index.set(name);
    index.checkAll();
    for (const name of names) if (!name.endsWith("7")) index.delete(name);
    for (const name of names) index.get(name);
    for (const name of names) index.set(name);
    index.checkAll();
    for (const name of names) index.delete(name);
    for (const name of names) index.get(name);
  });

  test("when hundreds of names have one hash, until they are gone, and afterwards", () => {
    const names = collidingNames(600);
    expect(new Set(names.map((name) => hashOf(name))).size).toBe(1);
    expect(new Set(names).size).toBe(names.length);
    const index = new Checked();
    for (let round = 0; round < 2; round += 1) {
      for (const name of names) {
        index.get(name);
        index.set(name);
        index.get(name);
      }
      index.checkAll();
      for (const name of names) {
        index.delete(name);
        index.get(name);
      }
    }
  });

  test("when the slots of names that share a shard lie side by side", () => {
    // The same upper bits choose the shard, the same lower ones the slot.
    const crowd: string[] = [];
    for (let number = 0; crowd.length < 700; number += 1) {
      const name = `n${number}`;
      if ((hashOf(name) & 0x00ff) === 1) crowd.push(name);
    }
    const index = new Checked();
    for (const name of crowd) index.set(name);
    index.checkAll();
    for (const name of crowd) index.delete(name);
    for (const name of crowd) index.get(name);
  });
});

test("names that count, and long ones that differ at an end, have hashes of their own", () => {
  const counted = Array.from({ length: 20_000 }, (_, number) => `lk:${String(number).padStart(12, "0")}`);
  const long = ["a", "b", "c"].flatMap((end) => [`${end}${"x".repeat(65_535)}`, `${"x".repeat(65_535)}${end}`]);
  const names = [...counted, ...long];
  expect(new Set(names.map((name) => hashOf(name))).size).toBeGreaterThan(names.length - 4);
  const shardSizes = new Map<number, number>();
  for (const name of counted) {
    const shard = hashOf(name) >>> 22;
    shardSizes.set(shard, (shardSizes.get(shard) ?? 0) + 1);
  }
  // 20 each on average.
  expect(Math.max(...shardSizes.values())).toBeLessThan(60);
});
