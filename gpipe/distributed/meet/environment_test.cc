#include "gpipe/distributed/meet/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>

#include "tools/testing/wrong_input.h"

namespace gpipe::distributed {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using Map = std::map<std::string, std::string>;

const Map kTorchrun = {{"RANK", "5"},
                       {"WORLD_SIZE", "8"},
                       {"LOCAL_RANK", "1"},
                       {"LOCAL_WORLD_SIZE", "4"},
                       {"MASTER_ADDR", "node03"},
                       {"MASTER_PORT", "29500"},
                       {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                       {"TORCHELASTIC_RUN_ID", "none"},
                       {"TORCHELASTIC_ERROR_FILE", "/tmp/error.json"}};
const Map kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                      {"OMPI_COMM_WORLD_SIZE", "4"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                      {"PMIX_NAMESPACE", "806748161"}};
const Map kMpich = {{"PMI_RANK", "1"},
                    {"PMI_SIZE", "2"},
                    {"MPI_LOCALRANKID", "1"},
                    {"MPI_LOCALNRANKS", "2"},
                    {"MASTER_PORT", "29500"}};
// Seven tasks on four nodes, which have 2, 2, 2 and 1 of them.
const Map kSlurm = {{"SLURM_PROCID", "5"},
                    {"SLURM_NTASKS", "7"},
                    {"SLURM_LOCALID", "1"},
                    {"SLURM_NODEID", "2"},
                    {"SLURM_JOB_ID", "4711"},
                    {"SLURM_STEP_ID", "0"},
                    {"SLURM_STEP_NUM_TASKS", "7"},
                    {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                    {"SLURM_STEP_NODELIST", "node[03-05,7]"},
                    {"SLURM_LAUNCH_NODE_IPADDR", "192.168.0.1"}};

// `variables` with `changes`; the value "unset" removes a variable.
Map with(Map variables, const Map& changes) {
  for (const auto& [name, value] : changes) {
    variables[name] = value;
    if (value == "unset") variables.erase(name);
  }
  return variables;
}

void expect_numbers(const Environment& environment, int64_t rank, int64_t size, int64_t local_rank,
                    int64_t local_size) {
  EXPECT_EQ(environment.rank, rank);
  EXPECT_EQ(environment.size, size);
  EXPECT_EQ(environment.local_rank, local_rank);
  EXPECT_EQ(environment.local_size, local_size);
}

TEST(Environment, WithoutALauncherThereIsOneProcess) {
  const Environment environment = read_environment(Map{{"MASTER_ADDR", "left over"}});
  EXPECT_EQ(environment.launcher, Launcher::kNone);
  expect_numbers(environment, 0, 1, 0, 1);
  EXPECT_EQ(environment.master_address, "127.0.0.1");
  EXPECT_EQ(environment.interface, "127.0.0.1");
  EXPECT_THAT(to_text(environment), HasSubstr("one process"));
}

TEST(Environment, Torchrun) {
  const Environment environment = read_environment(kTorchrun);
  EXPECT_EQ(environment.launcher, Launcher::kTorchrun);
  expect_numbers(environment, 5, 8, 1, 4);
  EXPECT_EQ(environment.master_address, "node03");
  EXPECT_EQ(environment.master_port, 29500);
  EXPECT_TRUE(environment.store_is_the_launchers);
  EXPECT_EQ(environment.error_file, "/tmp/error.json");
  EXPECT_EQ(environment.interface, "");
  EXPECT_FALSE(environment.is_one_machine());
}

TEST(Environment, TorchrunCountsItsRestarts) {
  EXPECT_EQ(read_environment(kTorchrun).restarts, 0);
  const Environment again =
      read_environment(with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "3"}}));
  EXPECT_EQ(again.restarts, 3);
  EXPECT_THAT(to_text(again), HasSubstr(", restart 3 (TORCHELASTIC_RESTART_COUNT)"));
  EXPECT_THROW(read_environment(with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "-1"}})),
               std::invalid_argument);
}

