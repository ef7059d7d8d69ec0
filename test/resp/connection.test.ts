import * as fc from "fast-check";
import { afterEach, describe, expect, it } from "vitest";
import { PushReply, type ByteString } from "#src/engine/reply.js";
import type { ClientConnection, ClientSubscriptions } from "#src/resp/command.js";
import { NO_REPLY, SeveralReplies } from "#src/resp/command.js";
import { EncodedOnce } from "#src/resp/encoder.js";
import {
  COMMANDS_PER_TURN_MAX,
  OUTPUT_BYTES_SOFT_MAX,
  PUSH_BYTES_MAX,
  REPLIES_PARKED_MAX,
} from "#src/resp/wire-limits.js";
import {
  eventually,
  RawClient,
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

async function open(): Promise<RawClient> {
  const client = await RawClient.open(harness.port);
  clients.push(client);
  return client;
}

/** The server's side of the newest client. */
async function newest(): Promise<ClientConnection> {
  await eventually(() => harness.server.connectionCount >= clients.length, "the client is accepted");
  return [...harness.server.connections()].at(-1) as ClientConnection;
}

afterEach(async () => {
  for (const client of clients.splice(0)) client.close();
  await harness.stop();
});

const bulk = (text: ByteString): ByteString => `$${text.length}\r\n${text}\r\n`;

describe.each([
  ["reading into the shared buffer", true],
  ["reading through data events", false],
])("%s", (_name, sharedReads) => {
  it("answers a pipeline in order, inline commands in between, in whatever pieces it comes", async () => {
    await start({ sharedReads });
    // Every Node that is supported lets accepted sockets share a buffer; where one does not, it would be logged.
    expect(harness.log.lines).toEqual([]);
    const client = await open();
    const bytes = `${request("PING")}PING hello\r\n\r\n*0\r\n${request("echo", "\0\xff\r\n")}${request("Now", "k")}`;
    const replies = `+PONG\r\n${bulk("hello")}${bulk("\0\xff\r\n")}${bulk("k")}`;
    client.send(bytes);
    await client.expect(replies);
    for (const byte of bytes) {
      client.send(byte);
      await new Promise((resolve) => {
        setImmediate(resolve);
      });
    }
    await client.expect(replies);
  });

  it("executes and answers what came before a bad frame, says what is wrong, and closes", async () => {
    await start({ sharedReads });
    const client = await open();
    client.send(`${request("PING")}ECHO a\r\n*1\r\n!4\r\n${request("PING")}`);
    await client.expect(`+PONG\r\n${bulk("a")}-ERR Protocol error: expected '$', got '!'\r\n`);
    await client.until((one) => one.ended);
    expect(client.received).toBe("");
    expect(harness.server.statistics.protocolErrors).toBe(1);
    client.close();
    await eventually(() => harness.server.connectionCount === 0, "the connection is gone");
  });

  it("delivers the error line although the client goes on sending", async () => {
    await start({ sharedReads });
    const client = await open();
    client.send(`*1\r\n$abc\r\n${"x".repeat(2_000_000)}`);
    await client.expect("-ERR Protocol error: invalid bulk length\r\n");
    await client.until((one) => one.ended);
  });

  it("takes a pipeline of 50 MB", async () => {
    await start({ sharedReads });
    const client = await open();
    const value = "v".repeat(1000);
    const batch =
      request("ECHO", value).repeat(10) + request("ECHO", "w".repeat(100_000)) + request("PING").repeat(3000);
    const batches = Math.ceil(50_000_000 / batch.length);
    const perBatch = 10 * bulk(value).length + bulk("w".repeat(100_000)).length + 3000 * "+PONG\r\n".length;
    let received = 0;
    client.socket.removeAllListeners("data");
    client.socket.on("data", (bytes: Buffer) => {
      received += bytes.length;
    });
    const bytes = Buffer.from(batch, "latin1");
    for (let sent = 0; sent < batches; sent++) {
      if (!client.socket.write(bytes)) {
        await new Promise((resolve) => {
          client.socket.once("drain", resolve);
        });
      }
    }
    await eventually(() => received === batches * perBatch, "all replies are there", 50_000);
    expect(harness.server.statistics.commandsProcessed).toBe(batches * 3011);
    expect(harness.server.unfinishedBytes).toBe(0);
  });
});

describe("the order of replies", () => {
  it("is that of the commands, however late and in whatever order some are delivered", async () => {
    await start();
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.boolean(), { minLength: 1, maxLength: 30 }),
        fc.infiniteStream(fc.nat()),
        async (isParked, random) => {
          const client = await open();
          client.send(isParked.map((parked, index) => request(parked ? "LATER" : "NOW", `k${index}`)).join(""));
          const parkedCount = isParked.filter(Boolean).length;
          await eventually(() => harness.backend.parked.length === parkedCount, "all are submitted");
          const order = Array.from({ length: parkedCount }, (_, index) => index);
          order.sort(() => (random.next().value % 2) - 0.5);
          harness.backend.release(order);
          await client.expect(isParked.map((_, index) => bulk(`k${index}`)).join(""));
          client.close();
        },
      ),
      { numRuns: 50 },
    );
  });

  it("lets nobody wait for another connection's parked reply", async () => {
    await start();
    const [first, second] = [await open(), await open()];
    first.send(request("LATER", "a") + request("NOW", "b"));
    await eventually(() => harness.backend.parked.length === 1, "parked");
    second.send(request("NOW", "c"));
    await second.expect(bulk("c"));
    expect(first.received).toBe("");
    harness.backend.release();
    await first.expect(bulk("a") + bulk("b"));
  });

  it("keeps the protocol that was in force when a command ran", async () => {
    await start({ commands: testCommands({ nil: () => null }) });
    const client = await open();
    client.send(request("LATER", "a") + request("NIL") + request("HELLO", "3") + request("NIL"));
    await eventually(() => harness.backend.parked.length === 1, "parked");
    harness.backend.release();
    await client.expect(`${bulk("a")}$-1\r\n+OK\r\n_\r\n`);
  });

  it("drops what is parked for a connection that is gone, and tells the backend", async () => {
    await start();
    const client = await open();
    client.send(request("LATER", "a"));
    await eventually(() => harness.backend.parked.length === 1, "parked");
    const session = harness.backend.parked[0]?.session;
    session?.close("test");
    await client.until((one) => one.closed || one.ended);
    await eventually(() => harness.backend.forgotten.length === 1, "forgotten");
    expect(harness.backend.forgotten[0]).toBe(session);
    harness.backend.release();
    expect(client.received).toBe("");
  });
});

