/**
 * Fault points inside the store's worker thread, for tests: `<point>` throws there, `<point> exit` ends the process at once,
 * as a crash would.
 */
export function createFault(spec) {
  const [name, action = "throw"] = spec.split(" ");
  return {
    point(at) {
      if (at !== name) return;
      if (action === "exit") process.kill(process.pid, "SIGKILL");
      throw new Error(`fault at ${at}`);
    },
  };
}
