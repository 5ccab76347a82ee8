#include "gpipe/distributed/meet/addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <system_error>

#include "gpipe/distributed/sockets/sockets.h"
#include "text/quoted.h"

namespace gpipe::distributed {
namespace {

using internal::quoted;

// The address as numeric text; empty if it is neither IPv4 nor IPv6.
std::string numeric(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN];
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
  }
  if (address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
    return inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
  }
  return "";
}

bool is_link_local(const sockaddr* address) {
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

bool is_v6(const std::string& address) { return address.find(':') != std::string::npos; }

using AddressInfo = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;
AddressInfo look_up(const std::string& host, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) found = nullptr;
  return {found, freeaddrinfo};
}

// The addresses are sorted, because the system's own order may differ from machine to machine.
std::vector<std::string> resolve_host(const std::string& host) {
  const AddressInfo found = look_up(host, 0);
  std::vector<std::string> addresses;
  for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
    const std::string address = numeric(each->ai_addr);
    if (!address.empty()) addresses.push_back(address);
  }
  std::stable_sort(addresses.begin(), addresses.end(),
                   [](const auto& a, const auto& b) { return is_v6(a) < is_v6(b); });
  return addresses;
}

// The own address from which this machine sends to `address`. Connecting a datagram socket sends
// nothing, and only asks the system for the route.
std::string find_source(const std::string& address) {
  const AddressInfo found = look_up(address, AI_NUMERICHOST);
  if (!found) return "";
  sockaddr_storage target{};
  std::memcpy(&target, found->ai_addr, found->ai_addrlen);
  (target.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&target)->sin6_port
                                : reinterpret_cast<sockaddr_in*>(&target)->sin_port) = htons(9);
  const Socket socket(::socket(target.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage source{};
  socklen_t size = sizeof source;
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&target), found->ai_addrlen) != 0 ||
      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&source), &size) != 0) {
    return "";
  }
  return numeric(reinterpret_cast<sockaddr*>(&source));
}

bool is_loopback(const std::string& address) {
  return address.compare(0, 4, "127.") == 0 || address == "::1";
}

std::string listed(const std::vector<Interface>& interfaces) {
  std::string text;
  for (const Interface& interface : interfaces) {
    text += (text.empty() ? "" : ", ") + interface.name + " (" + interface.address + ")";
  }
  return text.empty() ? "none" : text;
}

// The address that GPIPE_INTERFACE names. If it names an interface with IPv4 and IPv6 addresses,
// the address has the kind of `master`, rank 0's address.
std::string chosen_by_user(const Environment& environment, const std::string& master,
                           const Network& network) {
  std::string named;
  for (const Interface& interface : network.interfaces) {
    if (interface.address == environment.interface) return interface.address;
    if (interface.name != environment.interface) continue;
    const bool is_better = !is_loopback(master) && is_v6(interface.address) == is_v6(master);
    if (named.empty() || (is_better && is_v6(named) != is_v6(master))) named = interface.address;
  }
  if (!named.empty()) return named;
  // If the machine has IPv4, the user may name any address in 127.0.0.0/8, because all of them
  // belong to the machine.
  const bool has_v4 =
      std::any_of(network.interfaces.begin(), network.interfaces.end(),
                  [](const Interface& each) { return each.is_loopback && !is_v6(each.address); });
  if (has_v4 && !is_v6(environment.interface) && is_loopback(environment.interface)) {
    return environment.interface;
  }
  throw std::invalid_argument("GPIPE_INTERFACE=" + quoted(environment.interface) +
                              " is not an interface or an address of this machine. It has " +
                              listed(network.interfaces));
}

// Returns the first address of the host to which there is a route. All ranks choose the same one,
// even if the host has several addresses (A and AAAA records) and machines know them in different
// orders. Empty if no address is known.
std::string address_of(const std::string& host, const Network& network) {
  const std::vector<std::string> addresses = network.resolve(host);
  for (const std::string& address : addresses) {
    if (is_loopback(address) || !network.source_of(address).empty()) return address;
  }
  return addresses.empty() ? "" : addresses.front();
}

