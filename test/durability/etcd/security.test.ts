import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import type { EtcdTls } from "#src/durability/etcd/etcd-client.js";
import { EtcdCluster } from "../../support/etcd.js";
import { until } from "../../support/poll.js";
import { runOk } from "../../support/subprocess.js";
import { describeWith } from "../../support/tools.js";
import { decodeAll, leasePut } from "../ops.js";
import { acquire, close, commit, loadPages } from "../real.js";
import { etcdClient, etcdStore, freshCluster } from "./real-etcd.js";

/** A certificate authority, and certificates for etcd and its clients, made for one run. */
class Certificates {
  readonly directory = mkdtempSync(join(tmpdir(), "leasehold-certificates-"));

  path(name: string): string {
    return join(this.directory, name);
  }

  read(name: string): Buffer {
    return readFileSync(this.path(name));
  }

  async make(): Promise<void> {
    const authority = ["-subj", "/CN=authority", "-keyout", this.path("ca.key"), "-out", this.path("ca.crt")];
    await runOk("openssl", ["req", "-x509", "-days", "2", ...this.#newKey(), ...authority]);
    await this.#sign("server", "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth");
    await this.#sign("client", "extendedKeyUsage=clientAuth");
  }

  remove(): void {
    rmSync(this.directory, { recursive: true, force: true });
  }

  #newKey(): string[] {
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
  }

  async #sign(name: string, extensions: string): Promise<void> {
    writeFileSync(this.path(`${name}.ext`), extensions);
    const request = ["-subj", `/CN=${name}`, "-keyout", this.path(`${name}.key`), "-out", this.path(`${name}.csr`)];
    await runOk("openssl", ["req", ...this.#newKey(), ...request]);
    const authority = ["-CA", this.path("ca.crt"), "-CAkey", this.path("ca.key"), "-CAcreateserial", "-days", "2"];
    const files = ["-in", this.path(`${name}.csr`), "-out", this.path(`${name}.crt`)];
    await runOk("openssl", ["x509", "-req", ...authority, ...files, "-extfile", this.path(`${name}.ext`)]);
  }
}

describeWith(["etcd", "openssl"], "TLS towards etcd", () => {
  const certificates = new Certificates();
  let etcd: EtcdCluster;

  beforeAll(async () => {
    await certificates.make();
    const files = ["--cert-file", certificates.path("server.crt"), "--key-file", certificates.path("server.key")];
    const clients = ["--client-cert-auth", "--trusted-ca-file", certificates.path("ca.crt")];
    etcd = await EtcdCluster.start({ clientTls: true, flags: [...files, ...clients] });
  });

  afterAll(async () => {
    await etcd.stop();
    certificates.remove();
  });

  const tls = (): EtcdTls => ({
    ca: certificates.read("ca.crt"),
    cert: certificates.read("client.crt"),
    key: certificates.read("client.key"),
  });

  test("works with the authority's certificate and one of its own", async () => {
    const store = etcdStore(etcdClient(etcd.endpoints, { tls: tls() }), freshCluster());
    await until("etcd to take the role's first write", () =>
      acquire(store).then(
        () => true,
        () => false,
      ),
    );
    await commit(store, [leasePut("a")], 1);
    expect(decodeAll(await loadPages(store)).ops).toEqual([leasePut("a")]);
    await close(store);
  });

  test("refuses an etcd that another authority vouches for, and an etcd refuses who shows no certificate", async () => {
    const stranger = new Certificates();
    await stranger.make();
    const wrong = [
      { ...tls(), ca: stranger.read("ca.crt") },
      { ...tls(), cert: null, key: null },
    ];
    for (const one of wrong) {
      const client = etcdClient(etcd.endpoints, { tls: one, requestTimeoutMs: 1_000 });
      const store = etcdStore(client, freshCluster(), { resolveMsMax: 200 });
      await expect(acquire(store)).rejects.toMatchObject({ code: "unusable" });
      await close(store);
    }
    stranger.remove();
  });
});

describeWith(["etcd", "etcdctl"], "user and password towards etcd", () => {
  let etcd: EtcdCluster | null = null;

  afterEach(() => etcd?.stop());

  const start = async (): Promise<EtcdCluster> => {
    const started = await EtcdCluster.start();
    etcd = started;
    const etcdctl = (...args: string[]): Promise<string> =>
      runOk("etcdctl", ["--endpoints", started.endpoints.join(","), ...args], {
        env: { ...process.env, ETCDCTL_API: "3" },
      });
    await etcdctl("user", "add", "root:rootpw");
    await etcdctl("user", "grant-role", "root", "root");
    await etcdctl("user", "add", "leasehold:secret");
    await etcdctl("role", "add", "leasehold");
    await etcdctl("role", "grant-permission", "leasehold", "--prefix=true", "readwrite", "/leasehold/");
    await etcdctl("user", "grant-role", "leasehold", "leasehold");
    await etcdctl("auth", "enable");
    return started;
  };

  test("works with rights on the prefix alone, also after etcd forgot the token", async () => {
    const { endpoints, members } = await start();
    const client = etcdClient(endpoints, { login: { user: "leasehold", password: "secret" } });
    const store = etcdStore(client, freshCluster(), { resolveMsMax: 20_000 });
    await acquire(store);
    await commit(store, [leasePut("a")], 1);
    // Simple tokens live in memory.
    await members[0]?.kill();
    members[0]?.start();
    await commit(store, [leasePut("b")], 2);
    expect(decodeAll(await loadPages(store))).toEqual({ ops: [leasePut("a"), leasePut("b")], revision: 2 });
    await close(store);
  });

  test("a wrong password, and none, are refused with etcd's words", async () => {
    const { endpoints } = await start();
    const cases = [
      { login: { user: "leasehold", password: "wrong" }, words: /authentication failed/ },
      { login: null, words: /user name/ },
    ];
    for (const { login, words } of cases) {
      const store = etcdStore(etcdClient(endpoints, { login }), freshCluster(), { resolveMsMax: 200 });
      const message = expect.stringMatching(words) as string;
      await expect(acquire(store)).rejects.toMatchObject({ code: "unusable", message });
      await close(store);
    }
  });
});
