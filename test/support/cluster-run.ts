/**
 * A cluster under load: clients that know nothing but the addresses of the nodes use it through every fault, and everything that
 * they asked and were told is judged at the end (`history-checker.ts`, `cluster-epochs.ts`).
 *
 * A client asks the node that it is connected to until that one refuses, closes, or is silent for too long; then it tries another.
 * Beside them each node has a probe, which stays with it.
 */
import { expect } from "vitest";
import type { Cluster, ClusterNode } from "./cluster.js";
import { checkEpochs, type Acknowledgement, type Fence } from "./cluster-epochs.js";
import { checkHistory } from "./history-checker.js";
import { History } from "./history.js";
import { letPass, nowMs, until } from "./poll.js";
import { RespConnection, RespError } from "./resp-client.js";
import { observeAll, perform, RequestMix, type WorkloadOptions } from "./workload.js";

/** A node that says nothing for so long is left. */
const SILENCE_MS_MAX = 1_500;

/** Every other client looks elsewhere after so many requests, so that nodes that may not answer are asked all the time. */
const REQUESTS_OF_ROAMERS = 10;

/** From one question of a probe to the next. */
const PROBE_MS = 10;

/** Before another node is tried. */
const RETRY_MS = 20;

/** How long a load, or the return of the service, may take on a crowded machine. */
const LOAD_MS_MAX = 90_000;

interface ClusterWorkloadOptions extends WorkloadOptions {
  /** Between two requests of one client. */
  readonly pauseMs: number;
}

const CLUSTER_WORKLOAD: ClusterWorkloadOptions = {
  clients: 8,
  pauseMs: 4,
  ttlsMs: [400, 1_500, 5_000, 120_000, 120_000],
  contendedKeys: 6,
};

export class ClusterRun {
  readonly cluster: Cluster;
  readonly history = new History();
  /** All of them, those of probes too. */
  readonly acknowledgements: Acknowledgement[] = [];
  /** Those of clients. */
  readonly #served: Acknowledgement[] = [];
  readonly #clients: Promise<void>[];
  readonly #pauseMs: number;
  /** By client: when it sent what was answered last. */
  readonly #servedMs: number[] = [];
  #isOver = false;

  constructor(cluster: Cluster, change: Partial<ClusterWorkloadOptions> = {}) {
    this.cluster = cluster;
    const options = { ...CLUSTER_WORKLOAD, ...change };
    this.#pauseMs = options.pauseMs;
    const probes = cluster.nodes.map(async ({ port }) => this.#probe(port));
    const clients = Array.from({ length: options.clients }, async (_, index) =>
      this.#client(index, new RequestMix(options)),
    );
    this.#clients = [...clients, ...probes];
    for (const client of this.#clients) {
      client.catch(() => {
        // thrown by `judge`
      });
    }
  }

  /** Waits for so many further answers, and returns the node that is primary then. */
  async load(answers: number): Promise<ClusterNode> {
    await this.#untilAnswers(answers, nowMs(), () => true);
    return this.cluster.primary();
  }

  /** Waits until another node answers. Returns how long after `sinceMs` that was, in milliseconds. */
  async servedByAnother(than: ClusterNode, sinceMs: number): Promise<number> {
    const [first] = await this.#untilAnswers(1, sinceMs, (port) => port !== than.port);
    return (first?.returnMs ?? Infinity) - sinceMs;
  }

  /** How many clients have been answered what they sent since then. */
  clientsServedSince(sinceMs: number): number {
    return this.#servedMs.filter((sentMs) => sentMs >= sinceMs).length;
  }

  async #untilAnswers(answers: number, sinceMs: number, counts: (port: number) => boolean): Promise<Acknowledgement[]> {
    let seen = this.#served.findLastIndex((one) => one.invokeMs < sinceMs) + 1;
    const found: Acknowledgement[] = [];
    await until(
      `${answers} answers`,
      () => {
        const fresh = this.#served.slice(seen);
        seen += fresh.length;
        found.push(...fresh.filter((one) => one.invokeMs >= sinceMs && counts(one.port)));
        return found.length >= answers;
      },
      LOAD_MS_MAX,
    ).catch((error: unknown) => {
      const pending = this.history.pending().join(" ");
      throw new Error(`${String(error)}; pending: ${pending}\n${this.cluster.describe()}`, { cause: error });
    });
    return found;
  }

