/**
 * The part of the WebAssembly interface that `lua-instance.ts` uses. Node has it; the type libraries that this project compiles
 * against do not (it comes with `dom`, which would bring a browser's globals into a server).
 */
declare namespace WebAssembly {
  type ImportValue = (...values: never[]) => number | void;

  class Module {
    constructor(bytes: Uint8Array);
    static imports(module: Module): { readonly module: string; readonly name: string; readonly kind: string }[];
  }

  class Instance {
    constructor(module: Module, imports: Record<string, Record<string, ImportValue>>);
    readonly exports: unknown;
  }

  /** Memory in pages of 64 KiB. Growing it detaches the buffer that was read before. */
  interface Memory {
    readonly buffer: ArrayBuffer;
    grow(pages: number): number;
  }

  /** Functions that C code calls by pointer: the pointer is the index in this table. */
  interface Table {
    get(index: number): (...values: number[]) => number;
    set(index: number, value: unknown): void;
    grow(count: number): number;
  }

  /** The interpreter trapped: out of bounds, unreachable, a wrong indirect call. */
  class RuntimeError extends Error {}

  function compile(bytes: Uint8Array): Promise<Module>;
}
