package peer;

import com.gruelbox.transactionoutbox.DefaultPersistor;
import com.gruelbox.transactionoutbox.Dialect;
import com.gruelbox.transactionoutbox.Instantiator;
import com.gruelbox.transactionoutbox.Submitter;
import com.gruelbox.transactionoutbox.TransactionManager;
import com.gruelbox.transactionoutbox.TransactionOutbox;
import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.net.URI;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.IntStream;

/** transaction-outbox, by the protocol of ../README.md. A job is a call of a method, made later. */
public final class Peer {
  private static final int BULK = 1000;
  private static final int BATCH = 1000;
  private static final int WORKERS = 32;
  /** As that of its own executor. */
  private static final int QUEUE = 16384;

  public interface Bench {
    void handle(int n, String text);
  }

  private record Payload(int n, String text) {}

  private static final AtomicLong handled = new AtomicLong();
  private static final AtomicLong started = new AtomicLong();

  public static void main(String[] args) throws Exception {
    int count = Integer.parseInt(args[1]);
    double seconds = args[0].equals("fill") ? fill(count) : drain(count);
    System.out.println("{\"seconds\": " + seconds + "}");
    // Without waiting for the threads that look for more.
    System.exit(0);
  }

  private static double fill(int count) throws SQLException {
    // One writes; while the schema is made, newer versions want another.
    try (var pool = pool(2)) {
      var transactions = TransactionManager.fromDataSource(pool);
      // Nobody handles them right after the commit, as it would otherwise; a second later they are due.
      var outbox =
          builder(transactions)
              .submitter((entry, run) -> {})
              .attemptFrequency(Duration.ofSeconds(1))
              .build();
      var payloads =
          IntStream.rangeClosed(1, count)
              .mapToObj(n -> new Payload(n, String.format("%032x", n).repeat(8)))
              .toList();
      long start = System.nanoTime();
      for (int at = 0; at < count; at += BULK) {
        var some = payloads.subList(at, Math.min(at + BULK, count));
        transactions.inTransaction(
            () -> {
              var bench = outbox.schedule(Bench.class);
              some.forEach(payload -> bench.handle(payload.n(), payload.text()));
            });
      }
      return since(start);
    }
  }

  private static double drain(int count) throws Exception {
    // One for each worker, for flush, and to watch.
    var pool = pool(WORKERS + 2);
    var outbox =
        builder(TransactionManager.fromDataSource(pool))
            .submitter(Submitter.withExecutor(workers()))
            .instantiator(Instantiator.using(name -> (Bench) Peer::handle))
            .flushBatchSize(BATCH)
            .build();
    new Thread(() -> flush(outbox)).start();
    try (var watch = pool.getConnection()) {
      while (handled.get() < count) Thread.sleep(2);
      while (left(watch)) Thread.sleep(2);
    }
    return since(started.get());
  }

  private static void flush(TransactionOutbox outbox) {
    try {
      while (true) {
        if (!outbox.flush()) Thread.sleep(2);
      }
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  private static void handle(int n, String text) {
    if (started.get() == 0) started.compareAndSet(0, System.nanoTime());
    handled.incrementAndGet();
  }

  /** Who submits to a full queue waits: a job that is turned away is due again after minutes. */
  private static ThreadPoolExecutor workers() {
    return new ThreadPoolExecutor(
        WORKERS,
        WORKERS,
        0,
        TimeUnit.SECONDS,
        new ArrayBlockingQueue<>(QUEUE),
        (task, workers) -> {
          try {
            workers.getQueue().put(task);
          } catch (InterruptedException interrupted) {
            throw new RejectedExecutionException(interrupted);
          }
        });
  }

  private static TransactionOutbox.TransactionOutboxBuilder builder(TransactionManager transactions) {
    // No time limit, which costs a timer for each job: on PostgreSQL it never waits for a lock.
    var persistor = DefaultPersistor.builder().dialect(Dialect.POSTGRESQL_9).writeLockTimeoutSeconds(0);
    return TransactionOutbox.builder()
        .transactionManager(transactions)
        .persistor(persistor.build())
        .serializeMdc(false);
  }

  /** Jobs that are done are deleted. */
  private static boolean left(Connection connection) throws SQLException {
    try (var statement = connection.createStatement();
        var rows = statement.executeQuery("SELECT 1 FROM txno_outbox LIMIT 1")) {
      boolean some = rows.next();
      connection.commit();
      return some;
    }
  }

  private static HikariDataSource pool(int connections) {
    var url = URI.create(System.getenv("POSTBOX_BENCH_PG_URL"));
    var user = url.getUserInfo().split(":", 2);
    var config = new HikariConfig();
    config.setJdbcUrl("jdbc:postgresql://" + url.getHost() + ":" + url.getPort() + url.getPath());
    config.setUsername(user[0]);
    config.setPassword(user.length > 1 ? user[1] : "");
    config.addDataSourceProperty("reWriteBatchedInserts", "true");
    config.setMaximumPoolSize(connections);
    config.setAutoCommit(false);
    return new HikariDataSource(config);
  }

  private static double since(long start) {
    return (System.nanoTime() - start) / 1e9;
  }
}
