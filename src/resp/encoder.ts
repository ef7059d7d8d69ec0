import { invariant, unreachable } from "../engine/invariant.js";
import {
  BigNumberReply,
  BooleanReply,
  doubleText,
  DoubleReply,
  ErrorReply,
  MapReply,
  NullArrayReply,
  PushReply,
  SetReply,
  StatusReply,
  VerbatimReply,
  type ByteString,
  type Reply,
} from "../engine/reply.js";
import type { PreparedMessage, ProtocolVersion } from "./command.js";
import { REPLY_BYTES_MAX } from "./wire-limits.js";

/**
 * Reply -> bytes, as a byte string: RESP2 and RESP3. The only place of the server that knows how replies look on the wire.
 *
 * Invariants:
 *  1. one reply in, one reply on the wire: CR and LF in a status or error line become blanks, so that no text can end it early
 *  2. integers are safe integers: anything else is a programmer error
 *  3. nesting costs no stack: lists are walked with a stack of their own
 *
 * The common replies (an integer, a short string, OK, nil) allocate nothing but their string, and often not even that: integers
 * are remembered, because keep-alives of one client all answer the same TTL.
 */

const NIL_2 = "$-1\r\n";
const NIL_ARRAY_2 = "*-1\r\n";
const NIL_3 = "_\r\n";

/** `$5\r\n` for every length that ids, tokens and names have. */
const BULK_HEADERS: readonly string[] = Array.from({ length: 1024 }, (_, length) => `$${length}\r\n`);

/** A power of two: an integer is remembered at its lowest bits. */
const INTEGERS_REMEMBERED = 1024;
const rememberedIntegers = new Float64Array(INTEGERS_REMEMBERED).fill(Number.NaN);
const rememberedIntegerReplies: ByteString[] = Array.from({ length: INTEGERS_REMEMBERED }, () => "");

/** `:n\r\n`. */
function encodeInteger(value: number): ByteString {
  const slot = value & (INTEGERS_REMEMBERED - 1);
  if (rememberedIntegers[slot] === value) return rememberedIntegerReplies[slot] as ByteString;
  invariant(Number.isSafeInteger(value), "integer replies are safe integers");
  const text = `:${value}\r\n`;
  rememberedIntegers[slot] = value;
  rememberedIntegerReplies[slot] = text;
  return text;
}

function encodeBulk(value: ByteString): ByteString {
  const header = BULK_HEADERS[value.length] ?? `$${value.length}\r\n`;
  return `${header}${value}\r\n`;
}

/** The whole reply as it goes to the wire. One that exceeds REPLY_BYTES_MAX is replaced by an error that says so. */
export function encodeReply(reply: Reply, protocol: ProtocolVersion): ByteString {
  if (typeof reply === "number") return encodeInteger(reply);
  if (typeof reply === "string") return encodeBulk(reply);
  const simple = encodeSimple(reply, protocol);
  return simple ?? encodeList(reply as ListReply, protocol);
}

type ListReply = readonly Reply[] | MapReply | SetReply | PushReply;

/** Everything but lists: null for those. */
function encodeSimple(reply: Reply, protocol: ProtocolVersion): ByteString | null {
  if (typeof reply === "number") return encodeInteger(reply);
  if (typeof reply === "string") return encodeBulk(reply);
  if (reply === null) return protocol === 2 ? NIL_2 : NIL_3;
  if (reply instanceof StatusReply) return `+${oneLine(reply.text)}\r\n`;
  if (reply instanceof ErrorReply) return `-${oneLine(reply.text)}\r\n`;
  if (reply instanceof NullArrayReply) return protocol === 2 ? NIL_ARRAY_2 : NIL_3;
  if (reply instanceof VerbatimReply) {
    return protocol === 2 ? encodeBulk(reply.text) : `=${reply.text.length + 4}\r\n${reply.format}:${reply.text}\r\n`;
  }
  return encodeScriptOnly(reply, protocol);
}