// Whether the user has chosen the interface; false for the default of ranks on one machine.
bool is_chosen_by_user(const Environment& environment) {
  const auto source = environment.sources.find("interface");
  return source != environment.sources.end() && source->second == "GPIPE_INTERFACE";
}

// The address of the only interface that leads out of this machine.
std::string only_one(const Environment& environment, const Network& network) {
  std::vector<Interface> outside;
  for (const Interface& interface : network.interfaces) {
    if (!interface.is_loopback) outside.push_back(interface);
  }
  // An interface with IPv4 and IPv6 addresses counts once; its first address is used.
  const bool is_only_one =
      !outside.empty() && std::all_of(outside.begin(), outside.end(), [&](const auto& i) {
        return i.name == outside.front().name &&
               (is_v6(i.address) || i.address == outside.front().address);
      });
  if (is_only_one) return outside.front().address;
  throw std::invalid_argument(
      quoted(environment.master_address) +
      " is an address of this machine alone, where ranks on other machines cannot come, so it does "
      "not say by which interface they do. Set GPIPE_INTERFACE on this machine to one of " +
      listed(outside));
}

}  // namespace

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

std::vector<Interface> interfaces_of_this_machine() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) {
    throw std::system_error(errno, std::generic_category(), "getifaddrs");
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> all(first, freeifaddrs);
  std::vector<Interface> interfaces;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    if (is_link_local(entry->ifa_addr)) continue;
    const std::string address = numeric(entry->ifa_addr);
    if (address.empty()) continue;
    interfaces.push_back({entry->ifa_name, address, (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  std::stable_sort(interfaces.begin(), interfaces.end(), [](const auto& a, const auto& b) {
    return is_v6(a.address) < is_v6(b.address);
  });
  return interfaces;
}

std::string loopback_address(const std::vector<Interface>& interfaces) {
  std::string v6;
  for (const Interface& interface : interfaces) {
    if (!interface.is_loopback) continue;
    if (!is_v6(interface.address)) return "127.0.0.1";
    if (v6.empty()) v6 = interface.address;
  }
  return v6.empty() ? "127.0.0.1" : v6;
}

Network network_of_this_machine() {
  return {interfaces_of_this_machine(), resolve_host, find_source};
}

Addresses choose_addresses(const Environment& environment, const Network& network) {
  Addresses addresses;
  if (environment.launcher == Launcher::kNone) {
    return {environment.master_address, environment.master_address};
  }
  addresses.master = address_of(environment.master_address, network);
  if (addresses.master.empty()) {
    throw std::invalid_argument("there is no address for the host " +
                                quoted(environment.master_address) + ", where rank 0 is (" +
                                to_text(environment) + ")");
  }
  if (environment.is_one_machine() && !is_chosen_by_user(environment)) {
    addresses.own = loopback_address(network.interfaces);
  } else if (!environment.interface.empty()) {
    addresses.own = chosen_by_user(environment, addresses.master, network);
  } else if (is_loopback(addresses.master)) {
    // Rank 0's host name leads to loopback, so this process is on rank 0's machine (Debian maps a
    // host's own name to 127.0.1.1).
    addresses.own = only_one(environment, network);
  } else {
    addresses.own = network.source_of(addresses.master);
    if (addresses.own.empty()) {
      throw std::invalid_argument(
          "there is no way to " + addresses.master + ", where rank 0 is. This machine has " +
          listed(network.interfaces) + "; set GPIPE_INTERFACE to the one that leads there");
    }
  }
  if (environment.store_is_the_launchers) return addresses;
  // On rank 0's machine the host's name may lead to loopback, where other machines cannot reach the
  // store. And if all ranks are on one machine, they all use one address. In both cases the store
  // is at this process's own address.
  if (environment.is_one_machine() || is_loopback(addresses.master)) {
    addresses.master = addresses.own;
  }
  return addresses;
}

}  // namespace gpipe::distributed
