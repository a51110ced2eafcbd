import io.netty.buffer.ByteBuf;
import io.netty.channel.ChannelHandlerContext;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.zip.CRC32;
import qunar.tc.qmq.broker.BrokerClusterInfo;
import qunar.tc.qmq.broker.BrokerGroupInfo;
import qunar.tc.qmq.broker.impl.BrokerServiceImpl;
import qunar.tc.qmq.common.ClientType;
import qunar.tc.qmq.configuration.BrokerConfig;
import qunar.tc.qmq.meta.BrokerRegisterService;
import qunar.tc.qmq.meta.BrokerRole;
import qunar.tc.qmq.meta.MetaServerLocator;
import qunar.tc.qmq.metainfoclient.MetaInfoService;
import qunar.tc.qmq.netty.DefaultConnectionEventHandler;
import qunar.tc.qmq.netty.NettyRequestProcessor;
import qunar.tc.qmq.netty.NettyServer;
import qunar.tc.qmq.netty.client.NettyClient;
import qunar.tc.qmq.protocol.CommandCode;
import qunar.tc.qmq.protocol.Datagram;
import qunar.tc.qmq.protocol.RemotingCommand;
import qunar.tc.qmq.protocol.consumer.PullRequest;
import qunar.tc.qmq.protocol.consumer.PullRequestSerde;
import qunar.tc.qmq.util.RemotingBuilder;
import qunar.tc.qmq.utils.PayloadHolderUtils;

/**
 * A broker, or a delay server, on the libraries that QMQ's are made of: how it registers
 * (BrokerRegisterService), what it listens with (NettyServer), what asks for routes
 * (BrokerServiceImpl) and what sends (NettyClient) are QMQ's as they are. What becomes of messages
 * is written here and kept in memory, for QMQ has not published its own of it. Which of the two
 * it is the meta server says.
 *
 * It is told what to do by lines on standard input, and says what happens by lines on standard
 * output that begin with "> ".
 *
 *   online, offline          as at the start, and at the end, of QMQ's
 *   readonly, writable       what its check of the slave's lag says
 *
 *                            > role GROUP ROLE MASTER once it was told who it is
 *                            > took SUBJECT ID DUE_MS AT_MS for each message that comes
 *                            > acked SUBJECT GROUP FIRST LAST
 *                            > dispatched SUBJECT ID MASTER for each that a delay server hands on
 */
public final class Broker {
    private static final int PULL_LOOK_MS = 20;
    private static final int DISPATCH_RETRY_MS = 200;

    private final Map<String, List<byte[]>> queues = new ConcurrentHashMap<>();
    private final Map<String, Integer> pulled = new ConcurrentHashMap<>();
    private final ScheduledExecutorService timer = Executors.newScheduledThreadPool(2);
    private final ExecutorService senders = Executors.newCachedThreadPool();
    private BrokerServiceImpl routes;

    private static synchronized void say(String... words) {
        System.out.println("> " + String.join(" ", words));
        System.out.flush();
    }

    public static void main(String[] arguments) {
        try {
            new Broker().run(arguments[0], Integer.parseInt(arguments[1]));
        } catch (Exception error) {
            error.printStackTrace();
            // QMQ's threads would keep the process.
            System.exit(1);
        }
    }

