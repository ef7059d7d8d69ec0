import type { ByteString } from "../../engine/reply.js";
import type { ClientConnection } from "../command.js";
import type { ServerContext } from "../server-context.js";
import { hostAndPort, type ClusterState } from "./cluster-state.js";

/**
 * INFO of the Sentinel port. Clients look at `redis_mode` (StackExchange.Redis tells a Sentinel by it) and people at the line
 * `master0`; the sections and names are those of a Sentinel, the figures those that have a truthful value here.
 */

type InfoContext = Pick<ServerContext, "settings" | "clock" | "figures" | "identity">;

type Fields = readonly (readonly [name: string, value: string | number])[];

type Section = readonly [
  title: string,
  fields: (context: InfoContext, state: ClusterState, asker: ClientConnection) => Fields,
];

const SECTIONS: readonly Section[] = [
  ["Server", serverFields],
  ["Clients", clientFields],
  ["Stats", (_context, _state, asker) => statsFields(asker)],
  ["CPU", cpuFields],
  ["Sentinel", (_context, state) => sentinelFields(state)],
];

/** Words that ask for every section. */
const EVERYTHING = ["all", "everything", "default"];

/** The text of INFO for the sections asked for, or all. Unknown names add nothing, as in Redis. */
export function renderSentinelInfo(
  context: InfoContext,
  state: ClusterState,
  asker: ClientConnection,
  asked: readonly ByteString[],
): ByteString {
  const names = new Set(asked.map((name) => name.toLowerCase()));
  const isEverything = names.size === 0 || EVERYTHING.some((word) => names.has(word));
  return SECTIONS.filter(([title]) => isEverything || names.has(title.toLowerCase()))
    .map(([title, fields]) => `# ${title}\r\n${linesOf(fields(context, state, asker))}`)
    .join("\r\n");
}

const linesOf = (fields: Fields): ByteString => fields.map(([name, value]) => `${name}:${value}\r\n`).join("");

function serverFields(
  { clock, figures, identity }: InfoContext,
  { view }: ClusterState,
  asker: ClientConnection,
): Fields {
  const uptimeSeconds = Math.max(0, Math.floor((asker.nowMs - identity.startedAtMs) / 1000));
  return [
    ["redis_version", identity.redisVersion],
    ["leasehold_version", identity.version],
    ["redis_mode", "sentinel"],
    ["os", figures.operatingSystem],
    ["arch_bits", 64],
    ["node_version", figures.runtimeVersion],
    ["process_id", figures.processId],
    ["run_id", view.self.id],
    ["tcp_port", asker.server.listening[0]?.port ?? view.self.sentinelPort],
    ["server_time_usec", Math.floor(clock.unixMs() * 1000)],
    ["uptime_in_seconds", uptimeSeconds],
    ["uptime_in_days", Math.floor(uptimeSeconds / 86_400)],
    ["executable", figures.executablePath],
    ["config_file", ""],
  ];
}

function clientFields({ settings }: InfoContext, _state: ClusterState, { server }: ClientConnection): Fields {
  return [
    ["connected_clients", server.connectionCount],
    ["cluster_connections", 0],
    ["maxclients", settings.connectionsMax],
    ["blocked_clients", 0],
    ["tracking_clients", 0],
  ];
}

function statsFields({ server: { statistics } }: ClientConnection): Fields {
  const errors = [...statistics.errorReplies.values()].reduce((sum, count) => sum + count, 0);
  return [
    ["total_connections_received", statistics.connectionsReceived],
    ["total_commands_processed", statistics.commandsProcessed],
    ["total_net_input_bytes", statistics.bytesRead],
    ["total_net_output_bytes", statistics.bytesWritten],
    ["rejected_connections", statistics.connectionsRejected],
    ["total_error_replies", errors],
  ];
}

/** Of the whole process. */
function cpuFields({ figures }: InfoContext): Fields {
  const { systemMs, userMs } = figures.cpu();
  return [
    ["used_cpu_sys", (systemMs / 1000).toFixed(6)],
    ["used_cpu_user", (userMs / 1000).toFixed(6)],
  ];
}

function sentinelFields(state: ClusterState): Fields {
  const primary = state.view.primary();
  const address = primary === null ? ":0" : hostAndPort(primary);
  const counts = `slaves=${state.replicas().length},sentinels=${state.sentinels().length + 1}`;
  return [
    ["sentinel_masters", 1],
    ["sentinel_tilt", 0],
    ["sentinel_tilt_since_seconds", -1],
    ["sentinel_running_scripts", 0],
    ["sentinel_scripts_queue_length", 0],
    ["sentinel_simulate_failure_flags", 0],
    ["master0", `name=${state.view.name},status=${state.masterStatus},address=${address},${counts}`],
  ];
}
