import { DATABASE_COUNT } from "../engine/limits.js";
import type { ByteString } from "../engine/reply.js";
import type { ClusterReport, NodeReport } from "../ports.js";
import type { CommandDefinition } from "./command-definition.js";
import type { ClientConnection, ServerHandle } from "./command.js";
import { redisRole } from "./commands/roles.js";
import type { ServerContext } from "./server-context.js";

/**
 * INFO: sections of `field:value` lines. The fields are those that clients and exporters read under Redis's names, where they
 * have a truthful value here, and Leasehold's own.
 *
 * Truth where Redis's field has no exact counterpart:
 *  - `instantaneous_*` is the mean since the INFO before, but of at least a second; no timer runs for it
 *  - `usec` of commandstats is exact for slow commands and shared out by the turn for quick ones (a clock reading
 *    would cost more than a keep-alive)
 *  - `avg_ttl` is 0: unknown
 */

type Fields = readonly (readonly [name: string, value: string | number])[];

export interface InfoSource {
  readonly context: ServerContext;
  readonly definitions: () => Iterable<CommandDefinition>;
  readonly rates: Rates;
}

interface Snapshot {
  readonly context: ServerContext;
  readonly source: InfoSource;
  readonly server: ServerHandle;
  readonly node: NodeReport;
  readonly nowMs: number;
  readonly unixMs: number;
}

const SECTIONS: readonly (readonly [name: string, title: string, fields: (snapshot: Snapshot) => Fields])[] = [
  ["server", "Server", serverFields],
  ["clients", "Clients", clientFields],
  ["memory", "Memory", memoryFields],
  ["persistence", "Persistence", persistenceFields],
  ["stats", "Stats", statsFields],
  ["replication", "Replication", replicationFields],
  ["leases", "Leases", leaseFields],
  ["cpu", "CPU", cpuFields],
  ["modules", "Modules", () => []],
  ["commandstats", "Commandstats", commandFields],
  ["errorstats", "Errorstats", errorFields],
  ["latencystats", "Latencystats", () => []],
  ["cluster", "Cluster", () => [["cluster_enabled", 0]]],
  ["keyspace", "Keyspace", keyspaceFields],
];

/** What Redis leaves out of INFO without arguments. */
const ON_REQUEST: ReadonlySet<string> = new Set(["commandstats", "latencystats"]);

/** The text of INFO for the sections asked for; none: the default ones. Unknown names add nothing, as in Redis. */
export function renderInfo(source: InfoSource, connection: ClientConnection, asked: readonly ByteString[]): ByteString {
  const names = new Set(asked.map((name) => name.toLowerCase()));
  const all = names.has("all") || names.has("everything");
  const usual = names.size === 0 || names.has("default");
  const { context } = source;
  const snapshot: Snapshot = {
    context,
    source,
    server: connection.server,
    node: context.backend.report(),
    nowMs: connection.nowMs,
    unixMs: context.clock.unixMs(),
  };
  return SECTIONS.filter(([name]) => all || names.has(name) || (usual && !ON_REQUEST.has(name)))
    .map(([, title, fields]) => `# ${title}\r\n${lines(fields(snapshot))}`)
    .join("\r\n");
}

const lines = (fields: Fields): string => fields.map(([name, value]) => `${name}:${value}\r\n`).join("");

function serverFields({ context, server, nowMs, unixMs }: Snapshot): Fields {
  const { identity, figures } = context;
  const uptimeSeconds = Math.max(0, Math.floor((nowMs - identity.startedAtMs) / 1000));
  const listeners = server.listening.map(
    ({ host, port }, index) => [`listener${index}`, `name=tcp,bind=${host},port=${port}`] as const,
  );
  return [
    ["redis_version", identity.redisVersion],
    ["leasehold_version", identity.version],
    ["redis_mode", "standalone"],
    ["os", figures.operatingSystem],
    ["arch_bits", 64],
    ["node_version", figures.runtimeVersion],
    ["process_id", figures.processId],
    ["run_id", identity.runId],
    ["tcp_port", server.listening[0]?.port ?? context.settings.start.port],
    ["server_time_usec", Math.floor(unixMs * 1000)],
    ["uptime_in_seconds", uptimeSeconds],
    ["uptime_in_days", Math.floor(uptimeSeconds / 86_400)],
    ["executable", figures.executablePath],
    ["config_file", ""],
    ...listeners,
  ];
}

