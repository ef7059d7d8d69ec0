import type { ByteString } from "../engine/reply.js";
import { splitInline } from "./inline.js";
import {
  ARGUMENTS_MAX,
  FRAME_BYTES_MAX,
  INLINE_BYTES_MAX,
  UNAUTHENTICATED_ARGUMENTS_MAX,
  UNAUTHENTICATED_BULK_BYTES_MAX,
  UNAUTHENTICATED_FRAME_BYTES_MAX,
} from "./wire-limits.js";

/**
 * Stands in front of redis-parser and finds complete, well-formed, within-limits requests in the bytes of one connection. A
 * reply parser lent to requests trusts what it reads: it allocates what a header announces, waits for ever on `$abc` and takes
 * bulks without their line ends. It only ever sees frames that were walked here first.
 *
 * Walked are the headers alone: `*2 $3 ... $7 ...`, 10 to 20 ns a command. A frame that arrives in pieces is never walked from
 * its start again: the guard remembers where it stopped, so fifty megabytes in pieces of one byte cost the same walk.
 *
 * Invariants:
 *  1. start <= framesEnd, position <= end; bytes[start, end) are the bytes received and not yet handed out
 *  2. bytes handed out as frames are whole frames of `*n` with n >= 1 and n bulks, each ended by CR LF
 *  3. memory held is at most twice what the client has sent and is not answered yet; nothing is allocated by announcement
 *  4. between two turns of the event loop the bytes are the guard's own: the read buffer is lent only from `attach` to `settle`
 *
 * What is not of that form is answered as Redis answers it, and the connection ends: after one bad length nothing that follows can be told
 * apart. Stricter than Redis: a CR must be followed by LF, and a bulk by CR LF (Redis skips two bytes without a look).
 */

/** How much one request may take; tighter before a client has authenticated. */
export interface FrameLimits {
  readonly argumentsMax: number;
  readonly bulkBytesMax: number;
  readonly frameBytesMax: number;
  /** What a request beyond them is told. */
  readonly argumentsError: string;
  readonly bulkError: string;
}

/** Limits of a client that may run commands; `frameBytesMax` counts the whole request with its headers. */
export const frameLimits = (frameBytesMax: number = FRAME_BYTES_MAX): FrameLimits => ({
  argumentsMax: ARGUMENTS_MAX,
  bulkBytesMax: frameBytesMax,
  frameBytesMax,
  argumentsError: "invalid multibulk length",
  bulkError: "invalid bulk length",
});

export const UNAUTHENTICATED_LIMITS: FrameLimits = {
  argumentsMax: UNAUTHENTICATED_ARGUMENTS_MAX,
  bulkBytesMax: UNAUTHENTICATED_BULK_BYTES_MAX,
  frameBytesMax: UNAUTHENTICATED_FRAME_BYTES_MAX,
  argumentsError: "unauthenticated multibulk length",
  bulkError: "unauthenticated bulk length",
};

/**
 * What `next` found:
 *  - `frames`: whole frames in `bytes[framesStart, framesEnd)`, for redis-parser
 *  - `inline`: one line, split, in `inlineArguments`
 *  - `more`: no whole request is there
 *  - `broken`: `errorText` says why; nothing can be read from this connection any more
 */
export type Found = "frames" | "inline" | "more" | "broken";

const CR = 0x0d;
const LF = 0x0a;
const ASTERISK = 0x2a;
const DOLLAR = 0x24;
const ZERO = 0x30;

/** What `#readLength` answers besides a length. */
const NEGATIVE = -1;
const INCOMPLETE = -2;
const INVALID = -3;
const ENDLESS = -4;

/** Digits that a length of the fast path may have: ten reach beyond every limit. */
const FAST_DIGITS_MAX = 10;

/** A header that is a number by Redis's rules: no sign but minus, no leading zero, no blank. */
const NUMBER = /^(?:0|-?[1-9][0-9]{0,18})$/;

/** The smallest buffer for the half of a request: most are one command. */
const OWN_BYTES_MIN = 256;

const NO_BYTES = Buffer.alloc(0);

export class FrameGuard {
  bytes: Buffer = NO_BYTES;
  framesStart = 0;
  framesEnd = 0;
  framesCount = 0;
  inlineArguments: readonly ByteString[] = [];
  /** Redis's text, without `ERR Protocol error: `. */
  errorText = "";

  #start = 0;
  #end = 0;
  /** True while `bytes` is the reader's buffer. */
  #borrowed = false;

  /** Where the walk goes on. */
  #position = 0;
  /** Of the frame that the walk is in: its first byte, its bulks not yet seen; none: the walk is between frames. */
  #frameStart = 0;
  #bulksLeft = 0;
  /** Where the bulk that the walk is in ends, its CR LF included; -1: its header comes next. */
  #bulkEnd = -1;
  /** No line end lies before this one: where the search for it goes on. */
  #searched = 0;
  /** Where the header ends that `#readLength` has read. */
  #headerEnd = 0;

