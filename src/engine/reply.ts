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

/** A floating-point number (RESP3 `,`), a bulk string in RESP2; both with 17 significant digits (`doubleText`). */
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

const SIGNIFICANT_DIGITS = 17;

/**
 * A number as C prints it with `%.17g`: 17 significant digits, no trailing zeros, an exponent of at least two digits below 1e-4
 * and from 1e17 on. That is how Redis turns doubles into text.
 */
export function doubleText(value: number): ByteString {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (value === 0) return Object.is(value, -0) ? "-0" : "0";
  const [mantissa, exponentText] = roundedToEven(Math.abs(value)).split("e") as [string, string];
  const sign = value < 0 ? "-" : "";
  const digits = mantissa.replace(".", "").replace(/0+$/, "");
  const exponent = Number(exponentText);
  if (exponent < -4 || exponent >= SIGNIFICANT_DIGITS) {
    const fraction = digits.length > 1 ? `.${digits.slice(1)}` : "";
    const power = String(Math.abs(exponent)).padStart(2, "0");
    return `${sign}${digits[0] ?? ""}${fraction}e${exponent < 0 ? "-" : "+"}${power}`;
  }
  if (exponent < 0) return `${sign}0.${"0".repeat(-exponent - 1)}${digits}`;
  const whole = digits.slice(0, exponent + 1).padEnd(exponent + 1, "0");
  const fraction = digits.slice(exponent + 1);
  return fraction === "" ? sign + whole : `${sign}${whole}.${fraction}`;
}

/** `toExponential` rounds a tie up; C rounds it to the even digit. */
function roundedToEven(value: number): string {
  const rounded = value.toExponential(SIGNIFICANT_DIGITS - 1);
  // oxlint-disable-next-line oxc/number-arg-out-of-range -- up to 100 digits since ES2018
  const [exact, exponent] = value.toExponential(100).split("e") as [string, string];
  const kept = exact.slice(0, SIGNIFICANT_DIGITS + 1);
  const isTie = /^50*$/.test(exact.slice(SIGNIFICANT_DIGITS + 1));
  return isTie && Number(kept.at(-1)) % 2 === 0 ? `${kept}e${exponent}` : rounded;
}
