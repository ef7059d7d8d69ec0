import { EtcdClient, type EtcdCalls, type EtcdClientOptions } from "#src/durability/etcd/etcd-client.js";
import { EtcdStore, type EtcdStoreOptions } from "#src/durability/etcd/etcd-store.js";
import type { Clock, Log } from "#src/ports.js";
import { countingIds, noFault } from "../manual.js";
import { realScheduler } from "../real.js";

/** Stores and clients on a real etcd. */

export const realClock: Clock = {
  monotonicMs: () => performance.now(),
  unixMs: () => Date.now(),
};

export class KeptLog implements Log {
  readonly lines: string[] = [];

  write(level: string, message: string): void {
    this.lines.push(`${level}: ${message}`);
  }
}

const ids = countingIds();

let clusters = 0;

/** A cluster name that no other test uses. */
export function freshCluster(): string {
  clusters += 1;
  return `test-${process.pid}-${clusters}`;
}

export function etcdClient(endpoints: readonly string[], change: Partial<EtcdClientOptions> = {}): EtcdClient {
  return new EtcdClient({
    endpoints,
    scheduler: realScheduler,
    requestTimeoutMs: 5_000,
    tls: null,
    login: null,
    ...change,
  });
}

export function etcdStore(client: EtcdCalls, cluster: string, change: Partial<EtcdStoreOptions> = {}): EtcdStore {
  return new EtcdStore({
    client,
    cluster,
    clock: realClock,
    scheduler: realScheduler,
    ids,
    log: new KeptLog(),
    fault: noFault,
    incarnation: ids.incarnation(),
    ...change,
  });
}
