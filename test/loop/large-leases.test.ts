import { expect, test } from "vitest";
import { MemoryDisk } from "#src/durability/memory-store.js";
import { KEYS_ENDED_AT_ONCE_MAX } from "#src/engine/limits.js";
import * as on from "../engine/manual-engine.js";
import { ManualNode } from "./manual-node.js";

/** A lease with more keys than one turn may name, through the loop: the tick names them, one slice per batch. */

const KEYS = KEYS_ENDED_AT_ONCE_MAX * 2 + 500;

function withLarge(): { node: ManualNode; disk: MemoryDisk; keyRows: () => number } {
  const disk = new MemoryDisk();
  const node = new ManualNode(disk);
  const client = node.client();
  client.ask(on.grant("large", 5_000));
  for (let index = 0; index < KEYS; index += 1) client.send(on.attach("large", `k${index}`));
  node.settle();
  node.takeEvents();
  return { node, disk, keyRows: () => [...disk.rows.keys()].filter((key) => key.startsWith("n/")).length };
}

test("the rows go from the store in slices, and the tick ends with the last", () => {
  const { node, keyRows } = withLarge();
  expect(keyRows()).toBe(KEYS);
  const client = node.client();
  const ticket = client.send(on.revoke("large"));
  node.settle();
  expect(client.replies.get(ticket)).toBe(1);
  expect(keyRows()).toBe(KEYS);
  const { batchesCommitted } = node.coordinator.report();
  node.scheduler.advance(1);
  expect(keyRows()).toBe(0);
  expect(node.coordinator.report().batchesCommitted).toBe(batchesCommitted + 3);
  expect(node.coordinator.engine?.nextDueMs()).toBeNull();
  const events = node.takeEvents();
  expect(events[0]).toMatch(/^lease:large revoked by=/);
  expect(events.length).toBe(1 + 2 * KEYS);
});

test("who waits for one of the keys gets it without anybody's doing", () => {
  const { node } = withLarge();
  const waiter = node.client();
  waiter.ask(on.grant("next", 60_000));
  const ticket = waiter.send(on.block(`k${KEYS - 1}`, "next"));
  node.client().ask(on.revoke("large"));
  expect(waiter.replies.has(ticket)).toBe(false);
  node.scheduler.advance(1);
  node.settle();
  expect(waiter.replies.get(ticket)).toBeTypeOf("number");
});

test("what a stop cuts off is made up for by the next start", () => {
  const { node, disk, keyRows } = withLarge();
  node.client().ask(on.revoke("large"));
  node.coordinator.stop(() => undefined);
  node.settle();
  expect(keyRows()).toBe(KEYS);
  const next = new ManualNode(disk);
  next.settle();
  expect(keyRows()).toBe(0);
  expect(next.client().ask(on.COUNT)).toBe(0);
});
