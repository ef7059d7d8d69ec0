import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { RequestDecoder } from "#src/resp/decoder.js";
import { FrameGuard, UNAUTHENTICATED_LIMITS, frameLimits, type FrameLimits } from "#src/resp/frame-guard.js";
import { request } from "./wire-harness.js";

const LIMITS = frameLimits();

interface Outcome {
  readonly requests: (readonly string[])[];
  readonly error: string | null;
  readonly heldBytesMax: number;
}

/** Feeds `pieces` one by one, each through the same reused buffer as a socket's reader does it. */
function feed(pieces: readonly string[], limits: FrameLimits = LIMITS, framesMax = 1000): Outcome {
  const longest = pieces.reduce((most, piece) => Math.max(most, piece.length), 1);
  const readBuffer = Buffer.alloc(longest);
  const decoder = new RequestDecoder(readBuffer);
  const guard = new FrameGuard();
  const requests: (readonly string[])[] = [];
  let heldBytesMax = 0;
  for (const piece of pieces) {
    readBuffer.write(piece, "latin1");
    guard.attach(readBuffer, piece.length);
    for (let found = guard.next(limits, framesMax); found !== "more"; found = guard.next(limits, framesMax)) {
      if (found === "broken") return { requests, error: guard.errorText, heldBytesMax };
      if (found === "inline") requests.push(guard.inlineArguments);
      else decoder.decode(guard.bytes, guard.framesStart, guard.framesEnd, guard.framesCount, requests);
    }
    guard.settle();
    heldBytesMax = Math.max(heldBytesMax, guard.heldBytes);
    // What a reader does next: it fills the same memory with something else.
    readBuffer.fill(0x2a);
  }
  return { requests, error: null, heldBytesMax };
}

/** One piece per byte. */
const bytesOf = (bytes: string): string[] => bytes.split("");

/** `bytes` cut at `cuts`. */
function cut(bytes: string, cuts: readonly number[]): string[] {
  const places = [...new Set(cuts.map((place) => place % (bytes.length + 1)))].sort((a, b) => a - b);
  const pieces: string[] = [];
  let start = 0;
  for (const place of [...places, bytes.length]) {
    if (place > start) pieces.push(bytes.slice(start, place));
    start = place;
  }
  return pieces;
}

const byteString = (lengthMax: number): fc.Arbitrary<string> =>
  fc.uint8Array({ maxLength: lengthMax }).map((bytes) => Buffer.from(bytes).toString("latin1"));
/** Arguments that look like protocol on purpose. */
const argument = fc.oneof(
  byteString(40),
  fc.constantFrom("", "\r\n", "*1\r\n$4\r\nPING\r\n", "$5\r\n", "*", "\0", "PING"),
);
const argv = fc.array(argument, { minLength: 1, maxLength: 6 });
/** Words that need no quotes, so that the expected split is plain to see. */
const line = fc.array(fc.stringMatching(/^[a-zA-Z0-9:_]{1,10}$/), { minLength: 1, maxLength: 4 });

type Part = { readonly bytes: string; readonly argv: readonly string[] | null };
const part: fc.Arbitrary<Part> = fc.oneof(
  { weight: 6, arbitrary: argv.map((list) => ({ bytes: request(...list), argv: list })) },
  { weight: 2, arbitrary: line.map((words) => ({ bytes: `${words.join(" ")}\r\n`, argv: words })) },
  { weight: 1, arbitrary: line.map((words) => ({ bytes: `  ${words.join("\t ")} \n`, argv: words })) },
  {
    weight: 1,
    arbitrary: fc
      .constantFrom("\r\n", "\n", "*0\r\n", "*-1\r\n", "*-77\r\n", "  \r\n")
      .map((bytes) => ({ bytes, argv: null })),
  },
);

const expected = (parts: readonly Part[]): (readonly string[])[] =>
  parts.flatMap((one) => (one.argv === null ? [] : [one.argv]));

