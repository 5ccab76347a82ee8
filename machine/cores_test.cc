#include "machine/cores.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace gpipe::machine {
namespace {

TEST(UsableCores, AreThoseOfTheAffinity) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), std::thread::hardware_concurrency());
  EXPECT_GE(machine_cores(), usable_cores());
  std::thread([] {
    cpu_set_t one_core;
    CPU_ZERO(&one_core);
    CPU_SET(sched_getcpu(), &one_core);
    ASSERT_EQ(sched_setaffinity(0, sizeof one_core, &one_core), 0);
    EXPECT_EQ(usable_cores(), 1);
    EXPECT_EQ(usable_core_numbers().size(), 1U);
  }).join();
}

// Returns core_quota() with these files in a temporary folder. `groups` is the content of
// /proc/self/cgroup.
std::optional<double> quota(const std::string& groups,
                            const std::vector<std::pair<std::string, std::string>>& files) {
  static int count = 0;
  const std::string folder = ::testing::TempDir() + "/cgroup" + std::to_string(count++);
  mkdir(folder.c_str(), 0777);
  std::ofstream(folder + "/self") << groups;
  for (const auto& [name, text] : files) {
    for (size_t slash = name.find('/', 1); slash != std::string::npos;
         slash = name.find('/', slash + 1)) {
      mkdir((folder + name.substr(0, slash)).c_str(), 0777);
    }
    std::ofstream(folder + name) << text << "\n";
  }
  return core_quota(folder + "/self", folder);
}

TEST(CoreQuota, OfTheSecondVersion) {
  const std::string self = "0::/a/b\n";
  EXPECT_EQ(quota(self, {}), std::nullopt);
  EXPECT_EQ(quota(self, {{"/a/b/cpu.max", "max 100000"}}), std::nullopt);
  EXPECT_EQ(quota(self, {{"/a/b/cpu.max", "150000 100000"}}), 1.5);
  EXPECT_EQ(quota(self, {{"/a/cpu.max", "50000 100000"}, {"/a/b/cpu.max", "max 100000"}}), 0.5);
  EXPECT_EQ(quota(self, {{"/a/cpu.max", "200000 100000"}, {"/a/b/cpu.max", "300000 100000"}}), 2);
  EXPECT_EQ(quota(self, {{"/a/other/cpu.max", "100000 100000"}}), std::nullopt);
  // A process in a container sees its own group as the root.
  EXPECT_EQ(quota("0::/\n", {{"/cpu.max", "400000 100000"}}), 4);
  EXPECT_EQ(quota("0::/docker/123\n", {{"/cpu.max", "400000 100000"}}), 4);
}

TEST(CoreQuota, OfTheFirstVersion) {
  const std::string self = "5:memory:/a\n4:cpu,cpuacct:/a\n1:cpuset:/\n0::/a\n";
  const std::string group = "/cpu,cpuacct/a/cpu.cfs_";
  EXPECT_EQ(quota(self, {{group + "quota_us", "-1"}, {group + "period_us", "100000"}}),
            std::nullopt);
  EXPECT_EQ(quota(self, {{group + "quota_us", "250000"}, {group + "period_us", "100000"}}), 2.5);
  EXPECT_EQ(quota("4:cpu:/host/path\n",
                  {{"/cpu/cpu.cfs_quota_us", "50000"}, {"/cpu/cpu.cfs_period_us", "25000"}}),
            2);
  // CentOS 7 lists cpuacct,cpu in /proc/self/cgroup, but its folder is cpu,cpuacct. The link /cpu
  // leads to that folder.
  EXPECT_EQ(quota("4:cpuacct,cpu:/a\n",
                  {{"/cpu/a/cpu.cfs_quota_us", "75000"}, {"/cpu/a/cpu.cfs_period_us", "25000"}}),
            3);
}

TEST(CoreQuota, WhatCannotBeReadIsNone) {
  EXPECT_EQ(core_quota("/no/such/file", "/no/such/folder"), std::nullopt);
  for (const char* text : {"", "max", "many 100000", "100000 0", "-5 100000", "100000 none"}) {
    EXPECT_EQ(quota("nonsense\n0::/\n::\n", {{"/cpu.max", text}}), std::nullopt) << text;
  }
}

TEST(CoreQuota, OnlyMakesFewer) {
  EXPECT_EQ(within_quota(8, std::nullopt), 8);
  EXPECT_EQ(within_quota(8, 16.0), 8);
  EXPECT_EQ(within_quota(8, 2.5), 2);
  EXPECT_EQ(within_quota(8, 0.5), 1);
  EXPECT_EQ(within_quota(0, std::nullopt), 1);
}

TEST(CoreQuota, AGroupIsTheSameForAllBelowItWhateverItsPath) {
  const std::string folder = ::testing::TempDir() + "/cgroup_names";
  for (const char* name : {"", "/pod", "/pod/a", "/pod/b"}) mkdir((folder + name).c_str(), 0777);
  for (const char* name : {"/pod", "/pod/a", "/pod/b"}) {
    std::ofstream(folder + name + "/cpu.max") << "200000 100000\n";
  }
  // `mount`: the folder that the process sees as the root.
  const auto groups = [&](const std::string& line, const std::string& mount) {
    const std::string file = folder + "/self";
    std::ofstream(file) << line;
    std::vector<std::string> names;
    for (const Quota& quota : core_quotas(file, folder + mount)) names.push_back(quota.group);
    return names;
  };
  const auto a = groups("0::/pod/a\n", "");
  const auto b = groups("0::/pod/b\n", "");
  ASSERT_EQ(a.size(), 2U);
  ASSERT_EQ(b.size(), 2U);
  EXPECT_NE(a[0], b[0]);
  EXPECT_EQ(a[1], b[1]);
  // A process in a container sees its own group as the root. The group has the same name there.
  EXPECT_EQ(groups("0::/\n", "/pod/a"), std::vector<std::string>{a[0]});
  EXPECT_EQ(groups("0::/a\n", "/pod"), a);
  EXPECT_EQ(groups("0::/\n", ""), std::vector<std::string>{});
}

}  // namespace
}  // namespace gpipe::machine
