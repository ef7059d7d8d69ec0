import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import { CHUNK_ROWS, Float64Column, ReferenceColumn, RowAllocator, SparseInt32Column } from "#src/engine/columns.js";

describe("rows", () => {
  test("are handed out once, and again after they were freed", () => {
    const column = new Float64Column();
    const rows = new RowAllocator([column]);
    const taken = Array.from({ length: 3 }, () => rows.take());
    expect(new Set(taken).size).toBe(3);
    for (const row of taken) column.set(row, row + 1);
    rows.free(taken[1]!);
    expect(rows.take()).toBe(taken[1]);
    expect(rows.rowsUsed).toBe(3);
    expect(column.get(taken[2]!)).toBe(taken[2]! + 1);
  });

  test("chunks at the end go when the table shrinks, and nothing else does", () => {
    const column = new ReferenceColumn<number>();
    const rows = new RowAllocator([column]);
    const taken = Array.from({ length: 3 * CHUNK_ROWS }, () => rows.take());
    for (const row of taken) column.set(row, row);
    for (const row of taken.slice(10)) rows.free(row);
    expect(rows.rowsEnd).toBeLessThanOrEqual(CHUNK_ROWS);
    for (const row of taken.slice(0, 10)) expect(column.get(row)).toBe(row);
    expect(rows.take()).toBeLessThan(CHUNK_ROWS);
  });

  test("freed twice is a programmer's error", () => {
    const rows = new RowAllocator([]);
    rows.free(rows.take());
    expect(() => rows.free(0)).toThrow("a row is freed once");
  });

  test("a column that follows later grows and shrinks with the table", () => {
    const rows = new RowAllocator([]);
    const first = rows.take();
    const follower = new Float64Column();
    rows.follow(follower);
    follower.set(first, 7);
    for (let count = 0; count < CHUNK_ROWS; count += 1) follower.set(rows.take(), 1);
    expect(follower.get(first)).toBe(7);
    rows.clear();
    expect(rows.rowsEnd).toBe(0);
    follower.set(rows.take(), 9);
  });

  test("any order of taking and freeing keeps rows apart", () => {
    fc.assert(
      fc.property(fc.array(fc.nat(30), { maxLength: 200 }), (choices) => {
        const rows = new RowAllocator([]);
        const held: number[] = [];
        for (const choice of choices) {
          if (choice % 3 === 0 && held.length > 0) rows.free(held.splice(choice % held.length, 1)[0]!);
          else held.push(rows.take());
          expect(new Set(held).size).toBe(held.length);
          expect(rows.rowsUsed).toBe(held.length);
          for (const row of held) expect(row).toBeLessThan(rows.rowsEnd);
        }
      }),
    );
  });

  test("a sparse column is 0 where nothing was set", () => {
    const column = new SparseInt32Column();
    expect(column.get(5 * CHUNK_ROWS)).toBe(0);
    column.set(3 * CHUNK_ROWS + 1, 9);
    expect(column.get(3 * CHUNK_ROWS + 1)).toBe(9);
    expect(column.get(0)).toBe(0);
  });
});
