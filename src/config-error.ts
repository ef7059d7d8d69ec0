/** A bad flag or variable; the message is one line for the operator. */
export class ConfigError extends Error {
  override readonly name = "ConfigError";
}
