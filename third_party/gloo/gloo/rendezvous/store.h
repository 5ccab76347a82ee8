// gloo::rendezvous::Store, as far as c10d's headers derive from it. Nothing here may be used.
#ifndef THIRD_PARTY_GLOO_GLOO_RENDEZVOUS_STORE_H_
#define THIRD_PARTY_GLOO_GLOO_RENDEZVOUS_STORE_H_

#include <chrono>
#include <string>
#include <vector>

namespace gloo::rendezvous {

class Store {
 public:
  // The destructor is defined nowhere in this repository, so that no table of virtual functions is
  // emitted.
  virtual ~Store();
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys,
                    const std::chrono::milliseconds& timeout) = 0;
};

}  // namespace gloo::rendezvous

#endif  // THIRD_PARTY_GLOO_GLOO_RENDEZVOUS_STORE_H_
