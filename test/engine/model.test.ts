import * as fc from "fast-check";
import { expect, test } from "vitest";
import type { Command, KeyName, LockMode, Origin } from "#src/engine/command.js";
import { digest, Engine, type Decision } from "#src/engine/engine.js";
import { DEFAULT_ENGINE_LIMITS, type EngineLimits } from "#src/engine/limits.js";
import type { Op } from "#src/engine/op.js";
import { TICK_MS } from "#src/engine/timer-wheel.js";
import { OpModel } from "../durability/ops.js";
import * as on from "./manual-engine.js";
import { Between, isPlainId, ReferenceModel, WAITS } from "./reference-model.js";

/**
 * The engine beside the reference model, under random commands, time, ticks, syncs, crashes that lose what was not synced, and
 * take-overs with another clock. Of those who wait, the model checks every answer: who is told, in which order, and why.
 *
 * Leases of two keys are large ones in most runs: their keys are named in slices. A take-over reads the rows that the ops leave in a
 * store, so it meets those of leases that have ended; they must count for nothing.
 */

class Pair {
  engine: Engine;
  model: ReferenceModel;
  nowMs: number;
  readonly unixMs = UNIX_MS;
  durableRevision = 0;
  readonly #log: { readonly revision: number; readonly ops: readonly Op[] }[] = [];
  readonly #snapshots = new Map<number, ReferenceModel>();
  readonly #flushes = new Set<number>();
  #tokens = new Set<number>();
  /** Tokens by key, each with the revision that gave it. */
  readonly #tokensOfKeys = new Map<string, { readonly token: number; readonly revision: number }[]>();

  readonly #limits: EngineLimits;
  /** Rows that counted for nothing at the newest take-over. */
  #orphans = 0;

  constructor(nowMs: number, keysEndedAtOnceMax: number) {
    this.#limits = { ...DEFAULT_ENGINE_LIMITS, keysEndedAtOnceMax };
    this.engine = new Engine(this.#limits, "inc", on.testDigest);
    this.model = new ReferenceModel(this.#limits.clockErrorPerMille);
    this.nowMs = nowMs;
    this.model.nowMs = nowMs;
    this.model.unixMs = UNIX_MS;
    this.#snapshots.set(0, this.model.clone());
  }

  command(command: Command, origin: Origin): void {
    const { engine, model } = this;
    this.#settle();
    const before = model.durableText();
    const wasDead = this.#deadInEngine();
    const { revision } = engine.state;
    const decision = engine.decide(command, this, origin);
    expect(engine.state.revision).toBe(revision);
    engine.apply(decision, this);

    const hasOps = decision.ops.length > 0;
    expect(engine.state.revision).toBe(revision + (hasOps ? 1 : 0));
    const reply = decision.waits === null ? on.plain(decision.reply) : WAITS;
    const chosenId = Array.isArray(reply) ? String(reply[0]) : null;
    this.#writeDead(decision, revision + 1);
    const expected = model.run(command, origin, revision + 1, chosenId, decision.waits?.waitId ?? 0);
    checkReply(command, reply, expected);
    this.#checkWakes(command, decision, revision + 1);

    if (model.durableText() !== before) expect(hasOps).toBe(true);
    else if (hasOps) expect(decision.ops.every((op) => isNeedless(op, wasDead))).toBe(true);
    if (hasOps) this.#noteChange(decision);
    else if (decision.waits === null) this.#checkSaw(command, origin, decision.sawRevision);
    this.#handOver();
    this.check();
  }

  #noteChange(decision: Decision): void {
    const { revision } = this.engine.state;
    expect(decision.sawRevision).toBe(revision);
    this.#log.push({ revision, ops: decision.ops });
    this.#snapshots.set(revision, this.model.clone());
    this.#noteOps(decision.ops, revision);
  }

  #writeDead({ ops }: Decision, revision: number): void {
    for (const op of ops) {
      if (op.kind === "lease-end" && op.reason === "expired") this.model.writeDead(op.id, revision);
      if (op.kind === "string-end" && op.reason === "expired") {
        this.model.writeDeadKey(op.databaseIndex, op.key, revision);
      }
    }
  }

