// to_svg: draws timelines as a picture, one below the other, on one scale of time.
#ifndef GPIPE_TIMELINE_TIMELINE_SVG_H_
#define GPIPE_TIMELINE_TIMELINE_SVG_H_

#include <string>
#include <vector>

#include "gpipe/timeline/step_timeline.h"

namespace gpipe {

struct TimelinePanel {
  std::string title;  // e.g. "measured"
  StepTimeline step;
};

// The SVG suits light and dark pages of browsers. A panel has a track for each worker. Actions have
// a color for each kind and the number of their micro-batch if it fits. Actions that are narrower
// than a pixel are merged to columns, with the color of the kind that took most of the pixel, as
// strong as the share of all actions in the pixel. So the file stays small, however many actions
// there are.
//
// Example:
//   to_svg({{"measured", timeline.steps().back()}, {"simulated", to_timeline(simulation)}},
//   "1F1B");
std::string to_svg(const std::vector<TimelinePanel>& panels, const std::string& title);

}  // namespace gpipe

#endif  // GPIPE_TIMELINE_TIMELINE_SVG_H_
