import { expect, test } from "vitest";
import { checkEpochs, type Acknowledgement, type Fence } from "./cluster-epochs.js";

/** The checker itself: what it must let pass, and what it must find. */

const fences = (...ports: number[]): Fence[] =>
  ports.map((port, index) => ({ epoch: index + 1, port, revision: 10 * index }));
const ack = (port: number, invokeMs: number, returnMs: number): Acknowledgement => ({ port, invokeMs, returnMs });

test.each<[string, Fence[], Acknowledgement[]]>([
  ["one after the other", fences(1, 2), [ack(1, 0, 1), ack(1, 2, 3), ack(2, 4, 5)]],
  ["an answer that was on its way during the switch", fences(1, 2), [ack(1, 0, 9), ack(2, 4, 5), ack(2, 10, 11)]],
  ["back to the first", fences(1, 2, 1), [ack(1, 0, 1), ack(2, 2, 3), ack(1, 4, 5)]],
  ["a tenure in which nobody asked", fences(1, 2, 3, 1), [ack(1, 0, 1), ack(1, 4, 5), ack(3, 2, 3)]],
  ["a fence that its own node moved", fences(1, 1, 2), [ack(1, 0, 1), ack(1, 2, 3), ack(2, 4, 5)]],
])("sound: %s", (_name, known, acknowledgements) => {
  expect(checkEpochs(known, acknowledgements)).toEqual([]);
});

test.each<[string, Fence[], Acknowledgement[], RegExp]>([
  ["the old one goes on", fences(1, 2), [ack(2, 2, 3), ack(1, 4, 5)], /^1 acknowledged what was sent 1 ms after 2/],
  ["both at once, in turns", fences(1, 2), [ack(1, 0, 1), ack(2, 2, 3), ack(1, 4, 5), ack(2, 6, 7)], /^1 acknowledged/],
  [
    "more switches than there were",
    fences(1, 2, 1),
    [ack(1, 0, 1), ack(2, 2, 3), ack(1, 4, 5), ack(2, 6, 7)],
    /^2 ack/,
  ],
  ["a node that never had the role", fences(1), [ack(1, 0, 1), ack(7, 2, 3)], /^7 acknowledged/],
  [
    "an epoch that does not rise",
    [
      { epoch: 2, port: 1, revision: 1 },
      { epoch: 2, port: 2, revision: 2 },
    ],
    [],
    /epoch 2/,
  ],
])("found: %s", (_name, known, acknowledgements, fault) => {
  expect(checkEpochs(known, acknowledgements)[0]).toMatch(fault);
});
