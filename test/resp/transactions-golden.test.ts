import { describeWith } from "../support/tools.js";
import { differs, same, testConversations, useBothServers, type Conversations } from "./golden-harness.js";

/** MULTI and WATCH, request by request as redis-server 7.0 answers them. */

const CONVERSATIONS: Conversations = {
  "queueing and running": [
    ...same("MULTI", "SET a 1", "INCR a", "GET a", "EXEC", "GET a", "MULTI", "EXEC", "MULTI", "PING", "ECHO x", "EXEC"),
    ...same("MULTI", "SET a b", "INCR a", "SET a c", "EXEC", "GET a", "multi", "mget a b", "exists a a", "exec"),
    ...same("MULTI", "SET a 5", "DISCARD", "GET a", "MULTI", "TYPE a", "TTL a", "PEXPIRE a 100000", "TTL a", "EXEC"),
    ...same("MULTI", "TIME x", "SET a 1", "EXEC", "GET a"),
  ],
  "out of turn": [
    ...same(
      "EXEC",
      "DISCARD",
      "MULTI",
      "MULTI",
      "SET a 1",
      "EXEC",
      "GET a",
      "MULTI",
      "WATCH a",
      "SET a 2",
      "EXEC",
      "GET a",
    ),
    ...same("UNWATCH", "WATCH", "MULTI x", "DISCARD x", "WATCH a b", "UNWATCH x"),
    // Redis answers this as if there had been a transaction.
    differs("EXEC x", "-ERR wrong number of arguments for 'exec' command"),
  ],
  "a refused command discards everything": [
    ...same("MULTI", "SET a 1", "NOSUCH", "SET a 2", "EXEC", "GET a", "MULTI", "SET a", "EXEC", "GET a", "PING"),
    ...same("MULTI", "CLIENT NOSUCH", "EXEC", "MULTI", "CLIENT", "EXEC", "MULTI", "GET a b", "DISCARD", "GET a"),
    ...same("MULTI", "SAVE", "EXEC", "MULTI", "SHUTDOWN FOO", "EXEC", "GET a"),
    ...same("MULTI", "SET k v FOO", "EXEC", "MULTI", "SET k v EX 0", "SET k v", "EXEC", "GET k"),
  ],
  "databases within a transaction": [
    ...same(
      "MULTI",
      "SELECT 3",
      "SET a 3",
      "SELECT 0",
      "SET a 0",
      "EXEC",
      "GET a",
      "SELECT 3",
      "GET a",
      "MULTI",
      "SELECT 0",
    ),
    ...same("EXEC", "GET a", "MULTI", "SELECT 99", "SET a 1", "EXEC", "GET a"),
  ],
  "leaving by other ways": [...same("MULTI", "SET a 1", "RESET", "GET a", "EXEC", "MULTI", "SET a 2", "QUIT")],
  "WATCH by the same connection": [
    ...same("SET a 1", "WATCH a", "SET a 2", "MULTI", "SET a 3", "EXEC", "GET a", "MULTI", "SET a 3", "EXEC", "GET a"),
    ...same("WATCH a", "MULTI", "SET a 4", "EXEC", "WATCH a", "SET a 5", "UNWATCH", "MULTI", "GET a", "EXEC"),
    ...same("WATCH a", "SET a 6", "MULTI", "GET a", "DISCARD", "MULTI", "GET a", "EXEC"),
    ...same(
      "WATCH none",
      "SET none 1",
      "MULTI",
      "GET none",
      "EXEC",
      "WATCH none2",
      "DEL none2",
      "MULTI",
      "PING",
      "EXEC",
    ),
    ...same("WATCH a", "DEL a", "MULTI", "PING", "EXEC", "WATCH a b", "SET b 1", "MULTI", "PING", "EXEC"),
    ...same("SET a 1", "WATCH a", "SET b 2", "MULTI", "PING", "EXEC", "WATCH a", "FLUSHALL", "MULTI", "PING", "EXEC"),
    ...same(
      "SET a 1",
      "WATCH a",
      "FLUSHDB",
      "MULTI",
      "PING",
      "EXEC",
      "SET a 1",
      "WATCH a",
      "EXPIRE a 100",
      "MULTI",
      "PING",
    ),
    ...same("EXEC", "WATCH a", "GET a", "TTL a", "EXISTS a", "STRLEN a", "MULTI", "PING", "EXEC"),
    ...same("SELECT 3", "SET a 1", "WATCH a", "SELECT 0", "SET a 2", "MULTI", "PING", "EXEC", "SELECT 3", "WATCH a"),
    ...same("SELECT 0", "MULTI", "PING", "EXEC", "WATCH a", "NOSUCH", "SET a 9", "MULTI", "NOSUCH", "EXEC"),
  ],
  "connection commands within": [
    ...same("MULTI", "CLIENT SETNAME x", "CLIENT GETNAME", "EXEC", "CLIENT GETNAME", "MULTI", "UNWATCH", "EXEC"),
    ...same("MULTI", "OBJECT ENCODING a", "OBJECT REFCOUNT a", "DBSIZE", "RANDOMKEY", "KEYS *", "SCAN 0", "EXEC"),
    ...same("MULTI", "PUBLISH c m", "PUBSUB NUMSUB c", "EVAL x", "EXEC", "MULTI", "PUBLISH c m", "EXEC"),
    ...same("MULTI", "CONFIG GET save", "WAIT 0 0", "ROLE x", "EXEC", "MULTI", "CONFIG GET save", "WAIT 0 0", "EXEC"),
    // Several confirmations, or none, cannot stand in one place of an array; Redis answers them out of step.
    ...same("MULTI"),
    differs("SUBSCRIBE a b", "-ERR Command not allowed inside a transaction"),
    ...same("DISCARD", "MULTI"),
    differs("CLIENT REPLY SKIP", "-ERR Command not allowed inside a transaction"),
    ...same("DISCARD"),
  ],
};

describeWith(["redis-server"], "transactions, as redis-server answers", () => {
  testConversations(useBothServers(), CONVERSATIONS);
});
