import * as fc from "fast-check";
import { expect, test } from "vitest";
import { ReleaseQueue } from "#src/durability/release-queue.js";
import { RecordingSession } from "./manual.js";

test("delivers what is durable, in order, and keeps the rest", () => {
  const queue = new ReleaseQueue();
  const session = new RecordingSession();
  queue.park(1, session, 10, "one");
  queue.park(2, session, 11, "two");
  queue.park(2, session, 12, "two too");
  queue.park(4, session, 13, "four");
  queue.release(0);
  expect(session.delivered).toEqual([]);
  queue.release(2);
  expect(session.delivered).toEqual([
    [10, "one"],
    [11, "two"],
    [12, "two too"],
  ]);
  expect(queue.size).toBe(1);
  queue.release(4);
  expect(session.delivered.length).toBe(4);
  expect(queue.size).toBe(0);
});

test("a read that saw an older change does not wait for a newer one", () => {
  const queue = new ReleaseQueue();
  const session = new RecordingSession();
  queue.park(5, session, 1, "five");
  queue.park(9, session, 2, "nine");
  queue.park(5, session, 3, "read of five");
  queue.park(7, session, 4, "read of seven");
  queue.release(5);
  expect(session.delivered).toEqual([
    [1, "five"],
    [3, "read of five"],
  ]);
  queue.release(8);
  expect(session.delivered.at(-1)).toEqual([4, "read of seven"]);
});

test("the durable revision never falls, and what is durable is not parked", () => {
  const queue = new ReleaseQueue();
  queue.release(5);
  expect(() => queue.release(4)).toThrow("never falls");
  expect(() => queue.park(5, new RecordingSession(), 1, null)).toThrow("need not wait");
});

test("a session that is gone gets nothing, the others everything", () => {
  const queue = new ReleaseQueue();
  const gone = new RecordingSession();
  const stays = new RecordingSession();
  for (let revision = 1; revision <= 10; revision += 1) {
    queue.park(revision, revision % 2 === 0 ? gone : stays, revision, null);
  }
  queue.forget(gone);
  queue.release(10);
  expect(gone.delivered).toEqual([]);
  expect(stays.delivered.map(([ticket]) => ticket)).toEqual([1, 3, 5, 7, 9]);
});

test("a session that goes while replies are delivered gets no further one", () => {
  const queue = new ReleaseQueue();
  const session = new RecordingSession();
  session.onDeliver = () => queue.forget(session);
  queue.park(1, session, 1, null);
  queue.park(1, session, 2, null);
  queue.release(1);
  expect(session.delivered).toEqual([[1, null]]);
});

test("a delivery may park more; it waits for its own revision", () => {
  const queue = new ReleaseQueue();
  const session = new RecordingSession();
  session.onDeliver = () => {
    session.onDeliver = null;
    queue.park(3, session, 3, "later");
    queue.park(2, session, 2, "late");
  };
  queue.park(1, session, 1, "first");
  queue.release(1);
  expect(session.delivered).toEqual([[1, "first"]]);
  queue.release(3);
  expect(session.delivered.map(([ticket]) => ticket)).toEqual([1, 2, 3]);
});

test("discard names each waiting session once, leaves out those that are gone, and starts afresh", () => {
  const queue = new ReleaseQueue();
  const [first, second, gone] = [new RecordingSession(), new RecordingSession(), new RecordingSession()];
  queue.release(100);
  for (const [ticket, session] of [first, second, gone, first].entries())
    queue.park(101 + ticket, session, ticket, null);
  queue.forget(gone);
  expect(queue.discard()).toEqual([first, second]);
  expect(queue.size).toBe(0);
  queue.release(7);
  expect(first.delivered).toEqual([]);
});

test("ten thousand sessions that go at once cost no search", () => {
  // Each forget walking the queue would be 10,000 x 10,000 steps: minutes, where the limit of a test is one.
  const queue = new ReleaseQueue();
  const sessions = Array.from({ length: 10_000 }, () => new RecordingSession());
  for (let round = 0; round < 10; round += 1) {
    for (const [index, session] of sessions.entries()) queue.park(round * 10_000 + index + 1, session, 0, null);
  }
  for (const session of sessions) queue.forget(session);
  queue.release(100_000);
  expect(sessions.every((session) => session.delivered.length === 0)).toBe(true);
  expect(queue.size).toBe(0);
});

test("any order of parking, releasing and forgetting agrees with a plain list", () => {
  const step = fc.oneof(
    { weight: 5, arbitrary: fc.record({ do: fc.constant("park" as const), ahead: fc.nat(5), who: fc.nat(2) }) },
    { weight: 2, arbitrary: fc.record({ do: fc.constant("release" as const), by: fc.nat(4) }) },
    { weight: 1, arbitrary: fc.record({ do: fc.constant("forget" as const), who: fc.nat(2) }) },
  );
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
      const queue = new ReleaseQueue();
      let sessions = [new RecordingSession(), new RecordingSession(), new RecordingSession()];
      let list: { revision: number; ticket: number; session: RecordingSession }[] = [];
      const expected = new Map<RecordingSession, number[]>();
      let durable = 0;
      for (const [ticket, current] of steps.entries()) {
        if (current.do === "release") {
          durable += current.by;
          const due = list.filter((entry) => entry.revision <= durable).sort((a, b) => a.revision - b.revision);
          list = list.filter((entry) => entry.revision > durable);
          for (const entry of due) expected.set(entry.session, [...(expected.get(entry.session) ?? []), entry.ticket]);
          queue.release(durable);
          continue;
        }
        const session = sessions[current.who] ?? new RecordingSession();
        if (current.do === "park") {
          list.push({ revision: durable + 1 + current.ahead, ticket, session });
          queue.park(durable + 1 + current.ahead, session, ticket, null);
        } else {
          list = list.filter((entry) => entry.session !== session);
          queue.forget(session);
          sessions = sessions.with(current.who, new RecordingSession());
        }
      }
      for (const [session, tickets] of expected) expect(session.delivered.map(([ticket]) => ticket)).toEqual(tickets);
      const delivered = sessions.reduce((sum, session) => sum + session.delivered.length, 0);
      expect(delivered).toBe(sessions.reduce((sum, session) => sum + (expected.get(session)?.length ?? 0), 0));
    }),
    { numRuns: 300 },
  );
});
