/**
 * I6: at most one node acknowledges per epoch, and epochs only rise: the acknowledgements of all nodes, in the order that clients can
 * know, must fit the order in which the nodes had the role.
 *
 * An acknowledgement lies somewhere between the send of its request and its arrival. Each is given the earliest tenure of its node that
 * what was known before its send leaves; when none is left, two nodes acted as primary at one time, or an old one afterwards.
 */

/** One change of the fence. */
export interface Fence {
  readonly epoch: number;
  /** Data port of the node that wrote it. */
  readonly port: number;
  readonly revision: number;
}

/** An answer that only a primary gives. */
export interface Acknowledgement {
  /** Data port of the node that answered. */
  readonly port: number;
  /** Read before the request was sent, and after the answer had arrived. */
  readonly invokeMs: number;
  readonly returnMs: number;
}

/** What breaks I6, as sentences. `fences`: all there ever were, in their order. */
export function checkEpochs(fences: readonly Fence[], acknowledgements: readonly Acknowledgement[]): string[] {
  const faults: string[] = [];
  for (const [index, fence] of fences.entries()) {
    const before = fences[index - 1];
    if (before !== undefined && fence.epoch <= before.epoch) {
      faults.push(`epoch ${fence.epoch} of ${fence.port} came after epoch ${before.epoch} of ${before.port}`);
    }
  }
  const tenures = fences.map(({ port }) => port);
  const placed: { readonly returnMs: number; readonly tenure: number; readonly port: number }[] = [];
  const byInvoke = acknowledgements.toSorted((a, b) => a.invokeMs - b.invokeMs);
  let newest = { tenure: 0, port: tenures[0] ?? 0, returnMs: -Infinity };
  for (const { port, invokeMs, returnMs } of byInvoke) {
    for (const one of takeReturned(placed, invokeMs)) if (one.tenure > newest.tenure) newest = one;
    const tenure = tenures.indexOf(port, newest.tenure);
    if (tenure >= 0) {
      placed.push({ returnMs, tenure, port });
      continue;
    }
    const lateMs = Math.round(invokeMs - newest.returnMs);
    faults.push(
      `${port} acknowledged what was sent ${lateMs} ms after ${newest.port} had acknowledged in a later tenure`,
    );
  }
  return faults;
}

/** Takes those that had returned before `atMs` out of the list. */
function takeReturned<T extends { readonly returnMs: number }>(placed: T[], atMs: number): T[] {
  const returned = placed.filter((one) => one.returnMs < atMs);
  if (returned.length > 0) placed.splice(0, placed.length, ...placed.filter((one) => one.returnMs >= atMs));
  return returned;
}
