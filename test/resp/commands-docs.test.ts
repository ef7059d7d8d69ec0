import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, expect, test } from "vitest";
import { ERROR_CODES } from "#src/engine/errors.js";
import type { ArgumentDoc, CommandDefinition } from "#src/resp/command-definition.js";
import { renderCommandTable } from "#src/resp/command-table.js";
import { PARAMETERS } from "#src/resp/server-settings.js";
import { startNode, type TestNode } from "./commands-harness.js";

/**
 * The docs say what the code says: the parts between `<!-- name: begin -->` and `<!-- name: end -->` are made from the tables
 * of the code, and everything that the rest of PROTOCOL.md names exists.
 *
 * After a change of the tables: `UPDATE_DOCS=1 npx vitest run test/resp/commands-docs.test.ts` writes them anew.
 */

const pathOf = (name: string): string => fileURLToPath(new URL(`../../${name}`, import.meta.url));
const update = process.env["UPDATE_DOCS"] === "1";

let node: TestNode;
beforeAll(async () => {
  node = await startNode();
});
afterAll(() => node.stop());

function section(file: string, name: string): { before: string; inside: string; after: string } {
  const text = readFileSync(pathOf(file), "utf8");
  const parts = new RegExp(`^([^]*<!-- ${name}: begin[^\\n]*-->\\n)([^]*?)(<!-- ${name}: end -->[^]*)$`).exec(text);
  if (parts === null) throw new Error(`${file} has no part '${name}'`);
  return { before: parts[1] ?? "", inside: parts[2] ?? "", after: parts[3] ?? "" };
}

function expectSection(file: string, name: string, content: string): void {
  const { before, inside, after } = section(file, name);
  const wanted = `\n${content}\n`;
  if (update) writeFileSync(pathOf(file), before + wanted + after);
  else expect(inside).toBe(wanted);
}

const tableOf = (heads: readonly string[], rows: readonly (readonly string[])[]): string =>
  [heads, heads.map(() => "---"), ...rows].map((cells) => `| ${cells.join(" | ")} |\n`).join("");

test("PROTOCOL.md lists exactly the commands of the table", () => {
  expectSection("docs/PROTOCOL.md", "commands", renderCommandTable(node.table));
});

test("the README lists the commands on leases and locks", () => {
  expectSection("README.md", "commands", renderCommandTable(node.table, ["Leases", "Locks"]));
});

test("PROTOCOL.md lists exactly the error codes", () => {
  const rows = Object.entries(ERROR_CODES).map(([code, meaning]) => [`\`${code}\``, meaning]);
  expectSection("docs/PROTOCOL.md", "errors", tableOf(["code", "meaning"], rows));
});

test("PROTOCOL.md lists exactly the settings of CONFIG", () => {
  const defaults = new Map(node.context.settings.read(() => true));
  const rows = PARAMETERS.map(({ name, summary, plan }) => {
    const value = defaults.get(name) ?? "";
    const shown =
      name === "port" || name === "dir" || name === "bind" ? "as started" : value === "" ? "empty" : `\`${value}\``;
    return [`\`${name}\``, summary, shown, plan === null ? "no" : "yes"];
  });
  expectSection("docs/PROTOCOL.md", "settings", tableOf(["setting", "what it is", "default", "can be set"], rows));
});

/** All words that commands are called with: names, subcommands, options. */
function wordsOf(definition: CommandDefinition): string[] {
  const tokens = (args: readonly ArgumentDoc[]): string[] =>
    args.flatMap((argument) => [argument.token ?? "", ...tokens(argument.arguments ?? [])]);
  return [...definition.name.toUpperCase().split("|"), ...tokens(definition.arguments)];
}

test("every command, option and error code that PROTOCOL.md names in its text exists", () => {
  const { before, after } = section("docs/PROTOCOL.md", "commands");
  const text = before + after;
  const words = new Set([...Object.keys(ERROR_CODES), ...[...node.table.all()].flatMap(wordsOf), "CRLF", "SENTINEL"]);
  const quoted = [...text.matchAll(/`([^`\n]+)`/g)].map(([, code]) => code ?? "");
  const named = new Set(
    quoted.flatMap((code) => code.split(" ")).filter((word) => /^[A-Z][A-Z.]{2,}[A-Z]$/.test(word)),
  );
  expect(named.size).toBeGreaterThan(40);
  for (const word of named)
    expect(words.has(word), `${word}: neither a command, an option nor an error code`).toBe(true);
});
