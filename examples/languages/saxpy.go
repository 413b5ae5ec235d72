// y = a * x + y from Go, through cgo: errors with their texts, C's memory for what C points to, and a channel that hears
// of the end of the work.
package main

/*
#cgo pkg-config: mpsshim
#include <mpsshim.h>
#include <stdlib.h>

extern void goCompleted(uintptr_t user, uint64_t serial);
static void completed(void *user, const mps_command_info *info) { goCompleted((uintptr_t)user, info->serial); }
static mps_status on_completed(mps_queue *queue, uintptr_t user) {
  return mps_queue_add_handler(queue, MPS_HANDLER_COMPLETED, completed, (void *)user);
}
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"runtime/cgo"
	"unsafe"
)

const count = 100003
const source = `kernel void saxpy(device float *y, device const float *x, constant float &a,
                                  uint i [[thread_position_in_grid]]) { y[i] += a * x[i]; }`

// try makes a call and, if it fails, an error. Its text belongs to the thread, so the goroutine stays on that thread.
func try(call func() C.mps_status) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if status := call(); status != C.MPS_STATUS_OK {
		return fmt.Errorf("%s: %s", C.GoString(C.mps_status_text(status)), C.GoString(C.mps_error_message()))
	}
	return nil
}

func must(call func() C.mps_status) {
	if err := try(call); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

//export goCompleted
func goCompleted(user C.uintptr_t, serial C.uint64_t) {
	handle := cgo.Handle(user)
	handle.Value().(chan uint64) <- uint64(serial)
	handle.Delete()
}

func floats(device *C.mps_device) (buffer *C.mps_buffer, contents []float32) {
	desc := C.mps_buffer_desc{struct_size: C.sizeof_mps_buffer_desc, length: 4 * count}
	must(func() C.mps_status { return C.mps_buffer_create(device, &desc, &buffer) })
	var bytes unsafe.Pointer
	must(func() C.mps_status { return C.mps_buffer_contents(buffer, &bytes) })
	return buffer, unsafe.Slice((*float32)(bytes), count)
}

func main() {
	var gpus C.uint32_t
	must(func() C.mps_status { return C.mps_device_count(C.MPS_DEVICE_METAL, &gpus) })
	kind := C.mps_device_kind(C.MPS_DEVICE_HOST)
	if gpus > 0 {
		kind = C.MPS_DEVICE_METAL
	}
	var device *C.mps_device
	must(func() C.mps_status { return C.mps_device_create(kind, 0, &device) })
	defer C.mps_device_release(device)

	text, name := C.CString(source), C.CString("saxpy")
	defer C.free(unsafe.Pointer(text))
	defer C.free(unsafe.Pointer(name))
	var library *C.mps_library
	must(func() C.mps_status {
		return C.mps_library_create_from_source(device, text, C.size_t(len(source)), nil, &library)
	})
	defer C.mps_library_release(library)
	wanted := (*C.mps_pipeline_desc)(C.calloc(1, C.sizeof_mps_pipeline_desc))
	defer C.free(unsafe.Pointer(wanted))
	wanted.struct_size, wanted.kernel = C.sizeof_mps_pipeline_desc, name
	var pipeline *C.mps_pipeline
	must(func() C.mps_status { return C.mps_pipeline_create(library, wanted, &pipeline) })
	defer C.mps_pipeline_release(pipeline)
	var queue *C.mps_queue
	must(func() C.mps_status { return C.mps_queue_create(device, nil, &queue) })
	defer C.mps_queue_release(queue)

	xBuffer, x := floats(device)
	yBuffer, y := floats(device)
	defer C.mps_buffer_release(xBuffer)
	defer C.mps_buffer_release(yBuffer)
	for i := range x {
		x[i], y[i] = float32(i), 1
	}
	// Go's memory must not point to Go's memory when C looks at it: what a dispatch points to is C's.
	arguments := (*[3]C.mps_argument)(C.calloc(3, C.sizeof_mps_argument))
	a := (*C.float)(C.malloc(C.sizeof_float))
	defer C.free(unsafe.Pointer(arguments))
	defer C.free(unsafe.Pointer(a))
	*a = 0.5
	arguments[0] = C.mps_argument{kind: C.MPS_ARGUMENT_BUFFER, index: 0, buffer: yBuffer}
	arguments[1] = C.mps_argument{kind: C.MPS_ARGUMENT_BUFFER, index: 1, buffer: xBuffer}
	arguments[2] = C.mps_argument{kind: C.MPS_ARGUMENT_BYTES, index: 2, data: unsafe.Pointer(a), length: C.sizeof_float}
	dispatch := C.mps_dispatch{struct_size: C.sizeof_mps_dispatch, pipeline: pipeline, arguments: &arguments[0],
		argument_count: 3, grid: [3]C.uint64_t{count, 1, 1}}
	done := make(chan uint64, 1)
	must(func() C.mps_status { return C.on_completed(queue, C.uintptr_t(cgo.NewHandle(done))) })
	must(func() C.mps_status { return C.mps_queue_dispatch(queue, &dispatch) })
	must(func() C.mps_status { return C.mps_queue_wait(queue, C.MPS_FOREVER) })
	fmt.Println("command buffer", <-done, "is complete")

	right := 0
	for i := range y {
		if y[i] == 1+0.5*x[i] {
			right++
		}
	}
	fmt.Println(right, "of", count, "results are right")
}
