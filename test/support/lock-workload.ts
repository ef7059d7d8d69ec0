/**
 * Clients that use locks as applications do, over a few keys of each kind: they acquire, wait, release with and without a token, ask
 * who holds what; and set, delete and count plain keys. They live through server crashes like those of `workload.ts`.
 *
 * What they ask and are told is kept by key and judged by `linearizable.ts`. Their leases live for an hour, so nothing ends by time
 * in here: what a key once said it says until somebody changes it, whatever happened to the server.
 */
import { KEY, type KeyAction, type KeyMode } from "./key-history.js";
import { checkLinearizable, type Operation } from "./linearizable.js";
import { letPass, nowMs } from "./poll.js";
import {
  ConnectionClosed,
  RespConnection,
  RespError,
  fields,
  show,
  type Argument,
  type RespValue,
} from "./resp-client.js";
import type { Target } from "./workload.js";

const HOUR_MS = 3_600_000;

/** Tries of the search for an order, per key. */
const STEPS_MAX = 400_000;

/** Lock keys with the modes in which clients ask for them. */
const LOCKS: Readonly<Record<string, readonly KeyMode[]>> = {
  "lock-exclusive": ["exclusive"],
  "lock-shared": ["shared", "shared", "exclusive"],
  "lock-limit": [{ permits: 2 }],
};

const PLAIN = "plain";
const COUNTER = "counter";
const KEYS = [...Object.keys(LOCKS), PLAIN, COUNTER];

/** After these nothing has changed. WRONGMODE: an acquire that was cut off had the key in the other mode. */
const REFUSALS = ["READONLY", "LOADING", "DEADLOCK", "WRONGMODE"];

/** What was asked of one key; `life`: of which server. */
interface Asked {
  readonly key: string;
  readonly invokeMs: number;
  readonly life: number;
  /** null: the connection closed before an answer came. */
  readonly returnMs: number | null;
  readonly action: KeyAction;
}

export class LockHistory {
  private readonly asked: Asked[] = [];
  /** When each server was known to be gone. */
  private readonly deathsMs: number[] = [];
  /** Leases that were there and are not any more. */
  readonly lostLeases: string[] = [];
  answers = 0;

  /** The server is gone: what it had not done by now it never will. */
  restart(): void {
    this.deathsMs.push(nowMs());
  }

  /**
   * Sends a command about a key and notes what came of it. `actionOf` makes the operation of the answer, `unknown` is what may have
   * happened when none came. Returns the answer; null when there is none, or it is an error.
   */
  async ask(
    connection: RespConnection,
    key: string,
    args: readonly Argument[],
    actionOf: (reply: RespValue) => KeyAction,
    unknown: KeyAction | null,
  ): Promise<RespValue> {
    const invokeMs = nowMs();
    const life = this.deathsMs.length;
    try {
      const reply = await connection.send(...args);
      if (reply instanceof RespError) {
        this.noteError(reply, args);
        return null;
      }
      this.answers += 1;
      this.asked.push({ key, invokeMs, life, returnMs: nowMs(), action: actionOf(reply) });
      return reply;
    } catch (error) {
      if (!(error instanceof ConnectionClosed)) throw error;
      if (unknown !== null) this.asked.push({ key, invokeMs, life, returnMs: null, action: unknown });
      return null;
    }
  }

  private noteError({ code, text }: RespError, args: readonly Argument[]): void {
    if (code === "NOLEASE") this.lostLeases.push(args.join(" "));
    else if (!REFUSALS.includes(code)) throw new Error(`${args.join(" ")} answered ${text}`);
  }

  /** What is wrong, in words; nothing when all is sound. */
  judge(): string[] {
    const broken = this.lostLeases.map((args) => `the lease is gone: ${args}`);
    for (const key of KEYS) {
      const verdict = checkLinearizable(this.operationsOf(key), KEY, STEPS_MAX);
      if (verdict.kind === "linearizable") continue;
      const detail = verdict.kind === "broken" ? `${verdict.state}, then ${JSON.stringify(verdict.stuckAt)}` : "";
      broken.push(`${key} is ${verdict.kind}: ${detail}`);
    }
    return broken;
  }

  private operationsOf(key: string): Operation<KeyAction>[] {
    return this.asked.flatMap((asked): Operation<KeyAction>[] => {
      if (asked.key !== key) return [];
      const { invokeMs, returnMs, action, life } = asked;
      if (returnMs !== null) return [{ invokeMs, returnMs, action }];
      return [{ invokeMs, returnMs: this.deathsMs[life] ?? Infinity, isUnknown: true, action }];
    });
  }
}

export class LockWorkload {
  readonly history = new LockHistory();
  private readonly target: Target;
  private running = true;
  private readonly clients: Promise<void>[];

  constructor(target: Target, clients = 5) {
    this.target = target;
    this.clients = Array.from({ length: clients }, async (_, index) =>
      new LockClient(this.history, target, `locker-${index}`).run(() => this.running),
    );
  }

  /** Stops all clients after their operation in flight. */
  async stop(): Promise<void> {
    this.running = false;
    this.target.port = null;
    await Promise.all(this.clients);
  }

  /** A last look at every key, and the verdict over all of it. */
  async judge(connection: RespConnection): Promise<string[]> {
    for (const key of KEYS) await look(this.history, connection, key);
    return this.history.judge();
  }
}

class LockClient {
  private readonly history: LockHistory;
  private readonly target: Target;
  private readonly lease: string;
  private connection: RespConnection | null = null;
  private values = 0;
  /** Its newest token of each key that it was given. */
  private readonly tokens = new Map<string, number>();

