import { Redis as Redis5 } from "ioredis5";
import { Redis as Redis6 } from "ioredis";

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

export function connectIoredis6(port: number): Redis6 {
  const client = new Redis6({ port, ...quick });
  client.on("error", ignoreErrors);
  return client;
}
