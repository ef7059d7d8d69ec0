import { expect, test } from "vitest";
import { MemoryDisk } from "#src/durability/memory-store.js";
import * as on from "../engine/manual-engine.js";
import { ManualNode } from "./manual-node.js";

test("a store that has lost its newest revision is refused: tokens would be given twice", () => {
  const disk = new MemoryDisk();
  const node = new ManualNode(disk);
  const client = node.client();
  client.send(on.grant("a", 60_000));
  client.send(on.acquire("k", "a"));
  node.settle();
  expect(disk.rows.delete("m/revision")).toBe(true);
  disk.holder = null;
  expect(() => new ManualNode(disk)).toThrow("a row has token 2, above the newest revision 0");
});
