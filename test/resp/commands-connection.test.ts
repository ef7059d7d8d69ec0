import { afterEach, describe, expect, test } from "vitest";
import { until } from "../support/poll.js";
import { fields, RespError, show, Status, textOf, type RespConnection } from "../support/resp-client.js";
import { callText, startNode, type TestNode } from "./commands-harness.js";
import { RawClient, request } from "./wire-harness.js";

/** The handshake and the life of a connection, over real sockets against the real loop. */

let node: TestNode;
afterEach(() => node.stop());

const errorText = async (connection: RespConnection, ...args: string[]): Promise<string> => {
  const reply = await connection.send(...args);
  return reply instanceof RespError ? reply.text : `no error: ${show(reply)}`;
};

/** `field=value` of a CLIENT LIST line. */
const lineFields = (line: string): Map<string, string> =>
  new Map(
    line
      .trimEnd()
      .split(" ")
      .map((field) => field.split("=", 2) as [string, string]),
  );

describe("with a password", () => {
  test("nothing but the handshake is answered before it", async () => {
    node = await startNode({ requirePass: "s3cret" });
    const connection = await node.connect();
    const noAuth = "NOAUTH Authentication required.";
    for (const line of ["PING", "LEASE.GRANT a 10", "INFO", "CLIENT ID", "COMMAND", "SUBSCRIBE x", "SELECT 1"]) {
      expect(await errorText(connection, ...line.split(" ")), line).toBe(noAuth);
    }
    expect(await errorText(connection, "HELLO", "3")).toContain(
      "NOAUTH HELLO must be called with the client already authenticated",
    );
    expect(await errorText(connection, "HELLO", "4")).toBe("NOPROTO unsupported protocol version");
    // Name and arity are looked at first, as in Redis.
    expect(await errorText(connection, "NOSUCH")).toContain("ERR unknown command 'NOSUCH'");
    expect(await errorText(connection, "GET")).toContain("ERR wrong number of arguments");
    expect(await connection.call("RESET")).toEqual(new Status("RESET"));
    connection.destroy();
  });

  test("AUTH takes the right one only, in both forms", async () => {
    node = await startNode({ requirePass: "s3cret" });
    const wrong = "WRONGPASS invalid username-password pair or user is disabled.";
    const connection = await node.connect();
    for (const args of [["no"], [""], ["default", "no"], ["other", "s3cret"], ["s3cret\0"]]) {
      expect(await errorText(connection, "AUTH", ...args)).toBe(wrong);
    }
    expect(await errorText(connection, "PING")).toContain("NOAUTH");
    expect(await connection.call("AUTH", "s3cret")).toEqual(new Status("OK"));
    expect(await connection.call("PING")).toEqual(new Status("PONG"));
    // A failed attempt does not take away what was given.
    expect(await errorText(connection, "AUTH", "no")).toBe(wrong);
    expect(await connection.call("PING")).toEqual(new Status("PONG"));
    const other = await node.connect();
    expect(await other.call("AUTH", "default", "s3cret")).toEqual(new Status("OK"));
    expect(await callText(other, "INFO", "stats")).toContain("acl_access_denied_auth:6\r\n");
    expect(await other.call("RESET")).toEqual(new Status("RESET"));
    expect(await errorText(other, "PING")).toContain("NOAUTH");
    connection.destroy();
    other.destroy();
  });

  test("HELLO authenticates, names and switches in one step, or does none of it", async () => {
    node = await startNode({ requirePass: "s3cret" });
    const connection = await node.connect();
    expect(await errorText(connection, "HELLO", "3", "AUTH", "default", "no", "SETNAME", "w")).toContain("WRONGPASS");
    expect(await errorText(connection, "HELLO", "3", "SETNAME", "a b", "AUTH", "default", "s3cret")).toContain(
      "Client names",
    );
    const hello = await connection.call("HELLO", "3", "AUTH", "default", "s3cret", "SETNAME", "w");
    expect(hello).toBeInstanceOf(Map);
    expect(fields(hello).get("proto")).toBe(3);
    expect(await connection.call("CLIENT", "GETNAME")).toBe("w");
    connection.destroy();
  });

  test("CONFIG SET requirepass counts for new connections, and is not shown to MONITOR or SLOWLOG", async () => {
    node = await startNode();
    const admin = await node.connect();
    const monitor = await RawClient.open(node.port);
    monitor.send(request("MONITOR"));
    await monitor.expect("+OK\r\n");
    await admin.call("CONFIG", "SET", "slowlog-log-slower-than", "0");
    await admin.call("CONFIG", "SET", "requirepass", "n3w", "timeout", "0");
    expect(await admin.call("PING")).toEqual(new Status("PONG"));
    const other = await node.connect();
    expect(await errorText(other, "PING")).toContain("NOAUTH");
    await other.call("AUTH", "n3w");
    await other.call("ECHO", "seen");
    await monitor.until(({ received }) => received.includes("seen"));
    expect(monitor.received).toContain('"requirepass" "(redacted)" "timeout" "0"');
    expect(monitor.received).not.toContain("n3w");
    expect(show(await admin.call("SLOWLOG", "GET", "-1"))).not.toContain("n3w");
    for (const connection of [admin, other]) connection.destroy();
    monitor.close();
  });
});