TEST(Environment, TorchrunsNamesSetByHandLeaveTheStoreToRank0) {
  const Environment environment =
      read_environment(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "unset"},
                                        {"TORCHELASTIC_RUN_ID", "unset"},
                                        {"TORCHELASTIC_ERROR_FILE", "unset"}}));
  EXPECT_EQ(environment.launcher, Launcher::kTorchrun);
  EXPECT_FALSE(environment.store_is_the_launchers);
  EXPECT_EQ(environment.error_file, "");
  EXPECT_FALSE(read_environment(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}))
                   .store_is_the_launchers);
}

TEST(Environment, OurLauncherHasANameOfItsOwnUnlessItHasStartedTorchrun) {
  EXPECT_EQ(read_environment(with(kTorchrun, {{"GPIPE_LAUNCHER", "1"}})).launcher,
            Launcher::kTorchrun);
  EXPECT_EQ(
      read_environment(with(kTorchrun, {{"GPIPE_LAUNCHER", "1"}, {"TORCHELASTIC_RUN_ID", "unset"}}))
          .launcher,
      Launcher::kGPipe);
}

TEST(Environment, OpenMpiOnOneMachineMeetsAtAPortThatItsJobGives) {
  const Environment environment = read_environment(kOpenMpi);
  EXPECT_EQ(environment.launcher, Launcher::kOpenMpi);
  expect_numbers(environment, 1, 4, 1, 4);
  EXPECT_EQ(environment.master_address, "127.0.0.1");
  EXPECT_EQ(environment.interface, "127.0.0.1");
  EXPECT_GE(environment.master_port, 20000);
  EXPECT_LT(environment.master_port, 32000);
  // Other ranks of the job must find the same port, and another job another port.
  EXPECT_EQ(environment.master_port,
            read_environment(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "2"},
                                             {"OMPI_COMM_WORLD_LOCAL_RANK", "2"}}))
                .master_port);
  EXPECT_NE(environment.master_port,
            read_environment(with(kOpenMpi, {{"PMIX_NAMESPACE", "806748162"}})).master_port);
}

