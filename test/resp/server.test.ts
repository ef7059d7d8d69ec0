import { createServer } from "node:net";
import { networkInterfaces } from "node:os";
import { afterEach, describe, expect, it } from "vitest";
import type { Clock, Scheduler, Timer } from "#src/ports.js";
import { isLoopbackAddress, formatAddress } from "#src/resp/connection.js";
import { ListenError, RespServer } from "#src/resp/server.js";
import { HOUSEKEEPING_MS, LINGER_MS } from "#src/resp/wire-limits.js";
import {
  eventually,
  RawClient,
  RealScheduler,
  request,
  startHarness,
  testCommands,
  type Harness,
  type HarnessOptions,
} from "./wire-harness.js";

let harness: Harness;
const clients: RawClient[] = [];

async function start(options: HarnessOptions = {}): Promise<void> {
  harness = await startHarness(options);
}
async function open(host?: string): Promise<RawClient> {
  const client = await RawClient.open(harness.port, host);
  clients.push(client);
  return client;
}

afterEach(async () => {
  for (const client of clients.splice(0)) client.close();
  await harness.stop();
});

/** Time stands still until `advance`; the end of a loop turn is real. */
class ManualTime implements Clock, Scheduler {
  #nowMs = 1_000_000;
  #timers: { readonly atMs: number; readonly callback: () => void }[] = [];
  readonly #real = new RealScheduler();
  monotonicMs(): number {
    return this.#nowMs;
  }
  unixMs(): number {
    return 0;
  }
  soon(callback: () => void): void {
    this.#real.soon(callback);
  }
  after(delayMs: number, callback: () => void): Timer {
    const timer = { atMs: this.#nowMs + delayMs, callback };
    this.#timers.push(timer);
    return { cancel: () => (this.#timers = this.#timers.filter((one) => one !== timer)) };
  }
  advance(ms: number): void {
    const untilMs = this.#nowMs + ms;
    for (;;) {
      this.#timers.sort((a, b) => a.atMs - b.atMs);
      const next = this.#timers[0];
      if (next === undefined || next.atMs > untilMs) break;
      this.#timers.shift();
      this.#nowMs = next.atMs;
      next.callback();
    }
    this.#nowMs = untilMs;
  }
}

describe("listening", () => {
  it("says in one line that the port is taken, and listens nowhere then", async () => {
    await start();
    const taken = harness.port;
    const second = new RespServer({
      backend: harness.backend,
      commands: testCommands(),
      settings: harness.settings,
      clock: harness.server.clock,
      scheduler: new RealScheduler(),
      log: harness.log,
    });
    const failed = second.listen(["127.0.0.2", "127.0.0.1"], taken);
    await expect(failed).rejects.toThrow(ListenError);
    await expect(failed).rejects.toMatchObject({
      code: "EADDRINUSE",
      message: `cannot listen on 127.0.0.2:${taken}, 127.0.0.1:${taken}: the port is taken by another process`,
    });
    expect(second.listening).toEqual([]);
    // The first of the two hosts was free; it is free again.
    await new Promise<void>((resolve, reject) => {
      const probe = createServer();
      probe.once("error", reject);
      probe.listen(taken, "127.0.0.2", () => probe.close(() => resolve()));
    });
  });

  it("says so when the address is not this machine's", async () => {
    await start();
    const other = new RespServer({
      backend: harness.backend,
      commands: testCommands(),
      settings: harness.settings,
      clock: harness.server.clock,
      scheduler: new RealScheduler(),
      log: harness.log,
    });
    await expect(other.listen(["192.0.2.1"], 0)).rejects.toThrow(/this machine has no such address/);
  });

  it("listens on several hosts under one port", async () => {
    await start();
    const server = new RespServer({
      backend: harness.backend,
      commands: testCommands(),
      settings: harness.settings,
      clock: harness.server.clock,
      scheduler: new RealScheduler(),
      log: harness.log,
    });
    await server.listen(["127.0.0.1", "127.0.0.2"], 0);
    const [first, second] = server.listening;
    expect(first?.port).toBe(second?.port);
    for (const host of ["127.0.0.1", "127.0.0.2"]) {
      const client = await RawClient.open(first?.port ?? 0, host);
      client.send("PING\r\n");
      await client.expect("+PONG\r\n");
      client.close();
    }
    await server.stop(1000);
  });
});

describe("who is let in", () => {
  it("no more than maxclients; the one too many is told so, and a place that becomes free is given again", async () => {
    await start({ connectionsMax: 2 });
    const first = await open();
    await open();
    await eventually(() => harness.server.connectionCount === 2, "two are in");
    const third = await open();
    await third.expect("-ERR max number of clients reached\r\n");
    await third.until((client) => client.ended);
    expect(harness.server.statistics).toMatchObject({ connectionsReceived: 3, connectionsRejected: 1 });
    first.close();
    await eventually(() => harness.server.connectionCount === 1, "one has left");
    const fourth = await open();
    fourth.send("PING\r\n");
    await fourth.expect("+PONG\r\n");
  });

  it("nobody from another machine while there is no password and protected mode is on", async () => {
    const outside = Object.values(networkInterfaces())
      .flat()
      .find((one) => one !== undefined && one.family === "IPv4" && !one.internal);
    await start();
    if (outside === undefined) {
      process.stderr.write(
        "skipped: protected mode over the network (this machine has no other address than loopback)\n",
      );
      return;
    }
    const server = new RespServer({
      backend: harness.backend,
      commands: testCommands(),
      settings: harness.settings,
      clock: harness.server.clock,
      scheduler: new RealScheduler(),
      log: harness.log,
    });
    await server.listen(["0.0.0.0"], 0);
    const port = server.listening[0]?.port ?? 0;
    const attempt = async (host: string): Promise<string> => {
      const client = await RawClient.open(port, host);
      client.send("PING\r\n");
      await client.until((one) => one.received.endsWith("\r\n"));
      const { received } = client;
      client.close();
      return received;
    };
    expect(await attempt("127.0.0.1")).toBe("+PONG\r\n");
    expect(await attempt(outside.address)).toMatch(/^-DENIED .*protected mode/);
    harness.settings.protectedMode = false;
    expect(await attempt(outside.address)).toBe("+PONG\r\n");
    harness.settings.protectedMode = true;
    harness.settings.password = "secret";
    expect(await attempt(outside.address)).toBe("-NOAUTH Authentication required.\r\n");
    await server.stop(1000);
  });

  it("knows loopback addresses, and writes addresses as clients expect them", () => {
    for (const address of ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
      expect(isLoopbackAddress(address)).toBe(true);
    for (const address of ["10.0.0.1", "128.0.0.1", "::2", "::ffff:10.0.0.127", undefined]) {
      expect(isLoopbackAddress(address)).toBe(false);
    }
    expect(formatAddress("127.0.0.1", 1)).toBe("127.0.0.1:1");
    expect(formatAddress("::ffff:10.0.0.1", 2)).toBe("10.0.0.1:2");
    expect(formatAddress("fe80::1", 3)).toBe("[fe80::1]:3");
  });
});

describe("the register", () => {
  it("finds connections by id, in order of connection, and forgets those that are gone", async () => {
    await start();
    await open();
    await open();
    await eventually(() => harness.server.connectionCount === 2, "two are in");
    const [first, second] = [...harness.server.connections()];
    expect([first?.id, second?.id]).toEqual([1, 2]);
    expect(harness.server.connection(2)).toBe(second);
    second?.close("killed");
    expect(harness.server.connection(2)).toBe(undefined);
    expect([...harness.server.connections()]).toEqual([first]);
    await eventually(() => harness.server.connectionCount === 1, "forgotten");
  });

  it("closes all but one", async () => {
    await start();
    const kept = await open();
    const others = [await open(), await open(), await open()];
    await eventually(() => harness.server.connectionCount === 4, "all are in");
    harness.server.dismissAll(harness.server.connection(1) ?? null, "the role is gone");
    for (const other of others) await other.until((client) => client.closed || client.ended);
    kept.send("PING\r\n");
    await kept.expect("+PONG\r\n");
    await eventually(() => harness.server.connectionCount === 1, "the others are gone");
  });

  it("sends what is answered before it closes, and leaves what is not unanswered", async () => {
    await start();
    const [answered, half, blocked] = [await open(), await open(), await open()];
    answered.send(request("LATER", "a") + request("LATER", "b"));
    await eventually(() => harness.backend.parked.length === 2, "the first two wait");
    half.send(request("LATER", "c") + request("LATER", "d"));
    await eventually(() => harness.backend.parked.length === 4, "four wait");
    blocked.send(request("WAIT", "e"));
    await eventually(() => harness.backend.parked.length === 5, "all wait");
    harness.backend.release([0, 1, 2]);
    harness.server.dismissAll(null, "the role is gone");
    for (const one of [answered, half, blocked]) await one.until((client) => client.closed || client.ended);
    expect(answered.received).toBe("$1\r\na\r\n$1\r\nb\r\n");
    expect(half.received).toBe("$1\r\nc\r\n");
    expect(blocked.received).toBe("");
    await eventually(() => harness.server.connectionCount === 0, "all are gone");
  });
});

describe("a backend that forgets who waits for room", () => {
  it("holds up nobody after the role has changed", async () => {
    await start();
    const [first, kept] = [await open(), await open()];
    harness.backend.room = 0;
    first.send(request("LATER", "a"));
    await eventually(() => harness.backend.waitingForRoom === 1, "the first waits");
    kept.send(request("LATER", "b") + request("LATER", "c"));
    await eventually(() => harness.server.connection(2)?.queryBufferBytes === 2 * "LATERb".length, "the second waits");
    harness.backend.forgetRoom();
    harness.server.dismissAll(harness.server.connection(2) ?? null, "the role is gone");
    expect(harness.backend.waitingForRoom).toBe(1);
    harness.backend.makeRoom(2);
    await eventually(() => harness.backend.parked.length === 2, "it goes on");
    harness.backend.release();
    await kept.expect("$1\r\nb\r\n$1\r\nc\r\n");
  });
});

describe("time", () => {
  it("closes idle connections after `timeout`, but not those that act, subscribe or are blocked", async () => {
    const time = new ManualTime();
    await start({ clock: time, scheduler: time });
    harness.settings.idleTimeoutMs = 10_000;
    const [idle, active, subscriber, blocked] = [await open(), await open(), await open(), await open()];
    await eventually(() => harness.server.connectionCount === 4, "all are in");
    const subscribed = harness.server.connection(3);
    if (subscribed !== undefined) subscribed.subscriptions = { channelCount: 1, patternCount: 0, dropAll: () => {} };
    blocked.send("WAIT k\r\n");
    await eventually(() => harness.backend.parked.length === 1, "blocked");
    for (let second = 0; second < 30; second++) {
      time.advance(1000);
      active.send("PING\r\n");
      await active.expect("+PONG\r\n");
    }
    await idle.until((client) => client.closed || client.ended);
    expect([...harness.server.connections()].map((one) => one.id)).toEqual([2, 3, 4]);
    expect(subscriber.ended).toBe(false);
    harness.backend.release();
    await blocked.expect("$1\r\nk\r\n");
    time.advance(10_000 + HOUSEKEEPING_MS);
    await blocked.until((client) => client.closed || client.ended);
    for (const client of clients) client.close();
  });

  it("gives a client that does not close its side a while after the last reply", async () => {
    const time = new ManualTime();
    await start({ clock: time, scheduler: time });
    const client = await open();
    client.send("QUIT\r\n");
    await client.expect("+OK\r\n");
    await client.until((one) => one.ended);
    time.advance(LINGER_MS - 1);
    expect(harness.server.connectionCount).toBe(1);
    time.advance(HOUSEKEEPING_MS);
    await eventually(() => harness.server.connectionCount === 0, "closed");
  });

  it("gives others their turn after a command that took long, and shares out the time of turns", async () => {
    const time = new ManualTime();
    const ran: string[] = [];
    const commands = testCommands({
      quick: (argv) => {
        ran.push(argv[1] ?? "");
        time.advance(0.25);
        return 1;
      },
    });
    const counters = { calls: 0, rejected: 0, failed: 0, durationMs: 0 };
    commands.specs.set("slow", {
      name: "slow",
      arity: 2,
      flags: [],
      counters,
      timed: true,
      run: (argv) => {
        ran.push(argv[1] ?? "");
        time.advance(5);
        return 1;
      },
    });
    await start({ clock: time, scheduler: time, commands });
    const [greedy, other] = [await open(), await open()];
    harness.server.pause("all", 60_000);
    greedy.send("QUICK g\r\nQUICK g\r\n" + "SLOW g\r\n".repeat(3));
    other.send("QUICK o\r\n");
    await eventually(
      () => [...harness.server.connections()].every((one) => one.queryBufferBytes > 0),
      "both have sent",
    );
    harness.server.unpause();
    await greedy.expect(":1\r\n".repeat(5));
    await other.expect(":1\r\n");
    expect(ran).toEqual(["g", "g", "g", "o", "g", "g"]);
    expect(counters).toMatchObject({ calls: 3, durationMs: 15 });
    expect(commands.specs.get("quick")?.counters.calls).toBe(3);
  });

  it("ends CLIENT PAUSE by itself; a second pause only makes it longer and stronger", async () => {
    const time = new ManualTime();
    await start({ clock: time, scheduler: time });
    harness.server.pause("write", 1000);
    harness.server.pause("all", 10);
    harness.server.pause("write", 10);
    expect(harness.server.pausedKind).toBe("all");
    const client = await open();
    client.send("PING\r\n");
    time.advance(999);
    expect(harness.server.pausedKind).toBe("all");
    time.advance(1);
    expect(harness.server.pausedKind).toBe("none");
    await client.expect("+PONG\r\n");
  });
});

describe("stopping", () => {
  it("stops accepting, lets what is in flight finish, runs nothing more", async () => {
    await start();
    const [waiting, idle, blocked] = [await open(), await open(), await open()];
    waiting.send(request("LATER", "a"));
    blocked.send(request("WAIT", "b"));
    await eventually(() => harness.backend.parked.length === 2, "parked");
    const stopped = harness.server.stop(10_000);
    await idle.until((client) => client.ended || client.closed);
    await blocked.until((client) => client.ended || client.closed);
    waiting.send(request("NOW", "too late"));
    await expect(RawClient.open(harness.port)).rejects.toThrow(/ECONNREFUSED/);
    harness.backend.release();
    await waiting.expect("$1\r\na\r\n");
    await waiting.until((client) => client.ended);
    expect(waiting.received).toBe("");
    expect(blocked.received).toBe("");
    for (const client of clients) client.close();
    await stopped;
    expect(harness.server.connectionCount).toBe(0);
  });

  it("waits for no answer longer than its grace", async () => {
    await start();
    const client = await open();
    client.send(request("LATER", "a"));
    await eventually(() => harness.backend.parked.length === 1, "parked");
    await harness.server.stop(50);
    await client.until((one) => one.closed || one.ended);
    expect(client.received).toBe("");
  });
});

describe("ten thousand connections", () => {
  it.each([true, false])("opened and closed leave nothing behind (shared reads: %s)", async (sharedReads) => {
    await start({ sharedReads });
    const handlesBefore = process.getActiveResourcesInfo().filter((name) => name.includes("TCP")).length;
    const atOnce = 250;
    for (let round = 0; round < 10_000 / atOnce / 2; round++) {
      const opened = await Promise.all(Array.from({ length: atOnce }, () => RawClient.open(harness.port)));
      await Promise.all(
        opened.map(async (client, index) => {
          // In every way in which clients come and go.
          if (index % 5 !== 0) {
            client.send(request("PING"));
            await client.expect("+PONG\r\n");
          }
          if (index % 5 === 1) client.send("*2\r\n$4\r\nEC");
          if (index % 5 === 2) client.socket.resetAndDestroy();
          else if (index % 5 === 3) client.socket.end("QUIT\r\n");
          else client.close();
        }),
      );
    }
    expect(harness.server.statistics.connectionsReceived).toBe(5000);
    await eventually(() => harness.server.connectionCount === 0, "the register is empty");
    expect(harness.backend.forgotten).toHaveLength(5000);
    expect(harness.server.unfinishedBytes).toBe(0);
    await eventually(
      () => process.getActiveResourcesInfo().filter((name) => name.includes("TCP")).length <= handlesBefore,
      "all sockets are gone",
    );
    const client = await open();
    client.send("PING\r\n");
    await client.expect("+PONG\r\n");
  });
});
