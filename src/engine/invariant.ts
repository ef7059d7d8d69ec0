/**
 * Programmer errors end the process: a lease server that has lost track of its own state must not answer. Asserts stay on in
 * production. Operating errors never come here; they are replies (`errors.ts`).
 */

export class InvariantError extends Error {
  override readonly name = "InvariantError";
}

/** Throws when `condition` does not hold. The message names what was expected; keep it a constant on hot paths. */
export function invariant(condition: boolean, message: string): asserts condition {
  if (!condition) throw new InvariantError(message);
}

/** For the default branch of an exhaustive switch: the compiler proves that it cannot be reached. */
export function unreachable(value: never): never {
  throw new InvariantError(`unreachable: ${JSON.stringify(value)}`);
}
