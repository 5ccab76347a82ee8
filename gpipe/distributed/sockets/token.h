// make_token(): a secret that the processes of one run share.
#ifndef GPIPE_DISTRIBUTED_SOCKETS_TOKEN_H_
#define GPIPE_DISTRIBUTED_SOCKETS_TOKEN_H_

#include <string>

namespace gpipe::distributed {

// 32 random hexadecimal digits. Throws std::runtime_error if the system gives no random numbers.
std::string make_token();

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_SOCKETS_TOKEN_H_
