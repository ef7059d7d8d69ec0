import { createServer, type Http2Server, type ServerHttp2Session, type ServerHttp2Stream } from "node:http2";
import {
  createConnection,
  createServer as createTcpServer,
  type AddressInfo,
  type Server,
  type Socket,
} from "node:net";
import { promisify } from "node:util";

import { afterEach, beforeEach, expect, test } from "vitest";

import { UnaryConnection } from "../../bench/load/grpc-unary.js";

/** The lean gRPC client of the load generator against Node's own HTTP/2, which reads and writes every frame by the book. */

type Answer = (stream: ServerHttp2Stream, request: Buffer) => void;

let server: Http2Server;
let port = 0;
let answer: Answer = echo;
const sessions: ServerHttp2Session[] = [];
const heads: Record<string, unknown>[] = [];
const closers: (() => void)[] = [];

function echo(stream: ServerHttp2Stream, request: Buffer): void {
  stream.respond({ ":status": 200, "content-type": "application/grpc" }, { waitForTrailers: true });
  stream.on("wantTrailers", () => stream.sendTrailers({ "grpc-status": "0" }));
  stream.end(request);
}

beforeEach(async () => {
  answer = echo;
  heads.length = 0;
  sessions.length = 0;
  server = createServer();
  server.on("session", (session) => sessions.push(session));
  server.on("stream", (stream, head) => {
    heads.push({ ...head });
    const parts: Buffer[] = [];
    stream.on("data", (part: Buffer) => parts.push(part));
    stream.on("error", () => undefined);
    stream.on("end", () => answer(stream, Buffer.concat(parts)));
  });
  port = await listening(server);
});

afterEach(async () => {
  for (const close of closers.splice(0)) close();
  for (const session of sessions) session.destroy();
  await promisify(server.close.bind(server))();
});

async function listening(of: Http2Server | Server): Promise<number> {
  await new Promise<void>((resolve) => {
    of.listen(0, "127.0.0.1", resolve);
  });
  return (of.address() as AddressInfo).port;
}

async function open(at = port, onLost: (reason: string) => void = () => undefined): Promise<UnaryConnection> {
  const connection = await UnaryConnection.open(at, onLost);
  closers.push(() => connection.close());
  return connection;
}

async function call(connection: UnaryConnection, path: string, message: string): Promise<string> {
  return new Promise((resolve, reject) => {
    connection.call(path, Buffer.from(message), (error, reply) =>
      error === null ? resolve(reply.toString()) : reject(new Error(error)),
    );
  });
}

test("a call arrives with its path and message, and its reply comes back", async () => {
  const connection = await open();
  expect(await call(connection, "/some.Service/Method", "hello")).toBe("hello");
  expect(await call(connection, "/some.Service/Other", "")).toBe("");
  expect(heads[0]).toMatchObject({
    ":method": "POST",
    ":scheme": "http",
    ":path": "/some.Service/Method",
    ":authority": `127.0.0.1:${port}`,
    "content-type": "application/grpc",
    te: "trailers",
  });
  expect(heads[1]).toMatchObject({ ":path": "/some.Service/Other" });
});

test("many at once are told apart, in whatever order they are answered, and many after another find room", async () => {
  const connection = await open();
  const held: (() => void)[] = [];
  answer = (stream, request) => held.push(() => echo(stream, request));
  const replies = Array.from({ length: 20 }, async (_, index) => call(connection, "/a/b", `message ${index}`));
  while (held.length < 20) await new Promise((resolve) => setImmediate(resolve));
  for (const release of held.toReversed()) release();
  expect(await Promise.all(replies)).toEqual(Array.from({ length: 20 }, (_, index) => `message ${index}`));

  // Many times the window that a connection begins with, in both directions.
  answer = echo;
  const long = "x".repeat(120);
  for (let round = 0; round < 60; round++) {
    const batch = await Promise.all(Array.from({ length: 50 }, async () => call(connection, "/a/b", long)));
    expect(batch.every((reply) => reply === long)).toBe(true);
  }
});

test("frames that come in pieces are put together", async () => {
  const oneByte = createTcpServer((client) => {
    const upstream = createConnection({ port, host: "127.0.0.1" });
    client.pipe(upstream);
    upstream.on("data", (bytes: Buffer) => writeByByte(client, bytes));
    for (const socket of [client, upstream]) socket.on("error", () => undefined);
    client.on("close", () => upstream.destroy());
  });
  const proxyPort = await listening(oneByte);
  closers.push(() => oneByte.close());
  expect(await call(await open(proxyPort), "/a/b", "in pieces")).toBe("in pieces");
});

/** In writes of one byte; the receiver may still get several at once. */
function writeByByte(to: Socket, bytes: Buffer): void {
  to.setNoDelay(true);
  for (const byte of bytes) to.write(Buffer.from([byte]));
}

test("a ping is answered", async () => {
  const connection = await open();
  await call(connection, "/a/b", "first");
  const payload = Buffer.from("8 octets");
  const pong = await new Promise<Buffer>((resolve, reject) => {
    sessions[0]?.ping(payload, (error, _ms, back) => (error === null ? resolve(back) : reject(error)));
  });
  expect(pong).toEqual(payload);
});

test("a refusal, a reset and the end of the connection are told apart from replies", async () => {
  const lost: string[] = [];
  const connection = await open(port, (reason) => lost.push(reason));
  answer = (stream) => stream.respond({ ":status": 200, "grpc-status": "9" }, { endStream: true });
  await expect(call(connection, "/a/b", "refused")).rejects.toThrow("no message in the reply");
  answer = (stream) => stream.close(8);
  await expect(call(connection, "/a/b", "reset")).rejects.toThrow("reset (HTTP/2 error 8)");
  answer = echo;
  expect(await call(connection, "/a/b", "still there")).toBe("still there");
  sessions[0]?.destroy();
  while (lost.length === 0) await new Promise((resolve) => setImmediate(resolve));
  expect(lost).toHaveLength(1);
});

test("what it is not made for is refused at once", async () => {
  const connection = await open();
  expect(() => connection.call("/a/b", Buffer.alloc(121), () => undefined)).toThrow(RangeError);
  expect(() => connection.call(`/${"x".repeat(126)}`, Buffer.alloc(1), () => undefined)).toThrow(RangeError);
});
