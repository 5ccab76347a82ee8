#include "gpipe/distributed/sockets/token.h"

#include <sys/random.h>

#include <stdexcept>

namespace gpipe::distributed {

std::string make_token() {
  unsigned char bytes[16];
  if (getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) {
    throw std::runtime_error("the system gives no random numbers");
  }
  constexpr char kDigits[] = "0123456789abcdef";
  std::string token;
  for (const unsigned char byte : bytes) token += {kDigits[byte / 16], kDigits[byte % 16]};
  return token;
}

}  // namespace gpipe::distributed
