/**
 * The generator behind Redis's `math.random`: 48 bits, X' = a X + c mod 2^48, the upper 31 bits are the result. The numbers after
 * `math.randomseed(n)` are those of Redis. Without it, each draw goes on where the last script stopped, as in Redis 7; but a seed
 * that a script sets is for that run only: it cannot make the draws of other scripts predictable.
 *
 * The state is three limbs of 16 bits; every product below stays far under 2^53.
 */
const MULTIPLIER = [0xe66d, 0xdeec, 0x5] as const;
const INCREMENT = 0xb;
const LOW_LIMB_OF_A_SEED = 0x330e;
const LIMB = 0x10000;

/** Results are taken modulo this, so that the share of it that `unit` returns is below 1. */
const RANGE = 0x7fffffff;

type Limbs = [low: number, middle: number, high: number];

const seeded = (seed: number): Limbs => [LOW_LIMB_OF_A_SEED, (seed >>> 0) % LIMB, Math.floor((seed >>> 0) / LIMB)];

export class ScriptRandom {
  readonly #shared: Limbs;
  #limbs: Limbs;

  /** `seed` is taken as a 32-bit integer. */
  constructor(seed: number) {
    this.#shared = seeded(seed);
    this.#limbs = this.#shared;
  }

  /** For the rest of this run. */
  seed(seed: number): void {
    this.#limbs = seeded(seed);
  }

  endRun(): void {
    this.#limbs = this.#shared;
  }

  /** The next number from 0 to below 1. */
  unit(): number {
    const [a0, a1, a2] = MULTIPLIER;
    const [x0, x1, x2] = this.#limbs;
    const low = a0 * x0 + INCREMENT;
    const middle = Math.floor(low / LIMB) + a0 * x1 + a1 * x0;
    const high = (Math.floor(middle / LIMB) + a0 * x2 + a1 * x1 + a2 * x0) % LIMB;
    this.#limbs[0] = low % LIMB;
    this.#limbs[1] = middle % LIMB;
    this.#limbs[2] = high;
    return ((high * 0x8000 + (this.#limbs[1] >> 1)) % RANGE) / RANGE;
  }
}
