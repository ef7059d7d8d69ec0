import type { LuaState } from "./lua-api.js";
import type { CFunction } from "./lua-instance.js";
import { raiseHere, type Machine } from "./machine.js";

/**
 * The `bit` library of Redis: 32-bit operations, results signed. JavaScript's operators do the work; the only thing of our own
 * is how a Lua number becomes 32 bits: modulo 2^32, and a fraction is rounded to the nearest even integer.
 */

/** Adding 2^52 + 2^51 leaves the rounded integer in the low half of the double's bits. */
const ROUNDER = 6_755_399_441_055_744;
const double = new Float64Array(1);
const halves = new Int32Array(double.buffer);

function toBits(value: number): number {
  double[0] = value + ROUNDER;
  return halves[0] as number;
}

const SHIFT_MASK = 31;
const HEX_DIGITS_MAX = 8;

const rotatedLeft = (bits: number, by: number): number => (by === 0 ? bits : (bits << by) | (bits >>> (32 - by)));

const bytesSwapped = (bits: number): number =>
  (bits << 24) | ((bits & 0xff00) << 8) | ((bits >>> 8) & 0xff00) | (bits >>> 24);

/** Its functions by name. */
export function bitLibrary(machine: Machine): Record<string, CFunction> {
  const { api } = machine;
  const bitsAt = (state: LuaState, argument: number): number => toBits(api.luaL_checknumber(state, argument));
  const push = (state: LuaState, bits: number): number => {
    api.lua_pushnumber(state, bits | 0);
    return 1;
  };
  const unary =
    (operation: (bits: number) => number): CFunction =>
    (state) =>
      push(state, operation(bitsAt(state, 1)));
  const shift =
    (operation: (bits: number, by: number) => number): CFunction =>
    (state) => {
      const bits = bitsAt(state, 1);
      return push(state, operation(bits, bitsAt(state, 2) & SHIFT_MASK));
    };
  const variadic =
    (operation: (left: number, right: number) => number): CFunction =>
    (state) => {
      let bits = bitsAt(state, 1);
      for (let argument = api.lua_gettop(state); argument > 1; argument--) {
        bits = operation(bits, bitsAt(state, argument));
      }
      return push(state, bits);
    };
  return {
    tobit: unary((bits) => bits),
    bnot: unary((bits) => ~bits),
    bswap: unary(bytesSwapped),
    band: variadic((left, right) => left & right),
    bor: variadic((left, right) => left | right),
    bxor: variadic((left, right) => left ^ right),
    lshift: shift((bits, by) => bits << by),
    rshift: shift((bits, by) => bits >>> by),
    arshift: shift((bits, by) => bits >> by),
    rol: shift(rotatedLeft),
    ror: shift((bits, by) => rotatedLeft(bits, (32 - by) & SHIFT_MASK)),
    tohex: (state) => {
      const bits = bitsAt(state, 1);
      const given = api.lua_type(state, 2) <= 0 ? HEX_DIGITS_MAX : bitsAt(state, 2);
      const digits = Math.min(Math.abs(given), HEX_DIGITS_MAX);
      const text = (bits >>> 0)
        .toString(16)
        .padStart(HEX_DIGITS_MAX, "0")
        .slice(HEX_DIGITS_MAX - digits);
      machine.instance.pushString(state, given < 0 ? text.toUpperCase() : text);
      return 1;
    },
  };
}

/** `math.random` and `math.randomseed` as Redis has them. */
export function randomFunctions(machine: Machine): Record<string, CFunction> {
  const { api, random, instance } = machine;
  const EMPTY = instance.name("interval is empty");
  const integerAt = (state: LuaState, argument: number): number =>
    Math.trunc(api.luaL_checknumber(state, argument)) | 0;
  return {
    random: (state) => {
      const share = random.unit();
      const count = api.lua_gettop(state);
      if (count === 0) {
        api.lua_pushnumber(state, share);
        return 1;
      }
      if (count > 2) return raiseHere(machine, state, "wrong number of arguments");
      const lower = count === 1 ? 1 : integerAt(state, 1);
      const upper = integerAt(state, count);
      if (lower > upper) return api.luaL_argerror(state, count, EMPTY);
      api.lua_pushnumber(state, Math.floor(share * (upper - lower + 1)) + lower);
      return 1;
    },
    randomseed: (state) => {
      random.seed(integerAt(state, 1));
      return 0;
    },
  };
}
