// graphile-worker, by the protocol of ../README.md.
import { setTimeout as sleep } from "node:timers/promises";
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";

const BULK = 1000;
const [what, count] = [process.argv[2], Number(process.argv[3])];
const connectionString = process.env.POSTBOX_BENCH_PG_URL;
// A line of log for each job would be what is measured.
const logger = new Logger(() => () => {});

const payload = (n) => ({ n, text: n.toString(16).padStart(32, "0").repeat(8) });
const seconds = (since) => (performance.now() - since) / 1000;

async function fill() {
  const utils = await makeWorkerUtils({ connectionString, logger });
  await utils.migrate();
  const payloads = Array.from({ length: count }, (_, i) => payload(i + 1));
  const started = performance.now();
  for (let at = 0; at < count; at += BULK) {
    await utils.addJobs(payloads.slice(at, at + BULK).map((payload) => ({ identifier: "bench", payload })));
  }
  const took = seconds(started);
  await utils.release();
  return took;
}

async function drain() {
  const watch = new pg.Client({ connectionString });
  await watch.connect();
  let [handled, started, done] = [0, undefined, undefined];
  const all = new Promise((resolve) => (done = resolve));
  const bench = async () => {
    started ??= performance.now();
    if (++handled === count) done();
  };
  const runner = await run({
    preset: {
      worker: {
        connectionString,
        maxPoolSize: 20,
        concurrentJobs: 500,
        localQueue: { size: 5000 },
        completeJobBatchDelay: 5,
      },
    },
    logger,
    noHandleSignals: true,
    taskList: { bench },
  });
  await all;
  // Completed jobs are deleted.
  while ((await watch.query("SELECT 1 FROM graphile_worker._private_jobs LIMIT 1")).rowCount > 0) await sleep(2);
  const took = seconds(started);
  await runner.stop();
  await watch.end();
  return took;
}

console.log(JSON.stringify({ seconds: await (what === "fill" ? fill() : drain()) }));
process.exit(0);
