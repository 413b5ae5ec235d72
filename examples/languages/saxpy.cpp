// y = a * x + y from C++17: handles that release themselves, errors as exceptions, a function that is called when the
// work is complete.
#include <mpsshim.h>

#include <future>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string_view>

namespace mps {

struct error : std::runtime_error {
  explicit error(mps_status given) : std::runtime_error(mps_error_message()), status(given) {
  }
  mps_status status;
};

inline void check(mps_status status) {
  if (status != MPS_STATUS_OK) {
    throw error(status);
  }
}

template <class T, mps_status (*Release)(T *)> struct releaser {
  void operator()(T *object) const noexcept {
    Release(object);
  }
};
template <class T, mps_status (*Release)(T *)> using handle = std::unique_ptr<T, releaser<T, Release>>;

using device = handle<mps_device, mps_device_release>;
using buffer = handle<mps_buffer, mps_buffer_release>;
using library = handle<mps_library, mps_library_release>;
using pipeline = handle<mps_pipeline, mps_pipeline_release>;
using queue = handle<mps_queue, mps_queue_release>;

// make<queue>(mps_queue_create, device, nullptr): the result comes through the last parameter.
template <class Handle, class... Parameters, class... Arguments>
Handle make(mps_status (*create)(Parameters...), Arguments... arguments) {
  typename Handle::pointer object = nullptr;
  check(create(arguments..., &object));
  return Handle(object);
}

template <class Struct> Struct sized() {
  Struct all_defaults{};
  all_defaults.struct_size = sizeof all_defaults;
  return all_defaults;
}

} // namespace mps

constexpr std::size_t count = 100003;
constexpr std::string_view source = "kernel void saxpy(device float *y, device const float *x, constant float &a,\n"
                                    "                  uint i [[thread_position_in_grid]]) { y[i] += a * x[i]; }\n";

static mps::device open_device() {
  uint32_t gpus = 0;
  mps::check(mps_device_count(MPS_DEVICE_METAL, &gpus));
  return mps::make<mps::device>(mps_device_create, gpus > 0 ? MPS_DEVICE_METAL : MPS_DEVICE_HOST, 0u);
}

static mps::buffer make_buffer(const mps::device &device, float *&out_contents) {
  auto desc = mps::sized<mps_buffer_desc>();
  desc.length = count * sizeof(float);
  auto buffer = mps::make<mps::buffer>(mps_buffer_create, device.get(), &desc);
  void *contents = nullptr;
  mps::check(mps_buffer_contents(buffer.get(), &contents));
  out_contents = static_cast<float *>(contents);
  return buffer;
}

// On a thread of the library's, which no exception may reach.
static void on_completed(void *user, const mps_command_info *info) noexcept {
  static_cast<std::promise<uint64_t> *>(user)->set_value(info->serial);
}

static int saxpy() {
  const auto device = open_device();
  const auto library =
      mps::make<mps::library>(mps_library_create_from_source, device.get(), source.data(), source.size(), nullptr);
  auto wanted = mps::sized<mps_pipeline_desc>();
  wanted.kernel = "saxpy";
  const auto pipeline = mps::make<mps::pipeline>(mps_pipeline_create, library.get(), &wanted);
  const auto queue = mps::make<mps::queue>(mps_queue_create, device.get(), nullptr);

  float *x, *y;
  const auto x_buffer = make_buffer(device, x), y_buffer = make_buffer(device, y);
  for (std::size_t i = 0; i < count; i++) {
    x[i] = static_cast<float>(i);
    y[i] = 1;
  }
  const float a = 0.5f;
  const mps_argument arguments[] = {{MPS_ARGUMENT_BUFFER, 0, y_buffer.get(), 0, nullptr, 0},
                                    {MPS_ARGUMENT_BUFFER, 1, x_buffer.get(), 0, nullptr, 0},
                                    {MPS_ARGUMENT_BYTES, 2, nullptr, 0, &a, sizeof a}};
  auto dispatch = mps::sized<mps_dispatch>();
  dispatch.pipeline = pipeline.get();
  dispatch.arguments = arguments;
  dispatch.argument_count = 3;
  dispatch.grid[0] = count;
  dispatch.grid[1] = dispatch.grid[2] = 1;
  std::promise<uint64_t> completed;
  mps::check(mps_queue_add_handler(queue.get(), MPS_HANDLER_COMPLETED, on_completed, &completed));
  mps::check(mps_queue_dispatch(queue.get(), &dispatch));
  mps::check(mps_queue_commit(queue.get(), nullptr));
  std::cout << "command buffer " << completed.get_future().get() << " is complete\n";
  mps::check(mps_queue_wait(queue.get(), MPS_FOREVER)); // throws if the kernel failed

  std::size_t right = 0;
  for (std::size_t i = 0; i < count; i++) {
    right += y[i] - (1 + a * x[i]) == 0;
  }
  std::cout << right << " of " << count << " results are right\n";
  return right != count;
}

int main() {
  try {
    return saxpy();
  } catch (const mps::error &error) {
    std::cerr << mps_status_text(error.status) << ": " << error.what() << '\n';
    return 1;
  }
}
