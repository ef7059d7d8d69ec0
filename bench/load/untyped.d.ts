/** What is used here of a package whose package.json hides its types. */

declare module "redlock5" {
  export class ExecutionError extends Error {}
  export interface Lock {
    release(): Promise<unknown>;
  }
  export default class Redlock {
    constructor(clients: Iterable<unknown>);
    acquire(resources: string[], ttlMs: number): Promise<Lock>;
  }
}
