import * as fc from "fast-check";
import { describe, expect, test } from "vitest";
import { compileGlob, globMatches } from "#src/engine/glob.js";

describe("Redis's globs", () => {
  test.each([
    ["", "", true],
    ["", "a", false],
    ["*", "", true],
    ["*", "anything\0\xff", true],
    ["**", "x", true],
    ["?", "", false],
    ["?", "\xff", true],
    ["??", "a", false],
    ["abc", "abc", true],
    ["abc", "abcd", false],
    ["a*c", "abc", true],
    ["a*c", "ac", true],
    ["a*c", "acb", false],
    ["a*a", "a", false],
    ["*.log", "x.log", true],
    ["*.log", "x.log2", false],
    ["h[ae]llo", "hello", true],
    ["h[ae]llo", "hillo", false],
    ["h[^e]llo", "hallo", true],
    ["h[^e]llo", "hello", false],
    ["h[a-c]llo", "hbllo", true],
    ["h[c-a]llo", "hbllo", true],
    ["h[a-c]llo", "hdllo", false],
    ["[\\]]", "]", true],
    ["[\\-a]", "-", true],
    ["[]", "a", false],
    ["[]a]", "]a]", false],
    ["[^]", "a", true],
    ["[^]", "", false],
    ["[abc", "b", true],
    ["[a-", "-", true],
    ["[", "[", false],
    ["\\*", "*", true],
    ["\\*", "x", false],
    ["a\\", "a\\", true],
    ["\\a", "a", true],
    ["*ab*ab*", "abab", true],
    ["*ab*ab*", "aba", false],
    ["a*b*c", "aXbYc", true],
    ["*[0-9][0-9]*", "x42y", true],
    ["*[0-9][0-9]*", "x4y2", false],
    ["*?x", "x", false],
    ["*?x", "yx", true],
    [`*${"ab?".repeat(20)}*`, `zz${"abc".repeat(20)}zz`, true],
    [`*${"ab?".repeat(20)}*`, `zz${"abc".repeat(19)}abzz`, true],
    [`*${"ab?".repeat(20)}c*`, `zz${"abc".repeat(20)}zz`, false],
  ])("%j on %j: %s", (pattern, name, expected) => {
    expect(compileGlob(pattern)(name)).toBe(expected);
    expect(globMatches(pattern, name)).toBe(expected);
  });

  test("agrees with a matcher that tries every way", () => {
    const alphabet = fc.constantFrom("a", "b", "-", "]", "\xff");
    const wild = fc.constantFrom("*", "?", "[", "]", "^", "-", "\\", "a", "b", "\xff");
    fc.assert(
      fc.property(
        fc.array(wild, { maxLength: 9 }).map((parts) => parts.join("")),
        fc.array(alphabet, { maxLength: 9 }).map((parts) => parts.join("")),
        (pattern, name) => {
          expect(compileGlob(pattern)(name)).toBe(naiveMatch(pattern, name));
        },
      ),
      { numRuns: 5_000 },
    );
  });

  test("long pieces are found like short ones", () => {
    const piece = fc.array(fc.constantFrom("a", "b", "?"), { minLength: 28, maxLength: 70 });
    fc.assert(
      fc.property(piece, fc.array(fc.constantFrom("a", "b"), { maxLength: 200 }), fc.nat(60), (parts, noise, at) => {
        const pattern = `*${parts.join("")}*`;
        const inside = parts.map((part) => (part === "?" ? "x" : part)).join("");
        const text = noise.join("");
        expect(compileGlob(pattern)(text.slice(0, at) + inside + text.slice(at))).toBe(true);
        expect(compileGlob(pattern)(text)).toBe(naiveMatch(pattern, text));
      }),
      { numRuns: 300 },
    );
  });

  test("patterns made to explode end in as many steps as the name has bytes", () => {
    const name = "a".repeat(60_000);
    for (const pattern of [
      `${"a*".repeat(30_000)}b`,
      `${"*a".repeat(30_000)}*b*`,
      `${"*a?".repeat(10_000)}b`,
      `*${"a".repeat(2_000)}b*`,
      `${"[a-z]*".repeat(5_000)}b`,
    ]) {
      expect(compileGlob(pattern)(name)).toBe(false);
    }
  });
});

/** Follows Redis's rules one character at a time and tries every length for a star. */
function naiveMatch(pattern: string, name: string): boolean {
  if (pattern === "") return name === "";
  const [first = ""] = pattern;
  if (first === "*") {
    for (let length = 0; length <= name.length; length += 1) {
      if (naiveMatch(pattern.slice(1), name.slice(length))) return true;
    }
    return false;
  }
  if (name === "") return false;
  if (first === "?") return naiveMatch(pattern.slice(1), name.slice(1));
  if (first === "[") {
    const { isIn, rest } = readClass(pattern.slice(1), name.charAt(0));
    return isIn && naiveMatch(rest, name.slice(1));
  }
  const literal = first === "\\" && pattern.length > 1 ? pattern.charAt(1) : first;
  const consumed = first === "\\" && pattern.length > 1 ? 2 : 1;
  return literal === name.charAt(0) && naiveMatch(pattern.slice(consumed), name.slice(1));
}

function readClass(text: string, character: string): { isIn: boolean; rest: string } {
  let rest = text;
  const isNegated = rest.startsWith("^");
  if (isNegated) rest = rest.slice(1);
  let isIn = false;
  for (;;) {
    if (rest === "") break;
    if (rest.startsWith("\\") && rest.length >= 2) {
      isIn ||= rest.charAt(1) === character;
      rest = rest.slice(2);
    } else if (rest.startsWith("]")) {
      rest = rest.slice(1);
      break;
    } else if (rest.length >= 3 && rest.charAt(1) === "-") {
      const [low, high] = [rest.charAt(0), rest.charAt(2)].sort();
      isIn ||= character >= low! && character <= high!;
      rest = rest.slice(3);
    } else {
      isIn ||= rest.charAt(0) === character;
      rest = rest.slice(1);
    }
  }
  return { isIn: isIn !== isNegated, rest };
}
