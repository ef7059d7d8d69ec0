import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { Op } from "#src/engine/op.js";
import { BatchReader, BatchWriter, PageReader, PageWriter } from "#src/durability/batch.js";
import { applyBatch } from "#src/durability/memory-store.js";
import { decodeMeta, decodePage, encodeFormat, encodeIdentity, encodeMeta, encodeOp } from "#src/durability/schema.js";
import { type RowPage, StoreError } from "#src/durability/store.js";
import { ALL_BYTES, arbitraryOps, decodeAll, keyPut, leasePut, OpModel, packOps, stringPut } from "./ops.js";

function pageOf(rows: Map<string, Uint8Array>): RowPage {
  const writer = new PageWriter(rows.size * 4200);
  for (const key of [...rows.keys()].sort())
    writer.append(Buffer.from(key, "latin1"), rows.get(key) ?? new Uint8Array());
  return writer.take();
}

function rowsAfter(ops: readonly Op[], revision = 1): Map<string, Uint8Array> {
  const rows = new Map<string, Uint8Array>();
  applyBatch(rows, packOps(ops, revision).bytes);
  return rows;
}

const hexOf = (op: Op): string => {
  const writer = new BatchWriter();
  encodeOp(op, writer);
  return Buffer.from(writer.batch(1).bytes).toString("hex");
};

describe("golden bytes: what is on disk stays readable", () => {
  test("lease-put", () => {
    expect(hexOf(leasePut("job", { ttlMs: 30_000, token: 7, label: "a label" }))).toMatchInlineSnapshot(
      `"01050000003b0000006c2f6a6f620198cd753007a761206c6162656ccb427a0c4506c00000b8776f726b65722d31203132372e302e302e313a3530313233c0c2007294e8c07c95c5ff"`,
    );
  });

  test("lease-put with a request nonce and values beyond 32 bits", () => {
    const request = { nonce: "n-1", idChosenByServer: true, ttlMs: 60_000 };
    const op = leasePut("\xff\0", { ttlMs: Number.MAX_SAFE_INTEGER, token: 2 ** 40, request, owner: "\x80" });
    expect(hexOf(op)).toMatchInlineSnapshot(
      `"0104000000310000006c2fff000198cb433fffffffffffffcb4270000000000000c0cb427a0c4506c00000a2c280a36e2d31c3cdea603a3261e6814d6be4"`,
    );
  });

  test("lease-end", () => {
    const keys = [
      { databaseIndex: 0, key: "k", token: 1 },
      { databaseIndex: 15, key: "", token: 1 },
    ];
    const op: Op = { kind: "lease-end", id: "job", reason: "revoked", lateMs: 0, by: "x", keys };
    expect(hexOf(op)).toMatchInlineSnapshot(
      `"0205000000000000006c2f6a6f620208000000000000006e2f00026a6f626b0207000000000000006e2f0f026a6f62"`,
    );
  });

  test("lease-keys-end: the keys' rows, and not the lease's, which may be another one by now", () => {
    const keys = [
      { databaseIndex: 0, key: "k", token: 1 },
      { databaseIndex: 15, key: "", token: 1 },
    ];
    expect(hexOf({ kind: "lease-keys-end", leaseId: "job", reason: "revoked", keys })).toMatchInlineSnapshot(
      `"0208000000000000006e2f00026a6f626b0207000000000000006e2f0f026a6f62"`,
    );
  });

  test("key-put", () => {
    const op = keyPut("job", "lock", { databaseIndex: 3, value: "v\xe9", token: 9 });
    expect(hexOf(op)).toMatchInlineSnapshot(
      `"010b000000190000006e2f03026a6f626c6f636b029409a376c3a9c0cb427a0c4506c00000dc43e98019c5005d"`,
    );
    expect(hexOf({ ...op, mode: { kind: "shared" } })).toMatchInlineSnapshot(
      `"010b000000190000006e2f03026a6f626c6f636b029409a376c3a900cb427a0c4506c0000008363e24ad6e733a"`,
    );
    expect(hexOf({ ...op, mode: { kind: "limit", permits: 5 } })).toMatchInlineSnapshot(
      `"010b000000190000006e2f03026a6f626c6f636b029409a376c3a905cb427a0c4506c000001eee1966dc41661e"`,
    );
  });

  test("a key in record version 1 is read as held alone, since nobody knows when", () => {
    const row = Buffer.from("010b0000000f0000006e2f03026a6f626c6f636b019209a376c3a9746bdec4dc31e04e", "hex");
    const rows = new Map<string, Uint8Array>();
    applyBatch(rows, row);
    const op = keyPut("job", "lock", { databaseIndex: 3, value: "v\xe9", token: 9, sinceUnixMs: 0 });
    expect(decodeAll([pageOf(rows)]).ops).toEqual([op]);
  });

  test("string-put and string-end", () => {
    expect(hexOf(stringPut("lock", { databaseIndex: 3, value: "v\xe9", token: 9 }))).toMatchInlineSnapshot(
      `"01070000001b000000702f036c6f636b019409a376c3a9cd7530cb427a0c4506c0000046415d199b6db9ce"`,
    );
    expect(hexOf(stringPut("", { ttlMs: null, token: 2 ** 40 }))).toMatchInlineSnapshot(
      `"010300000023000000702f000194cb4270000000000000a576616c7565c0cb427a0c4506c00000d5e1e338b52951c3"`,
    );
    const end: Op = { kind: "string-end", databaseIndex: 3, key: "lock", token: 9, reason: "deleted" };
    expect(hexOf(end)).toMatchInlineSnapshot(`"020700000000000000702f036c6f636b"`);
  });

  test("scripts", () => {
    const sha = "0123456789abcdef0123456789abcdef01234567";
    expect(hexOf({ kind: "script-put", sha, body: "return 1", isPinned: true })).toMatchInlineSnapshot(
      `"012a00000014000000712f303132333435363738396162636465663031323334353637383961626364656630313233343536370192a872657475726e2031c34a275b5ae8f26ef3"`,
    );
    expect(hexOf({ kind: "script-end", sha })).toMatchInlineSnapshot(
      `"022a00000000000000712f30313233343536373839616263646566303132333435363738396162636465663031323334353637"`,
    );
    expect(hexOf({ kind: "scripts-flush" })).toMatchInlineSnapshot(`"030200000002000000712f7130"`);
  });

  test("key-end", () => {
    const op: Op = { kind: "key-end", databaseIndex: 3, key: "lock", leaseId: "job", token: 1, reason: "detached" };
    expect(hexOf(op)).toMatchInlineSnapshot(`"020b000000000000006e2f03026a6f626c6f636b"`);
  });

  test("flush-database and flush-all", () => {
    expect(hexOf({ kind: "flush-database", databaseIndex: 2 })).toMatchInlineSnapshot(
      `"0303000000030000006e2f026e2f03030300000003000000702f02702f03"`,
    );
    expect(hexOf({ kind: "flush-all", by: "x" })).toMatchInlineSnapshot(
      `"0302000000020000006c2f6c300302000000020000006e2f6e30030200000002000000702f7030"`,
    );
  });

  test("the meta rows", () => {
    const writer = new BatchWriter();
    encodeFormat(writer);
    encodeIdentity("abc", 3, writer);
    encodeMeta(41, writer);
    expect(Buffer.from(writer.batch(41).bytes).toString("hex")).toMatchInlineSnapshot(
      `"0108000000150000006d2f666f726d6174019201a96c65617365686f6c64e64629ed7e100bf4010a0000000f0000006d2f6964656e746974790192a36162630311efaa063c6f6818010a0000000b0000006d2f7265766973696f6e01912989970b138b4fba1b"`,
    );
  });
});

