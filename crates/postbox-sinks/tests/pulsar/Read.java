import java.util.Base64;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;

/** Prints all messages of a topic by Pulsar's own client: url, token or "-", topic. A line each, its texts in Base64. */
public class Read {
    static String text(byte[] bytes) {
        return Base64.getEncoder().encodeToString(bytes);
    }

    static String text(String text) throws Exception {
        return text(text.getBytes("UTF-8"));
    }

    public static void main(String[] args) throws Exception {
        var builder = PulsarClient.builder().serviceUrl(args[0]).operationTimeout(20, TimeUnit.SECONDS);
        if (!args[1].equals("-")) {
            builder.authentication(AuthenticationFactory.token(args[1]));
        }
        try (PulsarClient client = builder.build();
                Reader<byte[]> reader =
                        client.newReader().topic(args[2]).startMessageId(MessageId.earliest).create()) {
            var out = new StringBuilder();
            while (reader.hasMessageAvailable()) {
                Message<byte[]> message = reader.readNext(20, TimeUnit.SECONDS);
                // What the log says between is not meant.
                out.append("> ").append(text(message.getTopicName())).append(' ').append(message.getEventTime()).append(' ');
                out.append(message.hasKey() ? text(message.getKey()) : "-").append(' ');
                out.append('.').append(text(message.getData()));
                for (Map.Entry<String, String> property : message.getProperties().entrySet()) {
                    out.append(' ').append(text(property.getKey())).append(":").append(text(property.getValue()));
                }
                out.append('\n');
            }
            System.out.print(out);
        }
        // Some of the client's threads would stay for a while.
        System.exit(0);
    }
}
