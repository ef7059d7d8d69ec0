import * as fc from "fast-check";
import { afterAll, beforeAll, expect, test } from "vitest";
import { ErrorReply } from "#src/engine/reply.js";
import type { ArgumentDoc, CommandDefinition } from "#src/resp/command-definition.js";
import type { ClientConnection } from "#src/resp/command.js";
import { RespError, type RespConnection, type RespValue } from "../support/resp-client.js";
import { startNode, type TestNode } from "./commands-harness.js";

/**
 * Arguments made from the table's own argument trees, then bent: whatever a client sends, it gets one reply per request and
 * the server goes on. The seed is printed by fast-check when a run fails.
 */

let node: TestNode;
beforeAll(async () => {
  node = await startNode();
});
afterAll(() => node.stop());

const ODD = [
  "",
  "*",
  "0",
  "-1",
  "9007199254740991",
  "9007199254740992",
  "1.5",
  "+1",
  "\x00\xff\r\n",
  "EX",
  "KEY",
  "[",
  "a b",
];
const odd = fc.constantFrom(...ODD);
const small = fc.constantFrom("a", "b", "c", "1", "2", "16");
/** One argument in eight is something else than the tree asks for. */
const orOdd = (value: fc.Arbitrary<string>): fc.Arbitrary<string> =>
  fc.oneof({ arbitrary: value, weight: 7 }, { arbitrary: odd, weight: 1 });

function argumentsOf(args: readonly ArgumentDoc[]): fc.Arbitrary<string[]> {
  return fc.tuple(...args.map(argumentOf)).map((parts) => parts.flat());
}

function argumentOf(argument: ArgumentDoc): fc.Arbitrary<string[]> {
  const token = argument.token !== undefined && argument.type !== "pure-token" ? [argument.token] : [];
  const once = valueOf(argument).map((value) => [...token, ...value]);
  const all =
    argument.multiple === true ? fc.array(once, { minLength: 1, maxLength: 4 }).map((parts) => parts.flat()) : once;
  return argument.optional === true ? fc.oneof(all, fc.constant<string[]>([])) : all;
}

function valueOf(argument: ArgumentDoc): fc.Arbitrary<string[]> {
  const parts = argument.arguments ?? [];
  switch (argument.type) {
    case "pure-token":
      return fc.constantFrom(argument.token ?? "", (argument.token ?? "").toLowerCase()).map((word) => [word]);
    case "block":
      return argumentsOf(parts);
    case "oneof":
      return fc.oneof(...parts.map(argumentOf));
    case "integer":
      return orOdd(fc.integer({ min: 0, max: 20 }).map(String)).map((value) => [value]);
    case "string":
    case "key":
    case "pattern":
      return orOdd(small).map((value) => [value]);
  }
}

/** Drops, doubles or adds an argument now and then. */
const bend = (argv: string[], where: number, how: number): string[] => {
  const at = argv.length === 0 ? 0 : where % argv.length;
  if (how === 0) return argv.toSpliced(at, 1);
  if (how === 1) return argv.toSpliced(at, 0, argv[at] ?? "x");
  return how === 2 ? [...argv, "extra"] : argv;
};

function callOf(definition: CommandDefinition): fc.Arbitrary<string[]> {
  const name = definition.name.split("|");
  return fc
    .tuple(argumentsOf(definition.arguments), fc.nat(20), fc.nat(12))
    .map(([argv, where, how]) => [...name, ...bend(argv, where, how)]);
}

/** Those that change how the connection answers, or hold it up; they have tests of their own. */
const NOT_ONE_REPLY =
  /^(quit|monitor|shutdown|reset|hello|debug.*|client\|(reply|pause|kill)|[ps]?(un)?subscribe|.*publish|failover|replicaof|slaveof|config\|set|auth|multi|lock\.acquire)$/;

test("one reply per request, whatever the arguments", async () => {
  const definitions = [...node.table.all()].filter(({ name }) => !NOT_ONE_REPLY.test(name));
  const connection: RespConnection = await node.connect();
  const call = fc.constantFrom(...definitions).chain(callOf);
  let errors = 0;
  let successes = 0;
  await fc.assert(
    fc.asyncProperty(fc.array(call, { minLength: 5, maxLength: 40 }), async (calls) => {
      const commands: string[][] = [...calls, ["ECHO", "the end"]];
      const replies: RespValue[] = await connection.pipeline(commands);
      expect(replies.at(-1)).toBe("the end");
      for (const reply of replies) {
        if (reply instanceof RespError) errors += 1;
        else successes += 1;
      }
    }),
    { numRuns: 150 },
  );
  // The generator must do both, or it tests half of what it should.
  expect(successes).toBeGreaterThan(50);
  expect(errors).toBeGreaterThan(50);
  connection.destroy();
});

