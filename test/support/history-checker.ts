/**
 * Judges a history of lease operations. Nothing here knows the server: only what clients sent, when, and what they were told.
 *
 *   I1  per key, the times in which clients may believe that they hold it are disjoint between leases. A belief starts when
 *       the acquisition is answered; each answered grant or keep-alive carries it to its own send time + TTL; it ends at the
 *       send of a release or revoke.
 *   I2  tokens of a key increase in real-time order, and no two acquisitions of different leases share one.
 *   I3  an acknowledged grant is there after a restart, with its TTL and keys, unless it was revoked or its time had run out.
 *   I4  once ended, for ever ended: after an acknowledged revoke, or an answer that the lease is absent, it is never seen again.
 *   I5  no lease ends before the last acknowledged grant or keep-alive's send time + TTL.
 *   I8  a refusal changed nothing: what was refused is never seen, and a refused revoke ends nothing.
 *
 * Every lease id is granted at most once in a history, and values of keys are the ids of their holders; tokens are unique per
 * key, so each check is one sorted scan per lease or key.
 */
import type { HistoryEvent, Request, Response } from "./history.js";

export interface Violation {
  readonly invariant: "I1" | "I2" | "I3" | "I4" | "I5" | "I8";
  readonly message: string;
}

interface Operation<R extends Request = Request> {
  readonly request: R;
  readonly invokeMs: number;
  /** Infinity when nothing was answered: such an operation may take effect at any later time. */
  readonly returnMs: number;
  readonly outcome: "ok" | "fail" | "info";
  readonly response: Response | null;
}

type OperationOf<K extends Request["kind"]> = Operation<Extract<Request, { kind: K }>>;

export function checkHistory(events: readonly HistoryEvent[]): Violation[] {
  const operations = operationsOf(events);
  const restartsMs = events.flatMap((event) => (event.type === "restart" ? [event.atMs] : []));
  const leases = groupByLease(operations, restartsMs);
  const violations: Violation[] = [];
  for (const lease of leases.values()) {
    violations.push(...checkEnds(lease), ...checkNotRevived(lease), ...checkRefused(lease), ...checkContents(lease));
  }
  for (const [key, acquisitions] of acquisitionsByKey(leases)) {
    violations.push(...checkTokens(key, acquisitions), ...checkExclusion(key, acquisitions));
  }
  return violations;
}

function operationsOf(events: readonly HistoryEvent[]): Operation[] {
  const byNumber = new Map<number, Operation>();
  for (const event of events) {
    if (event.type === "restart") continue;
    if (event.type === "invoke") {
      const { request, atMs: invokeMs } = event;
      byNumber.set(event.operation, { request, invokeMs, returnMs: Infinity, outcome: "info", response: null });
      continue;
    }
    const operation = byNumber.get(event.operation);
    if (operation === undefined) throw new Error(`operation ${event.operation} ended before it began`);
    if (event.type === "ok") {
      byNumber.set(event.operation, { ...operation, returnMs: event.atMs, outcome: "ok", response: event.response });
    } else if (event.type === "fail") {
      byNumber.set(event.operation, { ...operation, returnMs: event.atMs, outcome: "fail" });
    }
  }
  return [...byNumber.values()];
}

interface LeaseHistory {
  readonly id: string;
  readonly grant: OperationOf<"grant">;
  /** Grants and keep-alives that promised the full TTL. */
  readonly promises: readonly Operation[];
  readonly revokes: readonly Operation[];
  /** Answers that show the lease alive. */
  readonly seen: readonly Operation[];
  /** Answers that show it absent, after the grant can no longer take effect. */
  readonly missed: readonly Operation[];
  /** Acknowledged revokes that ended it, or came after the grant could take effect. */
  readonly ended: readonly Operation[];
  readonly attaches: readonly OperationOf<"attach">[];
  readonly detaches: readonly OperationOf<"detach">[];
  readonly restartsMs: readonly number[];
}

function leaseOf(operation: Operation): string | null {
  if (operation.request.kind !== "read") return operation.request.lease;
  return operation.response?.kind === "value" ? operation.response.lease : null;
}