  /** Those whose lease ended, and those whose wait the command ends: nobody else is told anything by a command itself. */
  #checkWakes(command: Command, { wakes }: Decision, revision: number): void {
    for (const { waitId, reply } of wakes) {
      const text = on.plain(reply);
      if (typeof text === "string" && text.startsWith("NOLEASE")) {
        expect(text).toBe(on.noLease(this.model.takeOwed(waitId)));
      } else {
        expect(command.kind).toBe("wait-end");
        this.model.endWait(waitId);
      }
    }
    // A lease that a command ended, or that was met dead, has been told of for all its commands.
    for (const id of this.model.owed.values()) expect(this.model.limbo.has(id)).toBe(true);
    expect(revision).toBeGreaterThan(0);
  }

  /** Keys that came free are handed on, one at a time. */
  #handOver(): void {
    const { engine, model } = this;
    for (let next = engine.handOver(this); next !== null; next = engine.handOver(this)) {
      const revision = engine.state.revision + (next.ops.length > 0 ? 1 : 0);
      engine.apply(next, this);
      this.#writeDead(next, revision);
      const told = new Set<number>();
      for (const { waitId, reply } of next.wakes) {
        const text = on.plain(reply);
        if (told.has(waitId)) continue;
        if (typeof text === "number") {
          for (const other of model.grantPlace(waitId, text, revision)) told.add(other);
        } else if (String(text).startsWith("WRONGMODE")) {
          for (const other of model.refusePlace(waitId)) told.add(other);
        } else {
          expect(text).toBe(on.noLease(model.takeOwed(waitId)));
          told.add(waitId);
        }
      }
      expect(told).toEqual(new Set(next.wakes.map(({ waitId }) => waitId)));
      if (next.ops.length > 0) this.#noteChange(next);
    }
    // Who waits for a key that the end of its lease left unnamed gets it when its slice comes.
    if (model.limbo.size === 0 && engine.state.leftoverCount === 0) model.checkNobodyIsKeptWaiting();
  }

  /** What the tick does, once. */
  tick(): void {
    this.#settle();
    const waitIds = this.engine.dueWaits(this.nowMs, 3);
    for (const waitId of waitIds)
      expect(this.model.overdue(this.nowMs).includes(waitId) || this.model.owed.has(waitId)).toBe(true);
    if (waitIds.length > 0) this.command(on.endWait(...waitIds), on.ORIGIN);
    const due = this.engine.dueLeases(this.nowMs, 3);
    for (const id of due.ids) expect(this.model.leases.has(id)).toBe(false);
    this.command({ kind: "lease-expire", ...due }, on.ORIGIN);
    const dropped = this.engine.dropKeys(this);
    if (dropped === null) return;
    this.engine.apply(dropped, this);
    this.#noteChange(dropped);
    this.#handOver();
    this.check();
  }

  pass(ms: number): void {
    this.nowMs += ms;
    this.model.nowMs = this.nowMs;
  }

  /** Ticks for as long as the engine asks for it: then whoever has been dead for a tick of the wheel is gone. */
  tickUntilIdle(): void {
    this.pass(TICK_MS);
    this.sync(1);
    for (let rounds = 0; (this.engine.nextDueMs() ?? Infinity) <= this.nowMs; rounds += 1) {
      if (rounds > 1_000) throw new Error("the engine asks for ticks without end");
      this.tick();
      this.sync(1);
    }
    expect(this.engine.state.leftoverCount).toBe(0);
    this.#settle();
    expect(this.model.overdue(this.nowMs - TICK_MS)).toEqual([]);
    const dead = this.#deadInEngine();
    for (const id of dead) expect(this.model.limbo.get(id)?.lease.deadAtMs).toBeGreaterThan(this.nowMs - TICK_MS);
  }

  sync(fraction: number): void {
    const { revision } = this.engine.state;
    this.durableRevision += Math.ceil((revision - this.durableRevision) * fraction);
    this.engine.durable(this.durableRevision);
    this.check();
  }

  crash(nowMs: number): void {
    this.nowMs = nowMs;
    this.engine = new Engine(this.#limits, "inc", on.testDigest);
    const rows = new OpModel();
    for (const { revision, ops } of this.#log.splice(0)) {
      if (revision > this.durableRevision) break;
      this.#log.push({ revision, ops });
      for (const op of ops) rows.apply(op);
    }
    for (const op of rows.ops()) this.engine.recover(op);
    this.engine.recoverRevision(this.durableRevision);
    this.#checkOrphans(this.engine.finishRecovery().orphanKeys);
    this.engine.beginRebuild(this);
    while (!this.engine.rebuildSome(2));
    const snapshot = this.#snapshots.get(this.durableRevision);
    if (snapshot === undefined) throw new Error("no snapshot");
    this.model = snapshot.clone();
    this.model.unixMs = UNIX_MS;
    this.model.takeOver(nowMs);
    for (const tokens of this.#tokensOfKeys.values()) {
      while ((tokens.at(-1)?.revision ?? 0) > this.durableRevision) tokens.pop();
    }
    this.#removeOrphans();
    // What was loaded is durable: nothing waits for it.
    this.model.leaseChangedAt.clear();
    this.model.keyChangedAt.clear();
    this.#tokens = new Set([...this.#tokens].filter((token) => token <= this.durableRevision));
    this.check();
  }

  /** Only what the end of a lease left unnamed. */
  #checkOrphans(orphans: readonly { readonly leaseId: string | null }[]): void {
    if (this.#limits.keysEndedAtOnceMax === DEFAULT_ENGINE_LIMITS.keysEndedAtOnceMax) expect(orphans).toEqual([]);
    for (const { leaseId } of orphans) expect(leaseId).not.toBeNull();
    this.#orphans = orphans.length;
  }

  /** All that was left unnamed has been named: the store holds no row that counts for nothing. */
  expectNoOrphans(): void {
    this.sync(1);
    this.crash(this.nowMs);
    expect(this.#orphans).toBe(0);
  }

  #removeOrphans(): void {
    const ops = this.engine.orphanRemovals();
    if (ops.length === 0) return;
    const revision = this.engine.applyOps(ops);
    this.#log.push({ revision, ops });
    this.#snapshots.set(revision, this.model.clone());
  }

  check(): void {
    this.engine.checkInvariants();
    expect(this.#engineText()).toBe(this.model.durableText());
  }

  /** The model learns which leases on grace the engine has let end, and drops what is dead. */
  #settle(): void {
    for (const lease of this.model.uncertain()) {
      if (!this.#isAlive(lease.id)) lease.deadAtMs = this.nowMs;
    }
    this.model.dropDead();
  }

  #isAlive(id: string): boolean {
    if (!isPlainId(id)) return this.engine.decide(on.pttl(id), this, on.ORIGIN).reply !== -2;
    const [, databaseIndex, key] = id.split(" ") as [string, string, string];
    return this.engine.decide(on.keyPttl(key), this, on.inDatabase(Number(databaseIndex))).reply !== -2;
  }

  /** Ids that the engine still has in its state though their time is over; those of plain keys as the model names them. */
  #deadInEngine(): Set<string> {
    const ids = new Set<string>();
    for (const line of digest(this.engine.state).split("\n").slice(1)) {
      const [kind, first, second, , , ttlMs] = JSON.parse(line) as [string, ...(string | number | null)[]];
      const id = kind === "string" ? `\0plain ${first} ${second}` : String(first);
      if (kind === "string" && ttlMs === null) continue;
      if ((kind === "lease" || kind === "string") && !this.model.leases.has(id)) ids.add(id);
    }
    return ids;
  }

  #engineText(): string {
    const dead = this.#deadInEngine();
    const lines: string[] = [];
    for (const line of digest(this.engine.state).split("\n").slice(1)) {
      const fields = (JSON.parse(line) as unknown[]).map((field) =>
        typeof field === "object" && field !== null ? JSON.stringify(field) : String(field),
      );
      const [kind, first, second, third] = fields as [string, string, string, string];
      const owner = { lease: first, key: third, string: `\0plain ${first} ${second}` }[kind];
      if (owner === undefined || dead.has(owner)) continue;
      lines.push((kind === "lease" ? fields.slice(0, 4) : fields).join(" "));
    }
    return lines.toSorted().join("\n");
  }

  #noteOps(ops: readonly Op[], revision: number): void {
    for (const op of ops) {
      if (op.kind === "flush-all" || op.kind === "flush-database") this.#flushes.add(revision);
      if (op.kind === "key-put" && op.valueOnly !== true) this.#noteToken(op, revision);
      if (op.kind === "string-put" && op.token === revision) this.#noteToken(op, revision);
    }
    expect(this.#tokens.has(revision)).toBe(false);
    this.#tokens.add(revision);
  }

  /** Tokens of a key rise from holder to holder, over crashes too. */
  #noteToken({ databaseIndex, key, token }: KeyName & { readonly token: number }, revision: number): void {
    expect(token).toBe(revision);
    const name = `${databaseIndex} ${key}`;
    const tokens = this.#tokensOfKeys.get(name) ?? [];
    expect(token).toBeGreaterThan(tokens.at(-1)?.token ?? 0);
    tokens.push({ token, revision });
    this.#tokensOfKeys.set(name, tokens);
  }

  /** A reply waits for the newest change of what it names that is not durable yet; a keep-alive for nothing else. */
  #checkSaw(command: Command, origin: Origin, sawRevision: number): void {
    const revealed: number[] = [];
    if (command.kind === "lease-keepalive" || command.kind === "lease-ttl") {
      const changedAt = this.model.leaseChangedAt.get(command.id) ?? 0;
      revealed.push(changedAt);
      if (changedAt > this.durableRevision) this.#checkNoMore(sawRevision, changedAt);
      if (this.model.leases.has(command.id)) expect(sawRevision).toBe(changedAt);
    }
    // One whose lease is dead tells of nothing but that.
    const isRefused = "id" in command && (command.id === null || !this.model.leases.has(command.id));
    if ("key" in command && command.kind !== "lease-attach" && !isRefused) {
      const changedAt = this.model.changedAtOfKey(origin.databaseIndex, command.key);
      revealed.push(changedAt);
      if (command.kind === "key-get" && changedAt > this.durableRevision) this.#checkNoMore(sawRevision, changedAt);
    }
    if (command.kind === "key-exists") {
      for (const key of command.keys) revealed.push(this.model.changedAtOfKey(origin.databaseIndex, key));
    }
    if (command.kind === "key-count" || command.kind === "key-list" || command.kind === "key-scan") {
      for (const [name, changedAt] of this.model.keyChangedAt) {
        if (name.startsWith(`${origin.databaseIndex} `)) revealed.push(changedAt);
      }
    }
    if (command.kind === "lease-scan") revealed.push(...this.model.leaseChangedAt.values());
    if (command.kind === "lease-info") revealed.push(this.model.leaseChangedAt.get(command.id) ?? 0);
    for (const changedAt of revealed) {
      if (changedAt > this.durableRevision) expect(sawRevision).toBeGreaterThanOrEqual(changedAt);
    }
  }

  /** What vanished before a flush may be waited for as if it had vanished by the flush: a flush forgets what was before. */
  #checkNoMore(sawRevision: number, changedAt: number): void {
    if (sawRevision !== changedAt) expect(this.#flushes).toContain(sawRevision);
  }
}

