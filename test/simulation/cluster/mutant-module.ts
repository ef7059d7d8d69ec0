import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

/**
 * Copies of production modules with a piece of their text changed: for deliberate bugs in what is private to a class. Nothing is
 * written anywhere, and the modules themselves stay as they are.
 */

/** A piece of the compiled text, in which any white space stands for any other, and what stands there instead. */
export type Edit = readonly [piece: string, instead: string];

const require = createRequire(import.meta.url);

const urlOf = (name: string): string => pathToFileURL(require.resolve(name)).href;

/**
 * The address under which a changed copy of a module can be imported. `name` as `#src/cluster/role-keeper.js`; each piece has to be there
 * exactly once. `mutants`: addresses by name, for the modules that the copy imports in place of the real ones.
 */
export function mutantUrl(
  name: string,
  edits: readonly Edit[],
  mutants: Readonly<Record<string, string>> = {},
): string {
  const url = urlOf(name);
  const replaced = new Map(Object.entries(mutants).map(([mutant, address]) => [urlOf(mutant), address]));
  let text = readFileSync(new URL(url), "utf8").replace(/\n\/\/# sourceMappingURL=.*/, "");
  for (const [piece, instead] of edits) {
    const parts = text.split(patternOf(piece));
    if (parts.length !== 2) throw new Error(`${name} has the text '${piece}' ${parts.length - 1} times, not once`);
    text = parts.join(instead);
  }
  text = text.replace(/ from "(\.[^"]*)"/g, (_, relative: string) => {
    const { href } = new URL(relative, url);
    return ` from "${replaced.get(href) ?? href}"`;
  });
  return `data:text/javascript;base64,${Buffer.from(text).toString("base64")}`;
}

function patternOf(piece: string): RegExp {
  const words = piece
    .trim()
    .split(/\s+/)
    .map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  return new RegExp(words.join("\\s+"));
}