function clientFields({ context, server }: Snapshot): Fields {
  let blocked = 0;
  let subscribers = 0;
  let inputMax = 0;
  let outputMax = 0;
  for (const client of server.connections()) {
    if (client.isBlocked) blocked += 1;
    if (client.subscriptions !== null) subscribers += 1;
    inputMax = Math.max(inputMax, client.queryBufferBytes);
    outputMax = Math.max(outputMax, client.outputBufferBytes);
  }
  return [
    ["connected_clients", server.connectionCount],
    ["cluster_connections", 0],
    ["maxclients", context.settings.connectionsMax],
    ["client_recent_max_input_buffer", inputMax],
    ["client_recent_max_output_buffer", outputMax],
    ["blocked_clients", blocked],
    ["tracking_clients", 0],
    ["pubsub_clients", subscribers],
    ["clients_in_timeout_table", 0],
    ["paused", server.pausedKind],
  ];
}

function memoryFields({ context }: Snapshot): Fields {
  const memory = context.figures.memory();
  const usedBytes = memory.heapUsedBytes + memory.externalBytes;
  return [
    ["used_memory", usedBytes],
    ["used_memory_human", humanBytes(usedBytes)],
    ["used_memory_rss", memory.residentBytes],
    ["used_memory_rss_human", humanBytes(memory.residentBytes)],
    ["used_memory_peak", memory.residentPeakBytes],
    ["used_memory_peak_human", humanBytes(memory.residentPeakBytes)],
    ["heap_used_bytes", memory.heapUsedBytes],
    ["heap_total_bytes", memory.heapTotalBytes],
    ["external_bytes", memory.externalBytes],
    ["total_system_memory", context.figures.systemMemoryBytes],
    ["total_system_memory_human", humanBytes(context.figures.systemMemoryBytes)],
    ["maxmemory", 0],
    ["maxmemory_human", "0B"],
    ["maxmemory_policy", "noeviction"],
    ["mem_fragmentation_ratio", (memory.residentBytes / Math.max(1, usedBytes)).toFixed(2)],
    ["mem_allocator", "v8"],
    ["lazyfree_pending_objects", 0],
  ];
}

const UNITS = ["B", "K", "M", "G", "T", "P"];

