import io.grpc.Deadline;
import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import millrace.v1.Inference.GenerateRequest;
import millrace.v1.Inference.GenerateResponse;
import millrace.v1.Inference.Sampling;
import millrace.v1.Inference.Stopping;

/** Streams a story. Ctrl-C stops it, on the device too; if a server is lost, the next of --target continues. */
final class Story {
  private static final Set<String> FLAGS = Set.of(
      "target", "model", "max-tokens", "temperature", "seed", "timeout", "stop-after", "tls-ca", "tls-cert", "tls-key");

  public static void main(String[] args) throws IOException {
    Map<String, String> flags = new HashMap<>(Map.of("target", "localhost:7070", "model", "stories"));
    String prompt = "Once upon a time";
    for (int i = 0; i < args.length; i++) {
      if (!args[i].startsWith("--")) {
        prompt = args[i];
      } else if (FLAGS.contains(args[i].substring(2)) && i + 1 < args.length) {
        flags.put(args[i].substring(2), args[++i]);
      } else {
        System.err.println(args[i] + ": want --FLAG VALUE, one of " + FLAGS);
        System.exit(2);
      }
    }
    Sampling.Builder sampling = Sampling.newBuilder().setTopP(0.9f)
        .setTemperature(Float.parseFloat(flags.getOrDefault("temperature", "0.7")));
    if (flags.containsKey("seed")) {
      sampling.setSeed(Long.parseUnsignedLong(flags.get("seed")));
    }
    GenerateRequest request = GenerateRequest.newBuilder().setModel(flags.get("model")).setPrompt(prompt).setSampling(sampling)
        .setStopping(Stopping.newBuilder().setMaxTokens(Integer.parseInt(flags.getOrDefault("max-tokens", "200")))).build();
    Deadline deadline = flags.containsKey("timeout")
        ? Deadline.after((long) (Double.parseDouble(flags.get("timeout")) * 1000), TimeUnit.MILLISECONDS) : null;
    int stopAfter = Integer.parseInt(flags.getOrDefault("stop-after", "0")); // tokens; 0: never

    List<ManagedChannel> channels = new ArrayList<>();
    for (String target : flags.get("target").split(",")) {
      channels.add(Failover.channel(target, flags.get("tls-ca"), flags.get("tls-cert"), flags.get("tls-key")));
    }
    int code = 0;
    try (Failover events = new Failover(channels, request, deadline)) {
      PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
      for (int tokens = 0; (stopAfter == 0 || tokens < stopAfter) && events.hasNext(); ) {
        GenerateResponse event = events.next();
        if (event.hasTokens()) {
          out.print(event.getTokens().getText());
          out.flush();
          tokens += event.getTokens().getTokenIdsCount();
        } else if (event.hasFinished()) {
          System.err.println("\n" + event.getFinished().getUsage().getCompletionTokens() + " tokens");
        }
      }
    } catch (StatusRuntimeException e) {
      System.err.println("\n" + e.getStatus().getCode() + ": " + explain(e));
      code = 1;
    } finally {
      for (ManagedChannel channel : channels) {
        channel.shutdown(); // sends the cancellation of a call first
      }
    }
    for (ManagedChannel channel : channels) {
      try {
        channel.awaitTermination(5, TimeUnit.SECONDS);
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
      }
    }
    System.exit(code);
  }

  /** The status's text and its causes, because "io exception" alone does not say that a connection was refused. */
  private static String explain(StatusRuntimeException e) {
    StringBuilder text = new StringBuilder(String.valueOf(e.getStatus().getDescription()));
    for (Throwable cause = e.getStatus().getCause(); cause != null; cause = cause.getCause()) {
      if (cause.getMessage() != null && text.indexOf(cause.getMessage()) < 0) {
        text.append(": ").append(cause.getMessage());
      }
    }
    return text.toString();
  }
}
