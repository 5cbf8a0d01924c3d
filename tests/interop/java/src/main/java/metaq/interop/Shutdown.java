package metaq.interop;

/**
 * Shortens the shutdown of clients while it is open: a client that stops waits for its thread NettyEventExecutor, which
 * looks only every three seconds whether it is to end. An interrupt makes it look at once and does no other harm.
 */
final class Shutdown implements AutoCloseable {
    private static final int LOOK_MS = 20;
    private static final String WAITED_FOR = "NettyEventExecutor";

    private final Thread stopping;
    private final Thread watcher = new Thread(this::watch, "Shutdown");
    private volatile boolean closed;

    Shutdown(Thread stopping) {
        this.stopping = stopping;
        watcher.setDaemon(true);
        watcher.start();
    }

    private void watch() {
        while (!closed) {
            try {
                Thread.sleep(LOOK_MS);
            } catch (InterruptedException unexpected) {
                return;
            }
            if (isWaiting()) {
                interruptAll();
            }
        }
    }

    private boolean isWaiting() {
        for (StackTraceElement frame : stopping.getStackTrace()) {
            if (frame.getClassName().endsWith(".ServiceThread") && frame.getMethodName().equals("shutdown")) {
                return true;
            }
        }
        return false;
    }

    private static void interruptAll() {
        ThreadGroup group = Thread.currentThread().getThreadGroup();
        while (group.getParent() != null) {
            group = group.getParent();
        }
        Thread[] threads = new Thread[2 * group.activeCount()];
        int count = group.enumerate(threads);
        for (int number = 0; number < count; number++) {
            if (threads[number].getName().equals(WAITED_FOR)) {
                threads[number].interrupt();
            }
        }
    }

    @Override
    public void close() {
        closed = true;
    }
}
