import type { ByteString } from "./reply.js";

/**
 * Redis's glob patterns over byte strings: `*`, `?`, `[abc]`, `[^a-z]`, `\x`.
 *
 * Matching never goes back over the name: a pattern is cut at its stars, what stands before the first star must begin the name, what
 * stands behind the last must end it, and what lies between is looked for from left to right, each piece at its leftmost place
 * (no other place could leave more room for the rest). A piece is looked for with one bit per element of it (Shift-And), all bits
 * advanced at once, so a name of n bytes costs n steps of one word per 32 elements, whatever the pattern.
 *
 * Redis's ways with odd patterns are kept: an open `[` runs to the end, `[]` matches nothing, `[^]` anything, a range may be
 * given backwards, a backslash at the end stands for itself.
 */

const CHARACTERS = 256;
const BITS = 32;

/** Which bytes an element matches: one entry per byte, 1 or 0. */
type ByteSet = Uint8Array;

/** One element of a pattern: a single byte, or a set of them. */
type Element = number | ByteSet;

export type Matcher = (name: ByteString) => boolean;

/** Patterns that come again and again (PSUBSCRIBE with every message) are compiled once; not long ones, which are large then. */
const COMPILED_MAX = 256;
const COMPILED_BYTES_MAX = 256;
const compiled = new Map<ByteString, Matcher>();

/** Whether a name matches a pattern as a whole. */
export function globMatches(pattern: ByteString, name: ByteString): boolean {
  if (pattern.length > COMPILED_BYTES_MAX) return compileGlob(pattern)(name);
  let matches = compiled.get(pattern);
  if (matches === undefined) {
    if (compiled.size >= COMPILED_MAX) compiled.clear();
    matches = compileGlob(pattern);
    compiled.set(pattern, matches);
  }
  return matches(name);
}

/** What `?` matches. */
const ANY: ByteSet = new Uint8Array(CHARACTERS).fill(1);

const STAR = "*".charCodeAt(0);
const QUESTION = "?".charCodeAt(0);
const OPEN = "[".charCodeAt(0);
const CLOSE = "]".charCodeAt(0);
const CARET = "^".charCodeAt(0);
const DASH = "-".charCodeAt(0);
const BACKSLASH = "\\".charCodeAt(0);

/** Returns a function that tells whether a name matches the pattern as a whole. */
export function compileGlob(pattern: ByteString): Matcher {
  const pieces = parse(pattern);
  const [head = []] = pieces;
  if (pieces.length === 1) return (name) => name.length === head.length && matchesAt(head, name, 0);
  const tail = pieces[pieces.length - 1] ?? [];
  const finders = pieces
    .slice(1, -1)
    .filter((piece) => piece.length > 0)
    .map((piece) => finderOf(piece));
  return (name) => {
    const end = name.length - tail.length;
    if (end < head.length || !matchesAt(head, name, 0) || !matchesAt(tail, name, end)) return false;
    let start = head.length;
    for (const find of finders) {
      start = find(name, start, end);
      if (start < 0) return false;
    }
    return true;
  };
}

// Parsing -----------------------------------------------------------------------------------------------------------

/** The pattern cut at its stars. */
function parse(pattern: ByteString): readonly (readonly Element[])[] {
  let piece: Element[] = [];
  const pieces = [piece];
  let index = 0;
  while (index < pattern.length) {
    const code = pattern.charCodeAt(index);
    if (code === STAR) {
      piece = [];
      pieces.push(piece);
      index += 1;
    } else if (code === QUESTION) {
      piece.push(ANY);
      index += 1;
    } else if (code === OPEN) {
      const set = new Uint8Array(CHARACTERS);
      index = parseClass(pattern, index + 1, set);
      piece.push(set);
    } else {
      if (code === BACKSLASH && index + 1 < pattern.length) index += 1;
      piece.push(pattern.charCodeAt(index));
      index += 1;
    }
  }
  return pieces;
}

