import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import { cutIntoParts, foldBatch, operationBytes } from "#src/durability/etcd/batch-plan.js";
import type { TxnOperation } from "#src/durability/etcd/protocol.js";
import { applyBatch } from "#src/durability/memory-store.js";
import type { Op } from "#src/engine/op.js";
import { arbitraryOps, keyPut, leasePut, packOps } from "../ops.js";

const PREFIX = Buffer.from("prefix/");

const nameOf = (bytes: Uint8Array): string => {
  const name = Buffer.from(bytes).toString("latin1");
  expect(name.startsWith("prefix/")).toBe(true);
  return name.slice("prefix/".length);
};

const covers = (operation: TxnOperation, key: string): boolean => {
  if (operation.kind !== "delete") return nameOf(operation.key) === key;
  const start = nameOf(operation.key);
  return operation.end === undefined ? key === start : key >= start && key < nameOf(operation.end);
};

/** Applies operations as etcd does, in an order of the test's choosing. */
function applyOperations(rows: Map<string, string>, operations: readonly TxnOperation[]): void {
  for (const operation of operations) {
    if (operation.kind === "put") rows.set(nameOf(operation.key), Buffer.from(operation.value).toString("latin1"));
    else for (const key of rows.keys()) if (covers(operation, key)) rows.delete(key);
  }
}

const fold = (ops: readonly Op[]): TxnOperation[] => foldBatch(packOps(ops, 1).bytes, PREFIX);

describe("a batch as operations of etcd", () => {
  test("leaves the same rows as its changes in order, whatever order the operations go in", () => {
    const order = fc.func(fc.integer());
    fc.assert(
      fc.property(arbitraryOps(20), arbitraryOps(20), order, (before, ops, shuffled) => {
        const expected = new Map<string, Uint8Array>();
        applyBatch(expected, packOps(before, 1).bytes);
        const rows = new Map([...expected].map(([key, value]) => [key, Buffer.from(value).toString("latin1")]));
        applyBatch(expected, packOps(ops, 2).bytes);
        const operations = foldBatch(packOps(ops, 2).bytes, PREFIX);
        applyOperations(
          rows,
          operations
            .map((operation, index) => ({ operation, at: shuffled(index) }))
            .sort((a, b) => a.at - b.at)
            .map(({ operation }) => operation),
        );
        const wanted = new Map([...expected].map(([key, value]) => [key, Buffer.from(value).toString("latin1")]));
        expect(rows).toEqual(wanted);
      }),
      { numRuns: 300 },
    );
  });

  test("never meet: no key is put twice, no put lies in a deleted range", () => {
    fc.assert(
      fc.property(arbitraryOps(30), (ops) => {
        const operations = fold(ops);
        for (const operation of operations) {
          if (operation.kind !== "put") continue;
          const key = nameOf(operation.key);
          expect(operations.filter((other) => covers(other, key))).toEqual([operation]);
        }
      }),
      { numRuns: 300 },
    );
  });

  test("a flush cut around what is put after it is a range before, between and behind", () => {
    const flush: Op = { kind: "flush-database", databaseIndex: 0 };
    const operations = fold([keyPut("a", "gone"), flush, keyPut("b", "stays"), keyPut("c", "stays")]);
    const ranges = operations.filter((operation) => operation.kind === "delete" && operation.end !== undefined);
    // Three pieces of the keys' range, and the range of plain keys, in which nothing was put.
    expect(ranges.length).toBe(4);
    const puts = operations.filter((operation) => operation.kind === "put").map((put) => nameOf(put.key));
    expect(puts.sort()).toEqual(["m/revision", "n/\0\0bstays", "n/\0\0cstays"]);
  });

  test("are cut into transactions by count and by bytes, in order, none empty, none lost", () => {
    const sizes = fc.array(fc.integer({ min: 0, max: 500 }), { minLength: 1, maxLength: 60 });
    fc.assert(
      fc.property(sizes, fc.integer({ min: 1, max: 9 }), fc.integer({ min: 1, max: 1200 }), (lengths, count, bytes) => {
        const operations = fold(lengths.map((length, index) => leasePut(`l${index}`, { label: "x".repeat(length) })));
        const parts = cutIntoParts(operations, count, bytes);
        expect(parts.flat()).toEqual(operations);
        for (const part of parts) {
          expect(part.length).toBeGreaterThan(0);
          expect(part.length).toBeLessThanOrEqual(count);
          const total = part.reduce((sum, operation) => sum + operationBytes(operation), 0);
          expect(part.length === 1 || total <= bytes).toBe(true);
        }
      }),
      { numRuns: 100 },
    );
  });
});
