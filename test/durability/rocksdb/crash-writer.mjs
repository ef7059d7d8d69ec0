/**
 * A process that commits to a store without end and says so: `opened <revision>`, then `acknowledged <revision>` for each batch, or
 * `refused <code> <message>`. Its parent kills it; a fault point may do so from within.
 *
 *   node crash-writer.mjs <directory> <batches> [<fault point> exit]
 */
import { writeSync } from "node:fs";
import { BatchWriter } from "#src/durability/batch.js";
import { RocksStore } from "#src/durability/rocksdb/rocksdb-store.js";
import { encodeMeta, encodeOp } from "#src/durability/schema.js";

const [directory, batches, fault] = process.argv.slice(2);
const say = (line) => writeSync(1, `${line}\n`);

const store = new RocksStore({
  directory,
  log: { write: () => undefined },
  clock: { monotonicMs: () => performance.now(), unixMs: () => Date.now() },
  ids: { incarnation: () => `i${process.pid}`, fraction: () => 0 },
  scheduler: {
    after(delayMs, callback) {
      const timer = setTimeout(callback, delayMs);
      return { cancel: () => clearTimeout(timer) };
    },
    soon: (callback) => void setImmediate(callback),
  },
  acceptLoss: false,
  workerFault:
    fault === undefined ? null : { moduleUrl: new URL("worker-fault.mjs", import.meta.url).href, spec: fault },
});

function commit(revision, last) {
  const writer = new BatchWriter();
  encodeOp(
    {
      kind: "lease-put",
      id: `lease-${revision}`,
      ttlMs: revision,
      token: revision,
      label: "x".repeat(revision % 300),
      request: null,
      grantedAtUnixMs: 1,
      owner: "writer",
    },
    writer,
  );
  encodeMeta(revision, writer);
  store.commit(writer.batch(revision), (error) => {
    if (error !== null) {
      say(`failed ${error.code} ${error.message}`);
      process.exit(1);
    }
    say(`acknowledged ${revision}`);
    if (revision < last) commit(revision + 1, last);
    else say("idle");
  });
}

store.acquire((error, identity) => {
  if (error !== null) {
    say(`refused ${error.code} ${error.message}`);
    process.exit(1);
  }
  say(`opened ${identity.revision}`);
  commit(identity.revision + 1, identity.revision + Number(batches));
});
