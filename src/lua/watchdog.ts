import { createContext, Script } from "node:vm";
import { activeRun, OverdueError, type Machine } from "./machine.js";

/**
 * Ends a call into the interpreter that never comes back by itself: a pattern that backtracks for ever executes no Lua
 * instruction, so no hook can stop it. V8 can: its `vm` module ends what runs in it when the time is up, WebAssembly loops
 * included. That costs 0.1 ms a call (a thread is made for it), so only calls that look expensive are made this way.
 *
 * What is cut off stops anywhere: nothing but the interpreter, which is thrown away then, may run inside. No code of a script: it
 * could call the server.
 */
const context = createContext({ call: null as (() => void) | null }, { name: "script watchdog" });
const script = new Script("call()");

/**
 * Makes calls into Lua's own functions with the time that is left. Throws OverdueError when that is not enough: then the run is
 * over, and so is the instance.
 */
export function callWatched(machine: Machine, call: () => void): void {
  const run = activeRun(machine);
  const leftMs = run.deadlineMs - run.nowMs();
  if (leftMs === Number.POSITIVE_INFINITY) {
    call();
    return;
  }
  if (isDoneWithin(call, leftMs)) return;
  machine.isSpoiled = true;
  throw new OverdueError();
}

/** Runs `call` for at most `limitMs` (at least 1). True when it came back, false when it was ended. */
function isDoneWithin(call: () => void, limitMs: number): boolean {
  context["call"] = call;
  try {
    script.runInContext(context, { timeout: Math.max(1, Math.ceil(limitMs)) });
    return true;
  } catch (thrown) {
    if (isTimeout(thrown)) return false;
    throw thrown;
  } finally {
    context["call"] = null;
  }
}

/** The error comes from the other context: it is no instance of this one's Error. */
function isTimeout(thrown: unknown): boolean {
  const isObject = typeof thrown === "object" && thrown !== null;
  return isObject && "code" in thrown && thrown.code === "ERR_SCRIPT_EXECUTION_TIMEOUT";
}
