import { storeContract } from "../store-contract.js";
import { rocksStore, temporaryDirectory } from "../real.js";

storeContract(
  "RocksStore",
  () => {
    const directory = temporaryDirectory();
    return {
      store: () => rocksStore(directory.path),
      failingStore: () =>
        rocksStore(directory.path, {
          workerFault: { moduleUrl: new URL("worker-fault.mjs", import.meta.url).href, spec: "commit:before-write" },
        }),
      remove: () => directory.remove(),
    };
  },
  15,
);
