// gloo::transport::Device, as far as c10d's headers name it. Nothing here may be used.
#ifndef THIRD_PARTY_GLOO_GLOO_TRANSPORT_DEVICE_H_
#define THIRD_PARTY_GLOO_GLOO_TRANSPORT_DEVICE_H_

#include "gloo/transport/unbound_buffer.h"

namespace gloo::transport {

class Device;

}  // namespace gloo::transport

#endif  // THIRD_PARTY_GLOO_GLOO_TRANSPORT_DEVICE_H_