describe("requests in pieces", () => {
  it("come out as they were sent, however they are cut", () => {
    fc.assert(
      fc.property(
        fc.array(part, { maxLength: 12 }),
        fc.array(fc.nat(), { maxLength: 20 }),
        fc.integer({ min: 1, max: 5 }),
        (parts, cuts, framesMax) => {
          const bytes = parts.map((one) => one.bytes).join("");
          const outcome = feed(cut(bytes, cuts), LIMITS, framesMax);
          expect(outcome.error).toBe(null);
          expect(outcome.requests).toEqual(expected(parts));
        },
      ),
      { numRuns: 500 },
    );
  });

  it("come out the same when cut at every single byte, and into single bytes", () => {
    const parts: Part[] = [
      { bytes: request("SET", "k\r\n", "\0\xff"), argv: ["SET", "k\r\n", "\0\xff"] },
      { bytes: "PING\r\n", argv: ["PING"] },
      { bytes: "*0\r\n\r\n", argv: null },
      { bytes: 'ECHO "a b"\n', argv: ["ECHO", "a b"] },
      { bytes: request(""), argv: [""] },
      { bytes: request("LEASE.KEEPALIVE", "x".repeat(300)), argv: ["LEASE.KEEPALIVE", "x".repeat(300)] },
    ];
    const bytes = parts.map((one) => one.bytes).join("");
    for (let place = 0; place <= bytes.length; place++) {
      expect(feed(cut(bytes, [place])).requests).toEqual(expected(parts));
    }
    expect(feed(bytesOf(bytes)).requests).toEqual(expected(parts));
  });

  it("are found in one walk: a long request in single bytes, and long lines, end within the test's time", () => {
    const value = "v".repeat(4_000_000);
    const bytes = request("SET", "k", value);
    const outcome = feed(bytesOf(bytes));
    expect(outcome.requests).toEqual([["SET", "k", value]]);

    // A header and a line that never end, byte by byte, many times over: each is searched once.
    for (let round = 0; round < 20; round++) {
      expect(feed(bytesOf("9".repeat(70_000))).error).toBe("too big inline request");
      expect(feed(bytesOf(`*${"9".repeat(70_000)}`)).error).toBe("too big mbulk count string");
    }
  });

  it("are not kept twice: memory stays within twice what was sent", () => {
    const bytes = request("SET", "k", "v".repeat(1_000_000));
    for (const pieceBytes of [997, 65_536]) {
      const pieces = bytes.match(new RegExp(`[^]{1,${pieceBytes}}`, "g")) ?? [];
      const { heldBytesMax } = feed(pieces);
      expect(heldBytesMax).toBeGreaterThan(900_000);
      expect(heldBytesMax).toBeLessThan(2 * bytes.length + 65_536);
    }
  });

  it("hold no memory by announcement alone", () => {
    expect(feed(["*1000000\r\n$16000000\r\nx"]).heldBytesMax).toBeLessThan(1024);
  });

  it("leave nothing behind in the guard", () => {
    const guard = new FrameGuard();
    const bytes = Buffer.from(`${request("PING")}*2\r\n$4\r\nEC`, "latin1");
    guard.attach(bytes, bytes.length);
    expect(guard.next(LIMITS, 10)).toBe("frames");
    expect(guard.next(LIMITS, 10)).toBe("more");
    guard.settle();
    expect(guard.pendingBytes).toBe(10);
    guard.clear();
    expect(guard.pendingBytes).toBe(0);
    expect(guard.heldBytes).toBe(0);
    const ping = Buffer.from(request("PING"), "latin1");
    guard.attach(ping, ping.length);
    expect(guard.next(LIMITS, 10)).toBe("frames");
    guard.settle();
    expect(guard.heldBytes).toBe(0);
  });
});

describe("garbage", () => {
  const protocolish = fc
    .array(
      fc.oneof(
        fc.constantFrom(
          "*",
          "$",
          "\r\n",
          "\r",
          "\n",
          "1",
          "3",
          "0",
          "-1",
          "99999999999",
          "*2\r\n",
          "$3\r\n",
          "abc",
          '"',
          "'",
          " ",
          "\\x4",
        ),
        byteString(4),
      ),
      { maxLength: 40 },
    )
    .map((pieces) => pieces.join(""));

  it("never throws, and is understood the same in one piece and in many", () => {
    fc.assert(
      fc.property(protocolish, fc.array(fc.nat(), { maxLength: 10 }), (bytes, cuts) => {
        const whole = feed([bytes]);
        const pieces = feed(cut(bytes, cuts));
        expect(pieces.requests).toEqual(whole.requests);
        expect(pieces.error).toBe(whole.error);
      }),
      { numRuns: 2000 },
    );
  });

  it("reads nothing that lies behind what was received", () => {
    const readBuffer = Buffer.from(`${request("PING")}${request("EVIL")}`, "latin1");
    const guard = new FrameGuard();
    for (let length = 1; length < request("PING").length; length++) {
      guard.clear();
      guard.attach(readBuffer, length);
      expect(guard.next(LIMITS, 10)).toBe("more");
    }
    guard.clear();
    guard.attach(readBuffer, request("PING").length);
    expect(guard.next(LIMITS, 10)).toBe("frames");
    expect(guard.framesCount).toBe(1);
    expect(guard.next(LIMITS, 10)).toBe("more");
  });
});

