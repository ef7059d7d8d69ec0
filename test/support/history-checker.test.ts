import { describe, expect, test } from "vitest";
import { checkHistory, type Violation } from "./history-checker.js";
import type { HistoryEvent, Request, Response } from "./history.js";

/**
 * The checker itself: each row is a short history and the invariants that it breaks. A checker that misses one of these
 * would let the server off.
 */

/** invoke time, request, and either the return time with what was answered, or "info". */
type Step =
  | {
      readonly at: number;
      readonly request: Request;
      readonly until?: number;
      readonly says: Response | "fail" | "info";
    }
  | { readonly restartAt: number };

function history(steps: readonly Step[]): HistoryEvent[] {
  return steps.flatMap((step, operation): HistoryEvent[] => {
    if ("restartAt" in step) return [{ type: "restart", atMs: step.restartAt }];
    const invoke: HistoryEvent = { type: "invoke", operation, atMs: step.at, request: step.request };
    const atMs = step.until ?? step.at + 1;
    if (step.says === "info") return [invoke, { type: "info", operation, atMs }];
    if (step.says === "fail") return [invoke, { type: "fail", operation, atMs, error: "READONLY" }];
    return [invoke, { type: "ok", operation, atMs, response: step.says }];
  });
}

const grant = (lease: string, ttlMs: number, ...keys: string[]): Request => ({ kind: "grant", lease, ttlMs, keys });
const keepalive = (lease: string): Request => ({ kind: "keepalive", lease });
const revoke = (lease: string): Request => ({ kind: "revoke", lease });
const attach = (lease: string, key: string): Request => ({ kind: "attach", lease, key });
const detach = (lease: string, key: string): Request => ({ kind: "detach", lease, key });
const observe = (lease: string): Request => ({ kind: "observe", lease });
const read = (key: string): Request => ({ kind: "read", key });
const token = (number: number): Response => ({ kind: "token", token: number });
const renewed = (remainingMs: number): Response => ({ kind: "renewed", remainingMs });
const count = (number: number): Response => ({ kind: "count", count: number });
const present = (ttlMs: number, ...keys: string[]): Response => ({ kind: "present", ttlMs, keys });
const absent: Response = { kind: "absent" };
const held: Response = { kind: "held" };

const SOUND: readonly [string, readonly Step[]][] = [
  ["an empty history", []],
  [
    "grant, renew, revoke, gone",
    [
      { at: 0, request: grant("a", 100, "k"), says: token(1) },
      { at: 50, request: keepalive("a"), says: renewed(100) },
      { at: 60, request: observe("a"), says: present(100, "k") },
      { at: 70, request: revoke("a"), says: count(1) },
      { at: 80, request: keepalive("a"), says: absent },
    ],
  ],
  [
    "expired after its time, and the key's next holder has a larger token",
    [
      { at: 0, request: grant("a", 100, "k"), says: token(1) },
      { at: 101, request: keepalive("a"), says: absent },
      { at: 110, request: grant("b", 100, "k"), says: token(3) },
    ],
  ],
  [
    "absent before its time, but a revoke was on its way",
    [
      { at: 0, request: grant("a", 1000), says: token(1) },
      { at: 50, request: revoke("a"), says: "info" },
      { at: 60, request: observe("a"), says: absent },
    ],
  ],
  [
    "an unknown grant may have happened",
    [
      { at: 0, request: grant("a", 1000, "k"), says: "info" },
      { restartAt: 10 },
      { at: 20, request: observe("a"), says: present(1000, "k") },
    ],
  ],
  [
    "an unknown grant may happen after somebody looked in vain, while its server still runs",
    [
      { at: 0, request: grant("a", 1000, "k"), says: "info" },
      { at: 2, request: observe("a"), says: absent },
      { at: 20, request: observe("a"), says: present(1000, "k") },
    ],
  ],
  [
    "a revoke found nothing, and overtook an unknown grant",
    [
      { at: 0, request: grant("a", 1000), says: "info" },
      { at: 5, request: revoke("a"), says: count(0) },
      { at: 20, request: observe("a"), says: present(1000) },
    ],
  ],
  [
    "an unknown grant was seen, and expired after its time",
    [
      { at: 0, request: grant("a", 100, "k"), says: "info" },
      { at: 10, request: keepalive("a"), says: renewed(100) },
      { at: 111, request: observe("a"), says: absent },
    ],
  ],
  [
    "the same lease attaches again and gets the same token",
    [
      { at: 0, request: grant("a", 1000), says: token(1) },
      { at: 10, request: attach("a", "k"), says: token(2) },
      { at: 20, request: attach("a", "k"), says: token(2) },
    ],
  ],
  [
    "detached and taken by another lease while the first lives on",
    [
      { at: 0, request: grant("a", 1000, "k"), says: token(1) },
      { at: 10, request: detach("a", "k"), says: count(1) },
      { at: 20, request: grant("b", 1000, "k"), says: token(2) },
      { at: 30, request: observe("a"), says: present(1000) },
    ],
  ],
  [
    "a refused grant leaves nothing",
    [
      { at: 0, request: grant("a", 1000, "k"), says: token(1) },
      { at: 10, request: grant("b", 1000, "k"), says: held },
      { at: 20, request: observe("b"), says: absent },
    ],
  ],
];

