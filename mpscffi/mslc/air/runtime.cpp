// What every kernel library made of AIR holds besides its kernel: the way to the runtime, and number conversions.
#include <mslc/launch.h>

MSLC_THUNKS
MSLC_NUMBER_HELPERS
