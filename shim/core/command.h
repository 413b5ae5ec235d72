/* The checks of single commands, for command.c and submit.c. Messages name the function that encodes such a command. */
#ifndef MPS_CORE_COMMAND_H
#define MPS_CORE_COMMAND_H

#include "backend.h"

/* Check a dispatch, which is of this version's size, and fill in what is to be run of it. */
mps_status mps_dispatch_check(const mps_device *device, const mps_dispatch *dispatch, mps_work *work);

mps_status mps_copy_check(const mps_device *device, const mps_copy *copy);
mps_status mps_fill_check(const mps_device *device, const mps_fill *fill);

/* Instead of a command's kind: zeros for a result with gaps. */
enum { MPS_MATMUL_ZEROS = 100 };

/* The same of a product of matrices, whose struct is given to `function`: what is to be run is a product, a fill, or
 * more fills than one. */
mps_status mps_matmul_check(const char *function, const mps_device *device, const mps_matmul *matmul, mps_work *work);

/* What follows the encoding of commands, which gave `status`: a trace may want to wait for them. */
mps_status mps_after_encoding(mps_queue *queue, mps_status status);

#endif
