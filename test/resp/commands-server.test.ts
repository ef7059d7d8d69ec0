import { afterEach, describe, expect, test } from "vitest";
import { RespError, show, Status, type RespConnection, type RespValue } from "../support/resp-client.js";
import { humanBytes, Rates } from "#src/resp/info.js";
import { formatKeyspaceFlags, parseKeyspaceFlags, PARAMETERS, SLOWLOG_ENTRIES_MAX } from "#src/resp/server-settings.js";
import { callText, startNode, type TestNode } from "./commands-harness.js";

/** INFO, CONFIG, SLOWLOG, LATENCY, the role and the rest of the server's own commands, against the real loop. */

let node: TestNode;
afterEach(() => node.stop());

const OK = new Status("OK");

const errorText = async (connection: RespConnection, ...args: string[]): Promise<string> => {
  const reply = await connection.send(...args);
  return reply instanceof RespError ? reply.text : `no error: ${show(reply)}`;
};

async function infoOf(connection: RespConnection, ...sections: string[]): Promise<Map<string, string>> {
  const lines = (await callText(connection, "INFO", ...sections)).split("\r\n");
  return new Map(
    lines
      .filter((line) => line.includes(":"))
      .map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 1)]),
  );
}

const titlesOf = (text: string): string[] => text.split("\r\n").filter((line) => line.startsWith("# "));

