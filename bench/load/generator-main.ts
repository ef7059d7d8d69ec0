import { runClosedLoop, type ClosedLoopJob } from "./closed-loop.js";
import { runContention, type ContentionJob } from "./contention.js";
import { runOpenLoop, type OpenLoopJob } from "./open-loop.js";
import { encodeResult, type EncodedLoadResult, type LoadProgress, type LoadResult } from "./tally.js";

/**
 * The generator as a process of its own, so that it shares no thread with the benchmark. One job in (as a message), then
 * `start`, `end` and `result` or `failed` out. Ends when its parent does.
 */

export type GeneratorJob = OpenLoopJob | ClosedLoopJob | ContentionJob;

export type ToGenerator = { readonly kind: "job"; readonly job: GeneratorJob } | { readonly kind: "stop" };

export type FromGenerator =
  | { readonly kind: "start" }
  | { readonly kind: "end" }
  | { readonly kind: "result"; readonly result: EncodedLoadResult; readonly cpuMs: number }
  | { readonly kind: "failed"; readonly message: string };

let stopped = false;

process.on("disconnect", () => process.exit(1));
process.on("message", (message: ToGenerator) => {
  if (message.kind === "stop") stopped = true;
  else void run(message.job);
});

async function run(job: GeneratorJob): Promise<void> {
  let cpuAtStart = process.cpuUsage();
  let cpuMs = 0;
  const progress: LoadProgress = {
    onMeasureStart: () => {
      cpuAtStart = process.cpuUsage();
      tell({ kind: "start" });
    },
    onMeasureEnd: () => {
      const used = process.cpuUsage(cpuAtStart);
      cpuMs = (used.user + used.system) / 1000;
      tell({ kind: "end" });
    },
    shouldStop: () => stopped,
  };
  try {
    const result = await load(job, progress);
    tell({ kind: "result", result: encodeResult(result), cpuMs });
  } catch (error) {
    tell({ kind: "failed", message: error instanceof Error ? error.message : String(error) });
  }
}

async function load(job: GeneratorJob, progress: LoadProgress): Promise<LoadResult> {
  switch (job.kind) {
    case "open":
      return runOpenLoop(job, progress);
    case "closed":
      return runClosedLoop(job, progress);
    case "contention":
      return runContention(job, progress);
  }
}

function tell(message: FromGenerator): void {
  process.send?.(message);
}
