import * as fc from "fast-check";
import { expect, test } from "vitest";
import type { Command, Origin } from "#src/engine/command.js";
import { digest, Engine } from "#src/engine/engine.js";
import { DEFAULT_ENGINE_LIMITS } from "#src/engine/limits.js";
import type { Op } from "#src/engine/op.js";
import { TICK_MS } from "#src/engine/timer-wheel.js";
import * as on from "./manual-engine.js";
import { Between, ReferenceModel } from "./reference-model.js";

/**
 * The engine beside the reference model, under random commands, time, ticks, syncs, crashes that lose what was not synced, and
 * take-overs with another clock.
 */

const LIMITS = DEFAULT_ENGINE_LIMITS;

class Pair {
  engine = new Engine(LIMITS, "inc");
  model = new ReferenceModel(LIMITS.clockErrorPerMille);
  nowMs: number;
  unixMs = 0;
  durableRevision = 0;
  readonly #log: { readonly revision: number; readonly ops: readonly Op[] }[] = [];
  readonly #snapshots = new Map<number, ReferenceModel>();
  readonly #flushes = new Set<number>();
  #tokens = new Set<number>();

  constructor(nowMs: number) {
    this.nowMs = nowMs;
    this.model.nowMs = nowMs;
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
    const reply = on.plain(decision.reply);
    const chosenId = Array.isArray(reply) ? String(reply[0]) : null;
    for (const op of decision.ops) {
      if (op.kind === "lease-end" && op.reason === "expired") model.writeDead(op.id, revision + 1);
    }
    const expected = model.run(command, origin, revision + 1, chosenId);
    checkReply(command, reply, expected);

    if (model.durableText() !== before) expect(hasOps).toBe(true);
    else if (hasOps) expect(decision.ops.every((op) => isNeedless(op, wasDead))).toBe(true);
    if (hasOps) {
      expect(decision.sawRevision).toBe(revision + 1);
      this.#log.push({ revision: revision + 1, ops: decision.ops });
      this.#snapshots.set(revision + 1, model.clone());
      this.#noteOps(decision.ops, revision + 1);
    } else {
      this.#checkSaw(command, origin, decision.sawRevision);
    }
    this.check();
  }

  /** What the tick does, once. */
  tick(): void {
    this.#settle();
    const due = this.engine.dueLeases(this.nowMs, 3);
    for (const id of due.ids) expect(this.model.leases.has(id)).toBe(false);
    this.command({ kind: "lease-expire", ...due }, on.ORIGIN);
  }

  pass(ms: number): void {
    this.nowMs += ms;
    this.model.nowMs = this.nowMs;
  }

  /** Ticks for as long as the engine asks for it: then whoever has been dead for a tick of the wheel is gone. */
  tickUntilIdle(): void {
    this.pass(TICK_MS);
    for (let rounds = 0; (this.engine.nextDueMs() ?? Infinity) <= this.nowMs; rounds += 1) {
      if (rounds > 1_000) throw new Error("the engine asks for ticks without end");
      this.tick();
      this.sync(1);
    }
    this.#settle();
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
    this.engine = new Engine(LIMITS, "inc");
    for (const { revision, ops } of this.#log.splice(0)) {
      if (revision > this.durableRevision) break;
      this.#log.push({ revision, ops });
      for (const op of ops) this.engine.recover(op);
    }
    this.engine.recoverRevision(this.durableRevision);
    expect(this.engine.finishRecovery()).toEqual({ orphanKeys: [] });
    this.engine.beginRebuild(this);
    while (!this.engine.rebuildSome(2));
    const snapshot = this.#snapshots.get(this.durableRevision);
    if (snapshot === undefined) throw new Error("no snapshot");
    this.model = snapshot.clone();
    this.model.takeOver(nowMs);
    // What was loaded is durable: nothing waits for it.
    this.model.leaseChangedAt.clear();
    this.model.keyChangedAt.clear();
    this.#tokens = new Set([...this.#tokens].filter((token) => token <= this.durableRevision));
    this.check();
  }

  check(): void {
    this.engine.checkInvariants();
    expect(this.#engineText()).toBe(this.model.durableText());
  }

  /** The model learns which leases on grace the engine has let end, and drops what is dead. */
  #settle(): void {
    for (const lease of this.model.uncertain()) {
      const isAlive = this.engine.decide(on.pttl(lease.id), this, on.ORIGIN).reply !== -2;
      if (!isAlive) lease.deadAtMs = this.nowMs;
    }
    this.model.dropDead();
  }

  /** Ids that the engine still has in its state though their time is over. */
  #deadInEngine(): Set<string> {
    const ids = new Set<string>();
    for (const line of digest(this.engine.state).split("\n").slice(1)) {
      const [kind, id] = JSON.parse(line) as [string, string];
      if (kind === "lease" && !this.model.leases.has(id)) ids.add(id);
    }
    return ids;
  }

  #engineText(): string {
    const dead = this.#deadInEngine();
    const leases: string[] = [];
    const keys: string[] = [];
    for (const line of digest(this.engine.state).split("\n").slice(1)) {
      const fields = JSON.parse(line) as [string, ...(string | number)[]];
      if (fields[0] === "lease") {
        const [, id, ttlMs, token] = fields;
        if (!dead.has(String(id))) leases.push(`lease ${id} ${ttlMs} ${token}`);
      } else {
        const [, databaseIndex, key, id, value, token] = fields;
        if (!dead.has(String(id))) keys.push(`key ${databaseIndex} ${key} ${id} ${value} ${token}`);
      }
    }
    return [...leases.toSorted(), ...keys.toSorted()].join("\n");
  }

  #noteOps(ops: readonly Op[], revision: number): void {
    for (const op of ops) {
      if (op.kind === "flush-all" || op.kind === "flush-database") this.#flushes.add(revision);
      if (op.kind === "key-put" && op.valueOnly !== true) expect(op.token).toBe(revision);
    }
    expect(this.#tokens.has(revision)).toBe(false);
    this.#tokens.add(revision);
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
    if (command.kind === "key-get" || command.kind === "key-ttl" || command.kind === "key-type") {
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
  return op.kind === "flush-all" || op.kind === "flush-database";
}

function checkReply(command: Command, reply: unknown, expected: unknown): void {
  const { kind } = command;
  if (kind === "lease-expire") return;
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
    fc.property(fc.array(step, { maxLength: 80, size: "max" }), quarters(-1_000_000, 1_000_000), (steps, startMs) => {
      const pair = new Pair(startMs);
      for (const action of steps) {
        if (action.kind === "command") pair.command(action.command, action.origin);
        else if (action.kind === "pass") pair.pass(action.ms);
        else if (action.kind === "tick") pair.tick();
        else if (action.kind === "sync") pair.sync(action.fraction);
        else pair.crash(action.nowMs);
      }
      pair.tickUntilIdle();
    }),
    { numRuns: 200 },
  );
});
