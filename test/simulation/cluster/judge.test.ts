import { describe, expect, test } from "vitest";
import { BatchReader, BatchWriter, CHANGE_PUT, asBuffer } from "#src/durability/batch.js";
import { encodeMeta, encodeOp } from "#src/durability/schema.js";
import type { Op } from "#src/engine/op.js";
import { World } from "../sim-world.js";
import { Judge, type LeaseBelief } from "./judge.js";
import { ClusterViolation, type ClusterRule } from "./rules.js";
import type { AppliedChange } from "./sim-shared.js";

/** The judge of the simulation sees what it is there to see, and nothing else. */

const LAYOUT = { fence: "fence", rowPrefix: "r/", journalPrefix: null };

class Bench {
  readonly world = new World(1);
  readonly judge = new Judge(this.world, LAYOUT, () => [], []);
  clientNowMs = 0;

  fence(incarnation: string, epoch: number): void {
    const value = Buffer.from(JSON.stringify({ epoch, node: {}, incarnation, tenure: 1 }));
    this.judge.onTransaction([{ key: "fence", value }]);
  }

  /** One batch takes effect. */
  batch(revision: number, ...ops: Op[]): void {
    const writer = new BatchWriter();
    for (const op of ops) encodeOp(op, writer);
    encodeMeta(revision, writer);
    const bytes = asBuffer(writer.packed());
    const reader = new BatchReader(bytes);
    const changes: AppliedChange[] = [];
    while (reader.next()) {
      const value = reader.kind === CHANGE_PUT ? Uint8Array.from(reader.value()) : null;
      changes.push({ key: `r/${reader.key().toString("latin1")}`, value });
    }
    this.judge.onTransaction(changes);
  }

  belief(id: string, untilMs: number): LeaseBelief {
    return {
      id,
      clientName: `client of ${id}`,
      clientNowMs: () => this.clientNowMs,
      untilMs,
      isGivenUp: false,
      wasRepeated: false,
      keys: new Map(),
    };
  }
}

const lease = (id: string, token: number): Op => ({
  kind: "lease-put",
  id,
  ttlMs: 1_000,
  token,
  label: null,
  request: null,
  grantedAtUnixMs: 0,
  owner: "",
});

const key = (leaseId: string, token: number): Op => ({
  kind: "key-put",
  databaseIndex: 0,
  key: "k",
  leaseId,
  value: "",
  token,
  mode: { kind: "exclusive" },
  sinceUnixMs: 0,
});

const expiry = (id: string, ...tokens: number[]): Op => ({
  kind: "lease-end",
  id,
  reason: "expired",
  lateMs: 0,
  by: "",
  keys: tokens.map((token) => ({ databaseIndex: 0, key: "k", token })),
});

function ruleBrokenBy(act: () => void): ClusterRule | null {
  try {
    act();
    return null;
  } catch (error) {
    if (error instanceof ClusterViolation) return error.rule;
    throw error;
  }
}

describe("the judge", () => {
  test("sees who acts without the fence, at the time of the reading that it goes by", () => {
    const bench = new Bench();
    const [a, b] = [
      { name: "a", incarnation: "a" },
      { name: "b", incarnation: "b" },
    ];
    bench.fence("a", 1);
    bench.world.spend(100);
    bench.fence("b", 2);
    bench.world.spend(100);
    expect(ruleBrokenBy(() => bench.judge.acts(a, 99))).toBeNull();
    expect(ruleBrokenBy(() => bench.judge.acts(b, 150))).toBeNull();
    expect(ruleBrokenBy(() => bench.judge.acts(a, 150))).toBe("S1-one-primary");
    expect(ruleBrokenBy(() => bench.judge.acts(b, 99))).toBe("S1-one-primary");
  });

  test("sees epochs that fall, and one that two acknowledge under", () => {
    const bench = new Bench();
    bench.fence("a", 5);
    bench.judge.acknowledges({ name: "a", incarnation: "a" }, 5);
    expect(ruleBrokenBy(() => bench.judge.acknowledges({ name: "b", incarnation: "b" }, 5))).toBe("S1-epochs");
    expect(ruleBrokenBy(() => bench.fence("b", 5))).toBe("S1-epochs");
  });

  test("sees an old batch after a newer one, and two batches of one revision; a repetition is none", () => {
    const bench = new Bench();
    bench.batch(1, lease("a", 1));
    bench.batch(2, lease("b", 2));
    expect(ruleBrokenBy(() => bench.batch(2, lease("b", 2)))).toBeNull();
    expect(ruleBrokenBy(() => bench.batch(2, lease("c", 2)))).toBe("S2-one-history");
    expect(ruleBrokenBy(() => bench.batch(1, lease("a", 1)))).toBe("S2-one-history");
  });

  test("sees two holders of a key, and a token that does not rise", () => {
    const bench = new Bench();
    bench.batch(2, lease("a", 1), key("a", 1), lease("b", 2));
    expect(ruleBrokenBy(() => bench.batch(3, key("b", 3)))).toBe("S4-exclusion");
    const other = new Bench();
    other.batch(5, lease("a", 1), key("a", 5), lease("b", 2));
    expect(ruleBrokenBy(() => other.batch(6, expiry("a", 5), key("b", 4)))).toBe("S4-tokens");
  });

  test("sees a lease end while somebody believes in it, by that one's clock", () => {
    const bench = new Bench();
    bench.batch(1, lease("a", 1), lease("b", 1));
    bench.judge.renewed(bench.belief("a", 1_000), true);
    bench.judge.renewed(bench.belief("b", 1_000), true);
    bench.clientNowMs = 999;
    expect(ruleBrokenBy(() => bench.batch(2, expiry("a")))).toBe("S3-early-end");
    bench.clientNowMs = 1_000;
    expect(ruleBrokenBy(() => bench.batch(3, expiry("b")))).toBeNull();
  });

  test("sees that what was acknowledged is not there, or that it is gone by the client's being told so", () => {
    const bench = new Bench();
    expect(ruleBrokenBy(() => bench.judge.renewed(bench.belief("a", 1_000), true))).toBe("S2-kept");
    expect(ruleBrokenBy(() => bench.judge.deadByWord(bench.belief("a", 1_000), "NOLEASE"))).toBe("S3-early-end");
    expect(ruleBrokenBy(() => bench.judge.deadByWord(bench.belief("a", 0), "NOLEASE"))).toBeNull();
  });

  test("sees what was acknowledged as ended come back", () => {
    const bench = new Bench();
    bench.batch(1, lease("a", 1));
    expect(ruleBrokenBy(() => bench.judge.ended(bench.belief("a", 0), "it was revoked"))).toBe("S2-ended");
    bench.batch(2, expiry("a"));
    bench.judge.ended(bench.belief("a", 0), "it was revoked");
    expect(ruleBrokenBy(() => bench.batch(3, lease("a", 3)))).toBe("S2-ended");
  });

  test("sees two clients that believe in one key", () => {
    const bench = new Bench();
    bench.batch(1, lease("a", 1), key("a", 1), lease("b", 1));
    const [a, b] = [bench.belief("a", 1_000), bench.belief("b", 1_000)];
    for (const belief of [a, b]) bench.judge.renewed(belief, true);
    bench.judge.acquired(a, "k", 1, 0);
    expect(ruleBrokenBy(() => bench.judge.acquired(b, "k", 2, 1))).toBe("S4-exclusion");
  });
});
