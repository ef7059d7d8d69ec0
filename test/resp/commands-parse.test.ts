import { describe, expect, test } from "vitest";
import type { Command } from "#src/engine/command.js";
import {
  KEY_BYTES_MAX,
  KEYS_PER_COMMAND_MAX,
  LABEL_BYTES_MAX,
  LEASE_ID_BYTES_MAX,
  PATTERN_BYTES_MAX,
  REQUEST_NONCE_BYTES_MAX,
  SCAN_COUNT_MAX,
  VALUE_BYTES_MAX,
} from "#src/engine/limits.js";
import { ErrorReply } from "#src/engine/reply.js";
import { define, type CommandDefinition } from "#src/resp/command-definition.js";
import type { ClientConnection } from "#src/resp/command.js";
import { isWord, parseInteger } from "#src/resp/commands/arguments.js";
import { leaseCommands } from "#src/resp/commands/leases.js";

/** From argv to Command, and every error on the way. */

const definitions = new Map<string, CommandDefinition>(
  leaseCommands().map((row) => [row.name.toUpperCase(), define(row)]),
);

/** These parsers never look at the connection. */
const nobody = {} as ClientConnection;

function parse(...argv: string[]): Command | string {
  const definition = definitions.get(argv[0] ?? "");
  if (definition?.parse === undefined) throw new Error(`no such command: ${argv[0]}`);
  const result = definition.parse(argv, nobody);
  return result instanceof ErrorReply ? result.text : result;
}

const grant = (fields: Partial<Extract<Command, { kind: "lease-grant" }>>): Command => ({
  kind: "lease-grant",
  id: "a",
  ttlMs: 10_000,
  keys: [],
  label: null,
  request: null,
  ...fields,
});

const secondsError = (given: string): string =>
  `ERR invalid TTL '${given}': must be a whole number of seconds from 1 to 9007199254740`;
const msError = (given: string): string =>
  `ERR invalid TTL '${given}': must be a whole number of milliseconds from 1 to 9007199254740991`;

describe("integers, as Redis reads them", () => {
  const cases: [string, number | null][] = [
    ["0", 0],
    ["7", 7],
    ["-7", -7],
    ["9007199254740991", Number.MAX_SAFE_INTEGER],
    ["-9007199254740991", Number.MIN_SAFE_INTEGER],
    ["9007199254740992", null],
    ["9007199254740993", null],
    ["99999999999999999999", null],
    ["", null],
    ["-", null],
    ["+7", null],
    ["07", null],
    ["-0", null],
    ["00", null],
    ["1.0", null],
    ["1e3", null],
    [" 1", null],
    ["1 ", null],
    ["0x10", null],
    ["\xb2", null],
  ];
  test.each(cases)("%j is %j", (given, expected) => {
    expect(parseInteger(given)).toBe(expected);
  });
});

test("words are read in any letter case, and nothing else passes for one", () => {
  for (const given of ["EX", "ex", "Ex", "eX"]) expect(isWord(given, "EX")).toBe(true);
  for (const given of ["", "E", "EXX", "E\xd8", "\xdf"]) expect(isWord(given, "EX")).toBe(false);
});

describe("TTL", () => {
  const accepted: [string[], number][] = [
    [["10"], 10_000],
    [["EX", "10"], 10_000],
    [["ex", "1"], 1000],
    [["PX", "1"], 1],
    [["px", "1500"], 1500],
    [["PX", "9007199254740991"], 9_007_199_254_740_991],
    [["9007199254740"], 9_007_199_254_740_000],
    [["PX", "2700000000000000"], 2.7e15],
  ];
  test.each(accepted)("%j", (ttl, ttlMs) => {
    expect(parse("LEASE.GRANT", "a", ...ttl)).toEqual(grant({ ttlMs }));
    expect(parse("LEASE.SETTTL", "a", ...ttl)).toEqual({ kind: "lease-setttl", id: "a", ttlMs });
  });

  const refused = ["0", "-1", "1.5", "", "10s", "1e3", "+10", "010", " 10", "9007199254741", "99999999999999999999"];
  test.each(refused)("%j seconds are refused and the unit is named", (given) => {
    for (const name of ["LEASE.GRANT", "LEASE.SETTTL"]) {
      expect(parse(name, "a", given)).toBe(secondsError(given));
      expect(parse(name, "a", "EX", given)).toBe(secondsError(given));
    }
  });

  const refusedMs = ["0", "-1", "1.5", "", "10ms", "9007199254740992", "9223372036854775807"];
  test.each(refusedMs)("%j milliseconds are refused and the unit is named", (given) => {
    for (const name of ["LEASE.GRANT", "LEASE.SETTTL"]) expect(parse(name, "a", "PX", given)).toBe(msError(given));
  });

  test("a unit without a number is too few arguments", () => {
    expect(parse("LEASE.GRANT", "a", "EX")).toBe("ERR wrong number of arguments for 'lease.grant' command");
    expect(parse("LEASE.SETTTL", "a", "PX")).toBe("ERR wrong number of arguments for 'lease.setttl' command");
  });
});