/** Ops of a command that changed nothing for the living: ends of the dead, and flushes of what was empty. */
function isNeedless(op: Op, dead: ReadonlySet<string>): boolean {
  if (op.kind === "lease-end") return op.reason === "expired" && dead.has(op.id);
  if (op.kind === "lease-keys-end") return true;
  if (op.kind === "string-end") return op.reason === "expired" && dead.has(`\0plain ${op.databaseIndex} ${op.key}`);
  // The value that is there, written again.
  if (op.kind === "string-put") return op.keepsTime === true;
  if (op.kind === "key-put") return op.valueOnly === true;
  return op.kind === "flush-all" || op.kind === "flush-database";
}

function checkReply(command: Command, reply: unknown, expected: unknown): void {
  const { kind } = command;
  if (kind === "lease-expire" || kind === "wait-end") return;
  if (expected === WAITS || reply === WAITS) {
    expect(reply).toBe(expected);
    return;
  }
  if (kind === "lease-scan" || kind === "key-scan") {
    const [cursor, names] = reply as [string, string[]];
    expect(cursor).toBe("0");
    expect(names.toSorted()).toEqual((expected as string[]).toSorted());
  } else if (kind === "key-list") {
    expect((reply as string[]).toSorted()).toEqual((expected as string[]).toSorted());
  } else if (kind === "key-random") {
    const names = expected as string[];
    if (names.length === 0) expect(reply).toBeNull();
    else expect(names).toContain(reply);
  } else if (kind === "lease-info" && expected === "ended or nil") {
    if (reply !== null) expect(reply).toMatchObject({ state: "ended" });
  } else if (kind === "lock-info" && expected !== null) {
    expect(reply).toMatchObject(expected as object);
  } else if (kind === "lease-info") {
    checkInfo(reply as InfoReply, expected as InfoExpected);
  } else if (typeof reply === "string" && typeof expected === "string" && /^[A-Z]{3,}/.test(expected)) {
    expect(reply.split(" ")[0]).toBe(expected);
  } else if (expected instanceof Between) {
    checkBetween(reply, expected);
  } else {
    expect(reply).toEqual(expected);
  }
}

