import type { EngineEvent, KeyspaceEvent } from "../engine/events.js";
import { KEY_BYTES_MAX } from "../engine/limits.js";
import { compileGlob } from "../engine/glob.js";
import { PushReply, type ByteString } from "../engine/reply.js";
import type { ClientConnection, ClientSubscriptions } from "./command.js";
import { EncodedOnce } from "./encoder.js";
import { KEYSPACE_FLAGS, type RuntimeSettings } from "./server-settings.js";

/**
 * Who listens to which channel, and the way from an engine event to the channels that clients know.
 *
 * Three name spaces that do not touch: channels, patterns over channels, and shard channels (SSUBSCRIBE), which without a
 * cluster are channels of their own.
 *
 * Invariants:
 *  - an event without listeners costs one comparison
 *  - a subscriber gets each message once per subscription that matches it, as in Redis: a channel and two patterns are three
 *  - `#globs` has an entry for exactly the patterns of `#patterns`
 *  - a connection is in exactly those sets that its `Subscriptions` names, and in none after `dropAll`
 *  - a slow subscriber delays nobody: the connection bounds what waits for it, and is closed at its limit
 */

/** Subscriptions of one connection, all kinds together. */
export const SUBSCRIPTIONS_PER_CONNECTION_MAX = 10_000;

/** Different patterns of all connections together: each message is matched against every one. */
export const PATTERNS_MAX = 10_000;

/** Long enough for `__keyspace@15__:` and `lock:` in front of the longest key. */
export const CHANNEL_BYTES_MAX = KEY_BYTES_MAX + 64;

export type SubscriptionKind = "channel" | "pattern" | "shard";

/** What one connection listens to. */
export class Subscriptions implements ClientSubscriptions {
  readonly channels = new Set<ByteString>();
  readonly patterns = new Set<ByteString>();
  readonly shards = new Set<ByteString>();
  readonly #registry: PubSub;
  readonly #connection: ClientConnection;

  constructor(registry: PubSub, connection: ClientConnection) {
    this.#registry = registry;
    this.#connection = connection;
  }

  get channelCount(): number {
    return this.channels.size;
  }

  get patternCount(): number {
    return this.patterns.size;
  }

  get shardCount(): number {
    return this.shards.size;
  }

  get total(): number {
    return this.channels.size + this.patterns.size + this.shards.size;
  }

  of(kind: SubscriptionKind): Set<ByteString> {
    switch (kind) {
      case "channel":
        return this.channels;
      case "pattern":
        return this.patterns;
      case "shard":
        return this.shards;
    }
  }

  dropAll(): void {
    for (const kind of ["channel", "pattern", "shard"] as const) {
      for (const name of this.of(kind)) this.#registry.unsubscribe(kind, name, this.#connection);
    }
  }
}

type Listeners = Map<ByteString, Set<ClientConnection>>;

type Glob = (name: ByteString) => boolean;

export class PubSub {
  readonly #settings: RuntimeSettings;
  readonly #channels: Listeners = new Map();
  readonly #patterns: Listeners = new Map();
  readonly #shards: Listeners = new Map();
  /** The patterns of `#patterns`, compiled. */
  readonly #globs = new Map<ByteString, Glob>();

  constructor(settings: RuntimeSettings) {
    this.#settings = settings;
  }

  /** False when no message could reach anybody: whoever makes events may skip making them. */
  get hasListeners(): boolean {
    return this.#channels.size > 0 || this.#patterns.size > 0;
  }

  get channelCount(): number {
    return this.#channels.size;
  }

  get patternCount(): number {
    return this.#patterns.size;
  }

  get shardChannelCount(): number {
    return this.#shards.size;
  }

  /** What `connection` listens to; made when it subscribes for the first time. */
  subscriptionsOf(connection: ClientConnection): Subscriptions {
    if (connection.subscriptions instanceof Subscriptions) return connection.subscriptions;
    const made = new Subscriptions(this, connection);
    connection.subscriptions = made;
    return made;
  }

  /** The caller has checked the limits above. Subscribing twice is subscribing once. */
  subscribe(kind: SubscriptionKind, name: ByteString, connection: ClientConnection): void {
    this.subscriptionsOf(connection).of(kind).add(name);
    const listeners = this.#of(kind);
    const connections = listeners.get(name);
    if (connections !== undefined) {
      connections.add(connection);
      return;
    }
    listeners.set(name, new Set([connection]));
    if (kind === "pattern") this.#globs.set(name, compileGlob(name));
  }

