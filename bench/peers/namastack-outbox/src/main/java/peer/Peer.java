package peer;

import io.namastack.outbox.Outbox;
import io.namastack.outbox.OutboxProcessingScheduler;
import io.namastack.outbox.handler.OutboxRecordMetadata;
import io.namastack.outbox.handler.OutboxTypedHandler;
import java.net.URI;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.IntStream;
import org.springframework.boot.Banner;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.support.TransactionTemplate;

/**
 * namastack-outbox, by the protocol of ../README.md, with the settings for platform threads of its chapter on performance, and ten
 * records of a key, as its own benchmark has them.
 */
@SpringBootConfiguration
@EnableAutoConfiguration
public class Peer {
  private static final int BULK = 1000;
  private static final int PER_KEY = 10;

  private static final Map<String, String> DRAIN =
      Map.of(
          "namastack.outbox.polling.batch-size", "1000",
          "namastack.outbox.polling.fixed.interval", "25ms",
          "namastack.outbox.processing.executor-core-pool-size", "32",
          "namastack.outbox.processing.executor-max-pool-size", "32",
          "spring.datasource.hikari.maximum-pool-size", "40");

  public record Payload(int n, String text) {}

  private static final AtomicLong handled = new AtomicLong();
  private static final AtomicLong started = new AtomicLong();

  @Bean
  OutboxTypedHandler<Payload> handler() {
    return new Handler();
  }

  static class Handler implements OutboxTypedHandler<Payload> {
    @Override
    public void handle(Payload payload, OutboxRecordMetadata metadata) {
      if (started.get() == 0) started.compareAndSet(0, System.nanoTime());
      handled.incrementAndGet();
    }
  }

  public static void main(String[] args) throws Exception {
    int count = Integer.parseInt(args[1]);
    double seconds = args[0].equals("fill") ? fill(count) : drain(count);
    System.out.println("{\"seconds\": " + seconds + "}");
    // Without waiting for the threads that look for more.
    System.exit(0);
  }

  private static double fill(int count) {
    // Closed in the end, so that its partitions are free for the next process.
    try (var context = start(Map.of())) {
      // What is written now is for that one.
      context.getBean(OutboxProcessingScheduler.class).stop();
      var outbox = context.getBean(Outbox.class);
      var transaction = new TransactionTemplate(context.getBean(PlatformTransactionManager.class));
      var payloads =
          IntStream.rangeClosed(1, count)
              .mapToObj(n -> new Payload(n, String.format("%032x", n).repeat(8)))
              .toList();
      long start = System.nanoTime();
      for (int at = 0; at < count; at += BULK) {
        var some = payloads.subList(at, Math.min(at + BULK, count));
        transaction.executeWithoutResult(
            status -> some.forEach(payload -> outbox.schedule(payload, "k" + payload.n() / PER_KEY)));
      }
      return since(start);
    }
  }

  private static double drain(int count) throws InterruptedException {
    var database = start(DRAIN).getBean(JdbcTemplate.class);
    while (handled.get() < count) Thread.sleep(2);
    while (left(database)) Thread.sleep(2);
    return since(started.get());
  }

  private static ConfigurableApplicationContext start(Map<String, String> settings) {
    var url = URI.create(System.getenv("POSTBOX_BENCH_PG_URL"));
    var user = url.getUserInfo().split(":", 2);
    var all = new HashMap<String, Object>(settings);
    all.put("spring.datasource.url", "jdbc:postgresql://" + url.getHost() + ":" + url.getPort() + url.getPath());
    all.put("spring.datasource.username", user[0]);
    all.put("spring.datasource.password", user.length > 1 ? user[1] : "");
    all.put("logging.level.root", "error");
    return new SpringApplicationBuilder(Peer.class)
        .bannerMode(Banner.Mode.OFF)
        .web(WebApplicationType.NONE)
        .properties(all)
        .run();
  }

  /** Records that are completed stay. */
  private static boolean left(JdbcTemplate database) {
    return !database.queryForList("SELECT 1 FROM outbox_record WHERE status <> 'COMPLETED' LIMIT 1").isEmpty();
  }

  private static double since(long start) {
    return (System.nanoTime() - start) / 1e9;
  }
}
