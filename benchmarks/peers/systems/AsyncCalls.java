import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Collections;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.datastream.AsyncDataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.async.ResultFuture;
import org.apache.flink.streaming.api.functions.async.RichAsyncFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;

/** Reads "rows milliseconds capacity" from each line, runs that job, and writes "count total squares" of its outputs. */
public class AsyncCalls {
  static final ScheduledExecutorService TIMER = Executors.newScheduledThreadPool(1);
  static final LongAdder COUNT = new LongAdder();
  static final LongAdder TOTAL = new LongAdder();
  static final LongAdder SQUARES = new LongAdder();

  public static class Call extends RichAsyncFunction<Long, Long> {
    final long milliseconds;

    Call(long milliseconds) {
      this.milliseconds = milliseconds;
    }

    @Override
    public void asyncInvoke(Long row, ResultFuture<Long> result) {
      TIMER.schedule(() -> result.complete(Collections.singleton(2 * row + 1)), milliseconds, TimeUnit.MILLISECONDS);
    }
  }

  public static class Add implements MapFunction<Long, Long> {
    @Override
    public Long map(Long output) {
      COUNT.increment();
      TOTAL.add(output);
      SQUARES.add(output * output);
      return output;
    }
  }

  static void run(long rows, long milliseconds, int capacity) throws Exception {
    StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(1, new Configuration());
    environment.getConfig().enableObjectReuse();
    AsyncDataStream.unorderedWait(
            environment.fromSequence(0, rows - 1), new Call(milliseconds), 60, TimeUnit.SECONDS, capacity)
        .map(new Add())
        .sinkTo(new DiscardingSink<>());
    environment.execute();
  }

  public static void main(String[] arguments) throws Exception {
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      String[] job = line.split(" ");
      run(Long.parseLong(job[0]), Long.parseLong(job[1]), Integer.parseInt(job[2]));
      System.out.println(
          COUNT.sumThenReset() + " " + TOTAL.sumThenReset() + " " + Long.toUnsignedString(SQUARES.sumThenReset()));
    }
    System.exit(0);
  }
}
