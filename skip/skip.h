// Skip: everything in package `skip` that a user of skippable layers needs.
#ifndef SKIP_SKIP_H_
#define SKIP_SKIP_H_

#include "skip/namespace.h"
#include "skip/skippable.h"
#include "skip/tracker.h"
#include "skip/verify.h"

#endif  // SKIP_SKIP_H_
