import { expect, it } from "vitest";
import type { CommandSpec } from "#src/resp/command.js";
import { TurnLedger } from "#src/resp/turn-ledger.js";

const spec = (name: string): CommandSpec => ({
  name,
  arity: 1,
  flags: [],
  counters: { calls: 0, rejected: 0, failed: 0, durationMs: 0 },
});

it("shares the duration of a turn among the commands that ran in it", () => {
  let nowMs = 100;
  const ledger = new TurnLedger({ monotonicMs: () => nowMs, unixMs: () => 0 });
  const [ping, get] = [spec("ping"), spec("get")];

  for (let call = 0; call < 10; call++) ledger.count(ping);
  nowMs = 103;
  ledger.settle(100);
  expect([ping.counters.durationMs, get.counters.durationMs]).toEqual([3, 0]);

  for (const one of [ping, get, get, ping, get]) ledger.count(one);
  nowMs = 113;
  ledger.settle(103);
  expect([ping.counters.durationMs, get.counters.durationMs]).toEqual([3 + 4, 6]);

  nowMs = 200;
  ledger.settle(113);
  expect([ping.counters.durationMs, get.counters.durationMs]).toEqual([7, 6]);
});