const is = <K extends Request["kind"]>(operation: Operation, kind: K): operation is OperationOf<K> =>
  operation.request.kind === kind;

function groupByLease(operations: readonly Operation[], restartsMs: readonly number[]): Map<string, LeaseHistory> {
  const byLease = new Map<string, Operation[]>();
  for (const operation of operations) {
    const id = leaseOf(operation);
    if (id === null) continue;
    const group = byLease.get(id);
    if (group === undefined) byLease.set(id, [operation]);
    else group.push(operation);
  }
  const histories = new Map<string, LeaseHistory>();
  for (const [id, group] of byLease) histories.set(id, leaseHistory(id, group, restartsMs));
  return histories;
}

function leaseHistory(id: string, group: readonly Operation[], restartsMs: readonly number[]): LeaseHistory {
  const grants = group.filter((operation) => is(operation, "grant"));
  const [grant] = grants;
  if (grant === undefined || grants.length > 1) throw new Error(`lease ${id} is granted ${grants.length} times`);
  const seen = group.filter(({ response }) => response !== null && showsAlive(response, grant));
  const settledMs = grant.outcome === "info" ? unknownUntilMs(grant, seen, restartsMs) : grant.returnMs;
  return {
    id,
    grant,
    promises: group.filter(({ response }) => response?.kind === "renewed" || response === grantedBy(grant)),
    revokes: group.filter((operation) => is(operation, "revoke")),
    seen,
    missed: group.filter(({ response, invokeMs }) => response?.kind === "absent" && invokeMs >= settledMs),
    ended: group.filter(
      (operation) =>
        is(operation, "revoke") &&
        operation.outcome === "ok" &&
        (seen.includes(operation) || operation.invokeMs >= settledMs),
    ),
    attaches: group.filter((operation) => is(operation, "attach")),
    detaches: group.filter((operation) => is(operation, "detach")),
    restartsMs,
  };
}

const nextAfter = (timesMs: readonly number[], afterMs: number): number =>
  timesMs.find((atMs) => atMs > afterMs) ?? Infinity;

/** From when on a grant without an answer can no longer take effect: its server is gone, or it has been seen to have happened. */
function unknownUntilMs(grant: Operation, seen: readonly Operation[], restartsMs: readonly number[]): number {
  return Math.min(nextAfter(restartsMs, grant.invokeMs), ...seen.map(({ returnMs }) => returnMs));
}

/** The grant's own response when it is a grant. */
const grantedBy = (grant: Operation): Response | undefined =>
  grant.response?.kind === "token" ? grant.response : undefined;

function showsAlive(response: Response, grant: Operation): boolean {
  switch (response.kind) {
    case "token":
    case "renewed":
    case "present":
    case "value":
      return true;
    case "count":
      return response.count > 0;
    case "held":
      // a refused attach shows its own lease alive, a refused grant does not
      return response !== grant.response;
    case "absent":
      return false;
  }
}

/** I3 and I5: seen absent while somebody may still believe in it. */
function checkEnds(lease: LeaseHistory): Violation[] {
  const { ttlMs } = lease.grant.request;
  return lease.missed.flatMap((missed): Violation[] => {
    const mayBeRevoked = lease.revokes.some(
      (revoke) => revoke.outcome !== "fail" && revoke.invokeMs <= missed.returnMs,
    );
    if (mayBeRevoked) return [];
    const broken = lease.promises.find(
      (promise) => promise.returnMs <= missed.invokeMs && missed.returnMs < promise.invokeMs + ttlMs,
    );
    if (broken === undefined) return [];
    const restarted = nextAfter(lease.restartsMs, broken.returnMs) <= missed.returnMs;
    const refusedRevoke = lease.revokes.some((revoke) => revoke.invokeMs <= missed.returnMs);
    const leftMs = Math.round(broken.invokeMs + ttlMs - missed.returnMs);
    return [
      {
        invariant: restarted ? "I3" : refusedRevoke ? "I8" : "I5",
        message: `lease ${lease.id} (TTL ${ttlMs} ms) was absent ${leftMs} ms before a promise for it had run out`,
      },
    ];
  });
}

