#include "backend.h"

const mps_backend *const mps_backends[] = {
#ifdef MPS_WITH_METAL
    &mps_metal_backend,
#endif
    &mps_host_backend,
    NULL,
};
