import type { Command, Origin, Turn } from "#src/engine/command.js";
import { Engine, type Decision, type Due } from "#src/engine/engine.js";
import type { Op } from "#src/engine/op.js";

/**
 * Two ways to the inside of the real engine, for the time of one run. Production code knows nothing of either.
 *
 * Looks over the shoulder of the real engine: `Engine.prototype` is wrapped, and whoever watches hears of every decision that is carried out.
 *
 * Small steps: the work that the engine does in slices is done in slices of one or two, so that a handful of leases takes as
 * many turns as a million would, with everything else that can happen between two of them.
 */

export interface EngineWatcher {
  /** A decision was carried out; the engine's revision is the one after it. */
  applied(engine: Engine, command: Command, origin: Origin, decision: Decision, turn: Turn): void;
  /** What was free was handed to those who waited for it, or rows that the end of a lease left were named. */
  handedOn(engine: Engine, decision: Decision, turn: Turn): void;
  /** Ops that no command decided were carried out. */
  appliedOps(engine: Engine, ops: readonly Op[]): void;
}

/** Calls `run` with every engine watched by `watcher`. Not for use inside itself. */
export function watchEngines<Result>(watcher: EngineWatcher, run: () => Result): Result {
  // oxlint-disable-next-line typescript/unbound-method -- wrapped and called with the engine as `this`
  const { decide, apply, applyOps, handOver, dropKeys } = Engine.prototype;
  let command: Command | null = null;
  let origin: Origin | null = null;
  let handed: Decision | null = null;
  Engine.prototype.decide = function watchedDecide(this: Engine, ...args): Decision {
    [command, , origin] = args;
    return decide.apply(this, args);
  };
  Engine.prototype.apply = function watchedApply(this: Engine, decision: Decision, turn: Turn): void {
    apply.call(this, decision, turn);
    if (decision === handed) watcher.handedOn(this, decision, turn);
    else if (command !== null && origin !== null) watcher.applied(this, command, origin, decision, turn);
    command = null;
    handed = null;
  };
  Engine.prototype.handOver = function watchedHandOver(this: Engine, turn: Turn): Decision | null {
    handed = handOver.call(this, turn);
    return handed;
  };
  Engine.prototype.dropKeys = function watchedDropKeys(this: Engine, turn: Turn): Decision | null {
    handed = dropKeys.call(this, turn);
    return handed;
  };
  Engine.prototype.applyOps = function watchedApplyOps(this: Engine, ops: readonly Op[]): number {
    const revision = applyOps.call(this, ops);
    watcher.appliedOps(this, ops);
    return revision;
  };
  try {
    return run();
  } finally {
    Object.assign(Engine.prototype, { decide, apply, applyOps, handOver, dropKeys });
  }
}

/** Calls `run` with slices of at most `stepMax`. */
export function withSmallSteps<Result>(stepMax: number, run: () => Result): Result {
  // oxlint-disable-next-line typescript/unbound-method -- wrapped and called with the engine as `this`
  const { rebuildSome, dueLeases, sweepSome } = Engine.prototype;
  Engine.prototype.rebuildSome = function rebuildFew(this: Engine, limit: number): boolean {
    return rebuildSome.call(this, Math.min(limit, stepMax));
  };
  Engine.prototype.dueLeases = function fewDueLeases(this: Engine, nowMs: number, limit: number): Due {
    return dueLeases.call(this, nowMs, Math.min(limit, stepMax));
  };
  Engine.prototype.sweepSome = function sweepFew(this: Engine, limit: number): boolean {
    // A recovery sweeps everything in one go.
    return sweepSome.call(this, limit === Infinity ? limit : Math.min(limit, stepMax));
  };
  try {
    return run();
  } finally {
    Object.assign(Engine.prototype, { rebuildSome, dueLeases, sweepSome });
  }
}
