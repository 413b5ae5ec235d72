-- y = a * x + y from LuaJIT, which reads the declarations from the header itself.
-- Give the directory that holds `include` and `lib`: the one above mpscffi.get_include().
local ffi = require 'ffi'
local header = assert(io.open(arg[1] .. '/include/mpsshim.h')):read('*a')
ffi.cdef((header:match('/%* cdef: begin[^\n]*\n(.*)/%* cdef: end'):gsub('MPS_API ', ''):gsub('#define [^\n]*', '')))
local mps = ffi.load(arg[1] .. '/lib/libmpsshim.so')
local COUNT, ABI_VERSION, FOREVER = 100003, 1, 0xffffffffffffffffULL -- macros are not in what ffi.cdef reads
local SOURCE = [=[kernel void saxpy(device float *y, device const float *x, constant float &a,
                                   uint i [[thread_position_in_grid]]) { y[i] += a * x[i]; }]=]

local function check(status)
  if status ~= mps.MPS_STATUS_OK then
    error(ffi.string(mps.mps_status_text(status)) .. ': ' .. ffi.string(mps.mps_error_message()), 0)
  end
end

-- What the last parameter of a `create` brings, to be released when Lua collects it.
local function make(kind, create, ...)
  local out = ffi.new('mps_' .. kind .. ' *[1]')
  local arguments, count = {...}, select('#', ...) + 1
  arguments[count] = out
  check(create(unpack(arguments, 1, count)))
  return ffi.gc(out[0], mps['mps_' .. kind .. '_release'])
end

local function struct(kind, fields)
  local made = ffi.new(kind, fields)
  made.struct_size = ffi.sizeof(made)
  return made
end

local function floats(device, value)
  local buffer = make('buffer', mps.mps_buffer_create, device, struct('mps_buffer_desc', {length = 4 * COUNT}))
  local contents = ffi.new('void *[1]')
  check(mps.mps_buffer_contents(buffer, contents))
  local view = ffi.cast('float *', contents[0]) -- good as long as the buffer is kept
  for i = 0, COUNT - 1 do view[i] = value(i) end
  return buffer, view
end

assert(mps.mps_abi_version() == ABI_VERSION)
local gpus = ffi.new('uint32_t[1]')
check(mps.mps_device_count(mps.MPS_DEVICE_METAL, gpus))
local device = make('device', mps.mps_device_create, gpus[0] > 0 and mps.MPS_DEVICE_METAL or mps.MPS_DEVICE_HOST, 0)
local library = make('library', mps.mps_library_create_from_source, device, SOURCE, #SOURCE, nil)
local name = 'saxpy' -- kept until the call is made: a C struct does not keep a Lua string
local wanted = struct('mps_pipeline_desc', {kernel = name})
local pipeline = make('pipeline', mps.mps_pipeline_create, library, wanted)
local queue = make('queue', mps.mps_queue_create, device, nil)
local x = floats(device, function(i) return i end)
local y, results = floats(device, function() return 1 end)
local a = ffi.new('float[1]', 0.5)
local arguments = ffi.new('mps_argument[3]', {
  {kind = mps.MPS_ARGUMENT_BUFFER, index = 0, buffer = y},
  {kind = mps.MPS_ARGUMENT_BUFFER, index = 1, buffer = x},
  {kind = mps.MPS_ARGUMENT_BYTES, index = 2, data = a, length = ffi.sizeof(a)},
})
local dispatch = struct('mps_dispatch', {
  pipeline = pipeline, arguments = arguments, argument_count = 3, grid = {COUNT, 1, 1},
})
check(mps.mps_queue_dispatch(queue, dispatch))
check(mps.mps_queue_wait(queue, FOREVER))
local right = 0
for i = 0, COUNT - 1 do right = right + (results[i] == 1 + 0.5 * i and 1 or 0) end
print(right .. ' of ' .. COUNT .. ' results are right')