test("no parser throws, and each answers a command or an error", () => {
  const parsers = [...node.table.all()].filter(({ parse }) => parse !== undefined);
  const nobody = {} as ClientConnection;
  const wild = fc.array(fc.oneof(odd, small, fc.string({ unit: "binary", maxLength: 8 })), { maxLength: 8 });
  fc.assert(
    fc.property(fc.constantFrom(...parsers), wild, (definition, args) => {
      const argv = [definition.name, ...args];
      const result = definition.parse?.(argv, nobody);
      expect(result instanceof ErrorReply || typeof result?.kind === "string").toBe(true);
    }),
    { numRuns: 3000 },
  );
});

/** What a transaction or a script may contain, but for what changes how the connection answers. */
const inSteps = (): CommandDefinition[] =>
  [...node.table.all()].filter(
    ({ name, standsAlone, isNeverQueued }) =>
      standsAlone !== true &&
      isNeverQueued !== true &&
      !/^(monitor|hello|debug.*|client\|(pause|kill)|auth)$/.test(name),
  );

test("one EXEC per transaction, whatever is in it", async () => {
  const connection: RespConnection = await node.connect();
  const call = fc.constantFrom(...inSteps()).chain(callOf);
  let runs = 0;
  let aborts = 0;
  await fc.assert(
    fc.asyncProperty(fc.array(call, { maxLength: 6 }), async (calls) => {
      const replies = await connection.pipeline([["MULTI"], ...calls, ["EXEC"], ["ECHO", "the end"]]);
      expect(replies.at(-1)).toBe("the end");
      const queued = replies.slice(1, -2);
      const outcome = replies.at(-2);
      if (queued.some((reply) => reply instanceof RespError)) {
        expect(outcome).toMatchObject({ code: "EXECABORT" });
        aborts += 1;
      } else {
        expect(outcome).toHaveLength(calls.length);
        runs += 1;
      }
    }),
    { numRuns: 200 },
  );
  expect(runs).toBeGreaterThan(20);
  expect(aborts).toBeGreaterThan(20);
  connection.destroy();
});

test("one answer per script, whatever it calls", async () => {
  const connection: RespConnection = await node.connect();
  const call = fc.constantFrom(...inSteps()).chain(callOf);
  await fc.assert(
    fc.asyncProperty(call, async (argv) => {
      await connection.send("EVAL", "return redis.call(unpack(ARGV))", 0, ...argv);
      expect(await connection.call("ECHO", "the end")).toBe("the end");
    }),
    { numRuns: 300 },
  );
  connection.destroy();
});

function kindOf(verb: string): "channel" | "pattern" | "shard" {
  if (verb.startsWith("P")) return "pattern";
  return verb.startsWith("SS") || verb.startsWith("SUN") ? "shard" : "channel";
}

test("subscribers, fuzzed: the connection stays in step", async () => {
  const names = fc.array(fc.oneof(small, fc.constantFrom("a*", "[", "\\")), { maxLength: 3 });
  const verbs = ["SUBSCRIBE", "UNSUBSCRIBE", "PSUBSCRIBE", "PUNSUBSCRIBE", "SSUBSCRIBE", "SUNSUBSCRIBE"];
  const step = fc.tuple(fc.constantFrom(...verbs), names);
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 12 }), async (steps) => {
      const connection = await node.connect({ protocol: 3 });
      const held = { channel: new Set<string>(), pattern: new Set<string>(), shard: new Set<string>() };
      for (const [verb, given] of steps) {
        const kind = kindOf(verb);
        const isLeaving = verb.includes("UNSUBSCRIBE");
        if (!isLeaving && given.length === 0) continue;
        const expected = isLeaving && given.length === 0 ? Math.max(1, held[kind].size) : given.length;
        const confirmations = Array.from({ length: expected - 1 }, () => connection.nextReply());
        await connection.send(verb, ...given);
        await Promise.all(confirmations);
        for (const name of given) {
          if (isLeaving) held[kind].delete(name);
          else held[kind].add(name);
        }
        if (isLeaving && given.length === 0) held[kind].clear();
      }
      expect(await connection.call("ECHO", "in step")).toBe("in step");
      const { pubsub } = node.context;
      expect([pubsub.channelCount, pubsub.patternCount, pubsub.shardChannelCount]).toEqual([
        held.channel.size,
        held.pattern.size,
        held.shard.size,
      ]);
      await connection.call("RESET");
      connection.destroy();
    }),
    { numRuns: 40 },
  );
});
