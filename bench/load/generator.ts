import { fileURLToPath } from "node:url";

import { ended, forkChild } from "../systems/children.js";
import type { FromGenerator, GeneratorJob, ToGenerator } from "./generator-main.js";
import { decodeResult, type LoadResult } from "./tally.js";

/** Runs a generator process and reads the server's CPU time at both ends of its measurement. */

export interface GeneratorRun extends LoadResult {
  /** CPU milliseconds of the generator during the measurement. */
  readonly generatorCpuMs: number;
}

export interface GeneratorHooks {
  readonly onMeasureStart?: () => void;
  readonly onMeasureEnd?: () => void;
  /** Hands over a function that ends the load early. */
  readonly onStoppable?: (stop: () => void) => void;
}

const MODULE = fileURLToPath(new URL("generator-main.js", import.meta.url));

/** Rejects when the generator fails, or takes `msMax`. Error replies are counted in the result, not thrown. */
export async function runGenerator(
  job: GeneratorJob,
  msMax: number,
  hooks: GeneratorHooks = {},
): Promise<GeneratorRun> {
  const child = forkChild(MODULE);
  const send = (message: ToGenerator): boolean => child.send(message);
  const run = new Promise<GeneratorRun>((resolve, reject) => {
    child.on("message", (message: FromGenerator) => {
      switch (message.kind) {
        case "start":
          hooks.onMeasureStart?.();
          break;
        case "end":
          hooks.onMeasureEnd?.();
          break;
        case "result":
          resolve({ ...decodeResult(message.result), generatorCpuMs: message.cpuMs });
          break;
        case "failed":
          reject(new Error(message.message));
          break;
      }
    });
    child.once("exit", (code) => reject(new Error(`the load generator ended with ${code}`)));
  });
  const watchdog = setTimeout(() => child.kill("SIGKILL"), msMax);
  hooks.onStoppable?.(() => send({ kind: "stop" }));
  send({ kind: "job", job });
  try {
    return await run;
  } finally {
    clearTimeout(watchdog);
    child.kill("SIGKILL");
    await ended(child, 5000);
  }
}