  unsubscribe(kind: SubscriptionKind, name: ByteString, connection: ClientConnection): void {
    this.subscriptionsOf(connection).of(kind).delete(name);
    const listeners = this.#of(kind);
    const connections = listeners.get(name);
    if (connections === undefined) return;
    connections.delete(connection);
    if (connections.size > 0) return;
    listeners.delete(name);
    if (kind === "pattern") this.#globs.delete(name);
  }

  /** PUBLISH. Answers how many deliveries there were. */
  publish(channel: ByteString, message: ByteString): number {
    let deliveries = 0;
    const listeners = this.#channels.get(channel);
    if (listeners !== undefined) deliveries += deliver(listeners, new PushReply(["message", channel, message]));
    for (const [pattern, matches] of this.#globs) {
      if (!matches(channel)) continue;
      const matched = this.#patterns.get(pattern);
      if (matched !== undefined) deliveries += deliver(matched, new PushReply(["pmessage", pattern, channel, message]));
    }
    return deliveries;
  }

  /** How many deliveries `publish` would make now. */
  receiverCount(channel: ByteString): number {
    let count = this.listenerCount("channel", channel);
    for (const [pattern, matches] of this.#globs) {
      if (matches(channel)) count += this.#patterns.get(pattern)?.size ?? 0;
    }
    return count;
  }

  /** SPUBLISH. */
  publishToShard(channel: ByteString, message: ByteString): number {
    const listeners = this.#shards.get(channel);
    return listeners === undefined ? 0 : deliver(listeners, new PushReply(["smessage", channel, message]));
  }

  /** Publishes what the engine tells, on the channels of PROTOCOL.md. Called once the change is durable and visible. */
  publishEvent(event: EngineEvent): void {
    if (!this.hasListeners) return;
    switch (event.kind) {
      case "lease":
        this.publish(`lease:${event.id}`, event.message);
        return;
      case "lock":
        this.publish(`lock:${event.key}`, event.message);
        return;
      case "keyspace": {
        const flags = this.#settings.keyspaceFlags;
        if ((flags & CLASS_OF_EVENT[event.event]) === 0) return;
        const database = event.databaseIndex;
        if ((flags & KEYSPACE_FLAGS.K) !== 0) this.publish(`__keyspace@${database}__:${event.key}`, event.event);
        if ((flags & KEYSPACE_FLAGS.E) !== 0) this.publish(`__keyevent@${database}__:${event.event}`, event.key);
        return;
      }
    }
  }

  /** PUBSUB CHANNELS and SHARDCHANNELS: names with a listener, those that match `pattern` or all. */
  activeNames(kind: "channel" | "shard", pattern: ByteString | null): ByteString[] {
    const names = [...this.#of(kind).keys()];
    return pattern === null ? names : names.filter(compileGlob(pattern));
  }

  /** PUBSUB NUMSUB and SHARDNUMSUB. */
  listenerCount(kind: "channel" | "shard", name: ByteString): number {
    return this.#of(kind).get(name)?.size ?? 0;
  }

  #of(kind: SubscriptionKind): Listeners {
    switch (kind) {
      case "channel":
        return this.#channels;
      case "pattern":
        return this.#patterns;
      case "shard":
        return this.#shards;
    }
  }
}

/** Redis's class of each event. */
const CLASS_OF_EVENT: Readonly<Record<KeyspaceEvent, number>> = {
  set: KEYSPACE_FLAGS.$,
  append: KEYSPACE_FLAGS.$,
  setrange: KEYSPACE_FLAGS.$,
  incrby: KEYSPACE_FLAGS.$,
  incrbyfloat: KEYSPACE_FLAGS.$,
  del: KEYSPACE_FLAGS.g,
  expire: KEYSPACE_FLAGS.g,
  persist: KEYSPACE_FLAGS.g,
  expired: KEYSPACE_FLAGS.x,
};

/** The message is encoded once for all. A push may end a connection that does not read, which takes it out of the set. */
function deliver(connections: ReadonlySet<ClientConnection>, reply: PushReply): number {
  const message = new EncodedOnce(reply);
  let deliveries = 0;
  for (const connection of connections) {
    connection.push(message);
    deliveries += 1;
  }
  return deliveries;
}
