import { describe, expect, test } from "vitest";
import type { Command } from "#src/engine/command.js";
import { SCRIPT_BODY_BYTES_MAX, SCRIPT_BYTES_MAX, SCRIPTS_MAX } from "#src/engine/limits.js";
import { ManualEngine } from "./manual-engine.js";

const shaOf = (index: number): string => index.toString(16).padStart(40, "0");
const load = (index: number, body = `return ${index}`, isPinned = false): Command => ({
  kind: "script-load",
  sha: shaOf(index),
  body,
  isPinned,
});
const get = (index: number): Command => ({ kind: "script-get", sha: shaOf(index) });
const FLUSH: Command = { kind: "script-flush" };

describe("scripts", () => {
  test("are found by their SHA, also after a restart, until they are flushed", () => {
    const server = new ManualEngine();
    expect(server.answer(load(1))).toBe(shaOf(1));
    server.restart(0);
    expect(server.answer(get(1))).toBe("return 1");
    expect(server.engine.scriptSource(shaOf(1))).toBe("return 1");
    expect(server.answer({ kind: "script-exists", shas: [shaOf(1), shaOf(2)] })).toEqual([1, 0]);
    expect(server.answer(FLUSH)).toBe("+OK");
    expect(server.answer(get(1))).toBeNull();
    expect(server.engine.scriptSource(shaOf(1))).toBeNull();
    server.restart(0);
    expect(server.answer(get(1))).toBeNull();
  });

  test("loaded again cost nothing, but wait for what they reveal", () => {
    const server = new ManualEngine();
    server.run(load(1));
    expect(server.run(load(1))).toMatchObject({ ops: [], sawRevision: 1 });
    expect(server.run(get(1))).toMatchObject({ ops: [], sawRevision: 1 });
    server.run(FLUSH);
    expect(server.run(get(1))).toMatchObject({ reply: null, sawRevision: 2 });
    expect(server.run(FLUSH)).toMatchObject({ ops: [], sawRevision: 2 });
  });

  test("of EVAL make room for newer ones, the oldest first; those of SCRIPT LOAD stay", () => {
    const server = new ManualEngine();
    server.run(load(0, "return 0", true));
    server.run(load(1));
    server.run(load(1, "return 1", true));
    for (let index = 2; index < SCRIPTS_MAX; index += 1) server.run(load(index));
    expect(server.run(load(SCRIPTS_MAX)).ops).toMatchObject([
      { kind: "script-end", sha: shaOf(2) },
      { kind: "script-put", sha: shaOf(SCRIPTS_MAX) },
    ]);
    expect(server.answer(get(0))).toBe("return 0");
    expect(server.answer(get(1))).toBe("return 1");
    expect(server.answer(get(2))).toBeNull();
    expect(server.engine.state.scripts.count).toBe(SCRIPTS_MAX);
  });

  test("have a bound in bytes; what cannot be had is refused, and nothing is dropped for it", () => {
    const server = new ManualEngine();
    const body = "x".repeat(SCRIPT_BODY_BYTES_MAX);
    const fitting = SCRIPT_BYTES_MAX / SCRIPT_BODY_BYTES_MAX;
    for (let index = 1; index < fitting; index += 1) server.run(load(index, body, true));
    server.run(load(fitting, body));
    expect(server.run(load(fitting + 1, body, true)).ops).toMatchObject([
      { kind: "script-end", sha: shaOf(fitting) },
      { kind: "script-put" },
    ]);
    const full = `OOM the limit of ${SCRIPT_BYTES_MAX} bytes of scripts is reached`;
    expect(server.answer(load(fitting + 2, "x"))).toBe(full);
    expect(server.answer(get(fitting + 1))).toBe(body);
    expect(server.engine.state.scripts.bytes).toBe(SCRIPT_BYTES_MAX);
  });

  test("are each short enough for a row", () => {
    const server = new ManualEngine();
    const body = "x".repeat(SCRIPT_BODY_BYTES_MAX + 1);
    expect(server.answer(load(1, body))).toContain(`${SCRIPT_BODY_BYTES_MAX + 1} bytes`);
    expect(server.answer(get(1))).toBeNull();
  });
});