    private void run(String metaServer, int port) throws Exception {
        BrokerRegisterService registration = new BrokerRegisterService(port, new MetaServerLocator(metaServer));
        registration.start();
        String master = BrokerConfig.getMasterAddress();
        say("role", BrokerConfig.getBrokerName(), BrokerConfig.getBrokerRole().name(),
                master == null || master.isEmpty() ? "-" : master);
        if (BrokerConfig.getBrokerRole() == BrokerRole.DELAY_MASTER) {
            // As its sender does it: without a client id and an application.
            MetaInfoService asking = new MetaInfoService();
            asking.setMetaServer(metaServer);
            asking.init();
            routes = new BrokerServiceImpl(asking);
        }
        NettyServer server = new NettyServer("broker", 2, port, new DefaultConnectionEventHandler("broker"));
        server.registerProcessor(CommandCode.SEND_MESSAGE, processor(this::take));
        server.registerProcessor(CommandCode.PULL_MESSAGE, processor(this::pull));
        server.registerProcessor(CommandCode.ACK_REQUEST, processor(this::acknowledge));
        server.start();
        say("ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            switch (line) {
                case "online":
                    BrokerConfig.markAsWritable();
                    registration.healthSwitch(true);
                    break;
                case "offline":
                    registration.healthSwitch(false);
                    break;
                case "readonly":
                    registration.markReadonly();
                    break;
                case "writable":
                    registration.unmarkReadonly();
                    break;
                default:
                    throw new IllegalArgumentException(line);
            }
            say("done", line);
        }
        System.exit(0);
    }

    private interface Handler {
        CompletableFuture<Datagram> handle(RemotingCommand command);
    }

    private static NettyRequestProcessor processor(Handler handler) {
        return new NettyRequestProcessor() {
            @Override
            public CompletableFuture<Datagram> processRequest(ChannelHandlerContext context, RemotingCommand command) {
                return handler.handle(command);
            }

            @Override
            public boolean rejectRequest() {
                return BrokerConfig.getBrokerRole() == BrokerRole.SLAVE;
            }
        };
    }

    /** One item of SEND_MESSAGE: its CRC, which is checked, and what the CRC covers. */
    private void take(ByteBuf body) {
        long crc = body.readLong();
        int start = body.readerIndex();
        byte flag = body.readByte();
        body.readLong();
        long time = body.readLong();
        String subject = PayloadHolderUtils.readString(body);
        String id = PayloadHolderUtils.readString(body);
        if ((flag & 4) != 0) {
            for (int count = body.readByte(); count > 0; count--) {
                PayloadHolderUtils.readString(body);
            }
        }
        body.skipBytes(body.readInt());
        byte[] covered = new byte[body.readerIndex() - start];
        body.getBytes(start, covered);
        CRC32 computed = new CRC32();
        computed.update(covered);
        if (computed.getValue() != crc) {
            throw new IllegalStateException("bad crc of " + id);
        }
        say("took", subject, id, String.valueOf(time), String.valueOf(System.currentTimeMillis()));
        if (routes == null) {
            List<byte[]> queue = queues.computeIfAbsent(subject, name -> new ArrayList<>());
            synchronized (queue) {
                queue.add(covered);
            }
        } else {
            long wait = Math.max(time - System.currentTimeMillis(), 0);
            timer.schedule(() -> senders.execute(() -> dispatch(subject, id, crc, covered)), wait, TimeUnit.MILLISECONDS);
        }
    }

    private CompletableFuture<Datagram> take(RemotingCommand command) {
        ByteBuf body = command.getBody();
        while (body.isReadable()) {
            take(body);
        }
        return CompletableFuture.completedFuture(
                RemotingBuilder.buildEmptyResponseDatagram(CommandCode.SUCCESS, command.getHeader()));
    }

    private void dispatch(String subject, String id, long crc, byte[] covered) {
        BrokerClusterInfo cluster = routes.getClusterBySubject(ClientType.PRODUCER, subject);
        for (BrokerGroupInfo group : cluster.getGroups()) {
            Datagram reply = null;
            try {
                Datagram request = RemotingBuilder.buildRequestDatagram(CommandCode.SEND_MESSAGE, out -> {
                    out.writeLong(crc);
                    out.writeBytes(covered);
                });
                reply = NettyClient.getClient().sendSync(group.getMaster(), request, 2000);
                if (reply.getHeader().getCode() == CommandCode.SUCCESS && !reply.getBody().isReadable()) {
                    say("dispatched", subject, id, group.getMaster());
                    return;
                }
            } catch (Exception error) {
                System.err.println("cannot send " + id + " to " + group.getMaster() + ": " + error);
            } finally {
                if (reply != null) {
                    reply.release();
                }
            }
        }
        timer.schedule(
                () -> senders.execute(() -> dispatch(subject, id, crc, covered)), DISPATCH_RETRY_MS, TimeUnit.MILLISECONDS);
    }

    private CompletableFuture<Datagram> pull(RemotingCommand command) {
        PullRequest request = new PullRequestSerde().read(command.getHeader().getVersion(), command.getBody());
        CompletableFuture<Datagram> answer = new CompletableFuture<>();
        long until = System.currentTimeMillis() + Math.max(request.getTimeoutMillis(), 0);
        pull(command, request, until, answer);
        return answer;
    }

    private void pull(RemotingCommand command, PullRequest request, long until, CompletableFuture<Datagram> answer) {
        List<byte[]> queue = queues.computeIfAbsent(request.getSubject(), name -> new ArrayList<>());
        String reader = request.getSubject() + " " + request.getGroup();
        synchronized (queue) {
            int first = pulled.getOrDefault(reader, 0);
            int end = Math.min(queue.size(), first + request.getRequestNum());
            if (first < end) {
                List<byte[]> messages = new ArrayList<>(queue.subList(first, end));
                pulled.put(reader, end);
                answer.complete(RemotingBuilder.buildResponseDatagram(CommandCode.SUCCESS, command.getHeader(), out -> {
                    out.writeLong(first);
                    out.writeLong(-1);
                    messages.forEach(out::writeBytes);
                }));
                return;
            }
        }
        if (System.currentTimeMillis() >= until) {
            answer.complete(RemotingBuilder.buildEmptyResponseDatagram(CommandCode.NO_MESSAGE, command.getHeader()));
        } else {
            timer.schedule(() -> pull(command, request, until, answer), PULL_LOOK_MS, TimeUnit.MILLISECONDS);
        }
    }

    private CompletableFuture<Datagram> acknowledge(RemotingCommand command) {
        ByteBuf body = command.getBody();
        String subject = PayloadHolderUtils.readString(body);
        String group = PayloadHolderUtils.readString(body);
        PayloadHolderUtils.readString(body);
        long first = body.readLong();
        long last = body.readLong();
        if (first >= 0) {
            say("acked", subject, group, String.valueOf(first), String.valueOf(last));
        }
        return CompletableFuture.completedFuture(
                RemotingBuilder.buildEmptyResponseDatagram(CommandCode.SUCCESS, command.getHeader()));
    }
}
