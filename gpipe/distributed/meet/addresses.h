// Addresses: chooses the network interface through which this process meets the others.
//
// After a wrong choice the processes would wait for each other forever, so nothing is guessed: if
// several interfaces are possible, an error lists them.
#ifndef GPIPE_DISTRIBUTED_MEET_ADDRESSES_H_
#define GPIPE_DISTRIBUTED_MEET_ADDRESSES_H_

#include <functional>
#include <string>
#include <vector>

#include "gpipe/distributed/meet/environment.h"

namespace gpipe::distributed {

// The name of the machine that this process runs on.
std::string host_name();

// One address of an interface that is up.
struct Interface {
  std::string name;     // "eth0"
  std::string address;  // numeric, IPv4 or IPv6
  bool is_loopback = false;
};

// IPv4 addresses first. Link-local IPv6 addresses are left out: to reach one, a process would need
// more than the address.
std::vector<Interface> interfaces_of_this_machine();

// The address where processes of one machine meet: 127.0.0.1, or ::1 if the machine has no other
// loopback address.
std::string loopback_address(const std::vector<Interface>& interfaces);

struct Addresses {
  // The address at which the other processes reach this one, and the only one that it listens on.
  std::string own;
  // The address of the store. If rank 0 runs the store, rank 0 listens there.
  std::string master;
};

// The properties of the network on which the choice depends.
struct Network {
  std::vector<Interface> interfaces;
  // The numeric addresses of a host's name, IPv4 first; none if there is no such host.
  std::function<std::vector<std::string>(const std::string& host)> resolve;
  // The own address from which this machine sends to `address`; empty if it cannot.
  std::function<std::string(const std::string& address)> source_of;
};
Network network_of_this_machine();

// Throws std::invalid_argument, whose message says what to set.
Addresses choose_addresses(const Environment& environment, const Network& network);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_MEET_ADDRESSES_H_
