import { encodeRequest, RespConnection, type RespReply } from "./resp-connection.js";
import {
  chooseId,
  ID_DIGITS,
  idDigits,
  type ExpectedReply,
  type LoadConnection,
  type OnReply,
  type RespSpec,
} from "./target.js";

/** A RESP connection under load: requests are encoded once but for their id, replies are matched by their order. */

export async function openRespConnection(
  spec: RespSpec,
  onReply: OnReply,
  onLost: (reason: string) => void,
): Promise<LoadConnection> {
  // Replies come in the order of the requests: the sequences of those under way, oldest first.
  const underWay = new SequenceQueue();
  const connection = await RespConnection.open(
    spec.port,
    (reply) => onReply(underWay.shift(), faultOf(reply, spec.expect)),
    onLost,
  );
  const encode = requestEncoder(spec);
  return {
    send(sequence) {
      underWay.push(sequence);
      connection.append(encode(chooseId(spec.ids, sequence)));
    },
    flush: () => connection.flush(),
    close: () => connection.close(),
  };
}

function requestEncoder(spec: RespSpec): (id: number) => string {
  const dueAtUnixMs = spec.dueAtUnixMs;
  if (dueAtUnixMs !== undefined) {
    return (id) => {
      const msUntilDue = Math.max(1, Math.round(dueAtUnixMs - Date.now())).toString();
      return encodeRequest(
        spec.argv.map((part) => part.replace("{id}", idDigits(id)).replace("{msUntilDue}", msUntilDue)),
      );
    };
  }
  return templateEncoder(spec.argv);
}

/** The digits never change in number, so all but them is encoded once. */
export function templateEncoder(argv: readonly string[]): (id: number) => string {
  const marker = "#".repeat(ID_DIGITS);
  const pieces = encodeRequest(argv.map((part) => part.replaceAll("{id}", marker))).split(marker);
  return (id) => pieces.join(idDigits(id));
}

/** null for the reply that was expected. */
export function faultOf(reply: RespReply, expected: ExpectedReply): string | null {
  if (reply instanceof Error) return reply.message;
  const right =
    expected === "positive"
      ? typeof reply === "number" && reply > 0
      : expected === "one"
        ? reply === 1
        : expected === "ok"
          ? reply === "OK"
          : Array.isArray(reply);
  return right ? null : `unexpected reply ${JSON.stringify(reply)}`;
}

/** Numbers in, numbers out, in order; grows, never shrinks. */
export class SequenceQueue {
  #ring = new Float64Array(64);
  #head = 0;
  #length = 0;

  push(sequence: number): void {
    if (this.#length === this.#ring.length) this.#grow();
    this.#ring[(this.#head + this.#length) & (this.#ring.length - 1)] = sequence;
    this.#length++;
  }

  /** Throws when empty: a reply without a request. */
  shift(): number {
    if (this.#length === 0) throw new Error("a reply came that nobody asked for");
    const sequence = this.#ring[this.#head] ?? Number.NaN;
    this.#head = (this.#head + 1) & (this.#ring.length - 1);
    this.#length--;
    return sequence;
  }

  #grow(): void {
    const larger = new Float64Array(this.#ring.length * 2);
    for (let index = 0; index < this.#length; index++) {
      larger[index] = this.#ring[(this.#head + index) & (this.#ring.length - 1)] ?? Number.NaN;
    }
    this.#ring = larger;
    this.#head = 0;
  }
}
