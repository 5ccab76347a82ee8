// Addresses: by which network interface this process meets the others.
//
// A wrong choice shows as processes that wait for each other for ever, so nothing is guessed: where
// there are several that might be meant, it is an error that lists them.
#ifndef GPIPE_DISTRIBUTED_MEET_ADDRESSES_H_
#define GPIPE_DISTRIBUTED_MEET_ADDRESSES_H_

#include <functional>
#include <string>
#include <vector>

#include "gpipe/distributed/meet/environment.h"

namespace gpipe::distributed {

// One address of an interface that is up.
struct Interface {
  std::string name;     // "eth0"
  std::string address;  // numeric, IPv4 or IPv6
  bool is_loopback = false;
};

// IPv4 first; without IPv6 addresses of one link, which need more than an address to be reached.
std::vector<Interface> interfaces_of_this_machine();

// Where processes of one machine meet: 127.0.0.1, or ::1 if that is the only one that it has.
std::string loopback_address(const std::vector<Interface>& interfaces);

struct Addresses {
  // By which the other processes reach this one, and the only one that it listens on.
  std::string own;
  // Where the store is. If rank 0 has it, rank 0 listens there.
  std::string master;
};

// What the choice depends on.
struct Network {
  std::vector<Interface> interfaces;
  // The numeric addresses of a host's name, IPv4 first; none if there is no such host.
  std::function<std::vector<std::string>(const std::string& host)> resolve;
  // The address from which this machine sends to another one; empty if it cannot.
  std::function<std::string(const std::string& address)> source_of;
};
Network network_of_this_machine();

// Throws std::invalid_argument that says what to set.
Addresses choose_addresses(const Environment& environment, const Network& network);

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_MEET_ADDRESSES_H_