const BROKEN: readonly [string, Violation["invariant"], readonly Step[]][] = [
  [
    "two leases hold one key at once",
    "I1",
    [
      { at: 0, request: grant("a", 1000, "k"), says: token(1) },
      { at: 100, request: grant("b", 1000, "k"), says: token(2) },
    ],
  ],
  [
    "a keep-alive was acknowledged and the key given away within its TTL",
    "I1",
    [
      { at: 0, request: grant("a", 100, "k"), says: token(1) },
      { at: 90, request: keepalive("a"), says: renewed(100) },
      { at: 150, request: grant("b", 100, "k"), says: token(2) },
    ],
  ],
  [
    "a lease takes a key by attach while another's long belief goes on",
    "I1",
    [
      { at: 0, request: grant("long", 10_000, "k"), says: token(1) },
      { at: 8000, request: grant("b", 5000), says: token(2) },
      { at: 9000, request: attach("b", "k"), says: token(3) },
    ],
  ],
  [
    "a token that goes back",
    "I2",
    [
      { at: 0, request: grant("a", 10, "k"), says: token(5) },
      { at: 100, request: grant("b", 10, "k"), says: token(4) },
    ],
  ],
  [
    "a token given twice",
    "I2",
    [
      { at: 0, request: grant("a", 10, "k"), says: token(5) },
      { at: 100, request: grant("b", 10, "k"), says: token(5) },
    ],
  ],
  [
    "an acknowledged grant is lost in a crash",
    "I3",
    [
      { at: 0, request: grant("a", 1000), says: token(1) },
      { restartAt: 10 },
      { at: 20, request: observe("a"), says: absent },
    ],
  ],
  [
    "a key of an acknowledged grant is lost",
    "I3",
    [
      { at: 0, request: grant("a", 1000, "k"), says: token(1) },
      { restartAt: 10 },
      { at: 20, request: observe("a"), says: present(1000) },
    ],
  ],
  [
    "the TTL is another one after a crash",
    "I3",
    [
      { at: 0, request: grant("a", 1000), says: token(1) },
      { restartAt: 10 },
      { at: 20, request: observe("a"), says: present(2000) },
    ],
  ],
  [
    "an acknowledged revoke came undone",
    "I4",
    [
      { at: 0, request: grant("a", 1000), says: token(1) },
      { at: 10, request: revoke("a"), says: count(1) },
      { restartAt: 20 },
      { at: 30, request: observe("a"), says: present(1000) },
    ],
  ],
  [
    "the revoke of an unknown grant that found it came undone",
    "I4",
    [
      { at: 0, request: grant("a", 1000), says: "info" },
      { at: 10, request: revoke("a"), says: count(1) },
      { at: 30, request: observe("a"), says: present(1000) },
    ],
  ],
  [
    "a keep-alive revives an expired lease",
    "I4",
    [
      { at: 0, request: grant("a", 100), says: token(1) },
      { at: 110, request: observe("a"), says: absent },
      { at: 120, request: keepalive("a"), says: renewed(100) },
    ],
  ],
  [
    "a key still names a revoked lease",
    "I4",
    [
      { at: 0, request: grant("a", 1000, "k"), says: token(1) },
      { at: 10, request: revoke("a"), says: count(1) },
      { at: 20, request: read("k"), says: { kind: "value", lease: "a" } },
    ],
  ],
  [
    "an unknown grant that was absent after the restart appears",
    "I4",
    [
      { at: 0, request: grant("a", 1000), says: "info" },
      { restartAt: 10 },
      { at: 20, request: observe("a"), says: absent },
      { at: 30, request: observe("a"), says: present(1000) },
    ],
  ],
  [
    "an unknown grant that was seen, and had ended, appears again",
    "I4",
    [
      { at: 0, request: grant("a", 100), says: "info" },
      { at: 10, request: observe("a"), says: present(100) },
      { at: 200, request: observe("a"), says: absent },
      { at: 210, request: observe("a"), says: present(100) },
    ],
  ],
  [
    "an unknown grant was kept alive, and ended before that was over",
    "I5",
    [
      { at: 0, request: grant("a", 100), says: "info" },
      { at: 10, request: keepalive("a"), says: renewed(100) },
      { at: 90, request: observe("a"), says: absent },
    ],
  ],
  [
    "ended before its TTL was over",
    "I5",
    [
      { at: 0, request: grant("a", 100), says: token(1) },
      { at: 90, request: observe("a"), says: absent },
    ],
  ],
  [
    "ended before the TTL of its last keep-alive was over",
    "I5",
    [
      { at: 0, request: grant("a", 100), says: token(1) },
      { at: 90, request: keepalive("a"), says: renewed(100) },
      { at: 180, request: keepalive("a"), says: absent },
    ],
  ],
  [
    "a refused grant is there",
    "I8",
    [
      { at: 0, request: grant("a", 1000), says: "fail" },
      { at: 10, request: observe("a"), says: present(1000) },
    ],
  ],
  [
    "a refused revoke has ended the lease",
    "I8",
    [
      { at: 0, request: grant("a", 1000), says: token(1) },
      { at: 10, request: revoke("a"), says: "fail" },
      { at: 20, request: observe("a"), says: absent },
    ],
  ],
  [
    "a refused attach has given the key",
    "I8",
    [
      { at: 0, request: grant("a", 1000), says: token(1) },
      { at: 10, request: attach("a", "k"), says: held },
      { at: 20, request: observe("a"), says: present(1000, "k") },
    ],
  ],
  [
    "a key that nobody asked for",
    "I8",
    [
      { at: 0, request: grant("a", 1000), says: token(1) },
      { at: 20, request: observe("a"), says: present(1000, "k") },
    ],
  ],
];

describe("history checker", () => {
  test.each(SOUND)("finds nothing wrong with: %s", (_name, steps) => {
    expect(checkHistory(history(steps))).toEqual([]);
  });

  test.each(BROKEN)("catches: %s (%s)", (_name, invariant, steps) => {
    expect(checkHistory(history(steps)).map((violation) => violation.invariant)).toContain(invariant);
  });
});
