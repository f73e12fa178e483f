// Makes the vectors in this folder with the real Java client:
//
//   mvn dependency:copy-dependencies of org.apache.kafka:kafka-clients:4.3.1 into lib/
//   javac -cp 'lib/*' Vectors.java && java -cp 'lib/*:.' Vectors OUTPUT-FOLDER

import java.io.PrintWriter;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Random;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.Utils;

public class Vectors {
    static final HexFormat HEX = HexFormat.of();

    public static void main(String[] args) throws Exception {
        try (PrintWriter out = new PrintWriter(args[0] + "/errors.tsv", StandardCharsets.UTF_8)) {
            out.print("code\tname\tretriable\n");
            for (Errors e : Errors.values())
                out.print(e.code() + "\t" + e.name() + "\t" + (e.exception() instanceof RetriableException) + "\n");
        }
        try (PrintWriter out = new PrintWriter(args[0] + "/murmur2.tsv", StandardCharsets.UTF_8)) {
            out.print("key\tmurmur2\tof1\tof2\tof3\tof8\tof50\tof1009\n");
            for (String key : new String[] {"", "a", "ab", "abc", "abcd", "abcde", "order-1", "order-2",
                    "4f2c1b1e-7d1b-4a52-9a55-1f8f8bd3d0a1", "customer 42", "\u0000", "\u00e9", "z\u00fcrich", "\u6771\u4eac",
                    "\u041c\u043e\u0441\u043a\u0432\u0430", "\ud83d\ude80", "a\u0301", "x".repeat(300)})
                key(out, key.getBytes(StandardCharsets.UTF_8));
            Random random = new Random(1);
            for (int length = 1; length <= 40; length++) {
                byte[] key = new byte[length];
                random.nextBytes(key);
                key(out, key);
            }
        }
        try (PrintWriter out = new PrintWriter(args[0] + "/recordbatch.tsv", StandardCharsets.UTF_8)) {
            out.print("name\tbatch\n");
            batch(out, "one", 7, (short) 0, 0, r(1700000000000L, "k", "v"));
            batch(out, "no key", 7, (short) 0, 0, r(1700000000000L, null, "v"));
            batch(out, "empty key, empty value", 7, (short) 0, 0, r(1700000000000L, "", ""));
            batch(out, "tombstone", 7, (short) 0, 0, r(1700000000000L, "k", null));
            batch(out, "headers", 123456789012L, (short) 3, 2147483647,
                r(1700000000000L, "order-1", "{\"a\":1}", "event-id", "e1", "null", null, "empty", "", "z\u00fcrich", "\u6771\u4eac"));
            Rec[] many = new Rec[200];
            for (int i = 0; i < many.length; i++)
                many[i] = r(1700000000000L + (i % 2 == 0 ? i : -1000 * i), "key-" + i, "v".repeat(i), "event-id", "" + i);
            batch(out, "many", 42, (short) 1, 1000, many);
        }
    }

    static void key(PrintWriter out, byte[] key) {
        out.print(HEX.formatHex(key) + "\t" + Utils.toPositive(Utils.murmur2(key)));
        for (int n : new int[] {1, 2, 3, 8, 50, 1009})
            out.print("\t" + BuiltInPartitioner.partitionForKey(key, n));
        out.print("\n");
    }

    record Rec(long time, byte[] key, byte[] value, Header[] headers) {}

    static Rec r(long time, String key, String value, String... headers) {
        Header[] h = new Header[headers.length / 2];
        for (int i = 0; i < h.length; i++)
            h[i] = new RecordHeader(headers[2 * i], bytes(headers[2 * i + 1]));
        return new Rec(time, bytes(key), bytes(value), h);
    }

    static byte[] bytes(String s) {
        return s == null ? null : s.getBytes(StandardCharsets.UTF_8);
    }

    static void batch(PrintWriter out, String name, long id, short epoch, int sequence, Rec... records) {
        MemoryRecordsBuilder builder = new MemoryRecordsBuilder(ByteBuffer.allocate(1 << 20), RecordBatch.MAGIC_VALUE_V2,
            Compression.NONE, TimestampType.CREATE_TIME, 0, RecordBatch.NO_TIMESTAMP, id, epoch, sequence, false, false,
            RecordBatch.NO_PARTITION_LEADER_EPOCH, 1 << 20);
        for (Rec r : records)
            builder.append(r.time, r.key, r.value, r.headers);
        MemoryRecords built = builder.build();
        ByteBuffer buffer = built.buffer().duplicate();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        out.print(name + "\t" + HEX.formatHex(bytes) + "\n");
    }
}
