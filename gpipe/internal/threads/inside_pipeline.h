// inside_pipeline(): whether a thread is at work in a run of a pipeline.
#ifndef GPIPE_INTERNAL_THREADS_INSIDE_PIPELINE_H_
#define GPIPE_INTERNAL_THREADS_INSIDE_PIPELINE_H_

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "interception/interception.h"

namespace gpipe::internal {

// Whether this thread, or the thread on whose behalf autograd uses this one, is running a layer,
// the loss, a hook or an observer of a pipeline. False for a thread that one of these has started.
//
// The key is switched on wherever a pipeline's cells run, and autograd copies it to the threads on
// which it runs their graphs.
inline bool inside_pipeline() { return c10::impl::tls_is_dispatch_key_included(kInterceptionKey); }

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_THREADS_INSIDE_PIPELINE_H_
