import * as fc from "fast-check";
import { DATABASE_COUNT, LEASE_ID_BYTES_MAX } from "#src/engine/limits.js";
import type { KeyName, LockMode } from "#src/engine/command.js";
import type { KeyPutOp, LeasePutOp, Op, ScriptPutOp, StringPutOp } from "#src/engine/op.js";
import { BatchWriter } from "#src/durability/batch.js";
import { decodePage, encodeMeta, encodeOp, type RowOp } from "#src/durability/schema.js";
import type { CommitBatch, RowPage } from "#src/durability/store.js";

/** Ops for tests: builders with plain defaults, random ones, and a model of the rows that ops leave behind. */

export const leasePut = (id: string, change: Partial<LeasePutOp> = {}): LeasePutOp => ({
  kind: "lease-put",
  id,
  ttlMs: 30_000,
  token: 1,
  label: null,
  request: null,
  grantedAtUnixMs: 1_790_000_000_000,
  owner: "worker-1 127.0.0.1:50123",
  ...change,
});

export const keyPut = (leaseId: string, key: string, change: Partial<KeyPutOp> = {}): KeyPutOp => ({
  kind: "key-put",
  databaseIndex: 0,
  key,
  leaseId,
  value: "value",
  token: 1,
  mode: { kind: "exclusive" },
  sinceUnixMs: 1_790_000_000_000,
  ...change,
});

export const stringPut = (key: string, change: Partial<StringPutOp> = {}): StringPutOp => ({
  kind: "string-put",
  databaseIndex: 0,
  key,
  value: "value",
  ttlMs: 30_000,
  token: 1,
  sinceUnixMs: 1_790_000_000_000,
  ...change,
});

export function packOps(ops: readonly Op[], revision: number, writer = new BatchWriter()): CommitBatch {
  for (const op of ops) encodeOp(op, writer);
  encodeMeta(revision, writer);
  return writer.batch(revision);
}

/** Every character 0..255, each standing for a byte. */
export const ALL_BYTES = String.fromCharCode(...Array.from({ length: 256 }, (_, byte) => byte));

const byteString = (minLength: number, maxLength: number): fc.Arbitrary<string> =>
  fc.array(fc.integer({ min: 0, max: 255 }), { minLength, maxLength }).map((bytes) => String.fromCharCode(...bytes));

// Few and short names, so that ops of one history meet; some at the limits.
const leaseId = fc.oneof(
  { weight: 8, arbitrary: fc.constantFrom("a", "b", "\0", "\xff", "a\0", "ab", "b/c") },
  { weight: 2, arbitrary: byteString(1, 8) },
  { weight: 1, arbitrary: byteString(LEASE_ID_BYTES_MAX, LEASE_ID_BYTES_MAX) },
);
const key = fc.oneof(
  { weight: 8, arbitrary: fc.constantFrom("", "k", "k1", "\xff\xff", "\0") },
  { weight: 2, arbitrary: byteString(0, 40) },
);
const databaseIndex = fc.constantFrom(0, 1, DATABASE_COUNT - 1);
const count = fc.oneof(fc.nat(1000), fc.maxSafeNat());
const text = byteString(0, 300);

const sha = fc.constantFrom("a".repeat(40), "0123456789abcdef0123456789abcdef01234567");
const mode: fc.Arbitrary<LockMode> = fc.oneof(
  fc.constantFrom<LockMode>({ kind: "exclusive" }, { kind: "shared" }),
  fc.record({ kind: fc.constant("limit" as const), permits: fc.integer({ min: 1, max: 1_000_000 }) }),
);

