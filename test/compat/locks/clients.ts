import { Redis as Redis5 } from "ioredis5";
import { createClient } from "redis";

/** The clients under the libraries, told to come back quickly after the server was killed. */

const quick = { retryStrategy: (): number => 20, maxRetriesPerRequest: null };

const ignoreErrors = (): void => {
  // connections are refused while the server is away; the calls themselves tell what came of them
};

export function connectIoredis(port: number): Redis5 {
  const client = new Redis5({ port, ...quick });
  client.on("error", ignoreErrors);
  return client;
}

/** As much of node-redis's client as the tests themselves use. */
export interface NodeRedis {
  destroy(): void;
}

export async function connectNodeRedis(port: number): Promise<NodeRedis> {
  const client = createClient({ socket: { host: "127.0.0.1", port, reconnectStrategy: () => 20 } });
  client.on("error", ignoreErrors);
  await client.connect();
  return client;
}
