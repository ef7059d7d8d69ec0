import { expect, test } from "vitest";
import { useServers } from "../support/server.js";
import { runOk } from "../support/subprocess.js";
import { describeWith } from "../support/tools.js";

/** Debian's python3-redis. The dialogue is Python's; what it saw comes back as lines of JSON. */

const SCRIPT = `
import json, sys, redis

port = int(sys.argv[1])
client = redis.Redis(port=port, client_name="worker", db=1)
said = {}
every_byte = bytes(range(256))

said["grant"] = client.execute_command("LEASE.GRANT", "a", 10, "KEY", "k", "v")[1]
said["keepalive"] = client.execute_command("LEASE.KEEPALIVE", "a")
said["value"] = client.get("k").decode()
said["exists"] = client.exists("k", "none")
said["dbsize"] = client.dbsize()
said["scan"] = [key.decode() for key in client.scan_iter("*")]
said["ping"] = client.ping()
said["role"] = client.info()["role"]
said["time"] = len(client.time())
try:
    client.execute_command("LEASE.KEEPALIVE", "none")
except redis.ResponseError as error:
    said["error"] = str(error).split(" ")[0]

with client.pipeline(transaction=False) as pipeline:
    for number in range(100):
        pipeline.execute_command("LEASE.GRANT", "p-%d" % number, "PX", 60000 + number)
    said["pipeline"] = [reply[1] for reply in pipeline.execute()] == [60000 + number for number in range(100)]

granted = client.execute_command("LEASE.GRANT", every_byte, 60, "KEY", every_byte, every_byte)
said["binary"] = granted[0] == every_byte and client.get(every_byte) == every_byte

listener = client.pubsub()
listener.subscribe("lease:short")
assert listener.get_message(timeout=10)["type"] == "subscribe"
client.execute_command("LEASE.GRANT", "short", "PX", 100)
said["event"] = listener.get_message(timeout=20)["data"].decode()
said["revoke"] = client.execute_command("LEASE.REVOKE", "a")
print(json.dumps(said))
`;

describeWith(["python3-redis"], "python3-redis", () => {
  const servers = useServers();

  test("a dialogue with pipeline, bytes and events", async () => {
    const { port } = await servers.start();
    const said: unknown = JSON.parse(await runOk("/usr/bin/python3", ["-c", SCRIPT, String(port)]));
    expect(said).toEqual({
      grant: 10_000,
      keepalive: 10_000,
      value: "v",
      exists: 1,
      dbsize: 1,
      scan: ["k"],
      ping: true,
      role: "master",
      time: 2,
      error: "NOLEASE",
      pipeline: true,
      binary: true,
      event: expect.stringMatching(/^expired late-ms=\d+$/),
      revoke: 1,
    });
  });
});
