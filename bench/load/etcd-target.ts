import { credentials, Client, type ChannelOptions } from "@grpc/grpc-js";

import { UnaryConnection } from "./grpc-unary.js";
import { chooseId, HOLDER, idDigits, type EtcdSpec, type LoadConnection, type OnReply } from "./target.js";

/**
 * etcd's lease calls over gRPC, as far as a load generator needs them: LeaseGrant, one call each, with or without a Txn after it
 * that puts a key, and LeaseKeepAlive, one stream per connection as etcd's own clients hold it. Calls that are answered one by one go
 * by a client that uses less CPU time than etcd does for its answer (grpc-unary.ts); the stream by Node's gRPC client.
 *
 * Its messages here are small, so they are written by hand: a protobuf field of a whole number is a tag (field number * 8) and the
 * number in groups of seven bits, lowest first, the high bit telling that more follow; one of bytes, or of another message, is a tag
 * (field number * 8 + 2), a length and the bytes. What is sent and read back:
 *
 *   grant:       request  TTL = 1, ID = 2      reply  ID = 2, TTL = 3
 *   keep-alive:  request  ID = 1               reply  ID = 2, TTL = 3 (0: no such lease)
 *   txn:         request  compare = 1, success = 2     reply  succeeded = 2
 *     compare    target = 2 (1: the revision that made the key), key = 3, that revision = 5 (0: no such key)
 *     success    put = 2, with key = 1, value = 2, lease = 3
 */

const GRANT_PATH = "/etcdserverpb.Lease/LeaseGrant";
const KEEP_ALIVE_PATH = "/etcdserverpb.Lease/LeaseKeepAlive";
const TXN_PATH = "/etcdserverpb.KV/Txn";

const HOLDER_BYTES = Buffer.from(HOLDER);

/** Connections of their own, as many clients on many machines would have, rather than one shared by all. */
const CHANNEL_OPTIONS: ChannelOptions = { "grpc.use_local_subchannel_pool": 1 };

export async function openEtcdConnection(
  spec: EtcdSpec,
  onReply: OnReply,
  onLost: (reason: string) => void,
): Promise<LoadConnection> {
  if (spec.operation !== "keep-alive") return granter(await UnaryConnection.open(spec.port, onLost), spec, onReply);
  const client = new Client(`127.0.0.1:${spec.port}`, credentials.createInsecure(), CHANNEL_OPTIONS);
  await new Promise<void>((resolve, reject) => {
    client.waitForReady(Date.now() + 10_000, (error) => (error ? reject(error) : resolve()));
  });
  return keepAliver(client, spec, onReply, onLost);
}

function granter(connection: UnaryConnection, spec: EtcdSpec, onReply: OnReply): LoadConnection {
  const withKey = spec.operation === "grant-with-key";
  const putKey = (sequence: number, id: number): void =>
    connection.call(TXN_PATH, encodePutUnlessExists(id), (error, reply) =>
      onReply(sequence, error ?? (hasSucceeded(decodeReply(reply)) ? null : "the key existed")),
    );
  return {
    send(sequence) {
      const id = chooseId(spec.ids, sequence);
      connection.call(GRANT_PATH, encodeGrant(id, spec.ttlS), (error, reply) => {
        const fault = error ?? (decodeReply(reply).ttlS > 0 ? null : "no TTL granted");
        if (fault === null && withKey) putKey(sequence, id);
        else onReply(sequence, fault);
      });
    },
    // What is sent in one turn leaves together anyway.
    flush() {},
    close: () => connection.close(),
  };
}

/** etcd takes the lease 0 for "choose an id"; ours start at 1. */
function encodeGrant(id: number, ttlS: number): Buffer {
  return encodeFields([
    [1, ttlS],
    [2, id + 1],
  ]);
}

/** The same key and value as the grants of other systems have. */
export function encodePutUnlessExists(id: number): Buffer {
  const key = Buffer.from(`lock:${idDigits(id)}`);
  const compare = Buffer.concat([encodeFields([[2, 1]]), encodeBytes(3, key), Buffer.from([5 * 8, 0])]);
  const put = Buffer.concat([encodeBytes(1, key), encodeBytes(2, HOLDER_BYTES), encodeFields([[3, id + 1]])]);
  return Buffer.concat([encodeBytes(1, compare), encodeBytes(2, encodeBytes(2, put))]);
}

/** Of a transaction's reply: field 2 is whether its conditions held. */
function hasSucceeded(reply: LeaseReply): boolean {
  return reply.id === 1;
}

function keepAliver(
  client: Client,
  spec: EtcdSpec,
  onReply: OnReply,
  onLost: (reason: string) => void,
): LoadConnection {
  const stream = client.makeBidiStreamRequest(KEEP_ALIVE_PATH, sameBytes, decodeReply);
  // One stream is answered in the order of its requests.
  const underWay: number[] = [];
  stream.on("data", (reply: LeaseReply) => {
    const sequence = underWay.shift();
    if (sequence !== undefined) onReply(sequence, reply.ttlS > 0 ? null : `lease ${reply.id} is gone`);
  });
  let reason = "ended by etcd";
  stream.on("error", (error: Error) => {
    reason = error.message;
  });
  stream.on("close", () => onLost(reason));
  return {
    send(sequence) {
      underWay.push(sequence);
      stream.write(encodeFields([[1, chooseId(spec.ids, sequence) + 1]]));
    },
    flush() {},
    close() {
      stream.cancel();
      client.close();
    },
  };
}

interface LeaseReply {
  readonly id: number;
  readonly ttlS: number;
}

function sameBytes(bytes: Buffer): Buffer {
  return bytes;
}

/** `[field number, value]`; values are whole numbers from 0 to 2^53. */
export function encodeFields(fields: readonly (readonly [number, number])[]): Buffer {
  const bytes: number[] = [];
  for (const [field, value] of fields) {
    if (value === 0) continue;
    bytes.push(field * 8);
    let rest = value;
    while (rest >= 128) {
      bytes.push((rest % 128) + 128);
      rest = Math.floor(rest / 128);
    }
    bytes.push(rest);
  }
  return Buffer.from(bytes);
}

/** Up to 127 bytes. */
function encodeBytes(field: number, bytes: Buffer): Buffer {
  if (bytes.length > 127) throw new RangeError("a field of more than 127 bytes");
  return Buffer.concat([Buffer.from([field * 8 + 2, bytes.length]), bytes]);
}

/** Reads the numbers of fields 2 and 3; skips everything else. */
export function decodeReply(bytes: Buffer): LeaseReply {
  let at = 0;
  const number = (): number => {
    let value = 0;
    let scale = 1;
    for (;;) {
      const byte = bytes[at++];
      if (byte === undefined) throw new Error("a protobuf message ends inside a number");
      value += (byte & 127) * scale;
      if (byte < 128) return value;
      scale *= 128;
    }
  };
  const reply = { id: 0, ttlS: 0 };
  while (at < bytes.length) {
    const tag = number();
    const field = Math.floor(tag / 8);
    const wireType = tag % 8;
    if (wireType === 0) {
      const value = number();
      if (field === 2) reply.id = value;
      if (field === 3) reply.ttlS = value;
    } else if (wireType === 2) {
      // `at` must be read after the length was.
      const length = number();
      at += length;
    } else {
      throw new Error(`unexpected protobuf wire type ${wireType}`);
    }
  }
  return reply;
}
