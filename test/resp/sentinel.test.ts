import { readFileSync } from "node:fs";
import { createServer, type AddressInfo, type Socket } from "node:net";
import * as fc from "fast-check";
import { afterEach, describe, expect, onTestFinished, test } from "vitest";
import type { CommandTable } from "#src/resp/command-table.js";
import { switchEvents } from "#src/resp/sentinel/switch-events.js";
import { ClusterState } from "#src/resp/sentinel/cluster-state.js";
import { sentinelCommandTable } from "#src/resp/sentinel/sentinel-commands.js";
import { PubSub } from "#src/resp/pubsub.js";
import { fewestArguments } from "#src/resp/command-definition.js";
import { RuntimeSettings } from "#src/resp/server-settings.js";
import {
  RespError,
  Status,
  fields,
  show,
  textOf,
  type RespConnection,
  type RespValue,
} from "../support/resp-client.js";
import { until } from "../support/poll.js";
import { callText, startNode } from "./commands-harness.js";
import {
  address,
  HeldClock,
  HeldView,
  ROLE_DURATION_MS,
  startSentinel,
  type TestSentinel,
} from "./sentinel-harness.js";

/** The Sentinel port by itself: what it says of each state of the cluster, and what it says when the state changes. */

const A = address(7001, 27_001, "10.0.0.1", "a".repeat(40));
const B = address(7002, 27_002, "10.0.0.2", "b".repeat(40));
const C = address(7003, 0, "fd00::3", "c".repeat(40));
const SELF = { ...A, sentinelPort: 0 };
const NAME = "leasehold";
const SWITCH_CHANNELS = ["+sdown", "-sdown", "-odown", "+switch-master", "+slave", "+monitor"];

const running: TestSentinel[] = [];
afterEach(async () => {
  await Promise.all(running.splice(0).map(async (sentinel) => sentinel.stop()));
});

async function sentinelOf(view: HeldView, options: Parameters<typeof startSentinel>[1] = {}): Promise<TestSentinel> {
  const sentinel = await startSentinel(view, options);
  running.push(sentinel);
  return sentinel;
}

/** A node whose Sentinel port the kernel picks, which sees B and C and knows that A, itself, is primary. */
function viewOfPrimary(clock?: HeldClock): HeldView {
  const view = new HeldView(SELF, [B, C]);
  if (clock !== undefined) view.nowMs = () => clock.nowMs;
  view.takeOver(SELF);
  return view;
}

const records = (reply: RespValue): Map<string, RespValue>[] => {
  if (!Array.isArray(reply)) throw new Error(`not an array: ${show(reply)}`);
  return reply.map((one) => fields(one));
};

const master = async (client: RespConnection): Promise<Map<string, RespValue>> =>
  fields(await client.call("SENTINEL", "MASTER", NAME));

