import { expect, test } from "vitest";
import { show, textOf, type RespValue, type Status } from "../support/resp-client.js";
import { describeWith } from "../support/tools.js";
import { differs, same, testConversations, useBothServers, type Exchange } from "./golden-harness.js";

/**
 * The same requests to Debian's redis-server and to this server: the replies have to be the same. Where they differ on
 * purpose, the difference is written down beside the request.
 */

const CONVERSATIONS: Readonly<Record<string, readonly Exchange[]>> = {
  "arity and unknown names": [
    ...same("GET", "GET a b", "DEL", "EXISTS", "TTL", "TYPE a b", "KEYS", "DBSIZE x", "RANDOMKEY x", "SCAN"),
    ...same("FOO", "foo bar baz", "FOO a", "CLIENT", "CLIENT FOO", "client foo", "CONFIG", "CONFIG FOO", "OBJECT"),
    ...same("OBJECT FOO x", "OBJECT ENCODING", "COMMAND FOO", "PUBSUB FOO", "SLOWLOG FOO", "LATENCY FOO", "MEMORY FOO"),
    ...same("CONFIG GET", "CONFIG SET timeout", "CONFIG REWRITE x", "CLIENT ID x", "CLIENT GETNAME x", "RESET x"),
    ...same("ECHO", "ECHO a b", "PING a b", "MONITOR x", "PUBLISH a", "SUBSCRIBE", "MODULE FOO", "ACL FOO", "DEBUG"),
  ],
  "ping, echo, select": [
    ...same(
      "PING",
      "ping",
      "PiNg",
      "PING hello",
      'PING ""',
      "ECHO hello",
      'ECHO ""',
      "SELECT 0",
      "SELECT 15",
      "SELECT 0",
    ),
    ...same("SELECT 16", "SELECT -1", "SELECT a", "SELECT 01", "SELECT 9223372036854775808", "QUIT"),
  ],
  "empty keyspace": [
    ...same("GET x", "EXISTS a a", "DEL a b", "UNLINK a", "TOUCH a", "TYPE x", "TTL x", "PTTL x", "KEYS *", "DBSIZE"),
    ...same("RANDOMKEY", "SCAN 0", "SCAN 0 MATCH a* COUNT 5 TYPE string", "FLUSHDB", "FLUSHDB ASYNC", "FLUSHALL SYNC"),
    ...same("FLUSHDB FOO", "FLUSHALL ASYNC SYNC", "OBJECT ENCODING x", "OBJECT FREQ x", "OBJECT REFCOUNT x"),
    ...same(
      "MEMORY USAGE x",
      "MEMORY USAGE x SAMPLES 0",
      "MEMORY USAGE x SAMPLES",
      "MEMORY USAGE x SAMPLES a",
      "MEMORY PURGE",
    ),
  ],
  "scan's arguments": [
    ...same("SCAN a", "SCAN 0 COUNT 0", "SCAN 0 COUNT a", "SCAN 0 MATCH", "SCAN 0 FOO x", "SCAN 18446744073709551616"),
    differs("SCAN -1", "-ERR invalid cursor"),
    differs("SCAN +5", "-ERR invalid cursor"),
  ],
  hello: [
    ...same(
      "HELLO 4",
      "HELLO 1",
      "HELLO a",
      "HELLO 3 foo",
      "HELLO 2 SETNAME",
      "HELLO 2 SETNAME a\\nb",
      "HELLO 2 AUTH a",
    ),
    ...same(
      "HELLO 2 AUTH a b",
      "HELLO 2 SETNAME x AUTH default foo",
      "CLIENT GETNAME",
      "AUTH x",
      "AUTH a b",
      "AUTH a b c",
    ),
    ...same("AUTH default x", "AUTH", "RESET", "CLIENT GETNAME"),
  ],
  "client names and modes": [
    ...same("CLIENT GETNAME", "CLIENT SETNAME worker", "CLIENT GETNAME", "CLIENT SETNAME a\\nb", 'CLIENT SETNAME ""'),
    ...same("CLIENT GETNAME", "CLIENT NO-EVICT on", "CLIENT NO-EVICT off", "CLIENT NO-EVICT maybe", "CLIENT REPLY foo"),
    ...same("CLIENT REPLY ON", "CLIENT TRACKING off", "CLIENT TRACKING foo", "CLIENT TRACKINGINFO", "CLIENT GETREDIR"),
    ...same(
      "CLIENT CACHING yes",
      "CLIENT CACHING foo",
      "CLIENT UNBLOCK abc",
      "CLIENT UNBLOCK 9999",
      "CLIENT UNBLOCK 9999 foo",
    ),
    differs("CLIENT SETINFO LIB-NAME x", "+OK"),
    differs("CLIENT SETINFO FOO x", "-ERR Unrecognized option 'FOO'"),
    differs("CLIENT NO-TOUCH on", "+OK"),
  ],
  "client list and kill": [
    ...same(
      "CLIENT LIST TYPE foo",
      "CLIENT LIST TYPE replica",
      "CLIENT LIST TYPE master",
      "CLIENT LIST ID a",
      "CLIENT LIST FOO",
    ),
    ...same("CLIENT LIST ID 99999", "CLIENT LIST TYPE", "CLIENT KILL", "CLIENT KILL 1.2.3.4:5", "CLIENT KILL ID"),
    ...same(
      "CLIENT KILL ID a",
      "CLIENT KILL ID 0",
      "CLIENT KILL ID -1",
      "CLIENT KILL ID 99999",
      "CLIENT KILL TYPE foo",
    ),
    ...same(
      "CLIENT KILL USER foo",
      "CLIENT KILL SKIPME foo",
      "CLIENT KILL FOO bar",
      "CLIENT KILL ADDR 1.2.3.4:5 SKIPME no",
    ),
    ...same("CLIENT KILL ID 5 ADDR", "CLIENT KILL TYPE pubsub", "CLIENT KILL LADDR 1.2.3.4:5"),
    differs("CLIENT KILL MAXAGE 0", "-ERR maxage should be greater than 0"),
  ],
  "client pause": [
    ...same(
      "CLIENT PAUSE",
      "CLIENT PAUSE abc",
      "CLIENT PAUSE -1",
      "CLIENT PAUSE 1 foo",
      "CLIENT PAUSE 1 WRITE",
      "CLIENT UNPAUSE",
    ),
  ],
  config: [
    ...same("CONFIG SET foo bar", "CONFIG SET databases 17", "CONFIG SET maxclients abc", "CONFIG SET maxclients 0"),
    ...same(
      "CONFIG SET timeout -1",
      "CONFIG SET timeout 1 timeout 2",
      "CONFIG SET timeout 1 x",
      "CONFIG SET protected-mode maybe",
    ),
    ...same(
      "CONFIG SET notify-keyspace-events Q",
      "CONFIG SET notify-keyspace-events KEA",
      "CONFIG GET notify-keyspace-events",
    ),
    ...same("CONFIG SET notify-keyspace-events KExg$lm", "CONFIG GET notify-keyspace-events"),
    ...same(
      'CONFIG SET notify-keyspace-events ""',
      "CONFIG SET slowlog-log-slower-than x",
      "CONFIG GET save",
      "CONFIG GET foo",
    ),
    ...same(
      'CONFIG SET save ""',
      "CONFIG SET timeout 5 slowlog-max-len 7",
      "CONFIG GET timeout",
      "CONFIG GET slowlog-max-len",
    ),
    ...same(
      "CONFIG SET timeout 0 slowlog-max-len 128",
      "CONFIG RESETSTAT",
      "CONFIG REWRITE",
      "CONFIG GET maxmemory-policy",
    ),
    ...same("CONFIG SET timeout 3 foo bar", "CONFIG GET timeout", "CONFIG GET databases"),
  ],
  "subscriber mode of RESP2": [
    ...same(
      "SUBSCRIBE a",
      "GET x",
      "PING",
      "PING hi",
      "CLIENT ID",
      "HELLO 3",
      "UNSUBSCRIBE zz",
      "UNSUBSCRIBE a",
      "UNSUBSCRIBE a",
    ),
    ...same(
      "PUNSUBSCRIBE",
      "PSUBSCRIBE a*",
      "SUBSCRIBE",
      "PUNSUBSCRIBE a*",
      "SSUBSCRIBE q",
      "GET x",
      "SUNSUBSCRIBE q",
      "SUNSUBSCRIBE",
    ),
    ...same("SUBSCRIBE b", "RESET", "PING", "PUBLISH a b", "SPUBLISH a b"),
    differs("GET x", "null"),
  ],
  pubsub: [
    ...same(
      "PUBSUB CHANNELS",
      "PUBSUB CHANNELS a b",
      "PUBSUB CHANNELS a*",
      "PUBSUB NUMSUB",
      "PUBSUB NUMSUB a b",
      "PUBSUB NUMPAT",
    ),
    ...same("PUBSUB NUMPAT x", "PUBSUB SHARDCHANNELS", "PUBSUB SHARDNUMSUB a", "PUBLISH nobody x"),
  ],
  "the server": [
    ...same(
      "SLOWLOG GET -2",
      "SLOWLOG GET a",
      "SLOWLOG RESET",
      "LATENCY LATEST",
      "LATENCY HISTORY foo",
      "LATENCY RESET",
    ),
    ...same(
      "LATENCY RESET foo bar",
      "ROLE",
      "REPLICAOF NO ONE",
      "slaveof no one",
      "FAILOVER ABORT",
      "FAILOVER x",
      "SAVE",
    ),
    ...same("BGSAVE FOO", "WAIT 0 0", "WAIT 1 10", "WAIT a 0", "WAIT 0 a", "WAIT 0 -1", "WAIT -1 0", "MODULE LIST"),
    ...same(
      "ACL WHOAMI",
      "ACL USERS",
      "ACL LIST",
      "ACL CAT foo",
      "READONLY",
      "READWRITE",
      "ASKING",
      "CLUSTER INFO",
      "CLUSTER SLOTS",
    ),
    ...same(
      "CLUSTER",
      "SHUTDOWN FOO",
      "SHUTDOWN NOSAVE SAVE",
      "SHUTDOWN ABORT",
      "FUNCTION FLUSH",
      "FUNCTION FLUSH FOO",
    ),
    ...same("FUNCTION LIST", "INFO nosuchsection", "SENTINEL MASTERS"),
    differs("WAITAOF 0 0 0", "[1,0]"),
    differs("FAILOVER TO 127.0.0.1 1", "-ERR syntax error"),
    differs(
      "REPLICAOF 127.0.0.1 6379",
      "-ERR Leasehold does not replicate from another server; REPLICAOF NO ONE takes the primary role",
    ),
    differs(
      "DEBUG SLEEP 0",
      "-NOPERM DEBUG is switched off; start the server with --enable-debug-command yes to use it",
    ),
  ],
  "command introspection": [
    ...same(
      "COMMAND COUNT x",
      "COMMAND INFO nosuch",
      "COMMAND INFO get",
      "COMMAND DOCS nosuch",
      "COMMAND GETKEYS get a",
    ),
    ...same(
      "COMMAND GETKEYS foo a",
      "COMMAND GETKEYS object encoding k",
      "COMMAND GETKEYS exists a b c",
      "COMMAND LIST FOO",
    ),
    ...same("COMMAND LIST FILTERBY", "COMMAND LIST FILTERBY MODULE foo", "COMMAND LIST FILTERBY ACLCAT foo"),
    ...same("COMMAND LIST FILTERBY PATTERN getn*", "COMMAND GETKEYSANDFLAGS get a"),
    // Redis 7.2 and later; 7.0 asks for four arguments.
    differs("COMMAND GETKEYS exists", "-ERR Invalid number of arguments specified for command"),
    ...same("COMMAND GETKEYS echo x"),
  ],
};

