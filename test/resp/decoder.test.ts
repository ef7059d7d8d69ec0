import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { RequestDecoder } from "#src/resp/decoder.js";
import { frame, request } from "./wire-harness.js";

const byteString = fc.uint8Array({ maxLength: 64 }).map((bytes) => Buffer.from(bytes).toString("latin1"));
const argv = fc.array(byteString, { minLength: 1, maxLength: 8 });

describe("decoder", () => {
  it("gives back every byte of every argument, wherever the frames lie", () => {
    const readBuffer = Buffer.alloc(65_536);
    const decoder = new RequestDecoder(readBuffer);
    fc.assert(
      fc.property(fc.array(argv, { minLength: 1, maxLength: 20 }), fc.nat(30), fc.boolean(), (lists, offset, isOwn) => {
        const bytes = lists.map((list) => request(...list)).join("");
        const buffer = isOwn ? Buffer.alloc(bytes.length + offset) : readBuffer;
        buffer.write(bytes, offset, "latin1");
        const requests: (readonly string[])[] = [["before"]];
        decoder.decode(buffer, offset, offset + bytes.length, lists.length, requests);
        expect(requests).toEqual([["before"], ...lists]);
      }),
      { numRuns: 500 },
    );
  });

  it("gives out strings that do not change when the buffer is read into again", () => {
    const readBuffer = Buffer.alloc(1024);
    const decoder = new RequestDecoder(readBuffer);
    const first = request("GET", "a-key-that-is-longer-than-a-few-bytes");
    const second = request("SET", "B-KEY-THAT-IS-LONGER-THAN-A-FEW-BYTES");
    const requests: (readonly string[])[] = [];
    expect(first).toHaveLength(second.length);
    for (const bytes of [first, second]) {
      readBuffer.write(bytes, "latin1");
      decoder.decode(readBuffer, 0, bytes.length, 1, requests);
    }
    expect(requests).toEqual([
      ["GET", "a-key-that-is-longer-than-a-few-bytes"],
      ["SET", "B-KEY-THAT-IS-LONGER-THAN-A-FEW-BYTES"],
    ]);
  });

  it("remembers a name only when it is the same byte for byte", () => {
    const readBuffer = Buffer.alloc(4096);
    const decoder = new RequestDecoder(readBuffer);
    const lists = [["PING"], ["PING"], ["PINg", "PING"], ["PIN"], ["PING\0"], ["\xd0ING"], ["PING"]];
    const requests: (readonly string[])[] = [];
    for (const list of lists) {
      const bytes = request(...list);
      readBuffer.write(bytes, "latin1");
      decoder.decode(readBuffer, 0, bytes.length, 1, requests);
    }
    expect(requests).toEqual(lists);
  });

  it("takes a request of very many arguments, and a very long one", () => {
    const decoder = new RequestDecoder(Buffer.alloc(1));
    const list = Array.from({ length: 200_000 }, (_, index) => String(index));
    const long = ["SET", "k", "\xff".repeat(8_000_000)];
    const bytes = Buffer.from(frame(list) + frame(long), "latin1");
    const requests: (readonly string[])[] = [];
    decoder.decode(bytes, 0, bytes.length, 2, requests);
    expect(requests).toEqual([list, long]);
  });

  it("is told how many frames there are, and crashes when that is not so", () => {
    const decoder = new RequestDecoder(Buffer.alloc(1));
    const bytes = Buffer.from(request("PING"), "latin1");
    expect(() => decoder.decode(bytes, 0, bytes.length, 2, [])).toThrow(/frames/);
  });
});
