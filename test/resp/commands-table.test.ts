import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { ErrorReply } from "#src/engine/reply.js";
import {
  fewestArguments,
  canBeCalled,
  define,
  syntaxOf,
  type ArgumentDoc,
  type CommandDefinition,
} from "#src/resp/command-definition.js";
import { CommandTable, renderCommandTable, usageOf } from "#src/resp/command-table.js";
import type { ClientConnection } from "#src/resp/command.js";
import { CATEGORIES } from "#src/resp/commands/server.js";
import { fields, type RespConnection, type RespValue } from "../support/resp-client.js";
import { startNode, type TestNode } from "./commands-harness.js";
import { argvOf } from "./golden-harness.js";

/** The command table agrees with itself, and with what COMMAND tells of it. */

let node: TestNode;
let all: CommandDefinition[];
beforeAll(async () => {
  node = await startNode();
  all = [...node.table.all()];
});
afterAll(() => node.stop());

describe("every row", () => {
  test("has a handler, or is a container of rows that have one", () => {
    for (const definition of all) {
      const { name, parse, compose, run, subcommands } = definition;
      const answers = run ?? compose;
      if (subcommands === undefined) expect(parse ?? answers, name).toBeDefined();
      if (parse !== undefined) expect(answers, name).toBeUndefined();
    }
  });
  test("asks for as many arguments as its argument tree", () => {
    for (const definition of all) {
      if (!canBeCalled(definition)) continue;
      const words = definition.name.includes("|") ? 2 : 1;
      expect(Math.abs(definition.arity), definition.name).toBe(words + fewestArguments(definition.arguments));
      const mayHaveMore =
        definition.arguments.some((argument) => argument.optional === true || isOpenEnded(argument)) ||
        definition.subcommands !== undefined ||
        // Redis takes anything behind QUIT.
        definition.name === "quit";
      expect(definition.arity < 0, `${definition.name}: arity ${definition.arity}`).toBe(mayHaveMore);
    }
  });
  test("knows its words: lower-case name, categories of the list, text without line ends", () => {
    const categories = new Set(CATEGORIES.map((category) => `@${category}`));
    for (const { name, categories: own, summary, replies, complexity } of all) {
      expect(name).toBe(name.toLowerCase());
      for (const category of own) expect(categories, name).toContain(category);
      for (const text of [summary, replies, complexity]) expect(text, name).toMatch(/^[\x20-\x7e]+$/);
      expect(summary.endsWith("."), `${name}: ${summary}`).toBe(true);
    }
  });
  test("has examples that pass its own parser", () => {
    let tried = 0;
    for (const definition of all) {
      for (const example of definition.examples) {
        const argv = argvOf(example);
        const found = node.table.resolve(argv);
        expect(found?.name, example).toBe(definition.name);
        expect(argv.length >= Math.abs(definition.arity), example).toBe(true);
        if (definition.parse === undefined) continue;
        expect(definition.parse(argv, {} as ClientConnection), example).not.toBeInstanceOf(ErrorReply);
        tried += 1;
      }
    }
    expect(tried).toBeGreaterThan(25);
  });
});

const isOpenEnded = (argument: ArgumentDoc): boolean =>
  argument.multiple === true ||
  (argument.type === "oneof" && new Set((argument.arguments ?? []).map((part) => fewestArguments([part]))).size > 1) ||
  (argument.arguments ?? []).some((part) => part.optional === true || isOpenEnded(part));

describe("the table", () => {
  test("finds names in any letter case, and remembers none that it was asked for", () => {
    for (const name of ["lease.keepalive", "LEASE.KEEPALIVE", "Lease.KeepAlive"]) {
      expect(node.table.find(name)?.name).toBe("lease.keepalive");
    }
    for (const name of ["", "lease", "lease.keepalive ", "client|kill", "__proto__", "constructor", "\xff"]) {
      expect(node.table.find(name), name).toBeUndefined();
    }
    expect(node.table.findFullName("Client|Kill")?.name).toBe("client|kill");
    expect(node.table.findFullName("client|")).toBeUndefined();
  });
  test("does not take the same name twice, nor a row without a handler", () => {
    const row = {
      name: "twice",
      arity: 1,
      flags: "",
      summary: "s.",
      since: "1",
      group: "server",
      replies: "r",
      run: () => 1,
    } as const;
    expect(() => new CommandTable([row, row])).toThrow("defined twice");
    const { run: _run, ...bare } = row;
    expect(() => define(bare)).toThrow("needs either parse or run");
  });
  test("renders every callable command once, in the form of Redis's docs", () => {
    const rendered = renderCommandTable(node.table);
    for (const definition of all) {
      const isShown = canBeCalled(definition) && !definition.name.endsWith("|help");
      const usage = `\n| \`${usageOf(definition).replaceAll("|", "\\|")}\` |`;
      expect(rendered.split(usage).length - 1, usage).toBe(isShown ? 1 : 0);
    }
    expect(usageOf(node.table.find("lease.grant") as CommandDefinition)).toBe(
      "LEASE.GRANT id|* <seconds | EX seconds | PX milliseconds> [KEY key value [KEY key value ...]] [LABEL text] " +
        "[REQUEST nonce]",
    );
    expect(syntaxOf((node.table.find("lease.attach") as CommandDefinition).arguments)).toBe("id key value [FORCE]");
  });
});

