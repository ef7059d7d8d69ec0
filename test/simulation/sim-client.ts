import type { Command } from "#src/engine/command.js";
import { ErrorReply, type Reply } from "#src/engine/reply.js";
import type { Beliefs } from "./beliefs.js";
import type { LockMode } from "#src/engine/op.js";
import type { KeyHistories } from "./key-histories.js";
import { keyName, plainId } from "./model.js";
import type { Oracle } from "./oracle.js";
import { describe } from "./reply-forms.js";
import { commandsOf, show, type Asked, type ClientClock, type SimRequest } from "./request.js";
import { namesOfPage } from "./revealed.js";
import type { Connection, WireClient } from "./sim-wire.js";
import type { World } from "./sim-world.js";
import { LOCK_OPERATIONS, STRING_OPERATIONS, type Operation, type Workload } from "./swarm.js";
import { check } from "./violation.js";

/**
 * One client: a clock of its own, one connection at a time, a stream of commands over few names, so that they meet. It
 * follows the one rule that clients have to follow: it counts a lease's time from before it sent the request.
 */

export interface ClientOptions {
  readonly index: number;
  readonly workload: Workload;
  readonly clockRate: number;
  readonly clockOriginMs: number;
  /** A new connection to the server, or null when nothing listens. */
  connect(client: SimClient): Connection | null;
  readonly histories: KeyHistories;
  /** A number that no other request has. */
  nextRequestNumber(): number;
}

/** Locks that a client remembers. */
const LOCKS_KNOWN_MAX = 6;

/** What a client was told of a lock. */
interface Lock {
  readonly key: string;
  readonly id: string;
  readonly token: number;
}

/** A SCAN under way. */
interface Scan {
  readonly kind: "key-scan" | "lease-scan";
  readonly databaseIndex: number;
  /** What the scan has to meet; the oracle takes out what vanishes meanwhile. */
  readonly owed: Set<string>;
  readonly met: Set<string>;
}

export class SimClient implements ClientClock, WireClient {
  readonly index: number;
  readonly name: string;
  readonly #world: World;
  readonly #beliefs: Beliefs;
  readonly #oracle: Oracle;
  readonly #options: ClientOptions;
  #connection: Connection | null = null;
  /** In the order in which they were sent on this connection. */
  #outstanding: SimRequest[] = [];
  #toSendAgain: SimRequest[] = [];
  #requestsLeft: number;
  #scan: Scan | null = null;
  #nonces = 0;
  /** Sent again now and then, though its reply has come. */
  #lastGrant: { readonly command: Command; readonly databaseIndex: number } | null = null;
  #values = 0;
  #isResting = false;
  /** The newest command that was answered by a server that serves. */
  #lastServed: Asked | null = null;
  /** Locks that it was told of, newest last. */
  #locks: Lock[] = [];
  /** The value under which it last wanted a plain key, by key. */
  readonly #ownValues = new Map<string, string>();
  answered = 0;
  lostRequests = 0;

  constructor(world: World, beliefs: Beliefs, oracle: Oracle, options: ClientOptions) {
    this.#world = world;
    this.#beliefs = beliefs;
    this.#oracle = oracle;
    this.#options = options;
    this.index = options.index;
    this.name = `client-${options.index}`;
    this.#requestsLeft = Math.ceil(options.workload.requests / options.workload.clients);
    this.#thinkThenAct();
  }

  get isWaiting(): boolean {
    return this.#outstanding.length > 0;
  }

  get isDone(): boolean {
    return this.#requestsLeft === 0;
  }

  clockAt(trueMs: number): number {
    return this.#options.clockOriginMs + trueMs * this.#options.clockRate;
  }

  get #nowMs(): number {
    return this.clockAt(this.#world.nowMs);
  }

  /** Nothing new is asked any more; what is under way is waited for. */
  rest(): void {
    this.#isResting = true;
    this.#requestsLeft = 0;
    this.#toSendAgain = [];
    this.#endScan();
  }

  /** Sends a command until it is answered by a server that serves. Only at rest. */
  insist(command: Command, everyMs: number): void {
    if (this.#outstanding.length === 0 || this.#connection === null) this.#send(command, 0);
    this.#world.after(everyMs, () => {
      if (this.#lastServed !== command) this.insist(command, everyMs);
    });
  }

  // Acting ------------------------------------------------------------------------------------------------------------

