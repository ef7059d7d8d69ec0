import { backendOf } from "#src/backend-of.js";
import { Coordinator } from "#src/coordinator.js";
import { MemoryStore } from "#src/durability/memory-store.js";
import { DEFAULT_ENGINE_LIMITS } from "#src/engine/limits.js";
import type { Log, LogLevel } from "#src/ports.js";
import { buildCommandTable, type CommandTable } from "#src/resp/command-table.js";
import { newRunId, nodeProcessFigures } from "#src/resp/process-figures.js";
import { createScriptEngine, createServerContext, type ServerContext } from "#src/resp/server-context.js";
import { RuntimeSettings, type StartSettings } from "#src/resp/server-settings.js";
import { RespServer } from "#src/resp/server.js";
import { NO_FAULTS, SystemClock, SystemIds, SystemScheduler } from "#src/system.js";
import { RespConnection, type Argument, type RespValue } from "../support/resp-client.js";

/**
 * A whole node in the test's own process: the real table, connections, engine and loop over the memory store, so that tests of
 * the commands can see both ends.
 */

export class KeptLog implements Log {
  readonly lines: string[] = [];
  write(level: LogLevel, message: string): void {
    this.lines.push(`${level} ${message}`);
  }
}

export interface TestNode {
  readonly server: RespServer;
  readonly context: ServerContext;
  readonly table: CommandTable;
  readonly port: number;
  readonly log: KeptLog;
  /** How often SHUTDOWN was asked for; the node goes on. */
  shutdowns: number;
  connect(options?: { readonly protocol?: 2 | 3 }): Promise<RespConnection>;
  stop(): Promise<void>;
}

export const START_SETTINGS: StartSettings = {
  bind: ["127.0.0.1"],
  port: 0,
  directory: "/data",
  requirePass: "",
  protectedMode: true,
  connectionsMax: 10_000,
  idleTimeoutSeconds: 0,
  tcpKeepAliveSeconds: 300,
  notifyKeyspaceEvents: "",
  debugCommands: false,
  frameBytesMax: 16 * 1024 * 1024,
};

export async function startNode(start: Partial<StartSettings> = {}): Promise<TestNode> {
  const clock = new SystemClock();
  const scheduler = new SystemScheduler();
  const ids = new SystemIds();
  const log = new KeptLog();
  const settings = new RuntimeSettings({ ...START_SETTINGS, ...start });
  const coordinator: Coordinator = new Coordinator({
    store: new MemoryStore({ scheduler, ids }),
    engineLimits: DEFAULT_ENGINE_LIMITS,
    batchBytesMax: 8 * 1024 * 1024,
    clock,
    scheduler,
    ids,
    log,
    fault: NO_FAULTS,
    events: {
      get hasListeners() {
        return context.pubsub.hasListeners;
      },
      publish: (event) => context.pubsub.publishEvent(event),
    },
    closeSessions: (except, reason) => server.dismissAll(except, reason),
    onFailure: (error) => {
      throw error;
    },
  });
  const backend = backendOf(coordinator, () => {
    node.shutdowns += 1;
  });
  const context: ServerContext = createServerContext({
    backend,
    settings,
    scripts: await createScriptEngine(ids, log),
    clock,
    ids,
    log,
    figures: nodeProcessFigures(),
    version: "0.1.0",
    runId: newRunId(),
  });
  const table = buildCommandTable(context);
  const server = new RespServer({ backend, commands: table, settings, clock, scheduler, log });
  server.observer = context.diagnostics;
  await new Promise<void>((resolve, reject) => {
    coordinator.start((error) => (error === null ? resolve() : reject(error)));
  });
  await server.listen(["127.0.0.1"], 0);
  const port = server.listening[0]?.port ?? 0;
  const node: TestNode = {
    server,
    context,
    table,
    port,
    log,
    shutdowns: 0,
    connect: (options = {}) => RespConnection.connect(port, options),
    stop: async () => {
      await server.stop(1000);
      await new Promise<void>((resolve) => {
        coordinator.stop(() => resolve());
      });
    },
  };
  return node;
}

/** The text of an INFO-like reply. */
export async function callText(connection: RespConnection, ...args: Argument[]): Promise<string> {
  const reply: RespValue = await connection.call(...args);
  if (typeof reply === "string") return reply;
  if (reply !== null && typeof reply === "object" && "text" in reply) return reply.text;
  throw new Error(`not a text: ${JSON.stringify(reply)}`);
}
