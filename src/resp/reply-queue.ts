import { invariant } from "../engine/invariant.js";
import type { ByteString, Reply } from "../engine/reply.js";
import type { ProtocolVersion } from "./command.js";
import { encodeReply } from "./encoder.js";

/**
 * The replies of one connection, in the order of its commands. Most are ready at once; some are parked until their change is
 * durable, and everything behind a parked one waits with it, already encoded.
 *
 * Tickets number the parked replies only: 1, 2, 3 ... A command learns the number that it would get before it runs; when it
 * turns out not to be parked, the next command is offered the same one. So a ticket finds its place by subtraction.
 *
 * Invariants:
 *  1. text leaves in the order in which it was appended or parked, whatever the order of the answers
 *  2. a reply is encoded in the protocol that was in force when its command ran
 *  3. each ticket is answered once
 */

interface ParkedReply {
  readonly protocol: ProtocolVersion;
  /** CLIENT REPLY OFF or SKIP: it holds its place and says nothing. */
  readonly isSilent: boolean;
  /** null: not answered yet. */
  text: ByteString | null;
  /** What follows it, up to the next parked reply. */
  behind: ByteString;
}

/** Released places at the front of the list before they are cut off. */
const COMPACT_AT = 256;

export class ReplyQueue {
  #ready: ByteString = "";
  #parked: ParkedReply[] = [];
  /** Index of the first parked reply in the list. */
  #head = 0;
  #headTicket = 1;
  #waitingBytes = 0;

  /** The ticket of the next reply to be parked. */
  get nextTicket(): number {
    return this.#headTicket + this.parkedCount;
  }

  get parkedCount(): number {
    return this.#parked.length - this.#head;
  }

  /** Bytes that may be sent now. */
  get readyBytes(): number {
    return this.#ready.length;
  }

  /** Bytes that wait behind a parked reply, or are one that waits behind another. */
  get waitingBytes(): number {
    return this.#waitingBytes;
  }

  get isEmpty(): boolean {
    return this.#ready === "" && this.parkedCount === 0;
  }

  append(text: ByteString): void {
    if (this.parkedCount === 0) {
      this.#ready += text;
    } else {
      const last = this.#parked.at(-1) as ParkedReply;
      last.behind += text;
      this.#waitingBytes += text.length;
    }
  }

  /**
   * As `append`, but in front of the newest parked reply: for messages to a client that is blocked in a command, perhaps for
   * ever, behind whose answer they must not wait.
   */
  appendBeforeLast(text: ByteString): void {
    const parkedCount = this.parkedCount;
    if (parkedCount < 2) {
      this.#ready += text;
    } else {
      const lastButOne = this.#parked.at(-2) as ParkedReply;
      lastButOne.behind += text;
      this.#waitingBytes += text.length;
    }
  }

  /** Holds the place of a reply that `answer` brings later. */
  park(protocol: ProtocolVersion, isSilent: boolean): number {
    const ticket = this.nextTicket;
    this.#parked.push({ protocol, isSilent, text: null, behind: "" });
    return ticket;
  }

  /** The answer to a parked reply. Frees it and what waits behind it once nothing before it waits. */
  answer(ticket: number, reply: Reply): void {
    const index = ticket - this.#headTicket + this.#head;
    const parked = index < this.#head ? undefined : this.#parked[index];
    invariant(parked !== undefined, "a ticket names a parked reply");
    invariant(parked.text === null, "a ticket is answered once");
    parked.text = parked.isSilent ? "" : encodeReply(reply, parked.protocol);
    this.#waitingBytes += parked.text.length;
    if (index === this.#head) this.#release();
  }

  /** Everything that may be sent, which leaves the queue with it. */
  take(): ByteString {
    const text = this.#ready;
    this.#ready = "";
    return text;
  }

  /** Forgets everything; tickets still out must not be answered any more. */
  clear(): void {
    this.#headTicket = this.nextTicket;
    this.#ready = "";
    this.#parked = [];
    this.#head = 0;
    this.#waitingBytes = 0;
  }

  #release(): void {
    let head = this.#head;
    for (; head < this.#parked.length; head++) {
      const parked = this.#parked[head] as ParkedReply;
      if (parked.text === null) break;
      this.#ready += parked.text + parked.behind;
      this.#waitingBytes -= parked.text.length + parked.behind.length;
      this.#headTicket++;
    }
    if (head === this.#parked.length) {
      this.#parked.length = 0;
      head = 0;
    } else if (head >= COMPACT_AT && head * 2 >= this.#parked.length) {
      this.#parked.splice(0, head);
      head = 0;
    }
    this.#head = head;
  }
}