describe("lease ids", () => {
  const longest = "i".repeat(LEASE_ID_BYTES_MAX);
  const tooLong = `ERR the lease id is 257 bytes long, the limit is 256 bytes`;
  const callsWith = (id: string): string[][] => [
    ["LEASE.GRANT", id, "10"],
    ["LEASE.KEEPALIVE", id],
    ["LEASE.KEEPALIVE", "a", id],
    ["LEASE.REVOKE", "a", id],
    ["LEASE.TTL", id],
    ["LEASE.PTTL", id],
    ["LEASE.SETTTL", id, "10"],
    ["LEASE.ATTACH", id, "k", "v"],
    ["LEASE.DETACH", id, "k"],
    ["LEASE.INFO", id],
  ];

  test("1 to 256 bytes of any kind", () => {
    for (const id of ["a", longest, "\x00\xff\r\n"]) {
      for (const argv of callsWith(id)) expect(parse(...argv)).toBeTypeOf("object");
    }
  });
  test("an empty one is refused everywhere", () => {
    for (const argv of callsWith("")) expect(parse(...argv)).toBe("ERR the lease id must not be empty");
  });
  test("one of 257 bytes is refused everywhere", () => {
    for (const argv of callsWith(`${longest}i`)) expect(parse(...argv)).toBe(tooLong);
  });
  test("* lets the server choose, in GRANT alone", () => {
    expect(parse("LEASE.GRANT", "*", "10")).toEqual(grant({ id: null }));
    expect(parse("LEASE.KEEPALIVE", "*")).toEqual({ kind: "lease-keepalive", id: "*" });
  });
});

