//! y = a * x + y from Rust, with no crate: the C interface declared by hand, handles that release themselves, errors as
//! `Result`, and a closure that is called when the work is complete.
use std::ffi::{c_char, c_void, CStr, CString};
use std::{mem::size_of, ptr::null, ptr::null_mut, sync::mpsc};

const COUNT: usize = 100_003;
const SOURCE: &str = "kernel void saxpy(device float *y, device const float *x, constant float &a,
                                          uint i [[thread_position_in_grid]]) { y[i] += a * x[i]; }";

type Status = u32; // no `enum`: a newer library may return values that are not listed here
type Object = c_void;
type Release = unsafe extern "C" fn(*mut Object) -> Status;

#[repr(C)] #[derive(Default)]
struct BufferDesc { struct_size: usize, length: u64, storage: u32, cache: u32, hazard: u32, reserved: u32, label: usize }
#[repr(C)]
struct PipelineDesc { struct_size: usize, kernel: *const c_char, constants: usize, count: u32, reserved: u32, label: usize }
#[repr(C)]
struct Argument { kind: u32, index: u32, buffer: *mut Object, offset: u64, data: *const c_void, length: u64 }
#[repr(C)]
struct Dispatch {
    struct_size: usize, pipeline: *mut Object, arguments: *const Argument, argument_count: u32, grid_kind: u32,
    grid: [u64; 3], group: [u64; 3],
}
#[repr(C)]
struct CommandInfo { struct_size: usize, serial: u64, start: u64, end: u64, status: u32, scheduled: u32, message: *const c_char }
type Handler = extern "C" fn(*mut c_void, *const CommandInfo);

#[link(name = "mpsshim")]
extern "C" {
    fn mps_abi_version() -> u32;
    fn mps_error_message() -> *const c_char;
    fn mps_device_count(kind: u32, out: *mut u32) -> Status;
    fn mps_device_create(kind: u32, index: u32, out: *mut *mut Object) -> Status;
    fn mps_buffer_create(device: *mut Object, desc: *const BufferDesc, out: *mut *mut Object) -> Status;
    fn mps_buffer_contents(buffer: *mut Object, out: *mut *mut c_void) -> Status;
    fn mps_library_create_from_source(device: *mut Object, source: *const c_char, length: usize, options: *const c_void,
                                      out: *mut *mut Object) -> Status;
    fn mps_pipeline_create(library: *mut Object, desc: *const PipelineDesc, out: *mut *mut Object) -> Status;
    fn mps_queue_create(device: *mut Object, desc: *const c_void, out: *mut *mut Object) -> Status;
    fn mps_queue_add_handler(queue: *mut Object, kind: u32, handler: Handler, user: *mut c_void) -> Status;
    fn mps_queue_dispatch(queue: *mut Object, dispatch: *const Dispatch) -> Status;
    fn mps_queue_wait(queue: *mut Object, timeout: u64) -> Status;
    fn mps_device_release(device: *mut Object) -> Status;
    fn mps_buffer_release(buffer: *mut Object) -> Status;
    fn mps_library_release(library: *mut Object) -> Status;
    fn mps_pipeline_release(pipeline: *mut Object) -> Status;
    fn mps_queue_release(queue: *mut Object) -> Status;
}

#[derive(Debug)] #[allow(dead_code)]
struct Error { status: Status, message: String }

/// The text belongs to the thread that made the call: it is copied at once.
fn check(status: Status) -> Result<(), Error> {
    if status == 0 { return Ok(()); }
    Err(Error { status, message: unsafe { CStr::from_ptr(mps_error_message()) }.to_string_lossy().into() })
}

struct Handle(*mut Object, Release);

impl Drop for Handle { fn drop(&mut self) { unsafe { (self.1)(self.0) }; } }

fn make(release: Release, create: impl FnOnce(*mut *mut Object) -> Status) -> Result<Handle, Error> {
    let mut object = null_mut();
    check(create(&mut object))?;
    Ok(Handle(object, release))
}

/// Called once, on a thread of the library's: it takes over the box that it was given.
extern "C" fn completed(user: *mut c_void, info: *const CommandInfo) {
    let call = unsafe { Box::from_raw(user as *mut Box<dyn FnOnce(&CommandInfo) + Send>) };
    call(unsafe { &*info });
}

fn floats(device: &Handle, value: impl Fn(usize) -> f32) -> Result<(Handle, &'static mut [f32]), Error> {
    let desc = BufferDesc { struct_size: size_of::<BufferDesc>(), length: 4 * COUNT as u64, ..Default::default() };
    let buffer = make(mps_buffer_release, |out| unsafe { mps_buffer_create(device.0, &desc, out) })?;
    let mut bytes = null_mut();
    check(unsafe { mps_buffer_contents(buffer.0, &mut bytes) })?;
    let floats = unsafe { std::slice::from_raw_parts_mut(bytes as *mut f32, COUNT) };
    floats.iter_mut().enumerate().for_each(|(i, x)| *x = value(i));
    Ok((buffer, floats)) // the slice is good as long as the handle is kept
}

fn main() -> Result<(), Error> {
    assert_eq!(unsafe { mps_abi_version() }, 1);
    let mut gpus = 0;
    check(unsafe { mps_device_count(1, &mut gpus) })?;
    let device = make(mps_device_release, |out| unsafe { mps_device_create(if gpus > 0 { 1 } else { 2 }, 0, out) })?;
    let library = make(mps_library_release, |out| unsafe {
        mps_library_create_from_source(device.0, SOURCE.as_ptr().cast(), SOURCE.len(), null(), out)
    })?;
    let kernel = CString::new("saxpy").unwrap();
    let size = size_of::<PipelineDesc>();
    let wanted = PipelineDesc { struct_size: size, kernel: kernel.as_ptr(), constants: 0, count: 0, reserved: 0, label: 0 };
    let pipeline = make(mps_pipeline_release, |out| unsafe { mps_pipeline_create(library.0, &wanted, out) })?;
    let queue = make(mps_queue_release, |out| unsafe { mps_queue_create(device.0, null(), out) })?;

    let (x, _) = floats(&device, |i| i as f32)?;
    let (y, results) = floats(&device, |_| 1.0)?;
    let a = 0.5f32;
    let arguments = [
        Argument { kind: 1, index: 0, buffer: y.0, offset: 0, data: null(), length: 0 },
        Argument { kind: 1, index: 1, buffer: x.0, offset: 0, data: null(), length: 0 },
        Argument { kind: 2, index: 2, buffer: null_mut(), offset: 0, data: &a as *const f32 as _, length: 4 },
    ];
    let dispatch = Dispatch {
        struct_size: size_of::<Dispatch>(), pipeline: pipeline.0, arguments: arguments.as_ptr(), argument_count: 3,
        grid_kind: 0, grid: [COUNT as u64, 1, 1], group: [0; 3],
    };
    check(unsafe { mps_queue_dispatch(queue.0, &dispatch) })?;
    let (sender, receiver) = mpsc::channel();
    let call: Box<dyn FnOnce(&CommandInfo) + Send> = Box::new(move |info| sender.send(info.serial).unwrap());
    let user = Box::into_raw(Box::new(call)) as *mut c_void;
    check(unsafe { mps_queue_add_handler(queue.0, 2, completed, user) })?;
    check(unsafe { mps_queue_wait(queue.0, u64::MAX) })?;

    println!("command buffer {} is complete", receiver.recv().unwrap());
    let right = results.iter().enumerate().filter(|&(i, &y)| y == 1.0 + a * i as f32).count();
    println!("{right} of {COUNT} results are right");
    Ok(())
}
