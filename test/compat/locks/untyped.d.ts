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
    using(resources: string[], ttlMs: number, settings: object, routine: () => Promise<void>): Promise<void>;
  }
}

declare module "ioredis-lock" {
  export interface Lock {
    acquire(key: string): PromiseLike<void>;
    extend(ttlMs: number): PromiseLike<void>;
    release(): PromiseLike<void>;
  }
  export function createLock(client: unknown, options: object): Lock;
}

declare module "redis-lock" {
  type Release = () => Promise<unknown>;
  /** Waits, asking every `retryMs`, until it has the lock. */
  type Lock = (name: string, ttlMs: number) => Promise<Release>;
  export default function redisLock(client: unknown, retryMs: number): Lock;
}

declare module "redislock" {
  export interface RedisLock {
    acquire(key: string): PromiseLike<void>;
    extend(ttlMs: number): PromiseLike<void>;
    release(): PromiseLike<void>;
  }
  export function createLock(client: unknown, options: object): RedisLock;
}

declare module "node-redis-warlock" {
  type Unlock = (done: (error: Error | null, count: number) => void) => void;
  interface Warlock {
    lock(key: string, ttlMs: number, done: (error: Error | null, unlock: Unlock | false, id: string) => void): void;
    touch(key: string, id: string, ttlMs: number): Promise<unknown>;
  }
  export default function warlock(client: unknown): Warlock;
}

declare module "safe-redis-leader" {
  export interface Leader {
    elect(): Promise<void>;
    isLeader(): Promise<boolean>;
    shutdown(): Promise<void>;
    on(event: "elected" | "demoted" | "error", listener: (error?: unknown) => void): void;
  }
  export function createSafeRedisLeader(options: {
    readonly asyncRedis: unknown;
    readonly ttl: number;
    readonly wait: number;
    readonly key: string;
  }): Promise<Leader>;
}