describe.each([2, 3] as const)("RESP%i", (protocol) => {
  test("a node that knows the primary names it in every way in which clients ask", async () => {
    const sentinel = await sentinelOf(viewOfPrimary());
    const client = await sentinel.connect(protocol);
    expect(await client.call("SENTINEL", "get-master-addr-by-name", NAME)).toEqual(["10.0.0.1", "7001"]);
    const [ofMasters, ...more] = records(await client.call("SENTINEL", "MASTERS"));
    expect(more).toEqual([]);
    for (const record of [ofMasters, await master(client)]) {
      expect(Object.fromEntries(record ?? [])).toMatchObject({
        name: NAME,
        ip: "10.0.0.1",
        port: "7001",
        runid: A.id,
        flags: "master",
        "config-epoch": "1",
        "num-slaves": "2",
        "num-other-sentinels": "1",
        quorum: "1",
        "down-after-milliseconds": String(ROLE_DURATION_MS),
      });
    }
    expect(await callText(client, "INFO", "sentinel")).toContain(
      "master0:name=leasehold,status=ok,address=10.0.0.1:7001,slaves=2,sentinels=2\r\n",
    );
  });

  test("replicas are the nodes that are not primary, Sentinels the others that have such a port", async () => {
    const client = await (await sentinelOf(viewOfPrimary())).connect(protocol);
    for (const subcommand of ["REPLICAS", "SLAVES"]) {
      const replicas = records(await client.call("SENTINEL", subcommand, NAME));
      expect(replicas.map((record) => [record.get("name"), record.get("ip"), record.get("port")])).toEqual([
        ["10.0.0.2:7002", "10.0.0.2", "7002"],
        ["[fd00::3]:7003", "fd00::3", "7003"],
      ]);
      for (const replica of replicas) {
        expect(replica.get("flags")).toBe("slave");
        expect([replica.get("master-host"), replica.get("master-port")]).toEqual(["10.0.0.1", "7001"]);
        expect(replica.get("master-link-status")).toBe("ok");
      }
    }
    const sentinels = records(await client.call("SENTINEL", "SENTINELS", NAME));
    expect(sentinels.map((record) => [record.get("ip"), record.get("port"), record.get("runid")])).toEqual([
      ["10.0.0.2", "27002", B.id],
    ]);
  });

  test("a standby counts itself among the replicas, and not among the other Sentinels", async () => {
    const view = new HeldView({ ...B, sentinelPort: 0 }, [A, C]);
    view.takeOver(A);
    const client = await (await sentinelOf(view)).connect(protocol);
    const replicas = records(await client.call("SENTINEL", "REPLICAS", NAME));
    expect(replicas.map((record) => record.get("runid"))).toEqual([B.id, C.id]);
    const sentinels = records(await client.call("SENTINEL", "SENTINELS", NAME));
    expect(sentinels.map((record) => record.get("port"))).toEqual(["27001"]);
  });

  test("every value is a string", async () => {
    const client = await (await sentinelOf(viewOfPrimary())).connect(protocol);
    for (const subcommand of ["MASTERS", "REPLICAS", "SENTINELS"]) {
      const name = subcommand === "MASTERS" ? [] : [NAME];
      for (const record of records(await client.call("SENTINEL", subcommand, ...name))) {
        for (const [field, value] of record) expect(typeof value, field).toBe("string");
      }
    }
  });

  test("a node whose view is too old names nobody, with no error and no old address", async () => {
    const clock = new HeldClock();
    const view = viewOfPrimary(clock);
    const client = await (await sentinelOf(view, { clock })).connect(protocol);
    view.setOthers([B]);
    view.goStale(ROLE_DURATION_MS + 1500);
    const address_ = await client.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME);
    expect(address_ === null || (address_ as { length: number }).length === -1).toBe(true);
    const [ofMasters] = records(await client.call("SENTINEL", "MASTERS"));
    for (const record of [ofMasters, await master(client)]) {
      expect(record?.get("flags")).toBe("s_down,o_down,master,disconnected");
      expect([record?.get("ip"), record?.get("port"), record?.get("runid")]).toEqual(["", "0", ""]);
      expect([record?.get("s-down-time"), record?.get("o-down-time")]).toEqual(["1500", "1500"]);
      expect(show([...(record?.values() ?? [])])).not.toMatch(/10\.0\.0\.1|7001|aaaa/);
    }
    for (const subcommand of ["REPLICAS", "SLAVES"]) {
      expect(show(await client.send("SENTINEL", subcommand, NAME))).toMatch(/^-ERR No primary is known here/);
    }
    expect(records(await client.call("SENTINEL", "SENTINELS", NAME)).length).toBe(1);
    expect(await callText(client, "INFO")).toContain(
      "master0:name=leasehold,status=odown,address=:0,slaves=0,sentinels=2",
    );
    expect(show(await client.send("SENTINEL", "CKQUORUM", NAME))).toMatch(/^-NOQUORUM 2 usable Sentinels\. /);
    view.hearAgain();
    expect(await client.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)).toEqual(["10.0.0.1", "7001"]);
  });

  test("a switch is told in order, and every answer after it names the new primary", async () => {
    const view = viewOfPrimary();
    const sentinel = await sentinelOf(view);
    const [listener, globber, client] = await Promise.all([1, 2, 3].map(async () => sentinel.connect(protocol)));
    if (listener === undefined || globber === undefined || client === undefined) throw new Error("three connections");
    await listener.pipeline(SWITCH_CHANNELS.map((channel) => ["SUBSCRIBE", channel]));
    await globber.call("PSUBSCRIBE", "*");
    view.takeOver(B);
    const told = [
      ["+sdown", "master leasehold 10.0.0.1 7001"],
      ["+switch-master", "leasehold 10.0.0.1 7001 10.0.0.2 7002"],
      ["+slave", "slave 10.0.0.1:7001 10.0.0.1 7001 @ leasehold 10.0.0.2 7002"],
      ["-odown", "master leasehold 10.0.0.2 7002"],
    ];
    for (const [channel, message] of told) {
      expect(await listener.nextMessage()).toEqual(["message", channel, message]);
      expect(await globber.nextMessage()).toEqual(["pmessage", "*", channel, message]);
    }
    expect(await client.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)).toEqual(["10.0.0.2", "7002"]);
    expect((await master(client)).get("config-epoch")).toBe("2");
    expect(listener.takeMessages()).toEqual([]);
    expect(globber.takeMessages()).toEqual([]);
  });

  test("the first primary of all is a master that begins to be watched; the same one again is no switch", async () => {
    const view = new HeldView(SELF, [B]);
    const sentinel = await sentinelOf(view);
    const listener = await sentinel.connect(protocol);
    await listener.call("PSUBSCRIBE", "*");
    view.takeOver(B);
    expect(await listener.nextMessage()).toEqual([
      "pmessage",
      "*",
      "+monitor",
      "master leasehold 10.0.0.2 7002 quorum 1",
    ]);
    expect(await listener.nextMessage()).toEqual(["pmessage", "*", "-odown", "master leasehold 10.0.0.2 7002"]);
    view.takeOver(B);
    expect(await listener.nextMessage()).toEqual(["pmessage", "*", "-sdown", "master leasehold 10.0.0.2 7002"]);
    expect(await listener.nextMessage()).toEqual(["pmessage", "*", "-odown", "master leasehold 10.0.0.2 7002"]);
    expect(listener.takeMessages()).toEqual([]);
  });
});

