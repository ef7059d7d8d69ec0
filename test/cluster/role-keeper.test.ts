import { describe, expect, test } from "vitest";
import { StoreError } from "#src/durability/store.js";
import { KeeperUnderTest, nodeCalled, TIMES, viewOf } from "./role-fixture.js";

const { roleMs, marginMs, beatMs } = TIMES;
/** How long a primary counts from before a beat was sent. */
const termMs = roleMs - marginMs;

const unreachable = new StoreError("write-failed", "out of reach");
const fenced = new StoreError("fenced", "another node has it");

describe("a standby", () => {
  test("tries for the role when it saw no change for the role's duration, from the view that it saw", () => {
    const node = new KeeperUnderTest();
    const view = viewOf("other");
    node.sees(view);
    node.advance(roleMs - 1);
    expect(node.takeOvers).toHaveLength(0);
    node.advance(1);
    expect(node.takeOvers).toHaveLength(1);
    expect(node.store.candidacies).toEqual([view]);
  });

  test("waits anew with each change of the fence or the beat, and not because it sees the same again", () => {
    const node = new KeeperUnderTest();
    node.sees(viewOf("other", { fence: 10, beat: 11 }));
    node.advance(roleMs - 1);
    node.sees(viewOf("other", { fence: 10, beat: 12 }));
    node.advance(roleMs - 1);
    node.sees(viewOf("other", { fence: 13, beat: 12 }));
    node.advance(roleMs - 1);
    node.sees(viewOf("other", { fence: 13, beat: 12 }));
    expect(node.takeOvers).toHaveLength(0);
    node.advance(1);
    expect(node.takeOvers).toHaveLength(1);
  });

  test("does not try before it has seen anything", () => {
    const node = new KeeperUnderTest();
    node.advance(10 * roleMs);
    expect(node.takeOvers).toHaveLength(0);
  });

  test("takes a role that nobody ever had, or that was released, or that was its own, without waiting", () => {
    for (const view of [{ fence: null, beat: null }, viewOf("other", { state: "released" }), viewOf("me")]) {
      const node = new KeeperUnderTest();
      node.sees(view);
      node.advance(1);
      expect(node.takeOvers).toHaveLength(1);
    }
  });

  test("waits when the word that the role is free was of an earlier epoch", () => {
    const node = new KeeperUnderTest();
    const { fence } = viewOf("other", { epoch: 2, fence: 12 });
    const { beat } = viewOf("other", { epoch: 1, state: "released" });
    node.sees({ fence, beat });
    node.advance(roleMs - 1);
    expect(node.takeOvers).toHaveLength(0);
  });

  test("waits a little longer by chance, so that standbys do not race in step", () => {
    const node = new KeeperUnderTest({ fraction: 0.5 });
    node.sees(viewOf("other"));
    node.advance(roleMs + beatMs / 4 - 1);
    expect(node.takeOvers).toHaveLength(0);
    node.advance(1);
    expect(node.takeOvers).toHaveLength(1);
  });

  test("never tries when it is no candidate", () => {
    const node = new KeeperUnderTest({ isCandidate: false });
    node.sees({ fence: null, beat: null });
    node.advance(10 * roleMs);
    node.sees(viewOf("other", { state: "released" }));
    node.advance(10 * roleMs);
    expect(node.takeOvers).toHaveLength(0);
  });

  test("tries once at a time, and later each time that it failed", () => {
    const node = new KeeperUnderTest();
    node.sees({ fence: null, beat: null });
    node.advance(1);
    const waitsMs: number[] = [];
    for (let count = 1; count <= 6; count += 1) {
      const failedAtMs = node.nowMs;
      node.takeOvers.at(-1)?.fails("fenced");
      while (node.takeOvers.length === count) node.advance(1);
      waitsMs.push(node.nowMs - failedAtMs);
      const { length } = node.takeOvers;
      node.advance(10 * roleMs);
      expect(node.takeOvers).toHaveLength(length);
    }
    expect(waitsMs).toEqual([125, 250, 500, 1_000, 1_000, 1_000]);
    expect(node.holds).toBe(false);
  });

  test("that slept waits anew: it does not know for how long", () => {
    const node = new KeeperUnderTest();
    node.sees(viewOf("other"));
    node.advance(roleMs - 100);
    node.sleptMs += 60_000;
    node.advance(roleMs - 1);
    expect(node.takeOvers).toHaveLength(0);
    node.advance(300);
    expect(node.takeOvers).toHaveLength(1);
  });
});

