// y = a * x + y from Zig. mpsshim.zig is what `zig translate-c` makes of the header.
const std = @import("std");
const mps = @import("mpsshim.zig");

const count = 100003;
const source =
    \\kernel void saxpy(device float *y, device const float *x, constant float &a,
    \\                  uint i [[thread_position_in_grid]]) { y[i] += a * x[i]; }
;

fn check(status: mps.mps_status) !void {
    if (status != mps.MPS_STATUS_OK) {
        std.debug.print("{s}: {s}\n", .{ mps.mps_status_text(status), mps.mps_error_message() });
        return error.Mps;
    }
}

// A descriptor with its size and all defaults.
fn sized(comptime Struct: type) Struct {
    var all_defaults = std.mem.zeroes(Struct);
    all_defaults.struct_size = @sizeOf(Struct);
    return all_defaults;
}

const Floats = struct {
    buffer: ?*mps.mps_buffer,
    contents: [*]f32,

    fn create(device: ?*mps.mps_device) !Floats {
        var desc = sized(mps.mps_buffer_desc);
        desc.length = count * @sizeOf(f32);
        var buffer: ?*mps.mps_buffer = null;
        try check(mps.mps_buffer_create(device, &desc, &buffer));
        var contents: ?*anyopaque = null;
        try check(mps.mps_buffer_contents(buffer, &contents));
        return .{ .buffer = buffer, .contents = @ptrCast(@alignCast(contents)) };
    }
};

pub fn main() !void {
    var gpus: u32 = 0;
    try check(mps.mps_device_count(mps.MPS_DEVICE_METAL, &gpus));
    var device: ?*mps.mps_device = null;
    try check(mps.mps_device_create(if (gpus > 0) mps.MPS_DEVICE_METAL else mps.MPS_DEVICE_HOST, 0, &device));
    defer _ = mps.mps_device_release(device);
    var library: ?*mps.mps_library = null;
    try check(mps.mps_library_create_from_source(device, source, source.len, null, &library));
    defer _ = mps.mps_library_release(library);
    var wanted = sized(mps.mps_pipeline_desc);
    wanted.kernel = "saxpy";
    var pipeline: ?*mps.mps_pipeline = null;
    try check(mps.mps_pipeline_create(library, &wanted, &pipeline));
    defer _ = mps.mps_pipeline_release(pipeline);
    var queue: ?*mps.mps_queue = null;
    try check(mps.mps_queue_create(device, null, &queue));
    defer _ = mps.mps_queue_release(queue);

    const x = try Floats.create(device);
    defer _ = mps.mps_buffer_release(x.buffer);
    const y = try Floats.create(device);
    defer _ = mps.mps_buffer_release(y.buffer);
    for (0..count) |i| {
        x.contents[i] = @floatFromInt(i);
        y.contents[i] = 1;
    }
    const a: f32 = 0.5;
    var arguments = std.mem.zeroes([3]mps.mps_argument);
    for ([_]?*mps.mps_buffer{ y.buffer, x.buffer }, 0..) |buffer, slot| {
        arguments[slot].kind = mps.MPS_ARGUMENT_BUFFER;
        arguments[slot].index = @intCast(slot);
        arguments[slot].buffer = buffer;
    }
    arguments[2].kind = mps.MPS_ARGUMENT_BYTES;
    arguments[2].index = 2;
    arguments[2].data = &a;
    arguments[2].length = @sizeOf(f32);
    var dispatch = sized(mps.mps_dispatch);
    dispatch.pipeline = pipeline;
    dispatch.arguments = &arguments;
    dispatch.argument_count = 3;
    dispatch.grid = .{ count, 1, 1 };
    try check(mps.mps_queue_dispatch(queue, &dispatch));
    try check(mps.mps_queue_wait(queue, mps.MPS_FOREVER));

    var right: usize = 0;
    for (0..count) |i| {
        if (y.contents[i] == 1 + a * x.contents[i]) right += 1;
    }
    std.debug.print("{} of {} results are right\n", .{ right, count });
}