describe("commands that hold the connection", () => {
  it("a blocked one: later commands run only after its answer", async () => {
    const ran: ByteString[] = [];
    await start({
      commands: testCommands({
        mark: (argv) => {
          ran.push(argv[1] ?? "");
          return "marked";
        },
      }),
    });
    const client = await open();
    client.send(request("MARK", "1") + request("WAIT", "w") + request("MARK", "2"));
    await client.expect(bulk("marked"));
    await eventually(() => harness.backend.parked.length === 1, "blocked");
    client.send(request("MARK", "3"));
    const connection = await newest();
    const unread = request("MARK", "3").length + "MARK2".length;
    await eventually(() => connection.queryBufferBytes === unread, "it is read on, and nothing runs");
    expect(ran).toEqual(["1"]);
    harness.backend.release();
    await client.expect(bulk("w") + bulk("marked").repeat(2));
    expect(ran).toEqual(["1", "2", "3"]);
  });

  it("a blocked client that leaves is noticed at once", async () => {
    await start();
    const client = await open();
    client.send(request("WAIT", "w"));
    await eventually(() => harness.backend.parked.length === 1, "blocked");
    client.socket.end();
    await eventually(() => harness.backend.forgotten.length === 1, "forgotten");
    expect(harness.server.connectionCount).toBe(0);
  });

  it("no room in the batch: nothing is lost, the order stays, other commands wait behind", async () => {
    await start();
    harness.backend.room = 2;
    const client = await open();
    const keys = Array.from({ length: 20 }, (_, index) => `k${index}`);
    client.send(keys.map((key) => request("LATER", key)).join("") + request("NOW", "last"));
    await eventually(() => harness.backend.parked.length === 2, "two fit");
    harness.backend.release();
    await client.expect(bulk("k0") + bulk("k1"));
    for (let index = 2; index < 20; index += 6) {
      harness.backend.makeRoom(6);
      await eventually(() => harness.backend.parked.length === 6, "six fit");
      expect(client.received).toBe("");
      harness.backend.release();
      await client.expect(
        keys
          .slice(index, index + 6)
          .map(bulk)
          .join(""),
      );
    }
    harness.backend.makeRoom(1);
    await client.expect(bulk("last"));
  });

  it("CLIENT PAUSE: writes wait, reads go on; ALL holds both; the end of it frees them", async () => {
    await start();
    const [writer, reader] = [await open(), await open()];
    harness.server.pause("write", 60_000);
    writer.send(request("LATER", "a"));
    reader.send(request("NOW", "b"));
    await reader.expect(bulk("b"));
    expect(harness.backend.parked).toHaveLength(0);
    harness.server.pause("all", 10);
    reader.send(request("NOW", "c"));
    harness.server.unpause();
    await reader.expect(bulk("c"));
    await eventually(() => harness.backend.parked.length === 1, "the write runs");
    harness.server.pause("all", 20);
    reader.send(request("NOW", "d"));
    await reader.expect(bulk("d"));
    expect(harness.server.pausedKind).toBe("none");
  });

  it("CLIENT PAUSE: a client that leaves meanwhile is noticed at once, and what it had asked for never runs", async () => {
    await start();
    const [gone, stays] = [await open(), await open()];
    harness.server.pause("all", 60_000);
    gone.send(request("LATER", "gone"));
    stays.send(request("LATER", "stays"));
    await eventually(
      () => [...harness.server.connections()].every((one) => one.queryBufferBytes > 0),
      "both are held up",
    );
    gone.socket.destroy();
    await eventually(() => harness.server.connectionCount === 1, "it is noticed");
    harness.server.unpause();
    await eventually(() => harness.backend.parked.length > 0, "the other one runs");
    expect(harness.backend.parked.map(({ reply }) => reply)).toEqual(["stays"]);
  });

  it("gives others their turn within a long pipeline", async () => {
    const ran: ByteString[] = [];
    await start({
      commands: testCommands({
        mark: (argv) => {
          ran.push(argv[1] ?? "");
          return 1;
        },
      }),
    });
    const [greedy, other] = [await open(), await open()];
    // Held until both have sent: then who runs first is not a matter of the kernel's mood.
    harness.server.pause("all", 60_000);
    const count = COMMANDS_PER_TURN_MAX * 2;
    greedy.send("MARK g\r\n".repeat(count));
    other.send("MARK o\r\n");
    await eventually(
      () => [...harness.server.connections()].every((one) => one.queryBufferBytes > 0),
      "both have sent",
    );
    harness.server.unpause();
    await other.expect(":1\r\n");
    await greedy.expect(":1\r\n".repeat(count));
    expect(ran).toHaveLength(count + 1);
    expect(ran.indexOf("o")).toBeLessThanOrEqual(COMMANDS_PER_TURN_MAX);
  });
});

