import { runClosedLoop } from "../load/closed-loop.js";
import { withClient } from "../load/resp-connection.js";
import { HOLDER, type TargetSpec } from "../load/target.js";
import type { ServerProcess } from "../systems/system.js";

/**
 * The commands that are compared, in the words of each system, and how a server is filled before. Leases and keys have names of
 * the same length, `lease:` and 12 digits, which both load generators can make.
 */

/** Long enough that nothing falls due during a run. */
export const TTL_MS = 3_600_000;
const TTL_S = TTL_MS / 1000;

export const REDIS_BENCHMARK_ID = "__rand_int__";

export function isLeasehold(server: ServerProcess): boolean {
  return server.name.startsWith("leasehold");
}

/** Renew one lease, as redis-benchmark arguments. */
export function keepAliveArgv(server: ServerProcess): string[] {
  return isLeasehold(server)
    ? ["LEASE.KEEPALIVE", `lease:${REDIS_BENCHMARK_ID}`]
    : ["PEXPIRE", `lease:${REDIS_BENCHMARK_ID}`, `${TTL_MS}`];
}

/** Grant one lease with one key; in Redis, set one key with a TTL unless it exists. */
export function grantArgv(server: ServerProcess): string[] {
  return isLeasehold(server)
    ? ["LEASE.GRANT", "*", "PX", `${TTL_MS}`, "KEY", `lock:${REDIS_BENCHMARK_ID}`, HOLDER]
    : ["SET", `lock:${REDIS_BENCHMARK_ID}`, HOLDER, "NX", "PX", `${TTL_MS}`];
}

/** The same for the generators of our own. */
export function keepAliveTarget(server: ServerProcess, leases: number): TargetSpec {
  const ids = { kind: "random", count: leases } as const;
  if (server.name === "etcd") return { kind: "etcd", port: server.port, operation: "keep-alive", ids, ttlS: TTL_S };
  return isLeasehold(server)
    ? { kind: "resp", port: server.port, argv: ["LEASE.KEEPALIVE", "lease:{id}"], ids, expect: "positive" }
    : { kind: "resp", port: server.port, argv: ["PEXPIRE", "lease:{id}", `${TTL_MS}`], ids, expect: "one" };
}

/** `from`: the first id, which nobody has used before. */
export function grantTarget(server: ServerProcess, from: number, withKey: boolean): TargetSpec {
  const ids = { kind: "sequence", from } as const;
  const port = server.port;
  if (server.name === "etcd") {
    return { kind: "etcd", port, operation: withKey ? "grant-with-key" : "grant", ids, ttlS: TTL_S };
  }
  if (isLeasehold(server)) {
    const key = withKey ? ["KEY", "lock:{id}", HOLDER] : [];
    return {
      kind: "resp",
      port,
      argv: ["LEASE.GRANT", "lease:{id}", "PX", `${TTL_MS}`, ...key],
      ids,
      expect: "array",
    };
  }
  return { kind: "resp", port, argv: ["SET", "lock:{id}", HOLDER, "NX", "PX", `${TTL_MS}`], ids, expect: "ok" };
}

/** Gives the server leases (Redis: keys with a TTL) 0..count-1 of the names above. Returns the seconds it took. */
export async function fill(
  server: ServerProcess,
  count: number,
  withKey = false,
  durationMsMax = 300_000,
): Promise<number> {
  const target: TargetSpec = server.name.startsWith("redis")
    ? {
        kind: "resp",
        port: server.port,
        argv: ["SET", "lease:{id}", HOLDER, "PX", `${TTL_MS}`],
        ids: { kind: "sequence", from: 0 },
        expect: "ok",
      }
    : grantTarget(server, 0, withKey);
  // etcd's calls have an HTTP/2 stream each: many under way cost its client more than they gain.
  const depth = server.name === "etcd" ? 32 : 500;
  const startedMs = performance.now();
  const run = await runClosedLoop({
    kind: "closed",
    target,
    connections: 8,
    depth: Math.max(1, Math.min(depth, Math.ceil(count / 8))),
    warmupMs: 0,
    durationMs: durationMsMax,
    requestsMax: count,
  });
  if (run.errors > 0) throw new Error(`${server.name}: cannot be filled: ${run.firstError}`);
  if (run.answered !== count) throw new Error(`${server.name}: filled with ${run.answered} of ${count}`);
  return (performance.now() - startedMs) / 1000;
}

/** Renews leases in no time that is measured, so that no contender starts with code that is not compiled yet. */
export async function warmUp(server: ServerProcess, leases: number, requests: number): Promise<void> {
  await runClosedLoop({
    kind: "closed",
    target: keepAliveTarget(server, leases),
    connections: 8,
    depth: 32,
    warmupMs: 0,
    durationMs: 5000,
    requestsMax: requests,
  });
}

/** Throws unless a lease (or key) that `fill` made is alive with most of its TTL: or else the run measured errors. */
export async function checkAlive(server: ServerProcess): Promise<void> {
  if (server.name === "etcd") return;
  await withClient(server.port, async (client) => {
    const command = isLeasehold(server) ? "LEASE.PTTL" : "PTTL";
    const remaining = await client.call(command, "lease:000000000000");
    if (typeof remaining !== "number" || remaining < TTL_MS / 2) {
      throw new Error(`${server.name}: ${command} says ${JSON.stringify(remaining)} after the run`);
    }
  });
}