describe("ops to rows and back", () => {
  test("any history of ops leaves the rows that a model of it holds", () => {
    fc.assert(
      fc.property(arbitraryOps(40), (ops) => {
        const model = new OpModel();
        for (const op of ops) model.apply(op);
        const loaded = decodeAll([pageOf(rowsAfter(ops, 5))]);
        expect(loaded.ops).toEqual(model.ops());
        expect(loaded.revision).toBe(5);
      }),
      { numRuns: 300 },
    );
  });

  test("every one of the 256 bytes survives in every field", () => {
    const lease = leasePut(ALL_BYTES, {
      label: ALL_BYTES,
      owner: ALL_BYTES,
      request: { nonce: ALL_BYTES, idChosenByServer: false, ttlMs: 1 },
    });
    const key = keyPut(ALL_BYTES, ALL_BYTES + ALL_BYTES, { value: ALL_BYTES });
    expect(decodeAll([pageOf(rowsAfter([lease, key]))]).ops).toEqual([lease, key]);
  });

  test("leases come before the keys of any database, whatever their ids", () => {
    const ops = [keyPut("\0", ""), keyPut("a", "k"), leasePut("\xff"), leasePut("a"), leasePut("\0")];
    const kinds = decodeAll([pageOf(rowsAfter(ops))]).ops.map((op) => op.kind);
    expect(kinds).toEqual(["lease-put", "lease-put", "lease-put", "key-put", "key-put"]);
  });

  test("leases of one owner share one string: 20,000 of them do not keep 80 MB of it", () => {
    const owner = "x".repeat(4096);
    const page = pageOf(rowsAfter(Array.from({ length: 20_000 }, (_, index) => leasePut(`lease-${index}`, { owner }))));
    const before = process.memoryUsage().heapUsed;
    const { ops } = decodeAll([page]);
    const grownBytes = process.memoryUsage().heapUsed - before;
    expect(ops.length).toBe(20_000);
    expect(ops.every((op) => op.kind === "lease-put" && op.owner === owner)).toBe(true);
    // Without sharing the strings alone are 82 MB that nothing could have freed: `ops` still holds them.
    expect(grownBytes).toBeLessThan(60_000_000);
  });

  test("a lease whose id and key lengths add up alike is another row", () => {
    const ops = [keyPut("a", "bc"), keyPut("ab", "c")];
    expect(decodeAll([pageOf(rowsAfter(ops))]).ops).toEqual(ops);
  });

  test("meta rows are read back", () => {
    const writer = new BatchWriter();
    encodeFormat(writer);
    encodeIdentity("abc", 3, writer);
    encodeMeta(41, writer);
    const rows = new Map<string, Uint8Array>();
    applyBatch(rows, writer.batch(41).bytes);
    expect(decodeMeta(pageOf(rows))).toEqual({ formatVersion: 1, incarnation: "abc", epoch: 3, revision: 41 });
  });
});