  /** Bytes received and not yet handed out. */
  get pendingBytes(): number {
    return this.#end - this.#start;
  }

  /** Bytes of memory that the guard holds. */
  get heldBytes(): number {
    return this.#borrowed ? 0 : this.bytes.length;
  }

  /** Takes `source[0, length)`. The source is only borrowed: call `settle` before it is written to again. */
  attach(source: Buffer, length: number): void {
    if (this.#start === this.#end) {
      this.bytes = source;
      this.#borrowed = true;
      this.#moveTo(0, this.#start);
      this.#end = length;
    } else {
      this.#settleWithRoomFor(length);
      source.copy(this.bytes, this.#end, 0, length);
      this.#end += length;
    }
  }

  /** Copies what is left of a borrowed buffer, and lets an empty one go. */
  settle(): void {
    if (this.#start === this.#end) {
      this.bytes = NO_BYTES;
      this.#borrowed = false;
      this.#moveTo(0, this.#start);
      this.#end = 0;
    } else if (this.#borrowed) {
      this.#settleWithRoomFor(0);
    }
  }

  /** Forgets everything: the connection runs no further command. */
  clear(): void {
    this.#consumeTo(this.#end);
    this.#bulksLeft = 0;
    this.#bulkEnd = -1;
    this.settle();
  }

  /**
   * Finds the next whole requests, at most `framesMax` of them. Frames and inline commands come in the order in which they were sent;
   * a bad one comes after the good ones before it.
   */
  next(limits: FrameLimits, framesMax: number): Found {
    this.framesStart = this.#start;
    this.framesCount = 0;
    while (this.framesCount < framesMax) {
      if (this.#bulksLeft === 0) {
        if (this.#position === this.#end) break;
        if (this.bytes[this.#position] !== ASTERISK) {
          if (this.framesCount > 0) break;
          const found = this.#nextLine();
          if (found === null) continue;
          return found;
        }
        const found = this.#openFrame(limits);
        if (found === "more") break;
        if (found === "broken") return this.framesCount > 0 ? "frames" : found;
        if (found === "nothing") {
          // `*0` and `*-1`: Redis passes over them without a word, and so do we.
          if (this.framesCount > 0) break;
          this.#consumeTo(this.#headerEnd);
          this.framesStart = this.#start;
          continue;
        }
      }
      const found = this.#walkBulks(limits);
      if (found === "more") break;
      if (found === "broken") return this.framesCount > 0 ? "frames" : found;
      this.framesCount++;
      this.#start = this.#position;
    }
    if (this.framesCount === 0) return "more";
    this.framesEnd = this.#start;
    return "frames";
  }

  /** Reads `*n` at the walk's position. */
  #openFrame(limits: FrameLimits): "opened" | "nothing" | "more" | "broken" {
    const length = this.#readLength(this.#position);
    if (length > 0) {
      if (length > limits.argumentsMax) return this.#break(argumentsErrorOf(length, limits));
      this.#frameStart = this.#position;
      this.#position = this.#headerEnd;
      this.#bulksLeft = length;
      return "opened";
    }
    if (length === INCOMPLETE) return "more";
    if (length === 0 || length === NEGATIVE) return "nothing";
    return this.#break(length === ENDLESS ? "too big mbulk count string" : "invalid multibulk length");
  }

  /** Walks over the bulks of the open frame as far as they are there. */
  #walkBulks(limits: FrameLimits): "whole" | "more" | "broken" {
    const bytes = this.bytes;
    const end = this.#end;
    while (this.#bulksLeft > 0) {
      if (this.#bulkEnd < 0) {
        if (this.#position === end) return "more";
        const type = bytes[this.#position] as number;
        if (type !== DOLLAR) return this.#break(`expected '$', got '${printable(type)}'`);
        const length = this.#readLength(this.#position);
        if (length < 0) {
          if (length === INCOMPLETE) return "more";
          return this.#break(length === ENDLESS ? "too big bulk count string" : "invalid bulk length");
        }
        const bulkEnd = this.#headerEnd + length + 2;
        if (length > limits.bulkBytesMax || bulkEnd - this.#frameStart > limits.frameBytesMax) {
          return this.#break(limits.bulkError);
        }
        this.#position = this.#headerEnd;
        this.#bulkEnd = bulkEnd;
      }
      const bulkEnd = this.#bulkEnd;
      if (bulkEnd > end) return "more";
      if (bytes[bulkEnd - 2] !== CR || bytes[bulkEnd - 1] !== LF) return this.#break("expected CRLF after a bulk");
      this.#position = bulkEnd;
      this.#bulkEnd = -1;
      this.#bulksLeft--;
    }
    return "whole";
  }

  /**
   * Reads the number of the header at `offset`, behind its type byte, up to CR LF, and sets `#headerEnd`. Or NEGATIVE (with
   * `#headerEnd`), INCOMPLETE, INVALID, ENDLESS.
   */
  #readLength(offset: number): number {
    const bytes = this.bytes;
    const end = this.#end;
    const digitsEnd = Math.min(end, offset + 1 + FAST_DIGITS_MAX);
    let at = offset + 1;
    let value = 0;
    while (at < digitsEnd) {
      const digit = (bytes[at] as number) ^ ZERO;
      if (digit > 9) break;
      value = value * 10 + digit;
      at++;
    }
    const digits = at - offset - 1;
    if (
      at + 1 < end &&
      bytes[at] === CR &&
      bytes[at + 1] === LF &&
      (digits === 1 || (digits > 1 && bytes[offset + 1] !== ZERO))
    ) {
      this.#headerEnd = at + 2;
      return value;
    }
    return this.#readUnusualLength(offset);
  }

  /** Whatever is not a plain short number with its line end. */
  #readUnusualLength(offset: number): number {
    const lineEnd = this.#findByte(CR, offset + 1);
    if (lineEnd < 0) return this.#end - offset > INLINE_BYTES_MAX ? ENDLESS : INCOMPLETE;
    if (lineEnd + 1 === this.#end) return INCOMPLETE;
    if (this.bytes[lineEnd + 1] !== LF) return INVALID;
    const text = this.bytes.toString("latin1", offset + 1, lineEnd);
    if (!NUMBER.test(text)) return INVALID;
    this.#headerEnd = lineEnd + 2;
    return text.startsWith("-") ? NEGATIVE : Number(text);
  }

  /** An inline command. null: the line was empty and is behind us. */
  #nextLine(): Found | null {
    const lineStart = this.#position;
    const lineFeed = this.#findByte(LF, lineStart);
    const lineBytes = (lineFeed < 0 ? this.#end : lineFeed) - lineStart;
    if (lineBytes > INLINE_BYTES_MAX) return this.#break("too big inline request");
    if (lineFeed < 0) return "more";
    const lineEnd = lineFeed > lineStart && this.bytes[lineFeed - 1] === CR ? lineFeed - 1 : lineFeed;
    const words = splitInline(this.bytes.toString("latin1", lineStart, lineEnd));
    this.#consumeTo(lineFeed + 1);
    if (words === null) return this.#break("unbalanced quotes in request");
    if (words.length === 0) {
      this.framesStart = this.#start;
      return null;
    }
    this.inlineArguments = words;
    return "inline";
  }

  /** The first `byte` from `from` on, or -1; what was searched once is not searched again. */
  #findByte(byte: number, from: number): number {
    const bytes = this.bytes;
    const end = this.#end;
    for (let at = Math.max(from, this.#searched); at < end; at++) {
      if (bytes[at] === byte) return at;
    }
    this.#searched = end;
    return -1;
  }

  #consumeTo(offset: number): void {
    this.#start = offset;
    this.#position = offset;
  }

  #break(errorText: string): "broken" {
    this.errorText = errorText;
    if (this.framesCount > 0) this.framesEnd = this.#start;
    return "broken";
  }

