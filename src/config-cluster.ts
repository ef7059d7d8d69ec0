import { isIP } from "node:net";
import { faultOfTimes, type RoleTimes } from "./cluster/role-times.js";
import { ConfigError } from "./config-error.js";

/**
 * The settings of a node that keeps its rows in a shared store and competes with others for the primary role: read from the
 * same table as all others (`config.ts`), checked here.
 *
 * Invariant: a ClusterConfig that exists is complete and its times are safe (docs/CLUSTER.md, S1).
 */

export interface ClusterConfig {
  /** `host:port` of each etcd member. */
  readonly endpoints: readonly string[];
  readonly name: string;
  /** Null: the address and port that are listened on. */
  readonly announce: { readonly host: string; readonly port: number } | null;
  /** `auto`: data port + 20000; null: none; 0: a free one. */
  readonly sentinelPort: number | "auto" | null;
  readonly isCandidate: boolean;
  readonly times: RoleTimes;
  readonly etcd: EtcdAccess;
}

export interface EtcdAccess {
  /** Paths of PEM files; empty: none. With a certificate authority the connections are TLS. */
  readonly caFile: string;
  readonly certFile: string;
  readonly keyFile: string;
  readonly user: string;
  readonly password: string;
  readonly txnOpsMax: number;
  readonly quotaBytes: number;
  /** 0: etcd compacts its history itself. */
  readonly compactMs: number;
}

export const CLUSTER_SETTINGS = [
  {
    flag: "store",
    kind: "text",
    fallback: "rocksdb",
    help: "rocksdb (in --dir), or etcd://HOST:PORT,... to share the rows with other nodes",
  },
  {
    flag: "cluster",
    kind: "text",
    fallback: "leasehold",
    help: "with etcd: the cluster's name, also for Sentinel clients",
  },
  { flag: "announce", kind: "text", fallback: "", help: "with etcd: IP:PORT at which clients reach this node" },
  {
    flag: "sentinel-port",
    kind: "text",
    fallback: "auto",
    help: "with etcd: port that answers as a Sentinel; auto is the data port + 20000, no is none",
  },
  {
    flag: "candidate",
    kind: "choice",
    choices: ["yes", "no"],
    fallback: "yes",
    help: "with etcd: whether this node may become primary",
  },
  {
    flag: "role-ms",
    kind: "integer",
    unit: "ms",
    minimum: 1_000,
    maximum: 600_000,
    fallback: "6000",
    help: "with etcd: a primary without a sign of life is replaced after so long",
  },
  {
    flag: "role-margin-ms",
    kind: "integer",
    unit: "ms",
    minimum: 0,
    maximum: 60_000,
    fallback: "500",
    help: "with etcd: so much earlier it stops by itself",
  },
  {
    flag: "beat-ms",
    kind: "integer",
    unit: "ms",
    minimum: 50,
    maximum: 60_000,
    fallback: "1000",
    help: "with etcd: from one sign of life to the next",
  },
  {
    flag: "etcd-timeout-ms",
    kind: "integer",
    unit: "ms",
    minimum: 50,
    maximum: 60_000,
    fallback: "1000",
    help: "a request to etcd is given up after so long",
  },
  {
    flag: "etcd-ca",
    kind: "text",
    fallback: "",
    help: "PEM file of the authority that signed etcd's certificates: TLS",
  },
  { flag: "etcd-cert", kind: "text", fallback: "", help: "PEM file of this node's certificate towards etcd" },
  { flag: "etcd-key", kind: "text", fallback: "", help: "PEM file of that certificate's key" },
  { flag: "etcd-user", kind: "text", fallback: "", help: "user name towards etcd" },
  {
    flag: "etcd-password",
    kind: "text",
    fallback: "",
    help: "password towards etcd; better in LEASEHOLD_ETCD_PASSWORD",
  },
  {
    flag: "etcd-txn-ops-max",
    kind: "integer",
    unit: "operations",
    minimum: 16,
    maximum: 100_000,
    fallback: "128",
    help: "etcd's own --max-txn-ops",
  },
  {
    flag: "etcd-quota-bytes",
    kind: "integer",
    unit: "bytes",
    minimum: 1_048_576,
    maximum: 1_099_511_627_776,
    fallback: "2147483648",
    help: "etcd's own --quota-backend-bytes; grants are refused at 80 % of it",
  },
  {
    flag: "etcd-compact-minutes",
    kind: "integer",
    unit: "minutes",
    minimum: 0,
    maximum: 1_440,
    fallback: "0",
    help: "compact etcd's history so often, all of it, whoever wrote it; 0 leaves that to etcd",
  },
] as const;