describe("COMMAND over the wire", () => {
  let connection: RespConnection;
  beforeAll(async () => {
    connection = await node.connect({ protocol: 3 });
  });

  test("COUNT, LIST and INFO know the same commands", async () => {
    const count = await connection.call("COMMAND", "COUNT");
    const list = (await connection.call("COMMAND", "LIST")) as string[];
    const entries = (await connection.call("COMMAND")) as RespValue[][];
    expect(entries.length).toBe(count);
    expect(list).toEqual(all.map(({ name }) => name));
    for (const entry of entries) expect(entry.length).toBe(10);
  });

  test("DOCS has the form that redis-cli asserts: maps with text keys, arguments as arrays of maps", async () => {
    const docs = fields(await connection.call("COMMAND", "DOCS"));
    expect([...docs.keys()]).toEqual(node.table.definitions.map(({ name }) => name));
    for (const [name, entry] of docs) checkDocs(name, entry);
  });

  test("DOCS in RESP2 is the same, flattened", async () => {
    const plain = await node.connect();
    const docs = fields(await plain.call("COMMAND", "DOCS", "lease.grant", "nosuch", "client|kill"));
    expect([...docs.keys()]).toEqual(["lease.grant", "client|kill"]);
    const grant = fields(docs.get("lease.grant") ?? null);
    expect(grant.get("group")).toBe("lease");
    expect((grant.get("arguments") as RespValue[]).length).toBe(5);
    plain.destroy();
  });

  test("GETKEYS names lease ids and keys", async () => {
    const keysOf = (line: string): Promise<RespValue> => connection.call("COMMAND", "GETKEYS", ...argvOf(line));
    expect(await keysOf("LEASE.GRANT a 10")).toEqual(["a"]);
    expect(await keysOf("LEASE.GRANT a PX 10 LABEL KEY KEY k1 v KEY k2 v REQUEST n")).toEqual(["a", "k1", "k2"]);
    expect(await keysOf("LEASE.ATTACH a k v FORCE")).toEqual(["a", "k"]);
    expect(await keysOf("LEASE.DETACH a k1 k2")).toEqual(["a", "k1", "k2"]);
    expect(await keysOf("LEASE.KEEPALIVE a b c")).toEqual(["a", "b", "c"]);
    expect(await keysOf("MEMORY USAGE k")).toEqual(["k"]);
  });

  test("LIST FILTERBY", async () => {
    const leases = all.map(({ name }) => name).filter((name) => name.startsWith("lease."));
    expect(await connection.call("COMMAND", "LIST", "FILTERBY", "PATTERN", "LEASE.*")).toEqual(leases);
    expect(await connection.call("COMMAND", "LIST", "FILTERBY", "ACLCAT", "Lease")).toEqual(leases);
  });

  test("HELP of a container lists its subcommands", async () => {
    const lines = (await connection.call("CLIENT", "HELP")) as { text: string }[];
    expect(lines[0]?.text).toBe("CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:");
    const usages = lines.slice(1).filter((_, index) => index % 2 === 0);
    const container = node.table.find("client") as CommandDefinition;
    expect(usages.map(({ text }) => text.split(" ")[0]?.toLowerCase())).toEqual(
      container.subcommands?.definitions.map(({ name }) => name.slice("client|".length)),
    );
  });
});

function checkDocs(name: string, value: RespValue): void {
  expect(value, name).toBeInstanceOf(Map);
  const entry = fields(value);
  for (const field of ["summary", "since", "group", "complexity"]) expect(entry.get(field), name).toBeTypeOf("string");
  checkArguments(name, entry.get("arguments"));
  const subcommands = entry.get("subcommands");
  if (subcommands !== undefined) {
    expect(subcommands, name).toBeInstanceOf(Map);
    for (const [subName, sub] of fields(subcommands)) checkDocs(subName, sub);
  }
}

function checkArguments(name: string, value: RespValue | undefined): void {
  if (value === undefined) return;
  expect(Array.isArray(value), name).toBe(true);
  for (const argument of value as RespValue[]) {
    expect(argument, name).toBeInstanceOf(Map);
    const entry = fields(argument);
    for (const field of ["name", "type", "display_text"]) expect(entry.get(field), name).toBeTypeOf("string");
    const token = entry.get("token");
    if (entry.get("type") === "pure-token") expect(token, name).toBeTypeOf("string");
    checkArguments(name, entry.get("arguments"));
  }
}