TEST(Environment, OpenMpiOnSeveralMachinesNeedsTheAddressOnly) {
  const Environment environment = read_environment(
      with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.7"}}));
  EXPECT_EQ(environment.master_address, "10.0.0.7");
  EXPECT_EQ(environment.interface, "");
  EXPECT_GT(environment.master_port, 0);
}

TEST(Environment, WhatIsGivenToOpenMpiIsTaken) {
  const Environment environment =
      read_environment(with(kOpenMpi, {{"MASTER_ADDR", "::1"}, {"MASTER_PORT", "65535"}}));
  EXPECT_EQ(environment.master_address, "::1");
  EXPECT_EQ(environment.master_port, 65535);
}

TEST(Environment, Mpich) {
  const Environment environment = read_environment(kMpich);
  EXPECT_EQ(environment.launcher, Launcher::kMpich);
  expect_numbers(environment, 1, 2, 1, 2);
  EXPECT_EQ(environment.master_address, "127.0.0.1");
  EXPECT_EQ(environment.master_port, 29500);
}

TEST(Environment, Srun) {
  const Environment environment = read_environment(kSlurm);
  EXPECT_EQ(environment.launcher, Launcher::kSlurm);
  expect_numbers(environment, 5, 7, 1, 2);
  EXPECT_EQ(environment.master_address, "node03");
  EXPECT_GT(environment.master_port, 0);
  EXPECT_NE(environment.master_port,
            read_environment(with(kSlurm, {{"SLURM_STEP_ID", "1"}})).master_port);
}

TEST(Environment, SrunOnTheLastNodeWhichHasFewerTasks) {
  const Environment environment = read_environment(
      with(kSlurm, {{"SLURM_PROCID", "6"}, {"SLURM_NODEID", "3"}, {"SLURM_LOCALID", "0"}}));
  expect_numbers(environment, 6, 7, 0, 1);
}

TEST(Environment, SrunWithoutItsNodesMeetsWhereItWasCalled) {
  EXPECT_EQ(read_environment(with(kSlurm, {{"SLURM_STEP_NODELIST", "unset"}})).master_address,
            "192.168.0.1");
}

TEST(Environment, SrunOnOneNodeMeetsOnLoopback) {
  const Environment environment =
      read_environment(with(kSlurm, {{"SLURM_NTASKS", "2"},
                                     {"SLURM_STEP_NUM_TASKS", "2"},
                                     {"SLURM_PROCID", "1"},
                                     {"SLURM_NODEID", "0"},
                                     {"SLURM_STEP_TASKS_PER_NODE", "2"}}));
  EXPECT_EQ(environment.master_address, "127.0.0.1");
  EXPECT_EQ(environment.interface, "127.0.0.1");
}

TEST(Environment, ABatchScriptOfOneTaskIsOneProcess) {
  expect_numbers(read_environment(Map{{"SLURM_PROCID", "0"},
                                      {"SLURM_NTASKS", "1"},
                                      {"SLURM_JOB_ID", "3"},
                                      {"SLURM_LOCALID", "0"}}),
                 0, 1, 0, 1);
}

// If the variables of several launchers are set, the first in the order torchrun, mpirun, mpiexec,
// srun counts.
TEST(Environment, TheFirstLauncherOfSeveralCounts) {
  Map variables = kSlurm;
  variables.insert(kMpich.begin(), kMpich.end());
  EXPECT_EQ(read_environment(variables).launcher, Launcher::kMpich);
  variables.insert(kOpenMpi.begin(), kOpenMpi.end());
  EXPECT_EQ(read_environment(variables).launcher, Launcher::kOpenMpi);
  variables.insert({{"RANK", "0"},
                    {"WORLD_SIZE", "1"},
                    {"LOCAL_RANK", "0"},
                    {"LOCAL_WORLD_SIZE", "1"},
                    {"MASTER_ADDR", "localhost"}});
  EXPECT_EQ(read_environment(variables).launcher, Launcher::kTorchrun);
}

TEST(Environment, SlurmsOwnPmiIsSrun) {
  EXPECT_EQ(read_environment(with(kSlurm, {{"PMI_RANK", "5"}, {"PMI_SIZE", "7"}})).launcher,
            Launcher::kSlurm);
}

TEST(Environment, VariablesThatAgreeWithTheLauncherAreFine) {
  expect_numbers(read_environment(with(kSlurm, {{"WORLD_SIZE", "7"}, {"LOCAL_RANK", "1"}})), 5, 7,
                 1, 2);
}

TEST(Environment, TheInterfaceIsAChoice) {
  for (const char* interface : {"eth0", "10.0.0.7", "2001:db8:1234:5678:9abc:def0:1234:5678"}) {
    const Environment environment =
        read_environment(with(kTorchrun, {{"GPIPE_INTERFACE", interface}}));
    EXPECT_EQ(environment.interface, interface);
    EXPECT_THAT(to_text(environment), HasSubstr("(GPIPE_INTERFACE)"));
  }
}

TEST(Environment, AnIpv6AddressMayBeInBrackets) {
  for (const char* address : {"[fd00::2]", "fd00::2", "[fd00:0:0:0:0:0:0:2]", "FD00::2"}) {
    const Environment environment =
        read_environment(with(kTorchrun, {{"MASTER_ADDR", address}, {"GPIPE_INTERFACE", address}}));
    EXPECT_EQ(environment.master_address, "fd00::2");
    EXPECT_EQ(environment.interface, "fd00::2");
  }
}

TEST(Environment, ItsAnnouncementIsShort) {
  EXPECT_EQ(announcement(read_environment(kTorchrun), "10.0.0.3:29500", "10.0.0.4"),
            "started by torchrun: rank 5 of 8, 4 on this machine; the launcher's store is at "
            "10.0.0.3:29500, this rank listens on 10.0.0.4");
  EXPECT_EQ(announcement(read_environment(kOpenMpi), "[::1]:29500", "::1"),
            "started by Open MPI's mpirun: rank 1 of 4, 4 on this machine; the store is at "
            "[::1]:29500, this rank listens on ::1 (all ranks are on one machine)");
}

TEST(Environment, ItsTextHasEveryValueAndItsVariable) {
  EXPECT_EQ(
      to_text(read_environment(kTorchrun)),
      "started by torchrun: rank 5 (RANK) of 8 (WORLD_SIZE), on this machine 1 (LOCAL_RANK) of "
      "4 (LOCAL_WORLD_SIZE), store of the launcher (TORCHELASTIC_USE_AGENT_STORE) at node03 "
      "(MASTER_ADDR) port 29500 (MASTER_PORT), interface the one that reaches it, errors to "
      "/tmp/error.json (TORCHELASTIC_ERROR_FILE)");
  const std::string slurm = to_text(read_environment(kSlurm));
  EXPECT_THAT(slurm, HasSubstr("started by srun: rank 5 (SLURM_PROCID) of 7 (SLURM_NTASKS)"));
  EXPECT_THAT(slurm, HasSubstr("node03 (the first of SLURM_STEP_NODELIST)"));
  EXPECT_THAT(slurm, HasSubstr("(made of SLURM_JOB_ID and SLURM_STEP_ID)"));
  EXPECT_THAT(to_text(read_environment(kOpenMpi)),
              HasSubstr("interface 127.0.0.1 (all ranks are on one machine)"));
}

TEST(Environment, MoreThreadsThanCoresAreTold) {
  const std::vector<CoreSource> four(4, {"node1", 8, {}});
  EXPECT_EQ(too_many_threads(four, 8, /*is_chosen=*/false),
            "each of the 4 processes on 'node1' has 8 threads per operator, and there are 8 "
            "cores: set OMP_NUM_THREADS=2 (the bits depend on it, too)");
  // 4 processes with 2 threads each fit on 8 cores.
  EXPECT_EQ(too_many_threads(four, 2, false), "");
  EXPECT_EQ(too_many_threads(four, 8, /*is_chosen=*/true), "");
  EXPECT_EQ(too_many_threads({{"node1", 2, {}}, {"node2", 2, {}}}, 2, false), "");
  EXPECT_EQ(too_many_threads({{"node1", 1, {}}, {"node1", 1, {}}}, 1, false), "");
}

TEST(Environment, MoreThreadsThanQuotasGiveAreTold) {
  const auto warning = [](const std::vector<std::vector<machine::Quota>>& of_ranks,
                          int64_t threads) {
    std::vector<CoreSource> sources;
    for (const auto& quotas : of_ranks) sources.push_back({"node1", 64, quotas});
    return too_many_threads(sources, threads, /*is_chosen=*/false);
  };
  // If each process has a quota of two cores for itself, two threads are not too many. If they
  // share one quota, they are.
  EXPECT_EQ(warning({{{"a", 2}}, {{"b", 2}}}, 2), "");
  EXPECT_THAT(warning({{{"a", 2}}, {{"a", 2}}}, 2),
              HasSubstr("each of the 2 processes that share a quota of time on 'node1' has 2"));
  EXPECT_EQ(warning({{}, {{"b", 2}}}, 4),
            "the process with a quota of time on 'node1' has 4 threads per operator, and there are "
            "2 cores: set OMP_NUM_THREADS=2 (the bits depend on it, too)");
  EXPECT_THAT(warning({{}, {{"b", 1.5}}}, 4), HasSubstr("there is 1 core: set"));
  // The processes are in groups below "pod", which has a quota of four cores. That quota counts,
  // whether the groups have larger quotas of their own or none.
  EXPECT_THAT(warning({{{"pod", 4}, {"a", 6}}, {{"pod", 4}, {"b", 6}}}, 4),
              AllOf(HasSubstr("each of the 2 processes that share a quota"),
                    HasSubstr("there are 4 cores: set OMP_NUM_THREADS=2 ")));
  EXPECT_THAT(warning({{{"pod", 4}}, {{"pod", 4}}, {{"pod", 4}}}, 2),
              HasSubstr("set OMP_NUM_THREADS=1 "));
  // The message names the limit that leaves the fewest cores.
  EXPECT_THAT(warning({{{"pod", 8}, {"a", 1}}, {{"pod", 8}}}, 8),
              HasSubstr("set OMP_NUM_THREADS=1 "));
}

TEST(Environment, LinksNeedStreamsThatDoNotWaitForEachOther) {
  const Map links = with(kTorchrun, {{"GPIPE_DEVICE_LINKS", "nccl"}});
  const auto refused = [](const Map& variables) -> std::string {
    try {
      read_environment(variables);
      return "";
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
  };
  EXPECT_EQ(read_environment(links).device_links, "nccl");
  EXPECT_THAT(refused(with(links, {{"CUDA_LAUNCH_BLOCKING", "1"}})),
              AllOf(HasSubstr("CUDA_LAUNCH_BLOCKING='1' with GPIPE_DEVICE_LINKS='nccl'"),
                    HasSubstr("receives"), HasSubstr("Unset CUDA_LAUNCH_BLOCKING"),
                    HasSubstr("by way of the host")));
  EXPECT_THAT(refused(with(links, {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}})),
              AllOf(HasSubstr("CUDA_DEVICE_MAX_CONNECTIONS='1' with GPIPE_DEVICE_LINKS='nccl'"),
                    HasSubstr("share one queue"), HasSubstr("CUDA_DEVICE_MAX_CONNECTIONS=32")));
  for (const char* wrong : {"0", "33", "64", "-8", "x", "8x"}) {
    EXPECT_THAT(refused(with(links, {{"CUDA_DEVICE_MAX_CONNECTIONS", wrong}})),
                AllOf(HasSubstr("='" + std::string(wrong) + "' is not a number"),
                      HasSubstr("from 2 to 32")));
  }
  for (const char* queues : {"", "2", "8", "32"}) {
    const Map harmless = {{"CUDA_LAUNCH_BLOCKING", "0"}, {"CUDA_DEVICE_MAX_CONNECTIONS", queues}};
    EXPECT_EQ(refused(with(links, harmless)), "") << queues;
  }
  // These settings are refused only with links between devices. If tensors go by way of the host,
  // or if there is one process, no stream waits for another process.
  const Map harmful = {{"CUDA_LAUNCH_BLOCKING", "1"}, {"CUDA_DEVICE_MAX_CONNECTIONS", "1"}};
  EXPECT_EQ(refused(with(kTorchrun, harmful)), "");
  EXPECT_EQ(refused(with(with(links, harmful), {{"GPIPE_DEVICE_LINKS", "host"}})), "");
  EXPECT_EQ(refused(with(Map{{"GPIPE_DEVICE_LINKS", "nccl"}}, harmful)), "");
}

TEST(Environment, ItsTextIsOneLine) {
  EXPECT_THAT(
      to_text(read_environment(with(kTorchrun, {{"TORCHELASTIC_ERROR_FILE", "/tmp/a\nb"}}))),
      Not(HasSubstr("\n")));
}

TEST(Environment, OfThisProcess) {
  ASSERT_EQ(setenv("RANK", "-1", 1), 0);
  EXPECT_THROW(environment_of_this_process(), std::invalid_argument);
  ASSERT_EQ(unsetenv("RANK"), 0);
}

using Row = testing::WrongInput<>;

class WrongEnvironment : public ::testing::TestWithParam<Row> {};

TEST_P(WrongEnvironment, IsRefused) { testing::expect_refused(GetParam()); }

Row wrong(const char* name, const Map& variables, std::vector<std::string> parts) {
  return {name, [variables] { read_environment(variables); }, typeid(std::invalid_argument),
          std::move(parts)};
}

INSTANTIATE_TEST_SUITE_P(
    Torchrun, WrongEnvironment,
    ::testing::Values(
        wrong("RankTooLarge", with(kTorchrun, {{"RANK", "8"}}),
              {"RANK='8'", "WORLD_SIZE='8'", "count from 0"}),
        wrong("NegativeRank", with(kTorchrun, {{"RANK", "-1"}}), {"RANK='-1'", "from 0 to"}),
        wrong("BracketsAroundAName", with(kTorchrun, {{"MASTER_ADDR", "[node03]"}}),
              {"MASTER_ADDR='[node03]'", "neither an address nor the name of a host"}),
        wrong("NoNumber", with(kTorchrun, {{"WORLD_SIZE", "8x"}}),
              {"WORLD_SIZE='8x'", "whole number"}),
        wrong("EmptyNumber", with(kTorchrun, {{"RANK", ""}}), {"RANK=''", "whole number"}),
        wrong("Plus", with(kTorchrun, {{"RANK", "+1"}}), {"RANK='+1'", "whole number"}),
        wrong("HugeNumber", with(kTorchrun, {{"WORLD_SIZE", "99999999999999999999"}}),
              {"WORLD_SIZE='99999999999999999999'", "from 1 to 2147483647"}),
        wrong("NoRanks", with(kTorchrun, {{"WORLD_SIZE", "0"}}), {"WORLD_SIZE='0'", "from 1"}),
        wrong("NoSize", with(kTorchrun, {{"WORLD_SIZE", "unset"}}),
              {"WORLD_SIZE is not set", "RANK='5'", "torchrun"}),
        wrong("NoRank", with(kTorchrun, {{"RANK", "unset"}}),
              {"RANK is not set", "WORLD_SIZE='8'", "unset all"}),
        wrong("NoLocalRank", with(kTorchrun, {{"LOCAL_RANK", "unset"}}), {"LOCAL_RANK is not set"}),
        wrong("NoLocalSize", with(kTorchrun, {{"LOCAL_WORLD_SIZE", "unset"}}),
              {"LOCAL_WORLD_SIZE is not set"}),
        wrong("NoAddress", with(kTorchrun, {{"MASTER_ADDR", "unset"}}),
              {"MASTER_ADDR is not set", "RANK='5'"}),
        wrong("NoPort", with(kTorchrun, {{"MASTER_PORT", "unset"}}), {"MASTER_PORT is not set"}),
        wrong("EmptyAddress", with(kTorchrun, {{"MASTER_ADDR", ""}}), {"MASTER_ADDR=''"}),
        wrong("TwoAddresses", with(kTorchrun, {{"MASTER_ADDR", "a b"}}), {"MASTER_ADDR='a b'"}),
        wrong("Port0", with(kTorchrun, {{"MASTER_PORT", "0"}}),
              {"MASTER_PORT='0'", "from 1 to 65535"}),
        wrong("PortTooLarge", with(kTorchrun, {{"MASTER_PORT", "65536"}}), {"MASTER_PORT='65536'"}),
        wrong("LocalRankTooLarge", with(kTorchrun, {{"LOCAL_RANK", "4"}}),
              {"LOCAL_RANK='4'", "LOCAL_WORLD_SIZE='4'"}),
        wrong("LocalSizeTooLarge", with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}}),
              {"LOCAL_WORLD_SIZE='9'", "WORLD_SIZE='8'"}),
        wrong("Store", with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "yes"}}),
              {"TORCHELASTIC_USE_AGENT_STORE='yes'", "True"}),
        wrong("BytesAreShown", with(kTorchrun, {{"RANK", "\x1b[2J"}}), {"RANK='\\x1b[2J'"}),
        wrong("EmptyInterface", with(kTorchrun, {{"GPIPE_INTERFACE", ""}}),
              {"GPIPE_INTERFACE=''", "ip -brief address"}),
        wrong("LongInterface", with(kTorchrun, {{"GPIPE_INTERFACE", "an.interface.or.a.host"}}),
              {"GPIPE_INTERFACE='an.interface.or.a.host'"}),
        wrong("OnlyALocalRank", Map{{"LOCAL_RANK", "0"}}, {"RANK is not set", "LOCAL_RANK='0'"})),
    testing::row_name);

