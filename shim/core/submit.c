/* Lists of commands. */
#include "backend.h"
#include "check.h"
#include "command.h"

#include <inttypes.h>
#include <stdlib.h>

/* Commands whose checked form is on the stack; longer lists take memory. */
enum { FEW = 32 };

static mps_status check_dispatch(const char *function, const mps_device *device, const mps_dispatch *dispatch,
                                 mps_work *work) {
  /* Shorter than this version's no dispatch can be, and what follows in a longer one has to be 0. */
  if (dispatch == NULL || dispatch->struct_size != sizeof *dispatch) {
    mps_dispatch copy;
    MPS_TRY(mps_struct_check(function, "mps_dispatch", dispatch, sizeof copy));
    MPS_TRY(mps_struct_read(function, "mps_dispatch", &copy, sizeof copy, dispatch, sizeof copy));
  }
  return mps_dispatch_check(device, dispatch, work);
}

static mps_status check_copy(const char *function, const mps_device *device, const mps_copy *copy, mps_work *work) {
  MPS_TRY(mps_struct_check(function, "mps_copy", copy, MPS_SIZE_THROUGH(mps_copy, length)));
  MPS_TRY(
      mps_struct_read(function, "mps_copy", &work->copy, sizeof work->copy, copy, MPS_SIZE_THROUGH(mps_copy, length)));
  work->kind = copy->length != 0 ? MPS_COMMAND_COPY : 0;
  return mps_copy_check(device, &work->copy);
}

static mps_status check_fill(const char *function, const mps_device *device, const mps_fill *fill, mps_work *work) {
  MPS_TRY(mps_struct_check(function, "mps_fill", fill, MPS_SIZE_THROUGH(mps_fill, reserved)));
  MPS_TRY(mps_struct_read(function, "mps_fill", &work->fill, sizeof work->fill, fill,
                          MPS_SIZE_THROUGH(mps_fill, reserved)));
  if (fill->value > UINT8_MAX) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "%s: a fill's value is %" PRIu32 ", but a byte holds 0 to 255",
                    function, fill->value);
  }
  if (fill->reserved != 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "%s: the reserved field of a fill must be 0", function);
  }
  work->kind = fill->length != 0 ? MPS_COMMAND_FILL : 0;
  return mps_fill_check(device, &work->fill);
}

static mps_status check_matmul(const char *function, const mps_device *device, const mps_matmul *matmul,
                               mps_work *work) {
  MPS_TRY(mps_matmul_check(function, device, matmul, work));
  if (work->kind == MPS_MATMUL_ZEROS) {
    return mps_fail(MPS_STATUS_UNSUPPORTED, "%s: zeros between gaps are more than one command: fill them row by row",
                    function);
  }
  return MPS_STATUS_OK;
}

static mps_status check_command(const char *function, const mps_device *device, const mps_command *command,
                                mps_work *work) {
  if (command->reserved != 0) {
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT, "%s: the reserved field of a command must be 0", function);
  }
  switch (command->kind) {
  case MPS_COMMAND_DISPATCH:
    return check_dispatch(function, device, command->u.dispatch, work);
  case MPS_COMMAND_COPY:
    return check_copy(function, device, command->u.copy, work);
  case MPS_COMMAND_FILL:
    return check_fill(function, device, command->u.fill, work);
  case MPS_COMMAND_MATMUL:
    return check_matmul(function, device, command->u.matmul, work);
  default:
    return mps_fail(MPS_STATUS_INVALID_ARGUMENT,
                    "%s: the kind of a command is %" PRIu32 ", not MPS_COMMAND_DISPATCH (1), _COPY (2), _FILL (3) "
                    "or _MATMUL (4)",
                    function, command->kind);
  }
}

/* Check all commands; what there is to run goes to `works`, without what does nothing. */
static mps_status check_list(const mps_device *device, const mps_command *commands, uint32_t count, mps_work *works,
                             uint32_t *out_works) {
  uint32_t used = 0;
  for (uint32_t i = 0; i < count; i++) {
    mps_status status = check_command("mps_queue_submit", device, &commands[i], &works[used]);
    if (status != MPS_STATUS_OK) {
      return mps_fail(status, "commands[%" PRIu32 "]: %s", i, mps_error_message());
    }
    used += works[used].kind != 0;
  }
  *out_works = used;
  return MPS_STATUS_OK;
}

mps_status mps_queue_submit(mps_queue *queue, const mps_command *commands, uint32_t count) {
  MPS_ENTER(queue, MPS_KIND_QUEUE);
  if (count > 0) {
    MPS_REQUIRE(commands);
  }
  mps_work few[FEW];
  mps_work *works = count <= FEW ? few : malloc(count * sizeof *works);
  if (works == NULL) {
    return mps_fail(MPS_STATUS_OUT_OF_MEMORY, "mps_queue_submit: no memory for %" PRIu32 " commands", count);
  }
  uint32_t used;
  mps_status status = check_list(queue->device, commands, count, works, &used);
  if (status == MPS_STATUS_OK) {
    status = mps_after_encoding(queue, queue->device->backend->submit(queue, works, used));
  }
  if (works != few) {
    free(works);
  }
  return status;
}

mps_status mps_command_check(mps_device *device, const mps_command *command) {
  MPS_ENTER(device, MPS_KIND_DEVICE);
  MPS_REQUIRE(command);
  mps_work work;
  return check_command(__func__, device, command, &work);
}
