// gloo::transport::UnboundBuffer, as far as c10d's headers own it. Nothing here may be used.
#ifndef THIRD_PARTY_GLOO_GLOO_TRANSPORT_UNBOUND_BUFFER_H_
#define THIRD_PARTY_GLOO_GLOO_TRANSPORT_UNBOUND_BUFFER_H_

namespace gloo::transport {

class UnboundBuffer {
 public:
  // The destructor is defined nowhere in this repository, so that no table of virtual functions is
  // emitted.
  virtual ~UnboundBuffer();
};

}  // namespace gloo::transport

#endif  // THIRD_PARTY_GLOO_GLOO_TRANSPORT_UNBOUND_BUFFER_H_