INSTANTIATE_TEST_SUITE_P(
    Mpi, WrongEnvironment,
    ::testing::Values(wrong("NoSize", with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "unset"}}),
                            {"OMPI_COMM_WORLD_SIZE is not set", "mpirun"}),
                      wrong("NoRank", with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "unset"}}),
                            {"OMPI_COMM_WORLD_RANK is not set", "OMPI_COMM_WORLD_SIZE='4'"}),
                      wrong("RankTooLarge", with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "4"}}),
                            {"OMPI_COMM_WORLD_RANK='4'", "OMPI_COMM_WORLD_SIZE='4'"}),
                      wrong("NoAddress", with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}),
                            {"MASTER_ADDR is not set", "-x MASTER_ADDR"}),
                      wrong("NoPort", with(kOpenMpi, {{"PMIX_NAMESPACE", "unset"}}),
                            {"MASTER_PORT is not set", "-x MASTER_ADDR=HOST -x MASTER_PORT"}),
                      wrong("OtherSize", with(kOpenMpi, {{"WORLD_SIZE", "8"}}),
                            {"WORLD_SIZE='8'", "mpirun", "4 (OMPI_COMM_WORLD_SIZE)"}),
                      wrong("PmiNoPort", with(kMpich, {{"MASTER_PORT", "unset"}}),
                            {"MASTER_PORT is not set", "-genv MASTER_PORT"}),
                      wrong("PmiNoLocalRank", with(kMpich, {{"MPI_LOCALRANKID", "unset"}}),
                            {"MPI_LOCALRANKID is not set", "PMI_RANK='1'"}),
                      wrong("PmiNoSize", with(kMpich, {{"PMI_SIZE", "unset"}}),
                            {"PMI_SIZE is not set"})),
    testing::row_name);

