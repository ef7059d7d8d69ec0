import { afterAll, beforeAll } from "vitest";
import { EtcdCluster } from "../../support/etcd.js";
import { describeWith } from "../../support/tools.js";
import { faultAt } from "../manual.js";
import { storeContract } from "../store-contract.js";
import { etcdClient, etcdStore, freshCluster } from "./real-etcd.js";

describeWith(["etcd"], "a store on etcd", () => {
  let etcd: EtcdCluster;

  beforeAll(async () => {
    etcd = await EtcdCluster.start();
  });

  afterAll(() => etcd.stop());

  storeContract(
    "EtcdStore",
    () => {
      const cluster = freshCluster();
      return {
        isShared: true,
        store: () => etcdStore(etcdClient(etcd.endpoints), cluster),
        failingStore: () => etcdStore(etcdClient(etcd.endpoints), cluster, { fault: faultAt("commit:before-write") }),
        remove: () => undefined,
      };
    },
    10,
  );
});
