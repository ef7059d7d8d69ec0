import { simulate, type SimulationOptions, type SimulationResult } from "./simulation.js";

export const MUTATIONS = { none: 1 };
export type MutationName = keyof typeof MUTATIONS;
export function simulateMutation(_name: MutationName, seed: number, options: SimulationOptions): SimulationResult {
  return simulate(seed, options);
}