  /** Ends the load. */
  async end(): Promise<void> {
    this.#isOver = true;
    await Promise.all(this.#clients);
  }

  /**
   * Ends the load, looks at everything, and judges the whole history. `fencesOf`: where the changes of the fence are known from, when
   * not from etcd.
   */
  async judge(fencesOf: () => Promise<readonly Fence[]> = async () => this.cluster.fences()): Promise<void> {
    await this.end();
    await this.#observeAll();
    const faults = checkHistory(this.history.events);
    expect(faults, faults.length === 0 ? "" : this.cluster.describe()).toEqual([]);
    const strays = checkEpochs(await fencesOf(), this.acknowledgements);
    expect(strays, strays.length === 0 ? "" : this.cluster.describe()).toEqual([]);
  }

  /** Once over one connection; again when the role moved meanwhile. */
  async #observeAll(): Promise<void> {
    await until(
      "a look at every lease",
      async () => {
        const primary = await this.cluster.primary();
        const connection = await RespConnection.connect(primary.port).catch(() => null);
        if (connection === null) return false;
        await observeAll(this.history, connection);
        const wasOpen = !connection.isClosed && (await primary.isPrimary());
        connection.destroy();
        return wasOpen;
      },
      LOAD_MS_MAX,
    );
  }

  // A client ----------------------------------------------------------------------------------------------------------------

  async #client(index: number, mix: RequestMix): Promise<void> {
    while (!this.#isOver) {
      const port = pick(this.cluster.ports);
      // refused while that node is down: another is tried
      const connection = port === null ? null : await RespConnection.connect(port).catch(() => null);
      if (connection === null || port === null) {
        await letPass(RETRY_MS);
        continue;
      }
      const requestsMax = index % 2 === 0 ? Infinity : REQUESTS_OF_ROAMERS;
      for (let asked = 0; asked < requestsMax && !this.#isOver; asked++) {
        const sentMs = nowMs();
        if (!(await this.#ask(mix, connection, port))) break;
        this.#servedMs[index] = sentMs;
        await letPass(this.#pauseMs);
      }
      connection.destroy();
      await letPass(RETRY_MS);
    }
  }

  /** Asks one node all the time, whatever it says: the first answer of a new primary, and the last of an old one, are seen. */
  async #probe(port: number): Promise<void> {
    while (!this.#isOver) {
      await letPass(RETRY_MS);
      const connection = await RespConnection.connect(port).catch(() => null);
      if (connection === null) continue;
      while (!connection.isClosed && !this.#isOver) {
        const silence = setTimeout(() => connection.destroy(), SILENCE_MS_MAX);
        const invokeMs = nowMs();
        // closed without an answer: a new connection is made
        const reply = await connection.send("GET", "probed").catch(() => new RespError("CLOSED"));
        clearTimeout(silence);
        if (!(reply instanceof RespError)) this.acknowledgements.push({ port, invokeMs, returnMs: nowMs() });
        await letPass(PROBE_MS);
      }
      connection.destroy();
    }
  }

  /** One request. False: this node is of no use. */
  async #ask(mix: RequestMix, connection: RespConnection, port: number): Promise<boolean> {
    const request = mix.next();
    const silence = setTimeout(() => connection.destroy(), SILENCE_MS_MAX);
    const invokeMs = nowMs();
    const response = await perform(this.history, connection, request);
    clearTimeout(silence);
    if (response === null) return false;
    const acknowledgement = { port, invokeMs, returnMs: nowMs() };
    this.acknowledgements.push(acknowledgement);
    this.#served.push(acknowledgement);
    if (response.kind === "absent") mix.forget(request);
    return true;
  }
}

const pick = <T>(from: readonly T[]): T | null => from[Math.floor(Math.random() * from.length)] ?? null;