/** I4: seen alive after it was known to have ended. */
function checkNotRevived(lease: LeaseHistory): Violation[] {
  const ends = [...lease.missed, ...lease.ended];
  const endedMs = Math.min(...ends.map((end) => end.returnMs));
  const revived = lease.seen.find((seen) => seen.invokeMs > endedMs);
  if (revived === undefined) return [];
  return [{ invariant: "I4", message: `lease ${lease.id} had ended and a ${revived.request.kind} saw it alive` }];
}

/** I8: a grant that was refused has left something. */
function checkRefused(lease: LeaseHistory): Violation[] {
  const { outcome, response } = lease.grant;
  const refused = outcome === "fail" || response?.kind === "held";
  const [seen] = lease.seen;
  if (!refused || seen === undefined) return [];
  return [{ invariant: "I8", message: `the grant of ${lease.id} was refused and a ${seen.request.kind} saw it alive` }];
}

/** I3 and I8: a lease that is looked at has its TTL, every key that it must have, and none that it cannot have. */
function checkContents(lease: LeaseHistory): Violation[] {
  return lease.seen.flatMap((seen): Violation[] => {
    if (seen.response?.kind !== "present") return [];
    const { ttlMs, keys } = seen.response;
    const violations: Violation[] = [];
    if (ttlMs !== lease.grant.request.ttlMs) {
      const message = `lease ${lease.id} has a TTL of ${ttlMs} ms, granted were ${lease.grant.request.ttlMs} ms`;
      violations.push({ invariant: "I3", message });
    }
    for (const key of keysEverAsked(lease)) {
      const must = mustHold(lease, key, seen);
      const may = mayHold(lease, key, seen);
      if (must && !keys.includes(key)) {
        violations.push({ invariant: "I3", message: `lease ${lease.id} has lost its key ${key}` });
      }
      if (!may && keys.includes(key)) {
        violations.push({ invariant: "I8", message: `lease ${lease.id} has key ${key}, which it was never given` });
      }
    }
    const strange = keys.filter((key) => !keysEverAsked(lease).has(key));
    if (strange.length > 0) {
      violations.push({ invariant: "I8", message: `lease ${lease.id} has keys nobody asked for: ${strange.join()}` });
    }
    return violations;
  });
}

const keysEverAsked = (lease: LeaseHistory): Set<string> =>
  new Set([...lease.grant.request.keys, ...lease.attaches.map((attach) => attach.request.key)]);

/** Acquisitions of a key by a lease: its grant when it names the key, and its attaches. */
function acquisitionsOf(lease: LeaseHistory, key: string): Operation[] {
  const attaches = lease.attaches.filter((attach) => attach.request.key === key);
  return lease.grant.request.keys.includes(key) ? [lease.grant, ...attaches] : attaches;
}

const detachesOf = (lease: LeaseHistory, key: string): Operation[] =>
  lease.detaches.filter((detach) => detach.request.key === key && detach.outcome !== "fail");

/** The newest sure acquisition was answered before the look began, and nothing that could undo it was sent before its end. */
function mustHold(lease: LeaseHistory, key: string, look: Operation): boolean {
  return acquisitionsOf(lease, key).some(
    (acquired) =>
      acquired.response?.kind === "token" &&
      acquired.returnMs <= look.invokeMs &&
      !detachesOf(lease, key).some(
        (detach) => detach.returnMs >= acquired.invokeMs && detach.invokeMs <= look.returnMs,
      ),
  );
}

/** Some acquisition may have taken effect before the look ended, and no sure detach lies wholly between the two. */
function mayHold(lease: LeaseHistory, key: string, look: Operation): boolean {
  return acquisitionsOf(lease, key).some(
    (acquired) =>
      (acquired.outcome === "info" || acquired.response?.kind === "token") &&
      acquired.invokeMs <= look.returnMs &&
      !detachesOf(lease, key).some(
        (detach) => detach.outcome === "ok" && detach.invokeMs >= acquired.returnMs && detach.returnMs <= look.invokeMs,
      ),
  );
}