describe("LEASE.GRANT's clauses", () => {
  test("in any order and letter case, KEY as often as wanted", () => {
    const expected = grant({
      keys: [
        { key: "k1", value: "v1" },
        { key: "k2", value: "" },
      ],
      label: "for people",
      request: "nonce",
    });
    const clauses = [
      ["KEY", "k1", "v1"],
      ["label", "for people"],
      ["Request", "nonce"],
      ["key", "k2", ""],
    ];
    expect(parse("LEASE.GRANT", "a", "10", ...clauses.flat())).toEqual(expected);
    const reordered = [clauses[2], clauses[0], clauses[3], clauses[1]].flat() as string[];
    expect(parse("LEASE.GRANT", "a", "EX", "10", ...reordered)).toEqual(expected);
  });
  test("a key named KEY and a value named LABEL are just a key and a value", () => {
    expect(parse("LEASE.GRANT", "a", "10", "KEY", "KEY", "LABEL", "KEY", "LABEL", "KEY")).toEqual(
      grant({
        keys: [
          { key: "KEY", value: "LABEL" },
          { key: "LABEL", value: "KEY" },
        ],
      }),
    );
  });
  const malformed = [
    ["KEY"],
    ["KEY", "k"],
    ["LABEL"],
    ["REQUEST"],
    ["FOO", "bar"],
    [""],
    ["LABEL", "a", "LABEL", "b"],
    ["REQUEST", "a", "REQUEST", "b"],
    ["KEY", "k", "v", "w"],
    ["EX", "10"],
  ];
  test.each(malformed)("%j %j %j %j is a syntax error", (...clauses) => {
    const given = clauses.filter((clause) => typeof clause === "string");
    expect(parse("LEASE.GRANT", "a", "10", ...given)).toMatch(/^ERR syntax error at '/);
  });
  test("limits of lengths and numbers", () => {
    const with_ = (...clauses: string[]): Command | string => parse("LEASE.GRANT", "a", "10", ...clauses);
    expect(with_("KEY", "k".repeat(KEY_BYTES_MAX), "v".repeat(VALUE_BYTES_MAX))).toBeTypeOf("object");
    expect(with_("KEY", "k".repeat(KEY_BYTES_MAX + 1), "v")).toBe(
      "ERR the key is 65537 bytes long, the limit is 65536 bytes",
    );
    expect(with_("KEY", "k", "v".repeat(VALUE_BYTES_MAX + 1))).toBe(
      "ERR the value is 1048577 bytes long, the limit is 1048576 bytes",
    );
    expect(with_("LABEL", "l".repeat(LABEL_BYTES_MAX))).toBeTypeOf("object");
    expect(with_("LABEL", "")).toEqual(grant({ label: "" }));
    expect(with_("LABEL", "l".repeat(LABEL_BYTES_MAX + 1))).toBe(
      "ERR the label is 1025 bytes long, the limit is 1024 bytes",
    );
    expect(with_("REQUEST", "")).toBe("ERR the request nonce must not be empty");
    expect(with_("REQUEST", "n".repeat(REQUEST_NONCE_BYTES_MAX + 1))).toBe(
      "ERR the request nonce is 257 bytes long, the limit is 256 bytes",
    );
    const keys = Array.from({ length: KEYS_PER_COMMAND_MAX + 1 }, (_, index) => ["KEY", `k${index}`, "v"]);
    expect(with_(...keys.slice(1).flat())).toBeTypeOf("object");
    expect(with_(...keys.flat())).toBe("ERR 10001 keys in one command, the limit is 10000");
  });
  test("the first error is the one that is told", () => {
    expect(parse("LEASE.GRANT", "", "0", "FOO")).toBe("ERR the lease id must not be empty");
    expect(parse("LEASE.GRANT", "a", "0", "FOO")).toBe(secondsError("0"));
  });
});

describe("the other LEASE commands", () => {
  const accepted: [string[], Command][] = [
    [["LEASE.KEEPALIVE", "a"], { kind: "lease-keepalive", id: "a" }],
    [["LEASE.KEEPALIVE", "a", "a"], { kind: "lease-keepalive-many", ids: ["a", "a"] }],
    [["LEASE.REVOKE", "a"], { kind: "lease-revoke", ids: ["a"] }],
    [["LEASE.REVOKE", "a", "b"], { kind: "lease-revoke", ids: ["a", "b"] }],
    [["LEASE.TTL", "a"], { kind: "lease-ttl", id: "a", unit: "s" }],
    [["LEASE.PTTL", "a"], { kind: "lease-ttl", id: "a", unit: "ms" }],
    [["LEASE.INFO", "a"], { kind: "lease-info", id: "a" }],
    [["LEASE.ATTACH", "a", "k", "v"], { kind: "lease-attach", id: "a", key: "k", value: "v", force: false }],
    [["LEASE.ATTACH", "a", "", "", "force"], { kind: "lease-attach", id: "a", key: "", value: "", force: true }],
    [["LEASE.DETACH", "a", "k", "l"], { kind: "lease-detach", id: "a", keys: ["k", "l"] }],
    [["LEASE.SCAN", "0"], { kind: "lease-scan", cursor: 0, match: null, count: 10 }],
    [["LEASE.SCAN", "17", "count", "5", "match", "w*"], { kind: "lease-scan", cursor: 17, match: "w*", count: 5 }],
    [["LEASE.SCAN", "0", "COUNT", "999999999"], { kind: "lease-scan", cursor: 0, match: null, count: SCAN_COUNT_MAX }],
  ];
  test.each(accepted)("%j", (argv, command) => {
    expect(parse(...argv)).toEqual(command);
  });

  const refused: [string[], string][] = [
    [["LEASE.GRANT", "a", "EX", "30", "PX", "5"], "ERR syntax error at 'PX'"],
    [["LEASE.GRANT", "a", "30", "KEY", "k"], "ERR syntax error at 'KEY': a key and a value must follow"],
    [["LEASE.GRANT", "a", "30", "LABEL"], "ERR syntax error at 'LABEL': a text must follow"],
    [["LEASE.GRANT", "a", "30", "REQUEST"], "ERR syntax error at 'REQUEST': a nonce must follow"],
    [["LEASE.ATTACH", "a", "k", "v", "GENTLY"], "ERR syntax error at 'GENTLY'"],
    [["LEASE.ATTACH", "a", "k", "v", "FORCE", "FORCE"], "ERR syntax error at 'FORCE'"],
    [["LEASE.SETTTL", "a", "10", "11"], "ERR syntax error at '11'"],
    [["LEASE.SETTTL", "a", "EX", "10", "11"], "ERR syntax error at '11'"],
    [["LEASE.SCAN", "-1"], "ERR invalid cursor"],
    [["LEASE.SCAN", "x"], "ERR invalid cursor"],
    [["LEASE.SCAN", "0", "COUNT"], "ERR syntax error"],
    [["LEASE.SCAN", "0", "COUNT", "0"], "ERR syntax error"],
    [["LEASE.SCAN", "0", "COUNT", "x"], "ERR value is not an integer or out of range"],
    [["LEASE.SCAN", "0", "TYPE", "string"], "ERR syntax error"],
    [
      ["LEASE.SCAN", "0", "MATCH", "*".repeat(PATTERN_BYTES_MAX + 1)],
      "ERR the pattern is 1025 bytes long, the limit is 1024 bytes",
    ],
    [["LEASE.DETACH", "a", "k".repeat(KEY_BYTES_MAX + 1)], "ERR the key is 65537 bytes long, the limit is 65536 bytes"],
    [
      ["LEASE.REVOKE", ...Array.from({ length: KEYS_PER_COMMAND_MAX + 1 }, () => "a")],
      "ERR 10001 leases in one command, the limit is 10000",
    ],
    [
      ["LEASE.KEEPALIVE", ...Array.from({ length: KEYS_PER_COMMAND_MAX + 1 }, () => "a")],
      "ERR 10001 leases in one command, the limit is 10000",
    ],
  ];
  test.each(refused.map(([argv, error]) => [argv[0], argv.slice(1, 6), error, argv] as const))(
    "%s %j: %s",
    (_name, _shown, error, argv) => {
      expect(parse(...argv)).toBe(error);
    },
  );
});
