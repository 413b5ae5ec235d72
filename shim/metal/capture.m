#include "metal.h"
#include "queue.h"

#include <string.h>

static MTLCaptureManager *manager(void) {
  return [MTLCaptureManager sharedCaptureManager];
}

bool metal_capture_supported(mps_device *device) {
  (void)device;
  @autoreleasepool {
    return [manager() supportsDestination:MTLCaptureDestinationGPUTraceDocument];
  }
}

bool metal_capture_active(mps_device *device) {
  (void)device;
  @autoreleasepool {
    return [manager() isCapturing];
  }
}

static mps_status status_of(NSError *error) {
  switch ((MTLCaptureError)[error code]) {
  case MTLCaptureErrorNotSupported:
    return MPS_STATUS_UNSUPPORTED;
  case MTLCaptureErrorAlreadyCapturing:
    return MPS_STATUS_INVALID_STATE;
  default:
    return MPS_STATUS_IO;
  }
}

mps_status metal_capture_start(mps_device *device, const mps_capture_desc *desc) {
  return metal_guard("starting a capture", ^mps_status {
    NSString *path = metal_string(desc->path, strlen(desc->path));
    if (path == nil) {
      return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "the path of the capture is no UTF-8 text");
    }
    MTLCaptureDescriptor *descriptor = [[[MTLCaptureDescriptor alloc] init] autorelease];
    id object = desc->queue != NULL ? (id)((metal_queue *)desc->queue->impl)->commands : metal_gpu(device);
    [descriptor setCaptureObject:object];
    [descriptor setDestination:MTLCaptureDestinationGPUTraceDocument];
    [descriptor setOutputURL:[NSURL fileURLWithPath:path]];
    NSError *error = nil;
    if (![manager() startCaptureWithDescriptor:descriptor error:&error]) {
      return mps_fail(status_of(error), "Metal starts no capture to '%s': %s", desc->path, metal_error_text(error));
    }
    return MPS_STATUS_OK;
  });
}

mps_status metal_capture_stop(mps_device *device) {
  (void)device;
  return metal_guard("stopping a capture", ^mps_status {
    [manager() stopCapture];
    return MPS_STATUS_OK;
  });
}