/** Fills `set` from the inside of brackets that starts at `start`; returns the index behind them. */
function parseClass(pattern: ByteString, start: number, set: ByteSet): number {
  let index = start;
  const isNegated = pattern.charCodeAt(index) === CARET;
  if (isNegated) index += 1;
  for (; index < pattern.length; index += 1) {
    const code = pattern.charCodeAt(index);
    if (code === BACKSLASH && index + 1 < pattern.length) {
      index += 1;
      set[pattern.charCodeAt(index)] = 1;
    } else if (code === CLOSE) {
      break;
    } else if (index + 2 < pattern.length && pattern.charCodeAt(index + 1) === DASH) {
      const other = pattern.charCodeAt(index + 2);
      set.fill(1, Math.min(code, other), Math.max(code, other) + 1);
      index += 2;
    } else {
      set[code] = 1;
    }
  }
  if (isNegated) {
    for (let code = 0; code < CHARACTERS; code += 1) set[code] = 1 - set[code]!;
  }
  return index + 1;
}

// Matching ----------------------------------------------------------------------------------------------------------

function matchesAt(piece: readonly Element[], name: ByteString, start: number): boolean {
  for (let index = 0; index < piece.length; index += 1) {
    const element = piece[index]!;
    const code = name.charCodeAt(start + index);
    if (typeof element === "number" ? element !== code : element[code] === 0) return false;
  }
  return true;
}

type Finder = (name: ByteString, start: number, end: number) => number;

/** Finds the leftmost place of a piece within name[start, end); returns the index behind it, -1 when there is none. */
function finderOf(piece: readonly Element[]): Finder {
  const [only] = piece;
  if (piece.length === 1 && typeof only === "number") return (name, start, end) => findByte(only, name, start, end);
  const words = Math.ceil(piece.length / BITS);
  const masks = new Int32Array(CHARACTERS * words);
  for (const [index, element] of piece.entries()) {
    const word = Math.floor(index / BITS);
    const bit = 1 << (index % BITS);
    if (typeof element === "number") {
      masks[element * words + word]! |= bit;
      continue;
    }
    for (let code = 0; code < CHARACTERS; code += 1) {
      if (element[code] !== 0) masks[code * words + word]! |= bit;
    }
  }
  const lastBit = 1 << ((piece.length - 1) % BITS);
  if (words === 1) return (name, start, end) => findShort(masks, lastBit, name, start, end);
  const reached = new Int32Array(words);
  return (name, start, end) => findLong(masks, lastBit, reached, name, start, end);
}

function findByte(code: number, name: ByteString, start: number, end: number): number {
  for (let index = start; index < end; index += 1) if (name.charCodeAt(index) === code) return index + 1;
  return -1;
}

/** Bit i of `reached`: the piece's first i + 1 elements match the bytes that end here. */
function findShort(masks: Int32Array, lastBit: number, name: ByteString, start: number, end: number): number {
  let reached = 0;
  for (let index = start; index < end; index += 1) {
    reached = ((reached << 1) | 1) & masks[name.charCodeAt(index)]!;
    if ((reached & lastBit) !== 0) return index + 1;
  }
  return -1;
}

/** The same for more elements than a word has bits. */
function findLong(
  masks: Int32Array,
  lastBit: number,
  reached: Int32Array,
  name: ByteString,
  start: number,
  end: number,
): number {
  const words = reached.length;
  reached.fill(0);
  for (let index = start; index < end; index += 1) {
    const base = name.charCodeAt(index) * words;
    let carry = 1;
    for (let word = 0; word < words; word += 1) {
      const before = reached[word]!;
      reached[word] = ((before << 1) | carry) & masks[base + word]!;
      carry = before >>> (BITS - 1);
    }
    if ((reached[words - 1]! & lastBit) !== 0) return index + 1;
  }
  return -1;
}
