import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.Context;
import io.grpc.Deadline;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import millrace.v1.Inference.GenerateRequest;
import millrace.v1.Inference.GenerateResponse;
import millrace.v1.Inference.Resume;
import millrace.v1.Inference.Started;
import millrace.v1.InferenceServiceGrpc;

/**
 * The events of a generation of one continuation. If a server is lost, the next of the channels resumes the stream after the last token,
 * and no event comes twice. Closing it cancels the call. Not thread-safe.
 */
final class Failover implements Iterator<GenerateResponse>, AutoCloseable {
  private static final int MAX_RESPONSE_BYTES = 64 << 20; // of a server; gRPC's default is 4 MiB
  private static final Metadata.Key<byte[]> DETAILS = Metadata.Key.of("grpc-status-details-bin", Metadata.BINARY_BYTE_MARSHALLER);

  private final List<? extends Channel> channels;
  private final GenerateRequest.Builder request;
  private final Deadline deadline; // null: none
  private final List<Integer> ids = new ArrayList<>();
  private long textBytes;
  private Started started; // null: no event yet
  private int lost;
  private Context.CancellableContext call;
  private Iterator<GenerateResponse> events; // null: the next server must be called
  private GenerateResponse next;

  Failover(List<? extends Channel> channels, GenerateRequest request, Deadline deadline) {
    this.channels = channels;
    this.request = request.toBuilder();
    this.deadline = deadline;
  }

  /** A channel to a scheduler or worker: plaintext, or over TLS by files of PEM; cert and key may be null. */
  static ManagedChannel channel(String target, String ca, String cert, String key) throws IOException {
    ChannelCredentials credentials = InsecureChannelCredentials.create();
    if (ca != null) {
      TlsChannelCredentials.Builder tls = TlsChannelCredentials.newBuilder().trustManager(new File(ca));
      if (cert != null) {
        tls.keyManager(new File(cert), new File(key));
      }
      credentials = tls.build();
    }
    return Grpc.newChannelBuilder(target, credentials).maxInboundMessageSize(MAX_RESPONSE_BYTES).build();
  }

  @Override
  public boolean hasNext() {
    while (next == null) {
      try {
        if (events == null) {
          begin();
        }
        if (!events.hasNext()) {
          return false;
        }
        next = keep(events.next());
      } catch (StatusRuntimeException e) {
        if (!lostServer(e) || ++lost > 2 * channels.size()) {
          throw e;
        }
        close();
      }
    }
    return true;
  }

  @Override
  public GenerateResponse next() {
    if (!hasNext()) {
      throw new NoSuchElementException();
    }
    GenerateResponse event = next;
    next = null;
    return event;
  }

  @Override
  public void close() {
    if (call != null) {
      call.cancel(null);
    }
    events = null;
  }

  /**
   * Whether a call failed because its server is lost. A proxy that has forwarded a part of the answer resets the stream then, which is
   * INTERNAL in gRPC, without the details that errors of servers have.
   */
  private static boolean lostServer(StatusRuntimeException e) {
    boolean detailed = e.getTrailers() != null && e.getTrailers().containsKey(DETAILS);
    return e.getStatus().getCode() == Status.Code.UNAVAILABLE || (e.getStatus().getCode() == Status.Code.INTERNAL && !detailed);
  }

  /** Calls the next server, for the rest of the stream if a token came. */
  private void begin() {
    if (started != null) {
      request.getSamplingBuilder().setSeed(started.getSeed());
      request.setExpectModelDigest(started.getModelDigest()).setExpectPromptDigest(started.getPromptDigest());
      if (started.hasMaxTokens()) { // a server with another context must not change the length
        request.setContextLength(started.getPromptTokens() + started.getMaxTokens());
      }
      request.clearResume().addResume(Resume.newBuilder().setOutputIndex(0).addAllTokenIds(ids).setTextBytes(textBytes));
    }
    InferenceServiceGrpc.InferenceServiceBlockingStub stub = InferenceServiceGrpc.newBlockingStub(channels.get(lost % channels.size()));
    InferenceServiceGrpc.InferenceServiceBlockingStub bounded = deadline == null ? stub : stub.withDeadline(deadline);
    call = Context.current().withCancellation();
    Context before = call.attach();
    try {
      events = bounded.generate(request.build());
    } finally {
      call.detach(before);
    }
  }

  /** Stores what a resume needs. Returns null for an event that only repeats an earlier one. */
  private GenerateResponse keep(GenerateResponse event) {
    switch (event.getEventCase()) {
      case STARTED:
        if (started != null && !event.getStarted().hasExact()) {
          return null;
        }
        started = started == null ? event.getStarted() : started;
        break;
      case TOKENS:
        ids.addAll(event.getTokens().getTokenIdsList());
        textBytes += event.getTokens().getTextBytes().size();
        break;
      default:
        break;
    }
    return event;
  }
}