const arbitraryOp: fc.Arbitrary<Op> = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({
      kind: fc.constant("lease-put" as const),
      id: leaseId,
      ttlMs: count,
      token: count,
      label: fc.option(text),
      request: fc.option(fc.record({ nonce: text, idChosenByServer: fc.boolean(), ttlMs: count })),
      grantedAtUnixMs: count,
      owner: text,
    }),
  },
  {
    weight: 6,
    arbitrary: fc.record({
      kind: fc.constant("key-put" as const),
      databaseIndex,
      key,
      leaseId,
      value: text,
      token: count,
      mode,
      sinceUnixMs: count,
    }),
  },
  {
    weight: 6,
    arbitrary: fc.record({
      kind: fc.constant("string-put" as const),
      databaseIndex,
      key,
      value: text,
      ttlMs: fc.option(count.map((ms) => Math.max(1, ms))),
      token: count,
      sinceUnixMs: count,
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      kind: fc.constant("string-end" as const),
      databaseIndex,
      key,
      token: count,
      reason: fc.constantFrom("deleted" as const, "expired" as const, "taken" as const),
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({ kind: fc.constant("script-put" as const), sha, body: text, isPinned: fc.boolean() }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("script-end" as const), sha }) },
  { weight: 1, arbitrary: fc.constant({ kind: "scripts-flush" as const }) },
  {
    weight: 3,
    arbitrary: fc.record({
      kind: fc.constant("lease-end" as const),
      id: leaseId,
      reason: fc.constantFrom("expired" as const, "revoked" as const, "forced" as const),
      lateMs: fc.nat(),
      by: text,
      keys: fc.array(fc.record({ databaseIndex, key, token: count }), { maxLength: 3 }),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constant("lease-keys-end" as const),
      leaseId,
      reason: fc.constantFrom("expired" as const, "revoked" as const),
      keys: fc.array(fc.record({ databaseIndex, key, token: count }), { maxLength: 3 }),
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      kind: fc.constant("key-end" as const),
      databaseIndex,
      key,
      leaseId,
      token: count,
      reason: fc.constantFrom("detached" as const, "released" as const, "deleted" as const, "taken" as const),
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("flush-database" as const), databaseIndex }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("flush-all" as const), by: text }) },
);

export const arbitraryOps = (maxLength: number): fc.Arbitrary<Op[]> => fc.array(arbitraryOp, { maxLength });

/** The rows that ops leave behind, written without any bytes: what a store must hand over again. */
export class OpModel {
  readonly #leases = new Map<string, LeasePutOp>();
  readonly #keys = new Map<string, KeyPutOp>();
  readonly #strings = new Map<string, StringPutOp>();
  readonly #scripts = new Map<string, ScriptPutOp>();

  apply(op: Op): void {
    switch (op.kind) {
      case "lease-put":
        this.#leases.set(op.id, op);
        break;
      case "lease-end":
        this.#leases.delete(op.id);
        for (const name of op.keys) this.#keys.delete(nameOf(name.databaseIndex, op.id, name.key));
        break;
      case "lease-keys-end":
        for (const name of op.keys) this.#keys.delete(nameOf(name.databaseIndex, op.leaseId, name.key));
        break;
      case "key-put":
        this.#keys.set(nameOf(op.databaseIndex, op.leaseId, op.key), op);
        break;
      case "key-end":
        this.#keys.delete(nameOf(op.databaseIndex, op.leaseId, op.key));
        break;
      case "string-put":
        this.#strings.set(stringName(op), op);
        break;
      case "string-end":
        this.#strings.delete(stringName(op));
        break;
      case "script-put":
        this.#scripts.set(op.sha, op);
        break;
      case "script-end":
        this.#scripts.delete(op.sha);
        break;
      case "scripts-flush":
        this.#scripts.clear();
        break;
      case "flush-database":
        for (const [name, put] of this.#strings) if (put.databaseIndex === op.databaseIndex) this.#strings.delete(name);
        for (const [name, put] of this.#keys) if (put.databaseIndex === op.databaseIndex) this.#keys.delete(name);
        break;
      case "flush-all":
        this.#leases.clear();
        this.#keys.clear();
        this.#strings.clear();
        break;
    }
  }

  /** In the order in which a load hands them over. */
  ops(): RowOp[] {
    return [...byName(this.#leases), ...byName(this.#keys), ...byName(this.#strings), ...byName(this.#scripts)];
  }
}

const nameOf = (database: number, lease: string, name: string): string =>
  String.fromCharCode(database, lease.length - 1) + lease + name;

const stringName = (op: KeyName): string => String.fromCharCode(op.databaseIndex) + op.key;

const byName = <T>(rows: Map<string, T>): T[] => [...rows].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, op]) => op);

/** All that a page holds, decoded. */
export function decodeAll(pages: readonly RowPage[]): { ops: RowOp[]; revision: number | null } {
  const ops: RowOp[] = [];
  let revision: number | null = null;
  for (const page of pages) {
    decodePage(page, {
      op: (op) => ops.push(op),
      revision: (found) => {
        revision = found;
      },
    });
  }
  return { ops, revision };
}