  #thinkThenAct(): void {
    this.#world.after(this.#world.random.exponential(this.#options.workload.thinkMsMean), () => {
      if (this.#requestsLeft === 0) return;
      if (this.#outstanding.length < this.#options.workload.pipelineMax) this.#act();
      this.#thinkThenAct();
    });
  }

  #act(): void {
    const { random } = this.#world;
    const { workload } = this.#options;
    this.#requestsLeft -= 1;
    const again = this.#toSendAgain.shift();
    if (again !== undefined) {
      this.#send(again.command, again.databaseIndex);
      return;
    }
    const operation = random.weighted(workload.weights);
    if (operation === "keep-alive-at-the-edge") this.#planEdge();
    else if (operation === "scan-keys" || operation === "scan-leases") this.#beginScan(operation);
    else if (operation === "step") this.#sendStep();
    else {
      const databaseIndex = random.integer(0, workload.databases - 1);
      const isGrant = operation === "grant" || operation === "grant-any-id";
      if (isGrant && this.#lastGrant !== null && random.chance(0.1)) {
        this.#send(this.#lastGrant.command, this.#lastGrant.databaseIndex);
        return;
      }
      const command = this.#makeCommand(operation);
      if (isGrant) this.#lastGrant = { command, databaseIndex };
      this.#send(command, databaseIndex);
    }
    if (random.chance(workload.breakChance)) this.#breakConnection("on a whim");
  }

  #makeCommand(operation: PlainOperation): Command {
    if (isLockOperation(operation)) return this.#makeLockCommand(operation);
    if (isStringOperation(operation)) return this.#makeStringCommand(operation);
    const { random } = this.#world;
    const { workload } = this.#options;
    const id = this.#someId();
    const key = this.#someKey();
    const unit = random.pick(["s", "ms"] as const);
    const ttlMs = random.pick(workload.ttlChoicesMs);
    switch (operation) {
      case "grant":
      case "grant-any-id": {
        const request = random.chance(workload.nonceChance) ? this.#nextNonce() : null;
        const label = random.chance(0.2) ? "\x00label\xff" : null;
        const chosen = operation === "grant" ? id : null;
        return { kind: "lease-grant", id: chosen, ttlMs, keys: this.#somePairs(), label, request };
      }
      case "keep-alive":
        return { kind: "lease-keepalive", id };
      case "keep-alive-many":
        return { kind: "lease-keepalive-many", ids: [id, this.#someId(), this.#someId()] };
      case "revoke":
        return { kind: "lease-revoke", ids: random.chance(0.7) ? [id] : [id, this.#someId()] };
      case "set-ttl":
        return { kind: "lease-setttl", id, ttlMs };
      case "attach":
      case "attach-force":
        return { kind: "lease-attach", id, key, value: this.#nextValue(), force: operation === "attach-force" };
      case "detach":
        return { kind: "lease-detach", id, keys: random.chance(0.7) ? [key] : [key, this.#someKey()] };
      case "delete":
        return { kind: "key-delete", keys: random.chance(0.7) ? [key] : [key, this.#someKey()] };
      case "flush-database":
        return { kind: "flush-database" };
      case "flush-all":
        return { kind: "flush-all" };
      case "lease-ttl":
        return { kind: "lease-ttl", id, unit };
      case "key-ttl":
        return { kind: "key-ttl", key, unit };
      case "info":
        return { kind: "lease-info", id };
      case "get":
        return { kind: "key-get", key };
      case "exists":
        return { kind: "key-exists", keys: [key, this.#someKey()] };
      case "type":
        return { kind: "key-type", key };
      case "list":
        return { kind: "key-list", pattern: "*" };
      case "count":
        return { kind: "key-count" };
      case "random":
        return { kind: "key-random", fraction: random.fraction() };
    }
  }

  #makeLockCommand(operation: LockOperation): Command {
    const { random } = this.#world;
    const isOfOld = operation !== "acquire" && operation !== "acquire-block" && random.chance(0.8);
    const known = isOfOld ? (random.chance(0.7) ? this.#locks.at(-1) : this.#someLock()) : undefined;
    const id = known?.id ?? this.#someLiveId();
    const key = known?.key ?? this.#someKey();
    // Now and then one of another lock.
    const token = (random.chance(0.8) ? known?.token : this.#someLock()?.token) ?? random.integer(1, 100);
    switch (operation) {
      case "acquire":
      case "acquire-block": {
        const value = random.chance(0.3) ? this.#nextValue() : null;
        const blockMs = random.pick([0, random.integer(1, 20), random.pick(this.#options.workload.ttlChoicesMs)]);
        const isBlocking = operation === "acquire-block";
        return {
          kind: "lock-acquire",
          key,
          id,
          value,
          mode: this.#someMode(key),
          blockMs: isBlocking ? blockMs : null,
        };
      }
      case "release":
        return { kind: "lock-release", key, id, token: null };
      case "release-token":
        return { kind: "lock-release", key, id, token };
      case "lock-info":
        return { kind: "lock-info", key };
      case "lock-check":
        return { kind: "lock-check", key, token };
    }
  }

  #someLock(): Lock | undefined {
    return this.#locks.length === 0 ? undefined : this.#world.random.pick(this.#locks);
  }

  /** One of a lease that this client believes in, mostly. */
  #someLiveId(): string {
    const id = this.#someId();
    if (this.#world.random.chance(0.2)) return id;
    const isLive = (candidate: string): boolean => this.#beliefs.believesUntil(this, candidate) > this.#nowMs;
    if (isLive(id)) return id;
    const another = Array.from({ length: 3 }, () => this.#someId()).find((candidate) => isLive(candidate));
    return another ?? id;
  }

  /** Of each key mostly one kind of lock, so that clients get along. */
  #someMode(key: string): LockMode {
    const { random } = this.#world;
    const shape = random.chance(0.05) ? random.integer(0, 2) : Number(key.slice("key-".length)) % 3;
    if (shape === 0) return { kind: "exclusive" };
    if (shape === 1) return { kind: random.chance(0.7) ? "shared" : "exclusive" };
    return { kind: "limit", permits: 2 };
  }

  #makeStringCommand(operation: StringOperation): Command {
    const { random } = this.#world;
    const key = this.#someKey();
    const ttlMs = random.pick(this.#options.workload.ttlChoicesMs);
    const own = this.#ownValues.get(key);
    const rest = { key, returnsFormer: false, answer: "ok" } as const;
    switch (operation) {
      case "set-nx": {
        const value = this.#nextValue();
        this.#ownValues.set(key, value);
        return { kind: "string-set", ...rest, value, condition: { kind: "nx" }, expiry: { kind: "in", ttlMs } };
      }
      case "set": {
        const value = random.chance(0.5) && own !== undefined ? own : random.pick(["7", this.#nextValue()]);
        const expiry = random.chance(0.8) ? ({ kind: "in", ttlMs } as const) : ({ kind: "none" } as const);
        return { kind: "string-set", ...rest, value, condition: { kind: "always" }, expiry };
      }
      case "delete-if":
        return { kind: "string-delete-if", key, condition: { kind: "eq", value: own ?? "never set" } };
      case "expire": {
        const condition = random.pick(["always", "always", "nx", "xx"] as const);
        return { kind: "key-expire", key, expiry: { kind: "in", ttlMs }, condition };
      }
      case "persist":
        return { kind: "key-persist", key };
      case "increment":
        return { kind: "string-increment", key, by: BigInt(random.integer(-1, 2)) };
    }
  }

  /** Several commands as one. A lock that is asked for with BLOCK does not wait here. */
  #sendStep(): void {
    const { random } = this.#world;
    const { workload } = this.#options;
    const commands: Command[] = [];
    for (let count = random.integer(1, 4); count > 0; count -= 1) {
      const operation = random.weighted(workload.weights);
      if (isPlainOperation(operation)) commands.push(this.#makeCommand(operation));
    }
    this.#send({ kind: "step", commands }, random.integer(0, workload.databases - 1));
  }

  /** A keep-alive that is sent when this client's belief is about to end, or has just ended. */
  #planEdge(): void {
    const { random } = this.#world;
    const id = this.#someId();
    const untilMs = this.#beliefs.believesUntil(this, id);
    const delayMs = (untilMs - this.#nowMs) / this.#options.clockRate - random.exponential(1) + random.exponential(1);
    if (!Number.isFinite(delayMs) || delayMs < 0 || delayMs > 100 * this.#options.workload.thinkMsMean) return;
    this.#world.after(delayMs, () => {
      if (!this.#isResting) this.#send({ kind: "lease-keepalive", id }, 0);
    });
  }

  #someId(): string {
    const { random } = this.#world;
    const { leaseIds, sharedIds, paddingBytes } = this.#options.workload;
    // A name that the server itself may come to choose.
    if (sharedIds && random.chance(0.03)) return `sim1-${random.integer(1, 100).toString(36)}`;
    const number = random.integer(0, leaseIds - 1);
    const id = sharedIds ? `lease-${number}` : `lease-${this.index}-${number}`;
    return id + "~".repeat(paddingBytes);
  }

  #someKey(): string {
    return `key-${this.#world.random.integer(0, this.#options.workload.keys - 1)}`;
  }

  #somePairs(): { key: string; value: string }[] {
    const names = new Set<string>();
    for (let count = this.#world.random.pick([0, 1, 1, 2, 3]); count > 0; count -= 1) names.add(this.#someKey());
    return [...names].map((key) => ({ key, value: this.#nextValue() }));
  }

  #nextValue(): string {
    this.#values += 1;
    // Ten times as long as an id: batches and pages of all sizes.
    return `${this.index}.${this.#values}\xfe${"v".repeat(10 * this.#options.workload.paddingBytes)}`;
  }

  #nextNonce(): string {
    this.#nonces += 1;
    return `nonce-${this.index}-${this.#nonces}`;
  }

  // Scans -------------------------------------------------------------------------------------------------------------

  #beginScan(operation: "scan-keys" | "scan-leases"): void {
    if (this.#scan !== null) return;
    const kind = operation === "scan-keys" ? "key-scan" : "lease-scan";
    const databaseIndex = this.#world.random.integer(0, this.#options.workload.databases - 1);
    this.#scan = { kind, databaseIndex, owed: new Set(), met: new Set() };
    this.#sendScan(0);
  }

  #sendScan(cursor: number): void {
    const scan = this.#scan;
    if (scan === null) return;
    const rest = { cursor, match: null, count: this.#world.random.integer(1, 3) };
    const command: Command =
      scan.kind === "key-scan" ? { kind: "key-scan", ...rest, type: null } : { kind: "lease-scan", ...rest };
    this.#send(command, scan.databaseIndex);
  }

  /** What is there when the first page was made and stays until the last was, has to be in the pages. */
  #hearPage(request: SimRequest, reply: Reply): void {
    const scan = this.#scan;
    if (scan === null || request.command.kind !== scan.kind || !Array.isArray(reply)) return;
    const { command } = request;
    const prefix = scan.kind === "key-scan" ? `${scan.databaseIndex}:` : "";
    for (const name of namesOfPage(reply)) scan.met.add(prefix + name);
    if ("cursor" in command && command.cursor === 0) {
      // From the reply on: what was added or removed since the server made the page is none of the scan's promises.
      const { live } = this.#oracle;
      const there = scan.kind === "lease-scan" ? [...live.leases.keys()] : [...live.names()];
      for (const name of there) if (name.startsWith(prefix) && !scan.met.has(name)) this.#oweIfOld(scan, name, request);
      this.#oracle.scans.add(scan.owed);
    }
    if (reply[0] !== "0") {
      this.#sendScan(Number(reply[0]));
      return;
    }
    const missed = [...scan.owed].filter((name) => !scan.met.has(name));
    check(missed.length === 0, "I8-replies", () => `a whole ${scan.kind} missed ${missed.join(" ")}`);
    this.#endScan();
  }

  /** Names that were put after the scan's first page was made are not owed. */
  #oweIfOld(scan: Scan, name: string, first: SimRequest): void {
    const isOld = this.#oracle.isOlderThan(name, first.decision?.parts[0]?.order ?? 0);
    if (isOld) scan.owed.add(name);
  }

  #endScan(): void {
    if (this.#scan !== null) this.#oracle.scans.delete(this.#scan.owed);
    this.#scan = null;
  }

  // The wire ----------------------------------------------------------------------------------------------------------

  #send(command: Asked, databaseIndex: number): void {
    this.#connection ??= this.#options.connect(this);
    const names = commandsOf(command).flatMap((part) => keysWanted(part));
    const request: SimRequest = {
      number: this.#options.nextRequestNumber(),
      client: this,
      databaseIndex,
      command,
      sentAtMs: this.#nowMs,
      sentAtTrueMs: this.#world.nowMs,
      tokensKnown: this.#beliefs.tokensKnown(names.map((key) => keyName(databaseIndex, key))),
      decision: null,
    };
    this.#giveBack(request);
    if (this.#connection === null) {
      this.#loseRequests([request]);
      return;
    }
    this.#world.trace(`${this.name} sends ${request.number} ${show(command)} db ${databaseIndex}`);
    this.#outstanding.push(request);
    this.#options.histories.sent(request);
    const connection = this.#connection;
    connection.send(request);
    this.#world.after(this.#options.workload.patienceMs, () => {
      if (this.#connection === connection && this.#outstanding.includes(request))
        this.#breakConnection("out of patience");
    });
  }

  /** From the moment at which the client says so, it does not hold what it gives back. */
  #giveBack({ command: asked, databaseIndex }: SimRequest): void {
    for (const command of commandsOf(asked)) {
      const name = "key" in command ? keyName(databaseIndex, command.key) : "";
      if (command.kind === "lease-revoke") {
        for (const id of command.ids) this.#beliefs.givesBack(this, id);
      } else if (command.kind === "lease-detach") {
        for (const key of command.keys) this.#beliefs.givesBackKey(this, keyName(databaseIndex, key), command.id);
      } else if (command.kind === "key-delete") {
        for (const key of command.keys) this.#beliefs.givesBackKey(this, keyName(databaseIndex, key));
      } else if (command.kind === "lock-release") {
        this.#beliefs.givesBackKey(this, name, command.id, command.token);
      } else if (command.kind === "string-delete-if") {
        this.#beliefs.givesBackKey(this, name, plainId(name));
      }
    }
  }

  hear(request: SimRequest, reply: Reply): void {
    const expected = this.#outstanding.shift();
    check(
      expected === request,
      "I8-replies",
      () => `${request.number} is answered, ${expected?.number} was to be next`,
    );
    this.answered += 1;
    request.heardAtTrueMs = this.#world.nowMs;
    this.#world.trace(`${this.name} hears ${request.number} ${describe(reply)}`);
    if (request.decision === null) {
      const isRefusal = reply instanceof ErrorReply && /^(READONLY|LOADING) /.test(reply.text);
      check(isRefusal, "I8-replies", () => `${describe(reply)} without a decision`);
      if (request.command.kind === this.#scan?.kind) this.#endScan();
      return;
    }
    this.#lastServed = request.command;
    this.#beliefs.hears(request);
    for (const { command, reply: answer } of request.decision.parts) {
      if (command.kind !== "lock-acquire" || typeof answer !== "number") continue;
      this.#locks = [...this.#locks, { key: command.key, id: command.id, token: answer }].slice(-LOCKS_KNOWN_MAX);
    }
    this.#hearPage(request, reply);
  }

  lost(connection: Connection): void {
    if (this.#connection === connection) this.#dropConnection("closed by the server");
  }

  #breakConnection(why: string): void {
    if (this.#connection === null) return;
    const keeps = this.#world.random.integer(0, this.#outstanding.length);
    this.#connection.giveUp(keeps);
    this.#dropConnection(why);
  }

  #dropConnection(why: string): void {
    this.#world.trace(`${this.name} has lost its connection: ${why}, ${this.#outstanding.length} unknown`);
    this.#connection = null;
    this.#endScan();
    const unknown = this.#outstanding;
    this.#outstanding = [];
    this.#loseRequests(unknown);
  }

  #loseRequests(requests: readonly SimRequest[]): void {
    this.lostRequests += requests.length;
    if (this.#isResting) return;
    for (const request of requests) {
      const isScan = request.command.kind === "key-scan" || request.command.kind === "lease-scan";
      if (!isScan && this.#world.random.chance(this.#options.workload.retryChance)) this.#toSendAgain.push(request);
    }
  }
}

type LockOperation = (typeof LOCK_OPERATIONS)[number];
type StringOperation = (typeof STRING_OPERATIONS)[number];
/** Those that are one command, made in one go. */
type PlainOperation = Exclude<Operation, "keep-alive-at-the-edge" | "scan-keys" | "scan-leases" | "step">;

const lockOperations: ReadonlySet<Operation> = new Set(LOCK_OPERATIONS);
const stringOperations: ReadonlySet<Operation> = new Set(STRING_OPERATIONS);

const isLockOperation = (operation: Operation): operation is LockOperation => lockOperations.has(operation);
const isStringOperation = (operation: Operation): operation is StringOperation => stringOperations.has(operation);

const isPlainOperation = (operation: Operation): operation is PlainOperation =>
  operation !== "keep-alive-at-the-edge" &&
  operation !== "scan-keys" &&
  operation !== "scan-leases" &&
  operation !== "step";

/** The keys that a command may take for its client. */
function keysWanted(command: Command): string[] {
  if (command.kind === "lease-grant") return command.keys.map((pair) => pair.key);
  const isWanted = command.kind === "lease-attach" || command.kind === "lock-acquire" || command.kind === "string-set";
  return isWanted ? [command.key] : [];
}
