import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import { CHUNK_ROWS } from "#src/engine/columns.js";
import * as on from "./manual-engine.js";
import { ManualEngine } from "./manual-engine.js";

type Scan = (cursor: number) => ReturnType<typeof on.scan>;

/** One page: the next cursor and the names. */
function page(server: ManualEngine, scan: Scan, cursor: number): [number, string[]] {
  const [next, names] = server.reply(scan(cursor)) as [string, string[]];
  expect(next).toMatch(/^\d+$/);
  return [Number(next), names];
}

function scanAll(server: ManualEngine, scan: Scan): string[] {
  const found: string[] = [];
  let cursor = 0;
  let calls = 0;
  do {
    const [next, names] = page(server, scan, cursor);
    found.push(...names);
    cursor = next;
    calls += 1;
    expect(calls).toBeLessThan(10_000);
  } while (cursor !== 0);
  return found;
}

describe.each([
  [
    "SCAN",
    (count: number): Scan =>
      (cursor) =>
        on.scan(cursor, count),
  ],
  [
    "LEASE.SCAN",
    (count: number): Scan =>
      (cursor) =>
        on.scanLeases(cursor, count),
  ],
])("%s", (_, scanOf) => {
  test.each([1, 2, 10, 1_000])("COUNT %d: every element once when nothing changes", (count) => {
    const server = new ManualEngine();
    const names = Array.from({ length: 237 }, (__, index) => `n${index}`);
    for (const name of names) server.run(on.grant(name, 60_000, { keys: { [name]: "" } }));
    expect(scanAll(server, scanOf(count)).toSorted()).toEqual(names.toSorted());
  });

  test("gives at most COUNT elements per call", () => {
    const server = new ManualEngine();
    for (let index = 0; index < 50; index += 1)
      server.run(on.grant(`n${index}`, 60_000, { keys: { [`n${index}`]: "" } }));
    expect(page(server, scanOf(7), 0)[1].length).toBe(7);
  });

  test("an empty collection ends at once", () => {
    expect(page(new ManualEngine(), scanOf(10), 0)).toEqual([0, []]);
  });

  test("any cursor is harmless and leads to the end", () => {
    const server = new ManualEngine();
    for (let index = 0; index < 50; index += 1)
      server.run(on.grant(`n${index}`, 60_000, { keys: { [`n${index}`]: "" } }));
    for (const start of [1, 49, 50, 51, 4_096, 2 ** 32, Number.MAX_SAFE_INTEGER]) {
      let cursor = start;
      for (let calls = 0; cursor !== 0; calls += 1) {
        expect(calls).toBeLessThan(100);
        [cursor] = page(server, scanOf(1), cursor);
      }
    }
  });

  test("a collection that has emptied is crossed in few calls", () => {
    const server = new ManualEngine();
    const total = 3 * CHUNK_ROWS;
    for (let index = 0; index < total; index += 1)
      server.run(on.grant(`n${index}`, 60_000, { keys: { [`n${index}`]: "" } }));
    for (let index = 1; index < total - 1; index += 1) server.run(on.revoke(`n${index}`));
    server.durable();
    let calls = 0;
    const found: string[] = [];
    let cursor = 0;
    do {
      const [next, names] = page(server, scanOf(10), cursor);
      found.push(...names);
      cursor = next;
      calls += 1;
    } while (cursor !== 0);
    expect(found.toSorted()).toEqual(["n0", `n${total - 1}`]);
    expect(calls).toBeLessThan(2 * (CHUNK_ROWS / 160) + 5);
  });

  test("what is there all the time is given, whatever comes and goes, and the scan ends", () => {
    const change = fc.record({
      name: fc.integer({ min: 0, max: 39 }).map((index) => `n${index}`),
      isGrant: fc.boolean(),
      isDurable: fc.boolean(),
    });
    fc.assert(
      fc.property(
        fc.array(fc.array(change, { maxLength: 12 }), { minLength: 1, maxLength: 12 }),
        fc.integer({ min: 1, max: 6 }),
        (rounds, count) => {
          const server = new ManualEngine();
          const apply = (changes: (typeof rounds)[number]): void => {
            for (const { name, isGrant, isDurable } of changes) {
              server.run(isGrant ? on.grant(name, 60_000, { keys: { [name]: "" } }) : on.revoke(name));
              if (isDurable) server.durable();
            }
          };
          const present = (): Set<string> => new Set(server.reply(on.list()) as string[]);
          apply(rounds[0] ?? []);
          const allTheTime = present();
          const sometime = new Set(allTheTime);
          const found = new Set<string>();
          let cursor = 0;
          let calls = 0;
          do {
            const [next, names] = page(server, scanOf(count), cursor);
            for (const name of names) found.add(name);
            cursor = next;
            for (const { name, isGrant, isDurable } of rounds[1 + (calls % (rounds.length - 1 || 1))] ?? []) {
              apply([{ name, isGrant, isDurable }]);
              if (!isGrant) allTheTime.delete(name);
              sometime.add(name);
            }
            calls += 1;
            expect(calls).toBeLessThan(200);
          } while (cursor !== 0);
          for (const name of allTheTime) expect(found).toContain(name);
          for (const name of found) expect(sometime).toContain(name);
        },
      ),
      { numRuns: 80 },
    );
  });
});

describe("SCAN's options", () => {
  test("MATCH filters, also when nothing matches", () => {
    const server = new ManualEngine();
    for (const name of ["apple", "avocado", "banana"]) server.run(on.grant(name, 60_000, { keys: { [name]: "" } }));
    expect(scanAll(server, (cursor) => on.scan(cursor, 1, "a*")).toSorted()).toEqual(["apple", "avocado"]);
    expect(scanAll(server, (cursor) => on.scan(cursor, 1, "c*"))).toEqual([]);
    expect(scanAll(server, (cursor) => on.scanLeases(cursor, 1, "*an*"))).toEqual(["banana"]);
  });

  test("TYPE: only strings are here", () => {
    const server = new ManualEngine();
    server.run(on.grant("a", 60_000, { keys: { k: "" } }));
    expect(scanAll(server, (cursor) => on.scan(cursor, 10, null, "string"))).toEqual(["k"]);
    expect(scanAll(server, (cursor) => on.scan(cursor, 10, null, "STRING"))).toEqual(["k"]);
    expect(scanAll(server, (cursor) => on.scan(cursor, 10, null, "hash"))).toEqual([]);
  });

  test("leases past their deadline are ended when met, not shown", () => {
    const server = new ManualEngine();
    for (let index = 0; index < 20; index += 1) server.run(on.grant(`n${index}`, 1_000));
    server.run(on.grant("kept", 60_000));
    server.advance(1_000);
    expect(scanAll(server, (cursor) => on.scanLeases(cursor, 5))).toEqual(["kept"]);
    expect(server.engine.leases).toBe(1);
  });
});
