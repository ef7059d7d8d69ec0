/**
 * One key as its clients see it, for `linearizable.ts`: who holds it under which token, or what a plain key says; what each command
 * does to that, and which answers it can get. Time does not enter: that a lease or a plain key ended by time is an operation too,
 * one that may have happened or not.
 *
 * What the server owes about the order in which waiters are served, and about time, is judged elsewhere.
 */
import type { Sequential } from "./linearizable.js";

export type KeyMode = "exclusive" | "shared" | { readonly permits: number };

export interface KeyHold {
  readonly lease: string;
  /** null: nobody has been told of it yet; it is above `tokenAbove`. */
  readonly token: number | null;
  readonly tokenAbove: number;
  readonly mode: KeyMode;
  readonly value: string;
}

/** `answer: undefined`: it did what it does, nobody looked at the answer. */
export type KeyAction =
  /**
   * `value: null`: the lease id, or what the lease has set before. `answer: null`: others hold the key; undefined: it was granted, under
   * a token that nobody heard of.
   */
  | {
      readonly kind: "acquire";
      readonly lease: string;
      readonly mode: KeyMode;
      readonly value: string | null;
      /** ATTACH wants the key for the lease alone, and with FORCE whoever has it. */
      readonly by: "lock" | "attach" | "force";
      readonly answer: number | null | undefined;
    }
  | {
      readonly kind: "release";
      readonly lease: string;
      readonly token: number | null;
      readonly answer: number | undefined;
    }
  /** A lease ends; null: all of them, and plain keys too. */
  | { readonly kind: "end"; readonly lease: string | null }
  | { readonly kind: "get"; readonly answer: string | null }
  | { readonly kind: "exists"; readonly answer: boolean }
  | { readonly kind: "holders"; readonly answer: readonly number[] }
  | { readonly kind: "check"; readonly token: number; readonly answer: number }
  /** SET, with NX when `ifAbsent`. */
  | { readonly kind: "set"; readonly value: string; readonly ifAbsent: boolean; readonly answer: boolean }
  | { readonly kind: "increment"; readonly by: number; readonly answer: number | undefined }
  | { readonly kind: "delete"; readonly answer: number | undefined }
  | { readonly kind: "delete-if"; readonly value: string; readonly answer: number }
  /** A plain key's time is over. */
  | { readonly kind: "expire" };

export interface KeyState {
  /** null: no plain key. */
  readonly plain: string | null;
  /** In the order in which they came. */
  readonly holds: readonly KeyHold[];
  /** The largest token so far. */
  readonly tokenMax: number;
}

type ActionOf<Kind extends KeyAction["kind"]> = Extract<KeyAction, { kind: Kind }>;

export const KEY: Sequential<KeyState, KeyAction> = {
  initial: { plain: null, holds: [], tokenMax: 0 },
  step,
  nameOf: ({ plain, holds, tokenMax }) =>
    `${tokenMax} ${JSON.stringify(plain)} ${holds.map(({ lease, token, value }) => `${lease}#${token}=${value}`).join(" ")}`,
};

function step(state: KeyState, action: KeyAction): KeyState | null {
  const { plain, holds } = state;
  const value = plain ?? holds[0]?.value ?? null;
  const free = { ...state, plain: null, holds: [] };
  switch (action.kind) {
    case "acquire":
      return acquire(state, action);
    case "release": {
      const own = holds.find((hold) => hold.lease === action.lease);
      const isMeant = own !== undefined && (action.token === null || isToken(own, action.token));
      const after = isMeant ? { ...state, holds: holds.filter((hold) => hold !== own) } : state;
      return fits(action.answer, isMeant ? 1 : 0) ? after : null;
    }
    case "end":
      return action.lease === null ? free : { ...state, holds: holds.filter((hold) => hold.lease !== action.lease) };
    case "get":
      return action.answer === value ? state : null;
    case "exists":
      return action.answer === (value !== null) ? state : null;
    case "holders": {
      const isSame = holds.every((hold, index) => isToken(hold, action.answer[index] ?? -1));
      if (plain !== null || !isSame || action.answer.length !== holds.length) return null;
      const named = holds.map((hold, index) => ({ ...hold, token: action.answer[index] ?? hold.token }));
      return { ...state, holds: named, tokenMax: Math.max(state.tokenMax, ...action.answer) };
    }
    case "check": {
      // A plain key has a token too, which is in no history: it can be guessed.
      if (plain !== null) return state;
      // Of one under a token that nobody has heard of nobody can ask.
      const isHeld = holds.some((hold) => hold.token === action.token);
      return action.answer === (isHeld ? 1 : 0) ? state : null;
    }
    case "set": {
      const isMet = !action.ifAbsent || value === null;
      if (action.answer !== isMet) return null;
      return isMet ? { ...free, plain: action.value } : state;
    }
    case "increment": {
      const sum = Number(value ?? "0") + action.by;
      return fits(action.answer, sum) ? withValue(state, String(sum)) : null;
    }
    case "delete":
      return fits(action.answer, value === null ? 0 : 1) ? free : null;
    case "delete-if": {
      const isMeant = value === action.value;
      if (action.answer !== (isMeant ? 1 : 0)) return null;
      return isMeant ? free : state;
    }
    case "expire":
      return { ...state, plain: null };
  }
}

/** Whether a hold may be under this token. */
const isToken = (hold: KeyHold, token: number): boolean =>
  hold.token === null ? token > hold.tokenAbove : hold.token === token;

const fits = (answer: number | undefined, expected: number): boolean => answer === undefined || answer === expected;

function acquire(state: KeyState, { lease, mode, value, by, answer }: ActionOf<"acquire">): KeyState | null {
  const { plain, holds, tokenMax } = state;
  const own = holds.find((hold) => hold.lease === lease);
  const others = holds.filter((hold) => hold !== own);
  // One that it shares, or might, is to ATTACH as held by another.
  const isShared = by !== "lock" && own !== undefined && own.mode !== "exclusive";
  if (answer === null) return plain !== null || others.length > 0 || isShared ? state : null;
  if (own !== undefined && !isShared && (answer === undefined || isToken(own, answer))) {
    const changed = { ...own, token: answer ?? own.token, value: value ?? own.value };
    const tokenNow = Math.max(tokenMax, answer ?? 0);
    return { ...state, holds: holds.map((hold) => (hold === own ? changed : hold)), tokenMax: tokenNow };
  }
  if (answer !== undefined && answer <= tokenMax) return null;
  const hold = { lease, token: answer ?? null, tokenAbove: tokenMax, mode, value: value ?? lease };
  const tokenNow = answer ?? tokenMax;
  if (by === "force") return { plain: null, holds: [hold], tokenMax: tokenNow };
  if (own !== undefined || plain !== null || !holds.every((other) => goTogether(other.mode, mode, holds.length)))
    return null;
  return { plain, holds: [...holds, hold], tokenMax: tokenNow };
}

/** Whether one who holds a key lets another in; `count` hold it. */
function goTogether(held: KeyMode, wanted: KeyMode, count: number): boolean {
  if (typeof held === "string" || typeof wanted === "string") return held === "shared" && wanted === "shared";
  return held.permits === wanted.permits && count < wanted.permits;
}

function withValue(state: KeyState, value: string): KeyState {
  const [first, ...others] = state.holds;
  return first === undefined ? { ...state, plain: value } : { ...state, holds: [{ ...first, value }, ...others] };
}
