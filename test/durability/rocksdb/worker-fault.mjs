/**
 * Fault points inside the store's worker thread, for tests: `<point>` throws there, `<point> exit` ends the process at once,
 * as a crash would, `<point> leave` ends the thread alone, `<point> stall` keeps it for 300 ms.
 */
export function createFault(spec) {
  const [name, action = "throw"] = spec.split(" ");
  return {
    point(at) {
      if (at !== name) return;
      if (action === "exit") process.kill(process.pid, "SIGKILL");
      if (action === "leave") process.exit(3);
      if (action === "stall") {
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 300);
        return;
      }
      throw new Error(`fault at ${at}`);
    },
  };
}
