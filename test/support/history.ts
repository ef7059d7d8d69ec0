/**
 * What clients asked and were told, as the evidence that `history-checker.ts` judges.
 *
 * Every operation is an `invoke` event and at most one of
 *   ok    the server answered, and this is what it said (an absent lease is such an answer)
 *   fail  the server refused; nothing may have changed
 *   info  nothing is known: the connection closed before an answer came
 * Times are milliseconds of the test process's monotonic clock; all clients live in that process.
 */
import { nowMs } from "./poll.js";

export type Request =
  | { readonly kind: "grant"; readonly lease: string; readonly ttlMs: number; readonly keys: readonly string[] }
  | { readonly kind: "keepalive"; readonly lease: string }
  | { readonly kind: "revoke"; readonly lease: string }
  | { readonly kind: "attach"; readonly lease: string; readonly key: string }
  | { readonly kind: "detach"; readonly lease: string; readonly key: string }
  /** Looks at a lease with its keys. */
  | { readonly kind: "observe"; readonly lease: string }
  /** Reads a key; its value is the id of the lease that holds it. */
  | { readonly kind: "read"; readonly key: string };

export type Response =
  /** Granted or attached under this token. */
  | { readonly kind: "token"; readonly token: number }
  /** Grant or attach: another lease holds the key. */
  | { readonly kind: "held" }
  /** There is no such lease; or the key has no value. */
  | { readonly kind: "absent" }
  | { readonly kind: "renewed"; readonly remainingMs: number }
  /** Number revoked or detached. */
  | { readonly kind: "count"; readonly count: number }
  | { readonly kind: "present"; readonly ttlMs: number; readonly keys: readonly string[] }
  | { readonly kind: "value"; readonly lease: string };

export type HistoryEvent =
  | { readonly type: "invoke"; readonly operation: number; readonly atMs: number; readonly request: Request }
  | { readonly type: "ok"; readonly operation: number; readonly atMs: number; readonly response: Response }
  | { readonly type: "fail"; readonly operation: number; readonly atMs: number; readonly error: string }
  | { readonly type: "info"; readonly operation: number; readonly atMs: number }
  /** The server that had run before is gone: what it had not answered by now it never will. */
  | { readonly type: "restart"; readonly atMs: number };

export class History {
  readonly events: HistoryEvent[] = [];
  private operations = 0;

  /** Notes a request about to be sent and returns its operation number. */
  invoke(request: Request): number {
    const operation = this.operations++;
    this.events.push({ type: "invoke", operation, atMs: nowMs(), request });
    return operation;
  }

  ok(operation: number, response: Response): void {
    this.events.push({ type: "ok", operation, atMs: nowMs(), response });
  }

  fail(operation: number, error: string): void {
    this.events.push({ type: "fail", operation, atMs: nowMs(), error });
  }

  info(operation: number): void {
    this.events.push({ type: "info", operation, atMs: nowMs() });
  }

  restart(): void {
    this.events.push({ type: "restart", atMs: nowMs() });
  }

  /** Leases whose grant was acknowledged or may have happened. */
  leases(): string[] {
    return this.events.flatMap((event) =>
      event.type === "invoke" && event.request.kind === "grant" ? [event.request.lease] : [],
    );
  }

  /** Requests that nothing has come back for yet, as text for a failure's message. */
  pending(): string[] {
    const open = new Map<number, string>();
    for (const event of this.events) {
      if (event.type === "invoke") open.set(event.operation, JSON.stringify(event.request));
      else if (event.type !== "restart") open.delete(event.operation);
    }
    return [...open.values()];
  }

  /** The number of answers so far. */
  get answers(): number {
    return this.events.filter((event) => event.type === "ok").length;
  }
}