test("a switch is told once the view names the new primary, and one that came to nothing is not told at all", async () => {
  const view = viewOfPrimary();
  const sentinel = await sentinelOf(view);
  const [listener, client] = [await sentinel.connect(), await sentinel.connect()];
  await listener.call("SUBSCRIBE", "+switch-master");
  view.beginTakeOver(B);
  expect(await client.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)).toMatchObject({ length: -1 });
  // B died before it was primary.
  view.beginTakeOver(C);
  expect(await client.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)).toMatchObject({ length: -1 });
  expect(listener.takeMessages()).toEqual([]);
  view.hearAgain();
  expect(await listener.nextMessage()).toEqual(["message", "+switch-master", "leasehold 10.0.0.1 7001 fd00::3 7003"]);
  expect(await client.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)).toEqual(["fd00::3", "7003"]);
  expect(listener.takeMessages()).toEqual([]);
});

test("a node that never heard of a primary names none", async () => {
  const view = new HeldView(SELF);
  const clock = new HeldClock();
  const client = await (await sentinelOf(view, { clock })).connect();
  clock.nowMs += ROLE_DURATION_MS + 1000;
  const record = await master(client);
  expect(record.get("flags")).toBe("s_down,o_down,master,disconnected");
  expect(record.get("last-ok-ping-reply")).toBe(String(ROLE_DURATION_MS + 1000));
  expect(record.get("s-down-time")).toBe("1000");
  expect(record.get("num-slaves")).toBe("0");
  expect(record.get("num-other-sentinels")).toBe("0");
});

