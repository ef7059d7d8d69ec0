import { NO_AUTH, unknownCommand, unknownSubcommand, wrongArity } from "../engine/errors.js";
import type { ByteString, ErrorReply } from "../engine/reply.js";
import type { ClientConnection, CommandLookup, CommandSpec } from "./command.js";

/**
 * Finds the command that a request names and says whether it may run at all: name, number of arguments, password, in Redis's
 * order. Remembers the newest name of all connections: clients of one kind send one command over and over, and the decoder
 * gives out the same string for it.
 */
export class Dispatcher {
  readonly #commands: CommandLookup;
  #newestName: ByteString | null = null;
  #newestSpec: CommandSpec | null = null;

  constructor(commands: CommandLookup) {
    this.#commands = commands;
  }

  /** The command, or the error that its client gets instead. Counts rejections. */
  admit(argv: readonly ByteString[], connection: ClientConnection): CommandSpec | ErrorReply {
    const found = this.#find(argv[0] as ByteString);
    if (found === undefined) return unknownCommand(argv[0] as ByteString, argv.slice(1));
    let spec = found;
    if (found.subcommands !== undefined && argv.length > 1) {
      const subcommand = found.subcommands.find(argv[1] as ByteString);
      if (subcommand === undefined) return unknownSubcommand(argv[1] as ByteString, found.name.toUpperCase());
      spec = subcommand;
    }
    if (spec.arity >= 0 ? argv.length !== spec.arity : argv.length < -spec.arity) {
      spec.counters.rejected++;
      return wrongArity(spec.name);
    }
    if (!connection.authenticated && spec.withoutPassword !== true) {
      spec.counters.rejected++;
      return NO_AUTH;
    }
    return spec;
  }

  #find(name: ByteString): CommandSpec | undefined {
    if (name === this.#newestName && this.#newestSpec !== null) return this.#newestSpec;
    const spec = this.#commands.find(name);
    if (spec !== undefined) {
      this.#newestName = name;
      this.#newestSpec = spec;
    }
    return spec;
  }
}
