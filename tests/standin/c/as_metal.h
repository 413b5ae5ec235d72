/* Makes a test program of the host device one of the Metal device. */
#include "mpsshim.h"

#define MPS_DEVICE_HOST MPS_DEVICE_METAL