describe("everything at once", () => {
  it("each client gets its own replies in its own order, whatever the backend and the others do", async () => {
    await start();
    // A fixed sequence: what fails once fails again.
    let seed = 20_261_130;
    const random = (below: number): number => {
      seed = (Math.imul(seed, 1_664_525) + 1_013_904_223) >>> 0;
      return Math.floor((seed / 2 ** 32) * below);
    };
    const one = (key: ByteString): readonly [sent: ByteString, answer: ByteString] => {
      const size = random(60_000);
      const choices = [
        [request("NOW", key), bulk(key)],
        [`NOW ${key}\r\n`, bulk(key)],
        [request("LATER", key), bulk(key)],
        [request("LATER", key), bulk(key)],
        [request("WAIT", key), bulk(key)],
        [request("BIG", String(size)), bulk("b".repeat(size))],
        ["\r\n*0\r\n", ""],
      ] as const;
      return choices[random(choices.length)] as readonly [ByteString, ByteString];
    };
    const scripts = await Promise.all(
      Array.from({ length: 20 }, async (_, number) => {
        const parts = Array.from({ length: 150 }, (_unused, index) => one(`k${number}-${index}`));
        const client = await open();
        return {
          client,
          rest: parts.map(([sent]) => sent).join(""),
          expected: parts.map(([, answer]) => answer).join(""),
        };
      }),
    );
    const { backend } = harness;
    backend.room = 3;
    const isDone = (): boolean =>
      scripts.every(({ client, rest, expected }) => rest === "" && client.received.length >= expected.length);
    for (let step = 0; !isDone(); step++) {
      for (const script of scripts) {
        const piece = random(4) === 0 ? random(4000) : 0;
        if (piece > 0 && script.rest !== "") {
          script.client.send(script.rest.slice(0, piece));
          script.rest = script.rest.slice(piece);
        }
        if (random(20) === 0) script.client.socket.pause();
        else script.client.socket.resume();
      }
      const order = backend.parked.map((_, index) => index);
      if (random(2) === 0) order.reverse();
      backend.release(order);
      if (random(2) === 0) backend.makeRoom(random(30));
      if (random(50) === 0) harness.server.pause(random(2) === 0 ? "all" : "write", 5);
      if (step % 4 === 0) {
        await new Promise((resolve) => {
          setImmediate(resolve);
        });
      }
    }
    for (const { client, expected } of scripts) expect(client.received).toBe(expected);
    expect([...harness.server.connections()].map((connection) => connection.repliesWaiting)).toEqual(
      scripts.map(() => 0),
    );
  });
});

