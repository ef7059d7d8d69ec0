/**
 * Every bound of the wire, each with its reason: what one client may send, may make the server hold, and may take of a turn.
 * Bounds of the rules themselves (key bytes, keys per command) are in `engine/limits.ts`; a frame that keeps to the bounds
 * here may still be refused there, with an error reply instead of a closed connection.
 */

/** Redis's own bound of a line: inline commands, and headers that never end. */
export const INLINE_BYTES_MAX = 65_536;

/** Redis's bound (before 7.0). Bytes bound it further: an argument costs six of them at least. */
export const ARGUMENTS_MAX = 1_048_576;

/**
 * One request in all. 10,000 keys (`KEYS_PER_COMMAND_MAX`) of 1.6 KB each, or fifteen of the largest values in one grant:
 * far above what a lock needs and etcd takes (1.5 MiB), far below what could hurt: the bytes are held once as they came and
 * once as arguments.
 */
export const FRAME_BYTES_MAX = 16 * 1024 * 1024;

/** Before AUTH, as in Redis: room for HELLO 3 AUTH user password SETNAME name. */
export const UNAUTHENTICATED_ARGUMENTS_MAX = 10;
export const UNAUTHENTICATED_BULK_BYTES_MAX = 16_384;

/** Before AUTH a whole request is bounded too: 10,000 strangers may make the server hold 640 MB, not 160 GB. */
export const UNAUTHENTICATED_FRAME_BYTES_MAX = 65_536;

/** What one read takes from a socket at most: libuv's own size. */
export const READ_BYTES_MAX = 65_536;

/**
 * Halves of requests over all connections. Beyond it the connection that asks for more is closed: a thousand clients that each
 * send fifteen megabytes of an unfinished request are an attack or a bug.
 */
export const UNFINISHED_BYTES_TOTAL_MAX = 1024 * 1024 * 1024;

/** Commands of one connection before the others have their turn: about half a millisecond of keep-alives. */
export const COMMANDS_PER_TURN_MAX = 1000;

/** The same by time, for commands that cost more. Looked at every `COMMANDS_PER_CLOCK_READING` commands. */
export const TURN_MS_MAX = 2;
export const COMMANDS_PER_CLOCK_READING = 32;

/** Requests of so many arguments may take long whatever their command: their duration is taken by the clock, for SLOWLOG. */
export const TIMED_ARGUMENTS_MIN = 100;

/**
 * Replies that wait behind one parked for durability, per connection. A sync takes about a millisecond; a pipeline deeper than
 * this within one gains nothing, and the client is simply not read for that long.
 */
export const REPLIES_PARKED_MAX = 10_000;

/**
 * Bytes of replies that a client has not taken: beyond it none of its commands runs and nothing is read from it until it has
 * taken them all. Large enough that a pipeline of a thousand INFOs is not held up, small enough for 10,000 connections.
 */
export const OUTPUT_BYTES_SOFT_MAX = 1024 * 1024;

/** Replies collected in a turn are handed to the socket at this size: a write of a string beyond 16 KB is copied anyway. */
export const WRITE_BYTES_TARGET = 65_536;

/** Messages pushed to a subscriber that does not read, who cannot be slowed down: closed beyond this. Redis: 32 MB. */
export const PUSH_BYTES_MAX = 32 * 1024 * 1024;

/** Bytes taken from a client while it is blocked: reading goes on, for only so is its end noticed. */
export const BLOCKED_INPUT_BYTES_MAX = 1024 * 1024;

/** Commands between MULTI and EXEC: they share one turn. */
export const TRANSACTION_COMMANDS_MAX = 10_000;

/** Their arguments in all: about as much as one request may have. */
export const TRANSACTION_BYTES_MAX = 16 * 1024 * 1024;

/** One reply in all. V8's strings end at 512 MB. */
export const REPLY_BYTES_MAX = 256 * 1024 * 1024;

/**
 * After the last reply (QUIT, a protocol error) the socket stays open for the client to read it: closing at once with unread
 * input makes the kernel reset the connection and drop the reply.
 */
export const LINGER_MS = 2000;

/** The same when the kernel has not even taken all of it yet: a slow client gets its time, a dead one does not stay. */
export const LINGER_UNSENT_MS = 30_000;

/** How often idle and lingering connections are looked at. */
export const HOUSEKEEPING_MS = 1000;

/** Refused connections that are given time to read why. */
export const REFUSED_LINGERING_MAX = 256;
