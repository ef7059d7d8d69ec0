import { describeWith } from "../support/tools.js";
import { differs, same, testConversations, useBothServers, type Conversations } from "./golden-harness.js";

/**
 * EVAL and SCRIPT with the server's own commands behind `redis.call`, request by request as redis-server 7.0 answers them. What
 * Lua itself does is compared in `test/lua`.
 */

const RELEASE = `"if redis.call('get',KEYS[1]) == ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end"`;
const GET_SHA = "fd758d1589d044dd850a6f05d52f2eefd27f033f";

const evals = (...bodies: string[]): string[] => bodies.map((body) => `EVAL "${body}" 0`);

const CONVERSATIONS: Conversations = {
  arguments: [
    ...same("EVAL", "EVAL x", `EVAL "return 1" a`, `EVAL "return 1" -1`, `EVAL "return 1" 1`, `EVAL "return 1" 1.5`),
    ...same(
      `EVAL "return 1" 2 a`,
      `EVAL "return {KEYS[1],KEYS[2],ARGV[1],#ARGV}" 2 a b c d`,
      `EVAL "return #KEYS" 0 a b`,
    ),
    ...same(`EVAL "return 1" 9223372036854775808`, `EVAL "return 1" 9223372036854775807`, `eval "return KEYS[1]" 1 k`),
    ...same("EVALSHA abc 0", `EVALSHA ${"0".repeat(40)} 0`, `EVALSHA ${"0".repeat(40)} a`, "EVALSHA abc a", "EVALSHA"),
    ...same(`EVAL "return {" 0`, `EVAL "" 0`, "EVAL_RO x", `EVAL_RO "return 1" 0`, `EVALSHA_RO ${"f".repeat(40)} 0`),
  ],
  "the cache": [
    ...same(
      "SCRIPT FLUSH",
      `EVALSHA ${GET_SHA} 1 k`,
      `SCRIPT EXISTS ${GET_SHA}`,
      `SCRIPT LOAD "return redis.call('get',KEYS[1])"`,
    ),
    ...same(
      "SET k v",
      "EVALSHA fd758d1589d044dd850a6f05d52f2eefd27f033f 1 k",
      "EVALSHA FD758D1589D044DD850A6F05D52F2EEFD27F033F 1 k",
    ),
    ...same("SCRIPT EXISTS fd758d1589d044dd850a6f05d52f2eefd27f033f FD758D1589D044DD850A6F05D52F2EEFD27F033F abc"),
    ...same(
      "SCRIPT FLUSH ASYNC",
      "EVALSHA fd758d1589d044dd850a6f05d52f2eefd27f033f 1 k",
      `EVAL "return redis.call('get',KEYS[1])" 1 k`,
    ),
    ...same(
      "EVALSHA fd758d1589d044dd850a6f05d52f2eefd27f033f 1 k",
      "SCRIPT EXISTS fd758d1589d044dd850a6f05d52f2eefd27f033f",
    ),
    ...same("EVALSHA_RO fd758d1589d044dd850a6f05d52f2eefd27f033f 1 k", "SCRIPT FLUSH SYNC", "SCRIPT EXISTS a"),
    ...same(
      "SCRIPT FLUSH FOO",
      "SCRIPT FLUSH SYNC x",
      "SCRIPT",
      "SCRIPT FOO",
      "SCRIPT LOAD",
      "SCRIPT EXISTS",
      "SCRIPT KILL",
    ),
    ...same(
      `SCRIPT LOAD "return {"`,
      `SCRIPT LOAD "return 1" x`,
      "SCRIPT DEBUG NO",
      "SCRIPT DEBUG foo",
      "SCRIPT KILL x",
    ),
  ],
  "commands and their replies": [
    ...same("SET lock me", `EVAL ${RELEASE} 1 lock you`, `EVAL ${RELEASE} 1 lock me`, `EVAL ${RELEASE} 1 lock me`),
    ...same(
      ...evals(
        "return redis.call('set','a','1')",
        "return redis.call('get','a')",
        "return redis.call('get','none')",
        "return redis.call('get','none') == false",
        "return redis.call('set','a','2','NX') == false",
        "return redis.call('set','b','2','NX').ok",
        "return redis.call('set','a','2','PX',100400,'XX')",
        "return redis.call('ttl','a')",
        "return redis.call('pexpire','a',50000.0)",
        "return redis.call('type','a').ok",
        "return redis.call('mget','a','none','b')",
        "return {redis.call('mget','a','none')[2] == false}",
        "return redis.call('incr','n')",
        "return redis.call('incrby','n',2.0)",
        "return redis.call('exists','a','b','none')",
        "return redis.call('del','a','b')",
        "return redis.call('ping')",
        "return redis.call('echo','x')",
        "return redis.call('dbsize')",
        "return #redis.call('time')",
        "return type(redis.call('time')[1])",
        "return redis.call('publish','c','m')",
        "return redis.call('object','encoding','n')",
        "return redis.call('scan','0')",
        "return redis.call('append','n',1)",
        "return redis.call('strlen','n')",
        "return redis.call('getset','n','x')",
        "return redis.call('msetnx','p',1,'q',2)",
        "return redis.call('expiretime','n')",
      ),
    ),
  ],
  "what scripts may not": [
    ...same(
      ...evals(
        "return redis.call('nosuch')",
        "return redis.call('get')",
        "return redis.call('get','a','b')",
        "return redis.call('client','nosuch')",
        "return redis.call('client')",
        "return redis.call('client','id')",
        "return redis.call('config','get','save')",
        "return redis.call('eval','return 1',0)",
        "return redis.call('evalsha','x',0)",
        "return redis.call('multi')",
        "return redis.call('exec')",
        "return redis.call('watch','a')",
        "return redis.call('subscribe','a')",
        "return redis.call('unsubscribe')",
        "return redis.call('auth','x')",
        "return redis.call('hello')",
        "return redis.call('quit')",
        "return redis.call('reset')",
        "return redis.call('role')",
        "return redis.call('script','flush')",
        "return redis.call('monitor')",
        "return redis.call('shutdown')",
        "return redis.call('save')",
        "return redis.call('debug','sleep','0')",
        "return redis.call('wait',0,0)",
        "return redis.call('set','a','b','FOO')",
        "return redis.call('set','a','b','EX',0)",
        "return redis.call('incr','s')",
        "return redis.pcall('nosuch')",
        "return redis.pcall('nosuch').err",
        "return redis.pcall('get').err",
        "return redis.pcall('multi').err",
        "return redis.call()",
        "return redis.pcall()",
        "return redis.call('set',{},1)",
      ),
    ),
    ...same(`EVAL_RO "return redis.call('set','a','1')" 0`, `EVAL_RO "return redis.call('get','a')" 0`, "GET a"),
    ...same(`EVAL_RO "return redis.pcall('del','a')" 0`, `EVAL_RO "return redis.call('publish','a','b')" 0`),
    ...same(
      `EVAL "#!lua flags=no-writes\\nreturn redis.call('set','a','1')" 0`,
      `EVAL_RO "return redis.call('pexpire','a',1)" 0`,
    ),
  ],
  "writes before an error stay": [
    ...same(...evals("redis.call('set','a','1') redis.call('incr','a') error('stop')"), "GET a"),
    ...same(...evals("redis.call('set','a','x') redis.call('incr','a')"), "GET a"),
    ...same(...evals("redis.pcall('incr','a') return redis.call('set','a','y')"), "GET a"),
  ],
  "SELECT in a script ends with it": [
    ...same(...evals("redis.call('select',3) redis.call('set','a','three') return redis.call('get','a')"), "GET a"),
    ...same("SELECT 3", "GET a", "SELECT 0", ...evals("return redis.call('select',99)"), "SET a zero"),
    ...same(...evals("redis.call('select','3') error('stop')"), "GET a"),
  ],
  "a script in a transaction": [
    ...same(
      "MULTI",
      `EVAL "return redis.call('incr','n')" 0`,
      "INCR n",
      `EVAL "return redis.call('nosuch')" 0`,
      "GET n",
      "EXEC",
    ),
    ...same("MULTI", `EVALSHA ${"0".repeat(40)} 0`, `EVAL "return {1,2,{3}}" 0`, "SCRIPT KILL", "EXEC"),
    ...same("WATCH n", `EVAL "return redis.call('incr','n')" 0`, "MULTI", "GET n", "EXEC"),
  ],
  "COMMAND GETKEYS": [
    ...same(`COMMAND GETKEYS EVAL "return 1" 2 a b c`, `COMMAND GETKEYS EVALSHA abc 1 k`, "COMMAND GETKEYS SET a b NX"),
    ...same("COMMAND GETKEYS MSET a 1 b 2", "COMMAND GETKEYS MGET a b", "COMMAND GETKEYS WATCH a b"),
    differs("COMMAND GETKEYS MSETEX 2 a 1 b 2 EX 10", '["a","b"]'),
  ],
};

describeWith(["redis-server"], "scripts, as redis-server answers", () => {
  testConversations(useBothServers(), CONVERSATIONS);
});
