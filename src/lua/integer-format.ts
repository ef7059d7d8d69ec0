import type { ByteString } from "../engine/reply.js";

/**
 * The integer conversions of `string.format` with 64 bits, as Lua has them on a 64-bit machine. The interpreter is a 32-bit
 * program: its own `%d` shows 1700000000000 milliseconds as -2147483648.
 */

/** What Lua accepts: at most five flags, two digits of width and of precision. The rest is left to its error messages. */
const CONVERSION = /^([-+ #0]{0,5})(\d{0,2})(?:\.(\d{0,2}))?([diouxX])$/;

const WIDTH_64 = 64;
const MIN_64 = -(2n ** 63n);

/** A double as C converts it to a 64-bit integer on x86. */
function toInteger64(value: number): bigint {
  if (!(value >= -(2 ** 63) && value < 2 ** 63)) return MIN_64;
  return BigInt(Math.trunc(value));
}

/** And to an unsigned one: from 2^63 on, its upper half is converted apart. */
function toUnsigned64(value: number): bigint {
  if (!(value >= 2 ** 63)) return BigInt.asUintN(WIDTH_64, toInteger64(value));
  return BigInt.asUintN(WIDTH_64, toInteger64(value - 2 ** 63) + 2n ** 63n);
}

/**
 * `value` printed by one conversion specification, given without its percent sign: `5d`, `-08.3X`. Null when that is no integer
 * conversion.
 */
export function formatInteger(specification: ByteString, value: number): ByteString | null {
  const match = CONVERSION.exec(specification);
  if (match === null) return null;
  const [, flags = "", widthText = "", precisionText, conversion] = match;
  const isSigned = conversion === "d" || conversion === "i";
  const integer = isSigned ? toInteger64(value) : toUnsigned64(value);
  const magnitude = integer < 0n ? -integer : integer;
  const digits = digitsOf(magnitude, conversion as string, precisionText === undefined ? null : Number(precisionText));
  const prefix = isSigned ? signOf(integer, flags) : prefixOf(magnitude, digits, conversion as string, flags);
  return padded(prefix, digits, Number(widthText), flags, precisionText !== undefined);
}

function digitsOf(magnitude: bigint, conversion: string, precision: number | null): string {
  const base = conversion === "o" ? 8 : conversion === "x" || conversion === "X" ? 16 : 10;
  if (precision === 0 && magnitude === 0n) return "";
  const text = magnitude.toString(base).padStart(precision ?? 1, "0");
  return conversion === "X" ? text.toUpperCase() : text;
}

function signOf(integer: bigint, flags: string): string {
  if (integer < 0n) return "-";
  if (flags.includes("+")) return "+";
  return flags.includes(" ") ? " " : "";
}

function prefixOf(magnitude: bigint, digits: string, conversion: string, flags: string): string {
  if (!flags.includes("#")) return "";
  if (conversion === "o") return digits.startsWith("0") ? "" : "0";
  if (magnitude === 0n || conversion === "u") return "";
  return `0${conversion}`;
}

function padded(prefix: string, digits: string, width: number, flags: string, hasPrecision: boolean): string {
  if (flags.includes("-")) return (prefix + digits).padEnd(width, " ");
  if (flags.includes("0") && !hasPrecision) return prefix + digits.padStart(width - prefix.length, "0");
  return (prefix + digits).padStart(width, " ");
}
