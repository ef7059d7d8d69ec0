/** The part of the binding that is used here; the package brings no types. Names with an underscore are its synchronous API. */
declare module "rocksdb" {
  export interface OpenOptions {
    createIfMissing: boolean;
    walCompression: boolean;
    compression: boolean;
    compaction: "level" | "universal";
    memtableMemoryBudget: number;
    cacheSize: number;
    blockSize: number;
    filterPolicy: string;
    parallelism: number;
  }

  export interface Batch {
    _put(key: Uint8Array, value: Uint8Array, options: object | undefined): void;
    _del(key: Uint8Array, options: object | undefined): void;
    _clear(): void;
    _writeSync(options: { sync: boolean }): void;
    _closeSync(): void;
  }

  export interface RangeOptions {
    gte: Uint8Array;
    lt: Uint8Array;
    values: boolean;
    keyEncoding: "buffer";
    valueEncoding: "buffer";
    highWaterMarkBytes: number;
  }

  export interface RowIterator {
    /** `rows` is key, value, key, value, ... */
    _nextvSync(size: number, options: object): { rows: (Uint8Array | undefined)[]; finished: boolean };
    _closeSync(): void;
  }

  export class RocksLevel {
    constructor(location: string, options: { keyEncoding: "buffer"; valueEncoding: "buffer" });
    /** The newest sequence number: one per row change ever written. */
    readonly sequence: number;
    open(options: OpenOptions): Promise<void>;
    close(): Promise<void>;
    batch(): Batch;
    iterator(options: RangeOptions): RowIterator;
  }
}
