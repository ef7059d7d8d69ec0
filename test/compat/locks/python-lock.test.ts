import { expect, test } from "vitest";
import { useServers } from "../../support/server.js";
import { runOk } from "../../support/subprocess.js";
import { describeWith } from "../../support/tools.js";

/**
 * redis-py's Lock, from Debian's python3-redis. The dialogue is Python's; what it saw comes back as JSON. The restart comes in
 * between two runs: the token is handed from one to the other.
 */

const BEFORE = `
import json, sys, time, redis
from redis.exceptions import LockError, LockNotOwnedError

client = redis.Redis(port=int(sys.argv[1]))
said = {}

def refused(call):
    try:
        call()
        return "done"
    except LockNotOwnedError:
        return "not owned"
    except LockError as error:
        return "refused"

one = client.lock("a", timeout=100, blocking=False)
two = client.lock("a", timeout=100, blocking=False)
said["acquire"] = one.acquire()
said["contend"] = two.acquire()
said["owned"] = [one.owned(), two.owned(), one.locked()]
said["extend"] = one.extend(50)
said["longer"] = client.pttl("a") > 100000
said["replace"] = one.extend(20, replace_ttl=True)
said["shorter"] = client.pttl("a") <= 20000
said["reacquire"] = one.reacquire()
said["full"] = 90000 < client.pttl("a") <= 100000
one.release()
said["free"] = client.exists("a")

forever = client.lock("f", blocking=False)
said["forever"] = [forever.acquire(), client.ttl("f")]
forever.release()

short = client.lock("b", timeout=0.1, blocking=False)
short.acquire()
while client.exists("b"):
    time.sleep(0.02)
said["extend expired"] = refused(lambda: short.extend(10))
said["reacquire expired"] = refused(lambda: short.reacquire())
said["not revived"] = client.exists("b")
other = client.lock("b", timeout=100, blocking=False)
other.acquire()
said["release another's"] = refused(lambda: short.release())
said["still held"] = other.owned()

waiting = client.lock("c", timeout=2)
waiting.acquire()
started = time.monotonic()
left = client.pttl("c")
with client.lock("c", timeout=100, sleep=0.02, blocking_timeout=60):
    said["waited"] = (time.monotonic() - started) * 1000 >= left

survivor = client.lock("s", timeout=1000, blocking=False)
survivor.acquire()
said["token"] = survivor.local.token.decode()
print(json.dumps(said))
`;

const AFTER = `
import json, sys, redis
client = redis.Redis(port=int(sys.argv[1]))
said = {}
said["contend"] = client.lock("s", timeout=10, blocking=False).acquire()
survivor = client.lock("s", timeout=1000, blocking=False)
survivor.local.token = sys.argv[2].encode()
said["owned"] = survivor.owned()
said["extend"] = survivor.extend(10)
survivor.release()
said["free"] = client.exists("s")
print(json.dumps(said))
`;

describeWith(["python3-redis"], "python3-redis: Lock", () => {
  const servers = useServers();

  test("acquire, contend, extend, release, over a kill -9 too", async () => {
    const first = await servers.start();
    const run = async (script: string, ...args: string[]): Promise<Record<string, unknown>> =>
      JSON.parse(await runOk("/usr/bin/python3", ["-c", script, String(first.port), ...args])) as Record<
        string,
        unknown
      >;
    const { token, ...before } = await run(BEFORE);
    expect(before).toEqual({
      acquire: true,
      contend: false,
      owned: [true, false, true],
      extend: true,
      longer: true,
      replace: true,
      shorter: true,
      reacquire: true,
      full: true,
      free: 0,
      forever: [true, -1],
      "extend expired": "not owned",
      "reacquire expired": "not owned",
      "not revived": 0,
      "release another's": "not owned",
      "still held": true,
      waited: true,
    });
    await first.kill();
    await servers.start({ dir: first.dir, args: ["--port", String(first.port)] });
    expect(await run(AFTER, String(token))).toEqual({ contend: false, owned: true, extend: true, free: 0 });
  });
});