describe("INFO", () => {
  test("has Redis's sections, in Redis's form", async () => {
    node = await startNode();
    const connection = await node.connect();
    const usual = await callText(connection, "INFO");
    expect(titlesOf(usual).join(" ")).toBe(
      "# Server # Clients # Memory # Persistence # Stats # Replication # Leases # CPU # Modules # Errorstats # Cluster # Keyspace",
    );
    for (const line of usual.split("\r\n")) expect(line).toMatch(/^$|^# [A-Z][A-Za-z]*$|^[a-z0-9_]+:[^\n]*$/);
    const everything = await callText(connection, "INFO", "everything");
    expect(titlesOf(everything)).toContain("# Commandstats");
    expect(titlesOf(await callText(connection, "INFO", "all"))).toEqual(titlesOf(everything));
    expect(titlesOf(await callText(connection, "INFO", "KEYSPACE", "nosuch", "leases"))).toEqual([
      "# Leases",
      "# Keyspace",
    ]);
    expect(titlesOf(await callText(connection, "INFO", "default", "commandstats"))).toHaveLength(
      titlesOf(usual).length + 1,
    );
    connection.destroy();
  });

  test("has every field that clients and exporters look at", async () => {
    node = await startNode();
    const connection = await node.connect();
    const info = await infoOf(connection, "everything");
    const exact: Record<string, string> = {
      redis_version: "7.2.4",
      leasehold_version: "0.1.0",
      redis_mode: "standalone",
      arch_bits: "64",
      tcp_port: String(node.port),
      connected_clients: "1",
      blocked_clients: "0",
      maxmemory: "0",
      maxmemory_policy: "noeviction",
      loading: "0",
      aof_enabled: "1",
      rdb_bgsave_in_progress: "0",
      aof_rewrite_in_progress: "0",
      total_connections_received: "1",
      role: "master",
      connected_slaves: "0",
      cluster_enabled: "0",
      store: "memory",
      leasehold_role: "primary",
    };
    for (const [field, value] of Object.entries(exact)) expect(info.get(field), field).toBe(value);
    const numbers =
      "uptime_in_seconds used_memory used_memory_rss used_memory_peak total_system_memory total_commands_processed " +
      "instantaneous_ops_per_sec keyspace_hits keyspace_misses expired_keys evicted_keys rejected_connections process_id " +
      "total_net_input_bytes total_net_output_bytes master_repl_offset pubsub_channels pubsub_patterns rdb_last_save_time " +
      "used_cpu_sys used_cpu_user revision durable_revision leases lease_keys keep_alives leases_granted maxclients";
    for (const field of numbers.split(" ")) expect(info.get(field), field).toMatch(/^\d+(\.\d+)?$/);
    expect(info.get("run_id")).toMatch(/^[0-9a-f]{40}$/);
    expect(Number(info.get("used_memory_rss"))).toBeGreaterThan(1_000_000);
    connection.destroy();
  });

  test("counts leases, keys, keep-alives, commands and errors", async () => {
    node = await startNode();
    const connection = await node.connect();
    await connection.call("LEASE.GRANT", "a", 10, "KEY", "k", "v");
    await connection.call("LEASE.GRANT", "b", 10);
    await connection.call("LEASE.KEEPALIVE", "a");
    await connection.call("LEASE.KEEPALIVE", "a");
    await connection.call("LEASE.REVOKE", "b");
    await connection.send("LEASE.KEEPALIVE", "b");
    await connection.send("LEASE.GRANT", "c", "0");
    await connection.send("GET");
    await connection.send("NOSUCH");
    const info = await infoOf(connection, "everything");
    const counted = ["leases", "lease_keys", "leases_granted", "leases_revoked", "keep_alives", "db0"].map((field) =>
      info.get(field),
    );
    expect(counted).toEqual(["1", "1", "2", "1", "2", "keys=1,expires=1,avg_ttl=0"]);
    expect(info.get("errorstat_ERR")).toBe("count=3");
    expect(info.get("errorstat_NOLEASE")).toBe("count=1");
    expect(info.get("total_error_replies")).toBe("4");
    expect(info.get("cmdstat_lease.keepalive")).toMatch(
      /^calls=3,usec=\d+,usec_per_call=[\d.]+,rejected_calls=0,failed_calls=\d$/,
    );
    expect(info.get("cmdstat_get")).toBe("calls=0,usec=0,usec_per_call=0.00,rejected_calls=1,failed_calls=0");
    expect(await connection.call("CONFIG", "RESETSTAT")).toEqual(OK);
    const reset = await infoOf(connection, "everything");
    expect(reset.get("cmdstat_lease.keepalive")).toBeUndefined();
    expect(reset.get("errorstat_ERR")).toBeUndefined();
    expect(reset.get("total_connections_received")).toBe("0");
    connection.destroy();
  });
});

test("rates are means since the reading before, over a second at least", () => {
  const rates = new Rates(0);
  const at = (commandsProcessed: number, nowMs: number): number =>
    rates.since({ commandsProcessed, bytesRead: 0, bytesWritten: 0 }, nowMs).commandsPerSecond;
  expect(at(100, 500)).toBe(100);
  expect(at(5000, 900)).toBe(100);
  expect(at(2100, 2500)).toBe(1000);
  expect(at(0, 4500)).toBe(0);
  node = { stop: async () => {} } as TestNode;
});

test("sizes for people", () => {
  expect([0, 1023, 1024, 1_572_864, 3 * 1024 ** 3].map(humanBytes)).toEqual(["0B", "1023B", "1.00K", "1.50M", "3.00G"]);
  node = { stop: async () => {} } as TestNode;
});

describe("CONFIG", () => {
  test("GET takes several globs; every value can be SET again", async () => {
    node = await startNode();
    const connection = await node.connect({ protocol: 3 });
    const all = (await connection.call("CONFIG", "GET", "*")) as Map<string, string>;
    expect([...all.keys()]).toEqual(PARAMETERS.map(({ name }) => name));
    for (const [name, value] of all) expect(await connection.call("CONFIG", "SET", name, value), name).toEqual(OK);
    expect(await connection.call("CONFIG", "GET", "*")).toEqual(all);
    const some = (await connection.call("CONFIG", "GET", "SLOWLOG-*", "databases", "[mn]axclients", "nosuch")) as Map<
      string,
      string
    >;
    expect([...some]).toEqual([
      ["maxclients", "10000"],
      ["slowlog-log-slower-than", "10000"],
      ["slowlog-max-len", "128"],
      ["databases", "16"],
    ]);
    connection.destroy();
  });

  test("SET changes all or nothing", async () => {
    node = await startNode();
    const connection = await node.connect();
    const before = show(await connection.call("CONFIG", "GET", "*"));
    for (const bad of [
      ["timeout", "7", "maxclients", "0"],
      ["timeout", "7", "nosuch", "1"],
      ["timeout", "7", "databases", "99"],
      ["timeout", "7", "TIMEOUT", "8"],
      ["requirepass", "x", "timeout", "1.5"],
      ["timeout", "7", "requirepass", "x".repeat(513)],
    ]) {
      expect(await errorText(connection, "CONFIG", "SET", ...bad)).toMatch(/^ERR (CONFIG SET failed|Unknown option)/);
      expect(show(await connection.call("CONFIG", "GET", "*"))).toBe(before);
    }
    await connection.call("CONFIG", "SET", "timeout", "7", "MaxClients", "50");
    expect(node.context.settings.idleTimeoutMs).toBe(7000);
    expect(node.context.settings.connectionsMax).toBe(50);
    connection.destroy();
  });

  test("maxclients counts at once", async () => {
    node = await startNode();
    const connection = await node.connect();
    await connection.call("CONFIG", "SET", "maxclients", "1");
    const other = await node.connect();
    expect(await other.nextReply()).toEqual(new RespError("ERR max number of clients reached"));
    await other.closed;
    expect((await infoOf(connection, "stats")).get("rejected_connections")).toBe("1");
    connection.destroy();
  });

  test("too many or too long patterns are refused", async () => {
    node = await startNode();
    const connection = await node.connect();
    expect(await errorText(connection, "CONFIG", "GET", "*".repeat(1025))).toContain("the pattern is 1025 bytes long");
    const many = Array.from({ length: 1001 }, () => "*");
    expect(await errorText(connection, "CONFIG", "GET", ...many)).toBe(
      "ERR 1001 patterns in one command, the limit is 1000",
    );
    connection.destroy();
  });
});

test("keyspace flags: letters to bits and back", () => {
  node = { stop: async () => {} } as TestNode;
  for (const [given, shown] of [
    ["", ""],
    ["KEA", "AKE"],
    ["g$lshzxetdKE", "AKE"],
    ["Ex", "xE"],
    ["xEKm", "xKEm"],
    ["n", "n"],
  ] as const) {
    const flags = parseKeyspaceFlags(given);
    expect(flags === null ? null : formatKeyspaceFlags(flags)).toBe(shown);
  }
  for (const wrong of ["q", "KEa", "K E", "\xff"]) expect(parseKeyspaceFlags(wrong)).toBeNull();
});

describe("SLOWLOG", () => {
  test("remembers what took long, newest first, cut as in Redis", async () => {
    node = await startNode();
    const connection = await node.connect();
    await connection.call("CLIENT", "SETNAME", "slow-one");
    await connection.call("CONFIG", "SET", "slowlog-log-slower-than", "0");
    await connection.call("ECHO", "e".repeat(200));
    await connection.call("EXISTS", ...Array.from({ length: 40 }, (_, index) => `k${index}`));
    await connection.call("CONFIG", "SET", "slowlog-log-slower-than", "-1");
    await connection.call("ECHO", "not logged");
    const entries = (await connection.call("SLOWLOG", "GET")) as [number, number, number, string[], string, string][];
    const [exists, echo] = entries as [(typeof entries)[0], (typeof entries)[0]];
    expect(echo[3]).toEqual(["ECHO", `${"e".repeat(128)}... (72 more bytes)`]);
    expect(exists[3].length).toBe(32);
    expect(exists[3][31]).toBe("... (10 more arguments)");
    expect(exists[0]).toBe(echo[0] + 1);
    expect(echo[5]).toBe("slow-one");
    expect(echo[4]).toMatch(/^127\.0\.0\.1:\d+$/);
    expect(Math.abs(echo[1] - Date.now() / 1000)).toBeLessThan(60);
    expect(echo[2]).toBeGreaterThanOrEqual(0);
    expect(await connection.call("SLOWLOG", "RESET")).toEqual(OK);
    expect(await connection.call("SLOWLOG", "LEN")).toBe(0);
    connection.destroy();
  });

  test("times commands with many arguments although nobody asked for quick ones", async () => {
    node = await startNode();
    const connection = await node.connect();
    await connection.call("CONFIG", "SET", "slowlog-log-slower-than", "1000");
    expect(node.context.diagnostics.timesAll).toBe(false);
    const keys = Array.from({ length: 10_000 }, (_, index) => ["KEY", `key:${index}`, "v"]);
    await connection.call("LEASE.GRANT", "fat", "100", ...keys.flat());
    const logged = (await connection.call("SLOWLOG", "GET", "-1")) as [number, number, number, string[]][];
    expect(logged.map(([, , , argv]) => argv[0])).toContain("LEASE.GRANT");
    connection.destroy();
  });

  test("is bounded by its setting, and that by a constant", async () => {
    node = await startNode();
    const connection = await node.connect();
    await connection.call("CONFIG", "SET", "slowlog-log-slower-than", "0", "slowlog-max-len", "5");
    for (let count = 0; count < 20; count += 1) await connection.call("PING");
    expect(await connection.call("SLOWLOG", "LEN")).toBe(5);
    expect(((await connection.call("SLOWLOG", "GET", "2")) as RespValue[]).length).toBe(2);
    expect(((await connection.call("SLOWLOG", "GET", "-1")) as RespValue[]).length).toBe(5);
    await connection.call("CONFIG", "SET", "slowlog-max-len", "2");
    expect(await connection.call("SLOWLOG", "LEN")).toBe(2);
    expect(await errorText(connection, "CONFIG", "SET", "slowlog-max-len", String(SLOWLOG_ENTRIES_MAX + 1))).toContain(
      "argument must be between 0 and 4096 inclusive",
    );
    connection.destroy();
  });
});

test("LATENCY remembers what reaches its threshold", async () => {
  node = await startNode({ debugCommands: true });
  const connection = await node.connect();
  await connection.call("DEBUG", "SLEEP", "0.02");
  expect(await connection.call("LATENCY", "LATEST")).toEqual([]);
  expect(await callText(connection, "LATENCY", "DOCTOR")).toContain("Latency is not watched");
  await connection.call("CONFIG", "SET", "latency-monitor-threshold", "10");
  await connection.call("DEBUG", "SLEEP", "0.02");
  const [event] = (await connection.call("LATENCY", "LATEST")) as [[string, number, number, number]];
  expect(event[0]).toBe("command");
  expect(event[2]).toBeGreaterThanOrEqual(20);
  expect(event[3]).toBe(event[2]);
  expect(await connection.call("LATENCY", "HISTORY", "command")).toEqual([[event[1], event[2]]]);
  expect(await callText(connection, "LATENCY", "DOCTOR")).toContain("command: 1 samples");
  expect(await connection.call("LATENCY", "RESET", "nosuch")).toBe(0);
  expect(await connection.call("LATENCY", "RESET")).toBe(1);
  expect(await connection.call("LATENCY", "HISTORY", "command")).toEqual([]);
  connection.destroy();
});

describe("DEBUG SLEEP", () => {
  test("is refused unless switched on", async () => {
    node = await startNode();
    const connection = await node.connect();
    expect(await errorText(connection, "DEBUG", "SLEEP", "1")).toMatch(/^NOPERM /);
    connection.destroy();
  });
  test("checks its argument", async () => {
    node = await startNode({ debugCommands: true });
    const connection = await node.connect();
    for (const bad of ["", " ", "x", "-1", "NaN", "Infinity", "3601"]) {
      expect(await errorText(connection, "DEBUG", "SLEEP", bad), bad).toMatch(/^ERR the sleep must be/);
    }
    expect(await connection.call("DEBUG", "SLEEP", "0.001")).toEqual(OK);
    connection.destroy();
  });
});

test("FAILOVER gives the role up, REPLICAOF NO ONE takes it again", async () => {
  node = await startNode();
  const connection = await node.connect();
  const bystander = await node.connect();
  await connection.call("LEASE.GRANT", "a", 100, "KEY", "k", "v");
  expect(await connection.call("FAILOVER")).toEqual(OK);
  await bystander.closed;
  expect(await errorText(connection, "LEASE.KEEPALIVE", "a")).toBe(
    "READONLY You can't write against a read only replica.",
  );
  expect(((await connection.call("ROLE")) as RespValue[])[0]).toBe("slave");
  const info = await infoOf(connection, "replication");
  expect([info.get("role"), info.get("leasehold_role"), info.get("master_link_status")]).toEqual([
    "slave",
    "standby",
    "down",
  ]);
  expect(await errorText(connection, "FAILOVER")).toMatch(/^ERR /);
  // What is pipelined behind it runs with the new role.
  const [taken, ttl] = await connection.pipeline([
    ["REPLICAOF", "no", "one"],
    ["LEASE.PTTL", "a"],
  ]);
  expect(taken).toEqual(OK);
  expect(ttl).toBeGreaterThan(99_000);
  expect(await connection.call("REPLICAOF", "NO", "ONE")).toEqual(OK);
  expect(((await connection.call("ROLE")) as RespValue[])[0]).toBe("master");
  connection.destroy();
});

test("SHUTDOWN asks for the end once, and answers nothing", async () => {
  node = await startNode();
  const connection = await node.connect();
  expect(await errorText(connection, "SHUTDOWN", "NOSAVE", "SAVE")).toBe("ERR syntax error");
  expect(node.shutdowns).toBe(0);
  connection.write("SHUTDOWN NOSAVE NOW\r\n");
  expect(await connection.call("PING")).toEqual(new Status("PONG"));
  expect(node.shutdowns).toBe(1);
  connection.destroy();
});

test("TIME, LASTSAVE and WAITAOF", async () => {
  node = await startNode();
  const connection = await node.connect();
  const [seconds, micros] = (await connection.call("TIME")) as [string, string];
  expect(Math.abs(Number(seconds) - Date.now() / 1000)).toBeLessThan(60);
  expect(micros).toMatch(/^\d{1,6}$/);
  expect(Math.abs(Number(await connection.call("LASTSAVE")) - Date.now() / 1000)).toBeLessThan(60);
  expect(await connection.call("WAITAOF", "1", "3", "0")).toEqual([1, 0]);
  expect(await errorText(connection, "WAITAOF", "2", "0", "0")).toBe(
    "ERR value is out of range, value must between 0 and 1",
  );
  expect(await errorText(connection, "WAITAOF", "1", "-1", "0")).toBe("ERR value is out of range, must be positive");
  expect(await errorText(connection, "WAITAOF", "1", "0", "-1")).toBe("ERR timeout is negative");
  connection.destroy();
});

test("OBJECT and MEMORY USAGE look at a key's value", async () => {
  node = await startNode();
  const connection = await node.connect();
  await connection.call("LEASE.GRANT", "a", 100, "KEY", "n", "42", "KEY", "s", "short", "KEY", "l", "l".repeat(45));
  const encodings = await Promise.all(["n", "s", "l", "none"].map((key) => connection.call("OBJECT", "ENCODING", key)));
  expect(encodings).toEqual(["int", "embstr", "raw", null]);
  expect(await connection.call("OBJECT", "REFCOUNT", "n")).toBe(1);
  expect(await errorText(connection, "OBJECT", "FREQ", "n")).toContain("An LFU maxmemory policy is not selected");
  expect(await errorText(connection, "OBJECT", "IDLETIME", "n")).toBe("ERR Access times are not tracked.");
  const usage = (await connection.call("MEMORY", "USAGE", "l")) as number;
  expect(usage).toBeGreaterThan(46);
  expect(usage).toBeLessThan(300);
  // Behind a write that is not yet durable, in the order of the requests.
  const replies = await connection.pipeline([
    ["LEASE.ATTACH", "a", "new", "7"],
    ["OBJECT", "ENCODING", "new"],
    ["PING"],
  ]);
  expect(replies.slice(1)).toEqual(["int", new Status("PONG")]);
  expect(await callText(connection, "MEMORY", "DOCTOR")).toContain("1 leases");
  connection.destroy();
});
