#include "gpipe/distributed/meet/addresses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpipe::distributed {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The network of a machine in a cluster whose machines map their own names to 127.0.1.1, as Debian
// does.
Network machine(const std::string& own_name) {
  Network network;
  network.interfaces = {{"lo", "127.0.0.1", true},
                        {"eth0", "10.0.0.2", false},
                        {"eth0", "fd00::2", false},
                        {"lo", "::1", true}};
  network.resolve = [own_name](const std::string& host) -> std::vector<std::string> {
    if (host == own_name) return {"127.0.1.1"};
    const std::map<std::string, std::string> names = {
        {"node1", "10.0.0.1"}, {"node2", "10.0.0.2"}, {"localhost", "127.0.0.1"}};
    const auto found = names.find(host);
    if (found != names.end()) return {found->second};
    if (host.find_first_not_of("0123456789.:abcdef") != std::string::npos) return {};
    return {host};
  };
  network.source_of = [](const std::string& address) -> std::string {
    return address.compare(0, 5, "10.0.") == 0 ? "10.0.0.2" : "";
  };
  return network;
}

Environment environment(const std::string& master, int64_t rank, bool is_one_machine = false) {
  Environment result;
  result.launcher = Launcher::kTorchrun;
  result.rank = rank;
  result.size = 4;
  result.local_size = is_one_machine ? 4 : 2;
  result.master_address = master;
  result.master_port = 29500;
  if (is_one_machine) result.interface = "127.0.0.1";
  return result;
}

void expect_addresses(const Environment& environment, const std::string& own,
                      const std::string& master, const Network& network = machine("node2")) {
  const Addresses addresses = choose_addresses(environment, network);
  EXPECT_EQ(addresses.own, own);
  EXPECT_EQ(addresses.master, master);
}

TEST(Addresses, OneMachineMeetsOnLoopback) {
  expect_addresses(environment("127.0.0.1", 1, true), "127.0.0.1", "127.0.0.1");
  expect_addresses(environment("node2", 0, true), "127.0.0.1", "127.0.0.1");
  // Ranks on one machine meet on loopback even if the user has named another address of rank 0.
  expect_addresses(environment("10.0.0.2", 0, true), "127.0.0.1", "127.0.0.1");
}

// Rank 0's host has A and AAAA records. All ranks must choose the same of its addresses.
TEST(Addresses, OfSeveralAddressesOfRankZerosHostAllTakeTheSame) {
  Network both = machine("node2");
  both.resolve = [](const std::string&) -> std::vector<std::string> {
    return {"10.0.0.1", "fd00::1"};
  };
  expect_addresses(environment("node1", 2), "10.0.0.2", "10.0.0.1", both);
  // A machine that has a route to IPv6 addresses only chooses rank 0's IPv6 address.
  both.source_of = [](const std::string& address) -> std::string {
    return address.compare(0, 4, "fd00") == 0 ? "fd00::2" : "";
  };
  expect_addresses(environment("node1", 2), "fd00::2", "fd00::1", both);
  both.source_of = [](const std::string&) -> std::string { return ""; };
  EXPECT_THAT(
      [&] { choose_addresses(environment("node1", 2), both); },
      ::testing::ThrowsMessage<std::invalid_argument>(HasSubstr("there is no way to 10.0.0.1")));
}

// A machine without IPv4.
Network ipv6_machine() {
  Network network = machine("node2");
  network.interfaces = {{"eth0", "fd00::2", false}, {"lo", "::1", true}};
  network.source_of = [](const std::string& address) -> std::string {
    return address.compare(0, 4, "fd00") == 0 ? "fd00::2" : "";
  };
  return network;
}

TEST(Addresses, LoopbackIsIpv6WhereThatIsAllThereIs) {
  EXPECT_EQ(loopback_address(machine("node2").interfaces), "127.0.0.1");
  EXPECT_EQ(loopback_address(ipv6_machine().interfaces), "::1");
  EXPECT_EQ(loopback_address({{"eth0", "10.0.0.2", false}, {"lo", "::1", true}}), "::1");
  EXPECT_EQ(loopback_address({}), "127.0.0.1");
  for (const char* master : {"127.0.0.1", "::1", "node2", "fd00::2"}) {
    expect_addresses(environment(master, 1, true), "::1", "::1", ipv6_machine());
  }
  Environment chosen = environment("::1", 1, true);
  chosen.sources["interface"] = "GPIPE_INTERFACE";
  for (const char* interface : {"::1", "lo"}) {
    chosen.interface = interface;
    expect_addresses(chosen, "::1", "::1", ipv6_machine());
  }
  chosen.interface = "eth0";
  expect_addresses(chosen, "fd00::2", "fd00::2", ipv6_machine());
  expect_addresses(environment("fd00::1", 2), "fd00::2", "fd00::1", ipv6_machine());
}

