import { expect, test } from "vitest";
import { useServers } from "../../support/server.js";
import { runOk } from "../../support/subprocess.js";
import { describeWith } from "../../support/tools.js";

/**
 * Debian's ruby-redis, with the lock that Redis's own manual describes and Ruby's lock gems build on: SET NX PX, and scripts that compare
 * the value before they extend or delete. The dialogue is Ruby's; what it saw comes back as JSON. The restart comes in between two runs.
 */

const LOCK = `
require "redis"
require "json"
require "securerandom"

REDIS = Redis.new(port: ARGV[0].to_i, reconnect_attempts: 3)

class Lock
  EXTEND = 'if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("pexpire", KEYS[1], ARGV[2]) else return 0 end'
  RELEASE = 'if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) else return 0 end'

  attr_reader :value

  def initialize(name, value = SecureRandom.hex)
    @name, @value = name, value
  end

  def acquire(ms) = REDIS.set(@name, @value, nx: true, px: ms)
  def extend(ms) = run(EXTEND, [@value, ms]) == 1
  def release = run(RELEASE, [@value]) == 1

  # what is known by its digest is not sent again
  def run(script, argv)
    REDIS.evalsha(Digest::SHA1.hexdigest(script), keys: [@name], argv: argv)
  rescue Redis::CommandError => error
    raise unless error.message.start_with?("NOSCRIPT")
    REDIS.eval(script, keys: [@name], argv: argv)
  end
end

SAID = {}
`;

const BEFORE = `${LOCK}
one, two = Lock.new("a"), Lock.new("a")
SAID["acquire"] = one.acquire(100_000)
SAID["contend"] = two.acquire(100_000)
SAID["extend"] = one.extend(200_000)
SAID["longer"] = REDIS.pttl("a") > 100_000
SAID["extend another's"] = two.extend(900_000)
SAID["release another's"] = two.release
SAID["release"] = one.release
SAID["free"] = REDIS.exists("a")

short = Lock.new("b")
short.acquire(100)
sleep 0.02 while REDIS.exists?("b")
SAID["extend expired"] = short.extend(100_000)
SAID["not revived"] = REDIS.exists("b")
other = Lock.new("b")
SAID["next"] = other.acquire(100_000)
SAID["release expired"] = short.release
SAID["still held"] = REDIS.get("b") == other.value

survivor = Lock.new("s")
survivor.acquire(1_000_000)
SAID["value"] = survivor.value
puts JSON.generate(SAID)
`;

const AFTER = `${LOCK}
SAID["contend"] = Lock.new("s").acquire(10_000)
survivor = Lock.new("s", ARGV[1])
SAID["extend"] = survivor.extend(2_000_000)
SAID["release"] = survivor.release
SAID["free"] = REDIS.exists("s")
puts JSON.generate(SAID)
`;

describeWith(["ruby-redis"], "ruby-redis: SET NX PX and scripts", () => {
  const servers = useServers();

  test("acquire, contend, extend, release, over a kill -9 too", async () => {
    const first = await servers.start();
    const runScript = async (script: string, ...args: string[]): Promise<Record<string, unknown>> =>
      JSON.parse(await runOk("ruby", ["-e", script, String(first.port), ...args])) as Record<string, unknown>;
    const { value, ...before } = await runScript(BEFORE);
    expect(before).toEqual({
      acquire: true,
      contend: false,
      extend: true,
      longer: true,
      "extend another's": false,
      "release another's": false,
      release: true,
      free: 0,
      "extend expired": false,
      "not revived": 0,
      next: true,
      "release expired": false,
      "still held": true,
    });
    await first.kill();
    await servers.start({ dir: first.dir, args: ["--port", String(first.port)] });
    expect(await runScript(AFTER, String(value))).toEqual({ contend: false, extend: true, release: true, free: 0 });
  });
});
