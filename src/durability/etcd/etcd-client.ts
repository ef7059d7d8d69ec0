import {
  type ChannelCredentials,
  type ChannelOptions,
  Client,
  credentials,
  Metadata,
  type ServiceError,
  status as grpcStatus,
} from "@grpc/grpc-js";
import { invariant } from "../../engine/invariant.js";
import type { Scheduler } from "../../ports.js";
import {
  decodeNothing,
  decodePackedRows,
  decodeRange,
  decodeStatus,
  decodeToken,
  decodeTxn,
  decodeWatch,
  encodeAuthenticate,
  encodeCompact,
  encodeNothing,
  encodeRange,
  encodeTxn,
  encodeWatchCreate,
  type PackedRows,
  type RangeReply,
  type RangeRequest,
  type StatusReply,
  type TxnReply,
  type TxnRequest,
  type WatchReply,
} from "./protocol.js";

/**
 * A thin client of etcd: one call is one attempt on one endpoint, with a deadline.
 *
 * Whether a call may be tried again is for its caller to know, so nothing here does it: gRPC's retries are off, and a call that
 * fails only makes the *next* one go to the next endpoint. An expired token is not renewed by repeating the call that met it either.
 *
 * Invariants:
 *  1. every call ends, by its deadline at the latest, measured by the Scheduler (gRPC's own deadlines follow the wall clock)
 *  2. an error of kind `unknown` is the only one after which a write may have happened, or may still happen
 */

export interface EtcdTls {
  /** PEM. Absent: the certificate authorities that Node knows. */
  readonly ca: Buffer | null;
  readonly cert: Buffer | null;
  readonly key: Buffer | null;
}

export interface EtcdClientOptions {
  /** `host:port` each; an IPv6 address in brackets. */
  readonly endpoints: readonly string[];
  readonly scheduler: Scheduler;
  readonly requestTimeoutMs: number;
  /** null: no TLS. */
  readonly tls: EtcdTls | null;
  /** null: no authentication. */
  readonly login: { readonly user: string; readonly password: string } | null;
}

export type EtcdErrorKind =
  /** No answer, or one that does not say: it may have happened, or may still happen. */
  | "unknown"
  /** Etcd refused it, and would refuse it again. */
  | "refused"
  /** The space quota is exhausted. */
  | "no-space"
  /** The revision asked for is compacted away. */
  | "compacted"
  /** The member does not know the revision yet. */
  | "behind"
  /** The token is not, or no longer, valid: the next call gets another one. */
  | "token"
  /** The reply is larger than this client takes. */
  | "reply-too-large";

/** A call that failed. */
export class EtcdError extends Error {
  override readonly name = "EtcdError";
  readonly kind: EtcdErrorKind;
  constructor(kind: EtcdErrorKind, message: string) {
    super(message);
    this.kind = kind;
  }
}

export interface WatchedRange {
  readonly key: Uint8Array;
  readonly end: Uint8Array;
  readonly fromRevision: number;
}

/** A reply may be as large as a page of rows; one row may hold a megabyte. */
const REPLY_BYTES_MAX = 64 * 1024 * 1024;

/** Pages of a load: nobody waits for one of them alone. */
const LARGE_REPLY_TIMEOUT_MS = 10_000;

/** Etcd closes a connection that pings more often than every 5 s. */
const PING_INTERVAL_MS = 10_000;
const PING_TIMEOUT_MS = 3_000;

const RECONNECT_MS_MIN = 100;
const RECONNECT_MS_MAX = 1_000;

/** How much of a reply may be on its way without an acknowledgement: a page of a load. */
const FLOW_CONTROL_BYTES = 8 * 1024 * 1024;

const CHANNEL_OPTIONS: ChannelOptions = {
  "grpc.enable_retries": 0,
  "grpc.service_config_disable_resolution": 1,
  "grpc.enable_http_proxy": 0,
  "grpc.use_local_subchannel_pool": 1,
  "grpc.keepalive_time_ms": PING_INTERVAL_MS,
  "grpc.keepalive_timeout_ms": PING_TIMEOUT_MS,
  "grpc.initial_reconnect_backoff_ms": RECONNECT_MS_MIN,
  "grpc.max_reconnect_backoff_ms": RECONNECT_MS_MAX,
  "grpc.dns_min_time_between_resolutions_ms": RECONNECT_MS_MAX,
  "grpc.max_receive_message_length": REPLY_BYTES_MAX,
  "grpc-node.flow_control_window": FLOW_CONTROL_BYTES,
};

/** What a unary method is called, and how its messages are written and read. */
interface Method<Request, Reply> {
  readonly path: string;
  encode(request: Request): Buffer;
  decode(bytes: Buffer): Reply;
}

