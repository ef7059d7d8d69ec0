import { describe, expect, test } from "vitest";
import { Nodes } from "#src/cluster/nodes.js";
import { nodeCalled } from "./role-fixture.js";

const sighting = (name: string, modRevision: number) => ({ node: nodeCalled(name), modRevision });
const names = (nodes: Nodes, nowMs: number): string[] => nodes.present(nowMs).map(({ id }) => id);

describe("the nodes that are there", () => {
  test("are told in the order of their ids", () => {
    const nodes = new Nodes(1_000);
    nodes.seen([sighting("c", 3), sighting("a", 5), sighting("b", 4)], 0);
    expect(names(nodes, 0)).toEqual(["a", "b", "c"]);
  });

  test("are gone when their announcements stop rising, however often they are seen", () => {
    const nodes = new Nodes(1_000);
    nodes.seen([sighting("a", 1), sighting("b", 2)], 0);
    nodes.seen([sighting("a", 1), sighting("b", 3)], 900);
    expect(names(nodes, 999)).toEqual(["a", "b"]);
    expect(names(nodes, 1_000)).toEqual(["b"]);
    expect(names(nodes, 1_900)).toEqual([]);
  });

  test("come back with a newer announcement", () => {
    const nodes = new Nodes(1_000);
    nodes.seen([sighting("a", 1)], 0);
    nodes.seen([sighting("a", 2)], 5_000);
    expect(names(nodes, 5_999)).toEqual(["a"]);
  });

  test("are gone at once when their announcement is taken back", () => {
    const nodes = new Nodes(1_000);
    nodes.seen([sighting("a", 1), sighting("b", 2)], 0);
    nodes.seen([sighting("b", 2)], 10);
    expect(names(nodes, 10)).toEqual(["b"]);
  });

  test("keep the address of their newest announcement", () => {
    const nodes = new Nodes(1_000);
    nodes.seen([sighting("a", 1)], 0);
    nodes.seen([{ node: { ...nodeCalled("a"), port: 7_000 }, modRevision: 2 }], 0);
    expect(nodes.present(0)[0]?.port).toBe(7_000);
  });
});