INSTANTIATE_TEST_SUITE_P(
    Slurm, WrongEnvironment,
    ::testing::Values(
        wrong("NoTasks", with(kSlurm, {{"SLURM_NTASKS", "unset"}}),
              {"SLURM_NTASKS is not set", "srun"}),
        wrong("MoreTasksThanRanks",
              Map{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "0"}},
              {"SLURM_NTASKS='8'", "SLURM_STEP_ID is not set", "srun"}),
        wrong("OtherTasks", with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"}}),
              {"SLURM_NTASKS='7'", "SLURM_STEP_NUM_TASKS='1'"}),
        wrong("RankTooLarge", with(kSlurm, {{"SLURM_PROCID", "7"}}), {"SLURM_PROCID='7'"}),
        wrong("NoLocalRank", with(kSlurm, {{"SLURM_LOCALID", "unset"}}),
              {"SLURM_LOCALID is not set"}),
        wrong("LocalRankTooLarge", with(kSlurm, {{"SLURM_LOCALID", "2"}}),
              {"SLURM_LOCALID='2'", "SLURM_STEP_TASKS_PER_NODE='2(x3),1'"}),
        wrong("NoNode", with(kSlurm, {{"SLURM_NODEID", "unset"}}), {"SLURM_NODEID is not set"}),
        wrong("NodeTooLarge", with(kSlurm, {{"SLURM_NODEID", "4"}}), {"SLURM_NODEID='4'"}),
        wrong("NoTasksPerNode", with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "unset"}}),
              {"SLURM_TASKS_PER_NODE is not set"}),
        wrong("DamagedTasksPerNode", with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2(x"}}),
              {"SLURM_STEP_TASKS_PER_NODE='2(x'", "brackets"}),
        wrong("WrongSum", with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2(x3)"}}),
              {"SLURM_STEP_TASKS_PER_NODE='2(x3)'", "SLURM_NTASKS='7'"}),
        wrong("DamagedNodes", with(kSlurm, {{"SLURM_STEP_NODELIST", "node[03-"}}),
              {"SLURM_STEP_NODELIST='node[03-'", "brackets"}),
        wrong("NoHost",
              with(kSlurm,
                   {{"SLURM_STEP_NODELIST", "unset"}, {"SLURM_LAUNCH_NODE_IPADDR", "unset"}}),
              {"MASTER_ADDR is not set"}),
        wrong("OtherLocalRank", with(kSlurm, {{"LOCAL_RANK", "5"}}),
              {"LOCAL_RANK='5'", "1 (SLURM_LOCALID)"})),
    testing::row_name);

}  // namespace
}  // namespace gpipe::distributed