const RANGE: Method<RangeRequest, RangeReply> = {
  path: "/etcdserverpb.KV/Range",
  encode: encodeRange,
  decode: decodeRange,
};
const RANGE_PACKED: Method<RangeRequest, PackedRows> = { ...RANGE, decode: decodePackedRows };
const TXN: Method<TxnRequest, TxnReply> = { path: "/etcdserverpb.KV/Txn", encode: encodeTxn, decode: decodeTxn };
const COMPACT: Method<{ readonly revision: number }, true> = {
  path: "/etcdserverpb.KV/Compact",
  encode: encodeCompact,
  decode: decodeNothing,
};
const STATUS: Method<null, StatusReply> = {
  path: "/etcdserverpb.Maintenance/Status",
  encode: encodeNothing,
  decode: decodeStatus,
};
const AUTHENTICATE: Method<{ readonly user: string; readonly password: string }, string> = {
  path: "/etcdserverpb.Auth/Authenticate",
  encode: encodeAuthenticate,
  decode: decodeToken,
};
const WATCH_PATH = "/etcdserverpb.Watch/Watch";

/** What the store asks of a client. */
export interface EtcdCalls {
  /** The endpoint that the next call goes to, `host:port`. */
  readonly endpoint: string;
  readonly endpoints: readonly string[];
  /** Reads a range. Rejects with an EtcdError, as all calls do. */
  range(request: RangeRequest): Promise<RangeReply>;
  /** The same for very many rows; takes longer before it gives up. */
  rangePacked(request: RangeRequest): Promise<PackedRows>;
  txn(request: TxnRequest): Promise<TxnReply>;
  /** Forgets the history before `revision`. */
  compact(revision: number): Promise<void>;
  /** What the member behind one of the endpoints says of itself. */
  status(endpoint: string): Promise<StatusReply>;
  /** The next call goes elsewhere, if there is another endpoint, unless that was decided since `endpoint` was in use. */
  leave(endpoint: string): void;
  /**
   * Watches ranges over one stream. `onEnd` is called once, when the stream is over for whatever reason but the cancelling; nothing is
   * opened again. Returns what cancels the watch.
   */
  watch(
    ranges: readonly WatchedRange[],
    onReply: (reply: WatchReply) => void,
    onEnd: (reason: string) => void,
  ): () => void;
  /** Ends every call and connection. */
  close(): void;
}

export class EtcdClient implements EtcdCalls {
  readonly #options: EtcdClientOptions;
  readonly #credentials: ChannelCredentials;
  readonly #channels: (Client | null)[];
  /** Index of the endpoint that the next call goes to. */
  #current = 0;
  #token: string | null = null;
  #authenticating: Promise<string> | null = null;
  #closed = false;

  constructor(options: EtcdClientOptions) {
    invariant(options.endpoints.length > 0, "etcd has an endpoint");
    this.#options = options;
    const { tls } = options;
    this.#credentials = tls === null ? credentials.createInsecure() : credentials.createSsl(tls.ca, tls.key, tls.cert);
    this.#channels = options.endpoints.map(() => null);
  }

  get endpoint(): string {
    return this.#options.endpoints[this.#current] ?? "";
  }

  get endpoints(): readonly string[] {
    return this.#options.endpoints;
  }

  range(request: RangeRequest): Promise<RangeReply> {
    return this.#call(RANGE, request, this.#current);
  }

  rangePacked(request: RangeRequest): Promise<PackedRows> {
    return this.#call(RANGE_PACKED, request, this.#current, LARGE_REPLY_TIMEOUT_MS);
  }

  txn(request: TxnRequest): Promise<TxnReply> {
    return this.#call(TXN, request, this.#current);
  }

  async compact(revision: number): Promise<void> {
    await this.#call(COMPACT, { revision }, this.#current);
  }

  status(endpoint: string): Promise<StatusReply> {
    return this.#call(STATUS, null, this.#options.endpoints.indexOf(endpoint));
  }

  leave(endpoint: string): void {
    if (endpoint !== this.endpoint) return;
    this.#current = (this.#current + 1) % this.#options.endpoints.length;
  }

