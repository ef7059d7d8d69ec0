/**
 * Clients that use leases as applications do (grant, renew, attach, detach, revoke, look) over a contended handful of keys,
 * and write down what they asked and were told. They live through server crashes: an operation without an answer is `info`,
 * and the client connects again to wherever the server is then.
 */
import type { History, Request, Response } from "./history.js";
import { letPass } from "./poll.js";
import {
  ConnectionClosed,
  RespConnection,
  RespError,
  fields,
  show,
  textOf,
  type Argument,
  type RespValue,
} from "./resp-client.js";

/** Where the server is now; null while there is none. */
export interface Target {
  port: number | null;
}

export interface WorkloadOptions {
  readonly clients: number;
  /** TTLs to choose from. Short ones run out during the workload. */
  readonly ttlsMs: readonly number[];
  readonly contendedKeys: number;
}

export const DEFAULT_WORKLOAD: WorkloadOptions = {
  clients: 8,
  ttlsMs: [400, 1500, 120_000, 120_000],
  contendedKeys: 6,
};

export class Workload {
  private running = true;
  private readonly clients: Promise<void>[];

  constructor(history: History, target: Target, options: WorkloadOptions = DEFAULT_WORKLOAD) {
    this.clients = Array.from({ length: options.clients }, async () =>
      new Client(history, target, options).run(() => this.running),
    );
  }

  /** Stops all clients after their operation in flight. */
  async stop(): Promise<void> {
    this.running = false;
    await Promise.all(this.clients);
  }
}

/** Makes lease ids unique over all workloads of a process. */
let clientsMade = 0;

class Client {
  private readonly history: History;
  private readonly target: Target;
  private readonly mix: RequestMix;
  private connection: RespConnection | null = null;

  constructor(history: History, target: Target, options: WorkloadOptions) {
    this.history = history;
    this.target = target;
    this.mix = new RequestMix(options);
  }

  async run(goOn: () => boolean): Promise<void> {
    while (goOn()) {
      this.connection ??= await this.connect();
      if (this.connection === null) await letPass(5);
      else await this.step(this.connection);
    }
    this.connection?.destroy();
  }

  private async connect(): Promise<RespConnection | null> {
    if (this.target.port === null) return null;
    // refused while the server is down or starting: the loop tries again
    return RespConnection.connect(this.target.port).catch(() => null);
  }

  private async step(connection: RespConnection): Promise<void> {
    const request = this.mix.next();
    const response = await perform(this.history, connection, request);
    if (connection.isClosed) this.connection = null;
    if (response?.kind === "absent" || response === null) this.mix.forget(request);
  }
}

/** What one client asks for, one request after the other: it grants leases, cares for them for a while, and revokes them. */
export class RequestMix {
  private readonly options: WorkloadOptions;
  private readonly name: string;
  private granted = 0;
  /** Leases of this client that it still cares for. */
  private own: string[] = [];

  constructor(options: WorkloadOptions) {
    this.options = options;
    this.name = `c${clientsMade++}`;
  }

  next(): Request {
    const [lease] = this.own;
    const dice = Math.random();
    if (lease === undefined || dice < 0.25) return this.grant();
    this.own.push(this.own.shift() ?? lease);
    const key = `shared-${Math.floor(Math.random() * this.options.contendedKeys)}`;
    if (dice < 0.55) return { kind: "keepalive", lease };
    if (dice < 0.65) return { kind: "attach", lease, key };
    if (dice < 0.7) return { kind: "detach", lease, key };
    if (dice < 0.8) return { kind: "observe", lease };
    if (dice < 0.85) return { kind: "read", key };
    this.own = this.own.filter((id) => id !== lease);
    return { kind: "revoke", lease };
  }

  /** Cares no longer for the lease of this request. */
  forget(request: Request): void {
    if (request.kind !== "read") this.own = this.own.filter((id) => id !== request.lease);
  }

  private grant(): Request {
    const lease = `${this.name}-${this.granted++}`;
    const ttlMs = pick(this.options.ttlsMs);
    const shared = `shared-${Math.floor(Math.random() * this.options.contendedKeys)}`;
    this.own.push(lease);
    return { kind: "grant", lease, ttlMs, keys: Math.random() < 0.5 ? [`own-${lease}`] : [`own-${lease}`, shared] };
  }
}

function pick<T>(from: readonly T[]): T {
  const picked = from[Math.floor(Math.random() * from.length)];
  if (picked === undefined) throw new Error("nothing to pick from");
  return picked;
}

/** Sends one request and notes what came of it. Null when nothing is known or it was refused. */
export async function perform(
  history: History,
  connection: RespConnection,
  request: Request,
): Promise<Response | null> {
  const operation = history.invoke(request);
  let reply: RespValue;
  try {
    reply = await connection.send(...argumentsOf(request));
  } catch (error) {
    if (!(error instanceof ConnectionClosed)) throw error;
    history.info(operation);
    return null;
  }
  if (reply instanceof RespError && reply.code !== "NOLEASE") {
    if (!["READONLY", "LOADING", "OOM"].includes(reply.code)) {
      throw new Error(`${JSON.stringify(request)} answered ${reply.text}`);
    }
    history.fail(operation, reply.text);
    return null;
  }
  const response = responseOf(request, reply);
  history.ok(operation, response);
  return response;
}

function argumentsOf(request: Request): Argument[] {
  switch (request.kind) {
    case "grant": {
      const keys = request.keys.flatMap((key) => ["KEY", key, request.lease]);
      return ["LEASE.GRANT", request.lease, "PX", request.ttlMs, ...keys];
    }
    case "keepalive":
      return ["LEASE.KEEPALIVE", request.lease];
    case "revoke":
      return ["LEASE.REVOKE", request.lease];
    case "attach":
      return ["LEASE.ATTACH", request.lease, request.key, request.lease];
    case "detach":
      return ["LEASE.DETACH", request.lease, request.key];
    case "observe":
      return ["LEASE.INFO", request.lease];
    case "read":
      return ["GET", request.key];
  }
}

function responseOf(request: Request, reply: RespValue): Response {
  if (reply instanceof RespError) return { kind: "absent" };
  switch (request.kind) {
    case "grant":
      if (reply === null) return { kind: "held" };
      return { kind: "token", token: numberOf(Array.isArray(reply) ? reply[2] : null, request) };
    case "keepalive":
      return { kind: "renewed", remainingMs: numberOf(reply, request) };
    case "attach":
      return reply === null ? { kind: "held" } : { kind: "token", token: numberOf(reply, request) };
    case "revoke":
    case "detach":
      return { kind: "count", count: numberOf(reply, request) };
    case "read":
      return reply === null ? { kind: "absent" } : { kind: "value", lease: textOf(reply) };
    case "observe": {
      if (reply === null) return { kind: "absent" };
      const map = fields(reply);
      if (map.get("state") === "ended") return { kind: "absent" };
      const keys = map.get("keys");
      if (!Array.isArray(keys)) throw new Error(`LEASE.INFO shows no keys: ${show(reply)}`);
      return { kind: "present", ttlMs: numberOf(map.get("ttl"), request), keys: keys.map((key) => textOf(key)) };
    }
  }
}

function numberOf(value: RespValue | undefined, request: Request): number {
  if (typeof value !== "number") throw new Error(`${JSON.stringify(request)} answered ${show(value ?? null)}`);
  return value;
}

/** Looks at every lease that the history knows, over one connection. */
export async function observeAll(history: History, connection: RespConnection): Promise<void> {
  const leases = new Set(history.leases());
  await Promise.all([...leases].map(async (lease) => perform(history, connection, { kind: "observe", lease })));
}
