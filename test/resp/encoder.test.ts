import * as fc from "fast-check";
import RedisParser from "redis-parser";
import { describe, expect, it } from "vitest";
import {
  ErrorReply,
  MapReply,
  NULL_ARRAY,
  OK,
  PushReply,
  SetReply,
  StatusReply,
  VerbatimReply,
  type Reply,
} from "#src/engine/reply.js";
import { EncodedOnce, encodeReply } from "#src/resp/encoder.js";
import { REPLY_BYTES_MAX } from "#src/resp/wire-limits.js";

describe("each kind of reply in RESP2 and RESP3", () => {
  const cases: readonly (readonly [name: string, reply: Reply, resp2: string, resp3: string])[] = [
    ["integer", 30_000, ":30000\r\n", ":30000\r\n"],
    ["zero", 0, ":0\r\n", ":0\r\n"],
    ["negative", -2, ":-2\r\n", ":-2\r\n"],
    ["largest", Number.MAX_SAFE_INTEGER, ":9007199254740991\r\n", ":9007199254740991\r\n"],
    ["smallest", Number.MIN_SAFE_INTEGER, ":-9007199254740991\r\n", ":-9007199254740991\r\n"],
    ["bulk", "a\r\n\0\xff", "$5\r\na\r\n\0\xff\r\n", "$5\r\na\r\n\0\xff\r\n"],
    ["empty bulk", "", "$0\r\n\r\n", "$0\r\n\r\n"],
    ["long bulk", "x".repeat(2000), `$2000\r\n${"x".repeat(2000)}\r\n`, `$2000\r\n${"x".repeat(2000)}\r\n`],
    ["nil", null, "$-1\r\n", "_\r\n"],
    ["nil array", NULL_ARRAY, "*-1\r\n", "_\r\n"],
    ["status", OK, "+OK\r\n", "+OK\r\n"],
    ["error", new ErrorReply("ERR no"), "-ERR no\r\n", "-ERR no\r\n"],
    ["status with line ends", new StatusReply("a\r\nb\n"), "+a  b \r\n", "+a  b \r\n"],
    ["error with line ends", new ErrorReply("ERR a\r\n+OK"), "-ERR a  +OK\r\n", "-ERR a  +OK\r\n"],
    ["array", [1, "a", null, OK], "*4\r\n:1\r\n$1\r\na\r\n$-1\r\n+OK\r\n", "*4\r\n:1\r\n$1\r\na\r\n_\r\n+OK\r\n"],
    ["empty array", [], "*0\r\n", "*0\r\n"],
    ["nested", [[], [1, [2]]], "*2\r\n*0\r\n*2\r\n:1\r\n*1\r\n:2\r\n", "*2\r\n*0\r\n*2\r\n:1\r\n*1\r\n:2\r\n"],
    [
      "map",
      new MapReply([
        ["a", 1],
        ["b", [2]],
      ]),
      "*4\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n*1\r\n:2\r\n",
      "%2\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n*1\r\n:2\r\n",
    ],
    ["set", new SetReply(["a"]), "*1\r\n$1\r\na\r\n", "~1\r\n$1\r\na\r\n"],
    [
      "push",
      new PushReply(["message", "c", "m"]),
      "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
      ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
    ],
    ["verbatim", new VerbatimReply("a:1\r\n"), "$5\r\na:1\r\n\r\n", "=9\r\ntxt:a:1\r\n\r\n"],
  ];

  it.each(cases)("%s", (_name, reply, resp2, resp3) => {
    expect(encodeReply(reply, 2)).toBe(resp2);
    expect(encodeReply(reply, 3)).toBe(resp3);
    // Twice: some are remembered.
    expect(encodeReply(reply, 2)).toBe(resp2);
  });

  it("remembers integers without mixing them up", () => {
    fc.assert(
      fc.property(
        fc.array(
          fc.oneof(
            fc.maxSafeInteger(),
            fc.integer({ min: 0, max: 5 }).map((n) => n * 1024),
          ),
        ),
        (values) => {
          for (const value of values) expect(encodeReply(value, 2)).toBe(`:${String(value + 0)}\r\n`);
        },
      ),
    );
  });

  it.each([1.5, Number.NaN, Number.POSITIVE_INFINITY, 2 ** 53])("crashes on %s, which is no integer", (value) => {
    expect(() => encodeReply(value, 2)).toThrow(/safe integers/);
  });
});

describe("as a client reads it", () => {
  const leaf: fc.Arbitrary<Reply> = fc.oneof(
    fc.maxSafeInteger(),
    fc.uint8Array({ maxLength: 30 }).map((bytes) => Buffer.from(bytes).toString("latin1")),
    fc.constant(null),
  );
  const { reply } = fc.letrec<{ reply: Reply }>((tie) => ({
    reply: fc.oneof({ depthSize: "small" }, leaf, fc.array(tie("reply"), { maxLength: 5 })),
  }));

  const asClientSeesIt = (value: Reply): unknown =>
    typeof value === "string" ? Buffer.from(value, "latin1") : Array.isArray(value) ? value.map(asClientSeesIt) : value;

  it("any reply comes out as it went in", () => {
    fc.assert(
      fc.property(fc.array(reply, { minLength: 1, maxLength: 5 }), (replies) => {
        const seen: unknown[] = [];
        const parser = new RedisParser({
          returnBuffers: true,
          returnReply: (one) => seen.push(one),
          returnError: (error) => {
            throw error;
          },
        });
        parser.execute(Buffer.from(replies.map((one) => encodeReply(one, 2)).join(""), "latin1"));
        expect(seen).toEqual(replies.map(asClientSeesIt));
      }),
      { numRuns: 500 },
    );
  });
});

describe("large replies", () => {
  it("nest as deep as they like", () => {
    let reply: Reply = "core";
    for (let depth = 0; depth < 200_000; depth++) reply = [reply];
    expect(encodeReply(reply, 3)).toBe(`${"*1\r\n".repeat(200_000)}$4\r\ncore\r\n`);
  });

  it("hold a million items", () => {
    const item = "k".repeat(20);
    const text = encodeReply(
      Array.from({ length: 1_000_000 }, () => item),
      2,
    );
    expect(text).toHaveLength("*1000000\r\n".length + 1_000_000 * "$20\r\n\r\n".length + 20_000_000);
    expect(text.endsWith(`$20\r\n${item}\r\n`)).toBe(true);
  });

  it("end in an error where they would exceed the limit", () => {
    const megabyte = "m".repeat(1024 * 1024);
    const reply = Array.from({ length: REPLY_BYTES_MAX / megabyte.length + 1 }, () => megabyte);
    expect(encodeReply(reply, 2)).toMatch(/^-ERR the reply is longer than \d+ bytes\r\n$/);
  });
});

describe("a message for many", () => {
  it("is encoded once per version", () => {
    const message = new EncodedOnce(new PushReply(["message", "c", "m"]));
    expect(message.encoded(2)).toBe("*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n");
    expect(message.encoded(3)).toBe(">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n");
    expect(message.encoded(3)).toBe(message.encoded(3));
  });
});
