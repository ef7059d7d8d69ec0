/**
 * The one source of randomness of a simulation: sfc32, seeded by a number. The same seed gives the same numbers on every machine.
 */
export class Random {
  #a: number;
  #b: number;
  #c: number;
  #counter = 1;

  /** `seed`: any safe integer. */
  constructor(seed: number) {
    this.#a = seed | 0;
    this.#b = Math.floor(seed / 2 ** 32) | 0;
    this.#c = 0x9e37_79b9;
    for (let round = 0; round < 16; round += 1) this.#next();
  }

  /** 0 <= fraction < 1. */
  fraction(): number {
    return this.#next() / 2 ** 32;
  }

  /** A whole number from `low` to `high`, both included. */
  integer(low: number, high: number): number {
    return low + Math.floor(this.fraction() * (high - low + 1));
  }

  /** low <= number < high. */
  between(low: number, high: number): number {
    return low + this.fraction() * (high - low);
  }

  chance(probability: number): boolean {
    return this.fraction() < probability;
  }

  /** Exponentially distributed around `mean`: mostly small, now and then several times as large. */
  exponential(mean: number): number {
    return -Math.log(1 - this.fraction()) * mean;
  }

  pick<T>(items: readonly T[]): T {
    const item = items[this.integer(0, items.length - 1)];
    if (item === undefined) throw new RangeError("nothing to pick from");
    return item;
  }

  /** Picks a name with the probability that its weight gives it; weights are not negative and not all 0. */
  weighted<Name extends string>(weights: ReadonlyMap<Name, number>): Name {
    let sum = 0;
    for (const weight of weights.values()) sum += weight;
    let rest = this.fraction() * sum;
    for (const [name, weight] of weights) {
      rest -= weight;
      if (rest < 0 && weight > 0) return name;
    }
    throw new RangeError("nothing to pick from");
  }

  #next(): number {
    const sum = (((this.#a + this.#b) | 0) + this.#counter) | 0;
    this.#counter = (this.#counter + 1) | 0;
    this.#a = this.#b ^ (this.#b >>> 9);
    this.#b = (this.#c + (this.#c << 3)) | 0;
    this.#c = (this.#c << 21) | (this.#c >>> 11);
    this.#c = (this.#c + sum) | 0;
    return sum >>> 0;
  }
}
