import { invariant } from "./engine/invariant.js";
import { LOADING, READONLY } from "./engine/errors.js";
import type { ErrorReply } from "./engine/reply.js";
import type { RoleName } from "./ports.js";

/**
 * The role of this node, as a table of legal transitions and of what each role may answer.
 *
 *   standby ──► loading ──► primary ──► standby     (asked to, or to hand over)
 *      ▲           │           │
 *      └───────────┴───────────┴──► fenced ──► standby   (another node took the role)
 *   any ──► stopped                                  (shutdown, or the store failed: the end)
 *
 * Invariants:
 *  - wheel, state and committer exist only while loading or primary; a standby has none, so it cannot expire or renew
 *  - the epoch never falls and rises with each take-over
 *  - the role is checked by every command at the moment at which it is decided, never remembered across a wait
 */

const TRANSITIONS: Readonly<Record<RoleName, readonly RoleName[]>> = {
  standby: ["loading", "stopped"],
  loading: ["primary", "standby", "fenced", "stopped"],
  primary: ["standby", "fenced", "stopped"],
  fenced: ["standby", "stopped"],
  stopped: [],
};

export class Role {
  #name: RoleName = "standby";
  #epoch = 0;

  get name(): RoleName {
    return this.#name;
  }

  /** 0 before the first take-over. */
  get epoch(): number {
    return this.#epoch;
  }

  /** Whether the table allows the step; asking is free. */
  mayBecome(next: RoleName): boolean {
    return TRANSITIONS[this.#name].includes(next);
  }

  /** Takes a step of the table; an illegal one is a programmer error. */
  become(next: RoleName): void {
    invariant(this.mayBecome(next), `a node cannot go from ${this.#name} to ${next}`);
    this.#name = next;
  }

  /** Notes the epoch that the store gave this take-over. */
  enterEpoch(epoch: number): void {
    invariant(epoch > this.#epoch, "an epoch must rise with each take-over");
    this.#epoch = epoch;
  }

  /** The error for an engine command, or null when this role serves it. */
  refusal(): ErrorReply | null {
    switch (this.#name) {
      case "primary":
        return null;
      case "loading":
        return LOADING;
      case "standby":
      case "fenced":
      case "stopped":
        return READONLY;
    }
  }
}
