/* A kernel that never ends: a wait for it times out, other queues go on, and the process can still exit. */
#include "host_fixture.h"

int main(int argc, char **argv) {
  fixture_open(argc, argv);
  mps_queue *hung = make_queue("hung"), *other = make_queue("other");
  mps_pipeline *forever = make_pipeline("forever"), *add = make_pipeline("add");
  mps_buffer *buffer = make_buffer(4), *sums = make_buffer(4000000);
  mps_event *event = make_event();
  run(hung, forever, buffer, NULL, 1000000); /* of many threadgroups, so that the pool hangs too */
  EXPECT_OK(mps_queue_signal(hung, event, 1));
  EXPECT_FAIL(mps_queue_wait(hung, 0), TIMEOUT, "'hung'");
  uint64_t before = device_time();
  EXPECT_FAIL(mps_queue_wait(hung, SECOND / 20), TIMEOUT, "50000000 ns");
  EXPECT(device_time() - before >= SECOND / 20);
  EXPECT(!is_idle(hung));
  EXPECT_FAIL(mps_event_wait(event, 1, SECOND / 50), TIMEOUT, "it is at 0");

  for (uint32_t i = 0; i < 3; i++) {
    uint32_t one = 1;
    run(other, add, sums, &one, 1000000);
    EXPECT_OK(mps_queue_wait(other, 60 * SECOND));
    EXPECT_EQUAL(words(sums)[999999], i + 1);
  }
  EXPECT(in_use(buffer));
  EXPECT_OK(mps_buffer_release(buffer));
  EXPECT_OK(mps_queue_release(hung));
  EXPECT_EQUAL(live_objects().buffers, 2);
  return 0; /* with the kernel still running */
}