  constructor(history: LockHistory, target: Target, lease: string) {
    this.history = history;
    this.target = target;
    this.lease = lease;
  }

  async run(goOn: () => boolean): Promise<void> {
    while (goOn()) {
      this.connection ??= await this.connect();
      if (this.connection === null) await letPass(5);
      else await this.step(this.connection);
      if (this.connection?.isClosed === true) this.connection = null;
    }
    this.connection?.destroy();
  }

  /** The same lease over every connection. */
  private async connect(): Promise<RespConnection | null> {
    if (this.target.port === null) return null;
    // refused while the server is down or starting: the loop tries again
    const connection = await RespConnection.connect(this.target.port).catch(() => null);
    const grant = ["LEASE.GRANT", this.lease, "PX", HOUR_MS, "REQUEST", this.lease];
    // cut off by the server's end: the loop tries again
    const reply = await connection?.send(...grant).catch(() => null);
    return connection !== null && Array.isArray(reply) ? connection : null;
  }

  private async step(connection: RespConnection): Promise<void> {
    const dice = Math.random();
    const key = pick(Object.keys(LOCKS));
    if (dice < 0.4) await this.acquire(connection, key, Math.random() < 0.6);
    else if (dice < 0.7) await this.release(connection, key);
    else if (dice < 0.85) await this.usePlain(connection);
    else await look(this.history, connection, pick(KEYS));
  }

  private async acquire(connection: RespConnection, key: string, waits: boolean): Promise<void> {
    const { lease } = this;
    const modes: readonly KeyMode[] = LOCKS[key] ?? [];
    const mode = pick(modes);
    const asked = typeof mode === "object" ? ["LIMIT", mode.permits] : mode === "shared" ? ["SHARED"] : [];
    const held = this.tokens.get(key);
    // In another mode than what it has already it would be refused.
    if (held !== undefined && key === "lock-shared") return;
    const args = ["LOCK.ACQUIRE", key, lease, ...asked, ...(waits ? ["BLOCK", Math.ceil(Math.random() * 40)] : [])];
    const action = { kind: "acquire", lease, mode, value: null, by: "lock" } as const;
    const answerOf = (reply: RespValue): KeyAction => ({ ...action, answer: typeof reply === "number" ? reply : null });
    const reply = await this.history.ask(connection, key, args, answerOf, { ...action, answer: undefined });
    if (typeof reply === "number") this.tokens.set(key, reply);
  }

  private async release(connection: RespConnection, key: string): Promise<void> {
    const { lease } = this;
    const newest = this.tokens.get(key);
    const token = newest === undefined || Math.random() < 0.4 ? null : Math.random() < 0.8 ? newest : newest - 1;
    const args = ["LOCK.RELEASE", key, lease, ...(token === null ? [] : ["TOKEN", token])];
    const action = { kind: "release", lease, token } as const;
    const actionOf = (reply: RespValue): KeyAction => ({ ...action, answer: Number(reply) });
    await this.history.ask(connection, key, args, actionOf, { ...action, answer: undefined });
    if (token === null || token === newest) this.tokens.delete(key);
  }

  private async usePlain(connection: RespConnection): Promise<void> {
    const value = `${this.lease} ${this.values}`;
    const dice = Math.random();
    if (dice < 0.4) {
      const actionOf = (reply: RespValue): KeyAction => ({ kind: "increment", by: 1, answer: Number(reply) });
      const unknown: KeyAction = { kind: "increment", by: 1, answer: undefined };
      await this.history.ask(connection, COUNTER, ["INCR", COUNTER], actionOf, unknown);
    } else if (dice < 0.7) {
      this.values += 1;
      const mine = `${this.lease} ${this.values}`;
      const action = { kind: "set", value: mine, ifAbsent: true } as const;
      const args = ["SET", PLAIN, mine, "NX", "PX", HOUR_MS];
      const actionOf = (reply: RespValue): KeyAction => ({ ...action, answer: reply !== null });
      await this.history.ask(connection, PLAIN, args, actionOf, { ...action, answer: true });
    } else {
      const action = { kind: "delete-if", value } as const;
      const actionOf = (reply: RespValue): KeyAction => ({ ...action, answer: Number(reply) });
      await this.history.ask(connection, PLAIN, ["DELIFEQ", PLAIN, value], actionOf, { ...action, answer: 1 });
    }
  }
}

/** Who holds a lock, or what a plain key says. */
async function look(history: LockHistory, connection: RespConnection, key: string): Promise<void> {
  if (key === PLAIN || key === COUNTER) {
    const valueOf = (reply: RespValue): KeyAction => ({
      kind: "get",
      answer: typeof reply === "string" ? reply : null,
    });
    await history.ask(connection, key, ["GET", key], valueOf, null);
  } else {
    await history.ask(connection, key, ["LOCK.INFO", key], holdersOf, null);
  }
}

function holdersOf(reply: RespValue): KeyAction {
  if (reply === null) return { kind: "holders", answer: [] };
  const holders = fields(reply).get("holders");
  if (!Array.isArray(holders)) throw new Error(`LOCK.INFO shows no holders: ${show(reply)}`);
  return { kind: "holders", answer: holders.map((holder) => Number(fields(holder).get("token"))) };
}

function pick<T>(from: readonly T[]): T {
  const picked = from[Math.floor(Math.random() * from.length)];
  if (picked === undefined) throw new Error("nothing to pick from");
  return picked;
}
