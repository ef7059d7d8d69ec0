import type { NodeSighting } from "../durability/shared-store.js";
import type { NodeAddress } from "../ports.js";

/**
 * The nodes that are there: those whose announcements have risen lately, by this node's clock. For clients that ask who there is;
 * no rule of the role looks at it.
 */

interface Known {
  readonly node: NodeAddress;
  readonly modRevision: number;
  readonly seenAtMs: number;
}

export class Nodes {
  readonly #quietMsMax: number;
  #known = new Map<string, Known>();

  /** `quietMsMax`: who has not announced itself for so long is gone. */
  constructor(quietMsMax: number) {
    this.#quietMsMax = quietMsMax;
  }

  /** All announcements there are; which of them are news is found here. */
  seen(sightings: readonly NodeSighting[], nowMs: number): void {
    const known = new Map<string, Known>();
    for (const { node, modRevision } of sightings) {
      const before = this.#known.get(node.id);
      const isNews = before === undefined || before.modRevision < modRevision;
      known.set(node.id, isNews ? { node, modRevision, seenAtMs: nowMs } : before);
    }
    this.#known = known;
  }

  /** In the order of their ids. */
  present(nowMs: number): NodeAddress[] {
    return [...this.#known.values()]
      .filter(({ seenAtMs }) => nowMs - seenAtMs < this.#quietMsMax)
      .map(({ node }) => node)
      .sort((a, b) => (a.id < b.id ? -1 : 1));
  }
}
