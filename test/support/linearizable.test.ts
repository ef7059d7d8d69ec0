import { describe, expect, test } from "vitest";
import { KEY, type KeyAction } from "./key-history.js";
import { checkLinearizable, type Operation, type Sequential } from "./linearizable.js";

/** Short histories, sound and broken: a checker that lets a broken one pass would let the server off. */

type RegisterAction = { readonly write: string } | { readonly read: string };

const REGISTER: Sequential<string, RegisterAction> = {
  initial: "",
  step: (state, action) => ("write" in action ? action.write : action.read === state ? state : null),
  nameOf: (state) => state,
};

const at = <Action>(invokeMs: number, returnMs: number, action: Action): Operation<Action> => ({
  invokeMs,
  returnMs,
  action,
});

describe("a register", () => {
  test.each<[string, readonly Operation<RegisterAction>[], boolean]>([
    ["nothing at all", [], true],
    ["a read sees the write before it", [at(0, 1, { write: "a" }), at(2, 3, { read: "a" })], true],
    ["a read does not see the write before it", [at(0, 1, { write: "a" }), at(2, 3, { read: "" })], false],
    ["a read sees what was never written", [at(0, 1, { write: "a" }), at(2, 3, { read: "b" })], false],
    ["a read beside a write sees either: the new", [at(0, 9, { write: "a" }), at(1, 2, { read: "a" })], true],
    ["a read beside a write sees either: the old", [at(0, 9, { write: "a" }), at(1, 2, { read: "" })], true],
    [
      "what one read saw the next one sees too",
      [at(0, 9, { write: "a" }), at(1, 2, { read: "a" }), at(3, 4, { read: "" })],
      false,
    ],
    [
      "two writes at once have one order for everybody",
      [at(0, 9, { write: "a" }), at(0, 9, { write: "b" }), at(10, 11, { read: "a" }), at(12, 13, { read: "b" })],
      false,
    ],
    [
      "two writes at once, in the order that the reads tell",
      [at(0, 9, { write: "a" }), at(0, 9, { write: "b" }), at(1, 2, { read: "b" }), at(3, 4, { read: "a" })],
      true,
    ],
    ["an unknown write may have happened", [at(0, Infinity, { write: "a" }), at(5, 6, { read: "a" })], true],
    ["or not", [at(0, Infinity, { write: "a" }), at(5, 6, { read: "" })], true],
    ["or happen late", [at(0, Infinity, { write: "a" }), at(5, 6, { read: "" }), at(7, 8, { read: "a" })], true],
    [
      "but not twice",
      [at(0, Infinity, { write: "a" }), at(1, 2, { read: "a" }), at(3, 4, { write: "b" }), at(5, 6, { read: "a" })],
      false,
    ],
    ["and not before its call", [at(3, Infinity, { write: "a" }), at(0, 1, { read: "a" })], false],
    [
      "an unknown write that happened before the server died",
      [{ ...at(0, 5, { write: "a" }), isUnknown: true }, at(6, 7, { read: "a" })],
      true,
    ],
    ["or did not", [{ ...at(0, 5, { write: "a" }), isUnknown: true }, at(6, 7, { read: "" })], true],
    [
      "but not after that",
      [{ ...at(0, 5, { write: "a" }), isUnknown: true }, at(6, 7, { read: "" }), at(8, 9, { read: "a" })],
      false,
    ],
    ["the order of the list means nothing", [at(2, 3, { read: "a" }), at(0, 1, { write: "a" })], true],
  ])("%s", (_name, operations, isSound) => {
    expect(checkLinearizable(operations, REGISTER).kind).toBe(isSound ? "linearizable" : "broken");
  });

  test("a broken history says where it is stuck", () => {
    const verdict = checkLinearizable([at(0, 1, { write: "a" }), at(2, 3, { read: "b" })], REGISTER);
    expect(verdict).toEqual({ kind: "broken", stuckAt: [at(2, 3, { read: "b" })], state: "a" });
  });

  test("a search that takes too long says nothing", () => {
    const writes = Array.from({ length: 12 }, (_, index) => at(0, 99, { write: String(index) }));
    expect(checkLinearizable([...writes, at(100, 101, { read: "none" })], REGISTER, 1000).kind).toBe("given-up");
  });

  test("a thousand operations one after the other are no work", () => {
    const operations = Array.from({ length: 1000 }, (_, index) => [
      at(4 * index, 4 * index + 1, { write: String(index) }),
      at(4 * index + 2, 4 * index + 3, { read: String(index) }),
    ]).flat();
    expect(checkLinearizable(operations, REGISTER, 2000).kind).toBe("linearizable");
  });

  test("many unknown writes, each seen once, in any order", () => {
    const writes = Array.from({ length: 20 }, (_, index) => at(0, Infinity, { write: String(index) }));
    const reads = Array.from({ length: 20 }, (_, index) => at(10 + index, 10.5 + index, { read: String(19 - index) }));
    expect(checkLinearizable([...writes, ...reads], REGISTER).kind).toBe("linearizable");
  });
});

const acquire = (lease: string, answer: number | null | undefined, rest: Partial<KeyAction> = {}): KeyAction =>
  ({ kind: "acquire", lease, mode: "exclusive", value: null, by: "lock", answer, ...rest }) as KeyAction;
