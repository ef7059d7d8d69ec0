import { generic, limitReached, quoteForError, tooLong } from "../../engine/errors.js";
import { PushReply, type ByteString, type ErrorReply, type Reply } from "../../engine/reply.js";
import { SeveralReplies, type ClientConnection, type CommandSpec, type RunResult } from "../command.js";
import { optional, pattern, several, text, type CommandRow } from "../command-definition.js";
import { CHANNEL_BYTES_MAX, PATTERNS_MAX, SUBSCRIPTIONS_PER_CONNECTION_MAX, type SubscriptionKind } from "../pubsub.js";
import type { ServerContext } from "../server-context.js";
import { patternError } from "./arguments.js";

/**
 * PUBLISH, SUBSCRIBE and their kin. The registry is `pubsub.ts`; here are the confirmations, Redis's restriction of what a
 * RESP2 subscriber may send, and the limits.
 */

const SINCE_SHARDS = "7.0.0";

interface Family {
  readonly kind: SubscriptionKind;
  readonly subscribe: string;
  readonly unsubscribe: string;
  readonly what: string;
}

const CHANNELS: Family = { kind: "channel", subscribe: "subscribe", unsubscribe: "unsubscribe", what: "channel" };
const PATTERNS: Family = { kind: "pattern", subscribe: "psubscribe", unsubscribe: "punsubscribe", what: "pattern" };
const SHARDS: Family = { kind: "shard", subscribe: "ssubscribe", unsubscribe: "sunsubscribe", what: "shardchannel" };

/** What the channels need to know of a server. */
type PubSubContext = Pick<ServerContext, "pubsub">;

export function pubsubCommands(context: ServerContext): CommandRow[] {
  return [
    publishRow(context, "publish", "2.0.0", "Sends a message to whoever listens to a channel."),
    publishRow(context, "spublish", SINCE_SHARDS, "Sends a message to a shard channel."),
    ...subscriptionRows(context, CHANNELS, "2.0.0", "channels"),
    ...subscriptionRows(context, PATTERNS, "2.0.0", "all channels whose names match a glob"),
    ...subscriptionRows(context, SHARDS, SINCE_SHARDS, "shard channels"),
    pubsubRow(context),
  ];
}

/** SUBSCRIBE, PSUBSCRIBE and their opposites, for a port on which only the server itself publishes. */
export function listeningCommands(context: PubSubContext): CommandRow[] {
  return [
    ...subscriptionRows(context, CHANNELS, "2.0.0", "channels"),
    ...subscriptionRows(context, PATTERNS, "2.0.0", "all channels whose names match a glob"),
  ];
}

/** Within a step a message goes out with the step's answer; the number of deliveries is that of now. */
function publishRow(context: PubSubContext, name: "publish" | "spublish", since: string, summary: string): CommandRow {
  const { pubsub } = context;
  const isShard = name === "spublish";
  const publish = (channel: ByteString, message: ByteString): number =>
    isShard ? pubsub.publishToShard(channel, message) : pubsub.publish(channel, message);
  return {
    name,
    arity: 3,
    flags: "pubsub loading stale fast",
    summary,
    since,
    group: "pubsub",
    complexity: "O(N+M) in the number of listeners and of patterns",
    arguments: [text(isShard ? "shardchannel" : "channel"), text("message")],
    ...(isShard ? { keys: [1, 1, 1] as const } : {}),
    replies: "number of deliveries",
    examples: [`${name.toUpperCase()} news hello`],
    run: ([, channel = "", message = ""]) => publish(channel, message),
    compose: ([, channel = "", message = ""], _connection, step) => {
      step.whenDurable(() => {
        publish(channel, message);
      });
      return isShard ? pubsub.listenerCount("shard", channel) : pubsub.receiverCount(channel);
    },
  };
}

function subscriptionRows(context: PubSubContext, family: Family, since: string, what: string): CommandRow[] {
  const name = family.kind === "pattern" ? pattern() : text(family.what);
  // In a cluster a shard channel decides the slot, as a key does.
  const keys = family.kind === "shard" ? { keys: [1, -1, 1] as const } : {};
  return [
    {
      name: family.subscribe,
      arity: -2,
      flags: "pubsub noscript loading stale",
      summary: `Listens to ${what}.`,
      since,
      group: "pubsub",
      complexity: "O(N) in the number of names",
      arguments: [several(name)],
      ...keys,
      replies: "one confirmation for each name, then messages as they come",
      examples: [`${family.subscribe.toUpperCase()} lease:worker-7`],
      standsAlone: true,
      run: (argv, connection) => subscribe(context, family, argv, connection),
    },
    {
      name: family.unsubscribe,
      arity: -1,
      flags: "pubsub noscript loading stale",
      summary: `Stops listening to ${what}.`,
      since,
      group: "pubsub",
      complexity: "O(N) in the number of names",
      arguments: [optional(several(name))],
      ...keys,
      replies: "one confirmation for each name; without names, for each subscription",
      examples: [family.unsubscribe.toUpperCase()],
      standsAlone: true,
      run: (argv, connection) => unsubscribe(context, family, argv, connection),
    },
  ];
}

function subscribe(
  context: PubSubContext,
  family: Family,
  argv: readonly ByteString[],
  connection: ClientConnection,
): RunResult {
  const names = argv.slice(1);
  const subscriptions = context.pubsub.subscriptionsOf(connection);
  const error = subscribeError(context, family, names, subscriptions.total);
  if (error !== null) return error;
  const confirmations = names.map((name) => {
    context.pubsub.subscribe(family.kind, name, connection);
    return new PushReply([family.subscribe, name, confirmedCount(context, family, connection)]);
  });
  connection.gate = subscriberGate;
  return new SeveralReplies(confirmations);
}