TEST(Addresses, OfAnInterfaceWithBothKindsTheOneOfRank0sKindCounts) {
  Environment chosen = environment("fd00::1", 2);
  chosen.interface = "eth0";
  expect_addresses(chosen, "fd00::2", "fd00::1");
  chosen.master_address = "node1";
  expect_addresses(chosen, "10.0.0.2", "10.0.0.1");
}

TEST(Addresses, OtherMachinesMeetByTheInterfaceThatReachesRank0) {
  expect_addresses(environment("node1", 2), "10.0.0.2", "10.0.0.1");
  expect_addresses(environment("10.0.0.1", 2), "10.0.0.2", "10.0.0.1");
}

TEST(Addresses, OnRank0sMachineItsNameMayLeadToLoopback) {
  expect_addresses(environment("node2", 0), "10.0.0.2", "10.0.0.2");
  expect_addresses(environment("node2", 1), "10.0.0.2", "10.0.0.2");
  expect_addresses(environment("node2", 0), "10.0.0.2", "10.0.0.2", machine("other"));
}

TEST(Addresses, TheUserChooses) {
  Environment chosen = environment("node1", 2);
  for (const char* interface : {"eth0", "10.0.0.2"}) {
    chosen.interface = interface;
    expect_addresses(chosen, "10.0.0.2", "10.0.0.1");
  }
  chosen.interface = "fd00::2";
  expect_addresses(chosen, "fd00::2", "10.0.0.1");
}

TEST(Addresses, ALaunchersStoreIsWhereTheLauncherSays) {
  Environment launchers = environment("node2", 0);
  launchers.store_is_the_launchers = true;
  expect_addresses(launchers, "10.0.0.2", "127.0.1.1");
}

TEST(Addresses, OneProcessNeedsNoNetwork) {
  expect_addresses(read_environment(std::map<std::string, std::string>{}), "127.0.0.1", "127.0.0.1",
                   Network{});
}

TEST(Addresses, SayWhatToSet) {
  const auto message = [](const Environment& environment, const Network& network) -> std::string {
    try {
      choose_addresses(environment, network);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  Environment wrong = environment("node1", 2);
  wrong.interface = "eth7";
  EXPECT_THAT(message(wrong, machine("node2")),
              AllOf(HasSubstr("GPIPE_INTERFACE='eth7'"), HasSubstr("eth0 (10.0.0.2)")));
  EXPECT_THAT(message(environment("nobody", 2), machine("node2")),
              HasSubstr("no address for the host 'nobody'"));
  EXPECT_THAT(message(environment("192.168.0.1", 2), machine("node2")),
              AllOf(HasSubstr("no way to 192.168.0.1"), HasSubstr("set GPIPE_INTERFACE")));
  // The machine has no IPv4, so 127.0.0.1 is not an address of this machine and is refused.
  wrong.interface = "127.0.0.1";
  EXPECT_THAT(message(wrong, ipv6_machine()),
              AllOf(HasSubstr("GPIPE_INTERFACE='127.0.0.1'"), HasSubstr("lo (::1)")));
  wrong.interface = "::1";
  Network v4 = machine("node2");
  v4.interfaces = {{"lo", "127.0.0.1", true}, {"eth0", "10.0.0.2", false}};
  EXPECT_THAT(message(wrong, v4),
              AllOf(HasSubstr("GPIPE_INTERFACE='::1'"), HasSubstr("lo (127.0.0.1)")));
  Network two = machine("node2");
  two.interfaces.push_back({"ib0", "10.1.0.2", false});
  EXPECT_THAT(message(environment("node2", 0), two),
              AllOf(HasSubstr("Set GPIPE_INTERFACE"), HasSubstr("ib0 (10.1.0.2)")));
}

TEST(Addresses, ThisMachineHasLoopback) {
  const Network network = network_of_this_machine();
  const auto is_loopback = [](const Interface& interface) {
    return interface.is_loopback && interface.address == "127.0.0.1";
  };
  EXPECT_TRUE(std::any_of(network.interfaces.begin(), network.interfaces.end(), is_loopback));
  EXPECT_THAT(network.resolve("127.0.0.1"), ::testing::ElementsAre("127.0.0.1"));
  EXPECT_EQ(network.source_of("127.0.0.1"), "127.0.0.1");
  EXPECT_THAT(network.resolve("no.such.host.invalid"), ::testing::IsEmpty());
}

}  // namespace
}  // namespace gpipe::distributed