const shared = { mode: "shared" } as const;
const two = { mode: { permits: 2 } } as const;
const release = (lease: string, answer: number, token: number | null = null): KeyAction => ({
  kind: "release",
  lease,
  token,
  answer,
});
const get = (answer: string | null): KeyAction => ({ kind: "get", answer });

/** One after the other, each over before the next begins. */
const inOrder = (...actions: readonly KeyAction[]): Operation<KeyAction>[] =>
  actions.map((action, index) => at(2 * index, 2 * index + 1, action));

describe("a key", () => {
  test.each<[string, readonly Operation<KeyAction>[], boolean]>([
    ["is held and let go", inOrder(acquire("a", 1), release("a", 1), acquire("b", 2)), true],
    ["has one holder", inOrder(acquire("a", 1), acquire("b", 2)), false],
    ["is refused while it is held", inOrder(acquire("a", 1), acquire("b", null)), true],
    ["is not refused while it is free", inOrder(acquire("a", 1), release("a", 1), acquire("b", null)), false],
    ["gives the same lease the same token", inOrder(acquire("a", 1), acquire("a", 1)), true],
    ["gives no lease a second token", inOrder(acquire("a", 1), acquire("a", 2)), false],
    ["has tokens that rise", inOrder(acquire("a", 5), release("a", 1), acquire("b", 4)), false],
    ["is not let go by a stale token", inOrder(acquire("a", 5), release("a", 0, 4), acquire("a", 5)), true],
    ["is not let go by a stale token, whatever is said", inOrder(acquire("a", 5), release("a", 1, 4)), false],
    ["that was let go stays so", inOrder(acquire("a", 1), release("a", 1), get("a")), false],
    ["has readers together", inOrder(acquire("a", 1, shared), acquire("b", 2, shared)), true],
    ["has readers without a writer", inOrder(acquire("a", 1, shared), acquire("b", 2)), false],
    ["has two of two permits", inOrder(acquire("a", 1, two), acquire("b", 2, two)), true],
    ["has no third", inOrder(acquire("a", 1, two), acquire("b", 2, two), acquire("c", 3, two)), false],
    ["is taken by force", inOrder(acquire("a", 1), acquire("b", 2, { by: "force" }), release("a", 0)), true],
    ["that is shared is not attached", inOrder(acquire("a", 1, shared), acquire("a", null, { by: "attach" })), true],
    ["whose token nobody heard has one", inOrder(acquire("a", undefined), acquire("a", 3), acquire("a", 3)), true],
    [
      "whose token nobody heard has only one",
      inOrder(acquire("a", undefined), acquire("a", 3), acquire("a", 4)),
      false,
    ],
    [
      "whose token nobody heard has a new one",
      inOrder(acquire("b", 5), release("b", 1), acquire("a", undefined), acquire("a", 5)),
      false,
    ],
    ["goes when its lease ends", inOrder(acquire("a", 1), { kind: "end", lease: "a" }, acquire("b", 2)), true],
    [
      "is set once",
      inOrder(
        { kind: "set", value: "x", ifAbsent: true, answer: true },
        { kind: "set", value: "y", ifAbsent: true, answer: true },
      ),
      false,
    ],
    [
      "is deleted by whoever set it",
      inOrder(
        { kind: "set", value: "x", ifAbsent: true, answer: true },
        { kind: "delete-if", value: "y", answer: 0 },
        get("x"),
        { kind: "delete-if", value: "x", answer: 1 },
        get(null),
      ),
      true,
    ],
    [
      "counts",
      inOrder({ kind: "increment", by: 1, answer: 1 }, { kind: "increment", by: 2, answer: 3 }, get("3")),
      true,
    ],
    [
      "loses no count",
      inOrder({ kind: "increment", by: 1, answer: 1 }, { kind: "increment", by: 1, answer: 1 }),
      false,
    ],
    ["shows its holders", inOrder(acquire("a", 1), { kind: "holders", answer: [1] }), true],
    ["shows no former holder", inOrder(acquire("a", 1), { kind: "holders", answer: [] }), false],
    ["says whose token counts", inOrder(acquire("a", 1), { kind: "check", token: 1, answer: 0 }), false],
  ])("%s", (_name, operations, isSound) => {
    expect(checkLinearizable(operations, KEY).kind).toBe(isSound ? "linearizable" : "broken");
  });

  test("an acquire that was acknowledged and lost is found", () => {
    // Two clients were told that they have it; one may have lost it only if its lease ended, which nobody knows of.
    const told = [at(0, 1, acquire("a", 1)), at(2, 3, acquire("b", 2))];
    expect(checkLinearizable(told, KEY).kind).toBe("broken");
    const end = at<KeyAction>(0, Infinity, { kind: "end", lease: "a" });
    expect(checkLinearizable([...told, end], KEY).kind).toBe("linearizable");
    // And then it was not the lease that let it go afterwards.
    expect(checkLinearizable([...told, end, at(4, 5, release("a", 1))], KEY).kind).toBe("broken");
  });

  test("one who waits gets it when the other lets go, within both calls", () => {
    const waits = at(1, 10, acquire("b", 2));
    expect(checkLinearizable([at(0, 1, acquire("a", 1)), waits, at(5, 6, release("a", 1))], KEY).kind).toBe(
      "linearizable",
    );
    const tooEarly = at(1, 4, acquire("b", 2));
    expect(checkLinearizable([at(0, 1, acquire("a", 1)), tooEarly, at(5, 6, release("a", 1))], KEY).kind).toBe(
      "broken",
    );
  });
});
