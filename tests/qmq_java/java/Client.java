import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Date;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import qunar.tc.qmq.Message;
import qunar.tc.qmq.MessageSendStateListener;
import qunar.tc.qmq.NeedRetryException;
import qunar.tc.qmq.consumer.MessageConsumerProvider;
import qunar.tc.qmq.producer.MessageProducerProvider;

/**
 * A process that uses QMQ's client as it is. It is told what to do by lines on standard input, and
 * says what happens by lines on standard output that begin with "> ".
 *
 *   send SUBJECT DELAY_MS KEY RETRIES   > made KEY ID, then > sent ID or > failed ID. RETRIES is
 *                                       how often it is to be retried; -1 for QMQ's default
 *   listen SUBJECT GROUP HOW            > got SUBJECT GROUP ID KEY TIMES AT_MS for each message. HOW
 *                                       is "ok", "throw", or "later:MS": the first time it is to
 *                                       come again so much later
 */
public final class Client {
    private static synchronized void say(String... words) {
        System.out.println("> " + String.join(" ", words));
        System.out.flush();
    }

    public static void main(String[] arguments) throws Exception {
        String metaServer = arguments[0];
        String application = arguments[1];
        MessageProducerProvider producer = null;
        MessageConsumerProvider consumer = null;
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        say("ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "send":
                    if (producer == null) {
                        producer = new MessageProducerProvider();
                        producer.setAppCode(application);
                        producer.setMetaServer(metaServer);
                        producer.init();
                    }
                    send(producer, words[1], Long.parseLong(words[2]), words[3], Integer.parseInt(words[4]));
                    break;
                case "listen":
                    if (consumer == null) {
                        consumer = new MessageConsumerProvider();
                        consumer.setAppCode(application);
                        consumer.setMetaServer(metaServer);
                        consumer.init();
                    }
                    listen(consumer, threads, words[1], words[2], words[3]);
                    break;
                default:
                    throw new IllegalArgumentException(line);
            }
            say("done", words[0]);
        }
        System.exit(0);
    }

    private static void send(MessageProducerProvider producer, String subject, long delayMs, String key, int retries) {
        Message message = producer.generateMessage(subject);
        message.setProperty("key", key);
        if (delayMs > 0) {
            message.setDelayTime(delayMs, TimeUnit.MILLISECONDS);
        }
        if (retries >= 0) {
            message.setMaxRetryNum(retries);
        }
        say("made", key, message.getMessageId());
        producer.sendMessage(message, new MessageSendStateListener() {
            @Override
            public void onSuccess(Message sent) {
                say("sent", sent.getMessageId());
            }

            @Override
            public void onFailed(Message failed) {
                say("failed", failed.getMessageId());
            }
        });
    }

    private static void listen(
            MessageConsumerProvider consumer, ExecutorService threads, String subject, String group, String how) {
        consumer.addListener(subject, group, message -> {
            say("got", message.getSubject(), group, message.getMessageId(),
                    message.getStringProperty("key"), String.valueOf(message.times()),
                    String.valueOf(System.currentTimeMillis()));
            if (how.equals("throw")) {
                throw new IllegalStateException("on purpose");
            }
            if (how.startsWith("later:") && message.times() == 1) {
                long laterMs = Long.parseLong(how.substring("later:".length()));
                throw new NeedRetryException(new Date(System.currentTimeMillis() + laterMs), "on purpose");
            }
        }, threads);
    }
}