describe("what is refused", () => {
  const KB = 1024;
  const cases: readonly (readonly [bytes: string, error: string])[] = [
    ["*abc\r\n", "invalid multibulk length"],
    ["*\r\n", "invalid multibulk length"],
    ["*01\r\n", "invalid multibulk length"],
    ["*+1\r\n", "invalid multibulk length"],
    ["*-0\r\n", "invalid multibulk length"],
    ["*1 \r\n", "invalid multibulk length"],
    ["*1.5\r\n", "invalid multibulk length"],
    ["*1\rX", "invalid multibulk length"],
    ["*99999999999\r\n", "invalid multibulk length"],
    ["*99999999999999999999999999\r\n", "invalid multibulk length"],
    ["*1048577\r\n", "invalid multibulk length"],
    ["*1\r\n$abc\r\n", "invalid bulk length"],
    ["*1\r\n$\r\n", "invalid bulk length"],
    ["*1\r\n$-1\r\n", "invalid bulk length"],
    ["*1\r\n$04\r\nPING\r\n", "invalid bulk length"],
    ["*1\r\n$4\rXPING\r\n", "invalid bulk length"],
    ["*1\r\n$16777217\r\n", "invalid bulk length"],
    ["*1\r\n$99999999999999999999\r\n", "invalid bulk length"],
    ["*1\r\nx4\r\nPING\r\n", "expected '$', got 'x'"],
    ["*1\r\n*1\r\n$4\r\nPING\r\n", "expected '$', got '*'"],
    ["*1\r\n\r\nPING\r\n", "expected '$', got ' '"],
    ["*1\r\n\xff", "expected '$', got '\xff'"],
    ["*1\r\n:1\r\n", "expected '$', got ':'"],
    ["*1\r\n$4\r\nPINGxx", "expected CRLF after a bulk"],
    ["*1\r\n$3\r\nPING\r\n", "expected CRLF after a bulk"],
    ["*1\r\n$0\r\nx\r\n", "expected CRLF after a bulk"],
    [`*${"1".repeat(64 * KB)}`, "too big mbulk count string"],
    [`*1\r\n$${"1".repeat(64 * KB)}`, "too big bulk count string"],
    ["A".repeat(64 * KB + 1), "too big inline request"],
    [`${"A".repeat(64 * KB + 2)}\r\n`, "too big inline request"],
    ['"abc\r\n', "unbalanced quotes in request"],
    ['"abc"d\r\n', "unbalanced quotes in request"],
    ["'abc\n", "unbalanced quotes in request"],
  ];

  it.each(cases)("%j: %s, after the commands before it", (bytes, error) => {
    expect(feed([bytes])).toMatchObject({ requests: [], error });
    expect(feed([`${request("PING")}ECHO a\r\n${request("GET", "k")}${bytes}`])).toMatchObject({
      requests: [["PING"], ["ECHO", "a"], ["GET", "k"]],
      error,
    });
    if (bytes.length < 100) expect(feed(bytesOf(bytes))).toMatchObject({ requests: [], error });
  });

  it("takes what lies just within the limits", () => {
    expect(feed(["A".repeat(64 * KB)]).error).toBe(null);
    expect(feed([`${"A".repeat(64 * KB)}\r\n`]).error).toBe("too big inline request");
    expect(feed([`${"A".repeat(64 * KB - 1)}\r\n`]).requests).toHaveLength(1);
    expect(feed([`*${"1".repeat(64 * KB - 1)}`]).error).toBe(null);
    expect(feed(["*1048576\r\n"]).error).toBe(null);
  });

  it("bounds the whole request, not only each part of it", () => {
    const small = frameLimits(1000);
    const fits = request(
      "SET",
      "k".repeat(400),
      "v".repeat(1000 - request("SET", "k".repeat(400), "v".repeat(100)).length + 100),
    );
    expect(fits).toHaveLength(1000);
    expect(feed([fits], small).requests).toHaveLength(1);
    expect(feed([fits.replace("k\r\n", "kk\r\n").replace("$400", "$401")], small).error).toBe("invalid bulk length");
    // The bound is per request: any number of them may follow each other.
    expect(feed([fits.repeat(5)], small).requests).toHaveLength(5);
  });

  it("is tighter before a client has authenticated", () => {
    const auth = ["AUTH", "x".repeat(16_384)];
    expect(feed([request(...auth)], UNAUTHENTICATED_LIMITS).requests).toEqual([auth]);
    expect(feed(["*11\r\n"], UNAUTHENTICATED_LIMITS).error).toBe("unauthenticated multibulk length");
    expect(feed(["*1048577\r\n"], UNAUTHENTICATED_LIMITS).error).toBe("invalid multibulk length");
    expect(feed(["*1\r\n$16385\r\n"], UNAUTHENTICATED_LIMITS).error).toBe("unauthenticated bulk length");
    const many = request(...Array.from({ length: 10 }, () => "x".repeat(10_000)));
    expect(feed([many], UNAUTHENTICATED_LIMITS).error).toBe("unauthenticated bulk length");
  });
});
