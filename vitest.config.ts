import { defineConfig } from "vitest/config";

// Tests run against dist/ (built first by `npm test`): what is tested is what is shipped, worker threads included.
export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    pool: "forks",
    maxWorkers: 2,
    testTimeout: 60_000,
    hookTimeout: 60_000,
    server: { deps: { external: [/\/dist\//] } },
  },
});
