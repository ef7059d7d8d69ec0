/** What is used here of the packages that come without types, or with types that their package.json hides. */

declare module "redlock4" {
  export interface Lock {
    extend(ttlMs: number): PromiseLike<Lock>;
    unlock(): PromiseLike<void>;
  }
  export default class Redlock {
    constructor(clients: readonly unknown[], options: { readonly retryCount: number });
    lock(resource: string, ttlMs: number): PromiseLike<Lock>;
  }
}

declare module "redlock5" {
  export class ExecutionError extends Error {}
  export interface Lock {
    extend(ttlMs: number): Promise<Lock>;
    release(): Promise<unknown>;
  }
  export default class Redlock {
    constructor(clients: Iterable<unknown>, settings: object);
    acquire(resources: string[], ttlMs: number): Promise<Lock>;
    using(resources: string[], ttlMs: number, routine: () => Promise<void>): Promise<void>;
  }
}
