import { describe, expect, test } from "vitest";
import * as on from "../engine/manual-engine.js";
import { ManualNode } from "./manual-node.js";

/** A client that lost its connection asks again over another one; the server hears of the loss only afterwards. */

describe("a second try of a blocked command", () => {
  test("that met the key free keeps it, though the connection of the first try is gone before the answer left", () => {
    const node = new ManualNode();
    const client = node.client();
    client.ask(on.grant("holder", 1_000));
    client.ask(on.grant("waiter", 1_000_000));
    client.ask(on.acquire("k", "holder"));
    const first = node.client();
    first.send(on.block("k", "waiter"));
    node.settle();
    // The process stood still: the holder's time is over, and no tick has come.
    node.clock.nowMs += 5_000;
    const second = node.client();
    const ticket = second.send(on.block("k", "waiter"));
    first.close();
    node.settle();
    const token = second.replies.get(ticket);
    expect(token).toEqual(expect.any(Number));
    expect(client.ask({ kind: "lock-check", key: "k", token: Number(token) })).toBe(1);
  });

  test("keeps a grant to both; it goes to the next when neither is there to hear of it", () => {
    const node = new ManualNode();
    const client = node.client();
    for (const id of ["holder", "waiter", "next"]) client.ask(on.grant(id, 1_000_000));
    client.ask(on.acquire("k", "holder"));
    const [first, second, third] = [node.client(), node.client(), node.client()];
    first.send(on.block("k", "waiter"));
    second.send(on.block("k", "waiter"));
    const ticket = third.send(on.block("k", "next"));
    node.settle();
    client.send(on.release("k", "holder"));
    first.close();
    second.close();
    node.settle();
    const token = third.replies.get(ticket);
    expect(token).toEqual(expect.any(Number));
    expect(client.ask({ kind: "lock-check", key: "k", token: Number(token) })).toBe(1);
  });
});