/** As Redis shows sizes: `1.50M`. */
export function humanBytes(bytes: number): string {
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${bytes}B` : `${value.toFixed(2)}${UNITS[unit]}`;
}

function persistenceFields({ node, unixMs }: Snapshot): Fields {
  const isLoading = node.role === "loading";
  return [
    ["loading", isLoading ? 1 : 0],
    ...(isLoading
      ? ([
          ["loading_rows_loaded", node.rowsLoaded],
          ["loading_eta_seconds", 1],
        ] as const)
      : []),
    ["async_loading", 0],
    // Every acknowledged change is on disk, so that the last save is always now.
    ["rdb_changes_since_last_save", 0],
    ["rdb_bgsave_in_progress", 0],
    ["rdb_last_save_time", Math.floor(unixMs / 1000)],
    ["rdb_last_bgsave_status", "ok"],
    ["rdb_last_bgsave_time_sec", -1],
    ["rdb_current_bgsave_time_sec", -1],
    ["aof_enabled", 1],
    ["aof_rewrite_in_progress", 0],
    ["aof_rewrite_scheduled", 0],
    ["aof_last_rewrite_time_sec", -1],
    ["aof_current_rewrite_time_sec", -1],
    ["aof_last_bgrewrite_status", "ok"],
    ["aof_last_write_status", "ok"],
    ["store", node.storeName],
    ["revision", node.revision],
    ["durable_revision", node.durableRevision],
    ["batches_committed", node.batchesCommitted],
    ["bytes_committed", node.bytesCommitted],
    ["last_commit_ms", node.lastCommitMs.toFixed(3)],
    ["batch_open_bytes", node.batchOpenBytes],
    ["replies_parked", node.repliesParked],
  ];
}

function statsFields({ context, source, server, node, nowMs }: Snapshot): Fields {
  const { statistics } = server;
  let errors = 0;
  for (const count of statistics.errorReplies.values()) errors += count;
  const rates = source.rates.since(statistics, nowMs);
  return [
    ["total_connections_received", statistics.connectionsReceived],
    ["total_commands_processed", statistics.commandsProcessed],
    ["instantaneous_ops_per_sec", Math.round(rates.commandsPerSecond)],
    ["total_net_input_bytes", statistics.bytesRead],
    ["total_net_output_bytes", statistics.bytesWritten],
    ["instantaneous_input_kbps", (rates.bytesReadPerSecond / 1024).toFixed(2)],
    ["instantaneous_output_kbps", (rates.bytesWrittenPerSecond / 1024).toFixed(2)],
    ["rejected_connections", statistics.connectionsRejected],
    ["sync_full", 0],
    ["sync_partial_ok", 0],
    ["sync_partial_err", 0],
    ["expired_keys", node.leasesExpired + node.keysExpired],
    ["evicted_keys", 0],
    ["evicted_clients", 0],
    ["keyspace_hits", node.keyspaceHits],
    ["keyspace_misses", node.keyspaceMisses],
    ["pubsub_channels", context.pubsub.channelCount],
    ["pubsub_patterns", context.pubsub.patternCount],
    ["pubsubshard_channels", context.pubsub.shardChannelCount],
    ["latest_fork_usec", 0],
    ["total_forks", 0],
    ["total_error_replies", errors],
    ["protocol_errors", statistics.protocolErrors],
    ["client_output_buffer_limit_disconnections", statistics.outputLimitDisconnections],
    ["acl_access_denied_auth", context.diagnostics.authenticationFailures],
    ["slowlog_commands_count", context.diagnostics.slowlogLength],
  ];
}

function replicationFields({ context, node }: Snapshot): Fields {
  const role = redisRole(node.role);
  const { cluster } = node;
  const primary = cluster?.primary ?? null;
  const seenAgoMs = cluster?.primarySeenAgoMs ?? Infinity;
  const seenSecondsAgo = primary === null || seenAgoMs === Infinity ? -1 : Math.floor(seenAgoMs / 1000);
  const replica: Fields =
    role === "master"
      ? []
      : [
          ["master_host", primary?.host ?? ""],
          ["master_port", primary?.port ?? 0],
          ["master_link_status", primary === null ? "down" : "up"],
          ["master_last_io_seconds_ago", seenSecondsAgo],
          ["master_sync_in_progress", 0],
          ["slave_repl_offset", node.durableRevision],
          ["slave_priority", 100],
          ["slave_read_only", 1],
        ];
  return [
    ["role", role],
    ...replica,
    ["connected_slaves", 0],
    ["master_failover_state", "no-failover"],
    ["master_replid", context.identity.runId],
    ["master_replid2", "0".repeat(40)],
    ["master_repl_offset", node.durableRevision],
    ["second_repl_offset", -1],
    ["repl_backlog_active", 0],
    ["repl_backlog_size", 0],
    ["repl_backlog_first_byte_offset", 0],
    ["repl_backlog_histlen", 0],
    ["leasehold_role", node.role],
    ["leasehold_epoch", node.epoch],
    ...(cluster === null ? [] : clusterFields(cluster)),
  ];
}

/** How the role goes: who has it, how lively its beats are, how long there was none. Times in milliseconds, -1 for never. */
function clusterFields(cluster: ClusterReport): Fields {
  const whole = (ms: number): number => (Number.isFinite(ms) ? Math.round(ms) : -1);
  const { primary } = cluster;
  return [
    ["cluster_name", cluster.name],
    ["cluster_epoch", cluster.epoch],
    ["cluster_primary", primary === null ? "" : `${primary.host}:${primary.port}`],
    ["cluster_other_nodes", cluster.others],
    ["role_take_overs", cluster.takeOvers],
    ["role_left_ms", whole(cluster.roleLeftMs)],
    ["beats_failed", cluster.beatsFailed],
    ["beat_last_ago_ms", whole(cluster.lastBeatAgoMs)],
    ["beat_last_latency_ms", whole(cluster.lastBeatLatencyMs)],
    ["beat_latency_ms_max", whole(cluster.beatLatencyMsMax)],
    ["without_primary_ms", whole(cluster.withoutPrimaryMs)],
  ];
}

function leaseFields({ node }: Snapshot): Fields {
  return [
    ["leases", node.leases],
    ["lease_keys", node.keysByDatabase.reduce((sum, keys) => sum + keys, 0)],
    ["leases_granted", node.leasesGranted],
    ["leases_revoked", node.leasesRevoked],
    ["leases_expired", node.leasesExpired],
    ["keep_alives", node.keepAlives],
    ["expiry_late_ms_max", Math.ceil(node.expiryLateMsMax)],
  ];
}

function cpuFields({ context }: Snapshot): Fields {
  const cpu = context.figures.cpu();
  return [
    ["used_cpu_sys", (cpu.systemMs / 1000).toFixed(6)],
    ["used_cpu_user", (cpu.userMs / 1000).toFixed(6)],
    ["used_cpu_sys_children", "0.000000"],
    ["used_cpu_user_children", "0.000000"],
  ];
}

function commandFields({ source }: Snapshot): Fields {
  const fields: [string, string][] = [];
  for (const { name, counters } of source.definitions()) {
    if (counters.calls === 0 && counters.rejected === 0 && counters.failed === 0) continue;
    const usec = Math.round(counters.durationMs * 1000);
    const perCall = (usec / Math.max(1, counters.calls)).toFixed(2);
    fields.push([
      `cmdstat_${name}`,
      `calls=${counters.calls},usec=${usec},usec_per_call=${perCall},` +
        `rejected_calls=${counters.rejected},failed_calls=${counters.failed}`,
    ]);
  }
  return fields;
}

function errorFields({ server }: Snapshot): Fields {
  return [...server.statistics.errorReplies]
    .sort(([one], [other]) => (one < other ? -1 : 1))
    .map(([code, count]) => [`errorstat_${code}`, `count=${count}`]);
}

function keyspaceFields({ node }: Snapshot): Fields {
  const fields: [string, string][] = [];
  for (let index = 0; index < DATABASE_COUNT; index += 1) {
    const keys = node.keysByDatabase[index] ?? 0;
    const expiring = keys - (node.lastingKeysByDatabase[index] ?? 0);
    if (keys > 0) fields.push([`db${index}`, `keys=${keys},expires=${expiring},avg_ttl=0`]);
  }
  return fields;
}

// Rates ---------------------------------------------------------------------------------------------------------------

interface Counted {
  readonly commandsProcessed: number;
  readonly bytesRead: number;
  readonly bytesWritten: number;
}

interface RateFigures {
  readonly commandsPerSecond: number;
  readonly bytesReadPerSecond: number;
  readonly bytesWrittenPerSecond: number;
}

/** The shortest time that a rate is taken over. */
const RATE_WINDOW_MS_MIN = 1000;

/** Means between two readings, without a timer of their own. */
export class Rates {
  #base: Counted = { commandsProcessed: 0, bytesRead: 0, bytesWritten: 0 };
  #baseMs: number;
  #figures: RateFigures | null = null;

  constructor(startedAtMs: number) {
    this.#baseMs = startedAtMs;
  }

  /** The mean since the reading before this one; the same figures again when that is less than a second ago. */
  since(counted: Counted, nowMs: number): RateFigures {
    const elapsedMs = nowMs - this.#baseMs;
    if (this.#figures !== null && elapsedMs < RATE_WINDOW_MS_MIN) return this.#figures;
    const perSecond = (now: number, before: number): number =>
      (Math.max(0, now - before) / Math.max(elapsedMs, RATE_WINDOW_MS_MIN)) * 1000;
    this.#figures = {
      commandsPerSecond: perSecond(counted.commandsProcessed, this.#base.commandsProcessed),
      bytesReadPerSecond: perSecond(counted.bytesRead, this.#base.bytesRead),
      bytesWrittenPerSecond: perSecond(counted.bytesWritten, this.#base.bytesWritten),
    };
    this.#base = {
      commandsProcessed: counted.commandsProcessed,
      bytesRead: counted.bytesRead,
      bytesWritten: counted.bytesWritten,
    };
    this.#baseMs = nowMs;
    return this.#figures;
  }
}