interface InfoReply {
  readonly remaining: number;
  readonly keys: readonly string[];
}

interface InfoExpected {
  readonly remaining: Between;
  readonly keys: readonly string[];
}

function checkInfo(reply: InfoReply, { remaining, keys: names, ...rest }: InfoExpected): void {
  expect(reply).toMatchObject(rest);
  expect(reply.keys.toSorted()).toEqual(names.toSorted());
  checkBetween(reply.remaining, remaining);
}

function checkBetween(reply: unknown, { least, most }: Between): void {
  expect(reply).toBeGreaterThanOrEqual(least);
  expect(reply).toBeLessThanOrEqual(most);
}

// What may happen ---------------------------------------------------------------------------------------------------

const id = fc.constantFrom("a", "b", "c", "inc-3");
const key = fc.constantFrom("k1", "k2", "k3", "k4");
const keys = fc.array(key, { minLength: 1, maxLength: 3 });
const ids = fc.array(id, { minLength: 1, maxLength: 3 });
const ttlMs = fc.constantFrom(1, 7, 100, 1_000, 5_000, 2 ** 42);
const value = fc.constantFrom("v", "w");
const unit = fc.constantFrom("s" as const, "ms" as const);
const nonce = fc.constantFrom(null, null, "n1", "n2");
const UNIX_MS = 1_000_000;
const expiry = fc.oneof(
  fc.constantFrom(on.NONE, on.KEEP),
  ttlMs.map(on.inMs),
  fc.constantFrom(-5, 0, 1, 100, 5_000).map((ms) => on.atMs(UNIX_MS + ms)),
);
const stringCondition = fc.constantFrom(
  { kind: "always" as const },
  { kind: "always" as const },
  { kind: "nx" as const },
  { kind: "xx" as const },
  { kind: "eq" as const, value: "v" },
  { kind: "ne" as const, value: "v" },
  { kind: "digest-eq" as const, digest: on.testDigest("v") },
);
const mode: fc.Arbitrary<LockMode> = fc.constantFrom(
  on.EXCLUSIVE,
  on.EXCLUSIVE,
  on.EXCLUSIVE,
  on.SHARED,
  on.SHARED,
  on.limit(2),
);
const origin = fc.constantFrom(on.ORIGIN, on.ORIGIN, on.inDatabase(1));