describe("the end of a connection", () => {
  it("QUIT: nothing behind it runs, everything before it is answered, parked replies too", async () => {
    await start();
    const client = await open();
    client.send(request("LATER", "a") + request("QUIT") + request("LATER", "b"));
    await eventually(() => harness.backend.parked.length === 1, "parked");
    expect(client.ended).toBe(false);
    harness.backend.release();
    await client.expect(`${bulk("a")}+OK\r\n`);
    await client.until((one) => one.ended);
    expect(harness.backend.parked).toHaveLength(0);
    client.send(request("LATER", "c"));
    client.socket.end();
    await eventually(() => harness.server.connectionCount === 0, "gone");
    expect(harness.backend.parked).toHaveLength(0);
  });

  it("a client that stops sending gets the answers to what it has sent whole; the half of a frame is dropped", async () => {
    await start();
    const client = await open();
    client.socket.end(`${request("LATER", "a")}${request("NOW", "b")}*2\r\n$4\r\nECHO\r\n$100\r\nhal`, "latin1");
    await eventually(() => harness.backend.parked.length === 1, "parked");
    await new Promise((resolve) => {
      setTimeout(resolve, 20);
    });
    expect(client.ended).toBe(false);
    harness.backend.release();
    await client.expect(bulk("a") + bulk("b"));
    await client.until((one) => one.ended);
    await eventually(() => harness.server.connectionCount === 0, "gone");
    expect(harness.server.unfinishedBytes).toBe(0);
  });

  it("a browser made to post commands gets nothing run and no answer", async () => {
    await start();
    for (const head of ["POST / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nHost: localhost\r\n"]) {
      const client = await open();
      client.send(`${head}Content-Length: 10\r\n\r\nLATER k\r\n`);
      await client.until((one) => one.ended || one.closed);
    }
    expect(harness.backend.parked).toHaveLength(0);
    expect(harness.log.lines.filter((line) => line.includes("speaks HTTP"))).toHaveLength(2);
  });

  it("halves of requests are bounded over all connections together", async () => {
    await start({ unfinishedBytesMax: 5_000_000 });
    const half = `*2\r\n$4\r\nECHO\r\n$2000000\r\n${"x".repeat(1_000_000)}`;
    const [first, second] = [await open(), await open()];
    first.send(half);
    await eventually(() => harness.server.unfinishedBytes >= 1_000_000, "the first half is there");
    expect(harness.server.unfinishedBytes).toBeLessThan(2_500_000);
    second.send(`*2\r\n$4\r\nECHO\r\n$9000000\r\n${"x".repeat(6_000_000)}`);
    await second.until((one) => one.ended || one.closed);
    expect(harness.log.lines.some((line) => line.includes("unfinished requests"))).toBe(true);
    first.send(`${"x".repeat(1_000_000)}\r\n`);
    await first.expect(bulk("x".repeat(2_000_000)));
    await eventually(() => harness.server.unfinishedBytes === 0, "nothing is held");
  });

  it("a reset in the middle of everything ends that connection alone", async () => {
    await start();
    const other = await open();
    for (let round = 0; round < 20; round++) {
      const client = await open();
      client.send(request("ECHO", "x".repeat(300_000)).repeat(3) + request("LATER", "a") + "*3\r\n$5\r\nhe");
      if (round % 2 === 0) await client.until((one) => one.received.length > 0);
      client.socket.resetAndDestroy();
    }
    await eventually(() => harness.server.connectionCount === 1, "all but one are gone");
    harness.backend.release();
    other.send(request("PING"));
    await other.expect("+PONG\r\n");
    expect(harness.server.unfinishedBytes).toBe(0);
  });
});