test("HELLO tells id, version, mode and role; RESP3 and back", async () => {
  node = await startNode();
  const connection = await node.connect();
  const flat = (await connection.call("HELLO")) as unknown[];
  expect(flat.slice(0, 6)).toEqual(["server", "redis", "version", "7.2.4", "proto", 2]);
  const map = fields(await connection.call("HELLO", "3"));
  expect([...map.keys()]).toEqual(["server", "version", "proto", "id", "mode", "role", "modules"]);
  expect([map.get("mode"), map.get("role"), map.get("id")]).toEqual([
    "standalone",
    "master",
    await connection.call("CLIENT", "ID"),
  ]);
  expect(await connection.call("HELLO", "2")).toBeInstanceOf(Array);
  connection.destroy();
});

test("RESET puts everything back", async () => {
  node = await startNode();
  const raw = await RawClient.open(node.port);
  raw.send(request("HELLO", "3", "SETNAME", "w"));
  await raw.until(({ received }) => received.endsWith("*0\r\n"));
  raw.received = "";
  raw.send(
    request("SELECT", "3") + request("SUBSCRIBE", "a") + request("CLIENT", "NO-EVICT", "on") + request("MONITOR"),
  );
  await raw.expect("+OK\r\n>3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n+OK\r\n+OK\r\n");
  raw.send(request("RESET"));
  await raw.until(({ received }) => received.includes("+RESET\r\n"));
  raw.received = "";
  raw.send(request("CLIENT", "GETNAME") + request("GET", "x") + request("CLIENT", "INFO"));
  await raw.until(({ received }) => received.includes("\n\r\n"));
  expect(raw.received.startsWith("$-1\r\n$-1\r\n")).toBe(true);
  const own = lineFields(raw.received.split("\r\n")[3] ?? "");
  expect([own.get("flags"), own.get("db"), own.get("sub"), own.get("resp")]).toEqual(["N", "0", "0", "2"]);
  expect(node.context.pubsub.hasListeners).toBe(false);
  raw.close();
});

test("nothing after QUIT runs", async () => {
  node = await startNode();
  const raw = await RawClient.open(node.port);
  raw.send(request("QUIT") + request("LEASE.GRANT", "after", "10"));
  await raw.expect("+OK\r\n");
  await raw.until(({ ended }) => ended);
  const other = await node.connect();
  expect(await other.call("LEASE.TTL", "after")).toBe(-2);
  other.destroy();
  raw.close();
});