describeWith(["redis-server"], "the same answers as redis-server", () => {
  const both = useBothServers();
  testConversations(both, CONVERSATIONS);

  test("COMMAND describes the shared commands alike", async () => {
    const { theirs, ours } = await both.connect();
    const [expected, got] = await Promise.all([theirs.call("COMMAND"), ours.call("COMMAND")]);
    const known = describedBy(expected);
    const described = describedBy(got);
    const differing = [...described].filter(([name, line]) => known.has(name) && known.get(name) !== line);
    expect(differing.map(([name]) => name)).toEqual(DESCRIBED_DIFFERENTLY);
    expect([...described.keys()].filter((name) => !known.has(name) && !/^(lease|lock)\./.test(name))).toEqual(
      NOT_IN_REDIS_7_0,
    );
    theirs.destroy();
    ours.destroy();
  });
});

/** PING answers while the server loads; DEBUG has no subcommands in Redis; GETKEYS is stricter in 7.0 than later. */
const DESCRIBED_DIFFERENTLY = ["ping", "debug", "command|getkeys", "command|getkeysandflags"];
const NOT_IN_REDIS_7_0 = [
  "msetex",
  "delifeq",
  "delex",
  "digest",
  "client|setinfo",
  "client|no-touch",
  "client|capa",
  "debug|sleep",
  "debug|help",
  "waitaof",
];

const textsOf = (value: RespValue | undefined): string =>
  (value as Status[])
    .map(({ text }) => text)
    .toSorted()
    .join(" ");

/** Name to arity, flags, key positions and categories, of commands and subcommands. */
function describedBy(commands: RespValue): Map<string, string> {
  const described = new Map<string, string>();
  for (const entry of commands as RespValue[][]) {
    const [name, arity, flags, first, last, step, categories, , , subcommands] = entry;
    const figures = [arity, first, last, step].map((figure) => show(figure ?? null)).join(" ");
    described.set(textOf(name), `${figures} ${textsOf(flags)} ${textsOf(categories)}`);
    for (const [subName, line] of describedBy(subcommands ?? [])) described.set(subName, line);
  }
  return described;
}
