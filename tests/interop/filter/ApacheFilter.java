import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;

/**
 * Apache's own SQL92 filter as a judge. Each line of the input is an expression and the names and values of a message's
 * properties, all in base64 with tabs between them; each line of the output is "refused", "true" or "false".
 */
public class ApacheFilter {
    public static void main(String[] arguments) throws Exception {
        var input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] parts = line.split("\t");
            Map<String, String> properties = new HashMap<>();
            for (int at = 1; at + 1 < parts.length; at += 2) {
                properties.put(text(parts[at]), text(parts[at + 1]));
            }
            System.out.println(judge(text(parts[0]), properties));
        }
    }

    private static String judge(String expression, Map<String, String> properties) {
        Expression compiled;
        try {
            compiled = FilterFactory.INSTANCE.get("SQL92").compile(expression);
        } catch (Exception refused) {
            return "refused";
        }
        try {
            // The broker delivers a message only if the filter is true; an error counts as false.
            return String.valueOf(Boolean.TRUE.equals(compiled.evaluate(new MessageEvaluationContext(properties))));
        } catch (Throwable failed) {
            return "false";
        }
    }

    private static String text(String base64) {
        return new String(Base64.getDecoder().decode(base64), StandardCharsets.UTF_8);
    }
}
