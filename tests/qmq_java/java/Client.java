import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Date;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import qunar.tc.qmq.Message;
import qunar.tc.qmq.MessageSendStateListener;
import qunar.tc.qmq.NeedRetryException;
import qunar.tc.qmq.consumer.MessageConsumerProvider;
import qunar.tc.qmq.producer.MessageProducerProvider;

/**
 * A process that uses QMQ's client as it is. It is told what to do by lines on standard input, and
 * says what happens by lines on standard output that begin with "> ".
 *
 *   send SUBJECT DELAY_MS KEY RETRIES   > made KEY ID, then > sent ID TOOK_MS AT_MS or > failed
 *                                       with the same words. RETRIES is how often consumers may
 *                                       retry it; -1 for QMQ's default
 *   stream SUBJECT DELAY_MS RATE HOW TRIES   sends so many a second in a thread of its own, and says
 *                                       as well > threw ID CLASS for each call that throws. HOW is
 *                                       "async" or "sync" (setSyncSend); TRIES is setSendTryCount
 *   end-stream                          ends that; "done" once its last call has returned
 *   listen SUBJECT GROUP HOW            > got SUBJECT GROUP ID KEY TIMES AT_MS for each message. HOW
 *                                       is "ok", "throw", or "later:MS": the first time it is to
 *                                       come again so much later
 */
public final class Client {
    private static volatile boolean ended;

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
        Thread stream = null;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        say("ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "send":
                    if (producer == null) {
                        producer = new MessageProducerProvider();
                        init(producer, application, metaServer);
                    }
                    send(producer, words[1], Long.parseLong(words[2]), words[3], Integer.parseInt(words[4]));
                    break;
                case "stream":
                    // It writes a stack trace for each try of a dead node, thousands a second.
                    System.setProperty("org.slf4j.simpleLogger.log.qunar.tc.qmq.producer", "error");
                    MessageProducerProvider streaming = new MessageProducerProvider();
                    streaming.setSyncSend(words[4].equals("sync"));
                    streaming.setSendTryCount(Integer.parseInt(words[5]));
                    init(streaming, application, metaServer);
                    stream = new Thread(() ->
                            stream(streaming, words[1], Long.parseLong(words[2]), Long.parseLong(words[3])));
                    stream.start();
                    break;
                case "end-stream":
                    ended = true;
                    stream.join();
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

    private static void init(MessageProducerProvider producer, String application, String metaServer) {
        producer.setAppCode(application);
        producer.setMetaServer(metaServer);
        producer.init();
    }

    private static void stream(MessageProducerProvider producer, String subject, long delayMs, long rate) {
        long stepNs = 1_000_000_000L / rate;
        long nextNs = System.nanoTime();
        for (long number = 0; !ended; number++) {
            send(producer, subject, delayMs, String.valueOf(number), -1);
            // What it is late by, since a call took long, is not made up for.
            nextNs = Math.max(nextNs + stepNs, System.nanoTime());
            LockSupport.parkNanos(nextNs - System.nanoTime());
        }
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
        String id = message.getMessageId();
        say("made", key, id);
        long beganNs = System.nanoTime();
        try {
            producer.sendMessage(message, new MessageSendStateListener() {
                @Override
                public void onSuccess(Message sent) {
                    sayOutcome("sent", id, beganNs);
                }

                @Override
                public void onFailed(Message failed) {
                    sayOutcome("failed", id, beganNs);
                }
            });
        } catch (RuntimeException error) {
            say("threw", id, error.getClass().getName());
        }
    }

    private static void sayOutcome(String outcome, String id, long beganNs) {
        long tookMs = (System.nanoTime() - beganNs) / 1_000_000;
        say(outcome, id, String.valueOf(tookMs), String.valueOf(System.currentTimeMillis()));
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