describe("before AUTH", () => {
  it("limits are tight, and wide again for what follows AUTH in the same chunk", async () => {
    await start({ password: "secret" });
    const large = "x".repeat(20_000);
    const client = await open();
    client.send(request("PING") + request("AUTH", "wrong") + request("AUTH", "secret") + request("ECHO", large));
    await client.expect(`-NOAUTH Authentication required.\r\n-ERR wrong\r\n+OK\r\n${bulk(large)}`);
    client.send(request("ARGS", ..."abcdefghijkl".split("")));
    await client.until((one) => one.received.startsWith("*13\r\n"));

    const stranger = await open();
    stranger.send(request("ECHO", large));
    await stranger.expect("-ERR Protocol error: unauthenticated bulk length\r\n");
    const another = await open();
    another.send("*11\r\n");
    await another.expect("-ERR Protocol error: unauthenticated multibulk length\r\n");
  });
});

describe("back-pressure", () => {
  it("a client that does not read its replies is not read either, and loses nothing", async () => {
    await start();
    const client = await open();
    client.socket.pause();
    const value = "v".repeat(10_000);
    const commands = 5000;
    let sent = 0;
    const bytes = Buffer.from(request("ECHO", value), "latin1");
    let isStuck = false;
    const pump = (): void => {
      while (sent < commands) {
        sent++;
        if (!client.socket.write(bytes)) {
          client.socket.once("drain", pump);
          return;
        }
      }
    };
    pump();
    const connection = await newest();
    await eventually(() => connection.outputBufferBytes > OUTPUT_BYTES_SOFT_MAX, "the server holds the soft limit");
    // Now nothing moves: the kernel's buffers are full both ways, and the server holds the limit and one chunk of replies at most.
    let ran = -1;
    while (!isStuck) {
      isStuck = connection.commandsRun === ran;
      ran = connection.commandsRun;
      await new Promise((resolve) => {
        setTimeout(resolve, 50);
      });
    }
    expect(connection.commandsRun).toBeLessThan(commands);
    expect(connection.outputBufferBytes).toBeLessThan(2 * OUTPUT_BYTES_SOFT_MAX);
    expect(connection.queryBufferBytes).toBeLessThan(200_000);
    let received = 0;
    client.socket.removeAllListeners("data");
    client.socket.on("data", (chunk: Buffer) => {
      received += chunk.length;
    });
    client.socket.resume();
    await eventually(() => received === commands * bulk(value).length, "every reply arrives", 50_000);
    expect(connection.commandsRun).toBe(commands);
  });

  it("a client that floods while its replies wait for durability is held at a number of them", async () => {
    await start();
    const client = await open();
    const commands = REPLIES_PARKED_MAX * 3;
    client.send("LATER k\r\n".repeat(commands));
    let received = 0;
    client.socket.removeAllListeners("data");
    client.socket.on("data", (chunk: Buffer) => {
      received += chunk.length;
    });
    for (let round = 0; round < 3; round++) {
      await eventually(() => harness.backend.parked.length === REPLIES_PARKED_MAX, "as many as may wait");
      await new Promise((resolve) => {
        setTimeout(resolve, 20);
      });
      expect(harness.backend.parked.length).toBe(REPLIES_PARKED_MAX);
      harness.backend.release();
    }
    await eventually(() => received === commands * bulk("k").length, "all are answered");
  });

  it("a parked reply and a flood of large answers behind it are held at a number of bytes", async () => {
    await start();
    const client = await open();
    client.send(request("LATER", "k") + request("BIG", "100000").repeat(100));
    const connection = await newest();
    await eventually(() => connection.outputBufferBytes > OUTPUT_BYTES_SOFT_MAX, "held");
    await new Promise((resolve) => {
      setTimeout(resolve, 20);
    });
    expect(connection.outputBufferBytes).toBeLessThan(OUTPUT_BYTES_SOFT_MAX + 200_000);
    let received = client.received.length;
    client.socket.on("data", (chunk: Buffer) => {
      received += chunk.length;
    });
    harness.backend.release();
    const expectedBytes = bulk("k").length + 100 * bulk("b".repeat(100_000)).length;
    await eventually(() => received === expectedBytes, "all answers arrive");
  });

  it("a subscriber that does not read is closed at the limit, with a line in the log", async () => {
    await start();
    const client = await open();
    client.socket.pause();
    const connection = await newest();
    const message = new EncodedOnce(new PushReply(["message", "c", "m".repeat(100_000)]));
    for (let sent = 0; sent * 100_000 < PUSH_BYTES_MAX * 3 && !connection.isClosed; sent++) {
      connection.push(message);
      if (sent % 10 === 0) {
        await new Promise((resolve) => {
          setImmediate(resolve);
        });
      }
    }
    expect(connection.isClosed).toBe(true);
    expect(harness.server.statistics.outputLimitDisconnections).toBe(1);
    expect(harness.log.lines.some((line) => line.includes("does not read its messages"))).toBe(true);
    await eventually(() => harness.server.connectionCount === 0, "gone");
  });
});