interface Acquisition {
  readonly lease: LeaseHistory;
  readonly token: number;
  readonly invokeMs: number;
  readonly returnMs: number;
}

/** Acknowledged acquisitions of each key. */
function acquisitionsByKey(leases: ReadonlyMap<string, LeaseHistory>): Map<string, Acquisition[]> {
  const byKey = new Map<string, Acquisition[]>();
  for (const lease of leases.values()) {
    for (const key of keysEverAsked(lease)) {
      for (const { response, invokeMs, returnMs } of acquisitionsOf(lease, key)) {
        if (response?.kind !== "token") continue;
        const list = byKey.get(key) ?? [];
        list.push({ lease, token: response.token, invokeMs, returnMs });
        byKey.set(key, list);
      }
    }
  }
  return byKey;
}

/** I2, with a pointer into the acquisitions by return time: those already answered when the next one was sent. */
function checkTokens(key: string, acquisitions: readonly Acquisition[]): Violation[] {
  const violations: Violation[] = [];
  const ownerOfToken = new Map<number, string>();
  const byReturn = acquisitions.toSorted((a, b) => a.returnMs - b.returnMs);
  let newest: Acquisition | null = null;
  let answered = 0;
  for (const next of acquisitions.toSorted((a, b) => a.invokeMs - b.invokeMs)) {
    for (let done = byReturn[answered]; done !== undefined && done.returnMs < next.invokeMs;) {
      if (newest === null || done.token > newest.token) newest = done;
      done = byReturn[++answered];
    }
    const sameAgain = newest?.lease === next.lease && newest.token === next.token;
    if (newest !== null && next.token <= newest.token && !sameAgain) {
      const message = `key ${key}: ${next.lease.id} got token ${next.token} after ${newest.lease.id} had got ${newest.token}`;
      violations.push({ invariant: "I2", message });
    }
    const owner = ownerOfToken.get(next.token);
    if (owner !== undefined && owner !== next.lease.id) {
      const message = `key ${key}: token ${next.token} was given to ${owner} and to ${next.lease.id}`;
      violations.push({ invariant: "I2", message });
    }
    ownerOfToken.set(next.token, next.lease.id);
  }
  return violations;
}

interface Belief {
  readonly lease: string;
  readonly fromMs: number;
  readonly toMs: number;
}

/** The times in which the client of this acquisition may believe that it holds the key. */
function beliefs(key: string, { lease, invokeMs, returnMs }: Acquisition): Belief[] {
  const releases = [...lease.revokes, ...lease.detaches.filter((detach) => detach.request.key === key)];
  const releasedMs = Math.min(...releases.map((release) => release.invokeMs).filter((atMs) => atMs >= invokeMs));
  return lease.promises.flatMap((promise) => {
    const fromMs = Math.max(returnMs, promise.returnMs);
    const toMs = Math.min(releasedMs, promise.invokeMs + lease.grant.request.ttlMs);
    return fromMs < toMs ? [{ lease: lease.id, fromMs, toMs }] : [];
  });
}

/** I1: a sweep over the beliefs in order of their start, with the furthest end so far per side. */
function checkExclusion(key: string, acquisitions: readonly Acquisition[]): Violation[] {
  const all = acquisitions.flatMap((acquisition) => beliefs(key, acquisition)).sort((a, b) => a.fromMs - b.fromMs);
  const violations: Violation[] = [];
  let furthest: Belief | null = null;
  for (const belief of all) {
    if (furthest !== null && belief.lease !== furthest.lease && belief.fromMs < furthest.toMs) {
      const overlapMs = Math.round(Math.min(furthest.toMs, belief.toMs) - belief.fromMs);
      const message = `key ${key}: ${furthest.lease} and ${belief.lease} both believed to hold it for ${overlapMs} ms`;
      violations.push({ invariant: "I1", message });
    }
    if (furthest === null || belief.toMs > furthest.toMs) furthest = belief;
  }
  return violations;
}
