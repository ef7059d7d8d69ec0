import type { ByteString } from "../engine/reply.js";

/**
 * Inline commands: a request typed as a line, `SET key "some value"`, for people with telnet and for tools that probe with
 * `PING\r\n`. Words are split by Redis's quoting rules, so that what works there works here:
 *
 *  - blanks separate words
 *  - "double quotes" know \n \r \t \b \a \\ \" and \xHH; any other escaped character stands for itself
 *  - 'single quotes' know \' alone
 *  - a closing quote must be followed by a blank or the end of the line; an opening one may stand within a word
 *
 * Unlike Redis, whose strings end there, a NUL byte is a byte like any other.
 */

const isBlank = (character: string): boolean => BLANKS.has(character);
/** What C's isspace knows. */
const BLANKS: ReadonlySet<string> = new Set([" ", "\t", "\n", "\v", "\f", "\r"]);
/** Within a word without quotes, only these end it. */
const SEPARATORS: ReadonlySet<string> = new Set([" ", "\t", "\n", "\r"]);

const ESCAPES: ReadonlyMap<string, string> = new Map([
  ["n", "\n"],
  ["r", "\r"],
  ["t", "\t"],
  ["b", "\b"],
  ["a", "\x07"],
]);

const HEX_ESCAPE = /^x[0-9a-fA-F]{2}$/;

/** The words of one line without its line end. null: a quote is not closed, or something touches a closing one. */
export function splitInline(line: ByteString): ByteString[] | null {
  const words: ByteString[] = [];
  let at = 0;
  for (;;) {
    while (at < line.length && isBlank(line.charAt(at))) at++;
    if (at === line.length) return words;
    const word = readWord(line, at);
    if (word === null) return null;
    words.push(word.text);
    at = word.end;
  }
}

interface Word {
  readonly text: ByteString;
  /** Where the line goes on behind it. */
  readonly end: number;
}

function readWord(line: ByteString, start: number): Word | null {
  let text = "";
  let at = start;
  while (at < line.length && !SEPARATORS.has(line.charAt(at))) {
    const character = line.charAt(at);
    if (character !== '"' && character !== "'") {
      text += character;
      at++;
      continue;
    }
    const quoted = character === '"' ? readDoubleQuoted(line, at + 1) : readSingleQuoted(line, at + 1);
    if (quoted === null) return null;
    if (quoted.end < line.length && !isBlank(line.charAt(quoted.end))) return null;
    // Behind a closing quote the word is over, as in Redis, also where \v or \f follows.
    return { text: text + quoted.text, end: quoted.end };
  }
  return { text, end: at };
}

/** Both read from behind the opening quote to behind the closing one. */
function readDoubleQuoted(line: ByteString, start: number): Word | null {
  let text = "";
  let at = start;
  while (at < line.length) {
    const character = line.charAt(at);
    if (character === '"') return { text, end: at + 1 };
    if (character !== "\\" || at + 1 === line.length) {
      text += character;
      at++;
    } else if (HEX_ESCAPE.test(line.slice(at + 1, at + 4))) {
      text += String.fromCharCode(Number.parseInt(line.slice(at + 2, at + 4), 16));
      at += 4;
    } else {
      const escaped = line.charAt(at + 1);
      text += ESCAPES.get(escaped) ?? escaped;
      at += 2;
    }
  }
  return null;
}

function readSingleQuoted(line: ByteString, start: number): Word | null {
  let text = "";
  let at = start;
  while (at < line.length) {
    const character = line.charAt(at);
    if (character === "'") return { text, end: at + 1 };
    if (character === "\\" && line.charAt(at + 1) === "'") {
      text += "'";
      at += 2;
    } else {
      text += character;
      at++;
    }
  }
  return null;
}
