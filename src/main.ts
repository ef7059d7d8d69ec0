#!/usr/bin/env node
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import type { ClusterConfig } from "./config-cluster.js";
import { readConfig, settingsHelp, type Config } from "./config.js";
import { ConfigError } from "./config-error.js";
import { serve, type Foundations, type SharedRows } from "./node.js";
import type { Fault } from "./ports.js";
import { createScriptEngine } from "./resp/server-context.js";
import { RuntimeSettings } from "./resp/server-settings.js";
import { NO_FAULTS, ScriptedFaults, StderrLog, SystemClock, SystemIds, SystemScheduler } from "./system.js";

/**
 * The command line: reads the verb and the settings, wires the rooms together, turns their failures into one line and an exit
 * code. Imported by nobody.
 *
 * Exit codes: 0 asked to stop; 1 could not start, or the store failed; 2 a flag or variable is wrong.
 */

const EXIT_FAILURE = 1;
const EXIT_USAGE = 2;

/** History that a compaction leaves: a load reads one revision for some seconds, and watches may be behind. */
const COMPACTION_KEEPS_REVISIONS = 5_000;

const USAGE = `Leasehold, a lease and lock server that every Redis client already speaks.

usage: leasehold serve [settings]
       leasehold --help | --version

settings (each also as LEASEHOLD_... in the environment, e.g. LEASEHOLD_PORT):
${settingsHelp()}
`;

function main(args: readonly string[]): void {
  const [verb, ...rest] = args;
  if (verb === "--help" || verb === "-h" || verb === "help" || (verb === "serve" && isHelp(rest))) {
    process.stdout.write(USAGE);
  } else if (verb === "--version" || verb === "-v") {
    process.stdout.write(`${version()}\n`);
  } else if (verb === "serve") {
    serveOrExplain(rest);
  } else {
    const what = verb === undefined ? "no command given" : `there is no command '${verb}'`;
    quit(EXIT_USAGE, `${what}; try 'leasehold serve' or 'leasehold --help'`);
  }
}

const isHelp = (args: readonly string[]): boolean => args.includes("--help") || args.includes("-h");

function version(): string {
  const manifest: unknown = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8"));
  return (manifest as { readonly version: string }).version;
}

/** Ends the process with one line, no stack trace: for what an operator can mend. */
function quit(code: number, message: string): never {
  process.stderr.write(`leasehold: ${message}\n`);
  process.exit(code);
}

const fail = (message: string): never => quit(EXIT_FAILURE, message);

function serveOrExplain(args: readonly string[]): void {
  let config: Config;
  let settings: RuntimeSettings;
  let fault: Fault;
  const script = process.env["LEASEHOLD_FAULTS"] ?? "";
  try {
    config = readConfig(args, process.env);
    settings = runtimeSettings(config);
    fault = script === "" ? NO_FAULTS : new ScriptedFaults(script, "main");
  } catch (error) {
    if (error instanceof ConfigError || error instanceof RangeError || error instanceof SyntaxError) {
      quit(EXIT_USAGE, error.message);
    }
    throw error;
  }
  start(config, settings, fault, script).catch((error: unknown) => {
    throw error;
  });
}

async function start(config: Config, settings: RuntimeSettings, fault: Fault, faultScript: string): Promise<void> {
  const log = new StderrLog(config.logLevel);
  const ids = new SystemIds();
  const scripts = await createScriptEngine(ids, log).catch((error: unknown) =>
    fail(`the Lua interpreter cannot be loaded: ${String(error)}`),
  );
  const clock = new SystemClock();
  const scheduler = new SystemScheduler();
  const foundations = { log, ids, scripts, fault, faultScript, clock, scheduler, version: version(), quit: fail };
  serve(config, settings, foundations, config.cluster === null ? null : await openShared(config.cluster, foundations));
}

/** What speaks to etcd is loaded only by those who do. */
async function openShared(cluster: ClusterConfig, foundations: Foundations): Promise<SharedRows> {
  const { EtcdClient } = await import("./durability/etcd/etcd-client.js");
  const { EtcdStore } = await import("./durability/etcd/etcd-store.js");
  const { clock, scheduler, ids, log, faultScript } = foundations;
  const { endpoints, name, times, etcd } = cluster;
  const client = new EtcdClient({
    endpoints,
    scheduler,
    requestTimeoutMs: times.requestTimeoutMs,
    tls: etcd.caFile === "" ? null : { ca: pem(etcd.caFile), cert: pem(etcd.certFile), key: pem(etcd.keyFile) },
    login: etcd.user === "" ? null : { user: etcd.user, password: etcd.password },
  });
  const incarnation = ids.incarnation();
  const store = new EtcdStore({
    client,
    cluster: name,
    clock,
    scheduler,
    ids,
    log,
    // It has no thread of its own, but it passes the points of one.
    fault: faultScript === "" ? NO_FAULTS : new ScriptedFaults(faultScript, "store"),
    incarnation,
    resolveMsMax: times.roleMs / 2,
    txnOperationsMax: etcd.txnOpsMax,
    quotaBytes: etcd.quotaBytes,
    compaction: etcd.compactMs === 0 ? null : { everyMs: etcd.compactMs, keepRevisions: COMPACTION_KEEPS_REVISIONS },
  });
  return { store, incarnation };
}

function pem(path: string): Buffer | null {
  if (path === "") return null;
  try {
    return readFileSync(path);
  } catch (error) {
    return fail(`cannot read ${path}: ${error instanceof Error ? error.message : String(error)}`);
  }
}

/** Text of the command line as clients would send it: its UTF-8 bytes, one character each. */
const bytesOf = (text: string): string => Buffer.from(text, "utf8").toString("latin1");

function runtimeSettings(config: Config): RuntimeSettings {
  return new RuntimeSettings({
    bind: config.bind,
    port: config.port,
    directory: bytesOf(resolve(config.directory)),
    requirePass: bytesOf(config.requirePass),
    protectedMode: config.protectedMode,
    connectionsMax: config.connectionsMax,
    idleTimeoutSeconds: config.idleTimeoutSeconds,
    tcpKeepAliveSeconds: config.keepAliveSeconds,
    notifyKeyspaceEvents: config.notifyKeyspaceEvents,
    debugCommands: config.debugCommands,
    frameBytesMax: config.frameBytesMax,
  });
}

main(process.argv.slice(2));