describe("a primary", () => {
  test("counts its time from before the take-over was sent", () => {
    const node = new KeeperUnderTest();
    node.sees({ fence: null, beat: null });
    node.advance(1);
    const takeOver = node.takeOvers[0];
    node.advance(700);
    takeOver?.taken();
    takeOver?.serves();
    const endMs = (takeOver?.sentAtMs ?? 0) + termMs;
    expect(node.keeper.holds(endMs - 0.001)).toBe(true);
    expect(node.keeper.holds(endMs)).toBe(false);
  });

  test("loses the role when its time is over without a beat that succeeded", () => {
    const node = new KeeperUnderTest();
    const fromMs = node.becomePrimary();
    node.advanceTo(fromMs + termMs - 1);
    expect(node.holds).toBe(true);
    expect(node.holder.losses).toHaveLength(0);
    node.advance(1);
    expect(node.holds).toBe(false);
    expect(node.holder.losses).toHaveLength(1);
  });

  test("beats from its own clock, and counts from before each beat was sent", () => {
    const node = new KeeperUnderTest();
    node.becomePrimary();
    node.advance(beatMs);
    const { sentAtMs, answer, state } = node.beatUnderway;
    expect(state).toBe("serving");
    node.advance(beatMs - 100);
    expect(node.store.beats).toHaveLength(1);
    answer(null);
    expect(node.keeper.holds(sentAtMs + termMs - 0.001)).toBe(true);
    expect(node.keeper.holds(sentAtMs + termMs)).toBe(false);
  });

  test("stays primary as long as beats succeed", () => {
    const node = new KeeperUnderTest();
    node.becomePrimary();
    node.advanceWithBeats(20 * roleMs);
    expect(node.holds).toBe(true);
    expect(node.holder.losses).toHaveLength(0);
    expect(node.takeOvers).toHaveLength(1);
  });

  test("gets no time from a beat that failed, and sends the next one soon", () => {
    const node = new KeeperUnderTest();
    const endMs = node.becomePrimary() + termMs;
    node.advance(beatMs);
    node.advance(600);
    node.beatUnderway.answer(unreachable);
    expect(node.keeper.holds(endMs)).toBe(false);
    node.advance(249);
    expect(node.store.beats).toHaveLength(1);
    node.advance(1);
    expect(node.store.beats).toHaveLength(2);
    expect(node.holds).toBe(true);
  });

  test("loses the role at once when a beat is refused by the fence", () => {
    const node = new KeeperUnderTest();
    node.becomePrimary();
    node.advance(beatMs);
    node.beatUnderway.answer(fenced);
    expect(node.holds).toBe(false);
    expect(node.holder.losses).toEqual(["another node has taken the role"]);
  });

  test("gets no time from a beat of an earlier tenure", () => {
    const node = new KeeperUnderTest();
    node.becomePrimary();
    node.advance(beatMs);
    const { answer } = node.beatUnderway;
    node.advance(termMs);
    expect(node.holder.losses).toHaveLength(1);
    answer(null);
    expect(node.holds).toBe(false);
    expect(node.keeper.primary()).toBeNull();
  });

  test("that slept has lost the role, whatever is answered to what it sent before", () => {
    const node = new KeeperUnderTest();
    node.becomePrimary();
    node.advance(beatMs);
    node.sleptMs += 10_000;
    // The answer is heard before anything else runs.
    node.beatUnderway.answer(null);
    expect(node.holds).toBe(false);
    node.advance(300);
    expect(node.holder.losses).toHaveLength(1);
  });

  test("is not made by a take-over that was sent before the machine slept", () => {
    const node = new KeeperUnderTest();
    node.sees({ fence: null, beat: null });
    node.advance(1);
    node.sleptMs += 10_000;
    // The sleep is noticed before the answer is heard.
    node.advance(300);
    node.takeOvers[0]?.taken();
    expect(node.holds).toBe(false);
    node.advance(300);
    expect(node.holder.losses).toHaveLength(1);
  });
});

describe("a hand-over", () => {
  test("tells the others at once, and lets them go first", () => {
    const node = new KeeperUnderTest();
    node.becomePrimary();
    node.holder.roleName = "standby";
    node.keeper.handedOver();
    expect(node.holds).toBe(false);
    expect(node.store.beats.map(({ state }) => state)).toEqual(["released"]);
    node.beatUnderway.answer(null);
    node.sees(viewOf("me", { fence: 20, beat: 22, state: "released" }));
    node.advance(2 * roleMs - 1);
    expect(node.takeOvers).toHaveLength(1);
    node.advance(1);
    expect(node.takeOvers).toHaveLength(2);
  });

  test("is done when another node has taken the role: when that one hands it on, this one is a candidate like any other", () => {
    const node = new KeeperUnderTest();
    node.becomePrimary();
    node.holder.roleName = "standby";
    node.keeper.handedOver();
    node.beatUnderway.answer(null);
    node.sees(viewOf("other", { epoch: 3, fence: 30, beat: 31 }));
    node.sees(viewOf("other", { epoch: 3, fence: 30, beat: 32, state: "released" }));
    node.advance(50);
    expect(node.takeOvers).toHaveLength(2);
  });

  test("is told after a beat that is under way", () => {
    const node = new KeeperUnderTest();
    node.becomePrimary();
    node.advance(beatMs);
    node.holder.roleName = "standby";
    node.keeper.handedOver();
    expect(node.store.beats.map(({ state }) => state)).toEqual(["serving"]);
    node.beatUnderway.answer(null);
    expect(node.store.beats.map(({ state }) => state)).toEqual(["serving", "released"]);
    expect(node.holds).toBe(false);
  });

  test("is not told of a later tenure", () => {
    const node = new KeeperUnderTest();
    node.becomePrimary();
    node.advance(beatMs);
    const { answer } = node.beatUnderway;
    node.holder.roleName = "standby";
    node.keeper.handedOver();
    node.advance(2 * roleMs);
    node.takeOvers[1]?.taken();
    node.takeOvers[1]?.serves();
    answer(null);
    expect(node.store.beats.map(({ state }) => state)).toEqual(["serving"]);
    expect(node.holds).toBe(true);
  });
});

