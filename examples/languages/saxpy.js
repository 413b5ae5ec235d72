// y = a * x + y from Node, by koffi: views of device memory as typed arrays, and a wait that does not hold up the event loop.
// Give the directory that holds `include` and `lib`: the one above mpscffi.get_include().
const koffi = require('koffi');

const [METAL, HOST, BUFFER, BYTES, COMPLETED, FOREVER] = [1, 2, 1, 2, 2, 2n ** 64n - 1n];
const COUNT = 100003;
const SOURCE = `kernel void saxpy(device float *y, device const float *x, constant float &a,
                                  uint i [[thread_position_in_grid]]) { y[i] += a * x[i]; }`;

const mps = koffi.load(`${process.argv[2]}/lib/libmpsshim.so`);
for (const kind of ['device', 'buffer', 'library', 'pipeline', 'queue']) koffi.pointer(`mps_${kind}`, koffi.opaque());
koffi.struct('mps_buffer_desc', {
  struct_size: 'size_t', length: 'uint64_t', storage_mode: 'uint32_t', cache_mode: 'uint32_t', hazard_mode: 'uint32_t',
  reserved: 'uint32_t', label: 'const char *',
});
koffi.struct('mps_pipeline_desc', {
  struct_size: 'size_t', kernel: 'const char *', constants: 'void *', constant_count: 'uint32_t', reserved: 'uint32_t',
  label: 'const char *',
});
koffi.struct('mps_argument', {
  kind: 'uint32_t', index: 'uint32_t', buffer: 'mps_buffer', offset: 'uint64_t', data: 'void *', length: 'uint64_t',
});
koffi.struct('mps_dispatch', {
  struct_size: 'size_t', pipeline: 'mps_pipeline', arguments: 'void *', argument_count: 'uint32_t', grid_kind: 'uint32_t',
  grid: koffi.array('uint64_t', 3), group: koffi.array('uint64_t', 3),
});
koffi.struct('mps_command_info', {
  struct_size: 'size_t', serial: 'uint64_t', start: 'uint64_t', end: 'uint64_t', status: 'uint32_t', scheduled: 'uint32_t',
  message: 'const char *',
});
koffi.proto('void mps_handler(void *user, const mps_command_info *info)');

const message = mps.func('const char *mps_error_message()');

function check(status) {
  if (status !== 0) throw new Error(message()); // the text of this thread: not after an .async call
}

// A function whose failures are exceptions.
function bind(declaration) {
  const call = mps.func(`uint32_t ${declaration}`);
  return (...given) => check(call(...given));
}

// One that gives what the library's function writes to its last parameter.
function create(declaration) {
  const call = bind(declaration);
  return (...given) => {
    const out = [null];
    call(...given, out);
    return out[0];
  };
}

const countDevices = create('mps_device_count(uint32_t kind, _Out_ uint32_t *out)');
const createDevice = create('mps_device_create(uint32_t kind, uint32_t index, _Out_ mps_device *out)');
const createBuffer = create('mps_buffer_create(mps_device device, mps_buffer_desc *desc, _Out_ mps_buffer *out)');
const contents = create('mps_buffer_contents(mps_buffer buffer, _Out_ void **out)');
const compile = create(
  'mps_library_create_from_source(mps_device device, const char *source, size_t length, void *options, _Out_ mps_library *out)');
const createPipeline = create('mps_pipeline_create(mps_library library, mps_pipeline_desc *desc, _Out_ mps_pipeline *out)');
const createQueue = create('mps_queue_create(mps_device device, void *desc, _Out_ mps_queue *out)');
const addHandler = bind('mps_queue_add_handler(mps_queue queue, uint32_t kind, mps_handler *handler, void *user)');
const dispatch = bind('mps_queue_dispatch(mps_queue queue, mps_dispatch *dispatch)');
const commit = bind('mps_queue_commit(mps_queue queue, void *serial)');
const wait = bind('mps_queue_wait(mps_queue queue, uint64_t timeout)');

const sized = (kind, fields) => ({
  struct_size: koffi.sizeof(kind), storage_mode: 0, cache_mode: 0, hazard_mode: 0, reserved: 0, label: null, ...fields,
});

function floats(device, value) {
  const buffer = createBuffer(device, sized('mps_buffer_desc', { length: 4 * COUNT }));
  const view = new Float32Array(koffi.view(contents(buffer), 4 * COUNT));
  return [buffer, view.map((_, i) => (view[i] = value(i))) && view];
}

// Settles when all that is encoded is complete. The handler comes to the event loop, so this thread must not wait meanwhile.
const completion = (queue) => new Promise((resolve) => {
  const alive = setInterval(() => {}, 1 << 30); // Node would end: it does not know that somebody is going to call
  const handler = koffi.register((_, info) => {
    clearInterval(alive);
    setImmediate(() => koffi.unregister(handler)); // not while it is called
    resolve(koffi.decode(info, 'mps_command_info').serial);
  }, 'mps_handler *');
  addHandler(queue, COMPLETED, handler, null);
  commit(queue, null);
});

async function main() {
  const device = createDevice(countDevices(METAL) > 0 ? METAL : HOST, 0);
  const library = compile(device, SOURCE, Buffer.byteLength(SOURCE), null);
  const pipeline = createPipeline(library, sized('mps_pipeline_desc', { kernel: 'saxpy', constants: null, constant_count: 0 }));
  const queue = createQueue(device, null);
  const [xBuffer] = floats(device, (i) => i);
  const [yBuffer, y] = floats(device, () => 1);
  const a = new Float32Array([0.5]);
  const given = koffi.alloc('mps_argument', 3);
  koffi.encode(given, koffi.array('mps_argument', 3), [
    { kind: BUFFER, index: 0, buffer: yBuffer, offset: 0, data: null, length: 0 },
    { kind: BUFFER, index: 1, buffer: xBuffer, offset: 0, data: null, length: 0 },
    { kind: BYTES, index: 2, buffer: null, offset: 0, data: a, length: 4 },
  ]);
  dispatch(queue, {
    struct_size: koffi.sizeof('mps_dispatch'), pipeline, arguments: given, argument_count: 3, grid_kind: 0,
    grid: [COUNT, 1, 1], group: [0, 0, 0],
  });
  console.log(`command buffer ${await completion(queue)} is complete`);
  wait(queue, FOREVER); // is over at once: it throws if the kernel failed
  console.log(`${y.filter((value, i) => value === 1 + 0.5 * i).length} of ${COUNT} results are right`);
  for (const [kind, handle] of Object.entries({ pipeline, library, queue, device })) bind(`mps_${kind}_release(mps_${kind} handle)`)(handle);
  for (const buffer of [xBuffer, yBuffer]) bind('mps_buffer_release(mps_buffer handle)')(buffer);
}

main();
