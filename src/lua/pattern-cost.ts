import type { ByteString } from "../engine/reply.js";

/**
 * How long a pattern can keep the matcher busy in the worst case. Lua's matcher tries: each quantified item multiplies the
 * attempts by the length of the subject, and so does the search for a place to begin. A bound, not a forecast: most matches take far
 * fewer steps.
 */

/** Steps that are surely over in some 100 ms. Beyond it a call is watched, which costs 0.1 ms. */
export const COSTLY_STEPS = 3e7;

/** Whether the lengths alone show that it cannot be costly: few enough bytes, or no pattern at all. */
export function isShort(subjectBytes: number, patternBytes: number): boolean {
  return patternBytes === 0 || (subjectBytes + 1) ** Math.min(patternBytes, 8) * patternBytes <= COSTLY_STEPS;
}

/** The bound for a subject of that length. `isPlain`: the fourth argument of `string.find`, no pattern but a text. */
export function patternSteps(subjectBytes: number, pattern: ByteString, isPlain: boolean): number {
  const attempts = subjectBytes + 1;
  if (isPlain) return attempts * pattern.length;
  let steps = pattern.length * (pattern.startsWith("^") ? 1 : attempts);
  for (let at = 0; at < pattern.length; at++) {
    const character = pattern[at] as string;
    if (character === "%") {
      at += 1;
      // A back reference or a balanced pair looks at a part of the subject again.
      if (/[0-9bf]/.test(pattern[at] ?? "")) steps *= attempts;
    } else if (character === "[") {
      at = endOfSet(pattern, at);
    } else if (character === "*" || character === "+" || character === "-") {
      steps *= attempts;
    } else if (character === "?") {
      steps *= 2;
    }
  }
  return steps;
}

/** Index of the bracket that closes the set beginning at `start`. */
function endOfSet(pattern: ByteString, start: number): number {
  let at = start + 1;
  if (pattern[at] === "^") at += 1;
  if (pattern[at] === "]") at += 1;
  while (at < pattern.length && pattern[at] !== "]") at += pattern[at] === "%" ? 2 : 1;
  return at;
}
