import type { Log, Scheduler, Timer } from "../../ports.js";
import { EtcdError, type EtcdCalls } from "./etcd-client.js";
import type { StatusReply } from "./protocol.js";

/**
 * Looks after the etcd cluster itself, now and success: how full it is, how old it is, and, if asked to, that its history does not grow
 * without end.
 */

export interface HealthOptions {
  readonly client: EtcdCalls;
  readonly scheduler: Scheduler;
  readonly log: Log;
  /** What members allow their database; members before 3.6 do not say. */
  readonly quotaBytes: number;
  /** null: somebody else compacts etcd. */
  readonly compaction: CompactionOptions | null;
  /** Only the primary compacts. */
  isPrimary(): boolean;
}

export interface CompactionOptions {
  readonly everyMs: number;
  readonly keepRevisions: number;
}

const LOOK_EVERY_MS = 10_000;

/** Older ones can lose or corrupt what they acknowledged. */
const VERSION_MIN = [3, 4, 42] as const;

export class EtcdHealth {
  readonly #options: HealthOptions;
  #timer: Timer | null = null;
  #usedBytes: number | null = null;
  #quotaBytes: number | null = null;
  #started = false;
  #stopped = false;
  #warned = false;
  #revision = 0;
  #compactedRevision = 0;
  #looksUntilCompaction: number;

  constructor(options: HealthOptions) {
    this.#options = options;
    this.#looksUntilCompaction = this.#looksPerCompaction();
  }

  /** Of the member that uses most; null before anyone said so. */
  get usedBytes(): number | null {
    return this.#usedBytes;
  }

  get quotaBytes(): number | null {
    return this.#quotaBytes;
  }

  /** May be called again. */
  start(): void {
    if (this.#started) return;
    this.#started = true;
    this.#options.scheduler.soon(() => void this.#look());
  }

  stop(): void {
    this.#stopped = true;
    this.#timer?.cancel();
  }

  async #look(): Promise<void> {
    if (this.#stopped) return;
    const { client, scheduler } = this.#options;
    const outcomes = await Promise.allSettled(client.endpoints.map((endpoint) => client.status(endpoint)));
    if (this.#stopped) return;
    const replies: StatusReply[] = [];
    for (const outcome of outcomes) {
      if (outcome.status === "fulfilled") replies.push(outcome.value);
      else if (!(outcome.reason instanceof EtcdError)) throw outcome.reason;
    }
    if (replies.length > 0) {
      this.#note(replies);
      await this.#compact();
    }
    if (!this.#stopped) this.#timer = scheduler.after(LOOK_EVERY_MS, () => void this.#look());
  }

  #note(replies: readonly StatusReply[]): void {
    this.#usedBytes = Math.max(...replies.map((reply) => reply.databaseBytes));
    const quotas = replies.map((reply) => reply.quotaBytes).filter((bytes) => bytes > 0);
    this.#quotaBytes = quotas.length > 0 ? Math.min(...quotas) : this.#options.quotaBytes;
    this.#revision = Math.max(...replies.map((reply) => reply.revision));
    if (this.#warned) return;
    this.#warned = true;
    const old = replies.find((reply) => isOlder(reply.version));
    if (old !== undefined) {
      const text = "etcd is older than 3.4.42, which has fixes that Leasehold's promises rest on";
      this.#options.log.write("warn", text, { version: old.version });
    }
    if (this.#options.compaction === null) {
      const text =
        "etcd must compact its history by itself (--auto-compaction-retention): it does not tell whether it does";
      this.#options.log.write("warn", text);
    }
  }

  #looksPerCompaction(): number {
    return Math.max(1, Math.round((this.#options.compaction?.everyMs ?? 0) / LOOK_EVERY_MS));
  }

  async #compact(): Promise<void> {
    const { client, compaction, log } = this.#options;
    if (compaction === null || !this.#options.isPrimary()) return;
    this.#looksUntilCompaction -= 1;
    if (this.#looksUntilCompaction > 0) return;
    this.#looksUntilCompaction = this.#looksPerCompaction();
    const revision = this.#revision - compaction.keepRevisions;
    if (revision <= this.#compactedRevision) return;
    try {
      await client.compact(revision);
      this.#compactedRevision = revision;
    } catch (error) {
      if (!(error instanceof EtcdError)) throw error;
      // Somebody else has compacted more: as good.
      if (error.kind !== "compacted") log.write("warn", `etcd could not be compacted: ${error.message}`);
    }
  }
}

function isOlder(version: string): boolean {
  const numbers = version.split(".").map((part) => Number.parseInt(part, 10));
  for (const [index, minimum] of VERSION_MIN.entries()) {
    const number = numbers[index] ?? 0;
    if (number !== minimum) return number < minimum;
  }
  return false;
}
