import type { ByteString } from "./reply.js";

/** Decimal numbers as text, added without an error: what INCRBYFLOAT keeps in a key. */

/** Digits behind the point that Redis shows. */
const FRACTION_DIGITS_MAX = 17;

/** Powers of ten beyond which Redis's 80-bit numbers end. */
const EXPONENT_MAX = 4932;

/** No number that anybody means is longer; the work is bounded by it. */
const TEXT_CHARACTERS_MAX = 400;

/** Beyond what Redis can count to. */
export const INFINITE = Symbol("infinite");

/** `digits * 10 ** -scale`. */
interface Decimal {
  readonly digits: bigint;
  readonly scale: number;
}

/** The sum as text without an exponent, at most 17 digits behind the point; null when one is no number. */
export function decimalSum(left: ByteString, right: ByteString): ByteString | typeof INFINITE | null {
  const a = parse(left);
  const b = parse(right);
  if (a === null || b === null) return null;
  if (a === INFINITE || b === INFINITE) return INFINITE;
  const scale = Math.max(a.scale, b.scale);
  return format(a.digits * 10n ** BigInt(scale - a.scale) + b.digits * 10n ** BigInt(scale - b.scale), scale);
}

function parse(text: ByteString): Decimal | typeof INFINITE | null {
  if (text.length > TEXT_CHARACTERS_MAX) return null;
  if (/^[+-]?inf(?:inity)?$/i.test(text)) return INFINITE;
  const match = /^([+-]?)([0-9]*)(?:\.([0-9]*))?(?:e([+-]?[0-9]{1,5}))?$/i.exec(text);
  if (match === null) return null;
  const [, sign, whole = "", fraction = "", exponentText = "0"] = match;
  if (whole === "" && fraction === "") return null;
  const exponent = Number(exponentText);
  if (Math.abs(exponent) > EXPONENT_MAX) return null;
  const digits = BigInt(whole + fraction) * (sign === "-" ? -1n : 1n);
  const scale = fraction.length - exponent;
  return scale >= 0 ? { digits, scale } : { digits: digits * 10n ** BigInt(-scale), scale: 0 };
}

function format(digits: bigint, scale: number): ByteString | typeof INFINITE {
  const rounded =
    scale > FRACTION_DIGITS_MAX ? divideRounded(digits, 10n ** BigInt(scale - FRACTION_DIGITS_MAX)) : digits;
  const shownScale = Math.min(scale, FRACTION_DIGITS_MAX);
  const isNegative = rounded < 0n;
  const text = String(isNegative ? -rounded : rounded).padStart(shownScale + 1, "0");
  const whole = text.slice(0, text.length - shownScale);
  if (whole.length > EXPONENT_MAX) return INFINITE;
  const fraction = text.slice(text.length - shownScale).replace(/0+$/, "");
  return `${isNegative ? "-" : ""}${whole}${fraction === "" ? "" : `.${fraction}`}`;
}

/** To the nearest, ties away from zero. */
function divideRounded(dividend: bigint, divisor: bigint): bigint {
  const half = divisor / 2n;
  return (dividend < 0n ? dividend - half : dividend + half) / divisor;
}
