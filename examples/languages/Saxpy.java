// y = a * x + y from Java 22 or newer, by its foreign function interface: arenas for what C points to, and a handler that
// the library calls on a thread of its own. Give the path of the library: mpscffi.get_library().
import static java.lang.foreign.ValueLayout.*;

import java.lang.foreign.*;
import java.lang.invoke.*;
import java.nio.file.Path;
import java.util.concurrent.CompletableFuture;

public final class Saxpy {
  static final int METAL = 1, HOST = 2, BUFFER = 1, BYTES = 2, COMPLETED = 2, COUNT = 100003;
  static final long FOREVER = -1; // 2^64 - 1
  static final String SOURCE = """
      kernel void saxpy(device float *y, device const float *x, constant float &a,
                        uint i [[thread_position_in_grid]]) { y[i] += a * x[i]; }
      """;

  // Offsets follow C's rules: each field at a multiple of its own size.
  static final MemoryLayout BUFFER_DESC = MemoryLayout.structLayout(JAVA_LONG.withName("struct_size"),
      JAVA_LONG.withName("length"), MemoryLayout.sequenceLayout(4, JAVA_INT), ADDRESS.withName("label"));
  static final MemoryLayout PIPELINE_DESC = MemoryLayout.structLayout(JAVA_LONG.withName("struct_size"),
      ADDRESS.withName("kernel"), ADDRESS.withName("constants"), JAVA_INT.withName("constant_count"), JAVA_INT,
      ADDRESS.withName("label"));
  static final MemoryLayout ARGUMENT = MemoryLayout.structLayout(JAVA_INT.withName("kind"), JAVA_INT.withName("index"),
      ADDRESS.withName("buffer"), JAVA_LONG.withName("offset"), ADDRESS.withName("data"), JAVA_LONG.withName("length"));
  static final MemoryLayout DISPATCH = MemoryLayout.structLayout(JAVA_LONG.withName("struct_size"),
      ADDRESS.withName("pipeline"), ADDRESS.withName("arguments"), JAVA_INT.withName("argument_count"),
      JAVA_INT.withName("grid_kind"), MemoryLayout.sequenceLayout(3, JAVA_LONG), MemoryLayout.sequenceLayout(3, JAVA_LONG));

  static SymbolLookup library;
  static MethodHandle message;
  static final CompletableFuture<Long> done = new CompletableFuture<>();

  static MethodHandle find(String name, MemoryLayout result, MemoryLayout... parameters) {
    return Linker.nativeLinker().downcallHandle(library.find(name).orElseThrow(), FunctionDescriptor.of(result, parameters));
  }

  /** Calls a function that returns a status. On a virtual thread the text of an error could be another's. */
  static void call(String name, Object... given) throws Throwable {
    MemoryLayout[] types = new MemoryLayout[given.length];
    for (int i = 0; i < given.length; i++) {
      types[i] = given[i] instanceof Integer ? JAVA_INT : given[i] instanceof Long ? JAVA_LONG : ADDRESS;
    }
    int status = (int) find(name, JAVA_INT, types).invokeWithArguments(given);
    if (status != 0) {
      throw new RuntimeException(((MemorySegment) message.invokeExact()).reinterpret(Long.MAX_VALUE).getString(0));
    }
  }

  /** What a function writes to its last parameter. */
  static MemorySegment make(Arena arena, String name, Object... given) throws Throwable {
    MemorySegment out = arena.allocate(ADDRESS);
    Object[] all = java.util.Arrays.copyOf(given, given.length + 1);
    all[given.length] = out;
    call(name, all);
    return out.get(ADDRESS, 0);
  }

  static void argument(MemorySegment arguments, int slot, int kind, MemorySegment what) {
    MemorySegment argument = arguments.asSlice(slot * ARGUMENT.byteSize(), ARGUMENT);
    argument.set(JAVA_INT, 0, kind);
    argument.set(JAVA_INT, 4, slot);
    argument.set(ADDRESS, kind == BUFFER ? 8 : 24, what);
    argument.set(JAVA_LONG, 32, kind == BYTES ? what.byteSize() : 0);
  }

  static void completed(MemorySegment user, MemorySegment info) {
    done.complete(info.reinterpret(16).get(JAVA_LONG, 8));
  }

  public static void main(String[] paths) throws Throwable {
    Arena arena = Arena.global();
    library = SymbolLookup.libraryLookup(Path.of(paths[0]), arena);
    message = find("mps_error_message", ADDRESS);
    MemorySegment none = MemorySegment.NULL, gpus = arena.allocate(JAVA_INT);
    call("mps_device_count", METAL, gpus);
    MemorySegment device = make(arena, "mps_device_create", gpus.get(JAVA_INT, 0) > 0 ? METAL : HOST, 0);
    MemorySegment text = arena.allocateFrom(SOURCE);
    MemorySegment kernels = make(arena, "mps_library_create_from_source", device, text, text.byteSize() - 1, none);
    MemorySegment wanted = arena.allocate(PIPELINE_DESC);
    wanted.set(JAVA_LONG, 0, wanted.byteSize());
    wanted.set(ADDRESS, 8, arena.allocateFrom("saxpy"));
    MemorySegment pipeline = make(arena, "mps_pipeline_create", kernels, wanted);
    MemorySegment queue = make(arena, "mps_queue_create", device, none);

    MemorySegment desc = arena.allocate(BUFFER_DESC);
    desc.set(JAVA_LONG, 0, desc.byteSize());
    desc.set(JAVA_LONG, 8, 4L * COUNT);
    MemorySegment x = make(arena, "mps_buffer_create", device, desc), y = make(arena, "mps_buffer_create", device, desc);
    MemorySegment xs = make(arena, "mps_buffer_contents", x).reinterpret(4L * COUNT);
    MemorySegment ys = make(arena, "mps_buffer_contents", y).reinterpret(4L * COUNT);
    for (int i = 0; i < COUNT; i++) {
      xs.setAtIndex(JAVA_FLOAT, i, i);
      ys.setAtIndex(JAVA_FLOAT, i, 1);
    }
    MemorySegment arguments = arena.allocate(ARGUMENT, 3);
    argument(arguments, 0, BUFFER, y);
    argument(arguments, 1, BUFFER, x);
    argument(arguments, 2, BYTES, arena.allocateFrom(JAVA_FLOAT, 0.5f));
    MemorySegment dispatch = arena.allocate(DISPATCH);
    dispatch.set(JAVA_LONG, 0, dispatch.byteSize());
    dispatch.set(ADDRESS, 8, pipeline);
    dispatch.set(ADDRESS, 16, arguments);
    dispatch.set(JAVA_INT, 24, 3);
    MemorySegment.copy(new long[] {COUNT, 1, 1}, 0, dispatch, JAVA_LONG, 32, 3);
    MethodHandle completed = MethodHandles.lookup().findStatic(Saxpy.class, "completed",
        MethodType.methodType(void.class, MemorySegment.class, MemorySegment.class));
    MemorySegment handler = Linker.nativeLinker().upcallStub(completed, FunctionDescriptor.ofVoid(ADDRESS, ADDRESS), arena);
    call("mps_queue_add_handler", queue, COMPLETED, handler, none);
    call("mps_queue_dispatch", queue, dispatch);
    call("mps_queue_wait", queue, FOREVER);
    System.out.println("command buffer " + done.get() + " is complete");

    int right = 0;
    for (int i = 0; i < COUNT; i++) {
      right += ys.getAtIndex(JAVA_FLOAT, i) == 1 + 0.5f * i ? 1 : 0;
    }
    System.out.println(right + " of " + COUNT + " results are right");
  }
}