  watch(
    ranges: readonly WatchedRange[],
    onReply: (reply: WatchReply) => void,
    onEnd: (reason: string) => void,
  ): () => void {
    const endpoint = this.endpoint;
    let over = false;
    let cancelStream = (): void => undefined;
    const end = (reason: string): void => {
      if (over) return;
      over = true;
      this.leave(endpoint);
      onEnd(reason);
    };
    const open = (metadata: Metadata): void => {
      if (over) return;
      const stream = this.#channel(this.#current).makeBidiStreamRequest(
        WATCH_PATH,
        encodeWatchCreate,
        decodeWatch,
        metadata,
      );
      stream.on("data", (reply: WatchReply) => {
        if (!over) onReply(reply);
      });
      stream.on("error", (error: ServiceError) => {
        this.#forgetToken(classify(error));
        end(error.details);
      });
      stream.on("end", () => end("etcd ended the stream"));
      for (const range of ranges) stream.write(range);
      cancelStream = () => stream.cancel();
    };
    this.#metadata().then(open, (error: EtcdError) => end(error.message));
    return () => {
      over = true;
      cancelStream();
    };
  }

  close(): void {
    this.#closed = true;
    for (const channel of this.#channels) channel?.close();
  }

  // Calls ---------------------------------------------------------------------------------------------------------------

  async #call<Request, Reply>(
    method: Method<Request, Reply>,
    request: Request,
    index: number,
    timeoutMs = this.#options.requestTimeoutMs,
  ): Promise<Reply> {
    const endpoint = this.#options.endpoints[index] ?? "";
    try {
      const metadata = await this.#metadata();
      return await this.#attempt(method, request, index, metadata, timeoutMs);
    } catch (error) {
      if (!(error instanceof EtcdError)) throw error;
      this.#forgetToken(error);
      if (error.kind === "unknown" || error.kind === "behind") this.leave(endpoint);
      throw error;
    }
  }

  #attempt<Request, Reply>(
    method: Method<Request, Reply>,
    request: Request,
    index: number,
    metadata: Metadata,
    timeoutMs: number,
  ): Promise<Reply> {
    const { scheduler, endpoints } = this.#options;
    return new Promise((resolve, reject) => {
      if (this.#closed) {
        reject(new EtcdError("unknown", "the client is closed"));
        return;
      }
      const call = this.#channel(index).makeUnaryRequest(
        method.path,
        (message: Request) => method.encode(message),
        (bytes) => method.decode(bytes),
        request,
        metadata,
        (error, reply) => {
          timer.cancel();
          if (error !== null) reject(classify(error));
          else if (reply === undefined) reject(new EtcdError("unknown", "an empty reply"));
          else resolve(reply);
        },
      );
      const timer = scheduler.after(timeoutMs, () => {
        reject(new EtcdError("unknown", `${endpoints[index]} did not answer within ${timeoutMs} ms`));
        call.cancel();
      });
    });
  }

  #channel(index: number): Client {
    const known = this.#channels[index];
    if (known !== null && known !== undefined) return known;
    const endpoint = this.#options.endpoints[index];
    invariant(endpoint !== undefined, "an endpoint of the list");
    const channel = new Client(endpoint, this.#credentials, CHANNEL_OPTIONS);
    this.#channels[index] = channel;
    return channel;
  }

  // Authentication ------------------------------------------------------------------------------------------------------

  async #metadata(): Promise<Metadata> {
    const metadata = new Metadata();
    // A member that is cut off from its cluster's leader says so at once, instead of letting the call time out.
    metadata.set("hasleader", "true");
    if (this.#options.login !== null) metadata.set("token", this.#token ?? (await this.#authenticate()));
    return metadata;
  }

  /** Gets a token; calls that need one meanwhile wait for the same. */
  #authenticate(): Promise<string> {
    const { login, requestTimeoutMs } = this.#options;
    invariant(login !== null, "a login to authenticate with");
    this.#authenticating ??= this.#attempt(AUTHENTICATE, login, this.#current, new Metadata(), requestTimeoutMs)
      .then((token) => {
        this.#token = token;
        return token;
      })
      .finally(() => {
        this.#authenticating = null;
      });
    return this.#authenticating;
  }

  #forgetToken(error: EtcdError): void {
    if (error.kind === "token") this.#token = null;
  }
}

/** What an error of gRPC, or of etcd through it, says about the call. */
function classify(error: ServiceError): EtcdError {
  const text = error.details;
  const as = (kind: EtcdErrorKind): EtcdError => new EtcdError(kind, text);
  if (text.includes("invalid auth token") || text.includes("auth store is old")) return as("token");
  const { code } = error;
  if (code === grpcStatus.UNAUTHENTICATED) return as("token");
  if (code === grpcStatus.OUT_OF_RANGE) {
    if (text.includes("compacted")) return as("compacted");
    return as(text.includes("future revision") ? "behind" : "refused");
  }
  if (code === grpcStatus.RESOURCE_EXHAUSTED) {
    if (text.includes("space exceeded")) return as("no-space");
    return as(text.startsWith("Received message larger") ? "reply-too-large" : "unknown");
  }
  return as(REFUSALS.has(code) ? "refused" : "unknown");
}

/** With these etcd says that it has done nothing, and would do nothing another time. */
const REFUSALS: ReadonlySet<number> = new Set([
  grpcStatus.INVALID_ARGUMENT,
  grpcStatus.PERMISSION_DENIED,
  grpcStatus.FAILED_PRECONDITION,
  grpcStatus.UNIMPLEMENTED,
]);
