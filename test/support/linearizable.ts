/**
 * Is there one order of all operations, each at some moment between its call and its return, in which every one of them gets the
 * answer that it got? (Herlihy and Wing's question, searched for as Wing and Gong do it, remembering where the search has been.)
 *
 * An operation whose outcome nobody knows may have happened at some time after its call, or not at all.
 *
 * The search takes every operation that could come next and goes on from there; it is short where few operations overlap. It gives up
 * after `stepsMax` tries: then nothing is said.
 */

export interface Operation<Action> {
  /** Any clock, the same for all operations. */
  readonly invokeMs: number;
  /** Infinity when nobody knows whether it happened. */
  readonly returnMs: number;
  /** Nobody knows whether it happened; if it did, then before `returnMs`. */
  readonly isUnknown?: true;
  readonly action: Action;
}

/** What operations do, one after the other. States are values: never changed, equal when `nameOf` says the same of them. */
export interface Sequential<State, Action> {
  readonly initial: State;
  /** The state after an operation, with the answer that it got; null when it cannot have got that answer. */
  step(state: State, action: Action): State | null;
  nameOf(state: State): string;
}

export type Verdict<Action> =
  | { readonly kind: "linearizable" }
  /** `stuckAt`: of the longest order that was found, the operations that may come next and none of which fits. */
  | { readonly kind: "broken"; readonly stuckAt: readonly Operation<Action>[]; readonly state: string }
  | { readonly kind: "given-up" };

interface Point<State> {
  readonly state: State;
  /** Operations that lie behind, one bit each. */
  readonly done: bigint;
  readonly doneCount: number;
  /** All before this one lie behind. */
  readonly from: number;
  /** The newest call among those that lie behind. */
  readonly calledMs: number;
}

const isUnknown = ({ isUnknown: isSo, returnMs }: Operation<unknown>): boolean =>
  isSo === true || returnMs === Infinity;

export function checkLinearizable<State, Action>(
  operations: readonly Operation<Action>[],
  object: Sequential<State, Action>,
  stepsMax = 100_000,
): Verdict<Action> {
  const sorted = operations.toSorted((a, b) => a.invokeMs - b.invokeMs);
  const bits = sorted.map((_operation, index) => 1n << BigInt(index));
  const start: Point<State> = { state: object.initial, done: 0n, doneCount: 0, from: 0, calledMs: -Infinity };
  const toVisit = [start];
  const seen = new Set<string>();
  let furthest = start;
  let steps = 0;
  for (let point = toVisit.pop(); point !== undefined; point = toVisit.pop()) {
    const name = `${point.done.toString(36)} ${object.nameOf(point.state)}`;
    if (seen.has(name)) continue;
    seen.add(name);
    const next = mayComeNext(sorted, bits, point);
    if (next.every((index) => isUnknown(sorted[index]!))) return { kind: "linearizable" };
    if (point.doneCount > furthest.doneCount) furthest = point;
    // Backwards, so that the operation that was called first is tried first; those of unknown outcome last.
    for (const index of preferred(sorted, next)) {
      const operation = sorted[index];
      const bit = bits[index];
      if (operation === undefined || bit === undefined) continue;
      steps += 1;
      if (steps > stepsMax) return { kind: "given-up" };
      const state = object.step(point.state, operation.action);
      if (state === null) continue;
      const isOptional = isUnknown(operation);
      // What nobody knows of and nobody could notice need not be tried.
      if (isOptional && object.nameOf(state) === object.nameOf(point.state)) continue;
      const done = point.done | bit;
      let { from } = point;
      while ((done & (bits[from] ?? 0n)) !== 0n) from += 1;
      const doneCount = point.doneCount + (isOptional ? 0 : 1);
      toVisit.push({ state, done, doneCount, from, calledMs: Math.max(point.calledMs, operation.invokeMs) });
    }
  }
  const stuckAt = mayComeNext(sorted, bits, furthest).flatMap((index) => sorted[index] ?? []);
  return { kind: "broken", stuckAt, state: object.nameOf(furthest.state) };
}

/** Operations that were called before the first return of those that are not done, in the order of their calls. */
function mayComeNext(
  sorted: readonly Operation<unknown>[],
  bits: readonly bigint[],
  { done, from, calledMs }: Omit<Point<unknown>, "state">,
): readonly number[] {
  const open: number[] = [];
  let firstReturnMs = Infinity;
  for (let index = from; index < sorted.length; index += 1) {
    const operation = sorted[index]!;
    if (operation.invokeMs > firstReturnMs) break;
    if ((done & (bits[index] ?? 0n)) !== 0n) continue;
    const isOptional = isUnknown(operation);
    // Too late: something lies behind that was called only after it could have happened.
    if (isOptional && operation.returnMs < calledMs) continue;
    open.push(index);
    if (!isOptional) firstReturnMs = Math.min(firstReturnMs, operation.returnMs);
  }
  return open.filter((index) => sorted[index]!.invokeMs <= firstReturnMs);
}

/** In the order in which they are to be put onto a stack. */
function preferred(sorted: readonly Operation<unknown>[], indexes: readonly number[]): readonly number[] {
  const known = indexes.filter((index) => !isUnknown(sorted[index]!)).toReversed();
  return [...indexes.filter((index) => isUnknown(sorted[index]!)), ...known];
}