/** Forms that only a script makes: null for everything else. */
function encodeScriptOnly(reply: Reply, protocol: ProtocolVersion): ByteString | null {
  if (typeof reply === "bigint") return `:${reply}\r\n`;
  if (reply instanceof BooleanReply) {
    if (protocol === 2) return reply.value ? ":1\r\n" : ":0\r\n";
    return reply.value ? "#t\r\n" : "#f\r\n";
  }
  if (reply instanceof DoubleReply) {
    const text = doubleText(reply.value);
    return protocol === 2 ? encodeBulk(text) : `,${text}\r\n`;
  }
  if (reply instanceof BigNumberReply) {
    return protocol === 2 ? encodeBulk(reply.digits) : `(${oneLine(reply.digits)}\r\n`;
  }
  return null;
}

// oxlint-disable-next-line no-control-regex -- exactly the characters that would end the line
const LINE_ENDS = /[\r\n]/;
const ALL_LINE_ENDS = /[\r\n]/g;
const oneLine = (text: ByteString): ByteString => (LINE_ENDS.test(text) ? text.replace(ALL_LINE_ENDS, " ") : text);

/** One list that the walk is in. */
interface OpenList {
  readonly items: readonly Reply[];
  next: number;
}

function encodeList(reply: ListReply, protocol: ProtocolVersion): ByteString {
  const text = new TextBuilder();
  const open: OpenList[] = [openList(reply, protocol, text)];
  for (;;) {
    const list = open.at(-1);
    if (list === undefined) return text.finish();
    if (list.next === list.items.length) {
      open.pop();
      continue;
    }
    const item = list.items[list.next++] as Reply;
    const simple = encodeSimple(item, protocol);
    if (simple !== null) text.append(simple);
    else open.push(openList(item as ListReply, protocol, text));
    if (text.bytes > REPLY_BYTES_MAX) return encodeSimple(TOO_LARGE, protocol) as ByteString;
  }
}

const TOO_LARGE = new ErrorReply(`ERR the reply is longer than ${REPLY_BYTES_MAX} bytes`);

/** Writes the head of a list and says what is in it. */
function openList(list: ListReply, protocol: ProtocolVersion, text: TextBuilder): OpenList {
  const isResp2 = protocol === 2;
  if (list instanceof MapReply) {
    text.append(isResp2 ? `*${list.pairs.length * 2}\r\n` : `%${list.pairs.length}\r\n`);
    return { items: list.pairs.flat(), next: 0 };
  }
  if (list instanceof SetReply) {
    text.append(isResp2 ? `*${list.items.length}\r\n` : `~${list.items.length}\r\n`);
    return { items: list.items, next: 0 };
  }
  if (list instanceof PushReply) {
    text.append(isResp2 ? `*${list.items.length}\r\n` : `>${list.items.length}\r\n`);
    return { items: list.items, next: 0 };
  }
  if (Array.isArray(list)) {
    text.append(`*${list.length}\r\n`);
    return { items: list as readonly Reply[], next: 0 };
  }
  return unreachable(list as never);
}

/** Appended strings stay a tree until somebody reads them; beyond this size the tree costs more than copying it flat. */
const FLATTEN_BYTES = 32_768;

/** Collects a long text without keeping a million little strings alive: flattened every few kilobytes. */
class TextBuilder {
  bytes = 0;
  #tail = "";
  readonly #parts: ByteString[] = [];

  append(text: ByteString): void {
    this.bytes += text.length;
    if (text.length >= FLATTEN_BYTES) {
      this.#parts.push(this.#tail, text);
      this.#tail = "";
      return;
    }
    this.#tail += text;
    if (this.#tail.length >= FLATTEN_BYTES) {
      this.#parts.push(flattened(this.#tail));
      this.#tail = "";
    }
  }

  finish(): ByteString {
    if (this.#parts.length === 0) return this.#tail;
    this.#parts.push(this.#tail);
    return this.#parts.join("");
  }
}

const flattened = (text: ByteString): ByteString => Buffer.from(text, "latin1").toString("latin1");

/** A message for many connections: each RESP version is encoded when the first connection of that version takes it. */
export class EncodedOnce implements PreparedMessage {
  readonly #reply: Reply;
  #resp2: ByteString | null = null;
  #resp3: ByteString | null = null;

  constructor(reply: Reply) {
    this.#reply = reply;
  }

  encoded(protocol: ProtocolVersion): ByteString {
    if (protocol === 2) return (this.#resp2 ??= encodeReply(this.#reply, 2));
    return (this.#resp3 ??= encodeReply(this.#reply, 3));
  }
}