describe("damage is named, never decoded", () => {
  const errorOf = (page: RowPage): StoreError => {
    try {
      decodePage(page, { op: () => undefined, revision: () => undefined });
    } catch (error) {
      if (error instanceof StoreError) return error;
      throw error;
    }
    throw new Error("the page was taken as sound");
  };

  test("one flipped bit anywhere in a row, key included", () => {
    const sound = pageOf(rowsAfter([leasePut("job", { label: "text" }), keyPut("job", "lock")], 3));
    const reader = new PageReader(sound);
    while (reader.next()) {
      for (let at = reader.keyStart; at < reader.valueEnd; at += 1) {
        for (let bit = 0; bit < 8; bit += 1) {
          const bytes = Uint8Array.from(sound.bytes);
          bytes[at] = (bytes[at] ?? 0) ^ (1 << bit);
          expect(errorOf({ bytes, rowCount: sound.rowCount }).code).toBe("damaged");
        }
      }
    }
  });

  test("a sound record under another row's key", () => {
    const rows = rowsAfter([leasePut("one", { token: 1 }), leasePut("two", { token: 2 })]);
    const swapped = new Map(rows);
    swapped.set("l/one", rows.get("l/two") ?? new Uint8Array());
    expect(errorOf(pageOf(swapped)).message).toBe("row l/one does not match its checksum");
  });

  test("a record that is cut off, and rows of no table", () => {
    const rows = rowsAfter([leasePut("one")]);
    const value = rows.get("l/one") ?? new Uint8Array();
    for (let length = 0; length < value.length; length += 1) {
      expect(errorOf(pageOf(new Map([["l/one", value.slice(0, length)]]))).code).toBe("damaged");
    }
    for (const key of ["", "l", "x/one", "lx", "m/other"]) {
      expect(errorOf(pageOf(new Map([[key, value]]))).code).toBe("damaged");
    }
  });

  test("the row is named in printable characters", () => {
    expect(errorOf(pageOf(new Map([["l/\n\xff\\", new Uint8Array(20)]]))).message).toBe(
      "row l/\\x0a\\xff\\x5c does not match its checksum",
    );
  });
});

describe("batches", () => {
  test("changes are read in the order in which they were written, across growth of the buffer", () => {
    const writer = new BatchWriter();
    const ops = Array.from({ length: 500 }, (_, index) => keyPut("lease", `key-${index}`, { value: "x".repeat(200) }));
    for (const op of ops) encodeOp(op, writer);
    const batch = writer.batch(1);
    expect(batch.changeCount).toBe(500);
    const reader = new BatchReader(batch.bytes);
    let count = 0;
    while (reader.next()) {
      expect(reader.key().toString("latin1").endsWith(`key-${count}`)).toBe(true);
      count += 1;
    }
    expect(count).toBe(500);
  });

  test("a cleared writer starts from nothing, also after a huge batch", () => {
    const writer = new BatchWriter();
    encodeOp(keyPut("lease", "key", { value: "x".repeat(3_000_000) }), writer);
    writer.clear();
    expect(writer.byteLength).toBe(0);
    const op = keyPut("lease", "key");
    const again = packOps([op], 2, writer);
    const rows = new Map<string, Uint8Array>();
    applyBatch(rows, again.bytes);
    expect(decodeAll([pageOf(rows)]).ops).toEqual([op]);
  });
});
