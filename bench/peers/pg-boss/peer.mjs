// pg-boss, by the protocol of ../README.md.
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";
import { PgBoss } from "pg-boss";

const BULK = 1000;
const QUEUE = "bench";
const [what, count] = [process.argv[2], Number(process.argv[3])];
const connectionString = process.env.POSTBOX_BENCH_PG_URL;

const payload = (n) => ({ n, text: n.toString(16).padStart(32, "0").repeat(8) });
const seconds = (since) => (performance.now() - since) / 1000;

async function start() {
  // Without maintenance and schedules, which would take time of their own.
  const boss = new PgBoss({ connectionString, supervise: false, schedule: false });
  boss.on("error", (error) => console.error(error.message));
  await boss.start();
  return boss;
}

async function fill() {
  const boss = await start();
  // A table of its own: that is for large queues.
  await boss.createQueue(QUEUE, { partition: true });
  const payloads = Array.from({ length: count }, (_, i) => payload(i + 1));
  const started = performance.now();
  for (let at = 0; at < count; at += BULK) {
    await boss.insert(QUEUE, payloads.slice(at, at + BULK).map((data) => ({ data })));
  }
  return seconds(started);
}

async function drain() {
  const watch = new pg.Client({ connectionString });
  await watch.connect();
  const boss = await start();
  let [handled, started, done] = [0, undefined, undefined];
  const all = new Promise((resolve) => (done = resolve));
  const options = { batchSize: 1000, localConcurrency: 4, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 };
  await boss.work(QUEUE, options, async (jobs) => {
    started ??= performance.now();
    handled += jobs.length;
    if (handled >= count) done();
  });
  await all;
  // Completed jobs stay; what is left is not yet completed.
  const left = `SELECT 1 FROM pgboss.job WHERE name = '${QUEUE}' AND state < 'completed' LIMIT 1`;
  while ((await watch.query(left)).rowCount > 0) await sleep(2);
  return seconds(started);
}

console.log(JSON.stringify({ seconds: await (what === "fill" ? fill() : drain()) }));
process.exit(0);
