// The table at the end of every experiment: our figures beside the published ones, each row
// labelled with how it was obtained, as text and as JSON.

#ifndef GPIPE_EXPERIMENTS_COMMON_REPORT_H_
#define GPIPE_EXPERIMENTS_COMMON_REPORT_H_

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpipe::experiments {

// How the figures of a row were obtained.
enum class Origin {
  kMeasured,   // really run here
  kPlanned,    // computed on the meta device at full size
  kSimulated,  // the schedule at full size with profiled costs
  kPublished,  // the row holds published figures only
  kNotRun,     // not run here; the row's note says why
};

// "measured", "planned", "simulated", "published", "not run".
std::string to_text(Origin origin);

// A figure that the rows of a report have.
struct Column {
  std::string key;                   // of the JSON, e.g. "top1_error_percent"
  std::string heading;               // of the table, e.g. "top-1 error (%)"
  int precision = 3;                 // digits after the point of our figures
  std::vector<std::string> sources;  // whose published figures stand beside ours
};

struct Figure {
  std::optional<double> ours;
  std::map<std::string, std::string> published;  // source -> text as published
};

struct Row {
  std::string experiment;
  Origin origin = Origin::kNotRun;
  std::map<std::string, Figure> figures;  // by Column::key
  std::string note;                       // what was run, or why nothing was
  // Further facts for the JSON only, such as the batch size.
  std::vector<std::pair<std::string, std::string>> settings;
};

// Not thread-safe.
//
//   Report report("ResNet-101 accuracy", {{"throughput", "images/s", 1, {"torchgpipe"}}});
//   report.add(row);
//   std::cout << report.to_text();
class Report {
 public:
  Report(std::string title, std::vector<Column> columns);

  // Throws std::invalid_argument if the row has a figure that is no column, or a source that the
  // column does not name, a figure of our own in a row published or not run, none at all in a row
  // measured, planned or simulated, or, if not run, no note: nothing is shown that was not
  // obtained, and what is missing says why.
  void add(Row row);

  // A line below the table, such as the machine that measured it.
  void add_remark(const std::string& remark);

  const std::vector<Row>& rows() const { return rows_; }

  // Columns aligned for a fixed-width font; "-" where there is no figure. Ends with a newline.
  std::string to_text() const;

  // {"title", "remarks", "rows": [{"experiment", "origin", "note", "settings", "figures":
  // {key: {"ours": number or null, "published": {source: text}}}}]}, indented. A figure that is
  // not finite (a diverged loss) is null.
  std::string to_json() const;

 private:
  std::string title_;
  std::vector<Column> columns_;
  std::vector<Row> rows_;
  std::vector<std::string> remarks_;
};

}  // namespace gpipe::experiments

#endif  // GPIPE_EXPERIMENTS_COMMON_REPORT_H_
