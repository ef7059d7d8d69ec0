import type { Command, Origin, Turn } from "#src/engine/command.js";
import { Engine, type Decision } from "#src/engine/engine.js";
import type { Op } from "#src/engine/op.js";

/**
 * Looks over the shoulder of the real engine: `Engine.prototype` is wrapped once, and whoever watches hears of every
 * decision that is carried out. Production code knows nothing of it.
 */

export interface EngineWatcher {
  /** A decision was carried out; the engine's revision is the one after it. */
  applied(engine: Engine, command: Command, origin: Origin, decision: Decision, turn: Turn): void;
  /** Ops that no command decided were carried out. */
  appliedOps(engine: Engine, ops: readonly Op[]): void;
}

/** Calls `run` with every engine watched by `watcher`. Not for use inside itself. */
export function watchEngines<Result>(watcher: EngineWatcher, run: () => Result): Result {
  // oxlint-disable-next-line typescript/unbound-method -- wrapped and called with the engine as `this`
  const { decide, apply, applyOps } = Engine.prototype;
  let command: Command | null = null;
  let origin: Origin | null = null;
  Engine.prototype.decide = function watchedDecide(this: Engine, ...args): Decision {
    [command, , origin] = args;
    return decide.apply(this, args);
  };
  Engine.prototype.apply = function watchedApply(this: Engine, decision: Decision, turn: Turn): void {
    apply.call(this, decision, turn);
    if (command !== null && origin !== null) watcher.applied(this, command, origin, decision, turn);
    command = null;
  };
  Engine.prototype.applyOps = function watchedApplyOps(this: Engine, ops: readonly Op[]): number {
    const revision = applyOps.call(this, ops);
    watcher.appliedOps(this, ops);
    return revision;
  };
  try {
    return run();
  } finally {
    Object.assign(Engine.prototype, { decide, apply, applyOps });
  }
}
