import * as fc from "fast-check";
import { describe, expect, it } from "vitest";
import { ReplyQueue } from "#src/resp/reply-queue.js";

type Step =
  | { readonly kind: "append" }
  | { readonly kind: "park"; readonly isSilent: boolean }
  | { readonly kind: "answer"; readonly pick: number };

const step: fc.Arbitrary<Step> = fc.oneof(
  fc.constant({ kind: "append" } as const),
  fc.boolean().map((isSilent) => ({ kind: "park", isSilent }) as const),
  fc.nat().map((pick) => ({ kind: "answer", pick }) as const),
);

describe("reply queue", () => {
  it("lets replies out in the order of their commands, and as early as that allows", () => {
    fc.assert(
      fc.property(fc.array(step, { maxLength: 200 }), (steps) => {
        const queue = new ReplyQueue();
        /** The model: a plain list of what each command answers, null while it is not known. */
        const model: (string | null)[] = [];
        const places = new Map<number, { readonly place: number; readonly isSilent: boolean }>();
        let number = 0;
        let sent = "";
        let expectedSent = 0;

        const answer = (ticket: number): void => {
          const { place, isSilent } = places.get(ticket) as { place: number; isSilent: boolean };
          places.delete(ticket);
          model[place] = isSilent ? "" : `:${++number}\r\n`;
          queue.answer(ticket, number);
        };
        const check = (): void => {
          sent += queue.take();
          while (expectedSent < model.length && model[expectedSent] !== null) expectedSent++;
          expect(sent).toBe(model.slice(0, expectedSent).join(""));
          const waiting = model.slice(expectedSent);
          expect(queue.waitingBytes).toBe(waiting.reduce((sum, text) => sum + (text?.length ?? 0), 0));
          expect(queue.isEmpty).toBe(waiting.length === 0);
        };

        for (const one of steps) {
          if (one.kind === "append") {
            model.push(`+${++number}\r\n`);
            queue.append(`+${number}\r\n`);
          } else if (one.kind === "park") {
            const offered = queue.nextTicket;
            expect(queue.park(2, one.isSilent)).toBe(offered);
            places.set(offered, { place: model.push(null) - 1, isSilent: one.isSilent });
          } else if (places.size > 0) {
            answer([...places.keys()][one.pick % places.size] as number);
          }
          check();
        }
        for (const ticket of [...places.keys()].toReversed()) answer(ticket);
        check();
        expect(queue.isEmpty).toBe(true);
        expect(queue.parkedCount).toBe(0);
      }),
      { numRuns: 300 },
    );
  });

  it("encodes a parked reply in the protocol of its command", () => {
    const queue = new ReplyQueue();
    const first = queue.park(2, false);
    const second = queue.park(3, false);
    queue.answer(second, null);
    expect(queue.take()).toBe("");
    queue.answer(first, null);
    expect(queue.take()).toBe("$-1\r\n_\r\n");
  });

  it("puts a message for a blocked client in front of the answer that it is blocked for", () => {
    const queue = new ReplyQueue();
    const durable = queue.park(3, false);
    const blocked = queue.park(3, false);
    queue.appendBeforeLast("first ");
    expect(queue.take()).toBe("");
    queue.answer(durable, 1);
    queue.appendBeforeLast("second ");
    expect(queue.take()).toBe(":1\r\nfirst second ");
    queue.answer(blocked, 2);
    expect(queue.take()).toBe(":2\r\n");
  });

  it("stays small however many replies pass through it", () => {
    const queue = new ReplyQueue();
    const open: number[] = [queue.park(2, false)];
    for (let round = 0; round < 100_000; round++) {
      open.push(queue.park(2, false));
      queue.answer(open.shift() as number, round);
      queue.take();
    }
    expect(queue.parkedCount).toBe(1);
    expect(queue.waitingBytes).toBe(0);
  });

  it("crashes on a ticket that is not out", () => {
    const queue = new ReplyQueue();
    const ticket = queue.park(2, false);
    queue.park(2, false);
    expect(() => queue.answer(ticket + 2, 1)).toThrow(/parked/);
    queue.answer(ticket + 1, 1);
    expect(() => queue.answer(ticket + 1, 1)).toThrow(/once/);
    queue.answer(ticket, 1);
    expect(() => queue.answer(ticket, 1)).toThrow(/parked/);
  });
});
