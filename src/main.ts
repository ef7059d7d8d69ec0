#!/usr/bin/env node
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { readConfig, settingsHelp, type Config } from "./config.js";
import { ConfigError } from "./config-error.js";
import { Coordinator } from "./coordinator.js";
import { RocksStore } from "./durability/rocksdb/rocksdb-store.js";
import type { ScriptEngine } from "./lua/script-engine.js";
import type { Fault, Log } from "./ports.js";
import type { Backend } from "./resp/backend.js";
import { buildCommandTable } from "./resp/command-table.js";
import { newRunId, nodeProcessFigures } from "./resp/process-figures.js";
import { ListenError, RespServer } from "./resp/server.js";
import { createScriptEngine, createServerContext, type ServerContext } from "./resp/server-context.js";
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

/** How long clients that do not read their last replies may hold up a graceful stop. */
const STOP_GRACE_MS = 5_000;

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
  const log = new StderrLog(config.logLevel);
  const ids = new SystemIds();
  createScriptEngine(ids, log).then(
    (scripts) => serve(config, settings, { log, ids, scripts, fault, faultScript: script }),
    (error: unknown) => quit(EXIT_FAILURE, `the Lua interpreter cannot be loaded: ${String(error)}`),
  );
}

/** What is made before the server is. */
interface Foundations {
  readonly log: Log;
  readonly ids: SystemIds;
  readonly scripts: ScriptEngine;
  readonly fault: Fault;
  readonly faultScript: string;
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

/** Listens first, so that a taken port is told before anything is touched; clients get LOADING until the node serves. */
function serve(config: Config, settings: RuntimeSettings, foundations: Foundations): void {
  const { log, ids, scripts, fault, faultScript } = foundations;
  const clock = new SystemClock();
  const scheduler = new SystemScheduler();
  const store = new RocksStore({
    directory: resolve(config.directory),
    log,
    clock,
    ids,
    scheduler,
    acceptLoss: config.acceptLoss,
    workerFault:
      faultScript === "" ? null : { moduleUrl: new URL("./system.js", import.meta.url).href, spec: faultScript },
  });
  const coordinator = new Coordinator({
    store,
    engineLimits: config.engineLimits,
    batchBytesMax: config.batchBytesMax,
    clock,
    scheduler,
    ids,
    log,
    fault,
    events: {
      get hasListeners() {
        return context.pubsub.hasListeners;
      },
      publish: (event) => context.pubsub.publishEvent(event),
    },
    closeSessions: (except, reason) => server.dismissAll(except, reason),
    onFailure: () => process.exit(EXIT_FAILURE),
  });
  const stop = makeStop(log, () => server.stop(STOP_GRACE_MS), coordinator);
  const context: ServerContext = createServerContext({
    backend: backendOf(coordinator, stop),
    settings,
    scripts,
    clock,
    ids,
    log,
    figures: nodeProcessFigures(),
    version: version(),
    runId: newRunId(),
  });
  const server = new RespServer({
    backend: context.backend,
    commands: buildCommandTable(context),
    settings,
    clock,
    scheduler,
    log,
    frameBytesMax: config.frameBytesMax,
  });
  server.observer = context.diagnostics;
  process.on("SIGTERM", () => stop("SIGTERM"));
  process.on("SIGINT", () => stop("SIGINT"));
  server.listen(config.bind, config.port).then(
    () => startServing(coordinator, server, log),
    (error: unknown) => {
      if (error instanceof ListenError) quit(EXIT_FAILURE, error.message);
      throw error;
    },
  );
}

function startServing(coordinator: Coordinator, server: RespServer, log: Log): void {
  coordinator.start((error) => {
    if (error !== null) quit(EXIT_FAILURE, error.message);
    const addresses = server.listening.map(({ host, port }) => `${host.includes(":") ? `[${host}]` : host}:${port}`);
    log.write("info", "ready", { addresses: addresses.join(","), pid: process.pid });
    process.stdout.write(`leasehold ready on ${addresses.join(" ")}\n`);
  });
}

/** Stops once, whoever asks: what is in flight becomes durable and is answered, then the store is closed. */
function makeStop(log: Log, stopServer: () => Promise<void>, coordinator: Coordinator): (reason: string) => void {
  let isStopping = false;
  return (reason) => {
    if (isStopping) return;
    isStopping = true;
    log.write("info", "stopping", { reason });
    const stopStore = (): void => {
      coordinator.stop((error) => {
        if (error !== null) quit(EXIT_FAILURE, error.message);
        log.write("info", "stopped");
        process.exit(0);
      });
    };
    stopServer().then(stopStore, (error: unknown) => {
      throw error;
    });
  };
}

function backendOf(coordinator: Coordinator, stop: (reason: string) => void): Backend {
  return {
    submit: (command, session, ticket) => coordinator.submit(command, session, ticket),
    atomically: (session, ticket, work) => coordinator.atomically(session, ticket, work),
    revisionOf: (databaseIndex, key) => coordinator.revisionOf(databaseIndex, key),
    unblock: (session, reply) => coordinator.unblock(session, reply),
    onRoom: (callback) => coordinator.onRoom(callback),
    forget: (session) => coordinator.forget(session),
    report: () => coordinator.report(),
    stepDown: (except, done) => coordinator.stepDown(except, done),
    takeRole: (done) => coordinator.takeRole(done),
    shutdown: () => stop("SHUTDOWN"),
  };
}

main(process.argv.slice(2));