  /** Makes the bytes the guard's own, with room for `length` more behind them. */
  #settleWithRoomFor(length: number): void {
    const live = this.#end - this.#start;
    const needed = live + length;
    if (!this.#borrowed && this.#end + length <= this.bytes.length) return;
    if (!this.#borrowed && needed <= this.bytes.length) {
      this.bytes.copyWithin(0, this.#start, this.#end);
    } else {
      // Doubling keeps the copies of a long request linear; `needed` keeps a short one small.
      const capacity = Math.max(
        OWN_BYTES_MIN,
        needed,
        this.#borrowed ? 0 : Math.min(live * 2, needed + FRAME_BYTES_MAX),
      );
      const own = Buffer.allocUnsafe(capacity);
      this.bytes.copy(own, 0, this.#start, this.#end);
      this.bytes = own;
      this.#borrowed = false;
    }
    this.#moveTo(0, this.#start);
    this.#end = live;
  }

  /** The byte at `oldStart` is now at `newStart`: every offset moves with it. */
  #moveTo(newStart: number, oldStart: number): void {
    const shift = newStart - oldStart;
    if (shift === 0) return;
    this.#start += shift;
    this.#position += shift;
    this.#frameStart += shift;
    if (this.#bulkEnd >= 0) this.#bulkEnd += shift;
    this.#searched = Math.max(0, this.#searched + shift);
  }
}

/** Beyond what any client may send it is a bad number, whoever sends it. */
const argumentsErrorOf = (length: number, limits: FrameLimits): string =>
  length > ARGUMENTS_MAX ? "invalid multibulk length" : limits.argumentsError;

/** One byte as Redis shows it in an error line: CR and LF would end the line. */
const printable = (byte: number): string => (byte === CR || byte === LF ? " " : String.fromCharCode(byte));
