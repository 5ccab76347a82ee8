// MasterPort: reserves a port for rank 0 to listen on.
#ifndef GPIPE_DISTRIBUTED_SOCKETS_MASTER_PORT_H_
#define GPIPE_DISTRIBUTED_SOCKETS_MASTER_PORT_H_

namespace gpipe::distributed {

// While it lives, the system does not give its port to a process that asks for any free port,
// neither to listen nor to connect. MasterPort itself does not listen. A process that names the
// port and sets SO_REUSEADDR (c10d's store does) can listen on it, on all addresses or on one. A
// process of another program can do that, too, which cannot be prevented.
//
// Throws: std::runtime_error if no port is free.
class MasterPort {
 public:
  MasterPort();
  ~MasterPort();
  MasterPort(const MasterPort&) = delete;
  MasterPort& operator=(const MasterPort&) = delete;

  int number() const { return number_; }

 private:
  int socket_ = -1;
  int number_ = 0;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_SOCKETS_MASTER_PORT_H_