test("times are whole milliseconds, counted from the newest sign and the newest switch", async () => {
  const clock = new HeldClock();
  const view = viewOfPrimary(clock);
  const client = await (await sentinelOf(view, { clock })).connect();
  clock.nowMs += 250.5;
  view.seenAgoMs = 17.9;
  const before = await master(client);
  expect(before.get("last-ok-ping-reply")).toBe("17");
  expect(before.get("info-refresh")).toBe("17");
  expect(before.get("role-reported-time")).toBe("250");
  view.takeOver(B);
  clock.nowMs += 30;
  expect((await master(client)).get("role-reported-time")).toBe("30");
});

describe("the link to the primary", () => {
  /** A primary of which only the data port is there. */
  async function startDataPort(): Promise<{ readonly port: number; readonly links: Set<Socket>; end(): void }> {
    const links = new Set<Socket>();
    const server = createServer((socket) => {
      links.add(socket);
      socket.on("error", () => {});
      socket.on("close", () => links.delete(socket));
    });
    await new Promise<void>((resolve) => {
      server.listen(0, "127.0.0.1", resolve);
    });
    const end = (): void => {
      server.close();
      for (const socket of links) socket.destroy();
    };
    onTestFinished(end);
    return { port: (server.address() as AddressInfo).port, links, end };
  }

  test("breaks with the primary's process, which is told at once and without taking the name back", async () => {
    const dataPort = await startDataPort();
    const view = new HeldView({ ...B, sentinelPort: 0 }, [A]);
    const primary = address(dataPort.port, 0);
    view.takeOver(primary);
    const client = await (await sentinelOf(view)).connect();
    await until("the link", () => dataPort.links.size === 1);
    expect((await master(client)).get("flags")).toBe("master");
    dataPort.end();
    await until("the break", async () => (await master(client)).get("flags") === "master,disconnected");
    expect(await client.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)).toEqual(["127.0.0.1", String(primary.port)]);
    // A beat of the primary that is newer than the break.
    view.seenAgoMs = 0;
    expect((await master(client)).get("flags")).toBe("master");
  });

  test("is not needed: a primary that cannot be reached from here is not called disconnected", async () => {
    const dataPort = await startDataPort();
    dataPort.end();
    const view = new HeldView({ ...B, sentinelPort: 0 }, [A]);
    view.takeOver(address(dataPort.port, 0));
    const reachable = await startDataPort();
    const client = await (await sentinelOf(view)).connect();
    expect((await master(client)).get("flags")).toBe("master");
    // By the time that the next primary is linked the first one has been tried.
    view.takeOver(address(reachable.port, 0));
    await until("the link to the next primary", () => reachable.links.size === 1);
    expect((await master(client)).get("flags")).toBe("master");
  });

  test("is not broken by a primary that turns clients away", async () => {
    const node = await startNode({ connectionsMax: 1 });
    const only = await node.connect();
    const view = new HeldView({ ...B, sentinelPort: 0 }, [A]);
    view.takeOver(address(node.port, 0));
    const client = await (await sentinelOf(view)).connect();
    await until("the link to be turned away", () => node.server.statistics.connectionsRejected > 0);
    // What was sent is read behind the refusal, which this exchange is newer than.
    await only.call("PING");
    expect((await master(client)).get("flags")).toBe("master");
    await node.stop();
  });

  test("follows the primary, and ends with the Sentinel port", async () => {
    const [first, second] = [await startDataPort(), await startDataPort()];
    const view = new HeldView({ ...B, sentinelPort: 0 }, [A]);
    view.takeOver(address(first.port, 0));
    const sentinel = await sentinelOf(view);
    await until("the link", () => first.links.size === 1);
    view.takeOver(address(second.port, 0));
    await until("the link to the next", () => second.links.size === 1 && first.links.size === 0);
    await sentinel.stop();
    await until("the link to be gone", () => second.links.size === 0);
  });
});