const command: fc.Arbitrary<Command> = fc.oneof(
  {
    weight: 5,
    arbitrary: fc.record({
      kind: fc.constant("lease-grant" as const),
      id: fc.oneof(id, id, fc.constant(null)),
      ttlMs,
      keys: fc.array(fc.record({ key, value }), { maxLength: 3 }),
      label: fc.constant(null),
      request: nonce,
    }),
  },
  { weight: 3, arbitrary: id.map(on.keepAlive) },
  { weight: 1, arbitrary: ids.map((all) => on.keepAliveMany(...all)) },
  { weight: 1, arbitrary: ids.map((all) => on.revoke(...all)) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant("lease-ttl" as const), id, unit }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant("lease-setttl" as const), id, ttlMs }) },
  {
    weight: 5,
    arbitrary: fc.record({ kind: fc.constant("lease-attach" as const), id, key, value, force: fc.boolean() }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant("lease-detach" as const), id, keys }) },
  { weight: 1, arbitrary: id.map(on.info) },
  { weight: 1, arbitrary: fc.constant(on.scanLeases(0, 100)) },
  { weight: 2, arbitrary: key.map(on.get) },
  { weight: 1, arbitrary: keys.map((all) => on.exists(...all)) },
  { weight: 2, arbitrary: keys.map((all) => on.del(...all)) },
  { weight: 1, arbitrary: key.map(on.type) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("key-ttl" as const), key, unit }) },
  { weight: 1, arbitrary: fc.constantFrom(on.list(), on.scan(0, 100), on.COUNT) },
  { weight: 1, arbitrary: fc.double({ min: 0, max: 0.999, noNaN: true }).map(on.random) },
  { weight: 1, arbitrary: fc.constantFrom(on.FLUSH_DATABASE, on.FLUSH_ALL) },
  {
    weight: 5,
    arbitrary: fc.record({
      kind: fc.constant("string-set" as const),
      key,
      value,
      condition: stringCondition,
      returnsFormer: fc.boolean(),
      expiry,
      answer: fc.constantFrom("ok" as const, "one" as const, "former" as const),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constant("string-set-many" as const),
      pairs: fc.array(fc.record({ key, value }), { minLength: 1, maxLength: 3 }),
      condition: fc.constantFrom("always" as const, "if-none" as const, "if-all" as const),
      expiry,
      answer: fc.constantFrom("ok" as const, "one" as const),
    }),
  },
  {
    weight: 3,
    arbitrary: fc.oneof(
      keys.map((all): Command => ({ kind: "string-get-many", keys: all })),
      fc.record({ kind: fc.constant("string-get-expire" as const), key, expiry }),
      key.map((name): Command => ({ kind: "string-get-delete", key: name })),
      key.map((name): Command => ({ kind: "string-length", key: name })),
      fc.record({ kind: fc.constant("string-delete-if" as const), key, condition: stringCondition }),
      fc.record({ kind: fc.constant("string-append" as const), key, value: fc.constantFrom("", "x") }),
      fc.record({ kind: fc.constant("string-increment" as const), key, by: fc.constantFrom(0n, 1n, -7n) }),
      key.map(on.persist),
    ),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      kind: fc.constant("key-expire" as const),
      key,
      expiry: fc.oneof(
        ttlMs.map(on.inMs),
        fc.constantFrom(-1, 0, 50, 5_000).map((ms) => on.atMs(UNIX_MS + ms)),
      ),
      condition: fc.constantFrom("always" as const, "always" as const, "nx" as const, "xx" as const),
    }),
  },
  {
    weight: 12,
    arbitrary: fc.record({
      kind: fc.constant("lock-acquire" as const),
      key,
      id,
      value: fc.constantFrom(null, null, "v"),
      mode,
      blockMs: fc.constantFrom(null, 0, 0, 0, 100, 1_000),
    }),
  },
  {
    weight: 5,
    arbitrary: fc.record({
      kind: fc.constant("lock-release" as const),
      key,
      id,
      token: fc.oneof(
        { weight: 3, arbitrary: fc.constant(null) },
        { weight: 1, arbitrary: fc.integer({ min: 1, max: 40 }) },
      ),
    }),
  },
  { weight: 1, arbitrary: key.map(on.lockInfo) },
  {
    weight: 1,
    arbitrary: fc.tuple(key, fc.integer({ min: 1, max: 40 })).map(([name, token]) => on.check(name, token)),
  },
  {
    weight: 1,
    arbitrary: fc.uniqueArray(fc.integer({ min: 1, max: 12 }), { maxLength: 2 }).map((some) => on.endWait(...some)),
  },
);

