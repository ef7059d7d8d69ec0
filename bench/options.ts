import { parseArgs } from "node:util";

import { DEFAULT_SCENARIO_NAMES, SCENARIO_NAMES, type ScenarioName } from "./report/results.js";

/** The command line of the benchmark. */

export const USAGE = `npm run bench -- [options]

  --quick             small sets, two short rounds: two minutes; to see that it works
  --only NAME[,NAME]  only these: ${SCENARIO_NAMES.join(", ")} (cluster: only when it is named)
  --rounds N          rounds of each comparison (default 3, up to 5 where they differ and time is left, 2 when it is not)
  --seconds S         length of one turn of one system (default 2)
  --dir DIR           data directories go here; choose the disk with it (default bench/results/tmp)
  --tmpfs DIR         a directory in memory (default /dev/shm)
  --out DIR           where the report goes (default bench/results/<date>)
  --server FILE       another build's dist/main.js to measure
  --node-flags TEXT   flags for the measured server's Node, e.g. "--cpu-prof --cpu-prof-dir=prof"
  --minutes-max M     end after this long, with a report of what was measured by then (default 24)
  --render FILE       no run: make tables and plots again from a results.json
  --readme            put the aims reached into bench/README.md
  --help
`;

export interface CommandLine {
  readonly quick: boolean;
  readonly only: readonly ScenarioName[];
  readonly rounds: number;
  /** More than `rounds`: the pace may choose. */
  readonly roundsMax: number;
  readonly roundMs: number;
  readonly directory: string | null;
  readonly tmpfs: string;
  readonly out: string | null;
  readonly server: string | null;
  readonly nodeFlags: readonly string[];
  readonly minutesMax: number;
  readonly render: string | null;
  readonly readme: boolean;
  readonly help: boolean;
}

const ROUNDS = 3;
const ROUNDS_MAX = 5;

/** Throws with a text for the user when the arguments make no sense. */
export function parseCommandLine(argv: readonly string[]): CommandLine {
  const { values } = parseArgs({
    args: [...argv],
    options: {
      quick: { type: "boolean", default: false },
      only: { type: "string" },
      rounds: { type: "string" },
      seconds: { type: "string" },
      dir: { type: "string" },
      tmpfs: { type: "string", default: "/dev/shm" },
      out: { type: "string" },
      server: { type: "string" },
      "node-flags": { type: "string", default: "" },
      "minutes-max": { type: "string", default: "24" },
      render: { type: "string" },
      readme: { type: "boolean", default: false },
      help: { type: "boolean", default: false },
    },
  });
  const rounds = Math.ceil(positive("--rounds", values.rounds ?? (values.quick ? "2" : `${ROUNDS}`)));
  return {
    quick: values.quick,
    only: values.only === undefined ? DEFAULT_SCENARIO_NAMES : values.only.split(",").map(scenarioName),
    rounds,
    roundsMax: values.rounds === undefined && !values.quick ? ROUNDS_MAX : rounds,
    roundMs: positive("--seconds", values.seconds ?? (values.quick ? "1" : "2")) * 1000,
    directory: values.dir ?? null,
    tmpfs: values.tmpfs,
    out: values.out ?? null,
    server: values.server ?? null,
    nodeFlags: values["node-flags"].split(" ").filter((flag) => flag !== ""),
    minutesMax: positive("--minutes-max", values["minutes-max"]),
    render: values.render ?? null,
    readme: values.readme,
    help: values.help,
  };
}

function positive(name: string, text: string): number {
  const value = Number(text);
  if (!(value > 0 && Number.isFinite(value))) throw new Error(`${name} needs a positive number, not ${text}`);
  return value;
}

function scenarioName(text: string): ScenarioName {
  const found = SCENARIO_NAMES.find((name) => name === text);
  if (found === undefined) throw new Error(`--only knows ${SCENARIO_NAMES.join(", ")}; not ${text}`);
  return found;
}
