/* The limits of control groups, read from trees of files made up here. */
#include "expect.h"
#include "resources.h"

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];
static char path[256];

/* A file of the tree with its directories; gives its path. */
static const char *put(const char *name, const char *text) {
  snprintf(path, sizeof path, "%s/%s", root, name);
  for (char *slash = strchr(path + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    mkdir(path, 0700);
    *slash = '/';
  }
  FILE *file = fopen(path, "w");
  EXPECT(file != NULL);
  fputs(text, file);
  fclose(file);
  return path;
}

static int remove_one(const char *name, const struct stat *status, int type, struct FTW *walk) {
  (void)status;
  (void)type;
  (void)walk;
  return remove(name);
}

static void begin(void) {
  snprintf(root, sizeof root, "/tmp/mps-resources-XXXXXX");
  EXPECT(mkdtemp(root) != NULL);
}

static void end(void) {
  EXPECT_EQUAL(nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

static uint64_t memory(const char *groups) {
  char file[256];
  snprintf(file, sizeof file, "%s", put("groups", groups));
  return host_limits_group_memory(file, root);
}

static uint64_t cores(const char *groups) {
  char file[256];
  snprintf(file, sizeof file, "%s", put("groups", groups));
  return host_limits_group_cores(file, root);
}

static void test_version_2(void) {
  begin();
  EXPECT_EQUAL(memory("0::/\n"), UINT64_MAX);
  EXPECT_EQUAL(cores("0::/\n"), UINT64_MAX);
  put("a/b/memory.max", "max\n");
  put("a/b/cpu.max", "max 100000\n");
  EXPECT_EQUAL(memory("0::/a/b\n"), UINT64_MAX);
  EXPECT_EQUAL(cores("0::/a/b\n"), UINT64_MAX);
  put("a/memory.max", "3000000000\n"); /* a group above binds too */
  put("a/cpu.max", "350000 100000\n");
  EXPECT_EQUAL(memory("0::/a/b\n"), 3000000000);
  EXPECT_EQUAL(cores("0::/a/b\n"), 4);
  put("a/b/memory.max", "2000000000\n");
  put("a/b/cpu.max", "50000 100000\n");
  EXPECT_EQUAL(memory("0::/a/b\n"), 2000000000);
  EXPECT_EQUAL(cores("0::/a/b\n"), 1);
  put("memory.max", "1000000000\n"); /* a container sees its own group as the root */
  EXPECT_EQUAL(memory("0::/named/only/outside\n"), 1000000000);
  end();
}

static void test_version_1(void) {
  begin();
  put("memory/x/memory.limit_in_bytes", "5000000000\n");
  put("memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("cpu/x/cpu.cfs_quota_us", "250000\n");
  put("cpu/x/cpu.cfs_period_us", "100000\n");
  put("cpu/y/cpu.cfs_quota_us", "-1\n");
  put("cpu/y/cpu.cfs_period_us", "100000\n");
  EXPECT_EQUAL(memory("9:name=systemd:/\n4:memory:/x\n0::/\n"), 5000000000);
  EXPECT_EQUAL(cores("2:cpuset:/z\n1:cpu,cpuacct:/x\n"), 3);
  EXPECT_EQUAL(cores("1:cpuacct,cpu:/y\n"), UINT64_MAX);
  EXPECT_EQUAL(cores("1:cpuset:/x\n"), UINT64_MAX);
  end();
}

static void test_nothing_to_read(void) {
  EXPECT_EQUAL(host_limits_group_memory("/nowhere/groups", "/nowhere"), UINT64_MAX);
  begin();
  EXPECT_EQUAL(memory(""), UINT64_MAX);
  EXPECT_EQUAL(memory("garbage\n:\n::\n"), UINT64_MAX);
  put("memory.max", "");
  put("cpu.max", "100000\n");
  EXPECT_EQUAL(memory("0::/\n"), UINT64_MAX);
  EXPECT_EQUAL(cores("0::/\n"), UINT64_MAX);
  end();
}

static void test_process(void) {
  EXPECT(host_limits_cores() >= 1);
  EXPECT(host_limits_memory() <= (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE));
}

int main(void) {
  test_version_2();
  test_version_1();
  test_nothing_to_read();
  test_process();
  return 0;
}