/** Quarters of a millisecond: sums stay exact, so that model and engine agree to the last bit. */
const quarters = (min: number, max: number): fc.Arbitrary<number> =>
  fc.integer({ min: min * 4, max: max * 4 }).map((n) => n / 4);

const step = fc.oneof(
  { weight: 12, arbitrary: fc.record({ kind: fc.constant("command" as const), command, origin }) },
  {
    weight: 4,
    arbitrary: fc.record({
      kind: fc.constant("pass" as const),
      ms: fc.oneof(
        quarters(0, 10),
        quarters(90, 110),
        fc.constantFrom(1, 2, 7, 8, 100, 101, 1_000, 1_002, 5_000, 5_010),
      ),
    }),
  },
  { weight: 2, arbitrary: fc.constant({ kind: "tick" as const }) },
  {
    weight: 2,
    arbitrary: fc.record({ kind: fc.constant("sync" as const), fraction: fc.constantFrom(0.5, 1) }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("crash" as const), nowMs: quarters(-1_000_000, 1_000_000) }) },
);

test("the engine answers as the reference model does", () => {
  fc.assert(
    fc.property(
      fc.array(step, { maxLength: 80, size: "max" }),
      quarters(-1_000_000, 1_000_000),
      fc.constantFrom(1, 1, 2, DEFAULT_ENGINE_LIMITS.keysEndedAtOnceMax),
      (steps, startMs, keysEndedAtOnceMax) => {
        const pair = new Pair(startMs, keysEndedAtOnceMax);
        for (const action of steps) {
          if (action.kind === "command") pair.command(action.command, action.origin);
          else if (action.kind === "pass") pair.pass(action.ms);
          else if (action.kind === "tick") pair.tick();
          else if (action.kind === "sync") pair.sync(action.fraction);
          else pair.crash(action.nowMs);
        }
        pair.tickUntilIdle();
        pair.expectNoOrphans();
      },
    ),
    { numRuns: 200 },
  );
});
