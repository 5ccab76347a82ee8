// Forms: that replicas have the same tensors, before their bytes are moved.
#ifndef GPIPE_INTERNAL_REPLICAS_FORMS_H_
#define GPIPE_INTERNAL_REPLICAS_FORMS_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "gpipe/world.h"

namespace gpipe::internal {

// "12 tensors, 10 of them require a gradient, 4352 bytes, 9a3f..": of types and shapes, and which
// of them require a gradient, in their order.
std::string form_of(const std::vector<at::Tensor>& tensors);

// Compares what this process has with the same process of each other replica. `forms`: [rank].
// Throws FoundByAll that names two ranks. `what`: for the message.
void check_forms(const World& world, const std::string& what,
                 const std::vector<std::string>& forms);

// Exchanges the forms, and checks them. Called within in_call(), by all processes, each of which
// may have worked for long before.
void agree_on_forms(const World& world, const std::string& what,
                    const std::vector<at::Tensor>& tensors);

// Whether this process of all replicas has tensors of the same form. Called by these processes,
// all of which find the same; the others may still be at something else.
bool have_same_form(const World& world, const std::vector<at::Tensor>& tensors);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_REPLICAS_FORMS_H_