describe("a large answer", () => {
  it("that is still being read does not count against a subscriber", async () => {
    await start();
    const client = await open();
    const bytes = PUSH_BYTES_MAX * 2;
    client.socket.pause();
    client.send(request("BIG", String(bytes)));
    const connection = await newest();
    await eventually(() => connection.outputBufferBytes > PUSH_BYTES_MAX, "the answer waits");
    connection.push(new EncodedOnce(new PushReply(["message", "c", "m"])));
    expect(connection.isClosed).toBe(false);
    let received = 0;
    client.socket.removeAllListeners("data");
    client.socket.on("data", (chunk: Buffer) => {
      received += chunk.length;
    });
    client.socket.resume();
    const expected = `$${bytes}\r\n\r\n`.length + bytes + "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n".length;
    await eventually(() => received === expected, "all of it arrives, and the message", 30_000);
  });
});

describe("messages from outside", () => {
  const message = new EncodedOnce(new PushReply(["message", "c", "m"]));
  const onWire = (type: "*" | ">"): ByteString => `${type}3\r\n${bulk("message")}${bulk("c")}${bulk("m")}`;
  const confirmation = (channel: ByteString, type: "*" | ">"): ByteString =>
    `${type}3\r\n${bulk("subscribe")}${bulk(channel)}:1\r\n`;
  const subscribe = (argv: readonly ByteString[]): SeveralReplies =>
    new SeveralReplies(argv.slice(1).map((channel) => new PushReply(["subscribe", channel, 1])));

  it("come behind the confirmation of their subscription, and behind replies that are parked", async () => {
    await start({ commands: testCommands({ subscribe }) });
    const client = await open();
    client.send(request("LATER", "a") + request("SUBSCRIBE", "c", "d"));
    await eventually(() => harness.backend.parked.length === 1, "parked");
    const connection = await newest();
    connection.push(message);
    await new Promise((resolve) => {
      setTimeout(resolve, 20);
    });
    expect(client.received).toBe("");
    harness.backend.release();
    await client.expect(bulk("a") + confirmation("c", "*") + confirmation("d", "*") + onWire("*"));
  });

  it("reach a blocked RESP3 client, behind what comes before its blocked command", async () => {
    await start({ commands: testCommands({ subscribe }) });
    const client = await open();
    client.send(request("HELLO", "3") + request("SUBSCRIBE", "c") + request("LATER", "a") + request("WAIT", "w"));
    await eventually(() => harness.backend.parked.length === 2, "blocked");
    const connection = await newest();
    await client.expect(`+OK\r\n${confirmation("c", ">")}`);
    connection.push(message);
    harness.backend.release([0]);
    await client.expect(bulk("a") + onWire(">"));
    connection.push(message);
    await client.expect(onWire(">"));
  });

  it("are dropped for a client that is about to be closed, and its subscriptions end with it", async () => {
    let dropped = 0;
    const subscriptions: ClientSubscriptions = {
      channelCount: 1,
      patternCount: 0,
      dropAll: () => {
        dropped++;
      },
    };
    await start();
    const client = await open();
    const connection = await newest();
    connection.subscriptions = subscriptions;
    client.send(request("QUIT"));
    await client.expect("+OK\r\n");
    connection.push(message);
    await client.until((one) => one.ended);
    expect(client.received).toBe("");
    client.close();
    await eventually(() => dropped === 1, "dropped");
  });
});

