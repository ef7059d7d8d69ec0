/**
 * What a command answers, before anyone knows which RESP version will carry it.
 *
 * The common replies are plain JavaScript values, so that a keep-alive allocates nothing for its answer:
 *
 *   number          integer reply (a safe integer)
 *   bigint          integer reply of 64 bits that is no safe integer; only scripts make those
 *   ByteString      bulk string
 *   null            nil
 *   Reply[]         array
 *
 * and the rest are small classes below. The encoder (`src/resp/encoder.ts`) is the only place that turns them into bytes.
 *
 * Invariants:
 *  - a reply is immutable once returned; it may be parked for as long as a sync takes
 *  - every string in it is a ByteString, never text with characters above 0xFF
 */

/**
 * Bytes in a JavaScript string: every character code is 0..255 and stands for one byte ("latin1"). Keys, values and lease
 * ids are binary-safe, and V8 keeps such strings at one byte a character, compares and hashes them quickly and lets them be
 * Map keys; Buffers do none of that.
 */
export type ByteString = string;

/** `+OK`: a status reply. */
export class StatusReply {
  readonly text: ByteString;
  constructor(text: ByteString) {
    this.text = text;
  }
}

/** An error reply. `text` starts with the code in capitals, e.g. `NOLEASE ...`; see `errors.ts` for all of them. */
export class ErrorReply {
  readonly text: ByteString;
  constructor(text: ByteString) {
    this.text = text;
  }
}

/** Field and value pairs in order: a map in RESP3, a flat array in RESP2. */
export class MapReply {
  readonly pairs: readonly (readonly [Reply, Reply])[];
  constructor(pairs: readonly (readonly [Reply, Reply])[]) {
    this.pairs = pairs;
  }
}

/** An unordered set (RESP3 `~`), a plain array in RESP2. */
export class SetReply {
  readonly items: readonly Reply[];
  constructor(items: readonly Reply[]) {
    this.items = items;
  }
}

/** Text for people (RESP3 `=...:txt:`), a bulk string in RESP2. INFO answers with it. */
export class VerbatimReply {
  readonly text: ByteString;
  /** Three bytes that tell a client how to show it: `txt` or `mkd`. */
  readonly format: ByteString;
  constructor(text: ByteString, format: ByteString = "txt") {
    this.text = text;
    this.format = format;
  }
}

/** `#t` and `#f` in RESP3, 1 and 0 in RESP2. */
export class BooleanReply {
  readonly value: boolean;
  constructor(value: boolean) {
    this.value = value;
  }
}

/** A floating-point number (RESP3 `,`), a bulk string with 17 significant digits in RESP2. */
export class DoubleReply {
  readonly value: number;
  constructor(value: number) {
    this.value = value;
  }
}

/** An integer of any length (RESP3 `(`), a bulk string in RESP2. Whoever makes it vouches for its digits. */
export class BigNumberReply {
  readonly digits: ByteString;
  constructor(digits: ByteString) {
    this.digits = digits;
  }
}

/** `*-1` in RESP2, `_` in RESP3: the null that Redis answers where an array was expected. */
export class NullArrayReply {
  /** Tells this class from every other shape, for the compiler. */
  readonly isNullArray = true;
}

/** Out-of-band data (RESP3 `>`), an array in RESP2: pub/sub messages. */
export class PushReply {
  readonly items: readonly Reply[];
  constructor(items: readonly Reply[]) {
    this.items = items;
  }
}

export type Reply =
  | number
  | bigint
  | ByteString
  | null
  | readonly Reply[]
  | StatusReply
  | ErrorReply
  | MapReply
  | SetReply
  | VerbatimReply
  | BooleanReply
  | DoubleReply
  | BigNumberReply
  | NullArrayReply
  | PushReply;

export const OK = new StatusReply("OK");
export const NULL_ARRAY = new NullArrayReply();