test("names that are not the cluster's", async () => {
  const client = await (await sentinelOf(viewOfPrimary())).connect();
  for (const name of ["other", "LEASEHOLD", "", "leasehold "]) {
    for (const subcommand of ["MASTER", "REPLICAS", "SLAVES", "SENTINELS", "CKQUORUM"]) {
      expect(show(await client.send("SENTINEL", subcommand, name))).toBe("-ERR No such master with that name");
    }
    expect(await client.send("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)).toMatchObject({ length: -1 });
  }
});

test("it says that it is a Sentinel wherever clients look", async () => {
  const sentinel = await sentinelOf(viewOfPrimary());
  const client = await sentinel.connect(3);
  const hello = fields(await client.call("HELLO", 3));
  expect([...hello.keys()]).toEqual(["server", "version", "proto", "id", "mode", "modules"]);
  expect(hello.get("mode")).toBe("sentinel");
  expect(await client.call("ROLE")).toEqual(["sentinel", [NAME]]);
  expect(await client.call("SENTINEL", "MYID")).toBe(A.id);
  const info = await callText(client, "INFO");
  expect(info).toContain("redis_mode:sentinel\r\n");
  expect(info).toContain(`tcp_port:${sentinel.port}\r\n`);
  expect(info).toContain(`run_id:${A.id}\r\n`);
  expect(await callText(client, "INFO", "nothing")).toBe("");
  expect(textOf(await client.call("SENTINEL", "CKQUORUM", NAME))).toBe(
    "OK 2 usable Sentinels. Quorum and failover authorization can be reached",
  );
});

test("commands on data are unknown here, and SENTINEL is unknown on the data port", async () => {
  const client = await (await sentinelOf(viewOfPrimary())).connect();
  for (const argv of [
    ["GET", "a"],
    ["LEASE.GRANT", "a", "10"],
    ["SELECT", "0"],
    ["PUBLISH", "+switch-master", "x"],
  ]) {
    expect(show(await client.send(...argv))).toMatch(/^-ERR unknown command '/);
  }
  const node = await startNode();
  const onData = await node.connect();
  expect(show(await onData.send("SENTINEL", "MASTERS"))).toMatch(/^-ERR unknown command 'SENTINEL'/);
  const info = await callText(onData, "INFO");
  expect(info).toContain("redis_mode:standalone\r\n");
  expect(info).toContain("role:master\r\n");
  expect(info).toContain("loading:0\r\n");
  await node.stop();
});

test("the password is that of the data port, and failures are counted with its failures", async () => {
  const sentinel = await sentinelOf(viewOfPrimary(), { start: { requirePass: "secret" } });
  const client = await sentinel.connect();
  expect(show(await client.send("SENTINEL", "MASTERS"))).toBe("-NOAUTH Authentication required.");
  expect(show(await client.send("SUBSCRIBE", "+switch-master"))).toBe("-NOAUTH Authentication required.");
  expect(show(await client.send("AUTH", "wrong"))).toMatch(/^-WRONGPASS /);
  expect(sentinel.diagnostics.authenticationFailures).toBe(1);
  expect(await client.send("AUTH", "secret")).toStrictEqual(new Status("OK"));
  expect(await client.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)).toEqual(["10.0.0.1", "7001"]);
  const fresh = await sentinel.connect();
  expect(fields(await fresh.call("HELLO", 3, "AUTH", "default", "secret")).get("mode")).toBe("sentinel");
});

test("a subscriber that goes is forgotten, and the others still hear", async () => {
  const view = viewOfPrimary();
  const sentinel = await sentinelOf(view);
  const [gone, stays] = [await sentinel.connect(), await sentinel.connect()];
  await gone.call("SUBSCRIBE", "+switch-master");
  await stays.call("SUBSCRIBE", "+switch-master");
  gone.destroy();
  await until("the connection to be forgotten", () => sentinel.server.connectionCount === 1);
  view.takeOver(B);
  expect((await stays.nextMessage())[1]).toBe("+switch-master");
});

test("QUIT and CLIENT", async () => {
  const client = await (await sentinelOf(viewOfPrimary())).connect();
  expect(await client.call("CLIENT", "SETNAME", "watcher")).toStrictEqual(new Status("OK"));
  expect(await client.call("CLIENT", "GETNAME")).toBe("watcher");
  expect(await client.call("CLIENT", "SETINFO", "LIB-NAME", "lib")).toStrictEqual(new Status("OK"));
  expect(await client.call("CLIENT", "ID")).toBe(1);
  expect(await callText(client, "CLIENT", "LIST")).toMatch(/^id=1 .* name=watcher .* lib-name=lib /);
  expect(await client.send("CLIENT", "PAUSE", "1000")).toBeInstanceOf(RespError);
  expect(await client.call("QUIT")).toStrictEqual(new Status("OK"));
  await client.closed;
});

function tableOf(view: HeldView): CommandTable {
  const settings = new RuntimeSettings({
    bind: [],
    port: 0,
    directory: "",
    requirePass: "",
    protectedMode: true,
    connectionsMax: 1,
    idleTimeoutSeconds: 0,
    tcpKeepAliveSeconds: 0,
    notifyKeyspaceEvents: "",
    debugCommands: false,
    frameBytesMax: 1,
  });
  const clock = new HeldClock();
  const unused = null as never;
  return sentinelCommandTable(
    { settings, clock, diagnostics: unused, log: unused, figures: unused, identity: unused },
    new PubSub(settings),
    new ClusterState(view, clock, ROLE_DURATION_MS, { isBroken: false }),
  );
}

test("every row of the table agrees with its arguments", () => {
  const table = tableOf(viewOfPrimary());
  const names = [...table.all()].map(({ name }) => name);
  expect(names.length).toBe(new Set(names).size);
  for (const definition of table.all()) {
    if (definition.subcommands !== undefined) continue;
    const words = definition.name.split("|").length;
    expect(Math.abs(definition.arity), definition.name).toBe(words + fewestArguments(definition.arguments));
  }
});

test("PROTOCOL.md names exactly the subcommands of SENTINEL, and the events in their order", () => {
  const text = readFileSync(new URL("../../docs/PROTOCOL.md", import.meta.url), "utf8");
  const [, section = ""] = /\n## The Sentinel port\n([^]*?)\n## /.exec(text) ?? [];
  const documented = new Set([...section.matchAll(/`SENTINEL ([a-z-]+)/g)].map(([, name]) => `sentinel|${name}`));
  const table = tableOf(viewOfPrimary());
  const defined = [...table.all()].map(({ name }) => name).filter((name) => name.startsWith("sentinel|"));
  expect([...documented].sort()).toEqual(defined.filter((name) => name !== "sentinel|help").sort());
  const channels = [...section.matchAll(/^\| `([+-][a-z-]+)` \|/gm)].map(([, channel]) => channel);
  expect(channels).toEqual(switchEvents(NAME, A, B).map(({ channel }) => channel));
});

test("whatever is sent is answered once, and the node goes on", async () => {
  const sentinel = await sentinelOf(viewOfPrimary());
  const client = await sentinel.connect();
  /** These end the connection, or answer never or more than once. */
  const apart = /^(quit|p?(un)?subscribe|client\|(reply|kill))$/;
  const names = [...tableOf(viewOfPrimary()).all()].map(({ name }) => name).filter((name) => !apart.test(name));
  const odd = fc.constantFrom(
    NAME,
    "",
    "*",
    "0",
    "-1",
    "\u0000\u00ff\r\n",
    "get",
    "sentinel",
    "3",
    "AUTH",
    "TYPE",
    "x".repeat(300),
  );
  const request = fc
    .tuple(fc.constantFrom(...names), fc.array(odd, { maxLength: 4 }))
    .map(([name, args]) => [...name.split("|"), ...args]);
  await fc.assert(
    fc.asyncProperty(fc.array(request, { minLength: 1, maxLength: 20 }), async (requests) => {
      await client.send("HELLO", "2");
      const replies = await client.pipeline([...requests, ["ROLE"]]);
      expect(replies.at(-1)).toEqual(["sentinel", [NAME]]);
    }),
    { numRuns: 60 },
  );
});
