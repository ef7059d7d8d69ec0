/**
 * Runs the test file that redlock 4.2.0 ships in its package, as it is, against the server on the port given: one of its suites
 * (it has one per kind of client), named by the second argument. Prints what came of each case and hook as one line of JSON:
 * `[{ "title": ..., "error": null | message }]`.
 *
 * The file is written for mocha and throws from callbacks, where only a listener on the process sees it: hence a process per suite, and
 * a runner of its own, which also goes on after a hook that failed. Each suite has databases for itself, so that they can run side by side.
 */
import { assert } from "chai";
import { Redis } from "ioredis5";
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import vm from "node:vm";
import redis3 from "redis3";

const [portText, suiteWanted] = process.argv.slice(2);
const port = Number(portText);
const STEP_MS_MAX = 30_000;

/** Bluebird's `done()`, which the file uses, ends the process when a case fails in it. Here it fails the case. */
const exit = process.exit.bind(process);
let failStep = () => {};
process.exit = () => failStep(new Error("failed in done(); stderr has the reason"));

const requireHere = createRequire(import.meta.url);
const testFile = requireHere.resolve("redlock4/test.js");
const requireThere = createRequire(testFile);

let nextDatabase = 4;
const answers = {
  chai: { assert },
  redis: {
    createClient: (options) => redis3.createClient({ port, db: nextDatabase++, ...options }),
  },
  ioredis: class extends Redis {
    constructor(options) {
      super({ port, db: options?.db ?? nextDatabase++ });
    }
  },
};

const root = { title: "", before: [], after: [], children: [] };
let current = root;
const words = {
  require: (name) => answers[name] ?? requireThere(name),
  describe(title, define) {
    const outer = current;
    current = { title, before: [], after: [], children: [] };
    outer.children.push(current);
    define();
    current = outer;
  },
  it: (title, body) => current.children.push({ title, body }),
  before: (body) => current.before.push(body),
  after: (body) => current.after.push(body),
};

/** Runs a case or hook in mocha's two forms, with a callback or not. Resolves with its error, or null. */
function runStep(body) {
  return new Promise((resolve) => {
    const settle = (error) => {
      clearTimeout(timer);
      process.removeListener("uncaughtException", settle);
      failStep = () => {};
      resolve(error ?? null);
    };
    const timer = setTimeout(() => settle(new Error("did not end")), STEP_MS_MAX);
    process.on("uncaughtException", settle);
    failStep = settle;
    try {
      if (body.length > 0) body(settle);
      else Promise.resolve(body()).then(() => settle(null), settle);
    } catch (error) {
      settle(error);
    }
  });
}

const results = [];

async function record(title, body) {
  const error = await runStep(body);
  results.push({ title, error: error === null ? null : String(error.message ?? error) });
}

/** `prefix` is what the titles of its parents come to. */
async function runSuite({ before, children, after }, prefix) {
  for (const body of before) await record(`${prefix}before`, body);
  for (const child of children) {
    if (child.body === undefined) await runSuite(child, `${prefix}${child.title}: `);
    else await record(prefix + child.title, child.body);
  }
  for (const body of after) await record(`${prefix}after`, body);
}

vm.compileFunction(readFileSync(testFile, "utf8"), Object.keys(words), { filename: testFile })(...Object.values(words));
const suite = root.children.find((each) => each.title === suiteWanted);
if (suite === undefined)
  throw new Error(`no suite ${suiteWanted} among ${root.children.map((each) => each.title).join(", ")}`);
await runSuite(suite, "");
// the clients of the other suites are still connected
process.stdout.write(`${JSON.stringify(results)}\n`, () => exit(0));
