// The header for users; the code is in balance/step/explanation_text.h.
#ifndef GPIPE_BALANCE_EXPLANATION_TEXT_H_
#define GPIPE_BALANCE_EXPLANATION_TEXT_H_

#include "balance/step/explanation_text.h"  // IWYU pragma: export

#endif  // GPIPE_BALANCE_EXPLANATION_TEXT_H_
