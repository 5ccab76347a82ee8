// to_svg: timelines as a picture, one below the other on one scale of time.
#ifndef GPIPE_TIMELINE_TIMELINE_SVG_H_
#define GPIPE_TIMELINE_TIMELINE_SVG_H_

#include <string>
#include <vector>

#include "gpipe/timeline/step_timeline.h"

namespace gpipe {

struct TimelinePanel {
  std::string title;  // "measured", say
  StepTimeline step;
};

// A file for browsers, light or dark as they are. A panel has a track for each worker; actions have
// a color for each kind and the number of their micro-batch where it fits. Actions that are
// narrower than a pixel are merged to columns: the color of what took most of the pixel, as strong
// as its share. So the file stays small, however many actions there are.
//
// Example:
//   to_svg({{"measured", timeline.steps().back()}, {"simulated", to_timeline(simulation)}},
//   "1F1B");
std::string to_svg(const std::vector<TimelinePanel>& panels, const std::string& title);

}  // namespace gpipe

#endif  // GPIPE_TIMELINE_TIMELINE_SVG_H_
