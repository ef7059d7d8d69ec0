import { xxh3 } from "@node-rs/xxhash";
import type { ByteString } from "./engine/reply.js";

/** What DIGEST answers: the XXH3-64 of the bytes, as 16 hexadecimal digits in lower case. */
export function valueDigest(value: ByteString): ByteString {
  return xxh3.xxh64(Buffer.from(value, "latin1")).toString(16).padStart(16, "0");
}
