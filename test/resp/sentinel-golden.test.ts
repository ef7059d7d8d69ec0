import { spawn, type ChildProcess } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { until } from "../support/poll.js";
import { fields, RespConnection, RespError, show, textOf, type RespValue } from "../support/resp-client.js";
import { describeWith } from "../support/tools.js";
import { argvOf } from "./golden-harness.js";
import { address, HeldView, ROLE_DURATION_MS, startSentinel, type TestSentinel } from "./sentinel-harness.js";
import { freePorts } from "../support/ports.js";

/**
 * The same topology twice: Debian's redis-server with a replica and two Sentinels, and two Sentinel ports of this server that see
 * two nodes. Whatever a client may ask has to be answered alike: fields, their order, types, texts, and the events of a failover.
 * Ports are compared by the node that they belong to, ids by their form, times by being whole numbers.
 */

vi.setConfig({ testTimeout: 180_000, hookTimeout: 120_000 });

/** A Sentinel that was not run for two seconds looks on for half a minute before it acts. */
const PATIENCE_MS = 90_000;

const NAME = "leasehold";

/** Fields that hold a time or a count of bytes: any whole number is right. */
const MOVING = new Set([
  "last-ping-sent",
  "last-ok-ping-reply",
  "last-ping-reply",
  "link-pending-commands",
  "info-refresh",
  "role-reported-time",
  "master-link-down-time",
  "slave-repl-offset",
  "last-hello-message",
  "s-down-time",
  "o-down-time",
]);

/** What differs from one topology to the other and means nothing: ports by number become ports by role. */
class Alike {
  readonly #names: readonly (readonly [port: number, name: string])[];
  constructor(ports: Readonly<Record<string, number>>) {
    this.#names = Object.entries(ports).map(([name, port]) => [port, name]);
  }

