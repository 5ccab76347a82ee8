// MasterPort: a port for rank 0 to listen on, which nobody else is given meanwhile.
#ifndef GPIPE_DISTRIBUTED_SOCKETS_MASTER_PORT_H_
#define GPIPE_DISTRIBUTED_SOCKETS_MASTER_PORT_H_

namespace gpipe::distributed {

// While it lives, the system gives its port to nobody that asks for any: neither to who listens nor
// to who connects. Nothing listens. A process that names the port, with SO_REUSEADDR (c10d's store
// does), can listen on it, on all addresses or one: so can a stranger's, which cannot be helped.
//
// Throws: std::runtime_error if there is none.
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