describe("what others may know", () => {
  test("the primary is who wrote the fence, as long as there are signs of it", () => {
    const node = new KeeperUnderTest({ isCandidate: false });
    expect(node.keeper.primary()).toBeNull();
    node.sees(viewOf("other"));
    expect(node.keeper.primary()).toEqual(nodeCalled("other"));
    node.advance(roleMs - 1);
    expect(node.keeper.primary()?.id).toBe("other");
    node.advance(1);
    expect(node.keeper.primary()).toBeNull();
    node.sees(viewOf("other", { beat: 12 }));
    expect(node.keeper.primary()?.id).toBe("other");
    node.sees(viewOf("other", { beat: 13, state: "released" }));
    expect(node.keeper.primary()).toBeNull();
  });

  test("a node names itself while it has the role, and not a moment longer", () => {
    const node = new KeeperUnderTest();
    node.becomePrimary();
    expect(node.keeper.primary()?.id).toBe("me");
    // The store told the holder that another node has the role.
    node.holder.roleName = "standby";
    expect(node.keeper.primary()).toBeNull();
    node.sees(viewOf("other", { fence: 30, beat: 31, epoch: 2 }));
    expect(node.keeper.primary()?.id).toBe("other");
  });

  test("each switch is told once, with who it was before", () => {
    const node = new KeeperUnderTest({ isCandidate: false });
    const switches: string[] = [];
    node.keeper.onSwitch((from, to) => switches.push(`${from?.id} ${to.id}`));
    node.sees(viewOf("a"));
    node.sees(viewOf("a", { beat: 12 }));
    node.sees(viewOf("b", { epoch: 2, fence: 20, beat: 21 }));
    node.sees(viewOf("b", { epoch: 3, fence: 22, beat: 23 }));
    node.sees(viewOf("a", { epoch: 4, fence: 24, beat: 25 }));
    expect(switches).toEqual(["undefined a", "a b", "b a"]);
  });

  test("the other nodes are those that announced themselves lately", () => {
    const node = new KeeperUnderTest({ isCandidate: false });
    node.seesNodes(["me", "b", "a"].map((name, index) => ({ node: nodeCalled(name), modRevision: index + 1 })));
    expect(node.keeper.others().map(({ id }) => id)).toEqual(["a", "b"]);
    node.advance(6_000);
    expect(node.keeper.others()).toEqual([]);
  });

  test("the time without a primary is counted", () => {
    const node = new KeeperUnderTest({ isCandidate: false });
    node.advance(1_000);
    node.sees(viewOf("other"));
    node.advance(roleMs);
    node.advance(2_000);
    node.sees(viewOf("other", { beat: 12 }));
    const withoutMs = node.keeper.report().withoutPrimaryMs;
    // It notices at its ticks that a primary is silent.
    expect(withoutMs).toBeGreaterThan(2_700);
    expect(withoutMs).toBeLessThanOrEqual(3_000);
  });
});

describe("what a keeper does all the time", () => {
  test("polls every beat's time, one poll at a time", () => {
    const node = new KeeperUnderTest({ isCandidate: false });
    node.advance(10 * beatMs);
    expect(node.store.polls).toHaveLength(1);
    node.store.polls[0]?.(unreachable);
    node.advance(beatMs);
    expect(node.store.polls).toHaveLength(2);
  });

  test("announces itself every two seconds", () => {
    const node = new KeeperUnderTest({ isCandidate: false });
    node.advance(10_000);
    expect(node.store.announcements).toBeGreaterThanOrEqual(5);
    expect(node.store.announcements).toBeLessThanOrEqual(6);
  });

  test("stopped, it tries for nothing; the term of a primary goes on to its end", () => {
    const node = new KeeperUnderTest();
    const fromMs = node.becomePrimary();
    node.keeper.stop();
    const { announcements } = node.store;
    node.advanceTo(fromMs + termMs - 1);
    expect(node.holds).toBe(true);
    node.advance(10 * roleMs);
    expect(node.holds).toBe(false);
    expect(node.takeOvers).toHaveLength(1);
    expect(node.store.announcements).toBe(announcements);
  });
});
