/** Small statistics over rounds: few values, so medians and ranges rather than means and deviations. */

/** NaN for no values; the mean of the middle two for an even number. */
export function median(values: readonly number[]): number {
  if (values.length === 0) return Number.NaN;
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  const upper = sorted[middle] ?? Number.NaN;
  if (sorted.length % 2 === 1) return upper;
  return ((sorted[middle - 1] ?? Number.NaN) + upper) / 2;
}

export interface RatioOfRounds {
  readonly median: number;
  readonly lowest: number;
  readonly highest: number;
}

/**
 * The ratio of two systems measured in alternation: one ratio per round, since the two halves of a round met the same noise,
 * then the median of these. Rounds that only one of them finished are left out.
 */
export function ratioOfRounds(ours: readonly number[], theirs: readonly number[]): RatioOfRounds {
  const ratios: number[] = [];
  for (let round = 0; round < Math.min(ours.length, theirs.length); round++) {
    const ratio = (ours[round] ?? Number.NaN) / (theirs[round] ?? Number.NaN);
    if (Number.isFinite(ratio)) ratios.push(ratio);
  }
  return { median: median(ratios), lowest: Math.min(...ratios), highest: Math.max(...ratios) };
}

/** Groups in the order in which they first occur. */
export function grouped<T>(items: readonly T[], nameOf: (item: T) => string): Map<string, T[]> {
  const groups = new Map<string, T[]>();
  for (const item of items) {
    const group = groups.get(nameOf(item));
    if (group === undefined) groups.set(nameOf(item), [item]);
    else group.push(item);
  }
  return groups;
}