describe("CLIENT REPLY", () => {
  it("SKIP is used up by a subscription, whose confirmation comes all the same", async () => {
    await start({
      commands: testCommands({
        skip: (_argv, connection) => {
          connection.replyMode = "skip-next";
          return NO_REPLY;
        },
        subscribe: () => new SeveralReplies([new PushReply(["subscribe", "c", 1])]),
      }),
    });
    const client = await open();
    client.send("SKIP\r\nSUBSCRIBE c\r\nPING first\r\nPING second\r\n");
    await client.expect("*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n" + bulk("first") + bulk("second"));
  });

  it("OFF silences everything until ON; SKIP silences the one command after it, also a parked one and an error", async () => {
    await start({
      commands: testCommands({
        off: (_argv, connection) => {
          connection.replyMode = "off";
          return NO_REPLY;
        },
        on: (_argv, connection) => {
          connection.replyMode = "on";
          return "on";
        },
        skip: (_argv, connection) => {
          connection.replyMode = "skip-next";
          return NO_REPLY;
        },
      }),
    });
    const client = await open();
    client.send(
      ["SKIP", "LATER a", "LATER b", "OFF", "PING", "NOPE", "LATER c", "ON", "SKIP", "NOPE", "PING"].join("\r\n") +
        "\r\n",
    );
    await eventually(() => harness.backend.parked.length === 3, "parked");
    harness.backend.release([2, 0, 1]);
    await client.expect(`${bulk("b")}${bulk("on")}+PONG\r\n`);
  });
});

describe("what a connection tells about itself", () => {
  it("name, owner, counters, errors by code", async () => {
    const commands = testCommands();
    await start({ commands });
    const client = await open();
    const connection = await newest();
    expect(connection.remoteAddress).toBe(`127.0.0.1:${client.socket.localPort}`);
    expect(connection.localAddress).toBe(`127.0.0.1:${harness.port}`);
    expect(connection.isLoopback).toBe(true);
    expect(connection.origin.owner).toBe(connection.remoteAddress);
    connection.name = "worker-1";
    expect(connection.origin.owner).toBe(`worker-1 ${connection.remoteAddress}`);
    connection.databaseIndex = 3;
    expect(connection.origin.databaseIndex).toBe(3);

    const bytes = request("PING") + request("NOPE", "a") + request("PING", "a") + request("ECHO");
    client.send(bytes);
    await client.expect(
      `+PONG\r\n-ERR unknown command 'NOPE', with args beginning with: 'a' \r\n${bulk("a")}-ERR wrong number of arguments for 'echo' command\r\n`,
    );
    expect(connection).toMatchObject({ commandsRun: 4, bytesRead: bytes.length, lastCommandName: "ping" });
    expect(harness.server.statistics.errorReplies).toEqual(new Map([["ERR", 2]]));
    expect(harness.server.statistics.commandsProcessed).toBe(4);
    expect(commands.specs.get("ping")?.counters).toMatchObject({ calls: 2, rejected: 0, failed: 0 });
    expect(commands.specs.get("echo")?.counters).toMatchObject({ calls: 0, rejected: 1 });
  });
});
