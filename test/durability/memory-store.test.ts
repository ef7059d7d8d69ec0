import { MemoryDisk, MemoryStore } from "#src/durability/memory-store.js";
import { countingIds } from "./manual.js";
import { realScheduler } from "./real.js";
import { storeContract } from "./store-contract.js";

storeContract(
  "MemoryStore",
  () => {
    const disk = new MemoryDisk();
    const ids = countingIds();
    const store = () => new MemoryStore({ scheduler: realScheduler, ids, disk });
    return {
      store,
      failingStore: () => {
        const failing = store();
        failing.failNextCommit("No space left on device");
        return failing;
      },
      remove: () => undefined,
    };
  },
  200,
);
