/**
 * The generator behind Redis's `math.random`: 48 bits, X' = a X + c mod 2^48, the upper 31 bits are the result. Each run starts
 * from the same seed, so a script draws the same numbers each time, on every machine, as it does on Redis.
 *
 * The state is three limbs of 16 bits; every product below stays far under 2^53.
 */
const MULTIPLIER = [0xe66d, 0xdeec, 0x5] as const;
const INCREMENT = 0xb;
const LOW_LIMB_OF_A_SEED = 0x330e;
const LIMB = 0x10000;

/** Results are taken modulo this, so that the share of it that `unit` returns is below 1. */
const RANGE = 0x7fffffff;

export class ScriptRandom {
  #low = LOW_LIMB_OF_A_SEED;
  #middle = 0;
  #high = 0;

  /** Starts over. `seed` is taken as a 32-bit integer. */
  seed(seed: number): void {
    const bits = seed >>> 0;
    this.#low = LOW_LIMB_OF_A_SEED;
    this.#middle = bits % LIMB;
    this.#high = Math.floor(bits / LIMB);
  }

  /** The next number from 0 to below 1. */
  unit(): number {
    const [a0, a1, a2] = MULTIPLIER;
    const low = a0 * this.#low + INCREMENT;
    const middle = Math.floor(low / LIMB) + a0 * this.#middle + a1 * this.#low;
    const high = Math.floor(middle / LIMB) + a0 * this.#high + a1 * this.#middle + a2 * this.#low;
    this.#low = low % LIMB;
    this.#middle = middle % LIMB;
    this.#high = high % LIMB;
    return ((this.#high * 0x8000 + (this.#middle >> 1)) % RANGE) / RANGE;
  }
}