test("SELECT: keys belong to their database, leases to all", async () => {
  node = await startNode();
  const connection = await node.connect();
  await connection.call("SELECT", 3);
  await connection.call("LEASE.GRANT", "a", 10, "KEY", "k", "v");
  expect(await connection.call("GET", "k")).toBe("v");
  expect(lineFields(await callText(connection, "CLIENT", "INFO")).get("db")).toBe("3");
  await connection.call("SELECT", 0);
  expect(await connection.call("GET", "k")).toBeNull();
  expect(await connection.call("LEASE.TTL", "a")).toBe(9);
  expect(await callText(connection, "INFO", "keyspace")).toBe("# Keyspace\r\ndb3:keys=1,expires=1,avg_ttl=0\r\n");
  connection.destroy();
});

describe("CLIENT", () => {
  test("LIST describes every connection in Redis's fields and order", async () => {
    node = await startNode();
    const connection = await node.connect({ protocol: 3 });
    await connection.call("CLIENT", "SETNAME", "worker-7");
    await connection.call("CLIENT", "SETINFO", "lib-name", "mylib");
    await connection.call("CLIENT", "SETINFO", "LIB-VER", "1.2.3");
    const subscriber = await RawClient.open(node.port);
    subscriber.send(request("SUBSCRIBE", "a", "b") + request("PSUBSCRIBE", "c*") + request("SSUBSCRIBE", "d"));
    await subscriber.until(({ received }) => received.includes("ssubscribe"));
    const lines = (await callText(connection, "CLIENT", "LIST")).trimEnd().split("\n").map(lineFields);
    expect(lines.length).toBe(2);
    const [own, other] = lines as [Map<string, string>, Map<string, string>];
    expect([...own.keys()].join(" ")).toBe(
      "id addr laddr fd name age idle flags db sub psub ssub multi qbuf qbuf-free argv-mem multi-mem rbs rbp obl oll omem " +
        "tot-mem events cmd user redir resp lib-name lib-ver",
    );
    expect(own.get("laddr")).toBe(`127.0.0.1:${node.port}`);
    expect(own.get("addr")).toMatch(/^127\.0\.0\.1:\d+$/);
    const shown = ["name", "flags", "cmd", "resp", "lib-name", "lib-ver"].map((field) => own.get(field));
    expect(shown).toEqual(["worker-7", "N", "client|setinfo", "3", "mylib", "1.2.3"]);
    expect(["flags", "sub", "psub", "ssub"].map((field) => other.get(field))).toEqual(["P", "2", "1", "1"]);
    expect((await callText(connection, "CLIENT", "LIST", "TYPE", "pubsub")).trimEnd().split("\n").length).toBe(1);
    const ids = await callText(connection, "CLIENT", "LIST", "ID", other.get("id") ?? "", "999", own.get("id") ?? "");
    expect(
      ids
        .trimEnd()
        .split("\n")
        .map((line) => lineFields(line).get("id")),
    ).toEqual([other.get("id"), own.get("id")]);
    connection.destroy();
    subscriber.close();
  });

  test("KILL by id, address, type, age and in the old form", async () => {
    node = await startNode();
    const admin = await node.connect();
    const victim = async (): Promise<{ connection: RespConnection; line: Map<string, string> }> => {
      const connection = await node.connect();
      return { connection, line: lineFields(await callText(connection, "CLIENT", "INFO")) };
    };
    const first = await victim();
    expect(await admin.call("CLIENT", "KILL", "ID", first.line.get("id") ?? "")).toBe(1);
    await first.connection.closed;
    const second = await victim();
    expect(await admin.call("CLIENT", "KILL", second.line.get("addr") ?? "")).toEqual(new Status("OK"));
    await second.connection.closed;
    const third = await victim();
    expect(await admin.call("CLIENT", "KILL", "ADDR", third.line.get("addr") ?? "", "TYPE", "pubsub")).toBe(0);
    expect(await admin.call("CLIENT", "KILL", "MAXAGE", "100")).toBe(0);
    expect(await admin.call("CLIENT", "KILL", "TYPE", "normal", "USER", "default")).toBe(1);
    await third.connection.closed;
    // Oneself: the answer still comes.
    expect(await admin.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no")).toBe(1);
    await admin.closed;
  });

  test("REPLY OFF, ON and SKIP", async () => {
    node = await startNode();
    const raw = await RawClient.open(node.port);
    raw.send(request("CLIENT", "REPLY", "SKIP") + request("ECHO", "unheard") + request("ECHO", "heard"));
    await raw.expect("$5\r\nheard\r\n");
    raw.send(request("CLIENT", "REPLY", "OFF") + request("ECHO", "unheard") + request("CLIENT", "REPLY", "SKIP"));
    raw.send(request("NOSUCH") + request("CLIENT", "REPLY", "ON") + request("ECHO", "heard"));
    await raw.expect("+OK\r\n$5\r\nheard\r\n");
    raw.close();
  });

  test("PAUSE WRITE holds up writes and nothing else, until UNPAUSE", async () => {
    node = await startNode();
    const admin = await node.connect();
    const worker = await node.connect();
    await worker.call("LEASE.GRANT", "a", 100);
    await admin.call("CLIENT", "PAUSE", 100_000, "WRITE");
    expect(await worker.call("LEASE.KEEPALIVE", "a")).toBe(100_000);
    let granted = false;
    const grant = worker.call("LEASE.GRANT", "b", 100).then((reply) => {
      granted = true;
      return reply;
    });
    expect(await admin.call("LEASE.TTL", "b")).toBe(-2);
    expect(await callText(admin, "INFO", "clients")).toContain("paused:write\r\n");
    expect(granted).toBe(false);
    await admin.call("CLIENT", "UNPAUSE");
    expect(await grant).toEqual(["b", 100_000, expect.any(Number)]);
    for (const connection of [admin, worker]) connection.destroy();
  });

  test("names and library names are bounded and visible", async () => {
    node = await startNode();
    const connection = await node.connect();
    expect(await errorText(connection, "CLIENT", "SETNAME", "n".repeat(257))).toBe(
      "ERR the client name is 257 bytes long, the limit is 256 bytes",
    );
    expect(await connection.call("CLIENT", "SETNAME", "n".repeat(256))).toEqual(new Status("OK"));
    for (const bad of ["a b", "a\nb", "\x7f", "\xe9"]) {
      expect(await errorText(connection, "CLIENT", "SETINFO", "LIB-NAME", bad)).toBe(
        "ERR lib-name cannot contain spaces, newlines or special characters.",
      );
      expect(await errorText(connection, "CLIENT", "SETNAME", bad)).toContain("Client names cannot contain");
    }
    connection.destroy();
  });
});

test("the owner of a lease is the client's name and address", async () => {
  node = await startNode();
  const connection = await node.connect();
  await connection.call("CLIENT", "SETNAME", "worker-7");
  await connection.call("LEASE.GRANT", "a", 10);
  const address = lineFields(await callText(connection, "CLIENT", "INFO")).get("addr");
  expect(textOf(fields(await connection.call("LEASE.INFO", "a")).get("owner"))).toBe(`worker-7 ${address}`);
  connection.destroy();
});

test("MONITOR shows commands of all connections, quoted, those that carry passwords left out", async () => {
  node = await startNode();
  const monitor = await RawClient.open(node.port);
  monitor.send(request("MONITOR"));
  await monitor.expect("+OK\r\n");
  const connection = await node.connect();
  await connection.call("SELECT", 2);
  await connection.send("AUTH", "default", "hidden");
  await connection.call("ECHO", Buffer.from('q"\\\r\n\x00\xff', "latin1"));
  await monitor.until(({ received }) => received.includes("ECHO"));
  const lines = monitor.received.split("\r\n").slice(0, -1);
  const address = lineFields(await callText(connection, "CLIENT", "INFO")).get("addr");
  expect(lines[0]).toMatch(/^\+\d+\.\d{6} \[0 127\.0\.0\.1:\d+\] "SELECT" "2"$/);
  expect(lines[1]).toBe(`${lines[1]?.slice(0, lines[1].indexOf("["))}[2 ${address}] "ECHO" "q\\"\\\\\\r\\n\\x00\\xff"`);
  monitor.close();
  await until("the monitor to be forgotten", async () => {
    await connection.call("PING");
    return !node.context.diagnostics.watchesAll;
  });
  connection.destroy();
});