function subscribeError(
  context: PubSubContext,
  family: Family,
  names: readonly ByteString[],
  total: number,
): ErrorReply | null {
  if (total + names.length > SUBSCRIPTIONS_PER_CONNECTION_MAX) {
    return limitReached("subscriptions of one connection", SUBSCRIPTIONS_PER_CONNECTION_MAX);
  }
  if (family.kind === "pattern") {
    if (context.pubsub.patternCount + names.length > PATTERNS_MAX) return limitReached("patterns", PATTERNS_MAX);
    for (const name of names) {
      const error = patternError(name);
      if (error !== null) return error;
    }
    return null;
  }
  const long = names.find((name) => name.length > CHANNEL_BYTES_MAX);
  return long === undefined ? null : tooLong("the channel name", long.length, CHANNEL_BYTES_MAX);
}

function unsubscribe(
  context: PubSubContext,
  family: Family,
  argv: readonly ByteString[],
  connection: ClientConnection,
): RunResult {
  const subscriptions = context.pubsub.subscriptionsOf(connection);
  const names = argv.length > 1 ? argv.slice(1) : [...subscriptions.of(family.kind)];
  const confirmations: Reply[] = names.map((name) => {
    context.pubsub.unsubscribe(family.kind, name, connection);
    return new PushReply([family.unsubscribe, name, confirmedCount(context, family, connection)]);
  });
  if (names.length === 0) {
    confirmations.push(new PushReply([family.unsubscribe, null, confirmedCount(context, family, connection)]));
  }
  if (subscriptions.total === 0) {
    connection.subscriptions = null;
    if (connection.gate === subscriberGate) connection.gate = null;
  }
  return new SeveralReplies(confirmations);
}

/** Redis counts channels and patterns together, and shard channels for themselves. */
function confirmedCount(context: PubSubContext, family: Family, connection: ClientConnection): number {
  const subscriptions = context.pubsub.subscriptionsOf(connection);
  return family.kind === "shard" ? subscriptions.shardCount : subscriptions.channelCount + subscriptions.patternCount;
}

const ALLOWED_TO_SUBSCRIBERS: ReadonlySet<string> = new Set([
  "ping",
  "quit",
  "reset",
  ...[CHANNELS, PATTERNS, SHARDS].flatMap((family) => [family.subscribe, family.unsubscribe]),
]);

/** In RESP2 a subscriber's replies and messages look alike, so that Redis allows it few commands. RESP3 has no such limit. */
function subscriberGate(
  spec: CommandSpec,
  _argv: readonly ByteString[],
  connection: ClientConnection,
): RunResult | undefined {
  if (connection.protocol !== 2 || ALLOWED_TO_SUBSCRIBERS.has(spec.name)) return undefined;
  return generic(
    `Can't execute '${spec.name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context`,
  );
}

function pubsubRow(context: PubSubContext): CommandRow {
  const { pubsub } = context;
  const sub = (fields: Omit<CommandRow, "group" | "flags">): CommandRow => ({
    ...fields,
    group: "pubsub",
    flags: "pubsub loading stale",
  });
  const channelsRow = (name: string, kind: "channel" | "shard", since: string, what: string): CommandRow =>
    sub({
      name: `pubsub|${name}`,
      arity: -2,
      summary: `Lists the ${what} that somebody listens to.`,
      since,
      complexity: "O(N) in the number of channels",
      arguments: [optional(pattern())],
      replies: "array of names",
      run: (argv) => {
        if (argv.length > 3) return wrongUse(argv[1] ?? "");
        return patternError(argv[2] ?? "") ?? pubsub.activeNames(kind, argv[2] ?? null);
      },
    });
  const countsRow = (name: string, kind: "channel" | "shard", since: string, what: string): CommandRow =>
    sub({
      name: `pubsub|${name}`,
      arity: -2,
      summary: `Counts the listeners of ${what}.`,
      since,
      complexity: "O(N) in the number of names",
      arguments: [optional(several(text(kind === "shard" ? "shardchannel" : "channel")))],
      replies: "name and number in turn",
      run: (argv) => argv.slice(2).flatMap((channel) => [channel, pubsub.listenerCount(kind, channel)]),
    });
  return {
    name: "pubsub",
    arity: -2,
    flags: "",
    summary: "Looks at the channels.",
    since: "2.8.0",
    group: "pubsub",
    complexity: "Depends on the subcommand.",
    replies: "see the subcommands",
    subcommands: [
      channelsRow("channels", "channel", "2.8.0", "channels"),
      countsRow("numsub", "channel", "2.8.0", "channels"),
      sub({
        name: "pubsub|numpat",
        arity: 2,
        summary: "Counts the patterns that somebody listens to.",
        since: "2.8.0",
        replies: "number",
        run: () => pubsub.patternCount,
      }),
      channelsRow("shardchannels", "shard", SINCE_SHARDS, "shard channels"),
      countsRow("shardnumsub", "shard", SINCE_SHARDS, "shard channels"),
    ],
  };
}

/** Redis's text where PUBSUB CHANNELS gets too many arguments. */
const wrongUse = (subcommand: ByteString): ErrorReply =>
  generic(`unknown subcommand or wrong number of arguments for '${quoteForError(subcommand)}'. Try PUBSUB HELP.`);