type ClusterFlag = (typeof CLUSTER_SETTINGS)[number]["flag"];

const STORE_PREFIX = "etcd://";
const CLUSTER_NAME = /^[A-Za-z0-9._-]{1,64}$/;

/**
 * The cluster settings; null for the embedded store. `isGiven`: whether the setting was named at all.
 *
 * @throws ConfigError naming the flag, the value and what is allowed.
 */
export function readClusterConfig(
  text: (flag: ClusterFlag) => string,
  isGiven: (flag: ClusterFlag) => boolean,
): ClusterConfig | null {
  const store = text("store");
  if (store === "rocksdb") {
    const stray = CLUSTER_SETTINGS.find(({ flag }) => flag !== "store" && isGiven(flag));
    if (stray !== undefined)
      throw new ConfigError(`--${stray.flag}: has a meaning only with --store etcd://HOST:PORT,...`);
    return null;
  }
  if (!store.startsWith(STORE_PREFIX)) {
    throw new ConfigError(`--store: '${store}' is neither rocksdb nor of the form etcd://HOST:PORT,...`);
  }
  const name = text("cluster");
  if (!CLUSTER_NAME.test(name)) {
    throw new ConfigError(`--cluster: '${name}' is not 1 to 64 letters, digits, dots, dashes or underscores`);
  }
  const times: RoleTimes = {
    roleMs: Number(text("role-ms")),
    marginMs: Number(text("role-margin-ms")),
    beatMs: Number(text("beat-ms")),
    requestTimeoutMs: Number(text("etcd-timeout-ms")),
  };
  const fault = faultOfTimes(times);
  if (fault !== null) throw new ConfigError(`--role-ms, --role-margin-ms, --beat-ms, --etcd-timeout-ms: ${fault}`);
  return Object.freeze({
    endpoints: endpointsOf(store),
    name,
    announce: announceOf(text("announce")),
    sentinelPort: sentinelPortOf(text("sentinel-port")),
    isCandidate: text("candidate") === "yes",
    times,
    etcd: etcdAccessOf(text),
  });
}

function endpointsOf(store: string): readonly string[] {
  const endpoints = store.slice(STORE_PREFIX.length).split(",");
  for (const endpoint of endpoints) {
    const match = /^(?:\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+):(\d{1,5})$/.exec(endpoint);
    const port = Number(match?.[1] ?? 0);
    if (port < 1 || port > 65_535) throw new ConfigError(`--store: '${endpoint}' is not of the form HOST:PORT`);
  }
  return endpoints;
}

function announceOf(text: string): ClusterConfig["announce"] {
  if (text === "") return null;
  const match = /^(?:\[([0-9A-Fa-f:]+)\]|([^:]+)):(\d{1,5})$/.exec(text);
  const host = match?.[1] ?? match?.[2] ?? "";
  const port = Number(match?.[3] ?? 0);
  if (isIP(host) === 0 || port < 1 || port > 65_535) {
    throw new ConfigError(`--announce: '${text}' is not of the form IP:PORT; clients do not look names up here`);
  }
  return { host, port };
}

function sentinelPortOf(text: string): ClusterConfig["sentinelPort"] {
  if (text === "auto") return "auto";
  if (text === "no") return null;
  const port = Number(text);
  if (!/^\d{1,5}$/.test(text) || port > 65_535) {
    throw new ConfigError(`--sentinel-port: '${text}' is neither auto, no, nor a port from 0 to 65535`);
  }
  return port;
}

function etcdAccessOf(text: (flag: ClusterFlag) => string): EtcdAccess {
  const access: EtcdAccess = {
    caFile: text("etcd-ca"),
    certFile: text("etcd-cert"),
    keyFile: text("etcd-key"),
    user: text("etcd-user"),
    password: text("etcd-password"),
    txnOpsMax: Number(text("etcd-txn-ops-max")),
    quotaBytes: Number(text("etcd-quota-bytes")),
    compactMs: Number(text("etcd-compact-minutes")) * 60_000,
  };
  if ((access.certFile === "") !== (access.keyFile === "")) {
    throw new ConfigError("--etcd-cert, --etcd-key: a certificate and its key go together");
  }
  if (access.certFile !== "" && access.caFile === "") throw new ConfigError("--etcd-cert: needs --etcd-ca");
  if (access.user === "" && access.password !== "") throw new ConfigError("--etcd-password: needs --etcd-user");
  return access;
}