  text(value: string): string {
    let text = value.replaceAll(/\b[0-9a-f]{40}\b/g, "<id>");
    for (const [port, name] of this.#names) text = text.replaceAll(new RegExp(`\\b${port}\\b`, "g"), `<${name}>`);
    return text;
  }

  reply(value: RespValue): RespValue {
    if (typeof value === "string") return this.text(value);
    if (value instanceof Map) return new Map([...value].map(([field, one]) => [field, this.#field(field, one)]));
    if (!Array.isArray(value)) return value;
    return value.map((one, index) => (index % 2 === 1 ? this.#field(value[index - 1] ?? null, one) : this.reply(one)));
  }

  #field(field: RespValue, value: RespValue): RespValue {
    if (typeof field === "string" && MOVING.has(field)) return /^\d+$/.test(textOf(value)) ? "<moving>" : value;
    if (field === "version") return "<version>";
    if (field === "id") return "<number>";
    return this.reply(value);
  }
}

interface Side {
  readonly alike: Alike;
  connect(protocol: 2 | 3): Promise<RespConnection>;
}

describeWith(["redis-server"], "Debian's redis-sentinel", () => {
  const processes: ChildProcess[] = [];
  const sentinels: TestSentinel[] = [];
  let scratch = "";
  let primary: ChildProcess;
  let theirs: Side;
  let ours: Side;
  let theirLonely = 0;
  let ourLonely: TestSentinel;
  let view: HeldView;
  let second: ReturnType<typeof address>;

  const launch = (...args: string[]): ChildProcess => {
    const child = spawn("redis-server", args, { stdio: "ignore", cwd: scratch });
    processes.push(child);
    return child;
  };

  const launchSentinel = (port: number, master: number): void => {
    const config = join(scratch, `sentinel-${port}.conf`);
    writeFileSync(
      config,
      [
        `port ${port}`,
        "bind 127.0.0.1",
        `dir ${scratch}`,
        `sentinel monitor ${NAME} 127.0.0.1 ${master} 1`,
        `sentinel down-after-milliseconds ${NAME} ${ROLE_DURATION_MS}`,
        `sentinel failover-timeout ${NAME} ${ROLE_DURATION_MS}`,
        "",
      ].join("\n"),
    );
    launch(config, "--sentinel");
  };

  async function startTheirs(): Promise<void> {
    const [data1 = 0, data2 = 0, port1 = 0, port2 = 0, lonely = 0, nobody = 0] = await freePorts(6);
    const common = ["--bind", "127.0.0.1", "--save", "", "--dir", scratch, "--repl-diskless-sync-delay", "0"];
    primary = launch("--port", String(data1), "--dbfilename", "1.rdb", ...common);
    launch("--port", String(data2), "--dbfilename", "2.rdb", "--replicaof", "127.0.0.1", String(data1), ...common);
    launchSentinel(port1, data1);
    launchSentinel(port2, data1);
    launchSentinel(lonely, nobody);
    theirLonely = lonely;
    theirs = {
      alike: new Alike({ data1, data2, port1, port2 }),
      connect: (protocol) => RespConnection.connect(port1, { protocol }),
    };
    for (const port of [port1, port2]) {
      const client = await until("a Sentinel to answer", () => RespConnection.connect(port).catch(() => null));
      await until(
        "the Sentinels to know each other and the replica",
        async () => {
          const master = fields(await client.call("SENTINEL", "MASTER", NAME));
          const [replica] = (await client.call("SENTINEL", "REPLICAS", NAME)) as RespValue[];
          const [other] = (await client.call("SENTINEL", "SENTINELS", NAME)) as RespValue[];
          if (replica === undefined || other === undefined || master.get("flags") !== "master") return false;
          const [ofReplica, ofOther] = [fields(replica), fields(other)];
          return (
            ofReplica.get("master-link-status") === "ok" &&
            ofReplica.get("flags") === "slave" &&
            ofOther.get("flags") === "sentinel" &&
            ofOther.get("runid") !== ""
          );
        },
        PATIENCE_MS,
      );
      client.destroy();
    }
  }

  async function startOurs(): Promise<void> {
    const [data1 = 0, data2 = 0, port1 = 0, port2 = 0] = await freePorts(4);
    const first = address(data1, port1);
    second = address(data2, port2);
    view = new HeldView(first, [second]);
    view.takeOver(first);
    // Theirs have not failed over yet.
    view.epoch = 0;
    sentinels.push(await startSentinel(view), await startSentinel(new HeldView(second, [first])));
    ourLonely = await startSentinel(new HeldView({ ...first, sentinelPort: 0 }));
    sentinels.push(ourLonely);
    ours = {
      alike: new Alike({ data1, data2, port1, port2 }),
      connect: (protocol) => RespConnection.connect(port1, { protocol }),
    };
  }

  beforeAll(async () => {
    scratch = mkdtempSync(join(tmpdir(), "leasehold-sentinel-"));
    await Promise.all([startTheirs(), startOurs()]);
  });
  afterAll(async () => {
    for (const child of processes) child.kill("SIGKILL");
    await Promise.all(sentinels.map(async (sentinel) => sentinel.stop()));
    rmSync(scratch, { recursive: true, force: true });
  });

  const SAME: readonly string[] = [
    "PING",
    "PING hello",
    "HELLO",
    "HELLO 4",
    "ROLE",
    "ROLE x",
    "SENTINEL",
    "SENTINEL MASTERS",
    "sentinel masters",
    "SENTINEL MASTERS x",
    `SENTINEL MASTER ${NAME}`,
    `SENTINEL REPLICAS ${NAME}`,
    `SENTINEL SLAVES ${NAME}`,
    `SENTINEL SENTINELS ${NAME}`,
    `SENTINEL GET-MASTER-ADDR-BY-NAME ${NAME}`,
    `SENTINEL CKQUORUM ${NAME}`,
    "SENTINEL MYID",
    "SENTINEL MYID x",
    "SENTINEL MASTER",
    "SENTINEL MASTER other",
    "SENTINEL REPLICAS other",
    "SENTINEL SLAVES other",
    "SENTINEL SENTINELS other",
    "SENTINEL CKQUORUM other",
    "SENTINEL GET-MASTER-ADDR-BY-NAME other",
    "SENTINEL GET-MASTER-ADDR-BY-NAME",
    `SENTINEL MASTER ${NAME.toUpperCase()}`,
    "SENTINEL NOTHING x",
    "GET a",
    "SET a b",
    "SELECT 0",
    "ECHO a",
    "CONFIG GET port",
    "TIME",
    "RESET",
    "MULTI",
    "PUBSUB CHANNELS",
    "CLUSTER SLOTS",
    "CLIENT SETNAME me",
    "CLIENT GETNAME",
    "AUTH x",
    "SUBSCRIBE",
    "INFO sentinel",
    "INFO nothing",
    "PSUBSCRIBE *",
    "UNSUBSCRIBE",
    "PUNSUBSCRIBE",
  ];

  test.each([2, 3] as const)("every reply, RESP%i", async (protocol) => {
    const [ofTheirs, ofOurs] = await Promise.all([theirs.connect(protocol), ours.connect(protocol)]);
    const wrong: string[] = [];
    for (const line of SAME) {
      const [expected, got] = await Promise.all([ofTheirs.send(...argvOf(line)), ofOurs.send(...argvOf(line))]);
      const [wanted, answered] = [comparable(theirs, expected), comparable(ours, got)];
      if (answered !== wanted) wrong.push(`${line}\n  => ${answered}\n not ${wanted}`);
    }
    expect(wrong).toEqual([]);
    ofTheirs.destroy();
    ofOurs.destroy();
  });

  function comparable({ alike }: Side, reply: RespValue): string {
    return show(reply instanceof RespError ? reply : alike.reply(reply));
  }

  test("INFO has a Sentinel's sections, and no field that a Sentinel has not, but for our own", async () => {
    const [ofTheirs, ofOurs] = await Promise.all([theirs.connect(2), ours.connect(2)]);
    const [expected, got] = (await Promise.all([ofTheirs.call("INFO"), ofOurs.call("INFO")])).map((reply) =>
      textOf(reply).split("\r\n"),
    );
    const titles = (lines: readonly string[] | undefined): string[] =>
      (lines ?? []).filter((line) => line.startsWith("#"));
    const names = (lines: readonly string[] | undefined): string[] =>
      (lines ?? []).filter((line) => line.includes(":")).map((line) => line.slice(0, line.indexOf(":")));
    expect(titles(got)).toEqual(titles(expected));
    const known = new Set(names(expected));
    expect(names(got).filter((name) => !known.has(name))).toEqual(["leasehold_version", "node_version"]);
    expect(got).toContain("redis_mode:sentinel");
    ofTheirs.destroy();
    ofOurs.destroy();
  });

  /** Differs on purpose: theirs goes on to name the address that does not answer. */
  test.each([2, 3] as const)("a master that is down, RESP%i", async (protocol) => {
    const [ofTheirs, ofOurs] = await Promise.all([
      until("the lonely Sentinel to answer", () => RespConnection.connect(theirLonely, { protocol }).catch(() => null)),
      ourLonely.connect(protocol),
    ]);
    const down = await until(
      "the master to be down, with no failover under way",
      async () => {
        const record = await ofTheirs.call("SENTINEL", "MASTER", NAME);
        return fields(record).get("flags") === "s_down,o_down,master,disconnected" && record;
      },
      PATIENCE_MS,
    );
    const record = await ofOurs.call("SENTINEL", "MASTER", NAME);
    expect(record instanceof Map).toBe(down instanceof Map);
    const [expected, got] = [fields(down), fields(record)];
    expect([...got.keys()]).toEqual([...expected.keys()]);
    expect(got.get("flags")).toBe(expected.get("flags"));
    expect([got.get("ip"), got.get("port"), got.get("runid")]).toEqual(["", "0", ""]);
    const statusIn = (info: RespValue): string | undefined => /status=(\w+)/.exec(textOf(info))?.[1];
    expect(statusIn(await ofOurs.call("INFO", "sentinel"))).toBe(statusIn(await ofTheirs.call("INFO", "sentinel")));
    expect(await ofTheirs.call("SENTINEL", "REPLICAS", NAME)).toEqual([]);
    ofTheirs.destroy();
    ofOurs.destroy();
  });

  test("the events of a failover", async () => {
    const told = new Set(["+sdown", "+switch-master", "+slave"]);
    /** Up to the `+slave` that ends it. */
    const listen = async ({ alike }: Side, client: RespConnection): Promise<string[][]> => {
      const heard: string[][] = [];
      for (;;) {
        const [, , channel = "", message = ""] = await client.nextMessage(PATIENCE_MS);
        const isOfMaster = channel !== "+sdown" || message.startsWith("master ");
        if (told.has(channel) && isOfMaster) heard.push([channel, alike.text(message)]);
        if (channel === "+slave") return heard;
      }
    };
    const [ofTheirs, ofOurs] = await Promise.all([theirs.connect(3), ours.connect(3)]);
    await Promise.all([ofTheirs.call("PSUBSCRIBE", "*"), ofOurs.call("PSUBSCRIBE", "*")]);
    const bothHeard = Promise.all([listen(theirs, ofTheirs), listen(ours, ofOurs)]);
    primary.kill("SIGKILL");
    view.takeOver(second);
    const [expected, got] = await bothHeard;
    expect(got).toEqual(expected);
    expect(got.map(([channel]) => channel)).toEqual(["+sdown", "+switch-master", "+slave"]);
    expect(await ofOurs.nextMessage()).toEqual([
      "pmessage",
      "*",
      "-odown",
      expect.stringMatching(/^master leasehold /),
    ]);
    const address_ = "get-master-addr-by-name";
    expect(comparable(ours, await ofOurs.call("SENTINEL", address_, NAME))).toBe(
      comparable(theirs, await ofTheirs.call("SENTINEL", address_, NAME)),
    );
    // Both began with 0; an election that came to nothing makes theirs rise by more.
    for (const client of [ofTheirs, ofOurs]) {
      const record = fields(await client.call("SENTINEL", "MASTER", NAME));
      expect(Number(record.get("config-epoch"))).toBeGreaterThan(0);
    }
    ofTheirs.destroy();
    ofOurs.destroy();
  });
});
