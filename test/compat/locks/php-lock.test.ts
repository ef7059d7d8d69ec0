import { expect, test } from "vitest";
import { useServers } from "../../support/server.js";
import { runOk } from "../../support/subprocess.js";
import { describeWith } from "../../support/tools.js";

/**
 * Laravel's lock (`Cache::lock`) over the phpredis extension, both from Debian, made by hand where the framework would make it. It extends
 * nothing; its times are whole seconds. The dialogue is PHP's; what it saw comes back as JSON. The restart comes in between two runs.
 */

const OPEN = `
require "Illuminate/Cache/autoload.php";
require "Illuminate/Redis/autoload.php";
use Illuminate\\Cache\\RedisLock;

$redis = (new Illuminate\\Redis\\Connectors\\PhpRedisConnector())->connect(["host" => "127.0.0.1", "port" => (int) $argv[1]], []);
$said = [];
`;

const BEFORE = `${OPEN}
$one = new RedisLock($redis, "a", 100);
$two = new RedisLock($redis, "a", 100);
$said["acquire"] = $one->get();
$said["contend"] = $two->get();
$left = $redis->pttl("a");
$said["time"] = $left > 50000 && $left <= 100000;
$said["release another's"] = $two->release();
$said["release"] = $one->release();
$said["free"] = $redis->exists("a");

$forever = new RedisLock($redis, "f", 0);
$said["forever"] = [$forever->get(), $redis->ttl("f"), (new RedisLock($redis, "f", 0))->get(), $forever->release()];

$short = new RedisLock($redis, "b", 1);
$short->get();
$next = (new RedisLock($redis, "b", 100))->betweenBlockedAttemptsSleepFor(20);
$said["waited for its end"] = $next->block(60);
$said["release expired"] = $short->release();
$said["still held"] = $redis->get("b") === $next->owner();

$survivor = new RedisLock($redis, "s", 1000);
$survivor->get();
$said["owner"] = $survivor->owner();
echo json_encode($said);
`;

const AFTER = `${OPEN}
$said["contend"] = (new RedisLock($redis, "s", 10))->get();
$survivor = new RedisLock($redis, "s", 1000, $argv[2]);
$said["still held"] = $redis->get("s") === $argv[2];
$said["release"] = $survivor->release();
$said["free"] = $redis->exists("s");
echo json_encode($said);
`;

describeWith(["php-illuminate"], "Laravel: RedisLock over phpredis", () => {
  const servers = useServers();

  test("acquire, contend, wait, release, over a kill -9 too", async () => {
    const first = await servers.start();
    const runScript = async (script: string, ...args: string[]): Promise<Record<string, unknown>> =>
      JSON.parse(await runOk("php", ["-r", script, String(first.port), ...args])) as Record<string, unknown>;
    const { owner, ...before } = await runScript(BEFORE);
    expect(before).toEqual({
      acquire: true,
      contend: false,
      time: true,
      "release another's": false,
      release: true,
      free: 0,
      forever: [true, -1, false, true],
      "waited for its end": true,
      "release expired": false,
      "still held": true,
    });
    await first.kill();
    await servers.start({ dir: first.dir, args: ["--port", String(first.port)] });
    const after = await runScript(AFTER, String(owner));
    expect(after).toEqual({ contend: false, "still held": true, release: true, free: 0 });
  });
});
