import { generic } from "../../engine/errors.js";
import { ErrorReply, MapReply, NULL_ARRAY, StatusReply, type Reply } from "../../engine/reply.js";
import { optional, several, text, type CommandRow } from "../command-definition.js";
import { CommandTable } from "../command-table.js";
import type { ClientConnection } from "../command.js";
import { plainClientCommands } from "../commands/client.js";
import { handshakeCommands } from "../commands/connection.js";
import { commandCommands } from "../commands/introspection.js";
import { listeningCommands } from "../commands/pubsub.js";
import type { PubSub } from "../pubsub.js";
import type { ServerContext } from "../server-context.js";
import type { ClusterState } from "./cluster-state.js";
import { renderSentinelInfo } from "./sentinel-info.js";

/**
 * The commands of the Sentinel port: what clients send to a Sentinel to find a master and to hear of its successors, and nothing
 * else. Commands on data are unknown here, as they are on a Sentinel; PUBLISH too, because only the node itself has news.
 */

/** Of the node's context, what the Sentinel port shares with the data port: password, limits, figures. */
export type SentinelContext = Pick<
  ServerContext,
  "settings" | "diagnostics" | "clock" | "log" | "figures" | "identity"
>;

export function sentinelCommandTable(context: SentinelContext, pubsub: PubSub, state: ClusterState): CommandTable {
  const table: CommandTable = new CommandTable([
    ...handshakeCommands(context, (connection) => greeting(context, connection)),
    ...plainClientCommands(),
    ...listeningCommands({ pubsub }),
    infoRow(context, state),
    roleRow(state),
    sentinelRow(state),
    ...commandCommands(() => table),
  ]);
  return table;
}

/** HELLO's answer: as on a Sentinel without `role`. */
const greeting = ({ identity }: SentinelContext, connection: ClientConnection): Reply =>
  new MapReply([
    ["server", "redis"],
    ["version", identity.redisVersion],
    ["proto", connection.protocol],
    ["id", connection.id],
    ["mode", "sentinel"],
    ["modules", []],
  ]);

function infoRow(context: SentinelContext, state: ClusterState): CommandRow {
  return {
    name: "info",
    arity: -1,
    flags: "loading stale",
    summary: "Tells figures of this node, and which master it knows.",
    since: "1.0.0",
    group: "server",
    categories: ["@dangerous"],
    arguments: [optional(several(text("section")))],
    replies: "sections of `field:value` lines",
    // Not the verbatim string of the data port: a Sentinel answers with a bulk string in RESP3 too.
    run: (argv, connection) => renderSentinelInfo(context, state, connection, argv.slice(1)),
  };
}

const roleRow = (state: ClusterState): CommandRow => ({
  name: "role",
  arity: 1,
  flags: "noscript loading stale fast",
  summary: "Tells that this is a Sentinel, and the names of its masters.",
  since: "2.8.12",
  group: "server",
  categories: ["@admin", "@dangerous"],
  replies: "`[sentinel, [name]]`",
  run: () => ["sentinel", [state.view.name]],
});

// SENTINEL ------------------------------------------------------------------------------------------------------------

const NO_SUCH_MASTER = generic("No such master with that name");

function sentinelRow(state: ClusterState): CommandRow {
  return {
    name: "sentinel",
    arity: -2,
    flags: "admin",
    summary: "Tells who is primary, and which nodes there are.",
    since: "2.8.4",
    group: "server",
    complexity: "Depends on the subcommand.",
    replies: "see the subcommands",
    subcommands: [
      ofMaster(state, "ckquorum", "Tells whether another node could take over.", "`OK ...`, or NOQUORUM", quorumReply),
      addressRow(state),
      ofMaster(state, "master", "Describes the master.", "map", () => state.masterReply()),
      withoutName("masters", "Describes all masters, of which there is one.", "array of maps", () => [
        state.masterReply(),
      ]),
      withoutName("myid", "Tells the id of this node.", "40 hexadecimal digits", () => state.view.self.id),
      ...["replicas", "slaves"].map((name) =>
        ofMaster(
          state,
          name,
          "Describes the nodes that stand by.",
          "array of maps; an error while no primary is known",
          () => state.replicasReply(),
        ),
      ),
      ofMaster(state, "sentinels", "Describes the other nodes that answer as a Sentinel.", "array of maps", () =>
        state.sentinelReplies(),
      ),
    ],
  };
}

const withoutName = (name: string, summary: string, replies: string, answer: () => Reply): CommandRow => ({
  name: `sentinel|${name}`,
  arity: 2,
  flags: "admin",
  summary,
  since: "2.8.4",
  group: "server",
  replies,
  examples: [`SENTINEL ${name.toUpperCase()}`],
  run: answer,
});

/** Names are compared byte by byte, as a Sentinel does. */
const ofMaster = (
  state: ClusterState,
  name: string,
  summary: string,
  replies: string,
  answer: (state: ClusterState) => Reply,
): CommandRow => ({
  name: `sentinel|${name}`,
  arity: 3,
  flags: "admin",
  summary,
  since: "2.8.4",
  group: "server",
  arguments: [text("master-name")],
  replies,
  run: ([, , asked]) => (asked === state.view.name ? answer(state) : NO_SUCH_MASTER),
});

/** Unknown names get nil, not an error. */
const addressRow = (state: ClusterState): CommandRow => ({
  ...ofMaster(
    state,
    "get-master-addr-by-name",
    "Tells the address of the primary.",
    "`[host, port]`; nil while none is known",
    addressReply,
  ),
  run: ([, , asked]) => (asked === state.view.name ? addressReply(state) : NULL_ARRAY),
});

function addressReply({ view }: ClusterState): Reply {
  const primary = view.primary();
  return primary === null ? NULL_ARRAY : [primary.host, String(primary.port)];
}

/** Redis's texts. A node that sees a primary reaches the store, and who reaches the store can take over. */
function quorumReply(state: ClusterState): Reply {
  const usable = `${state.sentinels().length + 1} usable Sentinels.`;
  if (state.view.primary() !== null) {
    return new StatusReply(`OK ${usable} Quorum and failover authorization can be reached`);
  }
  const reason = "Not enough available Sentinels to reach the majority and authorize a failover";
  return new ErrorReply(`NOQUORUM ${usable} ${reason}`);
}
